"""What registrations change in the route table, and what their senders are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec.structs import replace

from nameserver.commands import QueueMapping, RegisterBroker, Touch
from nameserver.registration import Registration
from nameserver.types import BrokerKey, BrokerName, LeaveReason
from nameserver.verdicts import Applied, Facts, Moved, NoChange, RegisterReply, TopicsLost, Verdict
from remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, PERM_WRITE

from .entries import NameEntry, Record, Share
from .leaving import drop, forget_record, note_min_change
from .store import RouteStore

#: Who registers, as far as it tells whether its topics count.
Sender: TypeAlias = RegisterBroker | Registration


def would_change(store: RouteStore, command: RegisterBroker) -> bool:
    """Whether applying a registration would change the table, were it not *moved*."""
    broker = command.broker
    record, name = store.brokers.records.get(broker), store.brokers.names.get(command.broker_name)
    if record is not None and name is not None and _says_the_same(command, broker, record, name):
        return _has_news(store, command, record, name)
    return _is_change(store, command, record, name)


def _is_change(
    store: RouteStore, command: RegisterBroker, record: Record | None, name: NameEntry | None
) -> bool:
    if _is_fenced(store, command, name):
        return record is not None
    if name is None or record is None or not _same_place(record, command):
        return True
    if _is_contained(record, command):
        return False
    return _header_differs(store, command, record, name) or _has_news(store, command, record, name)


def _has_news(store: RouteStore, command: RegisterBroker, record: Record, name: NameEntry) -> bool:
    """Whether a registration changes anything, whose sender says of itself what it said before."""
    if _is_contained(record, command):
        return False
    if record.data_version != command.data_version or record.complete == command.incremental:
        return True
    if record.complete or not owns_topics(command, name.addrs):
        return False
    return bool(_differing(store, command, name.addrs)) or any(
        _new_mapping(store, command.broker_name, mapping) for mapping in command.mappings
    )


def register_reply(
    store: RouteStore, broker_name: BrokerName, broker: BrokerKey, broker_id: int
) -> RegisterReply:
    """Say what a broker is told when its registration succeeds on the table as it is."""
    record = store.brokers.records.get(broker)
    order = store.kv.spaces.get(ORDER_TOPIC_NAMESPACE)
    revision = None if record is None else record.revision
    if broker_id == MASTER_ID:
        return RegisterReply(order_topics=order, revision=revision)
    name = store.brokers.names.get(broker_name)
    if name is not None and MASTER_ID in name.addrs and record is not None:
        master = store.brokers.records[name.addrs[MASTER_ID]]
        return RegisterReply(
            master_addr=master.broker.broker_addr,
            ha_server_addr=master.ha_server_addr,
            order_topics=order,
            revision=revision,
        )
    return RegisterReply(order_topics=order, revision=revision)


def _reply_to(store: RouteStore, command: RegisterBroker | Touch) -> RegisterReply:
    return register_reply(store, command.broker_name, command.broker, command.broker_id)


def registration_moved(
    store: RouteStore,
    command: RegisterBroker,
    broker: BrokerKey,
    record: Record | None,
    name: NameEntry | None,
) -> bool:
    """Whether a registration has moved, by its :func:`bases`, for who has looked up record and name."""
    recorded = store.moved_at("record", broker) if record is None else record.revision
    if recorded > command.record_revision:
        return True
    named = store.moved_at("name", command.broker_name) if name is None else name.revision
    return named > command.name_revision


def register(store: RouteStore, command: RegisterBroker) -> Verdict:
    """Apply a registration."""
    broker = command.broker
    record, name = store.brokers.records.get(broker), store.brokers.names.get(command.broker_name)
    if registration_moved(store, command, broker, record, name):
        return Moved(revision=store.revision)
    if record is not None and name is not None and _says_the_same(command, broker, record, name):
        return _register_again(store, command, record, name)
    if not _is_change(store, command, record, name):
        return NoChange(revision=store.revision, reply=_reply_to(store, command))
    store.revision += 1
    facts = Facts()
    if _is_fenced(store, command, name):
        # An answer without a change would leave the address listed under the id it no longer claims.
        drop(store, broker, LeaveReason.FENCED, facts)
        return facts.applied(store.revision, _reply_to(store, command))
    first = record is None or not _same_place(record, command)
    facts.joined = broker if first else None
    if record is not None and record.broker_name != command.broker_name:
        drop(store, broker, LeaveReason.MOVED, facts)
        name = store.brokers.names.get(command.broker_name)
    entry = _take_place(store, command, name, facts)
    looks_at_topics = (
        record is None or first or not record.complete or record.data_version != command.data_version
    )
    permissions_changed = False
    if looks_at_topics and owns_topics(command, entry.addrs):
        permissions_changed = _take_topics(store, command, entry, facts)
    filters_before = record.filter_servers if record is not None else ()
    filters = filters_before if command.filter_servers is None else command.filter_servers
    store.brokers.put_record(
        broker,
        Record(
            broker=broker,
            broker_name=command.broker_name,
            broker_id=command.broker_id,
            ha_server_addr=command.ha_server_addr,
            data_version=command.data_version,
            complete=not command.incremental,
            lease_ms=command.lease_ms,
            filter_servers=filters,
            revision=store.revision,
        ),
        store.revision,
    )
    shown = entry.route_revision == store.revision or filters != filters_before
    if shown or permissions_changed:
        entry = replace(
            entry,
            revision=store.revision
            if permissions_changed or entry.revision == store.revision
            else entry.revision,
            route_revision=store.revision if shown else entry.route_revision,
        )
        store.brokers.put_name(command.broker_name, entry, store.revision)
    if shown:
        facts.names[command.broker_name] = None
    return facts.applied(store.revision, _reply_to(store, command))


def _register_again(store: RouteStore, command: RegisterBroker, record: Record, name: NameEntry) -> Verdict:
    """Register a broker that says of itself what it said before: at most its topics are other ones.

    Comes to what the general way comes to, in a third of the time; most changes are of this kind.
    """
    if not _has_news(store, command, record, name):
        return NoChange(revision=store.revision, reply=_reply_to(store, command))
    store.revision += 1
    facts = None
    topics: tuple[str, ...] = ()
    if owns_topics(command, name.addrs):
        if command.mappings or command.delete_absent:
            facts = Facts()
            changed = _take_topics(store, command, name, facts)
        else:
            taken = _differing(store, command, name.addrs)
            changed = bool(taken)
            if taken:
                store.topics.put(command.broker_name, taken, store.revision)
                topics = tuple(taken)
        if changed:
            store.brokers.renew_name(command.broker_name, name, store.revision)
    store.brokers.renew_record(record, command.data_version, store.revision, complete=not command.incremental)
    reply = _reply_to(store, command)
    if facts is not None:
        return facts.applied(store.revision, reply)
    return Applied(revision=store.revision, reply=reply, topics=topics)


def _is_fenced(store: RouteStore, command: RegisterBroker, name: NameEntry | None) -> bool:
    """Whether another address holds the id with a greater state version (5.x)."""
    if name is None:
        return False
    holder = name.addrs.get(command.broker_id)
    if holder is None or holder.broker_addr == command.broker_addr:
        return False
    return store.brokers.records[holder].data_version.state_version > command.data_version.state_version


def _header_differs(store: RouteStore, command: RegisterBroker, record: Record, name: NameEntry) -> bool:
    return (
        record.ha_server_addr != command.ha_server_addr
        or record.lease_ms != command.lease_ms
        or (command.filter_servers is not None and record.filter_servers != command.filter_servers)
        or name.enable_acting_master != bool(command.enable_acting_master)
        or name.zone_name != command.zone_name
        or command.cluster_name not in name.clusters
    )


def _take_place(
    store: RouteStore, command: RegisterBroker, name: NameEntry | None, facts: Facts
) -> NameEntry:
    """Put the address under its name and id, and remove whom it displaces; return the entry as put."""
    if name is not None and _is_in_place(command, command.broker, name):
        return name
    before: Mapping[int, BrokerKey] = {} if name is None else name.addrs
    addrs = dict(before)
    for broker_id, broker in before.items():
        same_address = broker.broker_addr == command.broker_addr
        if same_address and broker_id != command.broker_id:
            del addrs[broker_id]
        if broker != command.broker and (same_address or broker_id == command.broker_id):
            reason = LeaveReason.MOVED if same_address else LeaveReason.DISPLACED
            forget_record(store, broker, reason, facts)
    addrs[command.broker_id] = command.broker
    clusters = {command.cluster_name} if name is None else {command.cluster_name, *name.clusters}
    moved = addrs != before
    entry = NameEntry(
        cluster=command.cluster_name if name is None else name.cluster,
        clusters=tuple(sorted(clusters)),
        addrs=dict(sorted(addrs.items())),
        enable_acting_master=bool(command.enable_acting_master),
        zone_name=command.zone_name,
        revision=store.revision if name is None or moved else name.revision,
        route_revision=0 if name is None else name.route_revision,
    )
    if name is None or entry != name:
        entry = replace(entry, route_revision=store.revision)
        store.brokers.put_name(command.broker_name, entry, store.revision)
    if before and command.broker_id < min(before):
        note_min_change(command.broker_name, entry, offline=None, ha_addr=command.ha_server_addr, facts=facts)
    return entry


def _take_topics(store: RouteStore, command: RegisterBroker, entry: NameEntry, facts: Facts) -> bool:
    """Put the body's topics; return whether any queue data changed."""
    name = command.broker_name
    changed = False
    if command.delete_absent and not command.incremental and not command.mappings:
        kept = {queues.topic for queues in command.topics}
        absent = tuple(topic for topic in store.topics.of_name(name) if topic not in kept)
        if absent:
            changed = True
            store.topics.remove(absent, name, store.revision)
            facts.topics.update(dict.fromkeys(absent))
            facts.lost.append(
                TopicsLost(topics=absent, reason=LeaveReason.ABSENT, broker_name=name, broker=command.broker)
            )
    taken = _differing(store, command, entry.addrs)
    if taken:
        changed = True
        store.topics.put(name, taken, store.revision)
        facts.topics.update(dict.fromkeys(taken))
    for mapping in command.mappings:
        if _new_mapping(store, name, mapping):
            store.topics.put_mapping(name, mapping, store.revision)
            facts.topics[mapping.topic] = None
    return changed


