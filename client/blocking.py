"""The client for threads and greenlets. It runs operations (:mod:`.operation`) on blocking sockets.

    with Client(ClientConfig(nameservers=("127.0.0.1:9876",))) as client:
        producer = client.producer(ProducerConfig(group="orders"))
        result = producer.send(Message(topic="Orders", body=b"..."))
        client.consume(ConsumerConfig(group="billing"), {"Orders": "*"}, listen)

``client.run(operation)`` runs any operation, from any thread.

A client that is used without ``with`` starts no thread and sends no heartbeats. Each send then refreshes the
route if it is out of date. Load generators with many clients in one process can use this form, also with
gevent's patches::

    client = Client(ClientConfig(nameservers=(addr,)), hooks=(timing,))
    route = client.route("Orders", nameserver=addr)       # asks this nameserver (request 105), uses no cache
    client.close()

Each hook (``routekeeper.RPCHook``) receives every request before it is sent, and every answer before the
caller receives it.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import random
import secrets
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar, assert_never

from routekeeper.remoting import wall_clock
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError, TooManyRequests
from routekeeper.remoting.route import TopicRouteData
from routekeeper.remoting.transport import RPCHook
from routekeeper.remoting.transport.blocking import BlockingClient
from routekeeper.remoting.transport.lookups import own_address

from .admin import Admin as AdminOperations
from .blocking_parts import Admin as Admin
from .blocking_parts import Producer as Producer
from .blocking_parts import PullConsumer as PullConsumer
from .blocking_parts import PushConsumer as PushConsumer
from .blocking_parts import Steps
from .callbacks import check_callback, check_hooks
from .config import ClientConfig, ProducerConfig, PullConsumerConfig
from .consumer import ConsumerConfig, Listener, PushConsumerCore
from .core import MEMBERSHIP_REQUESTS, PEER_REQUESTS, ClientCore, Identity
from .errors import ClientClosed, ClientError, ForkedClient, InvalidArgument
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
    Wait,
)
from .pull_consumer import PullConsumerCore
from .send_threads import SendThreads
from .tls import secured

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds that :meth:`Client.close` waits for threads that have no more work and should end at once.
_MOMENT_S: Final = 1.0
MakeCore = Callable[[ClientConfig, Identity, random.Random], ClientCore]
_serials: Final = itertools.count(secrets.randbits(31))


class Client:
    """One client, which several threads or greenlets may use at the same time.

    Args:
        hooks: Each hook receives every request before it is sent, and every answer before the caller
            receives it.
        send_threads: Number of sends of :meth:`Producer.send_async` that run at the same time.
        send_async_max: Largest number of sends of ``send_async`` that run or are queued. If this number is
            reached, ``send_async`` waits.
        core: Function that creates the core. It has the parameters of
            :class:`~routekeeper.client.core.ClientCore`.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        hooks: tuple[RPCHook, ...] = (),
        rng: random.Random | None = None,
        send_threads: int = 8,
        send_async_max: int = 1024,
        core: MakeCore = ClientCore,
    ) -> None:
        check_hooks(hooks)
        self.core = core(config, local_identity(), rng or random.Random())
        self.admin = AdminOperations(self.core.directory)
        self._pid = os.getpid()
        self._hooks = hooks
        #: Runs the code of operations in one thread at a time. To read the operations' state, pass a function
        #: to :meth:`Steps.run`. Otherwise another thread could change the state meanwhile.
        self.steps = Steps()
        self._tls = secured(self.core.directory)
        self._transport = BlockingClient(
            connect_timeout_s=config.connect_timeout_s, hooks=hooks, tls=self._tls
        )
        self._membership: BlockingClient | None = None
        self._threads: set[threading.Thread] = set()
        # Lock for adding a thread to ``_threads`` and starting it. Because of this lock, close() reads a set
        # that contains every running thread, and no thread starts later.
        self._spawning = threading.Lock()
        if not 1 <= send_threads <= send_async_max <= 1 << 20:
            raise InvalidArgument(
                f"send_threads={send_threads}, send_async_max={send_async_max},"
                f" allowed 1 <= send_threads <= send_async_max <= {1 << 20}"
            )
        self._send_threads = SendThreads(self.perform, threads_max=send_threads)
        self._places = threading.BoundedSemaphore(send_async_max)
        self._places_max = send_async_max
        self._sends: set[Future[Any]] = set()
        self._closing_in: set[int] = set()  # ids of the threads that close this client now
        self._parts_closing_in: Counter[int] = Counter()  # the same for its producers and consumers
        self._started = False
        _close_at_the_end(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the background threads, which refresh routes and nameservers and send heartbeats.

        ``with`` calls this method.
        """
        self._check_open()
        if not self._started:
            self._started = True
            try:
                self.perform(self.core.start())
            except BaseException:
                self._started = False  # otherwise the next call would return without starting anything
                raise

    def close(self) -> None:
        """Close consumers and producers, end the background threads, close the connections.

        Running listeners, sends in threads and the client's own threads may continue for ``shutdown_s``
        seconds in total. After this time, unfinished sends fail, and their errors state the outcome.

        If another thread is closing a consumer, a producer or this client, wait for it, at most for
        ``shutdown_s`` + ``call_timeout_s`` seconds.

        Raises:
            InvalidArgument: If a queue selector, log handler or signal handler calls this method inside a
                call of this client; nothing was done.
        """
        if self.core.closing or os.getpid() != self._pid:
            return  # child process after a fork: only the parent is a member of the groups and may leave them
        thread_id = threading.get_ident()
        if thread_id in self._closing_in:
            return  # a signal handler has interrupted this method: it goes on after the end of the handler
        self.steps.check()
        _open_clients.pop(id(self), None)
        deadline_s = time.monotonic() + self.core.config.shutdown_s
        try:
            self._closing_in.add(thread_id)
            # If a signal handler has interrupted the close of a producer or consumer in this thread, that
            # close goes on only after the handler. Do not wait for it.
            self.perform(self.core.close(waits=thread_id not in self._parts_closing_in))
        finally:
            self._closing_in.discard(thread_id)
            try:
                self._end_threads(deadline_s)
            finally:  # report all outcomes even if Ctrl-C interrupts the wait for a thread that hangs
                self.perform(self.core.end())

    def perform_close(self, operation: Operation[Any]) -> None:
        """Run the operation that closes a producer or consumer."""
        thread_id = threading.get_ident()
        self._parts_closing_in[thread_id] += 1
        try:
            self.perform(operation)
        finally:
            self._parts_closing_in[thread_id] -= 1
            if not self._parts_closing_in[thread_id]:
                del self._parts_closing_in[thread_id]

    def _end_threads(self, deadline_s: float) -> None:
        """Wait for the sends in threads and for the client's own threads, and close the connections."""
        try:
            left = wait(tuple(self._sends), timeout=self._left_s(deadline_s)).not_done
            if left:
                log.warning("sends cut off, the client was closed sends=%d", len(left))
            self._transport.close(timeout_s=self._left_s(deadline_s))
            if self._membership is not None:
                self._membership.close(timeout_s=self._left_s(deadline_s))
            # The closed connections ended the requests of the remaining sends, so their threads end now,
            # unless something else blocks them.
            wait(left, timeout=self._left_s(time.monotonic() + _MOMENT_S))
        finally:
            self._send_threads.end()
        # Wait up to _MOMENT_S for the client's own threads, even if the listeners used all of
        # ``shutdown_s``.
        deadline_s = max(deadline_s, time.monotonic() + self._left_s(time.monotonic() + _MOMENT_S))
        with self._spawning:
            threads = tuple(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=self._left_s(deadline_s))

    def left_open(self) -> bool:
        """Return True if the program would lose data by ending without :meth:`close`."""
        return self.core.left_open() or (not self.core.closing and bool(self._sends))

    def run(self, operation: Operation[T]) -> T:
        """Run one operation to its end, and return its result or raise its exception.

        Raises:
            ClientClosed: If the client is closed; nothing was done.
        """
        try:
            self._check_open()
        except ClientClosed:
            operation.close()
            raise
        return self.perform(operation)

    def _check_open(self) -> None:
        if self.core.closing and os.getpid() == self._pid:
            raise ClientClosed("the client is closed, make a new one")

    def perform(self, operation: Operation[T]) -> T:
        """Run an operation as :meth:`run` does, even after the client was closed."""
        if os.getpid() != self._pid:
            operation.close()
            raise ForkedClient(self._pid, os.getpid())
        try:
            effect = self.steps.run(operation.send, None)
            while True:
                try:
                    result = self._perform(effect)
                except Exception as error:
                    effect = self.steps.run(operation.throw, error)
                else:
                    effect = self.steps.run(operation.send, result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            operation.close()

    def route(self, topic: str, *, nameserver: str | None = None) -> TopicRouteData:
        """Ask a nameserver for a topic's route, without the cache.

        Args:
            nameserver: The only nameserver to ask; if None, any nameserver may answer.

        Raises:
            NoNameserver: If no nameserver answered.
            ResponseError: If the nameserver refused the request; code 17 if the topic has no route.
        """
        return self.run(self.admin.topic_route(topic, nameserver=nameserver))

    def producer(self, config: ProducerConfig | str) -> Producer:
        """Return a producer of a group; ``config`` is the group's name or the producer's settings."""
        return Producer(self, ProducerConfig(group=config) if isinstance(config, str) else config)

    def push_consumer(
        self, config: ConsumerConfig | str, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Return a push consumer of a group. The caller must start the consumer.

        Args:
            subscriptions: Tag expression by topic; an expression is ``*`` or ``A || B``.
            listener: A plain function, called with each batch of messages in threads of the client.

        Raises:
            InvalidArgument: If a subscription is malformed, or if calling the listener would run no code (for
                example, because it is a generator function).
        """
        check_callback("listener", listener, arguments=1)
        settings = ConsumerConfig(group=config) if isinstance(config, str) else config
        return PushConsumer(self, PushConsumerCore(self.core, settings, subscriptions, listener))

    def consume(
        self, config: ConsumerConfig | str, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Start a push consumer; see :meth:`push_consumer`."""
        consumer = self.push_consumer(config, subscriptions, listener)
        consumer.start()
        return consumer

    def pull_consumer(
        self, config: PullConsumerConfig | str, subscriptions: Mapping[str, str] | None = None
    ) -> PullConsumer:
        """Return a pull consumer that the caller must start. The caller may subscribe to topics later."""
        settings = PullConsumerConfig(group=config) if isinstance(config, str) else config
        return PullConsumer(self, PullConsumerCore(self.core, settings, subscriptions or {}))

    def submit(self, operation: Operation[T], *, wait_s: float = 3.0) -> Future[T]:
        """Run one operation in a thread of this client's pool.

        Args:
            wait_s: Longest wait in seconds while ``send_async_max`` operations run or are queued.

        Raises:
            ClientClosed: If the client is closed.
            TooManyRequests: If ``send_async_max`` operations still ran or were queued after ``wait_s``
                seconds; nothing was sent.
        """
        try:
            if not self._places.acquire(timeout=wait_s):
                raise TooManyRequests(
                    f"{self._places_max} operations wait already, the most that are allowed"
                )
            try:
                if self.core.closing:
                    raise ClientClosed("the client is closed")
                try:
                    future = self._send_threads.submit(operation)
                except RuntimeError as error:  # the process has too many threads, or Python is ending
                    raise ClientError(f"no thread can be started: {error}") from error
            except BaseException:
                self._places.release()
                raise
        except RemotingError:
            operation.close()
            raise
        self._sends.add(future)
        future.add_done_callback(self._sent)
        return future

    def _sent(self, future: Future[Any]) -> None:
        self._sends.discard(future)
        self._places.release()

    def serve_brokers(self) -> None:
        """Use separate connections for heartbeats. Threads read brokers' requests from these connections.

        A broker sends its requests over the connection on which the heartbeat came. Sends use the other
        connections. A thread that waits for the answer to a send reads the connection itself, so a send needs
        no switch between threads.
        """
        if self._membership is None:
            self._membership = BlockingClient(
                connect_timeout_s=self.core.config.connect_timeout_s, hooks=self._hooks, tls=self._tls
            )
            for code in PEER_REQUESTS:
                self._membership.on_request(code, self._peer_request)

    def _transport_for(self, request: RemotingCommand) -> BlockingClient:
        if self._membership is not None and request.code in MEMBERSHIP_REQUESTS:
            return self._membership
        return self._transport

    def _peer_request(self, addr: str, request: RemotingCommand) -> RemotingCommand | None:
        answer = self.steps.run(self.core.peer_request, request)
        # Run the operation in the thread that reads this connection. Until the operation ends, the thread
        # reads nothing else. This delays only heartbeats, because no other requests use this connection.
        return self.perform(answer) if isinstance(answer, Generator) else answer

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Invoke():
                timeout_s = self._at_most(effect.timeout_s)
                return self._transport_for(effect.request).invoke(
                    effect.addr, effect.request, timeout_s=timeout_s, unless=effect.unless
                )
            case Oneway():
                return self._transport_for(effect.request).invoke_oneway(
                    effect.addr, effect.request, unless=effect.unless
                )
            case Clock():
                return Instant(time.monotonic(), wall_clock.now_ms())
            case Wait():
                return self._wait(effect)
            case Sleep():
                return time.sleep(effect.seconds)
            case Spawn():
                return self._spawn(effect)
            case Deliver():
                return _deliver(effect)
            case Fetch():
                # Import this module only here: HTTP and TLS take 30 ms to load, and most commands do not use
                # them.
                from .fetch import http_fetch

                return http_fetch(effect, None if self._tls is None else self._tls.context())
            case _:
                assert_never(effect)

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, min(deadline_s, self.core.deadline_s) - time.monotonic())

    def _at_most(self, timeout_s: float) -> float:
        """Return the timeout, or a shorter time if the client must end earlier."""
        if self.core.deadline_s == math.inf:
            return timeout_s
        return max(0.001, min(timeout_s, self.core.deadline_s - time.monotonic()))

    def _wait(self, effect: Wait) -> bool:
        signal = effect.signal
        woken = threading.Event()
        with self.steps.lock:
            if signal.version != effect.seen:
                return True
            signal.on_next(woken.set)
        woken.wait(effect.timeout_s)
        with self.steps.lock:
            signal.forget(woken.set)
            return signal.version != effect.seen

    def _spawn(self, effect: Spawn) -> None:
        with self._spawning:
            if self.core.closing:
                effect.operation.close()
                raise ClientClosed("the client is closed")
            thread = threading.Thread(target=self._background, args=(effect,), name=effect.name, daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except BaseException as error:
                self._threads.discard(thread)
                effect.operation.close()
                if isinstance(error, RuntimeError):  # the process has too many threads, or Python is ending
                    raise ClientError(f"no thread can be started: {error}") from error
                raise

    def _background(self, effect: Spawn) -> None:
        try:
            self.perform(effect.operation)
        except Exception:  # log the failure here, because no caller waits for a background thread
            log.exception("background operation failed name=%s", effect.name)
        finally:
            self._threads.discard(threading.current_thread())


#: Open clients by ``id()``. No lock protects this dict. If another thread had the lock during a fork, the
#: lock would stay locked in the child process for ever.
_open_clients: Final[weakref.WeakValueDictionary[int, Client]] = weakref.WeakValueDictionary()
#: Ids of the processes in which :func:`close_open_clients` is registered with multiprocessing.
_finalized: Final[set[int]] = set()


def _close_at_the_end(client: Client) -> None:
    """Register a client to be closed at the end of a program that did not close it."""
    _open_clients[id(client)] = client
    # Child processes of multiprocessing do not run atexit functions.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None and os.getpid() not in _finalized:
        _finalized.add(os.getpid())
        multiprocessing.Finalize(None, close_open_clients, exitpriority=0)


@atexit.register
def close_open_clients() -> None:
    """Close the clients that the program left open, within the longest ``shutdown_s`` of these clients.

    Close only clients that would otherwise lose messages of ``put``, sends in threads, or consumers' offsets
    that are not stored.
    """
    known = [kept() for kept in _open_clients.valuerefs()]
    left = [client for client in known if client is not None and client.left_open()]
    for client in left:
        client.core.deadline_s = time.monotonic() + client.core.config.shutdown_s
    for client in left:
        try:
            client.close()
        except Exception as error:  # close the remaining clients in spite of this error
            log.warning("client not closed at the end of the program error=%r", error)


def _deliver(effect: Deliver) -> Any:
    try:
        return effect.call(effect.argument)
    except (Exception, KeyboardInterrupt):
        raise
    # The listener has raised, for example, SystemExit, or the CancelledError of an event loop that it runs.
    except BaseException as error:
        raise ListenerEnded(error) from error


def local_identity() -> Identity:
    """Return an identity for a new client of this process."""
    return Identity(ip=own_address(), pid=os.getpid(), serial=next(_serials) & 0xFFFFFFFF)
