"""Changes of the route table when a broker is removed. :class:`LeaveReason` lists the reasons."""

from __future__ import annotations

from msgspec.structs import replace

from routekeeper.nameserver.types import BrokerAddr, BrokerKey, LeaveReason, MinBrokerChange
from routekeeper.nameserver.verdicts import Applied, BrokerLeft, Facts, TopicsLost
from routekeeper.remoting.codes import MASTER_ID, PERM_WRITE
from routekeeper.remoting.steps import Steps

from .entries import NameEntry, Record
from .store import RouteStore
from .topics import Draft


class Leaving:
    """The removal of a broker. Call :meth:`prepare`, then :meth:`commit`.

    Attributes:
        draft: Prepared changes of topics (see :class:`.topics.Draft`); None if no topic changes.
    """

    def __init__(self, store: RouteStore, broker: BrokerKey) -> None:
        self._store = store
        self._broker = broker
        self._topics: dict[str, object] = {}
        self.draft: Draft | None = None

    def prepare(self) -> Steps[None]:
        """Prepare the changes of topics for the next revision, without a change of the table."""
        store, topics = self._store, self._store.topics
        name = store.brokers.records[self._broker].broker_name
        addrs, shares = self._addrs_left(), {}
        if not addrs:
            self._topics = without = dict.fromkeys(topics.of_name(name))
        elif MASTER_ID not in addrs and store.brokers.names[name].enable_acting_master:
            shares, without = topics.with_other_perms(name, lambda perm: perm & ~PERM_WRITE), {}
            self._topics = dict.fromkeys(shares)
        if self._topics:
            self.draft = Draft(topics, name, store.revision + 1)
            yield from self.draft.put(shares, without=without)

    def _addrs_left(self) -> dict[int, BrokerKey]:
        name = self._store.brokers.names[self._store.brokers.records[self._broker].broker_name]
        return {i: key for i, key in name.addrs.items() if key != self._broker}

    def commit(self, reason: LeaveReason, facts: Facts) -> None:
        """Remove the record and its address, and update or remove the broker name as RocketMQ does."""
        store, broker, addrs = self._store, self._broker, self._addrs_left()
        record = forget_record(store, broker, reason, facts)
        name = record.broker_name
        brokers, revision = store.brokers, store.revision
        before = brokers.names[name]
        if addrs:
            entry = replace(before, addrs=addrs, revision=revision, route_revision=revision)
            brokers.put_name(name, entry, revision)
            facts.names[name] = None
        if self.draft is not None:
            self.draft.commit()
            if facts.topics:
                facts.topics.update(self._topics)
            else:  # the usual case, in which no copy of the mapping is needed
                facts.topics = self._topics
        if not addrs:
            if self._topics:
                lost = TopicsLost(topics=tuple(self._topics), reason=reason, broker_name=name, broker=broker)
                facts.lost.append(lost)
            brokers.put_name(name, None, revision)
            store.topics.forget_name(name)
        elif min(addrs) != min(before.addrs):
            ha_addr = brokers.records[addrs[min(addrs)]].ha_server_addr
            note_min_change(entry, offline=broker.broker_addr, ha_addr=ha_addr, facts=facts)


def drop(store: RouteStore, broker: BrokerKey, reason: LeaveReason) -> Steps[Applied]:
    """Remove one broker. The removal is a separate change of the table, and raises the revision by one."""
    leaving = Leaving(store, broker)
    yield from leaving.prepare()
    store.revision += 1
    facts = Facts()
    leaving.commit(reason, facts)
    return facts.applied(store.revision)


def forget_record(store: RouteStore, broker: BrokerKey, reason: LeaveReason, facts: Facts) -> Record:
    """Remove a broker's record and return it.

    The caller must also remove the broker's address from its broker name. Otherwise the broker name would
    have an address without a record.
    """
    record = store.brokers.records[broker]
    store.brokers.put_record(broker, None, store.revision)
    facts.left.append(BrokerLeft(broker=broker, broker_name=record.broker_name, reason=reason))
    return record


def note_min_change(
    entry: NameEntry, *, offline: BrokerAddr | None, ha_addr: str | None, facts: Facts
) -> None:
    """Add to ``facts`` the change of a broker name's smallest id, and the brokers to notify of this change.

    Args:
        offline: Address of the broker that was removed; None if a broker was added.
        ha_addr: Replication address of the broker with the smallest id.
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
