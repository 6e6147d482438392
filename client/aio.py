"""The client for asyncio. It runs operations (:mod:`.operation`) and does their I/O on an event loop.

    async with Client(ClientConfig(nameservers=("127.0.0.1:9876",))) as client:
        producer = client.producer(ProducerConfig(group="orders"))
        result = await producer.send(Message(topic="Orders", body=b"..."))

        async def listen(messages):
            ...

        await client.consume(ConsumerConfig(group="billing"), {"Orders": "*"}, listen)

``await client.run(operation)`` runs any operation. When the ``async with`` block ends, the client stores the
consumers' offsets, leaves the groups and closes the connections.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Self, TypeVar, assert_never

from routekeeper.remoting import wall_clock
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.threads import NoFreeThread
from routekeeper.remoting.transport import RPCHook
from routekeeper.remoting.transport.aio import RemotingClient

from .admin import Admin as AdminOperations
from .aio_parts import Admin as Admin
from .aio_parts import Producer as Producer
from .aio_parts import PullConsumer as PullConsumer
from .aio_parts import PushConsumer as PushConsumer
from .blocking import local_identity
from .call_threads import CallThreads
from .callbacks import check_callback, check_hooks, gives_coroutine
from .config import ClientConfig, ProducerConfig, PullConsumerConfig
from .consumer import ConsumerConfig, Listener, PushConsumerCore
from .core import MEMBERSHIP_REQUESTS, PEER_REQUESTS, ClientCore
from .errors import ClientClosed, ClientError, ForkedClient, WrongLoop
from .fetch import http_fetch
from .operation import (
    Clock,
    Deliver,
    Effect,
    Fetch,
    Instant,
    Invoke,
    ListenerEnded,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Unreached,
    Wait,
)
from .pull_consumer import PullConsumerCore
from .tls import secured

log = logging.getLogger(__name__)
T = TypeVar("T")


class Client:
    """One client on the running event loop; used as ``async with Client(config) as client``.

    Args:
        hooks: Each hook receives every request before it is sent, and every answer before the caller
            receives it.
    """

    def __init__(
        self, config: ClientConfig, *, hooks: tuple[RPCHook, ...] = (), rng: random.Random | None = None
    ) -> None:
        check_hooks(hooks)
        self.core = ClientCore(config, local_identity(), rng or random.Random())
        self.admin = AdminOperations(self.core.directory)
        self._tls = secured(self.core.directory)
        self._hooks = hooks
        self._threads = CallThreads()
        self._transport = self._membership = self._new_transport()
        self._pid = os.getpid()
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        # True after close() or the end of the event loop began to cancel tasks. Then no new task may begin.
        self._cut_off = False
        weakref.finalize(self, _warn_of_unsent, self.core)

    def _new_transport(self) -> RemotingClient:
        transport = RemotingClient(
            connect_timeout_s=self.core.config.connect_timeout_s, hooks=self._hooks, tls=self._tls
        )
        for code in PEER_REQUESTS:
            transport.on_request(code, self._peer_request)
        return transport

    def serve_brokers(self) -> None:
        """Use separate connections for heartbeats. Brokers send their requests over these connections.

        A broker removes a consumer from its group when the connection of the consumer's heartbeats ends. A
        request that times out ends its connection, so it must not be the same one.
        """
        if self._membership is self._transport:
            self._membership = self._new_transport()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the background tasks, which refresh routes and nameservers and send heartbeats.

        ``async with`` calls this method. The same task must call :meth:`close`.
        """
        self._check_use()
        if self._started:
            return
        self._started = True
        await self._group.__aenter__()
        try:
            await self.perform(self.core.start())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close consumers and producers, end the background tasks, close the connections.

        If another task is closing a consumer, a producer or this client, wait for it, at most for
        ``shutdown_s`` + ``call_timeout_s`` seconds.
        """
        if self.core.closing or os.getpid() != self._pid:
            return  # child process after a fork: only the parent is a member of the groups and may leave them
        self._check_loop()
        try:
            await self.perform(self.core.close())
        finally:
            self._cut_off = True  # a task that is cancelled now must not close the client again
            for task in tuple(self._tasks):
                task.cancel()
            try:
                await self._close_connections()
                if self._started and asyncio.current_task() not in self._tasks:
                    # A task of the group (for example, a listener) must not wait for the end of the group.
                    # Pass no exception to the task group. The task group would wrap the exception in an
                    # ExceptionGroup. It does not need the exception to end the tasks, because they are
                    # already cancelled.
                    await self._group.__aexit__(None, None, None)
            finally:
                self._threads.end()
                await self.perform(self.core.end())

    async def run(self, operation: Operation[T]) -> T:
        """Run one operation to its end, and return its result or raise its exception.

        Raises:
            ClientClosed: If the client is closed; nothing was done.
            WrongLoop: If the client was first used under another event loop; nothing was done.
        """
        try:
            self._check_use()
        except ClientError:
            operation.close()
            raise
        return await self.perform(operation)

    def _check_use(self) -> None:
        if os.getpid() == self._pid:
            self._check_loop()
            if self.core.closing:
                raise ClientClosed("the client is closed, make a new one")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongLoop

    async def perform(self, operation: Operation[T]) -> T:
        """Run an operation as :meth:`run` does, even after the client was closed."""
        if os.getpid() != self._pid:
            operation.close()
            raise ForkedClient(self._pid, os.getpid())
        try:
            effect = next(operation)
            while True:
                if isinstance(effect, Clock):  # Clock is the most frequent effect, so test it first
                    effect = operation.send(self._now())
                    continue
                try:
                    if isinstance(effect, Invoke):
                        result = await self._invoke(effect)
                    else:
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

    def producer(self, config: ProducerConfig | str) -> Producer:
        """Return a producer of a group; ``config`` is the group's name or the producer's settings."""
        return Producer(self, ProducerConfig(group=config) if isinstance(config, str) else config)

    def push_consumer(
        self, config: ConsumerConfig | str, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Return a push consumer of a group. The caller must start the consumer.

        Args:
            subscriptions: Tag expression by topic; an expression is ``*`` or ``A || B``.
            listener: Called with each batch of messages. A coroutine function runs on the loop, a plain
                function in a thread.

        Raises:
            InvalidArgument: If a subscription is malformed, or if calling the listener would run no code (for
                example, because it is a generator function).
        """
        check_callback("listener", listener, arguments=1, awaited=True)
        settings = ConsumerConfig(group=config) if isinstance(config, str) else config
        return PushConsumer(self, PushConsumerCore(self.core, settings, subscriptions, listener))

    async def consume(
        self, config: ConsumerConfig | str, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Start a push consumer; see :meth:`push_consumer`."""
        consumer = self.push_consumer(config, subscriptions, listener)
        await consumer.start()
        return consumer

    def pull_consumer(
        self, config: PullConsumerConfig | str, subscriptions: Mapping[str, str] | None = None
    ) -> PullConsumer:
        """Return a pull consumer that the caller must start. The caller may subscribe to topics later."""
        settings = PullConsumerConfig(group=config) if isinstance(config, str) else config
        return PullConsumer(self, PullConsumerCore(self.core, settings, subscriptions or {}))

    def _peer_request(
        self, addr: str, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        answer = self.core.peer_request(request)
        return self.perform(answer) if isinstance(answer, Generator) else answer

    async def _invoke(self, effect: Invoke) -> RemotingCommand:
        is_membership = effect.request.code in MEMBERSHIP_REQUESTS
        transport = self._membership if is_membership else self._transport
        return await transport.invoke(
            effect.addr, effect.request, timeout_s=effect.timeout_s, unless=effect.unless
        )

    @staticmethod
    def _now() -> Instant:
        return Instant(asyncio.get_running_loop().time(), wall_clock.now_ms())

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Invoke():
                return await self._invoke(effect)
            case Oneway():
                return await self._transport.invoke_oneway(effect.addr, effect.request, unless=effect.unless)
            case Clock():
                return self._now()
            case Wait():
                return await self._wait(effect)
            case Sleep():
                return await asyncio.sleep(effect.seconds)
            case Spawn():
                return self._spawn(effect)
            case Deliver():
                return await self._deliver(effect)
            case Fetch():
                context = None if self._tls is None else self._tls.context()
                try:
                    return await self._in_thread(http_fetch, effect, context)
                except ClientError as error:
                    raise Unreached(str(error)) from error
            case _:
                assert_never(effect)

    async def _deliver(self, effect: Deliver) -> Any:
        try:
            if gives_coroutine(effect.call):
                return await effect.call(effect.argument)
            result = await self._in_thread(effect.call, effect.argument)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this task was cancelled, not a task of the listener
            raise ListenerEnded(error) from error
        except (Exception, KeyboardInterrupt, GeneratorExit):  # GeneratorExit: this coroutine is being closed
            raise
        # An exception of another kind would cancel all tasks of the client's task group.
        except BaseException as error:
            raise ListenerEnded(error) from error

    async def _wait(self, effect: Wait) -> bool:
        signal = effect.signal
        if signal.version == effect.seen:
            woken = asyncio.Event()
            signal.on_next(woken.set)
            try:
                async with asyncio.timeout(effect.timeout_s):
                    await woken.wait()
            except TimeoutError:
                pass  # a timeout is no error: the return value then says that no signal came
            finally:
                signal.forget(woken.set)
        return signal.version != effect.seen

    def _spawn(self, effect: Spawn) -> None:
        if self.core.closing or self._cut_off:
            effect.operation.close()
            raise ClientClosed("the client is closed")
        if not self._started:
            effect.operation.close()
            raise ClientClosed("the client was not started: use 'async with', or await its start()")
        task = self._group.create_task(self._background(effect), name=effect.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _background(self, effect: Spawn) -> None:
        try:
            await self.perform(effect.operation)
        except asyncio.CancelledError:
            if not (self.core.closing or self._cut_off):
                self._cut_off = True
                await self._end_with_loop()
            raise
        except Exception:  # an exception that leaves this task would cancel the whole task group
            log.exception("background operation failed name=%s", effect.name)

    async def _end_with_loop(self) -> None:
        """Close a client that is still open when its event loop ends.

        The ending loop has cancelled the task that runs this method. The loop still waits until this task has
        ended.
        """
        if not self.core.left_open():
            return
        within_s = self.core.config.shutdown_s
        self.core.deadline_s = asyncio.get_running_loop().time() + within_s
        try:
            async with asyncio.timeout(within_s + 0.1):
                await self.perform(self.core.close())
        except (TimeoutError, RemotingError) as error:
            log.warning("client not closed at the end of its loop error=%r", error)
        finally:
            try:
                await self._close_connections()
            finally:
                self._threads.end()
                await self.perform(self.core.end())

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread, and return its result.

        Raises:
            ClientError: If no thread can be started; the function is not called.
        """
        try:
            return await self._threads.call(call, *arguments)
        except NoFreeThread as error:
            raise ClientError(f"no thread can be started: {error}") from error

    async def _close_connections(self) -> None:
        try:
            await self._transport.close()
        finally:
            if self._membership is not self._transport:
                await self._membership.close()


def _warn_of_unsent(core: ClientCore) -> None:
    """Log the number of messages of ``put`` that had no outcome when the client was garbage collected."""
    unsent = 0 if core.closing else core.unsent()
    if unsent:
        log.warning("messages not sent before the end of the loop unknown=%d", unsent)
