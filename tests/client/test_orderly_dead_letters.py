"""A message without remaining retries does not stop its queue, even if no copy of it can be sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from routekeeper.client.consumer import ConsumeResult
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import StoredMessage, encode_properties
from tests.client.test_consumer_sim import Broker, History, Member, World


@dataclass
class DeadLetters(Broker):
    """A broker that records dead letters.

    Attributes:
        copies: Numbers of retries of the copies that members sent to the retry topic.
        asked: Values of ``maxReconsumeTimes`` in the requests to copy a stored message.
        answers: Codes of the next answers to sends. Without a code, a send succeeds.
        refusals: Codes and remarks of the next answers to requests to copy. Without them, a copy succeeds.
    """

    copies: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        match request.code:
            case RequestCode.SEND_MESSAGE_V2 if self.answers:
                return 0, request.reply(self.answers.pop(0), remark="refused by the test")
            case RequestCode.SEND_MESSAGE_V2:
                assert request.ext_fields["b"] == RETRY_PREFIX + "g"
                self.copies.append(int(request.ext_fields["j"]))
                return 0, request.reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})
            case RequestCode.CONSUMER_SEND_MSG_BACK if self.refusals:
                code, remark = self.refusals.pop(0)
                return 0, request.reply(code, remark=remark)
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                self.asked.append(int(request.ext_fields["maxReconsumeTimes"]))
                return 0, request.reply()
        return super().serve(member, request)


class Refusing(History):
    """Listeners that refuse the message at offset 0 and accept all others."""

    calls = 0

    def begin(self, batch: Sequence[ReceivedMessage]) -> Callable[[], ConsumeResult]:
        if batch[0].queue_offset:
            return super().begin(batch)
        self.calls += 1
        return lambda: ConsumeResult.RECONSUME_LATER


def consume(
    *answers: int,
    body: bytes = b"refused",
    refusals: Sequence[tuple[int, str]] = (),
    orderly: bool = True,
    **properties: str,
) -> DeadLetters:
    """Let a member refuse one message and consume the next one, and return the member's broker.

    The function waits until the broker has stored the offset after the second message.

    Args:
        answers: Codes of the broker's answers to the member's first sends. Later sends succeed.
        body, properties: Content of the refused message.
        refusals: Codes and remarks of the answers to the first requests to copy the message.
        orderly: True if the member belongs to an orderly group.
    """
    world = World(1, loss=0.0)
    broker = world.broker = DeadLetters(world, answers=list(answers), refusals=list(refusals))
    broker.queues[RETRY_PREFIX + "g", 0]
    message = StoredMessage(
        topic="T", queue_id=0, body=body, physical_offset=7, properties=encode_properties(properties)
    )
    broker.queues["T", 0].append(message)
    broker.append("T", 0, b"next")
    history = Refusing(world.rng, failing=0.0)
    Member(world, history, 1, orderly=orderly, max_reconsume_times=2)
    world.run_until(lambda: broker.offsets.get(("g", "T", 0)) == 2, 120)
    assert b"next" in history.finished
    assert history.calls >= 3, "a first try and two retries"
    return broker


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="small"),
        pytest.param({"body": bytes(5 * 1024 * 1024)}, id="body above a producer's default limit"),
    ],
)
def test_a_copy_of_the_message_is_sent(values: dict[str, Any]) -> None:
    broker = consume(**values)
    assert (broker.copies, broker.asked) == ([3], [])


@pytest.mark.parametrize(
    ("values", "answers"),
    [
        pytest.param({"long": "x" * 32_700}, (), id="properties too long for a copy"),
        pytest.param({}, (ResponseCode.MESSAGE_ILLEGAL,), id="body above the broker's limit"),
    ],
)
def test_the_broker_copies_a_message_that_cannot_be_sent(
    values: dict[str, Any], answers: tuple[int, ...]
) -> None:
    broker = consume(*answers, **values)
    assert (broker.copies, broker.asked) == ([], [0])


def test_a_copy_that_may_be_stored_is_not_followed_by_another_kind_of_copy() -> None:
    broker = consume(*[ResponseCode.SYSTEM_ERROR] * 3)
    assert broker.asked == []
    assert broker.copies == [3]


TOO_LONG = "x" * 32_700


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param((ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"), id="our broker"),
        pytest.param((ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED"), id="Java's broker"),
    ],
)
def test_a_message_too_large_for_every_copy_stays_in_its_queue_after_its_retries(
    orderly: bool, refusal: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    broker = consume(refusals=[refusal] * 10, orderly=orderly, long=TOO_LONG)
    assert broker.copies == []
    assert broker.asked == []
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "left behind, too large for a copy" in record.getMessage()
    assert "offset=0" in record.getMessage()


@pytest.mark.parametrize("orderly", [True, False])
def test_a_message_with_an_empty_body_that_no_broker_can_copy_is_not_only_called_too_large(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = [(int(ResponseCode.MESSAGE_ILLEGAL), "the message is illegal")] * 10
    assert consume(body=b"", refusals=refusals, orderly=orderly).copies == []
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "too large for a copy by its broker, and its body is empty group=g" in record.getMessage()


@pytest.mark.parametrize("orderly", [True, False])
def test_a_refusal_for_another_reason_does_not_leave_the_message_in_its_queue(orderly: bool) -> None:
    refusals = [(ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")] * 3
    broker = consume(refusals=refusals, orderly=orderly, long=TOO_LONG)
    assert broker.copies == []
    assert len(broker.asked) == 1


def test_the_last_copy_of_a_message_that_fits_into_no_retry_is_a_dead_letter() -> None:
    """Check that a message becomes a dead letter if it is too long for a retry.

    A copy for a retry is longer than a dead letter, because it has more properties. The broker needs these
    properties to delay the retry.
    """
    refusals = [(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")] * 2
    broker = consume(refusals=refusals, orderly=False, long=TOO_LONG)
    assert broker.asked == [0]