def _differing(
    store: RouteStore, command: RegisterBroker, addrs: Mapping[int, BrokerKey]
) -> dict[str, Share]:
    """Return what a body says otherwise than the table, by topic. This loop runs once per topic sent."""
    name = command.broker_name
    pool = store.topics.pool(name)
    shares, listed = pool.shares, pool.topics
    mask = perm_mask(command, addrs)
    found: dict[str, Share] = {}
    share = None
    reads = writes = perm = flag = -1
    for queues in command.topics:
        # Mostly a topic has the same numbers as the one before it.
        if (
            queues.read_queue_nums != reads
            or queues.write_queue_nums != writes
            or queues.perm != perm
            or queues.topic_sys_flag != flag
            or share is None
        ):
            reads, writes = queues.read_queue_nums, queues.write_queue_nums
            perm, flag = queues.perm, queues.topic_sys_flag
            share = shares.get((reads, writes, perm & mask, flag))
            if share is None:
                share = store.topics.share(name, reads, writes, perm & mask, flag)
        topic = queues.topic
        if listed.get(topic) is not share:
            found[topic] = share
    return found


def _new_mapping(store: RouteStore, name: BrokerName, mapping: QueueMapping) -> bool:
    entry = store.topics.entries.get(mapping.topic)
    if entry is None or name not in entry.queues:
        return False
    before = entry.mappings.get(name)
    return before is None or mapping.epoch > before.epoch


