"""A delivery callback that puts a message into its own producer must not wait for space in the buffer.

The callback itself frees this space, but only after it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.blocking_parts import Producer
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.producer import Message, SendResult, SendStatus

#: Settings of a producer whose buffer has space for one message of the test.
SMALL = ProducerConfig(
    group="g",
    message_size_max=1000,
    batch_size=1000,
    buffer_size=1000,
    batches_max=1,
    linger_s=0.0,
    send_timeout_s=20.0,
)
MESSAGE = Message(topic="T", body=b"x" * 600)
#: Longest wait for an outcome in seconds.
WITHIN_S = 20.0


@pytest.fixture
def producer(peer: Any) -> Iterator[Producer]:
    with Client(ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0)) as client:
        yield client.producer(SMALL)


@pytest.mark.parametrize("kind", ["on_delivery", "callback of the future"])
def test_put_in_a_callback_does_not_wait_for_space(kind: str, producer: Producer) -> None:
    again: Future[Future[SendResult]] = Future()

    def put_again(*_: object) -> None:
        again.set_result(producer.put(MESSAGE))

    if kind == "on_delivery":
        first = producer.put(MESSAGE, on_delivery=put_again)
    else:
        first = producer.put(MESSAGE)
        first.add_done_callback(put_again)
    assert first.result(WITHIN_S).status is SendStatus.SEND_OK
    assert again.result(WITHIN_S).result(WITHIN_S).status is SendStatus.SEND_OK


def test_put_of_another_thread_waits_while_a_callback_puts(producer: Producer) -> None:
    """Only the thread that runs a callback may exceed the buffer's bound."""
    in_callback, end, put = threading.Event(), threading.Event(), threading.Event()

    def hang(error: object, result: object) -> None:
        in_callback.set()
        assert end.wait(60)

    def put_one() -> None:
        producer.put(MESSAGE)
        put.set()

    producer.put(MESSAGE, on_delivery=hang)
    try:
        assert in_callback.wait(60)
        thread = threading.Thread(target=put_one, daemon=True)
        thread.start()
        assert not put.wait(0.2)
    finally:
        end.set()
    assert put.wait(60)
    thread.join(60)


def test_flush_in_a_callback_is_refused(producer: Producer) -> None:
    refused: Future[str] = Future()

    def flush(error: object, result: object) -> None:
        try:
            producer.flush()
        except InvalidArgument as raised:
            refused.set_result(str(raised))

    producer.put(MESSAGE, on_delivery=flush)
    assert "'g' in its own delivery callback" in refused.result(WITHIN_S)
    producer.flush()
