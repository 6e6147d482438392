"""Tests of the decisions of a watch, without a server.

They concern the log of changes, sorted topics, event ids, resets and pauses.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.commands import Command, DeleteTopic, PutKv
from routekeeper.nameserver.http import watch
from routekeeper.nameserver.http.order import TopicOrder
from routekeeper.nameserver.http.watch import Filter, GroupMembers, Place, Watch
from routekeeper.nameserver.modes.changes import ChangeLog, Kind
from routekeeper.nameserver.routes.sorting import MERGE_MAX, sorting
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.types import ClusterName
from routekeeper.nameserver.verdicts import Applied
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import STEP, finish
from tests.nameserver.routes.test_route_table import eviction, registration

MEMBERS = GroupMembers(mode="independent", role="independent", term=0, leader=None, members=(), ready=True)


class Followed:
    """A table with a log of its changes, and with its topics in sorted order."""

    def __init__(self, **limits: int) -> None:
        self.table = RouteTable()
        self.log = ChangeLog(**limits)
        self.log.begin(self.table.view)
        self.order = TopicOrder(lambda: self.table.view, self.log)
        self.counter = 0

    def apply(self, command: Command) -> None:
        verdict = self.table.apply(command)
        assert isinstance(verdict, Applied)
        self.log.note(verdict)

    def register(self, name: str, *topics: str, **more: Any) -> None:
        self.counter += 1
        version = DataVersion(counter=self.counter)
        self.apply(
            registration(
                self.table, name, topics, data_version=version, delete_absent=True, incremental=False, **more
            )
        )

    def restart(self) -> None:
        """Replace the content of the table by an empty table with the next epoch."""
        other = RouteTable()
        other.epoch = self.table.epoch + 1
        self.table.adopt(other)
        self.log.restart(self.table.view)

    def watch(self, place: Place | None = None, *, life: int = 7, **wanted: Any) -> Watch:
        return Watch(self.log, self.order, life=life, wanted=Filter(**wanted), place=place)


def told(events: bytes) -> list[tuple[str | None, str, Any]]:
    """Return the id, the name and the data of each event."""
    found = []
    for block in events.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert set(lines) <= {"id", "event", "data"}
        found.append((lines.get("id"), lines["event"], json.loads(lines["data"])))
    return found


def look(of: Followed, watch: Watch, members: GroupMembers = MEMBERS) -> list[tuple[str | None, str, Any]]:
    """Return all events that the watch can send now."""
    events = finish(watch.look(of.table.view, members))
    while watch.is_telling:
        events += finish(watch.look(of.table.view, members))
    return told(events)


def names(events: list[tuple[str | None, str, Any]]) -> list[str]:
    return [name for _, name, _ in events]


class Knower:
    """A client's copy of the table, which is computed only from the events of a watch."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.brokers: dict[str, Any] = {}
        self.id: str | None = None

    def take(self, events: list[tuple[str | None, str, Any]]) -> None:
        for id_, name, data in events:
            if name == "reset":
                self.topics, self.brokers = set(), {}
            elif name == "topics":
                self.topics |= set(data["changed"])
                self.topics -= set(data["removed"])
            elif name == "brokers":
                self.brokers |= {broker["broker_addr"]: broker for broker in data["changed"]}
                for gone in data["removed"]:
                    self.brokers.pop(gone["broker_addr"], None)
            self.id = id_ or self.id


def test_begins_with_the_whole_state_and_then_tells_what_changes() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    one = of.watch()
    events = look(of, one)
    assert names(events) == ["members", "reset", "topics", "brokers", "complete"]
    assert [id_ for id_, _, _ in events] == [None] * 4 + ["7-0-1"]
    assert events[2][2]["changed"] == ["t1", "t2"]
    assert look(of, one) == []
    of.register("a", "t2", "t3")
    ((_, _, topics), (id_, _, brokers)) = look(of, one)
    assert (sorted(topics["changed"]), topics["removed"]) == (["t3"], ["t1"])
    assert [broker["index"] for broker in brokers["changed"]] == [2]
    assert id_ == "7-0-2"


def test_goes_on_behind_an_id_without_telling_anything_again() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    of.register("b", "t3", "t4")
    events = look(of, of.watch(Place(7, 0, 1), kinds=("topics",)))
    assert [data["changed"] for _, _, data in events] == [["t3", "t4"]]
    assert look(of, of.watch(Place(7, 0, 2), kinds=("topics",))) == []


