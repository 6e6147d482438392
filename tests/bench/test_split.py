"""The events of one cluster are split by scenario, and each event goes to its scenario's folder.

A scenario also gets the facts from earlier scenarios that are still true.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from routekeeper.bench.events import Delivery, Event, Operation, Truth, View, event_files
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.split import Slot, placed, split


def slots(root: Path) -> list[Slot]:
    found = []
    for name, begin_ns in (("quiet", 100), ("broker-dies", 200), ("partition", 300)):
        (root / name).mkdir(exist_ok=True)
        found.append(Slot(scenario=name, folder=root / name, begin_ns=begin_ns, end_ns=begin_ns + 100))
    return found


def an_operation(due_ns: int) -> Operation:
    return Operation(op="lookup", user=0, due_ns=due_ns, sent_ns=due_ns, done_ns=due_ns + 500, outcome="ok")


def a_view(seen_ns: int, brokers: list[int]) -> View:
    return View(
        observer="client",
        index=0,
        topic="T",
        state="routed",
        brokers=brokers,
        unseen_ns=seen_ns - 5,
        seen_ns=seen_ns,
    )


def test_event_goes_to_the_run_that_holds_its_instant(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    with EventLog(spool, "generator-0") as log:
        for due_ns in (50, 100, 199, 200, 299, 300, 399, 400):
            log.record(an_operation(due_ns))
    split(spool, slots(tmp_path))

    def due(name: str) -> list[int]:
        (path,) = event_files(tmp_path / name, Operation)
        assert path.name == "ops-generator-0.jsonl"
        return [msgspec.json.decode(line, type=Operation).due_ns for line in path.read_bytes().splitlines()]

    assert due("quiet") == [50, 100, 199]
    assert due("broker-dies") == [200, 299]
    assert due("partition") == [300, 399]


def test_run_begins_with_the_views_that_hold_then(tmp_path: Path) -> None:
    events: list[Event] = [a_view(110, [0, 1]), a_view(150, [0]), a_view(310, [0, 1])]
    found = list(placed(events, slots(tmp_path)))
    assert [(place, event.seen_ns, event.brokers) for place, event in found if isinstance(event, View)] == [
        (0, 110, [0, 1]),
        (0, 150, [0]),
        (1, 200, [0]),
        (2, 300, [0]),
        (2, 310, [0, 1]),
    ]
    assert [event.unseen_ns for _, event in found if isinstance(event, View)] == [105, 145, None, None, 305]


def test_run_begins_with_who_lives_and_who_does_not(tmp_path: Path) -> None:
    events: list[Event] = [
        Truth(subject="broker", broker=0, what="up", t_ns=10),
        Truth(subject="broker", broker=1, what="up", t_ns=11),
        Truth(subject="broker", broker=1, what="down", t_ns=250),
        Truth(subject="topic", broker=100, topic="T", what="changing", version=2, t_ns=120),
    ]
    spool = tmp_path / "spool"
    spool.mkdir()
    with EventLog(spool, "harness") as log:
        for event in events:
            log.record(event)
    split(spool, slots(tmp_path))
    told = [
        (place, event.broker, event.what, event.t_ns)
        for place, slot in enumerate(slots(tmp_path))
        for path in event_files(slot.folder, Truth)
        for line in path.read_bytes().splitlines()
        for event in [msgspec.json.decode(line, type=Truth)]
    ]
    assert told == [
        (0, 0, "up", 10),
        (0, 1, "up", 11),
        (0, 100, "changing", 120),
        (1, 0, "up", 200),
        (1, 1, "up", 200),
        (1, 1, "down", 250),
        (2, 0, "up", 300),
        (2, 1, "down", 300),
    ]


def test_view_that_ended_holds_no_longer(tmp_path: Path) -> None:
    end = View(observer="client", index=0, topic="T", state="end", seen_ns=180)
    found = list(placed([a_view(110, [0]), end], slots(tmp_path)))
    assert [place for place, _ in found] == [0, 0]


def test_last_change_before_the_end_is_kept(tmp_path: Path) -> None:
    found = list(placed([a_view(110, [0]), a_view(399, [])], slots(tmp_path)))
    place, event = found[-1]
    assert isinstance(event, View)
    assert (place, event.seen_ns, event.brokers) == (2, 399, [])


def test_what_was_sent_last_may_be_read_after_the_end(tmp_path: Path) -> None:
    read = [Delivery(message=7, user=0, t_ns=t_ns) for t_ns in (390, 450)]
    assert [
        (place, event.t_ns) for place, event in placed(read, slots(tmp_path)) if isinstance(event, Delivery)
    ] == [
        (2, 390),
        (2, 450),
    ]


def test_last_change_is_kept_when_it_is_seen_after_the_end(tmp_path: Path) -> None:
    found = list(placed([a_view(110, [0]), a_view(430, [])], slots(tmp_path)))
    place, event = found[-1]
    assert isinstance(event, View)
    assert (place, event.seen_ns, event.brokers) == (2, 430, [])


def test_file_without_events_is_no_obstacle(tmp_path: Path) -> None:
    assert list(placed([], slots(tmp_path))) == []
