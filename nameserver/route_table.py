"""The route table: a deterministic state machine over RocketMQ's documented tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import replace as replace_data
from itertools import chain
from operator import mul
from typing import Any, Final, Protocol, assert_never

import orjson
from msgspec.structs import replace

from nameserver.commands import (
    AddWritePerm,
    BaseKind,
    Command,
    DeleteKv,
    DeleteTopic,
    Evict,
    ImportKv,
    PutKv,
    QueueMapping,
    RegisterBroker,
    RegisterTopic,
    TopicQueues,
    Touch,
    UnregisterBroker,
    Update,
    WipeWritePerm,
    bases,
)
from nameserver.route_state import (
    MASK,
    NO_MAPPINGS,
    SLICE,
    Image,
    ImageError,
    KvEntry,
    Line,
    NameEntry,
    QueueSet,
    Record,
    TopicEntry,
    decode_image,
    encode_image,
    mark_of,
    mark_of_topic,
)
from nameserver.types import BrokerAddr, BrokerKey, BrokerName, LeaveReason, MinBrokerChange
from nameserver.verdicts import (
    Applied,
    BrokerLeft,
    CountReply,
    Moved,
    NoChange,
    RegisterReply,
    Rejected,
    Reply,
    TopicsLost,
    Verdict,
)
from remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, PERM_READ, PERM_WRITE, ResponseCode
from remoting.route import BrokerData, ClusterInfo, DataVersion, QueueData, TopicRouteData

__all__ = [
    "Applied",
    "Moved",
    "NoChange",
    "Record",
    "RegisterReply",
    "RouteTable",
    "RouteView",
    "Verdict",
    "encode_image",
]

TOMBSTONES_MAX: Final = 100_000
"""Removals that are remembered one by one. Above it the older half is replaced by one floor revision, which
can only make commands decide again, never apply over something newer."""

LINES_SPARE: Final = 1000
"""Queue data without a topic that are kept for a broker name, in case that topics have them again."""

SETS_SPARE: Final = 1000
"""Queue sets without a topic that are kept, and a quarter of the topics: what is no longer in use is looked
for over all topics, which may cost next to nothing per change."""

ACTING_MASTER_EXEMPT: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics with this prefix never show an acting master. Source: TopicValidator, pickupTopicRouteData 5.x."""

_PRESENCE: Final[tuple[BaseKind, ...]] = ("record", "name", "topic", "key")


class Numbers(Protocol):
    """What a registration says of one topic."""

    @property
    def read_queue_nums(self) -> int: ...
    @property
    def write_queue_nums(self) -> int: ...
    @property
    def perm(self) -> int: ...
    @property
    def topic_sys_flag(self) -> int: ...


class Said(Protocol):
    """A registration as it came, see :class:`RegisterBroker` for what is not said here.

    Attributes:
        table: Topics by name, in the order of the body.
    """

    @property
    def broker(self) -> BrokerKey: ...
    @property
    def broker_name(self) -> BrokerName: ...
    @property
    def broker_id(self) -> int: ...
    @property
    def ha_server_addr(self) -> str: ...
    @property
    def lease_ms(self) -> int: ...
    @property
    def enable_acting_master(self) -> bool | None: ...
    @property
    def zone_name(self) -> str | None: ...
    @property
    def data_version(self) -> DataVersion: ...
    @property
    def table(self) -> Mapping[str, Numbers]: ...
    @property
    def filter_servers(self) -> tuple[str, ...] | None: ...
    @property
    def mappings(self) -> tuple[QueueMapping, ...]: ...


