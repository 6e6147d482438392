"""When a client is closed, its futures and waiting calls end, with a result or one of our exceptions."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ConsumeFrom, ProducerConfig, PullConsumerConfig
from routekeeper.client.errors import ClientClosed, OutcomeUnknown
from routekeeper.client.producer import Message, SendResult, SendStatus
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from tests.waiting import WITHIN_S, wait_until

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
MESSAGE = Message(topic="T", body=b"x")
SENDS: set[int] = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
#: Settings of a slow producer: one message in each batch, one batch at a time.
SLOW = ProducerConfig(group="g", batch_size=1, batches_max=1, linger_s=0, retry_times=0, send_timeout_s=0.5)
#: The same for a sender that hangs in a hook: a busy machine has enough time for the send itself.
PATIENT = replace(SLOW, send_timeout_s=30.0)
PULLING = PullConsumerConfig(group="pulling", consume_from=ConsumeFrom.FIRST_OFFSET)


class Hangs:
    """A user's request hook.

    When the answer to a send has come, the hook waits until ``let_go`` is set, at most 60 s.
    """

    def __init__(self) -> None:
        self.held, self.let_go = threading.Event(), threading.Event()

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.code in SENDS:
            self.held.set()
            self.let_go.wait(60)


@pytest.fixture
def silent(new_peer: Callable[..., Any], answers: Any, route_body: Any) -> Any:
    """Return a server that is nameserver and broker, and does not answer the codes in ``unanswered``."""
    peer = new_peer()
    known = answers({"T": route_body(broker_a=peer.addr)})
    peer.unanswered = {RequestCode.GET_ROUTEINFO_BY_TOPIC}  # so that a sender waits for a route

    def answer(request: RemotingCommand) -> Any:
        return None if request.code in peer.unanswered else known(request)

    peer.answer = answer
    return peer


def config(peer: Any) -> ClientConfig:
    return ClientConfig(nameservers=(peer.addr,), shutdown_s=0.5, call_timeout_s=30.0)


def close_soon(producer: Any, hook: Hangs, seconds: float) -> None:
    """Wait until the sender hangs in the hook. From then on, ``close`` waits only for these seconds."""
    assert hook.held.wait(WITHIN_S)
    producer.core.config = replace(producer.core.config, send_timeout_s=seconds)


def check(under_way: BaseException | None, waiting: BaseException | None) -> None:
    assert isinstance(under_way, OutcomeUnknown)
    assert isinstance(waiting, ClientClosed), "it was never sent"


@pytest.mark.slow
def test_messages_under_way_at_the_end_of_the_asyncio_client_have_an_unknown_outcome(silent: Any) -> None:
    told: list[RemotingError | None] = []

    async def main() -> None:
        async with routekeeper.client.aio.Client(config(silent)) as client:
            producer = client.producer(SLOW)
            futures = [
                await producer.put(MESSAGE, on_delivery=lambda error, result: told.append(error))
                for _ in range(2)
            ]
            flush = asyncio.create_task(producer.flush())
        for future in futures:
            assert future.done()
        check(*(future.exception() for future in futures))
        assert [type(error) for error in told] == [ClientClosed, OutcomeUnknown]
        await asyncio.wait_for(flush, 5)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.slow
def test_what_waits_when_close_is_cancelled_ends_too(silent: Any, eventually: Callable[..., None]) -> None:
    async def main() -> None:
        client = routekeeper.client.aio.Client(config(silent))
        await client.start()
        producer, consumer = client.producer(SLOW), client.pull_consumer(PULLING)
        await consumer.start()
        poll = asyncio.create_task(consumer.poll())
        futures = [await producer.put(MESSAGE) for _ in range(2)]
        asked = {RequestCode.GET_ROUTEINFO_BY_TOPIC}
        await asyncio.to_thread(
            eventually, lambda: asked <= set(silent.codes()), "a sender waits", within_s=20.0
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.close(), 0.1)
        check(*(future.exception() for future in futures))
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(poll, 5)
        with pytest.raises(ClientClosed):
            await producer.put(MESSAGE)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.slow
def test_messages_under_way_at_the_end_of_the_blocking_client_have_an_unknown_outcome(silent: Any) -> None:
    """Closing the client must not wait for a sender that hangs in a hook of the user.

    Closing the sender's connection cannot end the hook.
    """
    hook = Hangs()
    silent.unanswered = set()
    client = routekeeper.client.blocking.Client(config(silent), hooks=(hook,))
    try:
        client.start()
        producer = client.producer(PATIENT)
        futures: list[Future[SendResult]] = [producer.put(MESSAGE) for _ in range(2)]
        close_soon(producer, hook, 0.5)
        client.close()
        check(*(future.exception(0) for future in futures))
    finally:
        hook.let_go.set()
        client.close()


def test_messages_under_way_have_an_outcome_although_ctrl_c_interrupts_the_end_of_close(
    silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes while ``close`` waits for a thread that hangs in a hook of the user."""
    hook, join = Hangs(), threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("batches"):
            raise KeyboardInterrupt
        join(thread, timeout)

    silent.unanswered = set()
    client = routekeeper.client.blocking.Client(replace(config(silent), shutdown_s=0.1), hooks=(hook,))
    try:
        client.start()
        producer = client.producer(PATIENT)
        future = producer.put(MESSAGE)
        close_soon(producer, hook, 0.1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "join", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.close()
        assert isinstance(future.exception(0), OutcomeUnknown)
    finally:
        hook.let_go.set()


@pytest.mark.slow
def test_a_message_under_way_when_its_producer_closes_gets_an_outcome_from_the_asyncio_client(
    silent: Any,
) -> None:
    """The producer's ``close`` ends at its time limit, while the sender still waits for the nameserver."""

    async def main() -> None:
        client = routekeeper.client.aio.Client(config(silent))
        await client.start()
        producer = client.producer(SLOW)
        future = await producer.put(MESSAGE)
        await producer.close()
        assert not future.done()
        await client.close()
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(future, 5)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_message_whose_sender_is_cancelled_before_other_tasks_gets_an_outcome(
    silent: Any, eventually: Callable[..., None]
) -> None:
    """A loop that ends cancels its tasks in any order. Here, it cancels the message's sender first."""

    async def main() -> None:
        client = routekeeper.client.aio.Client(config(silent))
        await client.start()
        future = await client.producer(replace(SLOW, retry_unknown=False)).put(MESSAGE)
        await asyncio.to_thread(
            eventually,
            lambda: RequestCode.GET_ROUTEINFO_BY_TOPIC in silent.codes(),
            "a sender waits",
            within_s=20.0,
        )
        (sender,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("batches"))
        sender.cancel()
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(future, 5)
        await client.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.slow
def test_messages_that_outlast_their_producer_get_an_outcome_from_the_blocking_client(silent: Any) -> None:
    """The outcome is unknown if the sender hangs in a user's hook until producer and client are closed."""
    hook = Hangs()
    silent.unanswered = set()
    client = routekeeper.client.blocking.Client(replace(config(silent), shutdown_s=0.1), hooks=(hook,))
    try:
        client.start()
        producer = client.producer(PATIENT)
        future = producer.put(MESSAGE)
        close_soon(producer, hook, 0.1)
        producer.close()
        assert not future.done()
        client.close()
        assert isinstance(future.exception(0), OutcomeUnknown)
    finally:
        hook.let_go.set()
        client.close()


def test_a_client_forgets_a_closed_producer_after_its_last_message_has_an_outcome(silent: Any) -> None:
    hook = Hangs()
    silent.unanswered = set()
    with routekeeper.client.blocking.Client(replace(config(silent), shutdown_s=0.1), hooks=(hook,)) as client:
        producer = client.producer(PATIENT)
        kept = weakref.ref(producer.core)
        future = producer.put(MESSAGE)
        close_soon(producer, hook, 0.1)
        producer.close()
        assert not future.done()
        hook.let_go.set()
        assert future.result(20).status is SendStatus.SEND_OK
        del producer

        def forgotten() -> bool:
            client.producer("other").close()
            gc.collect()
            return kept() is None

        wait_until(forgotten, "the client forgets the producer", within_s=20.0)


AWAITED: dict[str, tuple[set[int], Callable[[Any, Any, Any], Awaitable[Any]]]] = {
    "send": (SENDS, lambda client, producer, consumer: producer.send(MESSAGE, timeout_s=60)),
    "send_batch": (SENDS, lambda client, producer, consumer: producer.send_batch([MESSAGE], timeout_s=60)),
    "poll": (set(), lambda client, producer, consumer: consumer.poll()),
    "committed": (
        {RequestCode.QUERY_CONSUMER_OFFSET},
        lambda client, producer, consumer: consumer.committed(QUEUE),
    ),
    "max_offset": (
        {RequestCode.GET_MAX_OFFSET},
        lambda client, producer, consumer: consumer.max_offset(QUEUE),
    ),
    "topic_route": (
        {RequestCode.GET_ROUTEINFO_BY_TOPIC},
        lambda client, producer, consumer: client.run(client.admin.topic_route("Other")),
    ),
    "broker_runtime": (
        {RequestCode.GET_BROKER_RUNTIME_INFO},
        lambda client, producer, consumer: client.run(
            client.admin.broker_runtime(client.core.config.nameservers[0])
        ),
    ),
}


@pytest.mark.parametrize("name", list(AWAITED))
def test_whatever_waits_for_the_asyncio_client_ends_with_it(
    name: str, silent: Any, eventually: Callable[..., None]
) -> None:
    codes, begin = AWAITED[name]

    async def main() -> None:
        async with routekeeper.client.aio.Client(config(silent)) as client:
            consumer = client.pull_consumer(PULLING)
            await consumer.start()
            silent.unanswered = codes
            waiting = asyncio.ensure_future(begin(client, client.producer("g"), consumer))
            if codes:
                await asyncio.to_thread(
                    eventually, lambda: bool(codes & set(silent.codes())), "it was asked", within_s=20.0
                )
            await asyncio.sleep(0)
        with pytest.raises(RemotingError):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("name", list(AWAITED))
def test_whatever_waits_for_the_blocking_client_ends_with_it(
    name: str, silent: Any, eventually: Callable[..., None]
) -> None:
    codes, begin = AWAITED[name]
    outcome: Future[Any] = Future()
    client = routekeeper.client.blocking.Client(config(silent))
    client.start()
    consumer = client.pull_consumer(PULLING)
    consumer.start()
    silent.unanswered = codes

    def wait() -> None:
        try:
            outcome.set_result(begin(client, client.producer("g"), consumer))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    if codes:
        eventually(lambda: bool(codes & set(silent.codes())), "it was asked", within_s=20.0)
    client.close()
    assert isinstance(outcome.exception(10), RemotingError)
    thread.join(10)
