"""What a client tells several brokers it tells them side by side: a silent one holds up nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import client.aio
import client.blocking
from client.config import ClientConfig, ProducerConfig
from client.consumer import ConsumerConfig
from client.operation import Operation, Sleep, together
from remoting.codes import RequestCode

TIMEOUT_S = 1.0
SILENT = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}


@pytest.fixture
def config(new_peer: Callable[..., Any], answers: Any, route_body: Any) -> ClientConfig:
    """A client's settings: a nameserver, and four brokers that take heartbeats without a word."""
    brokers = [
        new_peer(lambda request: None if request.code in SILENT else request.reply()) for _ in range(4)
    ]
    names = {f"broker_{number}": peer.addr for number, peer in enumerate(brokers)}
    namesrv = new_peer(answers({"T": route_body(queues=1, **names)}))
    return ClientConfig(nameservers=(namesrv.addr,), call_timeout_s=TIMEOUT_S, shutdown_s=1.0)


def beats(started: client.aio.Client | client.blocking.Client) -> Operation[None]:
    yield from started.core.directory.refresh("T")
    yield from started.core.beat()


def test_heartbeats_and_farewells_of_a_blocking_client(config: ClientConfig) -> None:
    with client.blocking.Client(config) as started:
        started.producer(ProducerConfig(group="pg"))
        before = time.monotonic()
        started.run(beats(started))
        beaten = time.monotonic()
    farewell = time.monotonic()
    assert TIMEOUT_S * 0.9 < beaten - before < TIMEOUT_S * 2
    assert TIMEOUT_S * 0.9 < farewell - beaten < TIMEOUT_S * 2.5


def test_heartbeats_and_farewells_of_an_asyncio_client(config: ClientConfig) -> None:
    async def main() -> tuple[float, float]:
        async with client.aio.Client(config) as started:
            started.producer(ProducerConfig(group="pg"))
            before = time.monotonic()
            await started.run(beats(started))
            beaten = time.monotonic()
        return beaten - before, time.monotonic() - beaten

    beat_s, farewell_s = asyncio.run(main())
    assert TIMEOUT_S * 0.9 < beat_s < TIMEOUT_S * 2
    assert TIMEOUT_S * 0.9 < farewell_s < TIMEOUT_S * 2


def test_no_more_than_allowed_run_at_once() -> None:
    running, most, ended = 0, 0, 0

    def one() -> Operation[None]:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        yield Sleep(0.01)
        running -= 1
        ended += 1

    async def main() -> None:
        async with client.aio.Client(ClientConfig(nameservers=("127.0.0.1:1",))) as started:
            await started.run(together([one() for _ in range(10)], "ones", at_once=3))
            assert (most, ended, running) == (3, 10, 0)
            await started.run(together([], "none", at_once=3))

    asyncio.run(main())


def test_a_closed_consumer_leaves_nothing_behind(
    new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    peer.answer = answers({"T": route_body(broker_a=peer.addr)})
    with client.blocking.Client(ClientConfig(nameservers=(peer.addr,))) as started:
        for _ in range(3):
            started.consume(ConsumerConfig(group="g", workers=1), {"T": "*"}, lambda batch: None).close()
        assert not started.core._closers
