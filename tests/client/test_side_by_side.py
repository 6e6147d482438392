"""A client notifies several brokers concurrently, so a silent broker does not delay other brokers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.consumer import ConsumerConfig
from routekeeper.client.operation import Operation, Sleep, together
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand

BROKERS = 4
#: Each broker delays its answer until all brokers are notified, but at most for this time in s. A client that
#: notified one broker after the other would get a timeout.
WAIT_S = 10.0
TOLD = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}


class Together:
    """Brokers that answer a notification only after all brokers have received one.

    The notifications are heartbeats and unregistrations.
    """

    def __init__(self) -> None:
        self._all = threading.Barrier(BROKERS)
        self.answered: list[int] = []

    def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        if request.code in TOLD:
            try:
                self._all.wait(WAIT_S)
            except threading.BrokenBarrierError:
                return None
            self.answered.append(request.code)
        return request.reply()


@pytest.fixture
def brokers() -> Together:
    return Together()


@pytest.fixture
def config(brokers: Together, new_peer: Callable[..., Any], answers: Any, route_body: Any) -> ClientConfig:
    """Return a client's settings, with a nameserver that routes topic T to all brokers."""
    names = {f"broker_{number}": new_peer(brokers.answer).addr for number in range(BROKERS)}
    namesrv = new_peer(answers({"T": route_body(queues=1, **names)}))
    return ClientConfig(nameservers=(namesrv.addr,), call_timeout_s=WAIT_S)


def beats(started: routekeeper.client.aio.Client | routekeeper.client.blocking.Client) -> Operation[None]:
    yield from started.core.directory.refresh("T")
    yield from started.core.beat()


def all_told(brokers: Together) -> bool:
    """Return True if every broker answered a heartbeat and an unregistration."""
    counts = Counter(brokers.answered)
    return counts[RequestCode.HEART_BEAT] >= BROKERS and counts[RequestCode.UNREGISTER_CLIENT] == BROKERS


def test_heartbeats_and_farewells_of_a_blocking_client(config: ClientConfig, brokers: Together) -> None:
    with routekeeper.client.blocking.Client(config) as started:
        started.producer(ProducerConfig(group="pg"))
        started.run(beats(started))
    assert all_told(brokers)


def test_heartbeats_and_farewells_of_an_asyncio_client(config: ClientConfig, brokers: Together) -> None:
    async def main() -> None:
        async with routekeeper.client.aio.Client(config) as started:
            started.producer(ProducerConfig(group="pg"))
            await started.run(beats(started))

    asyncio.run(main())
    assert all_told(brokers)


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
        async with routekeeper.client.aio.Client(ClientConfig(nameservers=("127.0.0.1:1",))) as started:
            await started.run(together([one() for _ in range(10)], "ones", at_once=3))
            assert (most, ended, running) == (3, 10, 0)
            await started.run(together([], "none", at_once=3))

    asyncio.run(main())


def test_a_closed_consumer_leaves_nothing_behind(peer: Any) -> None:
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(peer.addr,))) as started:
        for _ in range(3):
            started.consume(ConsumerConfig(group="g", workers=1), {"T": "*"}, lambda batch: None).close()
        assert not started.core._closers
