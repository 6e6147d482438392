"""Request 308 compares all groups of a topic in steps, so that other requests have their turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.state import BrokerState, Call, Stepwise
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in
from tests.cost import TRIES

GROUPS, QUEUES = 30_000, 8
TURN_S = 0.05


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    made = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield made
    made.store.log.close()


@pytest.mark.slow
def test_comparing_many_groups_leaves_turns_to_others(state: BrokerState) -> None:
    for group in range(GROUPS):
        for queue_id in range(QUEUES):
            state.offsets.commit("T", f"G{group}", queue_id, 100 + group)
    for queue_id in range(QUEUES):
        state.offsets.commit("T", "Compared", queue_id, 50)
    request = RemotingCommand.request(
        308, {"topic": "T", "compareGroup": "Compared", "filterGroups": "Compared"}
    )
    call = Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0)
    longest = []
    for _ in range(TRIES):  # the same turn is too long each time, if it is so by itself
        outcome, turns = in_turns(state, call)
        longest.append(turns)
        if max(turns) < TURN_S:
            break
    assert max(min(same) for same in zip(*longest, strict=True)) < TURN_S
    pairs = b",".join(b"%d:%d" % (queue_id, 2**63 - 1) for queue_id in range(QUEUES))
    assert outcome.body == b'{"correctionOffsets":{' + pairs + b"}}"


def in_turns(state: BrokerState, call: Call) -> tuple[RemotingCommand, list[float]]:
    """Serve a request; return its answer and how much processor time in s each turn took."""
    turns = []
    begun = time.thread_time()
    outcome = serve(state, call)
    while isinstance(outcome, Stepwise):
        try:
            step = next(outcome.work)
        except StopIteration as end:
            outcome = end.value
        else:
            turns.append(time.thread_time() - begun)
            step()
            begun = time.thread_time()
    turns.append(time.thread_time() - begun)
    assert isinstance(outcome, RemotingCommand)
    return outcome, turns