@pytest.mark.parametrize(
    "place", [Place(8, 0, 1), Place(7, 1, 1), Place(7, 0, 0), Place(-1, -1, -1)], ids=str
)
def test_id_of_another_life_or_epoch_or_from_long_ago_gets_one_reset_and_the_state(place: Place) -> None:
    of = Followed(changes_max=2)
    for name in "abc":
        of.register(name, f"{name}1", f"{name}2")
    events = look(of, of.watch(place, kinds=("topics",)))
    assert names(events) == ["reset", "topics", "complete"]
    assert events[1][2]["changed"] == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_member_that_is_behind_an_id_tells_nothing_until_it_has_caught_up() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    one = of.watch(Place(7, 0, 2), kinds=("topics",))
    assert look(of, one) == []
    of.register("b", "t3", "t4")
    assert look(of, one) == []
    of.register("c", "t5", "t6")
    assert [data["changed"] for _, _, data in look(of, one)] == [["t5", "t6"]]


def test_one_that_wants_no_state_is_told_where_it_stands_and_then_changes() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    one = of.watch(kinds=("topics",), with_state=False)
    ((id_, name, data),) = look(of, one)
    assert (id_, name, data["index"]) == ("7-0-1", "reset", 1)
    of.register("a", "t1", "t2", "t3")
    assert [data["changed"] for _, _, data in look(of, one)] == [["t3"]]


def test_table_that_is_replaced_resets_those_who_watch_also_in_the_middle_of_the_state() -> None:
    of = Followed()
    topics = [f"t{number:05d}" for number in range(3 * STEP)]
    of.register("a", *topics)
    one = of.watch(kinds=("topics",))
    assert names(told(finish(one.look(of.table.view, MEMBERS)))) == ["reset"]
    assert names(told(finish(one.look(of.table.view, MEMBERS)))) == ["topics"], "a part of it"
    of.restart()
    assert names(look(of, one)) == ["reset", "complete"]


def test_filter_by_prefix_and_cluster() -> None:
    of = Followed()
    of.register("a", "orders-1", "bills-1")
    of.register("b", "orders-2", "bills-2", cluster_name=ClusterName("d"))
    one = of.watch(prefix="orders", cluster="d")
    events = {name: data for _, name, data in look(of, one)}
    assert events["topics"]["changed"] == ["orders-2"]
    assert [broker["cluster"] for broker in events["brokers"]["changed"]] == ["d"]
    of.register("a", "orders-1", "bills-1", "orders-3")
    of.register("b", "orders-2", "orders-3", cluster_name=ClusterName("d"))
    topics = [data for _, name, data in look(of, one) if name == "topics"]
    assert [(data["changed"], data["removed"]) for data in topics] == [(["orders-3"], [])]


def test_address_that_moves_names_the_broker_whose_topics_all_show_it() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    one = of.watch(Place(7, 0, 1))
    look(of, one)
    of.register("a", "t1", "t2", broker_addr="other:1", broker_id=1)
    assert [data["broker_names"] for _, name, data in look(of, one) if name == "topics"] == [["a"]]


def test_members_are_told_when_they_differ() -> None:
    of = Followed()
    one = of.watch(kinds=("members",))
    assert names(look(of, one)) == ["members", "reset", "complete"]
    assert look(of, one) == []
    other = GroupMembers(mode="raft", role="leader", term=2, leader="a:1", members=("a:1",), ready=True)
    ((id_, _, data),) = look(of, one, other)
    assert (id_, data["term"]) == (None, 2)


def test_many_changes_of_one_topic_are_told_once() -> None:
    of = Followed()
    one = of.watch(Place(7, 0, 0), kinds=("topics",))
    for _ in range(5):
        of.register("a", "t1", "t2")
        of.apply(DeleteTopic(topic="t1", cluster_name=None, topic_revision=of.table.revision))
    ((_, _, data),) = look(of, one)
    assert (data["changed"], data["removed"]) == (["t2"], ["t1"])


def test_change_of_the_kv_configuration_is_no_news() -> None:
    of = Followed()
    one = of.watch(Place(7, 0, 0), kinds=("topics", "brokers"))
    of.apply(PutKv(namespace="n", key="k", value="v", key_revision=0))
    assert look(of, one) == []
    assert of.log.changed_at == {Kind.TOPICS: 0, Kind.BROKERS: 0, Kind.KV: 1}


def test_large_change_is_told_in_parts_and_has_its_id_with_the_last_one() -> None:
    of = Followed()
    one = of.watch(Place(7, 0, 0), kinds=("topics",))
    topics = [f"t{number:05d}" for number in range(2 * watch.LOOK_MAX + 10)]
    of.register("a", *topics)
    first = told(finish(one.look(of.table.view, MEMBERS)))
    assert sum(len(data["changed"]) for _, _, data in first) == watch.LOOK_MAX
    assert first[-1][0] == "7-0-0"
    rest = look(of, one)
    assert rest[-1][0] == "7-0-1"
    changed = [topic for _, _, data in first + rest for topic in data["changed"]]
    assert sorted(changed) == topics


def test_one_step_deals_with_a_bounded_number_of_names() -> None:
    of = Followed()
    topics = [f"t{number:06d}" for number in range(40 * STEP)]
    one = of.watch(Place(7, 0, 0), kinds=("topics",))
    of.register("a", *topics)
    steps = one.look(of.table.view, MEMBERS)
    assert len(list(steps)) >= watch.LOOK_MAX // STEP
    assert len(list(of.order.catching_up())) >= 40


