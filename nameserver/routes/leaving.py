"""What the route table does when a broker goes, whatever the cause; see :class:`LeaveReason`."""

from __future__ import annotations

from msgspec.structs import replace

from routekeeper.nameserver.types import BrokerAddr, BrokerKey, LeaveReason, MinBrokerChange
from routekeeper.nameserver.verdicts import BrokerLeft, Facts, TopicsLost
from routekeeper.remoting.codes import MASTER_ID, PERM_WRITE

from .entries import NameEntry, Record
from .store import RouteStore


def drop(store: RouteStore, broker: BrokerKey, reason: LeaveReason, facts: Facts) -> None:
    """Remove a record and its address; clean up the name as the documents say."""
    record = forget_record(store, broker, reason, facts)
    name = record.broker_name
    brokers, revision = store.brokers, store.revision
    before = brokers.names[name]
    addrs = {i: key for i, key in before.addrs.items() if key != broker}
    topics = tuple(store.topics.of_name(name))
    if not addrs:
        if topics:
            store.topics.put(name, {}, revision, without=topics)
            facts.topics.update(dict.fromkeys(topics))
            facts.lost.append(TopicsLost(topics=topics, reason=reason, broker_name=name, broker=broker))
        brokers.put_name(name, None, revision)
        store.topics.forget_name(name)
        return
    entry = replace(before, addrs=addrs, revision=revision, route_revision=revision)
    brokers.put_name(name, entry, revision)
    facts.names[name] = None
    if MASTER_ID not in addrs and entry.enable_acting_master:
        changed = store.topics.with_other_perms(name, lambda perm: perm & ~PERM_WRITE)
        if changed:
            store.topics.put(name, changed, revision)
            facts.topics.update(dict.fromkeys(changed))
    if min(addrs) != min(before.addrs):
        ha_addr = brokers.records[addrs[min(addrs)]].ha_server_addr
        note_min_change(entry, offline=broker.broker_addr, ha_addr=ha_addr, facts=facts)


def forget_record(store: RouteStore, broker: BrokerKey, reason: LeaveReason, facts: Facts) -> Record:
    """Remove a record and return it; its address is the caller's to remove."""
    record = store.brokers.records[broker]
    store.brokers.put_record(broker, None, store.revision)
    facts.left.append(BrokerLeft(broker=broker, broker_name=record.broker_name, reason=reason))
    return record


def note_min_change(
    entry: NameEntry, *, offline: BrokerAddr | None, ha_addr: str | None, facts: Facts
) -> None:
    """Note that another broker of a name has the smallest id, and whom to tell.

    Args:
        offline: The address that is gone, None if one came.
        ha_addr: Of the broker that has it.
    """
    smallest = min(entry.addrs)
    everybody = offline is not None or len(entry.addrs) == 1
    facts.min_changes.append(
        MinBrokerChange(
            min_broker_id=smallest,
            min_broker_addr=entry.addrs[smallest].broker_addr,
            offline_addr=offline,
            ha_addr=ha_addr,
            tell=tuple(key.broker_addr for i, key in entry.addrs.items() if everybody or i != smallest),
        )
    )
