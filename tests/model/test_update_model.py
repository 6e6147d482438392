"""Tests that a table has the same content if it applies whole registrations or only their differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    AddWritePerm,
    BrokerQueues,
    Command,
    DeleteTopic,
    Evict,
    PutKv,
    RegisterBroker,
    RegisterTopic,
    TopicQueues,
    Touch,
    UnregisterBroker,
    Update,
    WipeWritePerm,
    decode_command,
    encode_command,
)
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName, LeaveReason
from routekeeper.nameserver.verdicts import Applied, Moved
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import finish
from tests.registrations import as_it_came
from tests.tables import check_table

CLUSTER = ClusterName("c1")
OTHER_CLUSTER = ClusterName("c2")
NAMES = (BrokerName("a"), BrokerName("b"))
ADDRS = ("h:1", "h:2", "h:3")
TOPICS = ("t1", "t2", "t3", "t4")

BETWEEN = (
    "delete",
    "delete all",
    "register topic",
    "wipe",
    "touch",
    "evict",
    "evict another",
    "another says otherwise",
    "another sends",
)
queues = st.builds(
    TopicQueues,
    topic=st.sampled_from(TOPICS),
    read_queue_nums=st.sampled_from((4, 8)),
    write_queue_nums=st.just(4),
    perm=st.sampled_from((6, 4, 7)),
    topic_sys_flag=st.sampled_from((0, 0, 2)),
)
bodies = st.lists(queues, max_size=4, unique_by=lambda queues: queues.topic)
versions = st.builds(DataVersion, state_version=st.sampled_from((0, 0, 0, 1)), counter=st.integers(0, 3))


class Pending(NamedTuple):
    """The two commands for one registration, before the tables apply them.

    ``whole`` replaces the broker's complete record. ``short`` contains only the differences from the table.
    The other fields describe the table from which ``short`` was computed: its revision, and the result of
    :func:`shown`.
    """

    whole: RegisterBroker
    short: Update
    revision: int
    shown: Any


def shown(table: RouteTable, name: BrokerName) -> Any:
    """Return the parts of a broker name's entry that can change without a new revision."""
    entry = table.view.name(name)
    if entry is None:
        return None
    return entry.enable_acting_master, entry.zone_name, sorted(table.view.topics_of_name(name))


