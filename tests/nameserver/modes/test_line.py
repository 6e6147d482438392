"""Tests of `Line`, the queue of the tasks of a nameserver.

A single short task runs at once, without a callback of the event loop. If many tasks are in the queue, they
stop at the end of a time slice, and a callback of the event loop continues them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from routekeeper.nameserver.modes.line import SLICE_S, UNCHECKED_S, Line
from routekeeper.remoting.steps import Steps


class Loop:
    """A queue with its event loop: a clock that the tasks advance, and callbacks that the test calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.results: list[str] = []
        self.line = Line(clock=lambda: self.now, call_soon=self.soon.append)

    def work(self, name: str, took_s: float) -> Steps[str]:
        self.now += took_s
        self.done.append(name)
        return name
        yield

    def long(self, name: str) -> Steps[str]:
        """Return a task that needs two time slices."""
        for _ in range(2):
            self.now += SLICE_S
            yield
        self.done.append(name)
        return name

    def add(self, name: str, **more: Any) -> None:
        """Add a long task whose result will be appended to `results`."""
        assert self.line.run(self.long(name), self.results.append, **more) is None

    def all_done(self) -> list[str]:
        """Call the callbacks until no task and no callback remains; return all results."""
        while len(self.line) or self.soon:
            self.come_round()
        return self.results

    def come_round(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()


def test_a_lone_short_piece_schedules_nothing() -> None:
    loop = Loop()
    assert loop.line.run(loop.work("a", UNCHECKED_S / 2), print) == "a"
    assert not loop.soon


def test_many_short_pieces_in_one_round_make_room_after_a_slice_and_keep_their_order() -> None:
    loop = Loop()
    later: list[str] = []
    pieces = [f"piece {number}" for number in range(100)]
    at_once = [loop.line.run(loop.work(name, SLICE_S / 40), later.append) for name in pieces]
    assert 40 <= 100 - at_once.count(None) <= 42
    assert loop.now <= SLICE_S * 42 / 40
    while len(loop.line):
        before = loop.now
        loop.come_round()
        assert loop.now - before <= SLICE_S * 42 / 40
    assert loop.done == pieces
    assert [*filter(None, at_once), *later] == pieces


def test_a_round_that_has_come_gives_a_whole_slice_again() -> None:
    loop = Loop()
    for name in map(str, range(100)):
        loop.line.run(loop.work(name, SLICE_S / 40), lambda _: None)
        if loop.soon:
            loop.come_round()
    assert not len(loop.line)


def test_hosts_take_turns_and_senders_within_a_host() -> None:
    loop = Loop()
    for sender in "abc":
        for turn in "12":
            loop.add(f"many {sender}{turn}", sender=sender, host="many")
    for turn in "12":
        loop.add(f"one {turn}", sender="x", host="one")
    assert loop.all_done() == [
        *("many a1", "one 1", "many b1", "one 2"),
        *("many c1", "many a2", "many b2", "many c2"),
    ]


def test_late_host_waits_for_one_task_of_each_other_host() -> None:
    loop = Loop()
    for sender in range(100):
        loop.add(f"{sender}", sender=sender, host="many")
    loop.come_round()
    loop.add("late", sender="x", host="one")
    assert loop.all_done().index("late") == 1


def test_tasks_of_a_sender_keep_their_order_with_other_hosts() -> None:
    loop = Loop()
    loop.add("first", sender="a", host="many")
    loop.add("second", sender="a")
    loop.add("other", sender="b")
    assert loop.all_done() == ["first", "other", "second"]


def test_sender_that_leaves_takes_its_tasks_along_except_those_that_must_run() -> None:
    loop = Loop()
    loop.add("under way", sender="a", otherwise="dropped")
    for number in range(3):
        loop.add(f"waits {number}", sender="a", otherwise=f"dropped {number}")
    loop.add("must run", sender="a")
    loop.add("other", sender="b", otherwise="never")
    loop.line.leave("a")
    loop.line.leave("unknown")
    loop.add("end", sender="a")
    assert loop.all_done() == [*(f"dropped {n}" for n in range(3)), "under way", "other", "must run", "end"]
    assert loop.done == ["under way", "other", "must run", "end"]


def test_sender_of_dropped_tasks_alone_is_forgotten() -> None:
    loop = Loop()
    loop.add("other", sender="b")
    loop.add("waits", sender="a", host="h", otherwise="dropped")
    assert len(loop.line) == 2
    loop.line.leave("a")
    assert len(loop.line) == 1
    assert loop.all_done() == ["dropped", "other"]
    assert not loop.line.waiting


def test_task_is_dropped_when_its_time_is_over_before_its_turn() -> None:
    loop = Loop()
    loop.add("first", sender="a", otherwise="never", until=loop.now + SLICE_S)
    loop.add("late", sender="b", otherwise="dropped", until=loop.now)
    loop.add("again", sender="b", otherwise="never", until=loop.now + 100 * SLICE_S)
    loop.come_round()
    loop.line.leave("c")
    assert loop.results == ["dropped"]
    assert loop.all_done() == ["dropped", "first", "again"]
    assert not len(loop.line)


def test_many_dropped_tasks_are_answered_in_slices() -> None:
    loop = Loop()
    count = 100

    def answer(result: str) -> None:
        loop.now += SLICE_S / 20
        loop.results.append(result)

    loop.add("first", sender="a")
    for number in range(count):
        loop.line.run(loop.long("never"), answer, sender="b", otherwise=f"{number}")
    loop.line.leave("b")
    assert not loop.results
    loop.come_round()
    assert 19 <= len(loop.results) <= 22
    assert loop.all_done() == [*map(str, range(count)), "first"]
