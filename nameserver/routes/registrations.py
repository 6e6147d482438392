"""Changes of the route table by registrations, and the replies to the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    QueueMapping,
    RegisterBroker,
    TableLimits,
    Touch,
    Update,
)
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.types import BrokerKey, BrokerName, LeaveReason
from routekeeper.nameserver.verdicts import (
    Applied,
    Facts,
    Moved,
    NoChange,
    RegisterReply,
    Rejected,
    TopicsLost,
    Verdict,
)
from routekeeper.remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, PERM_WRITE
from routekeeper.remoting.registration import TopicNumbers
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import STEP, Steps, in_steps

from .entries import NameEntry, Record, Share
from .leaving import Leaving, forget_record, note_min_change
from .room import Held, excess, refusal, size_of
from .store import RouteStore
from .topics import Draft

#: Largest number of clusters of one broker name. A name keeps its clusters until its last broker is removed,
#: and the answer to request 106 (cluster list) names each of them.
CLUSTERS_MAX: Final = 16
#: Largest size in bytes of all mapping infos of one static topic. The answer to a route query contains them.
TOPIC_MAPPINGS_BYTES_MAX: Final = 512 * 1024
#: A broker's registration, as a command or as a decoded request.
Sender: TypeAlias = RegisterBroker | Registration


def would_change(store: RouteStore, command: RegisterBroker) -> Steps[bool]:
    """Return True if a registration would change the table.

    The result is valid as long as the entries from which the command was computed stay the same (see
    :meth:`.table.RouteTable.moved`).
    """
    news = _says_news(store, command)
    if news is None:
        return _brings_news(store, command, (yield from _brought(store, command)))
    return news


def _says_news(store: RouteStore, command: RegisterBroker) -> bool | None:
    """Return True if a registration changes the table, and False if it does not.

    Return None if this depends on the registration's topics, which this function does not compare.
    """
    record, name = store.brokers.records.get(command.broker), store.brokers.names.get(command.broker_name)
    if _is_fenced(store, command, name):
        return record is not None
    if name is None or record is None or not _same_place(record, command):
        return True
    if is_contained(record, command.data_version, incremental=command.incremental):
        return False
    if (
        not says_the_same(command, record, name)
        or record.data_version != command.data_version
        or record.complete == command.incremental
    ):
        return True
    return False if record.complete or perm_mask(command, name.addrs) is None else None


def _brings_news(store: RouteStore, command: RegisterBroker, brought: Mapping[str, Share] | None) -> bool:
    return bool(brought) or any(
        _new_mapping(store, command.broker_name, mapping) for mapping in command.mappings
    )


def with_set_perms(store: RouteStore, said: Registration) -> Steps[Registration]:
    """Return a registration with the table's permissions, if the broker may not change permissions now.

    The table's permissions are read at the first step. If the broker may change permissions, return ``said``
    unchanged.

    If the registration has the data version of the broker's record, the broker has changed nothing since it
    sent this version. So the registration must not change permissions that an operator has set meanwhile. It
    may still add topics, because an earlier incremental registration may have been lost. RocketMQ does the
    same.
    """
    record, name = store.brokers.records.get(said.broker), store.brokers.names.get(said.broker_name)
    if (
        record is None
        or name is None
        or not name.perms_set
        or record.complete  # if the data versions are equal, too, the topics are not even compared
        or not _same_place(record, said)
        or record.data_version != said.data_version
    ):
        return said
    listed = store.topics.of_name(said.broker_name)
    if len(said.table) > STEP:
        listed = dict(listed)  # other code may change the table between two steps
    table: dict[str, TopicNumbers] = {}
    yield from in_steps(_keep_perms, said.table.items(), table, listed)
    return replace(said, table=table)


def _keep_perms(
    said: Iterable[tuple[str, TopicNumbers]], table: dict[str, TopicNumbers], listed: Mapping[str, Share]
) -> None:
    for topic, of in said:
        table[topic] = replace(of, perm=listed[topic].data.perm) if topic in listed else of


def register_reply(store: RouteStore, of: Sender | Touch | Record) -> RegisterReply:
    """Return the content of the answer to a registration that succeeds on the present table."""
    record, name = store.brokers.records.get(of.broker), store.brokers.names.get(of.broker_name)
    master = None
    if of.broker_id != MASTER_ID and record is not None and name is not None and MASTER_ID in name.addrs:
        master = store.brokers.records[name.addrs[MASTER_ID]]
    return RegisterReply(
        master_addr=None if master is None else master.broker.broker_addr,
        ha_server_addr=None if master is None else master.ha_server_addr,
        order_topics=store.kv.spaces.get(ORDER_TOPIC_NAMESPACE),
        revision=None if record is None else record.revision,
    )


def register(store: RouteStore, command: RegisterBroker) -> Steps[Verdict]:
    """Apply a registration command.

    The caller has checked with :meth:`.table.RouteTable.moved` that the entries from which the command was
    computed are unchanged.
    """
    news = _says_news(store, command)
    broker, brokers, name_key = command.broker, store.brokers, command.broker_name
    record, name = brokers.records.get(broker), brokers.names.get(name_key)
    is_fenced = _is_fenced(store, command, name)
    differing = None if is_fenced or news is False else (yield from _brought(store, command))
    if news is False or (news is None and not _brings_news(store, command, differing)):
        return NoChange(revision=store.revision, reply=register_reply(store, command))
    if is_fenced:
        # Another broker holds this broker id. Remove the registering broker's record. Otherwise its address
        # would stay listed under its former id.
        return (yield from _fenced(store, command))
    limits = command.limits
    added = new_topics(store, name_key, differing or {})
    if len(added) > STEP:
        yield
    if limits is not None:
        rejected = yield from _excess(store, command, added, strict=store.strict)
        if rejected is not None:
            return rejected
    before = name or NameEntry(cluster=command.cluster_name)
    first = record is None or not _same_place(record, command)
    host = limits.host if limits is not None else ""
    is_charged = name is None or bool(added)
    moving = None
    if record is not None and record.broker_name != name_key:
        moving = Leaving(store, broker)
        yield from moving.prepare()
    topics = None
    if differing is not None:
        over = None if moving is None else moving.draft
        topics = _Topics(store, command, differing, host=host if is_charged else None, over=over)
        yield from topics.prepare()

    revision = store.revision = store.revision + 1
    store.limited = store.limited or limits is not None
    facts = Facts()
    facts.joined = broker if first else None
    if moving is not None:
        moving.commit(LeaveReason.MOVED, facts)
    entry = _take_place(store, command, before, facts)
    if is_charged:
        entry = replace(entry, host=host)
        store.topics.charge(name_key, host)
    permissions_changed = topics is not None and topics.commit(facts)
    filters_before = record.filter_servers if record is not None else ()
    filters = filters_before if command.filter_servers is None else command.filter_servers
    brokers.put_record(
        broker,
        Record(
            broker=broker,
            broker_name=name_key,
            broker_id=command.broker_id,
            ha_server_addr=command.ha_server_addr,
            data_version=command.data_version,
            complete=not command.incremental,
            lease_ms=command.lease_ms,
            filter_servers=filters,
            revision=revision,
            host=host,
        ),
        revision,
    )
    if entry != before or filters != filters_before:
        entry = replace(entry, route_revision=revision)
        facts.names[name_key] = None
    if entry.addrs != before.addrs or permissions_changed:
        entry = replace(entry, revision=revision)
    if brings_all_perms(command, command.broker_id, None if first or record is None else record.data_version):
        entry = replace(entry, perms_set=False)
    if entry != before:
        brokers.put_name(name_key, entry, revision)
    return facts.applied(revision, register_reply(store, command))


def _fenced(store: RouteStore, command: RegisterBroker) -> Steps[Verdict]:
    leaving = Leaving(store, command.broker)
    yield from leaving.prepare()
    store.revision += 1
    store.limited = store.limited or command.limits is not None
    facts = Facts()
    leaving.commit(LeaveReason.FENCED, facts)
    return facts.applied(store.revision, register_reply(store, command))


def _is_fenced(store: RouteStore, command: RegisterBroker, name: NameEntry | None) -> bool:
    """Return True if another address holds the broker id with a greater state version (RocketMQ 5.x).

    In this case the registration adds nothing to the table. The record of the registering broker is removed,
    if there is one.
    """
    if name is None:
        return False
    holder = name.addrs.get(command.broker_id)
    if holder is None or holder.broker_addr == command.broker_addr:
        return False
    return store.brokers.records[holder].data_version.state_version > command.data_version.state_version


def _take_place(store: RouteStore, command: RegisterBroker, name: NameEntry, facts: Facts) -> NameEntry:
    """Add the registering broker to its name's entry, and return the entry.

    Remove other brokers of the name that have this address or this id.
    """
    for broker in _displaced(name, command):
        same_address = broker.broker_addr == command.broker_addr
        reason = LeaveReason.MOVED if same_address else LeaveReason.DISPLACED
        forget_record(store, broker, reason, facts)
    entry = replace(
        name,
        clusters=tuple(sorted({command.cluster_name, *name.clusters})),
        addrs=_addrs_with(name, command),
        enable_acting_master=bool(command.enable_acting_master),
        zone_name=command.zone_name,
    )
    if name.addrs and command.broker_id < min(name.addrs):
        note_min_change(entry, offline=None, ha_addr=command.ha_server_addr, facts=facts)
    return entry


def _displaced(name: NameEntry, command: RegisterBroker) -> list[BrokerKey]:
    """Return the other brokers of a name that have the registering broker's address or broker id."""
    return [
        broker
        for broker_id, broker in name.addrs.items()
        if broker != command.broker
        and (broker.broker_addr == command.broker_addr or broker_id == command.broker_id)
    ]


