"""A log handler or log filter of the user raises an exception: consumers, producers and connections go on."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import routekeeper.client.aio
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import NoNameserver, NotApplied
from routekeeper.client.producer import Message
from tests.client.test_consumer_sim import History, Member, World, fill
from tests.waiting import in_thread


class Raising(logging.Handler):
    """A log handler that raises, and counts its calls."""

    calls = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.calls += 1
        raise RuntimeError("the user's handler failed")


class Refusing(Raising):
    """A log handler whose filter raises."""

    def filter(self, record: logging.LogRecord) -> bool:
        self.calls += 1
        raise RuntimeError("the user's filter failed")


@pytest.fixture(params=[Raising, Refusing])
def handler(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Raising]:
    caplog.set_level(logging.DEBUG, logger="routekeeper")
    raising: Raising = request.param()
    logger = logging.getLogger("routekeeper")
    logger.addHandler(raising)
    yield raising
    logger.removeHandler(raising)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_receives_all_messages(
    orderly: bool, handler: Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(1, loss=0.1)
    history = History(world.rng, failing=0.1)
    wanted = fill(world, 40)
    Member(world, history, 1, orderly=orderly)
    world.run_until(lambda: set(history.finished) == wanted, 3000)
    assert handler.calls
    assert "the user's" in capsys.readouterr().err, "the exception is not hidden"


def test_a_filter_of_the_clients_own_logger_may_raise() -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("the user's filter failed")

    logger = logging.getLogger("routekeeper.client.consumer")
    logger.addFilter(refuse)
    try:
        world = World(1, loss=0.0)
        history = History(world.rng, failing=0.5)
        wanted = fill(world, 40)
        Member(world, history, 1)
        world.run_until(lambda: set(history.finished) == wanted, 3000)
    finally:
        logger.removeFilter(refuse)


def test_a_message_of_put_gets_its_outcome(
    handler: Raising, new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    peer.answer = answers({"T": route_body(broker_a="127.0.0.1:1")})  # no server listens, so sends fail
    with Client(ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0)) as client:
        producer = client.producer(ProducerConfig(group="g", retry_times=0, send_timeout_s=0.5))
        for _ in range(2):
            put = in_thread(lambda: producer.put(Message(topic="T", body=b"x")).exception(30))
            assert isinstance(put.result(60), NotApplied)
    assert handler.calls


@pytest.fixture
def garbled() -> Iterator[str]:
    """Return the address of a server that answers each connection with bytes that are no frame."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the test has ended
                with connection, suppress(OSError):
                    connection.recv(1024)
                    connection.sendall(b"\xff" * 8)
                    connection.recv(1024)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_receives_a_bad_frame_reports_it_to_the_caller(
    handler: Raising, garbled: str
) -> None:
    config = ClientConfig(nameservers=(garbled,), shutdown_s=1.0)
    client = Client(config)
    with pytest.raises(NoNameserver):
        client.route("T")
    client.close()

    async def ask() -> None:
        async with routekeeper.client.aio.Client(config) as client:
            await client.run(client.admin.topic_route("T"))

    with pytest.raises(NoNameserver):
        asyncio.run(ask())
    assert handler.calls