def test_pause_grows_with_the_names_that_were_looked_at() -> None:
    of = Followed()
    one = of.watch(kinds=("topics",), prefix="none")
    of.register("a", *[f"t{number:05d}" for number in range(10 * STEP)])
    look(of, one)
    # No topic begins with the prefix, so the watch has looked at no name, and its pause is the shortest.
    assert one.take_pause() == pytest.approx(watch.PAUSE_MIN_S)
    of.register("a", "other1", "other2")
    look(of, one)
    assert one.take_pause() > watch.PAUSE_MIN_S + 10 * STEP * watch.PAUSE_PER_NAME_S
    assert one.take_pause() == watch.PAUSE_MIN_S


def test_log_is_bounded_in_changes_and_in_names() -> None:
    of = Followed(changes_max=10, names_max=50)
    for number in range(30):
        of.register("a", f"t{number}", "u")
    kept = of.log.since(of.log.revision - 10)
    assert kept is not None
    assert len(kept) == 10
    assert of.log.since(of.log.revision - 11) is None
    of.register("b", *[f"n{number}" for number in range(60)])
    assert of.log.since(of.log.revision) == []
    assert of.log.since(of.log.revision - 1) is None, "one change above the bound is forgotten, too"


def test_change_that_was_not_followed_makes_what_was_before_unknown() -> None:
    of = Followed()
    of.register("a", "t1", "t2")
    assert isinstance(of.table.apply(eviction(of.table)), Applied)
    of.register("b", "t3", "t4")
    assert of.log.since(1) is None
    assert of.log.since(2) is not None
    assert set(of.log.changed_at.values()) == {3}


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans())
def test_who_follows_the_events_knows_the_table_whatever_happens(seed: int, forgets: bool) -> None:
    rng = Random(seed)
    of = Followed(changes_max=3 if forgets else 1000)
    knower = Knower()
    one = of.watch()
    for _ in range(30):
        match rng.randrange(6):
            case 0 | 1 | 2:
                name = rng.choice("abc")
                of.register(name, *{f"{name}{rng.randrange(6)}" for _ in range(4)}, "shared")
            case 3:
                name = rng.choice("abc")
                if of.table.view.name(name) is not None:
                    of.apply(eviction(of.table, name))
            case 4:  # the client loses its connection and reconnects
                one = of.watch(None if knower.id is None else Place.read(knower.id))
            case _:
                if not rng.randrange(10):
                    of.restart()
        if rng.randrange(2):
            steps: Generator[None, None, bytes] = one.look(of.table.view, MEMBERS)
            knower.take(told(finish(steps)))
    knower.take(look(of, one))
    assert sorted(knower.topics) == of.table.view.topics()
    records = {record.broker.broker_addr: record.revision for record in of.table.view.records()}
    assert {addr: broker["index"] for addr, broker in knower.brokers.items()} == records


@pytest.mark.parametrize("text", ["", "1-2", "1-2-3-4", "a-b-c", "1-2-" + "9" * 19, "-1-0-0", "1-2-\u0663"])
def test_text_that_is_no_id_names_no_place(text: str) -> None:
    assert Place.read(text) is None


@pytest.mark.parametrize("size", [0, 1, STEP, STEP + 1, 3 * STEP + 7, MERGE_MAX + 5 * STEP])
def test_sorting_in_steps_sorts(size: int) -> None:
    shuffled = [f"{number:06d}" for number in range(size)]
    Random(1).shuffle(shuffled)
    assert finish(sorting(shuffled)) == sorted(shuffled)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=30), st.text("ab", max_size=2))
def test_order_is_that_of_the_table_after_any_changes(changes: list[tuple[str, bool]], prefix: str) -> None:
    of = Followed(names_max=40)
    for number, (letter, stays) in enumerate(changes):
        of.register(letter, *(f"{letter}{one}" for one in (range(9) if stays else (1,))), letter)
        if number % 3 == 0:
            finish(of.order.catching_up())
    finish(of.order.catching_up())
    topics = of.table.view.topics()
    assert of.order.names() == topics
    assert list(of.order.after(None, prefix)) == [topic for topic in topics if topic.startswith(prefix)]
    for after in ("", "a", "a5", "b", "zz"):
        expected = [topic for topic in topics if topic > after and topic.startswith(prefix)]
        assert list(of.order.after(after, prefix)) == expected


def test_order_keeps_its_blocks_small() -> None:
    of = Followed()
    finish(of.order.catching_up())
    for number in range(10):
        of.register(f"b{number}", *(f"{one * 10 + number:06d}" for one in range(STEP)))
        finish(of.order.catching_up())
    assert max(map(len, of.order._blocks)) <= 2 * STEP
    assert of.order.names() == of.table.view.topics()
