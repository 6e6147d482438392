"""Recorded requests of Java clients, sent again: our answers are compared with those of Apache's brokers.

Some answers depend on the recorded broker's earlier state, because the recording leaves out some exchanges.
The test skips these answers by name. All other answers must agree in code, in the arguments that a client may
read, and in the body's members.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.lenient import ANSWER, loads
from tests.broker.conftest import StartBroker

FRAMES = Path(__file__).resolve().parents[2] / "golden" / "frames"
RECORDINGS = ("4.9.7-json", "4.9.7-rocketmq", "5.3.3-json", "5.3.3-rocketmq")
#: Requests whose answers need the recorded broker's earlier messages, topics or clients, so no answer is
#: compared.
NEEDS_HISTORY = {
    (36, None),
    (11, "push consumer"),
    (11, "found"),
    (11, "offset too large"),
    (11, "mqadmin consumeMessage"),
    (202, "mqadmin topicStatus-empty"),
    (202, "mqadmin topicStatus"),
    (351, "mqadmin topicStatus-empty"),
    (351, "mqadmin topicStatus"),
    (215, "mqadmin deleteTopic"),  # the recorded 5.3.3 broker failed, because its timer store was off
    (215, "mqadmin deleteTopic-unknown"),
    (208, "mqadmin consumerProgress"),
    (203, "mqadmin consumerConnection"),
}
#: Fields of answers by which 5.x tells clients that it accepts heartbeats without subscriptions. Our broker
#: does not accept such heartbeats, so its answers lack these fields.
NOT_OFFERED = {"IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"}
#: Code for a bad argument in RocketMQ 5.3.2 and later, and in our broker. RocketMQ 4.9 answers with code 1.
BAD_ARGUMENT = 29


def decoded(text: str) -> RemotingCommand:
    (frame,) = FrameDecoder().feed(base64.b64decode(text))
    return decode_command(frame)


def exchanges(recording: str) -> Iterator[tuple[str, RemotingCommand, RemotingCommand]]:
    for line in (FRAMES / f"{recording}.jsonl").read_text().splitlines():
        members = json.loads(line)
        history = {(members["code"], members["note"]), (members["code"], None)} & NEEDS_HISTORY
        if members["receiver"] == "broker" and members["response"] and not history:
            yield members["note"], decoded(members["request"]), decoded(members["response"])


def members_of(body: bytes) -> set[str]:
    return set(loads(body, ANSWER)) if body.startswith(b"{") else set()


@pytest.mark.parametrize("recording", RECORDINGS)
def test_answers_agree_with_those_of_apache(start_broker: StartBroker, recording: str) -> None:
    wire = start_broker().wire()
    asked = 0
    for note, request, theirs in exchanges(recording):
        ours = wire.answer(wire.send(request))
        what = f"code {request.code}, {note}: {ours}, theirs {theirs}"
        expected = {theirs.code} | ({BAD_ARGUMENT} if theirs.code == 1 else set())
        assert ours.code in expected, what
        assert ours.codec is request.codec, what
        assert set(ours.ext_fields) >= set(theirs.ext_fields) - NOT_OFFERED, what
        if request.code == 28:
            # Request 28 asks for statistics, which differ between releases. test_exporter.py tests the
            # statistics that tools read.
            continue
        assert members_of(ours.body) >= members_of(theirs.body) - {"topicPutTps"}, what
        asked += 1
    assert asked >= 5, "the recording holds too little to tell"
