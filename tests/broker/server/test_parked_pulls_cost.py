"""Waiting pulls have a bounded cost, even if a client sends any number of pulls with any content."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from routekeeper.broker.requests.pulling import Park, pull_message
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.server.waiting_pulls import ANSWERED_BYTES, LOOKS_MAX, WaitingPulls
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.long_polling import ParkedPulls
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig
from tests.broker.server.test_pull_shares import FIELDS
from tests.broker.states import HOST, NOW, state_in
from tests.cost import TRIES, least_cpu_s, on_this_machine


def test_many_pulls_of_one_queue_leave_quickly_with_their_connection() -> None:
    count = 40_000

    def full() -> Callable[[], int]:
        parked: ParkedPulls[int] = ParkedPulls()
        for number in range(count):
            parked.park(number, owner=1, topic="T", queue_id=0, deadline=10.0)

        def drop() -> int:
            dropped = parked.drop(1)
            assert dropped == count
            return dropped

        return drop

    allowed = on_this_machine(1.0)
    assert least_cpu_s(full, below=allowed) < allowed


COUNT = 3 * LOOKS_MAX + 1


def park_all(state: BrokerState, waiting: WaitingPulls, *, deadline: float) -> None:
    for number in range(COUNT):
        request = RemotingCommand.request(11, FIELDS).with_opaque(number)
        peer = Host("192.0.2.7", 4711)
        found = pull_message(state, Call(request=request, connection=1, peer=peer, now_ms=NOW, now=0.0))
        assert isinstance(found, Park)
        assert waiting.park(found.pull, deadline=deadline)


async def answered_by_turn(answered: list[int]) -> list[int]:
    """Return the total of answered pulls after each iteration of the event loop."""
    turns = [0]
    while turns[-1] < COUNT and len(turns) < 1000:
        await asyncio.sleep(0)
        turns.append(len(answered))
    return turns


def largest_step(turns: list[int]) -> int:
    return max(after - before for before, after in itertools.pairwise(turns))


def waiting_in(state: BrokerState, answered: list[int]) -> WaitingPulls:
    delay = cast(DelayService, None)  # unused: no pull is for the schedule topic
    return WaitingPulls(state, delay=delay, send=lambda _, answer: answered.append(answer.opaque))


def test_a_message_that_many_wait_for_leaves_the_loop_to_others(state: BrokerState) -> None:
    answered: list[int] = []

    async def main() -> list[int]:
        waiting = waiting_in(state, answered)
        park_all(state, waiting, deadline=asyncio.get_running_loop().time() + 60.0)
        message = Draft(topic="T", queue_id=0, body=b"", properties="", tags_code=0, born_host=HOST)
        state.store.put(message, now_ms=NOW)
        waiting.arrived({("T", 0)})
        turns = await answered_by_turn(answered)
        waiting.end()
        return turns

    turns = asyncio.run(main())
    assert turns[-1] == COUNT
    assert largest_step(turns) <= LOOKS_MAX
    assert answered == list(range(COUNT)), "those first that wait longest"


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_pulls_that_end_at_the_same_instant_leave_the_loop_to_others(
    state: BrokerState, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    answered: list[int] = []

    async def main() -> list[int]:
        waiting = waiting_in(state, answered)
        park_all(state, waiting, deadline=asyncio.get_running_loop().time())
        return await answered_by_turn(answered)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        turns = runner.run(main())
    assert answered == list(range(COUNT)), "each pull is answered once"
    assert largest_step(turns) <= LOOKS_MAX


@pytest.mark.parametrize("ends", [False, True], ids=["a message arrives", "the time is over"])
def test_pulls_that_get_large_messages_leave_the_loop_to_others(tmp_path: Path, ends: bool) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name="T"), log_file_size=8 << 20)
    size = 300 << 10
    answered: list[int] = []

    async def main() -> list[int]:
        waiting = waiting_in(state, answered)
        at = asyncio.get_running_loop().time()
        park_all(state, waiting, deadline=at if ends else at + 60.0)
        message = Draft(topic="T", queue_id=0, body=bytes(size), properties="", tags_code=0, born_host=HOST)
        state.store.put(message, now_ms=NOW)
        if not ends:
            waiting.arrived({("T", 0)})
        turns = await answered_by_turn(answered)
        waiting.end()
        return turns

    turns = asyncio.run(main())
    state.store.log.close()
    assert answered == list(range(COUNT))
    assert largest_step(turns) <= ANSWERED_BYTES // size + 1


def test_deletion_of_a_topic_with_many_queues_leaves_the_loop_to_others(state: BrokerState) -> None:
    """Check that the search of a deleted topic for held pulls occupies the event loop only briefly.

    The broker searches all queues of the topic, and most of these queues have no held pull.
    """
    queues = {("Wide", queue_id) for queue_id in range(QUEUE_NUMS_MAX)}

    async def longest_turn_s() -> float:
        waiting = waiting_in(state, [])
        waiting.arrived(queues)
        longest_s = 0.0
        for _ in range(2 * QUEUE_NUMS_MAX // LOOKS_MAX):
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - begun)
        return longest_s

    # To search all queues in a single step would take 20 ms. With a plain dict, the search would take
    # seconds, because Python finds a dict's first key only after all keys that were removed before.
    assert min(asyncio.run(longest_turn_s()) for _ in range(TRIES)) < on_this_machine(0.01)
