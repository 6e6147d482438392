"""Tests of RouteTable: digests, snapshots, revisions, and the cost of one change.

The tests in tests/model check the effect of each command.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.commands import (
    BrokerQueues,
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
    Update,
    WipeWritePerm,
)
from routekeeper.nameserver.routes import topics as routes_topics
from routekeeper.nameserver.routes.image import ImageError, decode_image, encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.topics import COPIED_FROM, SETS_SPARE, SHARES_SPARE
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName, LeaveReason
from routekeeper.nameserver.verdicts import Applied, CountReply, Moved, NoChange, Rejected, Verdict
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import STEP, Steps
from tests.registrations import as_it_came
from tests.tables import check_table

C = ClusterName("c")
A = BrokerName("a")


def key(name: str) -> BrokerKey:
    return BrokerKey(C, BrokerAddr(f"{name}:1"))


def registration(
    table: RouteTable, name: str = "a", topics: tuple[str, ...] = ("t1", "t2"), **changes: Any
) -> RegisterBroker:
    values: dict[str, Any] = {
        "cluster_name": C,
        "broker_name": BrokerName(name),
        "broker_addr": BrokerAddr(f"{name}:1"),
        "broker_id": 0,
        "ha_server_addr": "",
        "data_version": DataVersion(counter=1),
        "topics": tuple(
            TopicQueues(topic=topic, read_queue_nums=4, write_queue_nums=4, perm=6) for topic in topics
        ),
        "incremental": len(topics) == 1,
        "filter_servers": None,
        "mappings": (),
        "lease_ms": 120_000,
        "enable_acting_master": None,
        "zone_name": None,
        "delete_absent": False,
    }
    values |= changes
    broker = BrokerKey(values["cluster_name"], values["broker_addr"])
    values.setdefault("record_revision", table.view.base("record", broker))
    values.setdefault("name_revision", table.view.base("name", values["broker_name"]))
    return RegisterBroker(**values)


def eviction(table: RouteTable, name: str = "a") -> Evict:
    return Evict(
        cluster_name=C,
        broker_addr=BrokerAddr(f"{name}:1"),
        revision=table.view.base("record", key(name)),
        reason=LeaveReason.LEASE_EXPIRED,
    )


def filled(*names: str, topics: tuple[str, ...] = ("t1", "t2")) -> RouteTable:
    table = RouteTable()
    for name in names:
        assert isinstance(table.apply(registration(table, name, topics)), Applied)
    check_table(table)
    return table


# -- registrations as differences from the table ----------------------------------------------------------


def shortened(table: RouteTable, counter: int = 2, topics: tuple[str, ...] = ("t1", "t3")) -> Update:
    """Return broker a's registration as a difference from the table.

    By default, the registration keeps the topic ``t1`` and adds ``t3``.
    """
    command = registration(table, topics=topics, data_version=DataVersion(counter=counter))
    short = table.shortened(as_it_came(command), delete_absent=False)
    assert short is not None
    return short


def test_difference_holds_what_changes_and_nothing_else() -> None:
    table = filled("a")
    short = shortened(table)
    assert [queues.topic for queues in short.topics] == ["t3"]
    verdict = table.apply(short)
    assert isinstance(verdict, Applied)
    assert verdict.topics == ("t3",)
    assert table.view.topics() == ["t1", "t2", "t3"]
    check_table(table)
    assert isinstance(table.apply(short), Moved), "it applies at most once"


def _slave(table: RouteTable, **changes: Any) -> RegisterBroker:
    values: dict[str, Any] = {"broker_addr": BrokerAddr("s:1"), "broker_id": 1} | changes
    return registration(table, "a", ("t1", "t2"), **values)


@pytest.mark.parametrize(
    "between",
    [
        lambda table: DeleteTopic(topic="t1", cluster_name=None, topic_revision=table.revision),
        lambda table: RegisterTopic(
            topic="t1",
            queues=(
                BrokerQueues(broker_name=BrokerName("a"), read_queue_nums=9, write_queue_nums=9, perm=6),
            ),
            topic_revision=table.revision,
        ),
        lambda table: WipeWritePerm(broker_name=BrokerName("a"), name_revision=table.revision),
        lambda table: _slave(table, zone_name="z"),
        lambda table: _slave(table, enable_acting_master=True),
        lambda table: eviction(table, "s"),
        lambda table: registration(table, data_version=DataVersion(counter=7)),
    ],
    ids=["deleted", "put", "wiped", "zone", "acting", "slave gone", "registered"],
)
def test_difference_has_moved_with_anything_that_it_was_computed_from(
    between: Callable[[RouteTable], Command],
) -> None:
    table = filled("a")
    assert isinstance(table.apply(_slave(table)), Applied)
    short = shortened(table)
    assert isinstance(table.apply(between(table)), Applied)
    before = table.view.state_digest()
    assert isinstance(table.apply(short), Moved)
    assert table.view.state_digest() == before
    # The handler then computes the registration again, now with all topics of the broker. The table applies
    # it.
    again = registration(table, topics=("t1", "t3"), data_version=DataVersion(counter=9))
    assert isinstance(table.apply(again), Applied)
    entry = table.view.topic("t1")
    assert entry is not None
    assert entry.queues["a"].read_queue_nums == 4


def test_difference_stands_whatever_others_do() -> None:
    table = filled("a", "b")
    short = shortened(table)
    others = registration(table, "b", ("t1", "t9"), data_version=DataVersion(counter=5))
    assert isinstance(table.apply(others), Applied)
    deletion = DeleteTopic(topic="t9", cluster_name=None, topic_revision=table.revision)
    assert isinstance(table.apply(deletion), Applied)
    assert isinstance(table.apply(_slave(table, broker_name=BrokerName("b"))), Applied)
    assert not table.moved(short)
    assert isinstance(table.apply(short), Applied)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_version": DataVersion(counter=1)},
        {"zone_name": "z"},
        {"lease_ms": 10_000},
        {"ha_server_addr": "h:2"},
        {"broker_id": 1},
        {"filter_servers": ("f:1",)},
        {"enable_acting_master": True},
        {"mappings": (QueueMapping(topic="t1", epoch=1, info="{}"),)},
        {"broker_name": BrokerName("z")},
        {"broker_addr": BrokerAddr("z:1")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_more_than_topics_goes_whole(changes: dict[str, Any]) -> None:
    table = filled("a")
    values: dict[str, Any] = {"data_version": DataVersion(counter=2)} | changes
    command = registration(table, topics=("t1", "t3"), **values)
    assert table.shortened(as_it_came(command), delete_absent=False) is None


def test_who_deletes_what_is_absent_goes_whole_but_for_an_increment() -> None:
    table = filled("a")
    for topics, whole in ((("t1", "t3"), True), (("t3",), False)):
        command = registration(table, topics=topics, data_version=DataVersion(counter=2))
        assert (table.shortened(as_it_came(command), delete_absent=True) is None) == whole


# -- digests ----------------------------------------------------------------------------------------------


@given(order=st.permutations(("a", "b", "c", "kv", "order")), detour=st.booleans())
def test_digest_depends_on_content_and_not_on_how_it_came(order: list[str], detour: bool) -> None:
    def build(steps: list[str]) -> RouteTable:
        table = RouteTable()
        for step in steps:
            if step in ("kv", "order"):
                space = "ORDER_TOPIC_CONFIG" if step == "order" else "n"
                command: Command = PutKv(
                    namespace=space, key="t1", value="v", key_revision=table.view.base("key", (space, "t1"))
                )
            else:
                command = registration(table, step)
            assert isinstance(table.apply(command), Applied)
        return table

    one, other = build(sorted(order)), build(order)
    if detour:
        other.apply(registration(other, "z", ("t1", "z1")))
        other.apply(eviction(other, "z"))
    assert one.view.digest() == other.view.digest()
    assert (one.view.state_digest() == other.view.state_digest()) == (order == sorted(order) and not detour)
    check_table(other)


def test_digest_sees_everything_that_clients_can_read() -> None:
    table = filled("a", "b")
    seen = {table.view.digest()}
    changes: list[dict[str, Any]] = [
        {"enable_acting_master": True},
        {"zone_name": "z"},
        {"filter_servers": ("f:1",)},
        {"topics": ("t1", "t3")},
        {"cluster_name": ClusterName("d"), "broker_addr": BrokerAddr("x:1"), "broker_id": 1},
    ]
    for counter, change in enumerate(changes, 2):
        topics = change.pop("topics", ("t1", "t2"))
        command = registration(table, "a", topics, data_version=DataVersion(counter=counter), **change)
        assert isinstance(table.apply(command), Applied)
        seen.add(table.view.digest())
    for command_ in (
        PutKv(namespace="n", key="k", value="v", key_revision=table.revision),
        DeleteKv(namespace="n", key="k", key_revision=table.revision + 1),
        WipeWritePerm(broker_name=BrokerName("b"), name_revision=table.revision),
        DeleteTopic(topic="t1", cluster_name=None, topic_revision=table.revision + 3),
    ):
        assert isinstance(table.apply(command_), Applied), command_
        seen.add(table.view.digest())
    assert len(seen) == 1 + len(changes) + 4
    check_table(table)


def test_digest_does_not_see_what_only_the_group_keeps() -> None:
    table = filled("a")
    digest, state = table.view.digest(), table.view.state_digest()
    table.apply(registration(table, data_version=DataVersion(counter=2), lease_ms=1))
    assert table.view.digest() == digest
    assert table.view.state_digest() != state


# -- revisions --------------------------------------------------------------------------------------------


def test_registration_decided_before_another_one_has_moved() -> None:
    table = RouteTable()
    first, second = registration(table, "a"), registration(table, "a", ("t3", "t4"))
    assert isinstance(table.apply(first), Applied)
    assert isinstance(table.apply(second), Moved)
    assert table.view.topics() == ["t1", "t2"]


def test_slave_decided_before_its_master_came_has_moved() -> None:
    table = RouteTable()
    slave = registration(table, "a", broker_addr=BrokerAddr("s:1"), broker_id=1)
    table.apply(registration(table, "a"))
    assert isinstance(table.apply(slave), Moved)


def test_brokers_of_different_names_do_not_get_in_each_others_way() -> None:
    table = RouteTable()
    commands = [registration(table, name) for name in "abcd"]
    assert all(isinstance(table.apply(command), Applied) for command in commands)


def test_registration_decided_on_an_absent_record_moves_when_one_came_and_went() -> None:
    table = RouteTable()
    stale = registration(table)
    table.apply(registration(table))
    table.apply(eviction(table))
    assert isinstance(table.apply(stale), Moved)
    assert isinstance(table.apply(registration(table)), Applied)


def test_wipe_moves_with_addresses_ids_and_permissions_but_not_with_data_versions() -> None:
    table = filled("a")
    wipe = WipeWritePerm(broker_name=BrokerName("a"), name_revision=table.view.base("name", "a"))
    table.apply(registration(table, data_version=DataVersion(counter=2)))
    assert not table.moved(wipe)
    table.apply(registration(table, topics=("t1", "t3"), data_version=DataVersion(counter=3)))
    assert table.moved(wipe)
    wipe = WipeWritePerm(broker_name=BrokerName("a"), name_revision=table.view.base("name", "a"))
    table.apply(registration(table, broker_addr=BrokerAddr("s:1"), broker_id=1))
    assert table.moved(wipe)


def test_evict_is_void_once_the_record_moved_or_left() -> None:
    table = filled("a")
    evict = eviction(table)
    table.apply(registration(table, data_version=DataVersion(counter=2)))
    assert isinstance(table.apply(evict), Moved)
    evict = eviction(table)
    assert isinstance(table.apply(evict), Applied)
    assert isinstance(table.apply(evict), Moved)


def test_forgotten_removals_make_commands_decide_again_and_never_apply_over_something_newer() -> None:
    table = RouteTable(tombstones_max=10)
    stale = DeleteTopic(topic="t", cluster_name=None, topic_revision=0)
    for _ in range(30):
        for name in "abc":
            table.apply(registration(table, name, (f"of-{name}", f"too-{name}")))
        for name in "abc":
            table.apply(eviction(table, name))
    check_table(table)
    assert 0 < sum(map(len, table.copy_for_snapshot().tombstones.values())) <= 10
    assert isinstance(table.apply(stale), Moved)
    now = DeleteTopic(topic="t", cluster_name=None, topic_revision=table.view.base("topic", "t"))
    assert isinstance(table.apply(now), NoChange)


def test_topic_revision_moves_with_its_route_and_not_with_another_topics() -> None:
    table = filled("a")
    table.apply(registration(table, "b", ("u1", "u2")))
    before = table.view.topic_revision("t1")
    table.apply(registration(table, "b", ("u1", "u3"), data_version=DataVersion(counter=2)))
    assert table.view.topic_revision("t1") == before
    verdict = table.apply(registration(table, "a", broker_addr=BrokerAddr("s:1"), broker_id=1))
    assert isinstance(verdict, Applied)
    assert table.view.topic_revision("t1") == table.revision
    assert set(table.view.affected(verdict, {"t1", "u1"})) == {"t1"}
    table.apply(DeleteTopic(topic="t1", cluster_name=None, topic_revision=table.revision))
    assert table.view.topic_revision("t1") == table.revision
    assert table.view.topic_revision("never") == 0


def test_removing_a_broker_touches_its_own_topics_only() -> None:
    table = filled("a", topics=tuple(f"t{i}" for i in range(1000)))
    table.apply(registration(table, "b", ("t1", "b1")))
    before = table.copy_for_snapshot().topics
    table.apply(eviction(table, "b"))
    after = table.copy_for_snapshot().topics
    assert {topic for topic, entry in before.items() if after.get(topic) is not entry} == {"b1", "t1"}


def test_topics_with_equal_queues_share_one_set_however_they_came_to_it() -> None:
    table = filled("a", "b", topics=("t1", "t2"))
    table.apply(registration(table, "b", ("t3", "t4"), data_version=DataVersion(counter=2)))
    table.apply(registration(table, "a", ("t3", "t4"), data_version=DataVersion(counter=2)))
    wipe = WipeWritePerm(broker_name=BrokerName("a"), name_revision=table.view.base("name", "a"))
    table.apply(wipe)
    entries = table.copy_for_snapshot().topics
    assert len({id(entry.queue_set) for entry in entries.values()}) == 1
    again = RouteTable.restore(encode_image(table.copy_for_snapshot()))
    again.apply(registration(again, "c", ("t1", "t4")))
    again.apply(eviction(again, "c"))
    assert len({id(entry.queue_set) for entry in again.copy_for_snapshot().topics.values()}) == 1
    check_table(again)


def test_sets_with_equal_marks_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.nameserver.routes.entries.mark_of", lambda *parts: 7)
    table = RouteTable()
    table.apply(registration(table, "a", ("t1", "t2")))
    table.apply(registration(table, "b", ("u1", "u2")))
    topics = table.copy_for_snapshot().topics
    assert (set(topics["t1"].queues), set(topics["u1"].queues)) == ({"a"}, {"b"})


def test_queue_sets_without_a_topic_are_forgotten() -> None:
    table = filled("a", "b")
    for number in range(2 * SETS_SPARE):
        queues = TopicQueues(topic="t1", read_queue_nums=number, write_queue_nums=number, perm=6)
        version = DataVersion(counter=number + 2)
        command = registration(table, "a", ("t1", "t2"), data_version=version)
        table.apply(msgspec.structs.replace(command, topics=(queues, command.topics[1])))
    check_table(table)
    assert len(table.topics._sets) <= SETS_SPARE + 3


def test_queue_data_without_a_topic_are_forgotten() -> None:
    table = filled("a")
    for counter in range(2, 3 * SHARES_SPARE):
        topics = (TopicQueues(topic="t1", read_queue_nums=counter, write_queue_nums=1, perm=6),)
        command = registration(table, data_version=DataVersion(counter=counter))
        assert isinstance(table.apply(msgspec.structs.replace(command, topics=topics)), Applied)
    assert len(table.topics.pools["a"].shares) <= SHARES_SPARE + 5
    check_table(table)


# -- KV ---------------------------------------------------------------------------------------------------


def test_import_fills_an_empty_configuration_once() -> None:
    table = RouteTable()
    command = ImportKv(table={"n": {"k": "v", "null": None}, "empty": {}})
    verdict = table.apply(command)
    assert isinstance(verdict, Applied)
    assert verdict.reply == CountReply(count=2)
    assert table.view.kv_table() == command.table
    assert isinstance(table.apply(command), Rejected)
    check_table(table)


def test_import_comes_too_late_after_any_change_even_one_undone() -> None:
    table = RouteTable()
    table.apply(PutKv(namespace="n", key="k", value="v", key_revision=0))
    table.apply(DeleteKv(namespace="n", key="k", key_revision=table.revision))
    assert isinstance(table.apply(ImportKv(table={"n": {"k": "old"}})), Rejected)
    assert table.view.kv_table() == {"n": {}}


# -- snapshots ----------------------------------------------------------------------------------------------


def big_table() -> RouteTable:
    table = filled("a", "b")
    table.apply(registration(table, "a", broker_addr=BrokerAddr("s:1"), broker_id=1, zone_name="z"))
    table.apply(PutKv(namespace="n", key="k", value=None, key_revision=table.revision))
    table.apply(registration(table, "x", ("x1", "x2")))
    table.apply(eviction(table, "x"))
    return table


def test_restored_table_is_the_same_and_goes_on_the_same() -> None:
    table = big_table()
    again = RouteTable.restore(encode_image(table.copy_for_snapshot()))
    check_table(again)
    for each in (table, again):
        each.apply(registration(each, "b", ("t9", "t1"), data_version=DataVersion(counter=9)))
        each.apply(eviction(each, "a"))
    assert again.view.state_digest() == table.view.state_digest()
    assert again.view.cluster_info() == table.view.cluster_info()


def table_with_everything() -> RouteTable:
    table = big_table()
    mapping = QueueMapping(topic="t1", epoch=2, info="{}")
    table.apply(registration(table, "m", filter_servers=("f:1", "g:2"), mappings=(mapping,)))
    table.apply(DeleteKv(namespace="n", key="k", key_revision=table.revision))
    return table


def test_digests_stay_as_they_are() -> None:
    """Digests must not change between releases, because members of different releases compare them."""
    view = table_with_everything().view
    assert view.digest() == "18216da392363419510defb6d0284b0a"
    assert view.state_digest() == "3e88a239133c910c10d501cd8bc50e8f"


def test_bytes_of_an_image_stay_as_they_are() -> None:
    table = table_with_everything()
    assert blake2b(encode_image(table.copy_for_snapshot()), digest_size=8).hexdigest() == "b671bad5be128683"


def test_images_of_releases_with_fewer_and_more_fields_are_read() -> None:
    table = table_with_everything()
    fields = msgspec.msgpack.decode(encode_image(table.copy_for_snapshot()))
    for other in (fields[:-1], [*fields, "later"]):
        again = RouteTable.restore(msgspec.msgpack.encode(other))
        assert again.view.state_digest() == table.view.state_digest()


def test_image_keeps_that_an_operator_set_permissions() -> None:
    table = filled("a", topics=("t1", "t2"))
    table.apply(WipeWritePerm(broker_name=BrokerName("a"), name_revision=table.revision))
    again = RouteTable.restore(encode_image(table.copy_for_snapshot()))
    for each in (table, again):
        each.apply(shortened(each, counter=2, topics=("t3",)))
        each.apply(shortened(each, counter=2, topics=("t1", "t3")))
        entry = each.view.topic("t1")
        assert entry is not None
        assert entry.queues["a"].perm == 4
    assert again.view.state_digest() == table.view.state_digest()


def test_image_stays_as_it_was_while_the_table_goes_on() -> None:
    table = big_table()
    state = table.view.state_digest()
    image = table.copy_for_snapshot()
    for name, topics in itertools.product("ab", (("t1", "n1"), ("n2", "n3"))):
        table.apply(
            registration(
                table, name, topics, data_version=DataVersion(counter=len(topics[0]) + table.revision)
            )
        )
    table.apply(PutKv(namespace="n", key="k", value="new", key_revision=table.revision))
    table.apply(eviction(table, "a"))
    assert table.view.state_digest() != state
    assert RouteTable.restore(encode_image(image)).view.state_digest() == state


def test_adopted_state_shows_in_views_taken_before() -> None:
    table = RouteTable()
    view = table.view
    source = big_table()
    state = source.view.state_digest()
    table.adopt(source)
    assert view.state_digest() == state
    assert table.view is not view, "who keeps answers by revision sees that it is another state"
    assert isinstance(table.apply(eviction(table, "b")), Applied)
    assert view.name("b") is None


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_damaged_image_is_refused(cut: int) -> None:
    data = encode_image(big_table().copy_for_snapshot())
    with pytest.raises(ImageError):
        RouteTable.restore(data[:cut])


def test_image_of_another_format_or_with_another_digest_is_refused() -> None:
    fields = msgspec.msgpack.decode(encode_image(big_table().copy_for_snapshot()))
    newer = msgspec.msgpack.encode([fields[0] + 1, *fields[1:]])
    with pytest.raises(ImageError, match="format 3"):
        decode_image(newer)
    lying = msgspec.msgpack.encode([*fields[:4], "00", *fields[5:]])
    with pytest.raises(ImageError, match="digest"):
        RouteTable.restore(lying)


def test_check_sees_a_table_that_was_bent() -> None:
    table = filled("a")
    entries = table.topics.entries
    entries["t1"] = msgspec.structs.replace(entries["t1"], revision=99)
    with pytest.raises(AssertionError):
        check_table(table)
    table = filled("a")
    del table.brokers.records[key("a")]
    with pytest.raises(AssertionError):
        check_table(table)


def noting(steps: Steps[Verdict], made: list[Verdict]) -> Steps[None]:
    made.append((yield from steps))


@pytest.mark.slow
def test_change_of_many_topics_is_the_same_whether_or_not_it_is_made_in_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = tuple(f"t{number}" for number in range(COPIED_FROM + 7))
    others = tuple(f"u{number}" for number in range(100))

    def changed(*, copies: bool) -> tuple[RouteTable, list[int]]:
        monkeypatch.setattr(routes_topics, "COPIED_FROM", COPIED_FROM if copies else 2 * COPIED_FROM)
        table, steps = filled("a", "b", topics=(*others, "t0", "t4")), []
        for name, topics, queues in (("a", many, 4), ("a", many, 8), ("b", many[::-1], 8)):
            version = DataVersion(counter=table.revision + 2)
            command = registration(table, name, topics, data_version=version)
            kept = tuple([msgspec.structs.replace(of, read_queue_nums=queues) for of in command.topics])
            command = msgspec.structs.replace(command, topics=kept)
            short = table.shortened(as_it_came(command), delete_absent=False)
            before, count = table.view.digest(), 0
            made: list[Verdict] = []
            for _ in noting(table.applying(short or command), made):
                count += 1
                assert table.view.digest() == before
                listed = table.topics.of_name(name).get("t9")
                assert listed is None or listed.data.read_queue_nums != queues, "half of it is seen"
            assert isinstance(made[0], Applied)
            steps.append(count)
            assert table.topics.of_name(name)["t9"].data.read_queue_nums == queues
        check_table(table)
        return table, steps

    in_place, few = changed(copies=False)
    copied, more = changed(copies=True)
    assert all(b - a > 2 * len(many) / STEP for a, b in zip(few, more, strict=True)), "no step is long"
    assert encode_image(copied.copy_for_snapshot()) == encode_image(in_place.copy_for_snapshot())
    assert copied.view.state_digest() == in_place.view.state_digest()
    for name in ("a", "b"):
        assert list(copied.topics.of_name(name)) == list(in_place.topics.of_name(name))
    assert list(copied.topics.entries) == list(in_place.topics.entries)


def test_the_garbage_collector_does_not_walk_over_topics() -> None:
    """The garbage collector's work must not grow with the number of topics.

    While the collector works, the nameserver serves no request. In this test, all topics have different
    numbers of queues, so that topics share no objects.
    """
    counts = []
    for topics in (10, 3000):
        table = RouteTable()
        for name in "ab":
            unlike = tuple(
                TopicQueues(topic=f"t{i}", read_queue_nums=i + 1, write_queue_nums=4, perm=6)
                for i in range(topics)
            )
            command = msgspec.structs.replace(registration(table, name), topics=unlike)
            assert isinstance(table.apply(command), Applied)
        again = RouteTable.restore(encode_image(table.copy_for_snapshot()))
        gc.collect()
        counts.append(len(gc.get_objects()))
        assert again.digest() == table.digest()
    assert counts[1] - counts[0] < 1000