def _addrs_with(name: NameEntry, command: RegisterBroker) -> dict[int, BrokerKey]:
    """Return a name's addresses in the order of broker ids, including the registering broker's address."""
    addrs = {i: key for i, key in name.addrs.items() if key.broker_addr != command.broker_addr}
    addrs[command.broker_id] = command.broker
    return dict(sorted(addrs.items()))


def _absent(store: RouteStore, command: RegisterBroker) -> tuple[str, ...]:
    """Return the topics that a registration removes from its broker name, because it does not list them.

    The result is empty if the command's flag ``delete_absent`` does not allow the removal.
    """
    if not command.delete_absent or command.incremental or command.mappings:
        return ()
    kept = {queues.topic for queues in command.topics}
    return tuple(topic for topic in store.topics.of_name(command.broker_name) if topic not in kept)


def _brought(store: RouteStore, command: RegisterBroker) -> Steps[dict[str, Share] | None]:
    """Return the topics for which a registration has other queue data than the table.

    Return None if the topics need not be compared.
    """
    record = store.brokers.records.get(command.broker)
    name = store.brokers.names.get(command.broker_name) or NameEntry(cluster=command.cluster_name)
    if (
        record is not None
        and _same_place(record, command)
        and record.complete
        and record.data_version == command.data_version
    ):
        return None
    mask = perm_mask(command, _addrs_with(name, command))
    if mask is None:
        return None
    found: dict[str, Share] = {}
    yield from in_steps(store.topics.find_shares, command.topics, found, {}, command.broker_name, mask)
    return found


