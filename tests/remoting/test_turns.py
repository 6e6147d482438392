"""Tests of the length and order of turns (time slices) on the loop, with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.remoting.transport.turns import TURN_S, Turns


class Loop:
    """A fake event loop: it runs callbacks, and its clock moves only when a test's request takes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: list[Callable[[], None]] = []

    def clock(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def come_round(self) -> bool:
        """Run the waiting callbacks; return True if there were any."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        return bool(soon)


class Asker:
    """A connection whose requests each occupy the loop for ``takes_s`` seconds."""

    def __init__(
        self,
        loop: Loop,
        turns: Turns,
        name: str,
        seen: list[str],
        *,
        takes_s: float,
        host: str = "here",
        request_bytes: int = 100,
    ) -> None:
        self.cost_s = 0.0
        self.host = host
        self._request_bytes = request_bytes
        self._loop, self._turns, self._name, self._seen, self._takes_s = loop, turns, name, seen, takes_s
        self._left = 0
        self._queued = False

    def ask(self, count: int) -> None:
        self._left += count
        if not self._queued:
            self._look()

    def go_on(self) -> None:
        self._queued = False
        self._look()

    @property
    def size(self) -> int:
        return self._left * self._request_bytes

    def _look(self) -> None:
        if self._turns.begin():
            while self._left:
                self._loop.now += self._takes_s
                self._seen.append(self._name)
                self._left -= 1
                if self._turns.over():
                    break
            self._turns.end(self)
        if self._left:
            self._queued = True
            self._turns.wait(self)


def made() -> tuple[Loop, Turns, list[str], list[float]]:
    loop, idle_at = Loop(), list[float]()
    turns = Turns(clock=loop.clock, call_soon=loop.call_soon, idle=lambda: idle_at.append(loop.now))
    return loop, turns, [], idle_at


def test_one_who_asks_much_gives_the_loop_back_after_each_turn() -> None:
    loop, turns, seen, idle_at = made()
    much = Asker(loop, turns, "much", seen, takes_s=0.26 * TURN_S)
    much.ask(10)
    per_turn = [len(seen)]
    while loop.come_round():
        per_turn.append(len(seen) - sum(per_turn))
    assert per_turn == [4, 4, 2, 0], "nobody waits any more when the loop comes round last"
    assert len(idle_at) == 1
    assert turns.waiting == 0


def test_one_who_asks_little_waits_for_one_turn_however_many_ask_much() -> None:
    loop, turns, seen, _ = made()
    hostile = [Asker(loop, turns, "much", seen, takes_s=2 * TURN_S) for _ in range(16)]
    for one in hostile:
        one.ask(50)
    for _ in range(40):
        loop.come_round()
    little = Asker(loop, turns, "little", seen, takes_s=TURN_S / 100)
    begun = len(seen)
    little.ask(1)  # the request arrives between two turns; the previous turn has used its whole time slice
    loop.come_round()
    assert seen[begun] == "little"


def test_a_short_first_request_does_not_wait_for_the_first_requests_of_those_who_come_with_much() -> None:
    """All requests arrive at once, so no connection has used time of the loop yet.

    Even so, only one large request may be handled before the small request.
    """
    loop, turns, seen, _ = made()
    hostile = [Asker(loop, turns, "much", seen, takes_s=4 * TURN_S, request_bytes=65_000) for _ in range(16)]
    little = Asker(loop, turns, "little", seen, takes_s=TURN_S / 100)
    for one in (*hostile, little):
        turns.came(one)
        one.ask(5)
    while "little" not in seen:
        assert loop.come_round()
    assert seen.index("little") == 1  # only one large request was handled before the small request


def test_who_comes_behind_others_is_let_in_before_they_get_their_turns() -> None:
    """A new connection must not wait for the turns of all connections that came before it.

    A listener accepts only one connection in each iteration of the loop. In this test, 16 connections with
    large requests come first, one in each iteration.
    """
    loop, turns, seen, _ = made()
    hostile = [Asker(loop, turns, "much", seen, takes_s=4 * TURN_S) for _ in range(16)]
    for one in hostile:
        turns.came(one)
        one.ask(10)
        loop.come_round()
    little = Asker(loop, turns, "little", seen, takes_s=TURN_S / 100, host="there")
    turns.came(little)
    before = len(seen)
    assert before == 1
    little.ask(1)
    while "little" not in seen:
        assert loop.come_round()
    assert len(seen) - before <= 2


def test_those_who_come_without_end_do_not_keep_others_from_their_turns() -> None:
    loop, turns, seen, _ = made()
    asker = Asker(loop, turns, "a", seen, takes_s=2 * TURN_S)
    asker.ask(3)
    for number in range(200):
        turns.came(Asker(loop, turns, "comes", seen, takes_s=TURN_S, host=f"h{number}"))
        loop.come_round()
    assert seen == ["a", "a", "a"]


@pytest.mark.parametrize("hosts", ["192.0.2.1", "2001:db8::{:x}"], ids=["a host", "a network"])
def test_who_comes_again_and_again_does_not_go_first_each_time(hosts: str) -> None:
    """A client that opens a new connection for each request is not served sooner than with one connection."""
    loop, turns, seen, _ = made()
    stays = [
        Asker(loop, turns, "stays", seen, takes_s=2 * TURN_S, host=f"h{n}", request_bytes=40)
        for n in range(4)
    ]
    for one in stays:
        one.ask(100)
    for number in range(100):
        comes = Asker(loop, turns, "comes again", seen, takes_s=2 * TURN_S, host=hosts.format(number))
        turns.came(comes)
        before = len(seen)
        comes.ask(1)
        while "comes again" not in seen[before:]:
            assert loop.come_round()
        turns.left(comes)
    assert seen.count("comes again") <= seen.count("stays") / 3


def test_what_was_asked_in_quiet_times_is_held_against_nobody() -> None:
    loop, turns, seen, _ = made()
    old = Asker(loop, turns, "old", seen, takes_s=TURN_S / 10)
    for _ in range(10_000):
        old.ask(1)
        loop.come_round()
        loop.now += 1.0
    for number in range(16):
        Asker(loop, turns, "new", seen, takes_s=2 * TURN_S, host=f"h{number}").ask(50)
    for _ in range(20):
        loop.come_round()
    begun = len(seen)
    old.ask(1)
    for _ in range(2):
        loop.come_round()
    assert "old" in seen[begun:]


def test_hosts_that_are_remembered_are_bounded() -> None:
    loop, turns, seen, _ = made()
    for number in range(5000):
        one = Asker(loop, turns, "x", seen, takes_s=TURN_S, host=f"h{number}")
        turns.came(one)
        one.cost_s += 1.0
        turns.left(one)
    assert len(turns._gone) <= 1024


def test_those_who_ask_much_share_what_there_is_by_what_it_costs() -> None:
    loop, turns, seen, _ = made()
    dear = Asker(loop, turns, "dear", seen, takes_s=4 * TURN_S)
    cheap = Asker(loop, turns, "cheap", seen, takes_s=TURN_S / 2)
    dear.ask(1000)
    cheap.ask(1000)
    for _ in range(100):
        loop.come_round()
    assert abs(dear.cost_s - cheap.cost_s) <= 4 * TURN_S


def test_who_comes_after_a_pause_is_served_at_once() -> None:
    loop, turns, seen, _ = made()
    asker = Asker(loop, turns, "a", seen, takes_s=2 * TURN_S)
    asker.ask(1)
    assert loop.come_round()
    assert not loop.come_round()
    asker.ask(1)
    assert seen == ["a", "a"]


def test_short_lone_requests_cost_no_callback_each() -> None:
    loop, turns, seen, _ = made()
    asker = Asker(loop, turns, "a", seen, takes_s=TURN_S / 100)
    callbacks = 0
    for _ in range(100):
        asker.ask(1)
        loop.now += 1.0
        callbacks += loop.come_round()
    assert len(seen) == 100
    assert 0 < callbacks <= 10


def test_no_more_tasks_are_begun_in_a_turn_than_it_can_hold_of_what_they_cost() -> None:
    loop, turns, _, _ = made()
    asker = Asker(loop, turns, "a", [], takes_s=0.0)

    def begun_in_one_turn(body_bytes: int = 0) -> int:
        count = 0
        loop.come_round()
        loop.now += 1.0
        assert turns.begin()
        while not turns.over() and count < 1000:
            turns.task(body_bytes)
            count += 1
        turns.end(asker)
        return count

    assert begun_in_one_turn() == 15
    assert begun_in_one_turn(body_bytes=1_000) == 11
    assert begun_in_one_turn(body_bytes=65_000) == 1
    turns.task_begins()
    loop.now += 2 * TURN_S
    turns.task_ends(asker)
    assert begun_in_one_turn() == 1
    for _ in range(100):
        turns.task_begins()
        loop.now += TURN_S / 100
        turns.task_ends(asker)
    assert begun_in_one_turn() > 50
