"""When many members leave a consumer group at once, the broker sends few notices to each remaining member."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.broker.conftest import StartBroker, Wire

pytestmark = [pytest.mark.faults, pytest.mark.slow]

NOTICE = 40
GROUPS = [f"G{number}" for number in range(10)]
LEAVING = 60


def join(wire: Wire, name: str) -> None:
    consumers = [
        {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]} for group in GROUPS
    ]
    beat = {"clientID": name, "consumerDataSet": consumers, "producerDataSet": []}
    assert wire.call(34, body=json.dumps(beat).encode()).code == 0


def members(wire: Wire, group: str) -> list[str]:
    found: list[str] = json.loads(wire.call(38, {"consumerGroup": group}).body)["consumerIdList"]
    return found


def test_member_is_told_once_of_many_that_leave_together(start_broker: StartBroker) -> None:
    broker = start_broker()
    stays = broker.wire()
    join(stays, "stays")
    others = [broker.wire() for _ in range(LEAVING)]
    for number, wire in enumerate(others):
        join(wire, f"leaves-{number}")
    assert len(members(stays, "G0")) == LEAVING + 1
    stays.requests.clear()
    broker.process.send_signal(
        signal.SIGSTOP
    )  # the stopped broker finds all closed connections at once when it continues, even on a busy machine
    for wire in others:
        wire.close()
    broker.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 40
    while any(members(stays, group) != ["stays"] for group in GROUPS):
        assert time.monotonic() < deadline
    for _ in range(10):  # a notice that the broker has already sent arrives before the last of these answers
        members(stays, "G0")
    notices = [request.ext_fields["consumerGroup"] for request in stays.requests if request.code == NOTICE]
    assert set(notices) == set(GROUPS)
    assert len(notices) < LEAVING * len(GROUPS) / 4
