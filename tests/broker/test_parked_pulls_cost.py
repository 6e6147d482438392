"""The cost of pulls that wait, however many a stranger sends and whatever comes with them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.long_polling import ParkedPulls
from routekeeper.broker.pulling import Park, pull_message
from routekeeper.broker.state import BrokerState, Call
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig

from .states import NOW, state_in


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    made = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield made
    made.store.log.close()


@pytest.mark.xfail(strict=True, reason="each pull that leaves is searched for among all of its queue")
def test_many_pulls_of_one_queue_leave_quickly_with_their_connection() -> None:
    parked: ParkedPulls[int] = ParkedPulls()
    count = 40_000
    for number in range(count):
        parked.park(number, owner=1, topic="T", queue_id=0, deadline=10.0)
    begun = time.process_time()
    assert parked.drop(1) == count
    assert time.process_time() - begun < 1.0


@pytest.mark.xfail(strict=True, reason="a pull that waits keeps its request, with a body of up to 16 MiB")
def test_pull_that_waits_keeps_nothing_of_its_body(state: BrokerState) -> None:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "suspendTimeoutMillis": "10000",
        "subscription": "*",
    }

    def outcome(number: int) -> object:
        request = RemotingCommand.request(11, fields, body=bytes(1 << 20)).with_opaque(number)
        peer = Host("192.0.2.7", 4711)
        return pull_message(state, Call(request=request, connection=1, peer=peer, now_ms=NOW, now=0.0))

    tracemalloc.start()
    try:
        waiting = [outcome(number) for number in range(8)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(isinstance(one, Park) and one.pull.request.opaque == at for at, one in enumerate(waiting))
    assert held < 1 << 20
