"""Announcements of changed topics: however many requests change some, a bounded number is under way."""

from __future__ import annotations

import json
import time
from queue import Empty

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import RecordingNameserver, StartBroker, Wire

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REGISTER = 103
REQUESTS = 300


def registrations(nameserver: RecordingNameserver, wire: Wire, topic: str) -> int:
    """Return how many came until one that names a topic."""
    count, deadline = 0, time.monotonic() + 40
    made = wire.call(17, {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"})
    assert made.code == 0
    while time.monotonic() < deadline:
        try:
            request = nameserver.requests.get(timeout=1)
        except Empty:
            continue
        count += request.code == REGISTER
        if topic.encode() in request.body:
            return count
    raise AssertionError(f"{topic} was not announced")


def test_many_requests_for_an_announcement_get_few(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    wire = start_broker(namesrv=nameserver.addr).wire()
    for _ in range(REQUESTS):
        wire.send(RemotingCommand.request(25, {}, b"brokerPermission=6"))
    for _ in range(REQUESTS):
        assert wire.receive().code == 0
    assert registrations(nameserver, wire, "Last") < REQUESTS / 4


def test_many_topics_of_one_request_are_announced_together(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    wire = start_broker(namesrv=nameserver.addr).wire()
    nameserver.expect(REGISTER)  # that of the start
    names = [f"T{number}" for number in range(500)]
    table = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in names]
    assert wire.call(18, body=json.dumps({"topicConfigList": table}).encode()).code == 0
    seen: set[str] = set()
    count, deadline = 0, time.monotonic() + 40
    while not seen.issuperset(names):
        assert time.monotonic() < deadline
        request = nameserver.expect(REGISTER)
        count += 1
        seen |= {name for name in names if f'"{name}"'.encode() in request.body}
    assert count < 50