def excess_of_registration(store: RouteStore, command: RegisterBroker) -> Steps[Rejected | None]:
    """Return the refusal of a registration that would exceed a limit; None if it exceeds no limit."""
    if _is_fenced(store, command, store.brokers.names.get(command.broker_name)):
        return None
    brought = yield from _brought(store, command)
    added = new_topics(store, command.broker_name, brought or {})
    return (yield from _excess(store, command, added, strict=True))


def has_bounds_of_its_own(store: RouteStore, said: Sender) -> bool:
    """Return True if a registration has mapping infos, or adds a cluster to its broker name.

    There are limits for both, which older releases do not know. If members applied a command with different
    limits, their tables would differ. So a replicated table does not check these limits when it applies the
    command (see ``strict`` of :class:`.store.RouteStore`).
    """
    name = store.brokers.names.get(said.broker_name)
    return bool(said.mappings) or (name is not None and said.broker.cluster_name not in name.clusters)


def has_ample_room(store: RouteStore, decoded: Registration, limits: TableLimits) -> bool:
    """Return True if a registration fits into the table even if all of its content is new.

    This check is fast, because it looks up no topic. A registration may fit although the result is False.
    :func:`excess_of_registration` makes the exact check.
    """
    if has_bounds_of_its_own(store, decoded):
        return False
    texts = [*decoded.table, *decoded.broker, decoded.broker_name, decoded.ha_server_addr]
    texts += decoded.filter_servers or ()
    count = len(decoded.table)
    most = Held(topics=count, pairs=count, brokers=1, size=size_of(texts))
    return excess_of(store, decoded.broker_name, limits, most, adds_topics=True) is None


