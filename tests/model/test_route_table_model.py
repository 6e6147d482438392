"""Tests that compare RouteTable with a simple model, which stores its tables as sets of tuples."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routekeeper.nameserver.commands import (
    AddWritePerm,
    BrokerQueues,
    Command,
    DeleteKv,
    DeleteTopic,
    Evict,
    PutKv,
    QueueMapping,
    RegisterBroker,
    RegisterTopic,
    TableLimits,
    TopicQueues,
    Touch,
    UnregisterBroker,
    WipeWritePerm,
    bases,
    decode_command,
    encode_command,
)
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName, LeaveReason
from routekeeper.nameserver.verdicts import Applied, CountReply, Moved, NoChange
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import finish
from tests.tables import check_table

CLUSTERS = ("c1", "c2")
#: Limits of the table: none, or limits that no test reaches. With limits, the table also counts the content
#: of each host.
LIMITS = (None, *(TableLimits(10**6, 10**6, 10**6, 10**9, host) for host in ("", "10.0.0.1", "10.0.0.2")))
NAMES = ("a", "b", "c")
ADDRS = ("h:1", "h:2", "h:3")
TOPICS = ("t1", "t2", "t3")
ORDER = "ORDER_TOPIC_CONFIG"


@dataclass
class Model:
    """A model of the route table in the simplest form: sets and dicts of tuples.

    Attributes:
        listed: (name, broker id, cluster, address).
        names: name to (first cluster, clusters, acting master, zone).
        records: (cluster, address) to (name, id, ha address, version, complete, lease, filter servers).
        queues: (topic, name, reads, writes, perm, flag).
        mappings: (topic, name, epoch).
    """

    listed: set[tuple[str, int, str, str]] = field(default_factory=set)
    names: dict[str, tuple[str, frozenset[str], bool, str | None]] = field(default_factory=dict)
    records: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    queues: set[tuple[str, str, int, int, int, int]] = field(default_factory=set)
    mappings: set[tuple[str, str, int]] = field(default_factory=set)
    kv: dict[tuple[str, str], str | None] = field(default_factory=dict)
    spaces: set[str] = field(default_factory=set)

    def ids(self, name: str) -> dict[int, tuple[str, str]]:
        return {i: (c, a) for n, i, c, a in self.listed if n == name}

    def topics_of(self, name: str) -> set[str]:
        return {row[0] for row in self.queues if row[1] == name}

    def drop_queues(self, topic: str, name: str) -> None:
        self.queues = {row for row in self.queues if row[:2] != (topic, name)}
        self.mappings = {row for row in self.mappings if row[:2] != (topic, name)}

    def remove(self, key: tuple[str, str]) -> None:
        name = self.records.pop(key)[0]
        self.listed = {row for row in self.listed if row[2:] != key}
        if not self.ids(name):
            del self.names[name]
            for topic in self.topics_of(name):
                self.drop_queues(topic, name)
        elif 0 not in self.ids(name) and self.names[name][2]:
            self.queues = {
                (t, n, r, w, p & ~2, f) if n == name else (t, n, r, w, p, f)
                for t, n, r, w, p, f in self.queues
            }

    def register(self, c: RegisterBroker) -> None:
        key = (c.cluster_name, c.broker_addr)
        name = c.broker_name
        holder = self.ids(name).get(c.broker_id)
        if (
            holder is not None
            and holder[1] != c.broker_addr
            and self.records[holder][3].state_version > c.data_version.state_version
        ):
            if key in self.records:
                self.remove(key)
            return
        old = self.records.get(key)
        first = old is None or old[:2] != (name, c.broker_id)
        if not first and old is not None and c.incremental and old[4] and c.data_version.contained_in(old[3]):
            return
        if old is not None and old[0] != name:
            self.remove(key)
        for row in list(self.listed):
            if row[0] == name and (row[3] == c.broker_addr or row[1] == c.broker_id):
                self.listed.discard(row)
                if row[2:] != key:
                    del self.records[row[2:]]
        self.listed.add((name, c.broker_id, *key))
        cluster, clusters, _, _ = self.names.get(name, (c.cluster_name, frozenset(), False, None))
        self.names[name] = (
            cluster,
            clusters | {c.cluster_name},
            bool(c.enable_acting_master),
            c.zone_name,
        )
        prime = c.enable_acting_master is not None and c.broker_id == min(self.ids(name))
        if (c.broker_id == 0 or prime) and (first or old is None or not old[4] or old[3] != c.data_version):
            if c.delete_absent and not c.incremental and not c.mappings:
                for topic in self.topics_of(name) - {t.topic for t in c.topics}:
                    self.drop_queues(topic, name)
            for t in c.topics:
                perm = t.perm & ~2 if c.enable_acting_master and c.broker_id != 0 else t.perm
                self.queues = {row for row in self.queues if row[:2] != (t.topic, name)}
                self.queues.add(
                    (t.topic, name, t.read_queue_nums, t.write_queue_nums, perm, t.topic_sys_flag)
                )
            for m in c.mappings:
                stored = [row for row in self.mappings if row[:2] == (m.topic, name)]
                if m.topic in self.topics_of(name) and (not stored or stored[0][2] < m.epoch):
                    self.mappings -= set(stored)
                    self.mappings.add((m.topic, name, m.epoch))
        filters = c.filter_servers
        if filters is None:
            filters = () if old is None else old[6]
        self.records[key] = (
            name,
            c.broker_id,
            c.ha_server_addr,
            c.data_version,
            not c.incremental,
            c.lease_ms,
            filters,
        )

    def set_perms(self, name: str, perm_of: Any) -> int:
        self.queues = {
            (t, n, r, w, perm_of(p), f) if n == name else (t, n, r, w, p, f)
            for t, n, r, w, p, f in self.queues
        }
        return len(self.topics_of(name))

    def things(self) -> dict[tuple[str, Any], Any]:
        """Return the facts on which commands may depend, as a dict.

        A fact has changed if its key has another value in a later dict.
        """
        found: dict[tuple[str, Any], Any] = {}
        for key, record in self.records.items():
            found["record", key] = record
        for name in self.names:
            found["name", name] = (self.ids(name), {(r[0], r[4]) for r in self.queues if r[1] == name})
        for topic in {row[0] for row in self.queues}:
            names = {row[1] for row in self.queues if row[0] == topic}
            found["topic", topic] = (
                {row for row in self.queues if row[0] == topic},
                {row for row in self.listed if row[0] in names},
                {n: (self.names[n][0], *self.names[n][2:]) for n in names},
                {row[3]: self.records[row[2], row[3]][6] for row in self.listed if row[0] in names},
                {row for row in self.mappings if row[0] == topic},
                self.kv.get((ORDER, topic)),
            )
        for mark, value in self.kv.items():
            found["key", mark] = (value,)
        return found


def shape(table: RouteTable) -> Model:
    """Return the content of a table as a :class:`Model`."""
    view = table.view
    model = Model()
    for name, entry in view.names():
        model.names[name] = (
            entry.cluster,
            frozenset(entry.clusters),
            entry.enable_acting_master,
            entry.zone_name,
        )
        model.listed |= {(name, i, k.cluster_name, k.broker_addr) for i, k in entry.addrs.items()}
    for record in view.records():
        model.records[record.broker.cluster_name, record.broker.broker_addr] = (
            record.broker_name,
            record.broker_id,
            record.ha_server_addr,
            record.data_version,
            record.complete,
            record.lease_ms,
            record.filter_servers,
        )
    for topic in view.topics():
        kept = view.topic(topic)
        assert kept is not None
        for name_, data in kept.queues.items():
            model.queues.add(
                (topic, name_, data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag)
            )
        model.mappings |= {(topic, n, m.epoch) for n, m in kept.mappings.items()}
    for space, values in view.kv_table().items():
        model.spaces.add(space)
        model.kv |= {(space, key): value for key, value in values.items()}
    return model


topics = st.lists(
    st.builds(
        TopicQueues,
        topic=st.sampled_from(TOPICS),
        read_queue_nums=st.sampled_from((4, 8)),
        write_queue_nums=st.just(4),
        perm=st.sampled_from((6, 4, 7)),
        topic_sys_flag=st.sampled_from((0, 2)),
    ),
    max_size=3,
    unique_by=lambda queues: queues.topic,
)
mappings = st.lists(
    st.builds(QueueMapping, topic=st.sampled_from(TOPICS), epoch=st.integers(0, 2), info=st.just('{"a":1}')),
    max_size=1,
)
versions = st.builds(DataVersion, state_version=st.sampled_from((0, 0, 1)), counter=st.integers(0, 2))


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(tombstones_max=8)
        self.model = Model()
        self.old: list[tuple[Command, int, dict[tuple[str, Any], Any]]] = []
        self.changed_at: dict[tuple[str, Any], int] = {}
        self.log: list[bytes] = []
        self.shapes: dict[Any, Any] = {}

    # -- execution of a command

    def run(self, command: Command) -> Applied | NoChange:
        """Apply a command that was computed from the current table; check the rules for all commands."""
        self.old.append((command, self.table.revision, {}))
        before = self.model.things()
        before_model = copy.deepcopy(self.model)
        routes = {topic: self.table.view.route(topic, order_conf=True) for topic in TOPICS}
        revisions = {topic: self.table.view.topic_revision(topic) for topic in TOPICS}
        digests = self.table.view.digest(), self.table.view.state_digest(), self.table.revision
        expected_change = (
            finish(self.table.view.would_change(command)) if isinstance(command, RegisterBroker) else None
        )
        self.log.append(encode_command(command))
        verdict = self.table.apply(decode_command(self.log[-1]))
        assert isinstance(verdict, Applied | NoChange), verdict
        self.update_model(command)
        after = shape(self.table)
        assert after == self.model
        if isinstance(verdict, NoChange):
            assert self.model == before_model
            assert digests == (self.table.view.digest(), self.table.view.state_digest(), self.table.revision)
        else:
            assert verdict.revision == self.table.revision == digests[2] + 1
            assert self.table.view.state_digest() != digests[1]
        if expected_change is not None:
            assert expected_change == isinstance(verdict, Applied)
        things = self.model.things()
        for mark in before.keys() | things.keys():
            if thing_moved(mark[0], before.get(mark), things.get(mark)):
                self.changed_at[mark] = self.table.revision
        woken = set(self.table.view.affected(verdict, TOPICS)) if isinstance(verdict, Applied) else set()
        for topic in TOPICS:
            made_of = self.table.view.shape(topic, order_conf=True)
            if made_of is not None:
                route = self.table.view.route(topic, order_conf=True, acting_master=True)
                assert self.shapes.setdefault(made_of, route) == route
            if self.table.view.route(topic, order_conf=True) != routes[topic]:
                assert self.table.view.topic_revision(topic) == self.table.revision
                assert topic in woken
            else:
                assert self.table.view.topic_revision(topic) >= revisions[topic]
        return verdict

    def update_model(self, command: Command) -> None:
        model = self.model
        match command:
            case RegisterBroker():
                model.register(command)
            case UnregisterBroker():
                key = (command.cluster_name, command.broker_addr)
                if key in model.records and model.records[key][0] == command.broker_name:
                    model.remove(key)
            case Evict():
                model.remove((command.cluster_name, command.broker_addr))
            case WipeWritePerm():
                model.set_perms(command.broker_name, lambda perm: perm & ~2)
            case AddWritePerm():
                model.set_perms(command.broker_name, lambda perm: 6)
            case DeleteTopic():
                for topic, name, *_ in list(model.queues):
                    if topic == command.topic and (
                        command.cluster_name is None or command.cluster_name in model.names[name][1]
                    ):
                        model.drop_queues(topic, name)
            case RegisterTopic():
                if all(q.broker_name in model.names for q in command.queues):
                    for q in command.queues:
                        pair = (command.topic, q.broker_name)
                        model.queues = {row for row in model.queues if row[:2] != pair}
                        model.queues.add(
                            (*pair, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag)
                        )
            case PutKv():
                model.spaces.add(command.namespace)
                model.kv[command.namespace, command.key] = command.value
            case DeleteKv():
                model.kv.pop((command.namespace, command.key), None)
            case Touch():
                pass

    # -- rules, which Hypothesis calls in random order

    @rule(
        cluster=st.sampled_from(CLUSTERS),
        name=st.sampled_from(NAMES),
        addr=st.sampled_from(ADDRS),
        broker_id=st.integers(0, 2),
        version=versions,
        body=topics,
        mapped=mappings,
        filters=st.sampled_from((None, (), ("f:1",))),
        acting=st.sampled_from((None, None, False, True)),
        zone=st.sampled_from((None, "z")),
        lease=st.sampled_from((120_000, 10_000)),
        delete_absent=st.booleans(),
    )
    def register(
        self,
        cluster: str,
        name: str,
        addr: str,
        broker_id: int,
        version: DataVersion,
        body: list[TopicQueues],
        mapped: list[QueueMapping],
        filters: tuple[str, ...] | None,
        acting: bool | None,
        zone: str | None,
        lease: int,
        delete_absent: bool,
    ) -> None:
        view = self.table.view
        key = BrokerKey(ClusterName(cluster), BrokerAddr(addr))
        command = RegisterBroker(
            cluster_name=key.cluster_name,
            broker_name=BrokerName(name),
            broker_addr=key.broker_addr,
            broker_id=broker_id,
            ha_server_addr=f"{addr}0",
            data_version=version,
            topics=tuple(body),
            incremental=len(body) == 1,
            filter_servers=filters,
            mappings=tuple(mapped),
            lease_ms=lease,
            enable_acting_master=acting,
            zone_name=zone,
            delete_absent=delete_absent,
            record_revision=view.base("record", key),
            name_revision=view.base("name", name),
            limits=LIMITS[(len(body) + broker_id) % len(LIMITS)],
        )
        self.run(command)
        # A repeated registration must change nothing.
        again = RegisterBroker(
            **{f: getattr(command, f) for f in command.__struct_fields__}
            | {
                "record_revision": view.base("record", key),
                "name_revision": view.base("name", name),
            }
        )
        assert isinstance(self.run(again), NoChange)

    @precondition(lambda self: self.table.view.records())
    @rule(
        data=st.data(),
        version=versions,
        body=topics,
        acting=st.sampled_from((None, False, True)),
        filters=st.sampled_from((None, ("f:1",))),
        delete_absent=st.booleans(),
    )
    def register_again(
        self,
        data: st.DataObject,
        version: DataVersion,
        body: list[TopicQueues],
        acting: bool | None,
        filters: tuple[str, ...] | None,
        delete_absent: bool,
    ) -> None:
        """Register a listed broker again from the same address, as brokers do every 30 s."""
        key = self.some_key(data)
        record = self.table.view.record(key)
        assert record is not None
        self.register(
            cluster=key.cluster_name,
            name=record.broker_name,
            addr=key.broker_addr,
            broker_id=record.broker_id,
            version=version,
            body=body,
            mapped=[],
            filters=filters,
            acting=acting,
            zone=None,
            lease=120_000,
            delete_absent=delete_absent,
        )

    def some_key(self, data: st.DataObject) -> BrokerKey:
        return data.draw(st.sampled_from(sorted(record.broker for record in self.table.view.records())))

    @precondition(lambda self: self.table.view.records())
    @rule(data=st.data(), reason=st.sampled_from(LeaveReason))
    def evict(self, data: st.DataObject, reason: LeaveReason) -> None:
        key = self.some_key(data)
        verdict = self.run(
            Evict(
                cluster_name=key.cluster_name,
                broker_addr=key.broker_addr,
                revision=self.table.view.base("record", key),
                reason=reason,
            )
        )
        assert isinstance(verdict, Applied)
        assert [gone.broker for gone in verdict.left] == [key]

    @precondition(lambda self: self.table.view.records())
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        key = self.some_key(data)
        record = self.table.view.record(key)
        assert record is not None
        entry = self.table.view.name(record.broker_name)
        assert entry is not None
        touch = Touch(
            cluster_name=key.cluster_name,
            broker_name=record.broker_name,
            broker_addr=key.broker_addr,
            broker_id=record.broker_id,
            ha_server_addr=record.ha_server_addr,
            data_version=record.data_version,
            complete=record.complete,
            lease_ms=record.lease_ms,
            enable_acting_master=entry.enable_acting_master,
            zone_name=entry.zone_name,
        )
        self.run(touch)
        moved = self.table.view.record(key)
        assert moved is not None
        assert moved.revision == self.table.revision

    @rule(cluster=st.sampled_from(CLUSTERS), addr=st.sampled_from(ADDRS), name=st.sampled_from(NAMES))
    def unregister(self, cluster: str, addr: str, name: str) -> None:
        key = BrokerKey(ClusterName(cluster), BrokerAddr(addr))
        self.run(
            UnregisterBroker(
                cluster_name=key.cluster_name,
                broker_name=BrokerName(name),
                broker_addr=key.broker_addr,
                broker_id=0,
                record_revision=self.table.view.base("record", key),
                name_revision=self.table.view.base("name", name),
            )
        )

    @rule(name=st.sampled_from(NAMES), add=st.booleans())
    def permission(self, name: str, add: bool) -> None:
        kind = AddWritePerm if add else WipeWritePerm
        verdict = self.run(
            kind(broker_name=BrokerName(name), name_revision=self.table.view.base("name", name))
        )
        assert verdict.reply == CountReply(count=len(self.model.topics_of(name)))

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from((None, *CLUSTERS)))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.run(
            DeleteTopic(
                topic=topic,
                cluster_name=None if cluster is None else ClusterName(cluster),
                topic_revision=self.table.view.base("topic", topic),
            )
        )

    @rule(topic=st.sampled_from(TOPICS), names=st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    def register_topic(self, topic: str, names: list[str]) -> None:
        queues = tuple(
            BrokerQueues(broker_name=BrokerName(n), read_queue_nums=2, write_queue_nums=2, perm=6)
            for n in names
        )
        self.run(
            RegisterTopic(topic=topic, queues=queues, topic_revision=self.table.view.base("topic", topic))
        )

    @rule(
        space=st.sampled_from((ORDER, "n")),
        key=st.sampled_from(TOPICS),
        value=st.sampled_from((None, "x", "y", "delete")),
    )
    def configure(self, space: str, key: str, value: str | None) -> None:
        base = self.table.view.base("key", (space, key))
        if value == "delete":
            self.run(DeleteKv(namespace=space, key=key, key_revision=base))
        else:
            self.run(PutKv(namespace=space, key=key, value=value, key_revision=base))

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def late_command(self, data: st.DataObject) -> None:
        """Apply a command that was computed from an earlier table to a copy of the current table.

        If a fact on which the command depends has changed since then, the result must be ``Moved``. Then the
        command has changed nothing, and must be computed again.
        """
        command, decided_on, _ = data.draw(st.sampled_from(self.old))
        changed = any(
            self.changed_at.get((base.kind, base.key), 0) > base.revision for base in bases(command)
        )
        state = self.table.view.state_digest()
        moved = isinstance(copy_of(self.table).apply(command), Moved)
        assert self.table.view.state_digest() == state
        if bases(command):
            assert moved or not changed
            if self.table.revision == decided_on and not isinstance(command, Evict):
                assert not moved

    # -- invariants, which Hypothesis checks after each rule

    @invariant()
    def holds(self) -> None:
        check_table(self.table)

    def teardown(self) -> None:
        """Apply all commands again to a new table, which must then have the same content and digests."""
        again = RouteTable(tombstones_max=8)
        for data in self.log:
            again.apply(decode_command(data))
        assert again.view.state_digest() == self.table.view.state_digest()
        assert encode_image(again.copy_for_snapshot()) == encode_image(self.table.copy_for_snapshot())


def thing_moved(kind: str, before: Any, after: Any) -> bool:
    """Return True if a command must be computed again, because an item of the table has changed.

    ``before`` and ``after`` are the item's values. The command was computed from the value ``before``.
    """
    if kind == "name" and before is not None and after is not None:
        # The command need not be computed again after the removal of a topic, because it cannot overwrite the
        # permission of this topic.
        return bool(before[0] != after[0] or after[1] - before[1])
    return bool(before != after)


def copy_of(table: RouteTable) -> RouteTable:
    return RouteTable.restore(encode_image(table.copy_for_snapshot()), tombstones_max=8)


TestRouteTable = pytest.mark.slow(RouteTableMachine.TestCase)
TestRouteTable.settings = hypothesis_settings(max_examples=80, stateful_step_count=30, deadline=None)
