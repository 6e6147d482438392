"""Waiting pulls use only the memory that they need, because the broker does not keep their requests."""

from __future__ import annotations

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import StartBroker
from tests.faults.servers import memory

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def pull_ext(expression: str, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "1",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "20000",
        "subscription": expression,
        "subVersion": "0",
        "expressionType": "TAG",
    } | more


def test_held_pull_is_held_without_what_its_answer_does_not_need(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    assert wire.send_message("T", b"x").code == 0
    before = memory(broker.process.pid)
    for number in range(150):
        wire.send(RemotingCommand.request(11, pull_ext("*", more=f"{number}" + "x" * 900_000)))
        wire.send(RemotingCommand.request(11, pull_ext("*"), b"y" * 900_000))
    # The answer shows that the broker has handled all pulls.
    assert wire.call(31, {"topic": "T", "queueId": "0"}).code == 0
    # The 300 requests were 270 MB, which the broker must not keep.
    assert memory(broker.process.pid) - before < 100 << 20


def test_long_tag_expressions_are_refused_and_not_remembered(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    assert wire.send_message("T", b"x").code == 0
    refused = wire.call(11, pull_ext("||".join(f"tag-{number}" for number in range(5000))))
    assert refused.code == 23
    assert "allowed are 32768" in (refused.remark or "")
    before = memory(broker.process.pid)
    for turn in range(100):
        expression = "||".join(f"{turn}-{number}" for number in range(3500))
        assert len(expression) < 32_768
        wire.send(RemotingCommand.request(11, pull_ext(expression, suspendTimeoutMillis="0")))
    for _ in range(100):
        assert wire.receive().code == 19
    assert memory(broker.process.pid) - before < 20 << 20