class UpdateMachine(RuleBasedStateMachine):
    """A model-based test with two route tables, which must always be equal.

    The table ``whole`` gets whole registrations. The table ``short`` gets only the differences.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole = RouteTable(tombstones_max=8)
        self.short = RouteTable(tombstones_max=8)
        self.pending: list[Pending] = []

    def run(self, command: Command) -> None:
        assert self.whole.apply(command) == self.short.apply(command)

    def registration(self, record_of: BrokerKey, **said: Any) -> RegisterBroker:
        view = self.short.view
        return RegisterBroker(
            cluster_name=record_of.cluster_name,
            broker_addr=record_of.broker_addr,
            ha_server_addr=f"{record_of.broker_addr}0",
            mappings=(),
            lease_ms=120_000,
            record_revision=view.base("record", record_of),
            name_revision=view.base("name", said["broker_name"]),
            incremental=len(said["topics"]) == 1,
            **said,
        )

    # -- brokers join

    @initialize(body=bodies, acting=st.sampled_from((True, True, False)))
    def begin(self, body: list[TopicQueues], acting: bool) -> None:
        """Register a master and a slave of one broker name."""
        for broker_id, addr in ((0, ADDRS[0]), (1, ADDRS[1])):
            self.join(CLUSTER, NAMES[0], addr, broker_id, DataVersion(counter=9), body, acting, None)

    @rule(
        cluster=st.sampled_from((CLUSTER, CLUSTER, OTHER_CLUSTER)),
        name=st.sampled_from(NAMES),
        addr=st.sampled_from(ADDRS),
        broker_id=st.integers(0, 2),
        version=versions,
        body=bodies,
        acting=st.sampled_from((None, True, True, False)),
        zone=st.sampled_from((None, None, "z")),
    )
    def join(
        self,
        cluster: ClusterName,
        name: BrokerName,
        addr: str,
        broker_id: int,
        version: DataVersion,
        body: list[TopicQueues],
        acting: bool | None,
        zone: str | None,
    ) -> None:
        self.run(
            self.registration(
                BrokerKey(cluster, BrokerAddr(addr)),
                broker_name=name,
                broker_id=broker_id,
                data_version=version,
                topics=tuple(body),
                enable_acting_master=acting,
                zone_name=zone,
                delete_absent=False,
                filter_servers=None,
            )
        )

    def some_key(self, data: st.DataObject) -> BrokerKey:
        return data.draw(st.sampled_from(sorted(record.broker for record in self.short.view.records())))

    # -- registrations as a whole and as differences

    @precondition(lambda self: self.short.view.records())
    @rule(
        data=st.data(),
        version=versions,
        changes=st.lists(queues, max_size=2, unique_by=lambda queues: queues.topic),
        alone=st.sampled_from((False, False, False, True)),
        filters=st.sampled_from((None, None, None, (), ("f:1",))),
        zone=st.sampled_from((None, None, None, "y")),
        is_5x=st.booleans(),
        delete_absent=st.sampled_from((False, False, True)),
        between=st.lists(st.sampled_from(BETWEEN), max_size=2),
    )
    def race(
        self,
        data: st.DataObject,
        version: DataVersion,
        changes: list[TopicQueues],
        alone: bool,
        filters: tuple[str, ...] | None,
        zone: str | None,
        is_5x: bool,
        delete_absent: bool,
        between: list[str],
    ) -> None:
        """Register a listed broker again, and apply other changes before this registration is applied.

        Most of the registration's content is already in the table.
        """
        key = self.some_key(data)
        record = self.short.view.record(key)
        assert record is not None
        entry = self.short.view.name(record.broker_name)
        assert entry is not None
        sent = {} if alone else self.lines_of(record.broker_name)
        sent |= {queues.topic: queues for queues in changes}
        said_zone = zone or entry.zone_name
        command = self.registration(
            key,
            broker_name=record.broker_name,
            broker_id=record.broker_id,
            data_version=version,
            topics=tuple(sent.values()),
            enable_acting_master=entry.enable_acting_master or (False if is_5x else None),
            zone_name=said_zone,
            delete_absent=delete_absent,
            filter_servers=filters,
        )
        # A registration with an equal version does not change permissions that an operator has set. So
        # replace the permissions in the registration by those of the current table.
        said = finish(self.short.view.with_set_perms(as_it_came(command)))
        command = replace(command, topics=finish(said.topics()))
        short = self.short.shortened(as_it_came(command), delete_absent=delete_absent)
        repeated = self.short.view.is_repeated_by(as_it_came(command))
        assert not (repeated and finish(self.short.view.would_change(command)))
        same = said_zone == entry.zone_name and filters in (None, record.filter_servers)
        same = same and key.cluster_name in entry.clusters
        drops = delete_absent and not command.incremental
        assert (short is not None) == (same and not drops and finish(self.short.view.would_change(command)))
        if short is None:
            return
        assert len(short.topics) <= len(command.topics)
        shows = shown(self.short, command.broker_name)
        decided = Pending(command, short, self.short.revision, shows)
        self.pending.append(decided)
        for kind in between:
            self.come_between(kind, command, data)
        self.arrives(decided)

    def lines_of(self, name: BrokerName) -> dict[str, TopicQueues]:
        found = {}
        for topic in sorted(self.short.view.topics_of_name(name)):
            kept = self.short.view.topic(topic)
            assert kept is not None
            line = kept.queues[name]
            found[topic] = TopicQueues(
                topic=topic,
                read_queue_nums=line.read_queue_nums,
                write_queue_nums=line.write_queue_nums,
                perm=line.perm,
                topic_sys_flag=line.topic_sys_flag,
            )
        return found

    def come_between(self, kind: str, command: RegisterBroker, data: st.DataObject) -> None:
        """Change the tables after the registration ``command`` was computed, and before it is applied.

        Depending on ``kind``, this changes a fact on which the registration depends, or a similar fact.
        """
        name = command.broker_name
        view = self.short.view
        topics = [queues.topic for queues in command.topics] or list(TOPICS)
        match kind:
            case "delete":
                self.delete(data.draw(st.sampled_from(topics)), None)
            case "delete all":
                for topic in topics:
                    self.delete(topic, None)
            case "register topic":
                self.register_topic(data.draw(st.sampled_from(topics)), [name])
            case "wipe":
                self.permission(name, False)
            case "touch":
                self.renew(command.broker)
            case "evict":
                self.remove(command.broker)
            case "evict another" | "another says otherwise" | "another sends":
                entry = view.name(name)
                others = [] if entry is None else [k for k in entry.addrs.values() if k != command.broker]
                if entry is None or not others:
                    return
                other = data.draw(st.sampled_from(others))
                if kind == "evict another":
                    self.remove(other)
                    return
                record = view.record(other)
                assert record is not None
                sends = kind == "another sends"
                acting = entry.enable_acting_master
                zone = entry.zone_name
                if not sends:
                    other_zone = "w" if zone is None else None
                    acting, zone = data.draw(st.sampled_from(((not acting, zone), (acting, other_zone))))
                self.run(
                    self.registration(
                        other,
                        broker_name=name,
                        broker_id=record.broker_id,
                        data_version=record.data_version.advanced(now_ms=1) if sends else record.data_version,
                        topics=tuple(self.lines_of(name).values())[:2],
                        enable_acting_master=acting,
                        zone_name=zone,
                        delete_absent=False,
                        filter_servers=None,
                    )
                )
            case _:
                raise AssertionError(kind)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        """Apply a registration that was computed earlier, and that the tables may have applied already."""
        self.arrives(data.draw(st.sampled_from(self.pending)))

    def arrives(self, pending: Pending) -> None:
        before = self.short.state_digest()
        command = decode_command(encode_command(pending.short))
        known_before = self.short.moved(command)
        verdict = self.short.apply(command)
        if isinstance(verdict, Moved):
            assert self.short.state_digest() == before
            assert self.short.revision > pending.revision
            lost = shown(self.short, pending.short.broker_name) != pending.shown
            by_whole = copy_of(self.whole).apply(pending.whole)
            assert lost or isinstance(by_whole, Moved), "a difference is decided again without need"
            return
        assert isinstance(verdict, Applied)
        assert not known_before
        assert verdict == self.whole.apply(pending.whole)

    # -- changes after a registration was computed and before it is applied

    @precondition(lambda self: self.short.view.records())
    @rule(data=st.data(), reason=st.sampled_from((LeaveReason.LEASE_EXPIRED, LeaveReason.CONNECTION_CLOSED)))
    def evict(self, data: st.DataObject, reason: LeaveReason) -> None:
        self.remove(self.some_key(data), reason)

    def remove(self, key: BrokerKey, reason: LeaveReason = LeaveReason.LEASE_EXPIRED) -> None:
        self.run(
            Evict(
                cluster_name=key.cluster_name,
                broker_addr=key.broker_addr,
                revision=self.short.view.base("record", key),
                reason=reason,
            )
        )

    @precondition(lambda self: self.short.view.records())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = self.some_key(data)
        record = self.short.view.record(key)
        assert record is not None
        self.run(
            UnregisterBroker(
                cluster_name=key.cluster_name,
                broker_name=record.broker_name,
                broker_addr=key.broker_addr,
                broker_id=record.broker_id,
                record_revision=record.revision,
                name_revision=self.short.view.base("name", record.broker_name),
            )
        )

    @precondition(lambda self: self.short.view.records())
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        self.renew(self.some_key(data))

    def renew(self, key: BrokerKey) -> None:
        record = self.short.view.record(key)
        if record is None:
            return
        entry = self.short.view.name(record.broker_name)
        assert entry is not None
        self.run(
            Touch(
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
        )

    @rule(name=st.sampled_from(NAMES), add=st.booleans())
    def permission(self, name: BrokerName, add: bool) -> None:
        kind = AddWritePerm if add else WipeWritePerm
        self.run(kind(broker_name=name, name_revision=self.short.view.base("name", name)))

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from((None, CLUSTER, OTHER_CLUSTER)))
    def delete(self, topic: str, cluster: ClusterName | None) -> None:
        base = self.short.view.base("topic", topic)
        self.run(DeleteTopic(topic=topic, cluster_name=cluster, topic_revision=base))

    @rule(topic=st.sampled_from(TOPICS), names=st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    def register_topic(self, topic: str, names: list[BrokerName]) -> None:
        queues = tuple(
            BrokerQueues(broker_name=name, read_queue_nums=8, write_queue_nums=4, perm=6) for name in names
        )
        base = self.short.view.base("topic", topic)
        self.run(RegisterTopic(topic=topic, queues=queues, topic_revision=base))

    @rule(value=st.sampled_from(("x", "y")), topic=st.sampled_from(TOPICS))
    def order(self, value: str, topic: str) -> None:
        base = self.short.view.base("key", ("ORDER_TOPIC_CONFIG", topic))
        self.run(PutKv(namespace="ORDER_TOPIC_CONFIG", key=topic, value=value, key_revision=base))

    # -- invariants

    @invariant()
    def both_are_equal(self) -> None:
        assert self.short.revision == self.whole.revision
        assert self.short.digest() == self.whole.digest()
        assert self.short.state_digest() == self.whole.state_digest()
        for topic in TOPICS:
            assert self.short.view.route(topic) == self.whole.view.route(topic)
            assert self.short.view.topic_revision(topic) == self.whole.view.topic_revision(topic)

    def teardown(self) -> None:
        check_table(self.short)


def copy_of(table: RouteTable) -> RouteTable:
    return RouteTable.restore(encode_image(table.copy_for_snapshot()), tombstones_max=8)


TestUpdate = pytest.mark.slow(UpdateMachine.TestCase)
TestUpdate.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
