"""Users' functions: the client refuses a function that would never run, and reports an invalid result."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.bench.timers import divide_periods
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.errors import InvalidArgument, NoNameserver
from routekeeper.client.producer import Message, SendStatus
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.command import RemotingCommand
from tests.client.conftest import Process

NOBODY = ClientConfig(nameservers=("127.0.0.1:1",), shutdown_s=0.1)
Batch = Sequence[ReceivedMessage]


async def coroutine(*_: Any) -> None: ...


class AsyncCall:
    async def __call__(self, *_: Any) -> None: ...

    async def method(self, *_: Any) -> None: ...


async def async_generator(*_: Any) -> AsyncIterator[None]:
    yield None


def generator(*_: Any) -> Iterator[None]:
    yield None


def too_many(one: Any, two: Any, three: Any) -> None: ...


COROUTINES = {
    "coroutine function": coroutine,
    "partial": functools.partial(coroutine, 1),
    "partial of a partial": functools.partial(functools.partial(AsyncCall().method, 1), 2),
    "callable object": AsyncCall(),
    "partial of an object": functools.partial(AsyncCall(), 1),
    "method": AsyncCall().method,
}
NEVER_RUN = {
    "generator": generator,
    "asynchronous generator": async_generator,
    "partial of a generator": functools.partial(generator, 1),
    "nothing to call": "listen",
    "wrong number of arguments": too_many,
}


def table(cases: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", list(cases.values()), ids=list(cases))


# Functions that the client refuses when a user passes them ----------------------------------------


@table({**COROUTINES, **NEVER_RUN})
def test_a_blocking_consumer_refuses_a_listener_that_it_cannot_run(call: Any) -> None:
    started = routekeeper.client.blocking.Client(NOBODY)
    with closing(started), pytest.raises(InvalidArgument, match="listener"):
        started.push_consumer("g", {"T": "*"}, call)


@table(NEVER_RUN)
def test_an_asyncio_consumer_refuses_a_listener_that_it_cannot_run(call: Any) -> None:
    async def main() -> None:
        async with routekeeper.client.aio.Client(NOBODY) as started:
            with pytest.raises(InvalidArgument, match="listener"):
                started.push_consumer("g", {"T": "*"}, call)

    asyncio.run(main())


@table(COROUTINES)
def test_an_asyncio_consumer_takes_every_kind_of_coroutine_function(call: Any) -> None:
    async def main() -> None:
        async with routekeeper.client.aio.Client(NOBODY) as started:
            started.push_consumer("g", {"T": "*"}, call)

    asyncio.run(main())


@table(COROUTINES)
@pytest.mark.parametrize("name", ["on_delivery", "select"])
def test_put_refuses_a_callback_that_nobody_would_await(name: str, call: Any) -> None:
    message = Message(topic="T", body=b"x")
    started = routekeeper.client.blocking.Client(NOBODY)
    with closing(started), pytest.raises(InvalidArgument, match=name):
        started.producer("g").put(message, **{name: call})

    async def main() -> None:
        async with routekeeper.client.aio.Client(NOBODY) as other:
            with pytest.raises(InvalidArgument, match=name):
                await other.producer("g").put(message, **{name: call})

    asyncio.run(main())


@pytest.mark.parametrize("method", ["before_request", "after_response"])
def test_hooks_that_nobody_would_await_are_refused(method: str) -> None:
    class Hook:
        def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
            return request

        def after_response(
            self, remote: str, request: RemotingCommand, response: RemotingCommand
        ) -> None: ...

    hook = Hook()
    setattr(hook, method, coroutine)
    with pytest.raises(InvalidArgument, match=method):
        routekeeper.client.blocking.Client(NOBODY, hooks=(hook,))

    async def main() -> None:
        with pytest.raises(InvalidArgument, match=method):
            routekeeper.client.aio.Client(NOBODY, hooks=(hook,))

    asyncio.run(main())


# Functions whose result is invalid after they have run --------------------------------------------


class Odd:
    """A listener whose first call returns an invalid result. It records this result and all messages."""

    def __init__(self, first: Callable[[], Any]) -> None:
        self._first = first
        self._lock = threading.Lock()
        self.returned: Any = None
        self.seen: list[int] = []

    def __call__(self, batch: Batch) -> Any:
        with self._lock:
            self.seen += [message.reconsume_times for message in batch]
            if len(self.seen) == 1:
                self.returned = self._first()
                return self.returned
        return None


async def never_awaited() -> None: ...


ODD = {
    "False": lambda: False,
    "True": lambda: True,
    "text": lambda: "CONSUME_SUCCESS",
    "coroutine": never_awaited,
}


@pytest.mark.faults
@pytest.mark.one_core
@pytest.mark.parametrize("kind", list(ODD))
def test_messages_whose_listener_returned_no_result_come_again(
    kind: str,
    nameserver: Process,
    broker: Process,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)
    topic = f"Odd{kind}"
    listener = Odd(ODD[kind])
    with (
        routekeeper.client.blocking.Client(config) as started,
        caplog.at_level(logging.WARNING, logger="routekeeper.client"),
    ):
        started.producer("senders").send(Message(topic=topic, body=b"x"))
        group = ConsumerConfig(group=f"odd{kind}", consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(group, {topic: "*"}, listener)
        eventually(lambda: listener.seen == [0, 1], "the message comes a second time", within_s=20.0)
    assert "allowed None or a ConsumeResult" in caplog.text
    if kind == "coroutine":
        assert inspect.getcoroutinestate(listener.returned) == inspect.CORO_CLOSED


@pytest.mark.faults
@pytest.mark.one_core
def test_the_asyncio_consumer_judges_results_alike_however_the_listener_runs(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    config = divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)
    listener = Odd(lambda: 0)

    async def awaited(batch: Batch) -> Any:
        return listener(batch)

    async def main(kind: str, call: Any) -> None:
        listener.seen = []
        async with routekeeper.client.aio.Client(config) as started:
            await started.producer("senders").send(Message(topic=f"OddLoop{kind}", body=b"x"))
            group = ConsumerConfig(group=f"odd_loop_{kind}", consume_from=ConsumeFrom.FIRST_OFFSET)
            await started.consume(group, {f"OddLoop{kind}": "*"}, call)
            await asyncio.to_thread(
                eventually, lambda: listener.seen == [0, 1], f"{kind}: it comes again", within_s=20.0
            )

    asyncio.run(main("thread", listener))
    asyncio.run(main("coroutine", awaited))


@pytest.mark.parametrize("result", [None, 0, "a queue"])
def test_a_selector_that_returns_no_queue_is_an_invalid_argument(result: Any, peer: Any) -> None:
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(peer.addr,))) as started:
        for send in (started.producer("g").send, started.producer("g").put):
            with pytest.raises(InvalidArgument, match="MessageQueue"):
                send(Message(topic="T", body=b"x"), select=lambda queues, message: result)


def test_a_delivery_callback_that_returns_a_coroutine_is_named_in_the_log(
    peer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(peer.addr,))) as started:
        producer = started.producer("g")
        returned: list[Any] = []

        def told(error: Any, result: Any) -> Any:
            returned.append(never_awaited())
            return returned[-1]

        for _ in range(100):
            producer.put(Message(topic="T", body=b"x"), on_delivery=told)
        producer.flush()
    assert len(returned) == 100
    assert {inspect.getcoroutinestate(each) for each in returned} == {inspect.CORO_CLOSED}
    told_lines = [record for record in caplog.records if "delivery callback" in record.getMessage()]
    assert 1 <= len(told_lines) <= 5


def test_a_hook_that_returns_no_request_is_named(new_peer: Callable[..., Any]) -> None:
    class Forgets:
        def before_request(self, remote: str, request: RemotingCommand) -> Any: ...

        def after_response(
            self, remote: str, request: RemotingCommand, response: RemotingCommand
        ) -> None: ...

    started = routekeeper.client.blocking.Client(
        ClientConfig(nameservers=(new_peer().addr,)), hooks=(Forgets(),)
    )
    named = pytest.raises(NoNameserver, match="before_request of hook Forgets returned NoneType")
    with closing(started), named:
        started.route("T")


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_hook_that_fails_after_the_answer_hides_no_result(
    kind: str, peer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails:
        def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
            return request

        def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
            raise KeyError("the user's own")

    config, message = ClientConfig(nameservers=(peer.addr,)), Message(topic="T", body=b"x")

    async def main() -> SendStatus:
        async with routekeeper.client.aio.Client(config, hooks=(Fails(),)) as other:
            return (await other.producer("g").send(message)).status

    if kind == "aio":
        assert asyncio.run(main()) is SendStatus.SEND_OK
    else:
        with routekeeper.client.blocking.Client(config, hooks=(Fails(),)) as started:
            assert started.producer("g").send(message).status is SendStatus.SEND_OK
    assert "hook failed after an answer hook=Fails" in caplog.text
