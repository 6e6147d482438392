"""If a message cannot be sent in a batch, ``put`` itself refuses it, with the same error as the sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from routekeeper import Client, InvalidArgument, Message, Producer, ProducerConfig
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.message import decode_batch

SIZE_MAX = 64 * 1024
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
CALLS: dict[str, Callable[[Producer, Message], Any]] = {
    "send": lambda producer, message: producer.send(message),
    "send_batch": lambda producer, message: producer.send_batch([message]),
    "put": lambda producer, message: producer.put(message),
}
in_batches = pytest.mark.parametrize("call", ["send_batch", "put"])


@pytest.fixture
def producer(peer: Any) -> Iterator[Producer]:
    """Yield a producer whose broker stores each message."""
    routes = peer.answer
    stored = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
    peer.answer = lambda request: (
        request.reply(ext_fields=stored) if request.code in SENDS else routes(request)
    )
    with Client(peer.addr) as client:
        yield client.producer(ProducerConfig(group="g", message_size_max=SIZE_MAX))


@in_batches
def test_body_that_leaves_no_room_for_the_properties_is_refused(
    call: str, producer: Producer, peer: Any
) -> None:
    """In a batch, the properties of a message are a part of the request's body, so they count, too."""

    def sent() -> list[Any]:
        return [request for request in tuple(peer.requests) if request.code in SENDS]

    def send(size: int) -> None:
        outcome = CALLS[call](producer, Message(topic="T", body=b"x" * size))
        if isinstance(outcome, Future):
            outcome.result(20)

    producer.send(Message(topic="T", body=b"x" * SIZE_MAX))
    send(1)
    overhead = len(sent()[-1].body) - 1
    send(SIZE_MAX - overhead)
    assert len(sent()[-1].body) == SIZE_MAX
    assert len(decode_batch(sent()[-1].body)) == 1
    before = len(sent())
    with pytest.raises(InvalidArgument, match=f"of {SIZE_MAX + 1} bytes with its properties, .*{SIZE_MAX}"):
        CALLS[call](producer, Message(topic="T", body=b"x" * (SIZE_MAX - overhead + 1)))
    assert len(sent()) == before


@pytest.mark.parametrize("call", list(CALLS))
def test_properties_above_the_limit_are_refused_with_the_same_error(call: str, producer: Producer) -> None:
    """Each letter of the value takes 3 bytes in UTF-8."""
    with pytest.raises(InvalidArgument, match=r"properties of \d+ bytes, at most 32767 are allowed"):
        CALLS[call](producer, Message(topic="T", body=b"x", properties={"name": "\u4e2d" * 11_000}))


@in_batches
def test_batch_to_a_retry_topic_is_refused(call: str, producer: Producer) -> None:
    with pytest.raises(InvalidArgument, match="a batch to the retry topic '%RETRY%g' is not allowed"):
        CALLS[call](producer, Message(topic="%RETRY%g", body=b"x"))
