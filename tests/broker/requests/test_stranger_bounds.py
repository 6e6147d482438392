"""The requests of a stranger (an unknown client) use only limited memory and time of the event loop."""

from __future__ import annotations

import json

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import BatchItem, encode_batch
from tests.broker.conftest import BrokerProcess, StartBroker, Wire

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SYSTEM_BUSY, MESSAGE_ILLEGAL = 2, 13
BATCH = {
    "a": "PG",
    "b": "Batches",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
    "m": "true",
}


def send_batch(wire: Wire, count: int) -> RemotingCommand:
    """Send a batch of messages without bodies."""
    return wire.call(320, BATCH, encode_batch([BatchItem(body=b"", properties="", flag=0)] * count))


def test_batch_with_too_many_messages_is_refused_as_a_whole(start_broker: StartBroker) -> None:
    wire = start_broker().wire()
    assert send_batch(wire, 1000).code == 0
    refused = send_batch(wire, 12_000)
    assert refused.code == MESSAGE_ILLEGAL
    assert "12000 messages" not in (refused.remark or ""), "they are not counted to the end"
    assert "allowed are 10000" in (refused.remark or "")
    assert wire.call(30, {"topic": "Batches", "queueId": "0"}).ext_fields["offset"] == "1000"


def test_requests_that_consumers_have_to_answer_have_a_bound(
    shared_broker: BrokerProcess, wire: Wire
) -> None:
    silent = shared_broker.wire()
    beat = {"clientID": "silent", "consumerDataSet": [{"groupName": "Silent"}], "producerDataSet": []}
    request = RemotingCommand(code=34, version=479, ext_fields={}, body=json.dumps(beat).encode())
    assert silent.answer(silent.send(request)).code == 0
    ext = {"consumerGroup": "Silent", "clientId": "silent"}
    for _ in range(1100):
        wire.send(RemotingCommand.request(307, ext))
    # The refusal comes at once. The broker waits 10 s for the silent consumer's answer, so it could answer
    # the first request only after that time.
    refused = wire.receive(timeout_s=8)
    assert refused.code == SYSTEM_BUSY
    assert "1024" in (refused.remark or "")
