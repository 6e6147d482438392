"""The asyncio driver: performs the effects of operations on the running loop.

    async with Client(ClientConfig(nameservers=("127.0.0.1:9876",))) as client:
        producer = client.producer(ProducerConfig(group="orders"))
        result = await producer.send(Message(topic="Orders", body=b"..."))

        async def listen(messages):
            ...

        await client.consume(ConsumerConfig(group="billing"), {"Orders": "*"}, listen)

Any operation of ``client.admin`` or ``client.broker_registration`` runs by ``await client.run(operation)``.
Leaving the ``async with`` stores consumers' offsets, leaves the groups and closes the connections.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, assert_never

from client.admin import Admin
from client.blocking import local_identity
from client.config import ClientConfig, ProducerConfig
from client.consumer import ConsumerConfig, Listener, PushConsumerCore
from client.core import PEER_REQUESTS, ClientCore
from client.errors import ClientClosed
from client.fetch import http_fetch
from client.operation import (
    Clock,
    Deliver,
    Effect,
    Fetch,
    Instant,
    Invoke,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Wait,
)
from client.producer import Message, ProducerCore, QueueSelector, SendResult
from client.queue_reader import PullConsumerCore
from remoting.bodies import MessageQueue
from remoting.command import RemotingCommand
from remoting.transport import Hook
from remoting.transport.aio import RemotingClient

log = logging.getLogger(__name__)
T = TypeVar("T")


class Client:
    """One client on the running loop; used as ``async with Client(config) as client``.

    Args:
        hooks: See each request before it is sent and each answer before its caller does.
    """

    def __init__(
        self, config: ClientConfig, *, hooks: tuple[Hook, ...] = (), rng: random.Random | None = None
    ) -> None:
        self.core = ClientCore(config, local_identity(), rng or random.Random())
        self.admin = Admin(self.core.directory)
        self._transport = RemotingClient(connect_timeout_s=config.connect_timeout_s, hooks=hooks)
        for code in PEER_REQUESTS:
            self._transport.on_request(code, self._peer_request)
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        await self.run(self.core.start())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self.run(self.core.close())
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await self._transport.close()
            # The tasks have caught what they met; without this the body's exception would come out in a
            # group.
            await self._group.__aexit__(None, None, None)

    async def run(self, operation: Operation[T]) -> T:
        """Run one operation to its end; return its result or raise what it raises."""
        try:
            effect = next(operation)
            while True:
                try:
                    result = await self._perform(effect)
                except Exception as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            operation.close()

    def producer(self, config: ProducerConfig) -> Producer:
        """Return a producer; there is nothing to start or to close."""
        self.core.add_producer(config.group)
        return Producer(self, config)

    async def consume(
        self, config: ConsumerConfig, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Start a push consumer: topic to tag expression, and what is called with each batch.

        The listener may be a coroutine function; a plain one runs in a thread.
        """
        core = PushConsumerCore(self.core, config, subscriptions, listener)
        await self.run(core.start())
        return PushConsumer(self, core)

    def pull_consumer(self, group: str) -> PullConsumerCore:
        """Return the operations of a pull consumer, for :meth:`run`."""
        return PullConsumerCore(self.core, group)

    def _peer_request(self, addr: str, request: RemotingCommand) -> RemotingCommand | None:
        return self.core.peer_request(request)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Invoke():
                return await self._transport.invoke(effect.addr, effect.request, timeout_s=effect.timeout_s)
            case Oneway():
                return await self._transport.invoke_oneway(effect.addr, effect.request)
            case Clock():
                return Instant(asyncio.get_running_loop().time(), time.time_ns() // 1_000_000)
            case Wait():
                return await self._wait(effect)
            case Sleep():
                return await asyncio.sleep(effect.seconds)
            case Spawn():
                return self._spawn(effect)
            case Deliver():
                if inspect.iscoroutinefunction(effect.call):
                    return await effect.call(effect.argument)
                result = await asyncio.to_thread(effect.call, effect.argument)
                return await result if inspect.isawaitable(result) else result
            case Fetch():
                return await asyncio.to_thread(http_fetch, effect)
            case _:
                assert_never(effect)

    async def _wait(self, effect: Wait) -> bool:
        signal = effect.signal
        if signal.version == effect.seen:
            woken = asyncio.Event()
            signal.on_next(woken.set)
            try:
                async with asyncio.timeout(effect.timeout_s):
                    await woken.wait()
            except TimeoutError:
                pass  # the version says so
            finally:
                signal.forget(woken.set)
        return signal.version != effect.seen

    def _spawn(self, effect: Spawn) -> None:
        if self.core.closing:
            effect.operation.close()
            raise ClientClosed("the client is closed")
        task = self._group.create_task(self._background(effect), name=effect.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _background(self, effect: Spawn) -> None:
        try:
            await self.run(effect.operation)
        except Exception:  # a task's boundary: one failed operation must not end its siblings
            log.exception("background operation failed name=%s", effect.name)


class Producer:
    """Sends messages of one group; see :class:`client.producer.ProducerCore` for meaning and errors."""

    def __init__(self, client: Client, config: ProducerConfig) -> None:
        self._run = client.run
        self.core = ProducerCore(config, client.core.directory, client.core.ids, client.core.rng)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored."""
        return await self._run(self.core.send(message, queue=queue, select=select, timeout_s=timeout_s))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request."""
        return await self._run(self.core.send_batch(messages, queue=queue, timeout_s=timeout_s))

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, select: QueueSelector | None = None
    ) -> None:
        """Send one message without asking for an answer."""
        await self._run(self.core.send_oneway(message, queue=queue, select=select))


class PushConsumer:
    """A running push consumer; see :class:`client.consumer.PushConsumerCore`."""

    def __init__(self, client: Client, core: PushConsumerCore) -> None:
        self._run = client.run
        self.core = core

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Queues that this member consumes now."""
        return self.core.assigned

    async def close(self) -> None:
        """Stop: end listener calls, store offsets, leave the group."""
        await self._run(self.core.close())
