"""The user's code runs inside a call of the blocking client, and calls the same client again.

A queue selector or a log handler runs while its thread holds the client's lock. A second call in this thread
would wait for the lock for ever.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.blocking_parts import Producer
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import InvalidArgument, NotApplied
from routekeeper.client.producer import Message, SendStatus
from tests.waiting import in_thread

MESSAGE = Message(topic="T", body=b"x")


CALLS: dict[str, Callable[[Client, Producer], object]] = {
    "queues": lambda client, producer: producer.queues("T"),
    "send": lambda client, producer: producer.send(MESSAGE),
    "put": lambda client, producer: producer.put(MESSAGE),
    "flush": lambda client, producer: producer.flush(),
    "close of a producer": lambda client, producer: producer.close(),
    "close of the client": lambda client, producer: client.close(),
    "start": lambda client, producer: client.start(),
    "pause": lambda client, producer: client.pull_consumer("pulling").pause(),
    "resume": lambda client, producer: client.pull_consumer("pulling").resume(),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_selector_that_calls_its_own_client_ends_with_an_error(name: str, peer: Any) -> None:
    client = Client(ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0))
    producer = client.producer("g")

    def select(queues: Any, message: Message) -> Any:
        CALLS[name](client, producer)
        return queues[0]

    sent = in_thread(lambda: producer.send(MESSAGE, select=select))
    with pytest.raises(InvalidArgument, match="inside a call of the same client"):
        sent.result(60)
    assert producer.send(MESSAGE).status is SendStatus.SEND_OK, "the client can still be used"
    client.close()


def test_a_log_handler_may_call_another_client(peer: Any) -> None:
    config = ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0)
    client, other = Client(config), Client(config)
    producer, others_producer = client.producer("g"), other.producer("g")
    sent = in_thread(
        lambda: producer.send(MESSAGE, select=lambda queues, message: others_producer.queues("T")[0])
    )
    assert sent.result(60).status is SendStatus.SEND_OK
    client.close()
    other.close()


class Shipper(logging.Handler):
    """A log handler that sends each record as a message of a client.

    Attributes:
        failures: Exceptions of these sends, recorded because a log handler should not raise.
    """

    def __init__(self, producer: Producer) -> None:
        super().__init__(logging.INFO)
        self.producer = producer
        self.failures: list[BaseException | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.producer.put(Message(topic="T", body=record.getMessage().encode()))
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self.failures.append(sys.exception())


def test_a_log_handler_that_sends_with_the_client_that_logs_does_not_stop_the_client(
    new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    peer.answer = answers({"T": route_body(broker_a="127.0.0.1:1")})  # no server listens, so sends fail
    client = Client(ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0))
    client.start()
    producer = client.producer(ProducerConfig(group="g", linger_s=0.0, retry_times=0, send_timeout_s=0.5))
    shipper, logger = Shipper(producer), logging.getLogger("routekeeper.client")
    logger.addHandler(shipper)
    try:
        put = in_thread(lambda: producer.put(MESSAGE).exception(30))
        assert isinstance(put.result(60), NotApplied)
        in_thread(client.close).result(60)
    finally:
        logger.removeHandler(shipper)
    assert shipper.failures
    for failure in shipper.failures:
        assert isinstance(failure, InvalidArgument)
