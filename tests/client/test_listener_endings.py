"""If a listener raises a BaseException that is not an Exception, the client's worker continues.

The worker delivers the messages again.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.bench.timers import divide_periods
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig
from routekeeper.client.operation import Deliver, Operation
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage
from tests.client.conftest import Process

pytestmark = pytest.mark.faults


def cancelled(_: object) -> None:
    raise asyncio.CancelledError("by the user's own code")


def leaving(_: object) -> None:
    sys.exit("a library's idea of an error")


async def cancelled_coroutine(_: object) -> None:
    cancelled(_)


async def leaving_coroutine(_: object) -> None:
    leaving(_)


class Stop(BaseException):
    """A BaseException like pytest's failure of a test or trio's Cancelled."""


def stopping(_: object) -> None:
    raise Stop


async def stopping_coroutine(_: object) -> None:
    stopping(_)


def deliver(call: Callable[[object], object]) -> Operation[str]:
    try:
        yield Deliver(call, None)
    except Exception as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(
    "call", [cancelled, leaving, stopping, cancelled_coroutine, leaving_coroutine, stopping_coroutine]
)
def test_what_is_no_exception_reaches_the_operation_as_one(call: Callable[[object], object]) -> None:
    config = ClientConfig(nameservers=("127.0.0.1:1",))

    async def main() -> str:
        async with routekeeper.client.aio.Client(config) as started:
            return await started.run(deliver(call))

    assert "listener ended" in asyncio.run(main())
    if not asyncio.iscoroutinefunction(call):
        started = routekeeper.client.blocking.Client(config)
        try:
            assert "listener ended" in started.run(deliver(call))
        finally:
            started.close()


def exhausted(_: object) -> object:
    return next(iter(()))


def test_listener_that_raises_stop_iteration_has_an_end() -> None:
    """If a listener raises StopIteration, the delivery must end with an error.

    An asyncio future does not accept StopIteration as its exception. So without a special case, the future
    of the listener would never be done, and the worker would wait for ever.
    """
    config = ClientConfig(nameservers=("127.0.0.1:1",))

    async def main() -> str:
        async with routekeeper.client.aio.Client(config) as started, asyncio.timeout(20):
            return await started.run(deliver(exhausted))

    assert asyncio.run(main()) == "the function raised StopIteration"


def test_cancelling_the_driver_itself_still_ends_a_delivery() -> None:
    """If somebody cancels a worker's task, the worker must end. The listener has not failed."""

    async def main() -> None:
        begun = asyncio.Event()

        async def listen(_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with routekeeper.client.aio.Client(ClientConfig(nameservers=("127.0.0.1:1",))) as started:
            worker = asyncio.ensure_future(started.run(deliver(listen)))
            await begun.wait()
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker

    asyncio.run(main())


def settings(nameserver: Process) -> ClientConfig:
    return divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)


def send(nameserver: Process, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    with routekeeper.client.blocking.Client(settings(nameserver)) as started:
        sender = started.producer(ProducerConfig(group="senders"))
        for body in sorted(bodies):
            sender.send(Message(topic=topic, body=body))
    return bodies


class FailsFirst:
    """A listener whose first six calls fail by calling ``how``.

    The client has only four workers, so it can consume all messages only if failed calls end no worker.
    """

    def __init__(self, how: Callable[[object], object]) -> None:
        self.how = how
        self.fails = 6
        self.seen: set[bytes] = set()
        self.lock = threading.Lock()

    def __call__(self, batch: Sequence[ReceivedMessage]) -> None:
        with self.lock:
            self.fails -= 1
            fail = self.fails >= 0
        if fail:
            self.how(batch)
        with self.lock:
            self.seen |= {message.body for message in batch}


def test_an_asyncio_consumer_survives_listeners_that_are_cancelled(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    wanted = send(nameserver, "Cancelled", 20)
    listener = FailsFirst(cancelled)

    async def listen(batch: Sequence[ReceivedMessage]) -> None:
        listener(batch)

    async def main() -> None:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            config = ConsumerConfig(group="cancelled", consume_from=ConsumeFrom.FIRST_OFFSET, workers=4)
            await started.consume(config, {"Cancelled": "*"}, listen)
            async with asyncio.timeout(60):
                await asyncio.to_thread(eventually, lambda: listener.seen == wanted, "every message consumed")

    asyncio.run(main())
    assert listener.fails < 0


def test_a_blocking_consumer_survives_listeners_that_call_exit(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    wanted = send(nameserver, "Leaving", 20)
    listener = FailsFirst(leaving)
    with routekeeper.client.blocking.Client(settings(nameserver)) as started:
        config = ConsumerConfig(group="leaving", consume_from=ConsumeFrom.FIRST_OFFSET, workers=4)
        started.consume(config, {"Leaving": "*"}, listener)
        eventually(lambda: listener.seen == wanted, "every message consumed")