class _Facts:
    """What one change did, gathered while it is made."""

    __slots__ = ("joined", "kv_changed", "left", "lost", "min_changes", "names", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.names: dict[str, None] = {}
        self.joined: BrokerKey | None = None
        self.left: list[BrokerLeft] = []
        self.lost: list[TopicsLost] = []
        self.min_changes: list[MinBrokerChange] = []
        self.kv_changed = False

    def applied(self, revision: int, reply: Reply = None) -> Applied:
        return Applied(
            revision=revision,
            reply=reply,
            topics=tuple(self.topics),
            names=tuple(self.names),
            joined=self.joined,
            left=tuple(self.left),
            lost=tuple(self.lost),
            min_changes=tuple(self.min_changes),
            kv_changed=self.kv_changed,
        )


class _Pool:
    """What is derived from the topics for one broker name.

    Attributes:
        topics: Topics of which the name has queue data, and which.
        lines: By read queues, write queues, permission and flag. Most topics of a broker have equal ones: one
            object serves all of them, and unequal objects are unequal lines.
    """

    __slots__ = ("lines", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, Line] = {}
        self.lines: dict[tuple[int, int, int, int], Line] = {}


class RouteTable:
    """Routes known to one nameserver, as a deterministic state machine.

    State changes only in :meth:`apply`. Equal commands in equal order give equal tables and digests: nothing
    here reads a clock, a random source or the order of a set. A rejected command is a reply, not an
    exception, because every member must reach the same verdict.

    Digests are kept up to date with every change. A topic's part is a product, its own mark times the mark of
    its queue set (or times its revision), so that a change of a topic costs a multiplication and no hashing:
    one registration may change 100,000 topics while everybody waits for the loop.

    Invariants, checked by :meth:`check`:
        - each queue entry names a registered broker, and each broker name has an address;
        - within a broker name, an address has one broker id;
        - each (cluster, address) in a name's address table has exactly one record, and each record is
          in exactly one of them (so an address whose id was taken has none, and its next registration
          counts as its first);
        - no topic is without queue data, and no mapping is without its queue data.
    """

    def __init__(self, *, tombstones_max: int = TOMBSTONES_MAX) -> None:
        self._tombstones_max = tombstones_max
        self._revision = 0
        self._floor = 0
        self._kv_seen = False
        self._topics: dict[str, TopicEntry] = {}
        self._names: dict[BrokerName, NameEntry] = {}
        self._records: dict[BrokerKey, Record] = {}
        # Parts of digests, so that what is replaced need not be hashed again: of a record; of what clients
        # see of a name, and what its two revisions are multiplied by. A record that changed has none until
        # somebody asks for the digest: it changes with each registration.
        self._record_marks: dict[BrokerKey, int] = {}
        self._unmarked: dict[BrokerKey, None] = {}
        self._name_marks: dict[BrokerName, tuple[int, int, int]] = {}
        self._kv: dict[str, Mapping[str, KvEntry]] = {}
        self._tombstones: dict[BaseKind, dict[Hashable, int]] = {kind: {} for kind in _PRESENCE}
        self._pools: dict[str, _Pool] = {}
        # Sets in use and some that were, by mark. Who finds one compares its content: a mark is no proof.
        self._sets: dict[int, QueueSet] = {}
        self._digest = 0
        self._rest = 0  # of what is replicated but not shown to clients
        self._gone = 0  # of the tombstones
        self._view = RouteView(self)

    @property
    def view(self) -> RouteView:
        """The read-only face of this table; always the same object."""
        return self._view

    @property
    def revision(self) -> int:
        """Number of changes applied."""
        return self._revision

    # -- apply ---------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> Verdict:
        """Apply a command, wholly or not at all; never raises."""
        if isinstance(command, Update):  # nearly every command
            return self._update(command)
        if isinstance(command, RegisterBroker):
            return self._register(command)
        if self.moved(command):
            return Moved(revision=self._revision)
        match command:
            case Touch():
                return self._touch(command)
            case UnregisterBroker():
                return self._unregister(command)
            case Evict():
                return self._evict(command)
            case WipeWritePerm():
                return self._set_perm(command.broker_name, lambda perm: perm & ~PERM_WRITE)
            case AddWritePerm():
                return self._set_perm(command.broker_name, lambda perm: PERM_READ | PERM_WRITE)
            case DeleteTopic():
                return self._delete_topic(command)
            case RegisterTopic():
                return self._register_topic(command)
            case PutKv():
                return self._put_kv(command)
            case DeleteKv():
                return self._delete_kv(command)
            case ImportKv():
                return self._import_kv(command)
        assert_never(command)

    def moved(self, command: Command) -> bool:
        """Whether something is younger than what the command was computed from."""
        if isinstance(command, Update):
            return self._update_moved(command)
        if isinstance(command, RegisterBroker):
            broker = command.broker
            record, name = self._records.get(broker), self._names.get(command.broker_name)
            return self._registration_moved(command, broker, record, name)
        return any(self._moved_at(base.kind, base.key) > base.revision for base in bases(command))

    def _registration_moved(
        self, command: RegisterBroker, broker: BrokerKey, record: Record | None, name: NameEntry | None
    ) -> bool:
        """As :meth:`moved`, of the same :func:`bases`, for who has looked up record and name already."""
        recorded = self._moved_at("record", broker) if record is None else record.revision
        if recorded > command.record_revision:
            return True
        named = self._moved_at("name", command.broker_name) if name is None else name.revision
        return named > command.name_revision

    def _update_moved(self, command: Update) -> bool:
        """As :meth:`moved`, for a table that may be behind the one on which the command was decided."""
        record = self._records.get((command.cluster_name, command.broker_addr))  # type: ignore[call-overload]
        name = self._names.get(command.broker_name)
        if record is None or name is None:
            return any(self._moved_at(base.kind, base.key) > base.revision for base in bases(command))
        if record.revision > command.record_revision or name.revision > command.name_revision:
            return True
        return (
            name.revision == command.name_revision and self._line_count(command.broker_name) < command.lines
        )

    def _line_count(self, name: BrokerName) -> int:
        pool = self._pools.get(name)
        return 0 if pool is None else len(pool.topics)

    def _moved_at(self, kind: BaseKind, key: Hashable) -> int:
        """Revision at which something last changed, came or went; at least the floor if it is absent."""
        present = self._present(kind, key)
        if present is not None:
            return present
        return max(self._tombstones[kind].get(key, 0), self._floor)

    def _present(self, kind: BaseKind, key: Any) -> int | None:
        match kind:
            case "record":
                record = self._records.get(key)
                return None if record is None else record.revision
            case "name":
                entry = self._names.get(key)
                return None if entry is None else entry.revision
            case "topic":
                return self._topic_revision(key)
            case "key":
                namespace, name = key
                value = self._kv.get(namespace, _NO_KV).get(name)
                return None if value is None else value.revision
        assert_never(kind)

    def _topic_revision(self, topic: str) -> int | None:
        entry = self._topics.get(topic)
        if entry is None:
            return None
        latest = entry.revision
        names = self._names
        for name in entry.queues:
            revision = names[name].route_revision  # type: ignore[index]  # invariant: it is a broker name
            if revision > latest:
                latest = revision
        return latest

    # -- registration --------------------------------------------------------------------------------------

    def would_change(self, command: RegisterBroker) -> bool:
        """Whether applying a registration would change the table, were it not *moved*."""
        broker = command.broker
        record, name = self._records.get(broker), self._names.get(command.broker_name)
        if record is not None and name is not None and _says_the_same(command, broker, record, name):
            return self._has_news(command, record, name)
        return self._is_change(command, record, name)

    def _is_change(self, command: RegisterBroker, record: Record | None, name: NameEntry | None) -> bool:
        if self._is_fenced(command, name):
            return record is not None
        if name is None or record is None or not _same_place(record, command):
            return True
        if _is_contained(record, command):
            return False
        return self._header_differs(command, record, name) or self._has_news(command, record, name)

    def _has_news(self, command: RegisterBroker, record: Record, name: NameEntry) -> bool:
        """Whether a registration changes anything, whose sender says of itself what it said before."""
        if _is_contained(record, command):
            return False
        if record.data_version != command.data_version or record.complete == command.incremental:
            return True
        if record.complete or not _owns_topics(command, name.addrs):
            return False
        return bool(self._differing(command, name.addrs)) or any(
            self._new_mapping(command.broker_name, mapping) for mapping in command.mappings
        )

    def register_reply(self, broker_name: BrokerName, broker: BrokerKey, broker_id: int) -> RegisterReply:
        """Say what a broker is told when its registration succeeds on the table as it is."""
        record = self._records.get(broker)
        order = self._kv.get(ORDER_TOPIC_NAMESPACE)
        revision = None if record is None else record.revision
        if broker_id == MASTER_ID:
            return RegisterReply(order_topics=order, revision=revision)
        name = self._names.get(broker_name)
        if name is not None and MASTER_ID in name.addrs and record is not None:
            master = self._records[name.addrs[MASTER_ID]]
            return RegisterReply(
                master_addr=master.broker.broker_addr,
                ha_server_addr=master.ha_server_addr,
                order_topics=order,
                revision=revision,
            )
        return RegisterReply(order_topics=order, revision=revision)

    def _register(self, command: RegisterBroker) -> Verdict:
        broker = command.broker
        record, name = self._records.get(broker), self._names.get(command.broker_name)
        if self._registration_moved(command, broker, record, name):
            return Moved(revision=self._revision)
        if record is not None and name is not None and _says_the_same(command, broker, record, name):
            return self._register_again(command, record, name)
        if not self._is_change(command, record, name):
            return NoChange(revision=self._revision, reply=self._reply_to(command))
        self._revision += 1
        facts = _Facts()
        if self._is_fenced(command, name):
            # An answer without a change would leave the address listed under the id it no longer claims.
            self._drop(broker, LeaveReason.FENCED, facts)
            return facts.applied(self._revision, self._reply_to(command))
        first = record is None or not _same_place(record, command)
        facts.joined = broker if first else None
        if record is not None and record.broker_name != command.broker_name:
            self._drop(broker, LeaveReason.MOVED, facts)
            name = self._names.get(command.broker_name)
        entry = self._take_place(command, name, facts)
        looks_at_topics = (
            record is None or first or not record.complete or record.data_version != command.data_version
        )
        permissions_changed = False
        if looks_at_topics and _owns_topics(command, entry.addrs):
            permissions_changed = self._take_topics(command, entry, facts)
        filters_before = record.filter_servers if record is not None else ()
        filters = filters_before if command.filter_servers is None else command.filter_servers
        self._put_record(
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
                revision=self._revision,
            ),
        )
        shown = entry.route_revision == self._revision or filters != filters_before
        if shown or permissions_changed:
            entry = replace(
                entry,
                revision=self._revision
                if permissions_changed or entry.revision == self._revision
                else entry.revision,
                route_revision=self._revision if shown else entry.route_revision,
            )
            self._put_name(command.broker_name, entry)
        if shown:
            facts.names[command.broker_name] = None
        return facts.applied(self._revision, self._reply_to(command))

    def _register_again(self, command: RegisterBroker, record: Record, name: NameEntry) -> Verdict:
        """Register a broker that says of itself what it said before: at most its topics are other ones.

        Comes to what the general way comes to, in a third of the time; most changes are of this kind.
        """
        if not self._has_news(command, record, name):
            return NoChange(revision=self._revision, reply=self._reply_to(command))
        self._revision += 1
        facts = None
        topics: tuple[str, ...] = ()
        if _owns_topics(command, name.addrs):
            if command.mappings or command.delete_absent:
                facts = _Facts()
                changed = self._take_topics(command, name, facts)
            else:
                taken = self._differing(command, name.addrs)
                changed = bool(taken)
                if taken:
                    self._put_lines(command.broker_name, taken)
                    topics = tuple(taken)
            if changed:
                self._move_name(command.broker_name, name)
        self._renew_record(record, command.data_version, complete=not command.incremental)
        reply = self._reply_to(command)
        if facts is not None:
            return facts.applied(self._revision, reply)
        return Applied(revision=self._revision, reply=reply, topics=topics)

    def shortened(self, said: Said, *, delete_absent: bool) -> Update | None:
        """Return the difference that a registration makes to the table as it is.

        None if that is not all there is to it: it changes nothing, or its sender says something new of
        itself, or it has more than topics to put.

        Args:
            delete_absent: As of :class:`RegisterBroker`.
        """
        broker, name_key = said.broker, said.broker_name
        record, name = self._records.get(broker), self._names.get(name_key)
        table = said.table
        incremental = len(table) == 1
        if (
            record is None
            or name is None
            or record.broker_name != name_key  # so it is listed there, and in its cluster
            or record.broker_id != said.broker_id
            or record.ha_server_addr != said.ha_server_addr
            or record.lease_ms != said.lease_ms
            or name.enable_acting_master != bool(said.enable_acting_master)
            or name.zone_name != said.zone_name
            or said.mappings
            or (delete_absent and not incremental)
            or not (said.filter_servers is None or said.filter_servers == record.filter_servers)
        ):
            return None
        complete, version = record.complete, said.data_version
        if incremental and complete and version.contained_in(record.data_version):
            return None
        addrs = name.addrs
        owns = _owns_topics(said, addrs)
        news = version != record.data_version or complete == incremental
        if not news and (complete or not owns):
            return None
        pool = self._pools.get(name_key)
        listed: Mapping[str, Line] = {} if pool is None else pool.topics
        changed = []
        if owns:
            perm_mask = _perm_mask(said, addrs)
            for topic, numbers in table.items():
                line = listed.get(topic)
                perm = numbers.perm & perm_mask
                if (
                    line is None
                    or (data := line.data).read_queue_nums != numbers.read_queue_nums
                    or data.write_queue_nums != numbers.write_queue_nums
                    or data.perm != perm
                    or data.topic_sys_flag != numbers.topic_sys_flag
                ):
                    changed.append(
                        TopicQueues(
                            topic,
                            numbers.read_queue_nums,
                            numbers.write_queue_nums,
                            perm,
                            numbers.topic_sys_flag,
                        )
                    )
            if not news and not changed:
                return None
        return Update(
            cluster_name=broker.cluster_name,
            broker_name=name_key,
            broker_addr=broker.broker_addr,
            data_version=version,
            topics=tuple(changed),
            incremental=incremental,
            enable_acting_master=name.enable_acting_master,
            zone_name=name.zone_name,
            lines=len(listed),
            record_revision=record.revision,
            name_revision=name.revision,
        )

    def _update(self, command: Update) -> Verdict:
        """Apply what :meth:`shortened` made, to just what it was made of.

        Nearly every entry of a log comes through here, at each member: so it is one function.
        """
        name_key = command.broker_name
        record = self._records.get((command.cluster_name, command.broker_addr))  # type: ignore[call-overload]
        name, pool = self._names.get(name_key), self._pools.get(name_key)
        if (
            record is None
            or name is None
            or record.revision != command.record_revision
            or name.revision != command.name_revision
            or record.broker_name != name_key
            or name.enable_acting_master != command.enable_acting_master
            or name.zone_name != command.zone_name
            or (0 if pool is None else len(pool.topics)) != command.lines
        ):
            return Moved(revision=self._revision)
        revision = self._revision = self._revision + 1
        topics: tuple[str, ...] = ()
        if command.topics:
            if pool is None:
                pool = self._pool(name_key)
            taken: dict[str, Line] = {}
            for queues in command.topics:
                key = queues.read_queue_nums, queues.write_queue_nums, queues.perm, queues.topic_sys_flag
                taken[queues.topic] = pool.lines.get(key) or self._line(name_key, *key)
            topics = tuple(taken)
            if len(taken) > 1 or not self._put_line(pool, topics[0], taken[topics[0]]):
                self._put_lines(name_key, taken)
            self._move_name(name_key, name)
        broker = record.broker
        self._renew_record(record, command.data_version, complete=not command.incremental)
        if record.broker_id == MASTER_ID:
            reply = RegisterReply(order_topics=self._kv.get(ORDER_TOPIC_NAMESPACE), revision=revision)
        else:
            reply = self.register_reply(name_key, broker, record.broker_id)
        return Applied(revision=revision, reply=reply, topics=topics)

    def _reply_to(self, command: RegisterBroker | Touch) -> RegisterReply:
        return self.register_reply(command.broker_name, command.broker, command.broker_id)

    def _is_fenced(self, command: RegisterBroker, name: NameEntry | None) -> bool:
        """Whether another address holds the id with a greater state version (5.x)."""
        if name is None:
            return False
        holder = name.addrs.get(command.broker_id)
        if holder is None or holder.broker_addr == command.broker_addr:
            return False
        return self._records[holder].data_version.state_version > command.data_version.state_version

    def _header_differs(self, command: RegisterBroker, record: Record, name: NameEntry) -> bool:
        return (
            record.ha_server_addr != command.ha_server_addr
            or record.lease_ms != command.lease_ms
            or (command.filter_servers is not None and record.filter_servers != command.filter_servers)
            or name.enable_acting_master != bool(command.enable_acting_master)
            or name.zone_name != command.zone_name
            or command.cluster_name not in name.clusters
        )

    def _take_place(self, command: RegisterBroker, name: NameEntry | None, facts: _Facts) -> NameEntry:
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
                self._forget_record(broker, reason, facts)
        addrs[command.broker_id] = command.broker
        clusters = {command.cluster_name} if name is None else {command.cluster_name, *name.clusters}
        moved = addrs != before
        entry = NameEntry(
            cluster=command.cluster_name if name is None else name.cluster,
            clusters=tuple(sorted(clusters)),
            addrs=dict(sorted(addrs.items())),
            enable_acting_master=bool(command.enable_acting_master),
            zone_name=command.zone_name,
            revision=self._revision if name is None or moved else name.revision,
            route_revision=0 if name is None else name.route_revision,
        )
        if name is None or entry != name:
            entry = replace(entry, route_revision=self._revision)
            self._put_name(command.broker_name, entry)
        if before and command.broker_id < min(before):
            self._note_min_change(
                command.broker_name, entry, offline=None, ha_addr=command.ha_server_addr, facts=facts
            )
        return entry

    def _take_topics(self, command: RegisterBroker, entry: NameEntry, facts: _Facts) -> bool:
        """Put the body's topics; return whether any queue data changed."""
        name = command.broker_name
        changed = False
        if command.delete_absent and not command.incremental and not command.mappings:
            pool = self._pools.get(name)
            kept = {queues.topic for queues in command.topics}
            absent = tuple(topic for topic in pool.topics if topic not in kept) if pool else ()
            if absent:
                changed = True
                self._remove_queues(absent, name)
                facts.topics.update(dict.fromkeys(absent))
                facts.lost.append(
                    TopicsLost(
                        topics=absent,
                        reason=LeaveReason.ABSENT,
                        broker_name=name,
                        broker=command.broker,
                    )
                )
        taken = self._differing(command, entry.addrs)
        if taken:
            changed = True
            self._put_lines(name, taken)
            facts.topics.update(dict.fromkeys(taken))
        for mapping in command.mappings:
            if self._new_mapping(name, mapping):
                self._put_mapping(name, mapping)
                facts.topics[mapping.topic] = None
        return changed

    def _differing(self, command: RegisterBroker, addrs: Mapping[int, BrokerKey]) -> dict[str, Line]:
        """Return what a body says otherwise than the table, by topic. This loop runs once per topic sent."""
        name = command.broker_name
        pool = self._pool(name)
        lines, listed = pool.lines, pool.topics
        perm_mask = _perm_mask(command, addrs)
        found: dict[str, Line] = {}
        line = None
        reads = writes = perm = flag = -1
        for queues in command.topics:
            # Mostly a topic has the same numbers as the one before it.
            if (
                queues.read_queue_nums != reads
                or queues.write_queue_nums != writes
                or queues.perm != perm
                or queues.topic_sys_flag != flag
                or line is None
            ):
                reads, writes = queues.read_queue_nums, queues.write_queue_nums
                perm, flag = queues.perm, queues.topic_sys_flag
                line = lines.get((reads, writes, perm & perm_mask, flag))
                if line is None:
                    line = self._line(name, reads, writes, perm & perm_mask, flag)
            topic = queues.topic
            if listed.get(topic) is not line:
                found[topic] = line
        return found

    def _new_mapping(self, name: BrokerName, mapping: QueueMapping) -> bool:
        entry = self._topics.get(mapping.topic)
        if entry is None or name not in entry.queues:
            return False
        before = entry.mappings.get(name)
        return before is None or mapping.epoch > before.epoch

    def _touch(self, command: Touch) -> Verdict:
        record = self._records.get(command.broker)
        name = self._names.get(command.broker_name)
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
            return Moved(revision=self._revision)
        self._revision += 1
        self._renew_record(record, record.data_version, complete=record.complete)
        return Applied(revision=self._revision, reply=self._reply_to(command))

    # -- removal -------------------------------------------------------------------------------------------

    def _unregister(self, command: UnregisterBroker) -> Verdict:
        record = self._records.get(command.broker)
        if record is None or record.broker_name != command.broker_name:
            return NoChange(revision=self._revision)
        return self._remove_broker(command.broker, LeaveReason.UNREGISTERED)

    def _evict(self, command: Evict) -> Verdict:
        record = self._records.get(command.broker)
        if record is None or record.revision != command.revision:
            return Moved(revision=self._revision)
        return self._remove_broker(command.broker, command.reason)

    def _remove_broker(self, broker: BrokerKey, reason: LeaveReason) -> Applied:
        self._revision += 1
        facts = _Facts()
        self._drop(broker, reason, facts)
        return facts.applied(self._revision)

    def _drop(self, broker: BrokerKey, reason: LeaveReason, facts: _Facts) -> None:
        """Remove a record and its address; clean up the name as the documents say."""
        record = self._forget_record(broker, reason, facts)
        name = record.broker_name
        before = self._names[name]
        addrs = {i: key for i, key in before.addrs.items() if key != broker}
        pool = self._pools.get(name)
        topics = tuple(pool.topics) if pool else ()
        if not addrs:
            if topics:
                self._remove_queues(topics, name)
                facts.topics.update(dict.fromkeys(topics))
                facts.lost.append(TopicsLost(topics=topics, reason=reason, broker_name=name, broker=broker))
            self._put_name(name, None)
            return
        entry = replace(before, addrs=addrs, revision=self._revision, route_revision=self._revision)
        self._put_name(name, entry)
        facts.names[name] = None
        if MASTER_ID not in addrs and entry.enable_acting_master:
            changed = self._change_perms(name, lambda perm: perm & ~PERM_WRITE)
            facts.topics.update(dict.fromkeys(changed))
        if min(addrs) != min(before.addrs):
            ha_addr = self._records[addrs[min(addrs)]].ha_server_addr
            self._note_min_change(name, entry, offline=broker.broker_addr, ha_addr=ha_addr, facts=facts)

    def _forget_record(self, broker: BrokerKey, reason: LeaveReason, facts: _Facts) -> Record:
        record = self._records[broker]
        self._put_record(broker, None)
        facts.left.append(
            BrokerLeft(broker=broker, broker_name=record.broker_name, reason=reason, revision=record.revision)
        )
        return record

    def _note_min_change(
        self,
        name: BrokerName,
        entry: NameEntry,
        *,
        offline: BrokerAddr | None,
        ha_addr: str | None,
        facts: _Facts,
    ) -> None:
        smallest = min(entry.addrs)
        everybody = offline is not None or len(entry.addrs) == 1
        facts.min_changes.append(
            MinBrokerChange(
                broker_name=name,
                min_broker_id=smallest,
                min_broker_addr=entry.addrs[smallest].broker_addr,
                offline_addr=offline,
                ha_addr=ha_addr,
                tell=tuple(key.broker_addr for i, key in entry.addrs.items() if everybody or i != smallest),
            )
        )

    # -- admin requests ------------------------------------------------------------------------------------

    def _set_perm(self, name: BrokerName, perm_of: Callable[[int], int]) -> Verdict:
        reply = CountReply(count=len(self._view.topics_of_name(name)))
        if not self._other_perms(name, perm_of):
            return NoChange(revision=self._revision, reply=reply)
        self._revision += 1
        changed = self._change_perms(name, perm_of)
        self._move_name(name, self._names[name])
        return Applied(revision=self._revision, reply=reply, topics=changed)

    def _change_perms(self, name: BrokerName, perm_of: Callable[[int], int]) -> tuple[str, ...]:
        """Rewrite the permissions of a broker name's queue data; return the topics that changed."""
        changed = self._other_perms(name, perm_of)
        if changed:
            self._put_lines(name, changed)
        return tuple(changed)

    def _other_perms(self, name: BrokerName, perm_of: Callable[[int], int]) -> dict[str, Line]:
        """Return the lines that a change of permissions makes, by topic; of those only that differ."""
        pool = self._pools.get(name)
        if pool is None:
            return {}
        after: dict[Line, Line] = {}
        for line in tuple(pool.lines.values()):
            data = line.data
            perm = perm_of(data.perm)
            if perm != data.perm:
                after[line] = self._line(
                    name, data.read_queue_nums, data.write_queue_nums, perm, data.topic_sys_flag
                )
        return {topic: after[line] for topic, line in pool.topics.items() if line in after}

    def _delete_topic(self, command: DeleteTopic) -> Verdict:
        entry = self._topics.get(command.topic)
        if entry is None:
            return NoChange(revision=self._revision)
        if command.cluster_name is None:
            leaving = tuple(entry.queues)
        else:
            leaving = tuple(
                name
                for name in entry.queues
                if command.cluster_name in self._names[BrokerName(name)].clusters
            )
        if not leaving:
            return NoChange(revision=self._revision)
        self._revision += 1
        facts = _Facts()
        for name in leaving:
            self._remove_queues((command.topic,), name)
        facts.topics[command.topic] = None
        facts.lost.append(
            TopicsLost(topics=(command.topic,), reason=LeaveReason.DELETED, broker_name=None, broker=None)
        )
        return facts.applied(self._revision)

    def _register_topic(self, command: RegisterTopic) -> Verdict:
        if any(queues.broker_name not in self._names for queues in command.queues):
            return NoChange(revision=self._revision)
        after: dict[BrokerName, Line] = {}
        for queues in command.queues:  # of a name listed twice the last one counts
            after[queues.broker_name] = self._line(
                queues.broker_name,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
                queues.topic_sys_flag,
            )
        changed = {
            name: line
            for name, line in after.items()
            if self._pool(name).topics.get(command.topic) is not line
        }
        if not changed:
            return NoChange(revision=self._revision)
        self._revision += 1
        for name, line in changed.items():
            self._put_lines(name, {command.topic: line})
            # A permission came or changed, so a wipe that was decided before must look again.
            self._move_name(name, self._names[name])
        return Applied(revision=self._revision, topics=(command.topic,))

    def _put_kv(self, command: PutKv) -> Verdict:
        before = self._kv.get(command.namespace, _NO_KV).get(command.key)
        if before is not None and before.value == command.value:
            return NoChange(revision=self._revision)
        self._revision += 1
        facts = _Facts()
        self._set_kv(command.namespace, command.key, KvEntry(command.value, self._revision), facts)
        return facts.applied(self._revision)

    def _delete_kv(self, command: DeleteKv) -> Verdict:
        if command.key not in self._kv.get(command.namespace, _NO_KV):
            return NoChange(revision=self._revision)
        self._revision += 1
        facts = _Facts()
        self._set_kv(command.namespace, command.key, None, facts)
        return facts.applied(self._revision)

    def _import_kv(self, command: ImportKv) -> Verdict:
        if self._kv_seen:
            return Rejected(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"KV configuration of {len(self._kv)} namespaces exists; an import needs none",
            )
        if not command.table:
            return NoChange(revision=self._revision, reply=CountReply(count=0))
        self._revision += 1
        facts = _Facts()
        count = 0
        for namespace, values in command.table.items():
            self._add_namespace(namespace)
            for key, value in values.items():
                self._set_kv(namespace, key, KvEntry(value, self._revision), facts)
                count += 1
        facts.kv_changed = True
        return facts.applied(self._revision, CountReply(count=count))

    # -- the only writers ----------------------------------------------------------------------------------

    def _put_record(self, broker: BrokerKey, record: Record | None) -> None:
        before = self._records.get(broker)
        self._rest -= self._record_marks.pop(broker, 0)
        if before is not None and before.filter_servers:
            self._digest -= _filter_mark(before)
        if record is not None:
            if record.filter_servers:
                self._digest += _filter_mark(record)
            self._records[broker] = record
            self._unmarked[broker] = None
        elif before is not None:
            del self._records[broker]
            self._unmarked.pop(broker, None)
        if before is None or record is None:
            self._note_presence("record", broker, present=record is not None)

    def _renew_record(self, record: Record, version: DataVersion, *, complete: bool) -> None:
        """Put a record at the present revision that is otherwise of another data version at most."""
        broker = record.broker
        self._rest -= self._record_marks.pop(broker, 0)
        self._unmarked[broker] = None
        self._records[broker] = Record(
            broker=broker,
            broker_name=record.broker_name,
            broker_id=record.broker_id,
            ha_server_addr=record.ha_server_addr,
            data_version=version,
            complete=complete,
            lease_ms=record.lease_ms,
            filter_servers=record.filter_servers,
            revision=self._revision,
        )

    def _move_name(self, name: BrokerName, entry: NameEntry) -> None:
        """Put a name at the present revision that is otherwise as it was."""
        self._rest += self._name_marks[name][1] * (self._revision - entry.revision)
        self._names[name] = NameEntry(
            cluster=entry.cluster,
            clusters=entry.clusters,
            addrs=entry.addrs,
            enable_acting_master=entry.enable_acting_master,
            zone_name=entry.zone_name,
            revision=self._revision,
            route_revision=entry.route_revision,
        )

    def _put_name(self, name: BrokerName, entry: NameEntry | None) -> None:
        before = self._names.get(name)
        if before is not None and entry is not None and _shows_the_same(before, entry):
            _, first, second = self._name_marks[name]
            self._rest += first * (entry.revision - before.revision)
            if entry.route_revision != before.route_revision:
                self._rest += second * (entry.route_revision - before.route_revision)
            self._names[name] = entry
            return
        if before is not None:
            shown, first, second = self._name_marks[name]
            self._digest -= shown
            self._rest -= first * before.revision + second * before.route_revision
        else:
            first, second = mark_of("N", name), mark_of("r", name)
        if entry is not None:
            shown = _name_mark(name, entry)
            self._name_marks[name] = shown, first, second
            self._digest += shown
            self._rest += first * entry.revision + second * entry.route_revision
            self._names[name] = entry
        elif before is not None:
            del self._names[name], self._name_marks[name]
            self._pools.pop(name, None)
        if before is None or entry is None:
            self._note_presence("name", name, present=entry is not None)

    def _put_lines(self, name: BrokerName, lines: Mapping[str, Line]) -> None:
        """Give a broker name other queue data of some topics, by topic, at the present revision."""
        pool = self._pool(name)
        entries, listed, gone = self._topics, pool.topics, self._tombstones["topic"]
        revision = self._revision
        digest = rest = back = 0
        # Topics that had the same set get the same set, and mostly stand one behind the other: what can be
        # done once per set, or per run of topics alike, is not done per topic.
        steps: dict[tuple[QueueSet | None, Line], tuple[QueueSet, int]] = {}
        old: QueueSet | None = None
        run_line: Line | None = None
        run_revision = change = marks = 0
        for topic, line in lines.items():
            before = entries.get(topic)
            if before is None:
                if old is not None or line is not run_line:
                    digest += marks * change
                    rest += marks * (revision - run_revision)
                    old, run_line, run_revision, marks = None, line, 0, 0
                    step = steps.get((None, line))
                    if step is None:
                        step = steps[None, line] = self._step(None, None, line)
                    queue_set, change = step
                mark = mark_of_topic(topic)
                entries[topic] = TopicEntry(queue_set, NO_MAPPINGS, revision, mark)
                if gone:
                    back += mark * gone.pop(topic, 0)
            else:
                if before.queue_set is not old or line is not run_line or before.revision != run_revision:
                    digest += marks * change
                    rest += marks * (revision - run_revision)
                    old, run_line, run_revision, marks = before.queue_set, line, before.revision, 0
                    step = steps.get((old, line))
                    if step is None:
                        step = steps[old, line] = self._step(old, listed.get(topic), line)
                    queue_set, change = step
                mark = before.mark
                entries[topic] = TopicEntry(queue_set, before.mappings, revision, mark)
            marks += mark
        digest += marks * change
        rest += marks * (revision - run_revision)
        listed.update(lines)
        if len(pool.lines) > LINES_SPARE + 2 * len(listed):
            self._bound_lines(pool)
        self._digest = (self._digest + digest) & MASK
        self._rest = (self._rest + rest) & MASK
        self._gone = (self._gone - back) & MASK

    def _put_line(self, pool: _Pool, topic: str, line: Line) -> bool:
        """As :meth:`_put_lines`, of one topic that is there already; returns whether it was there."""
        before = self._topics.get(topic)
        if before is None:
            return False
        listed = pool.topics
        queue_set, change = self._step(before.queue_set, listed.get(topic), line)
        mark, revision = before.mark, self._revision
        self._topics[topic] = TopicEntry(queue_set, before.mappings, revision, mark)
        self._digest = (self._digest + mark * change) & MASK
        self._rest = (self._rest + mark * (revision - before.revision)) & MASK
        listed[topic] = line
        if len(pool.lines) > LINES_SPARE + 2 * len(listed):
            self._bound_lines(pool)
        return True

    @staticmethod
    def _bound_lines(pool: _Pool) -> None:
        """Forget lines without a topic."""
        in_use = frozenset(pool.topics.values())
        pool.lines = {key: line for key, line in pool.lines.items() if line in in_use}

    def _remove_queues(self, topics: Collection[str], name: str) -> None:
        """Take a broker name's queue data from topics that have some; who has no others is removed."""
        listed = self._pools[name].topics
        entries, gone = self._topics, self._tombstones["topic"]
        revision = self._revision
        digest = rest = removed = 0
        steps: dict[QueueSet, tuple[QueueSet | None, int]] = {}
        for topic in topics:
            before = entries[topic]
            old = before.queue_set
            step = steps.get(old)
            if step is None:
                step = steps[old] = self._step_without(old, name, listed[topic])
            queue_set, change = step
            mark = before.mark
            digest += mark * change
            mappings = before.mappings
            if name in mappings:
                digest -= _mapping_mark(name, mappings[name])
                mappings = {n: kept for n, kept in mappings.items() if n != name}
            if queue_set is None:
                del entries[topic]
                rest -= mark * before.revision
                gone[topic] = revision
                removed += mark
            else:
                rest += mark * (revision - before.revision)
                entries[topic] = TopicEntry(queue_set, mappings, revision, mark)
        if len(topics) == len(listed):
            listed.clear()
        else:
            for topic in topics:
                del listed[topic]
        self._digest = (self._digest + digest) & MASK
        self._rest = (self._rest + rest) & MASK
        if removed:
            self._gone = (self._gone + removed * revision) & MASK
            self._bound_tombstones()

    def _put_mapping(self, name: BrokerName, mapping: QueueMapping) -> None:
        before = self._topics[mapping.topic]
        old = before.mappings.get(name)
        change = _mapping_mark(name, mapping) - (0 if old is None else _mapping_mark(name, old))
        self._digest = (self._digest + change) & MASK
        self._replace_topic(mapping.topic, before, {**before.mappings, name: mapping})

    def _replace_topic(self, topic: str, before: TopicEntry, mappings: Mapping[str, QueueMapping]) -> None:
        """Store a topic with the same queues at the present revision."""
        self._rest = (self._rest + before.mark * (self._revision - before.revision)) & MASK
        self._topics[topic] = TopicEntry(before.queue_set, mappings, self._revision, before.mark)

    def _step(self, old: QueueSet | None, was: Line | None, line: Line) -> tuple[QueueSet, int]:
        """Return the set with one line put, and by how much its mark is greater."""
        before: Mapping[str, QueueData] = {} if old is None else old.by_name
        change = line.mark - (0 if was is None else was.mark)
        mark = ((0 if old is None else old.mark) + change) & MASK
        return self._set({**before, line.data.broker_name: line.data}, mark), change

    def _step_without(self, old: QueueSet, name: str, was: Line) -> tuple[QueueSet | None, int]:
        """Return the set without a name, None if nothing is left, and by how much its mark is greater."""
        by_name = {n: data for n, data in old.by_name.items() if n != name}
        return self._set(by_name, (old.mark - was.mark) & MASK) if by_name else None, -was.mark

    def _set(self, by_name: Mapping[str, QueueData], mark: int) -> QueueSet:
        """Return the one set with this content."""
        found = self._sets.get(mark)
        if found is not None and found.by_name == by_name:
            return found
        in_use_max = len(self._topics)
        if len(self._sets) > SETS_SPARE + in_use_max + in_use_max // 4:
            self._sets = {entry.queue_set.mark: entry.queue_set for entry in self._topics.values()}
        made = self._sets[mark] = QueueSet(by_name, mark)
        return made

    def _pool(self, name: str) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        return pool

    def _line(self, name: BrokerName, reads: int, writes: int, perm: int, sys_flag: int) -> Line:
        """Return the one line with this content."""
        lines = self._pool(name).lines
        key = (reads, writes, perm, sys_flag)
        line = lines.get(key)
        if line is None:
            line = lines[key] = Line.of(
                QueueData(
                    broker_name=name,
                    read_queue_nums=reads,
                    write_queue_nums=writes,
                    perm=perm,
                    topic_sys_flag=sys_flag,
                )
            )
        return line

    def _add_namespace(self, namespace: str) -> None:
        if namespace not in self._kv:
            self._kv[namespace] = {}
            self._digest += mark_of("s", namespace)
        self._kv_seen = True

    def _set_kv(self, namespace: str, key: str, entry: KvEntry | None, facts: _Facts) -> None:
        self._add_namespace(namespace)
        values = dict(self._kv[namespace])
        before = values.pop(key, None)
        if before is not None:
            self._digest -= mark_of("k", namespace, key, before.value)
            self._rest -= mark_of("K", namespace, key, before.revision)
        if entry is not None:
            values[key] = entry
            self._digest += mark_of("k", namespace, key, entry.value)
            self._rest += mark_of("K", namespace, key, entry.revision)
        self._kv[namespace] = values
        self._note_presence("key", (namespace, key), present=entry is not None)
        facts.kv_changed = True
        topic = self._topics.get(key) if namespace == ORDER_TOPIC_NAMESPACE else None
        if topic is not None:
            self._replace_topic(key, topic, topic.mappings)
            facts.topics[key] = None

    def _note_presence(self, kind: BaseKind, key: Hashable, *, present: bool) -> None:
        """Remember a removal, or forget it when the thing is there again. Topics do so on their own."""
        tombstones = self._tombstones[kind]
        removed_at = tombstones.pop(key, None)
        if removed_at is not None:
            self._gone = (self._gone - mark_of(kind, key) * removed_at) & MASK
        if not present:
            tombstones[key] = self._revision
            self._gone = (self._gone + mark_of(kind, key) * self._revision) & MASK
            self._bound_tombstones()

    def _bound_tombstones(self) -> None:
        """Forget the older half of the removals if there are too many, and raise the floor above them."""
        tombstones = self._tombstones
        if sum(map(len, tombstones.values())) <= self._tombstones_max:
            return
        # By revision, not by order of insertion: a restored table has another order.
        revisions = sorted(chain.from_iterable(removals.values() for removals in tombstones.values()))
        floor = self._floor = revisions[len(revisions) // 2]
        for kind, removals in tombstones.items():
            tombstones[kind] = {key: at for key, at in removals.items() if at > floor}
        self._gone = _gone_mark(tombstones)

    # -- digests, images, checks ---------------------------------------------------------------------------

    def digest(self) -> str:
        """Return the digest of what clients can read: 32 hex digits, equal for equal tables in every mode."""
        return f"{self._digest & MASK:032x}"

    def state_digest(self) -> str:
        """Return the digest of all replicated state, revisions and remembered removals included."""
        for broker in self._unmarked:
            mark = self._record_marks[broker] = _record_mark(self._records[broker])
            self._rest += mark
        self._unmarked.clear()
        parts = (self._digest, self._rest, self._gone)
        summary = (*(f"{part & MASK:032x}" for part in parts), self._revision, self._floor)
        return f"{mark_of(*summary):032x}"

    def copy_for_snapshot(self) -> Image:
        """Return a copy of the state for another thread to encode; its cost is that of a few dict copies."""
        return Image(
            revision=self._revision,
            floor=self._floor,
            kv_seen=self._kv_seen,
            digest=self._digest & MASK,
            topics=self._topics.copy(),
            names=self._names.copy(),
            records=self._records.copy(),
            kv=self._kv.copy(),
            tombstones={kind: removals.copy() for kind, removals in self._tombstones.items()},
        )

    @classmethod
    def restore(cls, data: bytes, *, tombstones_max: int = TOMBSTONES_MAX) -> RouteTable:
        """Build a table from an encoded image; may run in any thread.

        Raises:
            ImageError: If the image is damaged, or of a format this program does not know.
        """
        image = decode_image(data)
        table = cls(tombstones_max=tombstones_max)
        table._revision = image.revision
        table._floor = image.floor
        table._kv_seen = image.kv_seen
        for name, entry in image.names.items():
            table._put_name(name, entry)
        for broker, record in image.records.items():
            table._put_record(broker, record)
        table._take_topics_of(image)
        for namespace, values in image.kv.items():
            table._kv[namespace] = values
            table._digest += mark_of("s", namespace)
            for key, value in values.items():
                table._digest += mark_of("k", namespace, key, value.value)
                table._rest += mark_of("K", namespace, key, value.revision)
        for kind, removals in image.tombstones.items():
            table._tombstones[kind].update(removals)
        table._gone = _gone_mark(table._tombstones)
        if table._digest & MASK != image.digest:
            raise ImageError(f"image of {len(data)} bytes does not have the digest it states")
        return table

    def _take_topics_of(self, image: Image) -> None:
        """Take over an image's topics, and derive what is kept beside them."""
        members: dict[QueueSet, list[str]] = {}
        for topic, kept in image.topics.items():
            found = members.get(kept.queue_set)
            if found is None:
                members[kept.queue_set] = [topic]
            else:
                found.append(topic)
        for queue_set, topics in members.items():
            self._sets[queue_set.mark] = queue_set
            for name, data in queue_set.by_name.items():
                pool = self._pool(name)
                key = (data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag)
                line = pool.lines.get(key)
                if line is None:
                    line = pool.lines[key] = Line.of(data)
                for start in range(0, len(topics), SLICE):
                    pool.topics.update(dict.fromkeys(topics[start : start + SLICE], line))
        entries = image.topics.values()
        marks = [entry.mark for entry in entries]
        self._digest += _sum_of_products(marks, [entry.queue_set.mark for entry in entries])
        self._rest += _sum_of_products(marks, [entry.revision for entry in entries])
        for entry in entries:
            if entry.mappings:
                self._digest += sum(_mapping_mark(name, kept) for name, kept in entry.mappings.items())
        self._topics = dict(image.topics)

    def adopt(self, other: RouteTable) -> None:
        """Exchange state with another table, at once whatever their sizes; views stay valid.

        What this table held is in the other one then, which its owner may free where time does not matter.
        """
        mine, its = self.__dict__, other.__dict__
        view, other_view = self._view, other._view
        kept = dict(mine)
        mine.update(its)
        its.update(kept)
        self._view, other._view = view, other_view

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken; for tests and the simulator."""
        listed: dict[BrokerKey, tuple[BrokerName, int]] = {}
        for name, entry in self._names.items():
            assert entry.addrs, f"{name} has no address"
            addresses = [key.broker_addr for key in entry.addrs.values()]
            assert len(set(addresses)) == len(addresses), f"{name} has an address under two ids"
            assert entry.cluster in entry.clusters, f"{name} is not listed in its own cluster"
            for broker_id, key in entry.addrs.items():
                assert key not in listed, f"{key} is listed twice"
                listed[key] = (name, broker_id)
        for key, record in self._records.items():
            assert listed.get(key) == (record.broker_name, record.broker_id), f"{key} is listed elsewhere"
            assert record.revision <= self._revision, f"{key} is of the future"
        assert len(listed) == len(self._records), "an address has no record"
        members: dict[str, set[str]] = {}
        for topic, kept in self._topics.items():
            assert kept.queues, f"{topic} has no queue data"
            assert set(kept.mappings) <= set(kept.queues), f"{topic} has a mapping without queue data"
            for name_, data in kept.queues.items():
                assert name_ in self._names, f"{topic} names {name_}, which is not registered"
                assert data.broker_name == name_, f"{topic} has {data} under {name_}"
                members.setdefault(name_, set()).add(topic)
            assert self._sets.get(kept.queue_set.mark) is kept.queue_set, f"{topic} has a set of its own"
        derived = {name: set(pool.topics) for name, pool in self._pools.items() if pool.topics}
        assert derived == members, "topics by broker name differ from the topics"
        for name_, pool in self._pools.items():
            for topic, line in pool.topics.items():
                assert self._topics[topic].queues[name_] == line.data, f"{name_} has other queues of {topic}"
        for kind, removals in self._tombstones.items():
            for mark, removed_at in removals.items():
                assert self._present(kind, mark) is None, f"{kind} {mark} is both there and removed"
                # At the floor: removed by the very change that raised it.
                assert self._floor <= removed_at <= self._revision, f"{kind} {mark} removed at {removed_at}"
        again = RouteTable.restore(encode_image(self.copy_for_snapshot()))
        assert again.state_digest() == self.state_digest(), (
            "the digest kept differs from the digest made anew"
        )


# -- reading ----------------------------------------------------------------------------------------------


class RouteView:
    """Read-only face of the live table, valid until the caller next awaits. Its values are immutable."""

    __slots__ = ("_table",)

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    @property
    def revision(self) -> int:
        """Number of changes applied."""
        return self._table._revision

    def digest(self) -> str:
        """Return the digest of what clients can read, 32 hex digits."""
        return self._table.digest()

    def state_digest(self) -> str:
        """Return the digest of all replicated state, 32 hex digits."""
        return self._table.state_digest()

    # -- topics and routes

    def topic_revision(self, topic: str) -> int:
        """Return the revision of the last change of the answer to 105; of its removal if it is gone, or 0."""
        return self._table._moved_at("topic", topic)

    def route(
        self, topic: str, *, acting_master: bool = False, order_conf: bool = False
    ) -> TopicRouteData | None:
        """Return where a topic lives, None if nowhere. Lists are in order of broker names.

        Args:
            acting_master: Setting ``supportActingMaster``: show the smallest id of a name without master,
                but with enableActingMaster and no write permission, as id 0.
            order_conf: Setting ``orderMessageEnable``: add the KV value of ``ORDER_TOPIC_CONFIG``.

        Source: RouteInfoManager.pickupTopicRouteData. As in 4.9, filter servers are listed only for addresses
        that have some; 5.x lists the others with null once any broker has some, and no client can tell.
        """
        table = self._table
        entry = table._topics.get(topic)
        if entry is None:
            return None
        names = sorted(entry.queues)
        brokers = []
        filters: dict[str, tuple[str, ...] | None] = {}
        acting = acting_master and not topic.startswith(ACTING_MASTER_EXEMPT)
        for name in names:
            data = self._broker_data(BrokerName(name), table._names[BrokerName(name)])
            for key in table._names[BrokerName(name)].addrs.values():
                servers = table._records[key].filter_servers
                if servers:
                    filters[key.broker_addr] = servers
            if (
                acting
                and data.enable_acting_master
                and MASTER_ID not in data.broker_addrs
                and not entry.queues[name].perm & PERM_WRITE
            ):
                smallest = min(data.broker_addrs)
                addrs = {MASTER_ID if i == smallest else i: addr for i, addr in data.broker_addrs.items()}
                data = replace_data(data, broker_addrs=addrs)
            brokers.append(data)
        order = self.kv_value(ORDER_TOPIC_NAMESPACE, topic) if order_conf else None
        return TopicRouteData(
            queue_datas=tuple(entry.queues[name] for name in names),
            broker_datas=tuple(brokers),
            filter_server_table=filters,
            order_topic_conf=None if order is None else order.value,
            topic_queue_mapping_by_broker=(
                {name: orjson.loads(entry.mappings[name].info) for name in sorted(entry.mappings)}
                if entry.mappings
                else None
            ),
        )

    def shape(self, topic: str, *, order_conf: bool = False) -> Hashable | None:
        """Return what a topic's route is made of; equal shapes, also of another time, have equal routes.

        None if there is no route, or if something in it is the topic's own: mappings, an order configuration.
        Shapes refer to values of this table, so they do not last beyond it.

        Args:
            order_conf: As of the route; its ``acting_master`` must be the same for all.
        """
        table = self._table
        entry = table._topics.get(topic)
        if entry is None or entry.mappings:
            return None
        if order_conf and self.kv_value(ORDER_TOPIC_NAMESPACE, topic) is not None:
            return None
        names = table._names
        # Whatever all routes of a name show moves its revision above all that there were.
        latest = max(names[BrokerName(name)].route_revision for name in entry.queues)
        return entry.queue_set, latest, topic.startswith(ACTING_MASTER_EXEMPT)

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._table._topics)

    def topic(self, topic: str) -> TopicEntry | None:
        """Return a topic's entry."""
        return self._table._topics.get(topic)

    @property
    def topic_count(self) -> int:
        return len(self._table._topics)

    def topics_of_name(self, name: str) -> Collection[str]:
        """Return the topics of which a broker name has queue data, in no order."""
        pool = self._table._pools.get(name)
        return pool.topics.keys() if pool else ()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that any broker of a cluster has, sorted; none if the cluster is unknown."""
        found: set[str] = set()
        for name, entry in self._table._names.items():
            if cluster in entry.clusters:
                found.update(self.topics_of_name(name))
        return sorted(found)

    def topics_by_flag(self, accept: Callable[[int], bool]) -> list[str]:
        """Return the topics one of whose queue data has a topicSysFlag that ``accept`` likes, sorted."""
        return sorted(
            topic
            for topic, entry in self._table._topics.items()
            if any(accept(data.topic_sys_flag) for data in entry.queues.values())
        )

    # -- brokers

    def name(self, name: str) -> NameEntry | None:
        """Return what is kept of a broker name."""
        return self._table._names.get(BrokerName(name))

    def names(self) -> Iterator[tuple[BrokerName, NameEntry]]:
        """Yield broker names and entries, sorted by name."""
        return iter(sorted(self._table._names.items(), key=lambda pair: pair[0]))

    @property
    def name_count(self) -> int:
        return len(self._table._names)

    def record(self, broker: BrokerKey) -> Record | None:
        """Return a broker's record."""
        return self._table._records.get(broker)

    def records(self) -> Collection[Record]:
        """Return all records, in no order; valid until the caller next awaits."""
        return self._table._records.values()

    def broker_data(self, name: str) -> BrokerData | None:
        """Return the addresses behind a broker name."""
        entry = self._table._names.get(BrokerName(name))
        return None if entry is None else self._broker_data(BrokerName(name), entry)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters, sorted: the answer to 106."""
        brokers: dict[str, BrokerData] = {n: self._broker_data(n, entry) for n, entry in self.names()}
        clusters: dict[str, list[str]] = {}
        for name, entry in self.names():
            for cluster in entry.clusters:
                clusters.setdefault(cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table=brokers,
            cluster_addr_table={cluster: tuple(clusters[cluster]) for cluster in sorted(clusters)},
        )

    @staticmethod
    def _broker_data(name: BrokerName, entry: NameEntry) -> BrokerData:
        return BrokerData(
            cluster=entry.cluster,
            broker_name=name,
            broker_addrs={i: key.broker_addr for i, key in entry.addrs.items()},
            enable_acting_master=entry.enable_acting_master,
            zone_name=entry.zone_name,
        )

    # -- KV configuration

    def kv(self, namespace: str) -> Mapping[str, str | None] | None:
        """Return a namespace's values by key, None if it never existed."""
        values = self._table._kv.get(namespace)
        return None if values is None else {key: values[key].value for key in sorted(values)}

    def kv_value(self, namespace: str, key: str) -> KvEntry | None:
        """Return one value, None if there is none."""
        return self._table._kv.get(namespace, _NO_KV).get(key)

    def kv_table(self) -> dict[str, dict[str, str | None]]:
        """Return the whole KV configuration, sorted: what the KV file holds."""
        return {
            namespace: {key: values[key].value for key in sorted(values)}
            for namespace, values in sorted(self._table._kv.items(), key=lambda pair: pair[0])
        }

    # -- what a decision is computed from

    def base(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision that a command names for something: the thing's, or the table's if absent."""
        present = self._table._present(kind, key)
        return self._table._revision if present is None else present

    def would_change(self, command: RegisterBroker) -> bool:
        """Whether applying a registration would change the table."""
        return self._table.would_change(command)

    def register_reply(self, broker_name: BrokerName, broker: BrokerKey, broker_id: int) -> RegisterReply:
        """Say what a broker is told when its registration succeeds on the table as it is."""
        return self._table.register_reply(broker_name, broker, broker_id)

    def affected(self, applied: Applied, waiting: Collection[str]) -> Iterator[str]:
        """Yield those of the waiting topics of which a change shows in the route."""
        if not waiting:
            return
        yield from (topic for topic in applied.topics if topic in waiting)
        for name in applied.names:
            topics = self.topics_of_name(name)
            smaller, larger = (topics, waiting) if len(topics) < len(waiting) else (waiting, topics)
            yield from (topic for topic in smaller if topic in larger)


# -- pure parts -------------------------------------------------------------------------------------------

_NO_KV: Final[Mapping[str, KvEntry]] = {}


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


def _shows_the_same(one: NameEntry, other: NameEntry) -> bool:
    return (
        one.addrs == other.addrs
        and one.clusters == other.clusters
        and one.cluster == other.cluster
        and one.enable_acting_master == other.enable_acting_master
        and one.zone_name == other.zone_name
    )


def _is_contained(record: Record, command: RegisterBroker) -> bool:
    """Whether an incremental registration is in a complete record already, so a late copy."""
    return command.incremental and record.complete and command.data_version.contained_in(record.data_version)


def _is_prime_slave(command: RegisterBroker | Said, addrs: Mapping[int, BrokerKey]) -> bool:
    """Whether a slave may bring topics: a 5.x one with the smallest id behind its name."""
    return (
        command.enable_acting_master is not None
        and command.broker_id != MASTER_ID
        and command.broker_id == min(addrs)
    )


def _owns_topics(command: RegisterBroker | Said, addrs: Mapping[int, BrokerKey]) -> bool:
    return command.broker_id == MASTER_ID or _is_prime_slave(command, addrs)


def _perm_mask(command: RegisterBroker | Said, addrs: Mapping[int, BrokerKey]) -> int:
    """Return the bits of permissions that are stored: an acting master has no write permission."""
    return ~PERM_WRITE if command.enable_acting_master and _is_prime_slave(command, addrs) else -1


def _sum_of_products(left: list[int], right: list[int]) -> int:
    # In slices, because another thread can go on only between calls into C.
    total = 0
    for start in range(0, len(left), SLICE):
        end = start + SLICE
        total += sum(map(mul, left[start:end], right[start:end]))
    return total


def _gone_mark(tombstones: Mapping[BaseKind, Mapping[Any, int]]) -> int:
    topics = tombstones["topic"]
    total = _sum_of_products([mark_of_topic(str(topic)) for topic in topics], list(topics.values()))
    for kind, removals in tombstones.items():
        if kind != "topic":
            total += sum(mark_of(kind, key) * removed_at for key, removed_at in removals.items())
    return total & MASK


def _mapping_mark(name: str, mapping: QueueMapping) -> int:
    return mark_of("m", mapping.topic, name, mapping.epoch, mapping.info)


def _name_mark(name: str, entry: NameEntry) -> int:
    return mark_of(
        "n",
        name,
        entry.cluster,
        entry.clusters,
        tuple(sorted(entry.addrs.items())),
        entry.enable_acting_master,
        entry.zone_name,
    )


def _filter_mark(record: Record) -> int:
    return mark_of("f", record.broker, record.filter_servers) if record.filter_servers else 0


def _record_mark(record: Record) -> int:
    version = record.data_version
    return mark_of(
        "R",
        record.broker,
        record.broker_name,
        record.broker_id,
        record.ha_server_addr,
        (version.state_version, version.timestamp, version.counter),
        record.complete,
        record.lease_ms,
        record.revision,
    )
