"""Tests that connections get turns (time slices) in a fair order while many brokers register.

The clock is simulated.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.remoting.transport.turns import TURN_S, Turns


class Poll:
    """A simulated event loop: its clock, and the callbacks for its next iteration.

    The clock advances only when a request is handled or when a test adds time.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: list[Callable[[], None]] = []
        self.turns = Turns(clock=lambda: self.now, call_soon=self._soon.append)

    def come_round(self) -> bool:
        """Run the waiting callbacks; return True if there were any."""
        soon = self._soon[:]
        self._soon.clear()
        for callback in soon:
            callback()
        return bool(soon)


class Peer:
    """One connection whose requests each occupy the loop for ``takes_s`` seconds."""

    def __init__(
        self, poll: Poll, seen: list[str], name: str, *, takes_s: float, request_bytes: int = 65_000
    ) -> None:
        self.cost_s = 0.0
        self.host = name
        self.left = 0
        self._poll, self._seen, self._name, self._takes_s = poll, seen, name, takes_s
        self._request_bytes = request_bytes
        self._queued = False

    @property
    def size(self) -> int:
        return self.left * self._request_bytes

    def receive(self, count: int) -> None:
        self.left += count
        if not self._queued:
            self._look()

    def go_on(self) -> None:
        self._queued = False
        self._look()

    def _look(self) -> None:
        turns = self._poll.turns
        if turns.begin():
            while self.left:
                self._poll.now += self._takes_s
                self._seen.append(self._name)
                self.left -= 1
                if turns.over():
                    break
            turns.end(self)
        if self.left:
            self._queued = True
            turns.wait(self)


def test_requests_of_one_poll_share_one_turn_however_long_reading_takes_between_them() -> None:
    poll, seen = Poll(), list[str]()
    for number in range(53):
        Peer(poll, seen, f"b{number}", takes_s=0.51 * TURN_S).receive(1)
        poll.now += 0.002  # the loop copies bytes of other sockets meanwhile
    assert len(seen) <= 2
    rounds = 0
    while poll.come_round():
        rounds += 1
    assert len(seen) == 53
    assert rounds >= 53 / 2


def test_a_small_request_goes_before_large_ones_of_peers_that_have_cost_less() -> None:
    poll, seen = Poll(), list[str]()
    asker = Peer(poll, seen, "asks", takes_s=0.000_1, request_bytes=200)
    asker.cost_s = 10.0
    brokers = [Peer(poll, seen, f"b{number}", takes_s=4 * TURN_S) for number in range(40)]
    for broker in brokers:
        broker.receive(1)
    asker.receive(1)
    assert seen == ["b0"]
    poll.come_round()
    assert seen[1] == "asks"


@pytest.mark.parametrize(("takes_s", "rounds_max"), [(2 * TURN_S, 20), (TURN_S / 13, 5)])
def test_large_requests_are_served_although_small_ones_never_cease(takes_s: float, rounds_max: int) -> None:
    poll, seen = Poll(), list[str]()
    count = 20
    brokers = [Peer(poll, seen, f"b{number}", takes_s=takes_s) for number in range(count)]
    askers = [Peer(poll, seen, "asks", takes_s=TURN_S / 10, request_bytes=200) for _ in range(30)]
    for asker in askers:
        asker.receive(1)
    for broker in brokers:
        broker.receive(1)
    rounds = 0
    while any(broker.left for broker in brokers):
        assert poll.come_round()
        rounds += 1
        assert rounds <= rounds_max
        for asker in askers:
            asker.receive(1)  # together 30 small requests, more than fit into one turn
    assert seen.count("asks") >= 5 * rounds, "small ones have half of each turn"
    assert any(asker.left for asker in askers), "they never ceased"
