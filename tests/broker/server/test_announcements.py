"""Announcements of topics. Even if many topics change, the broker sends few registrations at a time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from routekeeper.broker.server.announcements import UNDER_WAY_MAX
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.broker.conftest import WAIT_S, RecordingNameserver, StartBroker

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REGISTER = 103
REQUESTS = 300


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Return a listener that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        yield listener


def registrations(accepted: socket.socket, *, quiet_s: float) -> int:
    """Return the number of registrations until none comes for ``quiet_s`` seconds."""
    decoder, count = FrameDecoder(), 0
    accepted.settimeout(quiet_s)
    while True:
        try:
            data = accepted.recv(1 << 16)
        except TimeoutError:
            return count
        assert data, "the broker has closed the connection"
        count += sum(decode_command(frame).code == REGISTER for frame in decoder.feed(data))


def test_many_requests_for_an_announcement_get_few(start_broker: StartBroker, silent: socket.socket) -> None:
    addr = f"127.0.0.1:{silent.getsockname()[1]}"
    wire = start_broker("--set", "registerBrokerTimeoutMills=600000", namesrv=addr).wire()
    accepted, _ = silent.accept()
    with accepted:
        for _ in range(REQUESTS):
            wire.send(RemotingCommand.request(25, {}, b"brokerPermission=6"))
        for _ in range(REQUESTS):
            assert wire.receive().code == 0
        found = registrations(accepted, quiet_s=2)
        assert found == 1, "only the registration at the start, because it has no answer yet"


def test_many_requests_that_change_one_topic_get_few(
    start_broker: StartBroker, silent: socket.socket
) -> None:
    addr = f"127.0.0.1:{silent.getsockname()[1]}"
    wire = start_broker("--set", "registerBrokerTimeoutMills=600000", namesrv=addr).wire()
    accepted, _ = silent.accept()
    with accepted:
        for number in range(REQUESTS):
            fields = {"topic": f"T{number}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            wire.send(RemotingCommand.request(17, fields))
        for _ in range(REQUESTS):
            assert wire.receive().code == 0
        found = registrations(accepted, quiet_s=2)
        assert 1 < found <= UNDER_WAY_MAX + 1, "the registration at the start is the one in addition"


def test_many_topics_of_one_request_are_announced_together(
    start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    wire = start_broker(namesrv=nameserver.addr).wire()
    nameserver.expect(REGISTER)  # the registration at the broker's start
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
