"""A client that is closed while another caller closes a part of it: nothing of the first close is cut off."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.producer import Message, SendResult, SendStatus
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.test_cut_off import GROUP, Batch, Script, check_left
from tests.waiting import WITHIN_S, in_thread, until, wait_until

ONE_BY_ONE = ProducerConfig(group="senders", batch_size=1, batches_max=1, send_timeout_s=20.0)
MESSAGES = [Message(topic="T", body=b"%d" % number) for number in range(3)]
#: Seconds in which a close would have cut off the other one, if it did not wait.
TO_CUT_OFF_S = 0.1


@pytest.fixture
def script(new_peer: Callable[..., Any], route_body: Any) -> Script:
    peer = new_peer()
    return Script(peer, route_body(queues=1, broker_a=peer.addr))


@pytest.fixture
def config(script: Script) -> ClientConfig:
    """Return settings with which no offset is stored before the client closes."""
    return ClientConfig(
        nameservers=(script.peer.addr,),
        client_id="me",
        offset_persist_s=3600.0,
        call_timeout_s=20.0,
        shutdown_s=20.0,
    )


@pytest.mark.parametrize("first", ["consumer", "client"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_asyncio_client_waits_for_another_task_that_closes_a_consumer(
    first: str, cancelled: bool, script: Script, config: ClientConfig
) -> None:
    """If the other task is cancelled, the second close does the rest."""

    async def main() -> None:
        called, end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def listen(batch: Batch) -> None:
            called.set()
            await end.wait()
            ended.set()

        client = routekeeper.client.aio.Client(config)
        await client.start()
        consumer = await client.consume(GROUP, {"T": "*"}, listen)
        await called.wait()
        closing = asyncio.create_task((consumer if first == "consumer" else client).close())
        await until(lambda: consumer.core.stopping, "the first close waits for the listener")
        second = asyncio.create_task(client.close())
        await asyncio.wait([second], timeout=TO_CUT_OFF_S)
        if cancelled and first == "consumer":
            closing.cancel()
            await asyncio.wait([closing])
        end.set()
        await asyncio.wait_for(second, WITHIN_S)
        await asyncio.wait([closing])
        assert ended.is_set(), "the listener was not cancelled"
        check_left(script)

    asyncio.run(main())


@pytest.mark.parametrize("first", ["consumer", "client"])
def test_blocking_client_waits_for_another_thread_that_closes_a_consumer(
    first: str, script: Script, config: ClientConfig
) -> None:
    called, end = threading.Event(), threading.Event()

    def listen(batch: Batch) -> None:
        called.set()
        assert end.wait(WITHIN_S)

    client = routekeeper.client.blocking.Client(config)
    consumer = client.consume(GROUP, {"T": "*"}, listen)
    try:
        assert called.wait(WITHIN_S)
        closing = in_thread((consumer if first == "consumer" else client).close)
        wait_until(lambda: consumer.core.stopping, "the first close waits for the listener")
        second = in_thread(client.close)
        with pytest.raises(TimeoutError):
            second.result(TO_CUT_OFF_S)
    finally:
        end.set()
    closing.result(WITHIN_S)
    second.result(WITHIN_S)
    check_left(script)


@pytest.mark.parametrize("first", ["producer", "client"])
def test_asyncio_client_waits_for_another_task_that_closes_a_producer(
    first: str, script: Script, config: ClientConfig
) -> None:
    script.held = threading.Event()

    async def main() -> None:
        client = routekeeper.client.aio.Client(config)
        await client.start()
        producer = client.producer(ONE_BY_ONE)
        futures = [await producer.put(message) for message in MESSAGES]
        closing = asyncio.create_task((producer if first == "producer" else client).close())
        await until(lambda: producer.core.closed, "the first close waits for the broker")
        await producer.close()
        second = asyncio.create_task(client.close())
        await asyncio.wait([second], timeout=TO_CUT_OFF_S)
        assert script.held is not None
        script.held.set()
        await asyncio.wait_for(second, WITHIN_S)
        await closing
        assert [(await future).status for future in futures] == [SendStatus.SEND_OK] * 3

    asyncio.run(main())


@pytest.mark.parametrize("first", ["producer", "client"])
def test_blocking_client_waits_for_another_thread_that_closes_a_producer(
    first: str, script: Script, config: ClientConfig
) -> None:
    script.held = threading.Event()
    client = routekeeper.client.blocking.Client(config)
    client.start()
    producer = client.producer(ONE_BY_ONE)
    futures: list[Future[SendResult]] = [producer.put(message) for message in MESSAGES]
    closing = in_thread((producer if first == "producer" else client).close)
    wait_until(lambda: producer.core.closed, "the first close waits for the broker")
    producer.close()
    second = in_thread(client.close)
    with pytest.raises(TimeoutError):
        second.result(TO_CUT_OFF_S)
    script.held.set()
    closing.result(WITHIN_S)
    second.result(WITHIN_S)
    assert [future.result(0).status for future in futures] == [SendStatus.SEND_OK] * 3


def test_client_waits_until_another_thread_has_left_its_group(
    script: Script, config: ClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    answers, answer = threading.Event(), script.answer

    async def late(request: RemotingCommand) -> RemotingCommand:
        await until(answers.is_set, "the test lets the broker answer")
        return request.reply()

    script.peer.answer = lambda request: (
        late(request) if request.code == RequestCode.UNREGISTER_CLIENT else answer(request)
    )
    client = routekeeper.client.blocking.Client(config)
    consumer = client.consume(GROUP, {"T": "*"}, lambda batch: None)
    with caplog.at_level(logging.INFO, logger="routekeeper.client"):
        closing = in_thread(consumer.close)
        wait_until(lambda: script.requests(RequestCode.UNREGISTER_CLIENT), "the consumer leaves its group")
        second = in_thread(client.close)
        with pytest.raises(TimeoutError):
            second.result(TO_CUT_OFF_S)
        answers.set()
        closing.result(WITHIN_S)
        second.result(WITHIN_S)
    assert not [record for record in caplog.records if record.getMessage().startswith("unregister failed")]


@pytest.mark.parametrize("first", ["nobody", "consumer", "client"])
def test_asyncio_listener_that_closes_its_client_beside_another_close_ends(
    first: str, script: Script, config: ClientConfig
) -> None:
    """Each of the two waits for the other one, because the first close waits for the listener."""

    async def main() -> None:
        client = routekeeper.client.aio.Client(replace(config, shutdown_s=0.3, call_timeout_s=1.0))
        called, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def listen(batch: Batch) -> None:
            called.set()
            await goes_on.wait()
            try:
                await client.close()
            finally:
                ended.set()

        await client.start()
        consumer = await client.consume(GROUP, {"T": "*"}, listen)
        await called.wait()
        closing: list[asyncio.Task[None]] = []
        if first != "nobody":
            closing.append(asyncio.create_task((consumer if first == "consumer" else client).close()))
            await until(lambda: consumer.core.stopping, "the first close waits for the listener")
        goes_on.set()
        await asyncio.gather(*closing)
        await ended.wait()
        await client.close()
        assert len(script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")) == 1

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("first", ["nobody", "consumer", "client"])
def test_blocking_listener_that_closes_its_client_beside_another_close_ends(
    first: str, script: Script, config: ClientConfig
) -> None:
    client = routekeeper.client.blocking.Client(replace(config, shutdown_s=0.3, call_timeout_s=1.0))
    called, goes_on = threading.Event(), threading.Event()
    ended: Future[None] = Future()

    def listen(batch: Batch) -> None:
        called.set()
        assert goes_on.wait(WITHIN_S)
        client.close()
        ended.set_result(None)

    consumer = client.consume(GROUP, {"T": "*"}, listen)
    assert called.wait(WITHIN_S)
    closing: list[Future[None]] = []
    if first != "nobody":
        closing.append(in_thread((consumer if first == "consumer" else client).close))
        wait_until(lambda: consumer.core.stopping, "the first close waits for the listener")
    goes_on.set()
    for outcome in (*closing, ended):
        outcome.result(20)
    assert len(script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")) == 1


def test_signal_handler_that_closes_a_client_lets_the_interrupted_close_go_on(
    script: Script, config: ClientConfig
) -> None:
    """The handler runs in the thread of the interrupted close, so it must not wait for that close."""
    called, handled, main = threading.Event(), threading.Event(), threading.main_thread()
    client = routekeeper.client.blocking.Client(config)

    def listen(batch: Batch) -> None:
        called.set()
        wait_until(lambda: consumer.core.stopping, "the main thread closes the client")
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGUSR1)
        assert handled.wait(WITHIN_S)

    def handle(number: int, frame: object) -> None:
        client.close()
        handled.set()

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        consumer = client.push_consumer(GROUP, {"T": "*"}, listen)
        consumer.start()
        assert called.wait(WITHIN_S)
        client.close()
    finally:
        signal.signal(signal.SIGUSR1, former)
    check_left(script)


def test_signal_handler_that_closes_the_client_does_not_wait_for_the_close_that_it_interrupted(
    script: Script, config: ClientConfig
) -> None:
    """The interrupted close of the consumer goes on only after the handler."""
    called, took, main = threading.Event(), list[float](), threading.main_thread()
    client = routekeeper.client.blocking.Client(replace(config, shutdown_s=2.0))

    def listen(batch: Batch) -> None:
        called.set()
        wait_until(lambda: consumer.core.stopping, "the main thread closes the consumer")
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGUSR1)
        wait_until(lambda: bool(took), "the handler has closed the client", within_s=60.0)

    def handle(number: int, frame: object) -> None:
        begin = time.monotonic()
        client.close()
        took.append(time.monotonic() - begin)

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        consumer = client.push_consumer(GROUP, {"T": "*"}, listen)
        consumer.start()
        assert called.wait(WITHIN_S)
        consumer.close()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert took[0] < 15.0, "not the 22 s for which a close waits for another one"
