"""``mqbench scale`` kills and restarts any number of servers in the right order and at the right times.

It also counts correctly for how long changes, answers and messages failed.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from routekeeper.bench.events import Operation
from routekeeper.bench.scale.groups import restart_order
from routekeeper.bench.scale.number import Sending, next_lost, phase_s, unbroken
from routekeeper.bench.scale.points import PERIOD_S, ROUNDS, tried_s
from routekeeper.bench.scale.probes import Trying
from routekeeper.bench.wires.wire import WireError
from tests.waiting import wait_until


def test_leader_is_killed_and_without_a_leader_any_server_that_is_left() -> None:
    assert next_lost([0, 2, 3], 2, random.Random(1)) == 2
    assert {next_lost([0, 2, 3], None, random.Random(seed)) for seed in range(50)} == {0, 2, 3}
    assert next_lost([0], 2, random.Random(1)) == 0, "a server that is down leads no more"


def test_leader_restarts_last() -> None:
    assert restart_order(5, 1) == [0, 2, 3, 4, 1]
    assert restart_order(3, None) == [0, 1, 2]


@pytest.mark.parametrize(
    ("successes", "count"),
    [([True, True], 2), ([True, False, True], 1), ([False, True], 0), ([], 0)],
    ids=["all", "a miss before a hit", "a miss at first", "no kill"],
)
def test_servers_may_be_down_only_up_to_the_first_miss(successes: list[bool], count: int) -> None:
    assert unbroken(successes) == count


@pytest.mark.parametrize(
    ("servers", "down", "seconds"), [(3, 1, 12), (3, 2, 8), (5, 2, 12), (5, 3, 8), (4, 2, 8), (7, 3, 12)]
)
def test_change_has_longer_while_a_majority_lives(servers: int, down: int, seconds: float) -> None:
    assert tried_s(servers, down) == seconds


def test_rounds_return_at_different_times_before_the_next_registration() -> None:
    assert [phase_s(number) for number in range(1, ROUNDS + 1)] == [5.0, 15.0, 25.0]
    assert all(0 < phase_s(number) < PERIOD_S for number in range(1, 6))


def test_messages_count_from_the_start_of_the_servers_on() -> None:
    recorded: list[Operation] = []

    def send() -> None:
        if len(recorded) < 3:
            raise OSError("no route")

    sending = Sending(send, recorded.append)
    with sending.meanwhile() as after:
        wait_until(lambda: len(recorded) >= 5, "five messages are sent")
    sent, failed = after()
    assert (sent, failed) == (len(recorded), 3)
    assert sending.for_s(0.1) == (2, 0)


def test_gap_goes_on_until_a_success_after_the_restarts() -> None:
    works = threading.Event()

    def act(turn: int) -> None:
        if not works.is_set():
            raise WireError("no right answer")

    trying = Trying(act)
    ended = time.perf_counter()
    works.set()
    wait_until(lambda: trying.succeeded_after(ended), "a right answer")
    works.clear()
    assert not trying.succeeded_after(time.perf_counter() + 1.0)
    trying.stop()
