"""Bounds against attacks by topics with very many queues, and by long broker names in lock requests."""

from __future__ import annotations

import json

import pytest

from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import Wire

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SYSTEM_BUSY = 2


def create(wire: Wire, topic: str, queues: int) -> None:
    ext = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    assert wire.call(17, ext).code == 0


def test_progress_in_more_queues_than_fit_is_asked_for_topic_by_topic(wire: Wire) -> None:
    topics = ("Broad1", "Broad2")
    for topic in topics:
        create(wire, topic, 30_000)
        ext = {"consumerGroup": "BroadGroup", "topic": topic, "queueId": "0", "commitOffset": "0"}
        assert wire.call(15, ext).code == 0
    answer = wire.call(208, {"consumerGroup": "BroadGroup"})
    assert (answer.code, "50000" in str(answer.remark)) == (1, True)
    assert wire.call(208, {"consumerGroup": "BroadGroup", "topic": "Broad1"}).code == 0
    for topic in topics:
        assert wire.call(215, {"topic": topic}).code == 0


def test_queues_that_requests_under_way_list_have_a_bound(wire: Wire) -> None:
    create(wire, "Wide", QUEUE_NUMS_MAX)
    # Send all requests at once. If this process paused between two requests, the broker could finish the
    # first request before the last request arrives.
    asked = [
        RemotingCommand.request(202, {"topic": "Wide"}).with_opaque(1000 + number) for number in range(8)
    ]
    wire.socket.sendall(b"".join(each.encode() for each in asked))
    codes = [wire.receive().code for _ in range(8)]
    assert codes.count(0) < 6
    assert set(codes) == {0, SYSTEM_BUSY}
    assert wire.call(202, {"topic": "Wide"}).code == 0
    assert wire.call(215, {"topic": "Wide"}).code == 0


def test_long_name_of_a_broker_in_a_lock_is_refused(wire: Wire) -> None:
    queue = {"topic": "T", "brokerName": "b" * 256, "queueId": 0}
    body = {"consumerGroup": "G", "clientId": "c", "mqSet": [queue]}
    refused = wire.call(41, body=json.dumps(body).encode())
    assert refused.code != 0
    assert "255" in (refused.remark or "")
    queue["brokerName"] = "broker-a"
    assert len(json.loads(wire.call(41, body=json.dumps(body).encode()).body)["lockOKMQSet"]) == 1