def _excess(
    store: RouteStore, command: RegisterBroker, topics: list[str], *, strict: bool
) -> Steps[Rejected | None]:
    record = store.brokers.records.get(command.broker)
    name = store.brokers.names.get(command.broker_name) or NameEntry(cluster=command.cluster_name)
    texts = list(command.filter_servers or ())
    gone = () if record is None else record.filter_servers
    if record is None:
        texts += [*command.broker, command.ha_server_addr]
    if not name.addrs:
        texts.append(command.broker_name)
    if command.cluster_name not in name.clusters:
        texts.append(command.cluster_name)
    if (
        strict
        and command.limits is not None
        and command.cluster_name not in name.clusters
        and len(name.clusters) >= CLUSTERS_MAX
    ):
        return refusal(
            f"broker name {command.broker_name!r} would be in {len(name.clusters) + 1} clusters, "
            f"allowed: {CLUSTERS_MAX}"
        )
    if command.mappings:
        adding = frozenset(topics if strict else ())
        work = 0  # number of mapping infos that this step has examined
        for mapping in command.mappings:
            if mapping.topic not in adding and not _new_mapping(store, command.broker_name, mapping):
                continue
            texts.append(mapping.info)
            entry = store.topics.entries.get(mapping.topic)
            work += 1 + (0 if entry is None else len(entry.mappings))
            if work > STEP:
                work = 0
                yield
            size = _mappings_size(store, command.broker_name, mapping)
            if strict and size > TOPIC_MAPPINGS_BYTES_MAX and command.limits is not None:
                return refusal(
                    f"topic {mapping.topic!r} would have {size} bytes of mapping infos, "
                    f"allowed: {TOPIC_MAPPINGS_BYTES_MAX}"
                )
    displaced = len(_displaced(name, command))
    more = room_for(store, topics, size=size_of(texts) - size_of(gone if command.filter_servers else ()))
    if len(topics) > STEP:
        yield
    more.brokers = (record is None) - displaced
    if topics:
        more.pairs -= len(_absent(store, command))
    return excess_of(store, command.broker_name, command.limits, more, adds_topics=bool(topics))


def new_topics(store: RouteStore, name: str, topics: Iterable[str]) -> list[str]:
    """Return the topics for which a broker name has no queue data yet."""
    listed = store.topics.of_name(name)
    return [topic for topic in topics if topic not in listed] if listed else list(topics)


def room_for(store: RouteStore, topics: list[str], *, size: int = 0) -> Held:
    """Return how much larger the route table becomes if one more broker name has queues of these topics.

    Args:
        size: Change in the size of other texts, such as addresses, in bytes.
    """
    entries = store.topics.entries
    unknown = [topic for topic in topics if topic not in entries]
    return Held(topics=len(unknown), pairs=len(topics), size=size_of(unknown) + size)


def excess_of(
    store: RouteStore, name: str, limits: TableLimits | None, more: Held, *, adds_topics: bool
) -> Rejected | None:
    """Return the refusal of a broker name's change that would exceed a limit; None if it exceeds no limit.

    Args:
        more: Content that the change adds to the table.
        adds_topics: True if the change adds topics. All queue data of the name then count against the limits
            of the change's host.
    """
    moved = Held()
    pool = store.topics.pools.get(name)
    if limits is not None and adds_topics and pool is not None and pool.host != limits.host:
        moved = Held(pairs=len(pool.topics), size=pool.size)
    return excess(store.ledger, limits, more, moved=moved)


class _Topics:
    """The changes that a registration makes to topics. Call :meth:`prepare`, then :meth:`commit`.

    Args:
        host: Host whose limits count the new topics; None for the broker name's host.
        over: Another change of topics by the same command, whose commit comes first; None if there is none.
    """

    def __init__(
        self,
        store: RouteStore,
        command: RegisterBroker,
        differing: Mapping[str, Share],
        *,
        host: str | None,
        over: Draft | None,
    ) -> None:
        self._store = store
        self._command = command
        self._differing = differing
        self._host = host
        self._over = over
        self._absent = _absent(store, command)
        self._drafts: list[Draft] = []

    def prepare(self) -> Steps[None]:
        """Prepare the changes for the next revision, without a change of the table."""
        if self._absent:
            yield from self._draft().put({}, without=self._absent)
        if self._differing:
            yield from self._draft().put(self._differing)

    def _draft(self) -> Draft:
        name, revision = self._command.broker_name, self._store.revision + 1
        self._over = Draft(self._store.topics, name, revision, host=self._host, over=self._over)
        self._drafts.append(self._over)
        return self._over

    def commit(self, facts: Facts) -> bool:
        """Make the prepared changes, and return True if any queue data changed."""
        store, command, name = self._store, self._command, self._command.broker_name
        for draft in self._drafts:
            draft.commit()
        facts.topics.update(dict.fromkeys(self._absent))
        facts.topics.update(self._differing)
        if self._absent:
            lost = TopicsLost(
                topics=self._absent, reason=LeaveReason.ABSENT, broker_name=name, broker=command.broker
            )
            facts.lost.append(lost)
        for mapping in command.mappings:
            if _new_mapping(store, name, mapping):
                store.topics.put_mapping(name, mapping, store.revision)
                facts.topics[mapping.topic] = None
        return bool(self._drafts)


