"""The line of a process's work: lone short tasks cost no callback, and many of them end at the slice."""

from __future__ import annotations

from collections.abc import Callable

from routekeeper.nameserver.modes.line import SLICE_S, UNCHECKED_S, Line
from routekeeper.remoting.steps import Steps


class Loop:
    """A clock that work moves, and callbacks that run when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.line = Line(clock=lambda: self.now, call_soon=self.soon.append)

    def work(self, name: str, took_s: float) -> Steps[str]:
        self.now += took_s
        self.done.append(name)
        return name
        yield

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