def touch(store: RouteStore, command: Touch) -> Verdict:
    """Renew a record that is as the command says."""
    record = store.brokers.records.get(command.broker)
    name = store.brokers.names.get(command.broker_name)
    if (
        record is None
        or name is None
        or not _same_place(record, command)
        or record.ha_server_addr != command.ha_server_addr
        or record.data_version != command.data_version
        or record.complete != command.complete
        or record.lease_ms != command.lease_ms
        or name.enable_acting_master != bool(command.enable_acting_master)
        or name.zone_name != command.zone_name
    ):
        return Moved(revision=store.revision)
    store.revision += 1
    store.brokers.renew_record(record, record.data_version, store.revision, complete=record.complete)
    return Applied(revision=store.revision, reply=_reply_to(store, command))


# -- pure parts -------------------------------------------------------------------------------------------


def _same_place(record: Record, command: RegisterBroker | Touch) -> bool:
    return record.broker_name == command.broker_name and record.broker_id == command.broker_id


def _says_the_same(command: RegisterBroker, broker: BrokerKey, record: Record, name: NameEntry) -> bool:
    """Whether a broker says of itself what it said before: place, addresses, lease, settings."""
    return (
        record.broker_id == command.broker_id
        and record.broker_name == command.broker_name
        and record.ha_server_addr == command.ha_server_addr
        and record.lease_ms == command.lease_ms
        and (command.filter_servers is None or record.filter_servers == command.filter_servers)
        and _is_in_place(command, broker, name)
    )


def _is_in_place(command: RegisterBroker, broker: BrokerKey, name: NameEntry) -> bool:
    """Whether a broker is listed as it says already. An address has one id within a name, so that is all."""
    return (
        name.addrs.get(command.broker_id) == broker
        and command.cluster_name in name.clusters
        and name.enable_acting_master == bool(command.enable_acting_master)
        and name.zone_name == command.zone_name
    )


def _is_contained(record: Record, command: RegisterBroker) -> bool:
    """Whether an incremental registration is in a complete record already, so a late copy."""
    return command.incremental and record.complete and command.data_version.contained_in(record.data_version)


def _is_prime_slave(command: Sender, addrs: Mapping[int, BrokerKey]) -> bool:
    """Whether a slave may bring topics: a 5.x one with the smallest id behind its name."""
    return (
        command.enable_acting_master is not None
        and command.broker_id != MASTER_ID
        and command.broker_id == min(addrs)
    )


def owns_topics(command: Sender, addrs: Mapping[int, BrokerKey]) -> bool:
    """Whether the topics of a registration count, of a broker listed behind a name with these addresses."""
    return command.broker_id == MASTER_ID or _is_prime_slave(command, addrs)


def perm_mask(command: Sender, addrs: Mapping[int, BrokerKey]) -> int:
    """Return the bits of permissions that are stored: an acting master has no write permission."""
    return ~PERM_WRITE if command.enable_acting_master and _is_prime_slave(command, addrs) else -1