def _mappings_size(store: RouteStore, name: BrokerName, mapping: QueueMapping) -> int:
    """Return the size in bytes of a topic's mapping infos, with ``mapping`` as the new info of ``name``."""
    entry = store.topics.entries.get(mapping.topic)
    others = () if entry is None else [of.info for other, of in entry.mappings.items() if other != name]
    return size_of([mapping.info, *others])


def _new_mapping(store: RouteStore, name: BrokerName, mapping: QueueMapping) -> bool:
    entry = store.topics.entries.get(mapping.topic)
    if entry is None or name not in entry.queues:
        return False
    before = entry.mappings.get(name)
    return before is None or mapping.epoch > before.epoch


def touch(store: RouteStore, command: Touch) -> Verdict:
    """Give a record a new revision, or return Moved if the record differs from the command's values."""
    record, name = store.brokers.records.get(command.broker), store.brokers.names.get(command.broker_name)
    if (
        record is None
        or name is None
        or not says_the_same(command, record, name)
        or record.data_version != command.data_version
        or record.complete != command.complete
    ):
        return Moved(revision=store.revision)
    store.revision += 1
    store.brokers.put_record(command.broker, replace(record, revision=store.revision), store.revision)
    return Applied(revision=store.revision, reply=register_reply(store, command))


# -- functions that do not read the table -----------------------------------------------------------------


def _same_place(record: Record, said: Sender | Touch) -> bool:
    return record.broker_name == said.broker_name and record.broker_id == said.broker_id


def says_the_same(said: Sender | Touch, record: Record, name: NameEntry) -> bool:
    """Return True if the broker's own values in ``said`` equal the table's values.

    A broker's own values are its name, id, addresses, lease, settings and filter servers, but not its topics.
    """
    return (
        record.broker_name == said.broker_name  # copied from _same_place, because a call would be slower
        and record.broker_id == said.broker_id
        and record.ha_server_addr == said.ha_server_addr
        and record.lease_ms == said.lease_ms
        and name.enable_acting_master == bool(said.enable_acting_master)
        and name.zone_name == said.zone_name
        and (isinstance(said, Touch) or said.filter_servers in (None, record.filter_servers))
    )


def is_contained(record: Record, version: DataVersion, *, incremental: bool) -> bool:
    """Return True if the broker's record already contains the changes of an incremental registration.

    Return False for a full registration, which is compared in another way.
    """
    return incremental and record.complete and version.contained_in(record.data_version)


def brings_all_perms(
    command: RegisterBroker | Update, broker_id: int, version_before: DataVersion | None
) -> bool:
    """Return True if a registration replaces all permissions, even the permissions that an operator set.

    Args:
        version_before: Data version in the broker's record; None if this is the broker's first registration.
    """
    return broker_id == MASTER_ID and not command.incremental and command.data_version != version_before


def perm_mask(said: Sender, addrs: Mapping[int, BrokerKey]) -> int | None:
    """Return a mask for the permissions of a broker's topics; None if the broker's topics are ignored.

    The topics of a master are stored with all permissions. A 5.x slave with the smallest id of its broker
    name may become an acting master, so its topics are stored, too. If acting masters are enabled, the
    slave's topics are stored without write permission.

    Args:
        addrs: Addresses of the broker name by id, including this broker's address.
    """
    if said.broker_id == MASTER_ID:
        return -1
    if said.enable_acting_master is None or said.broker_id != min(addrs):
        return None
    return ~PERM_WRITE if said.enable_acting_master else -1
