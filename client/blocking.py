"""The blocking driver: performs the effects of operations on plain sockets, for threads and greenlets.

    with Client(ClientConfig(nameservers=("127.0.0.1:9876",))) as client:
        producer = client.producer(ProducerConfig(group="orders"))
        result = producer.send(Message(topic="Orders", body=b"..."))
        client.consume(ConsumerConfig(group="billing"), {"Orders": "*"}, listen)

Any operation runs by ``client.run(operation)``, from any thread.

Without ``with``, a client starts no thread at all: a send refreshes a route that is due, and no heartbeats
are sent. This form suits load generators with many clients in one process, also under gevent's patching::

    client = Client(ClientConfig(nameservers=(addr,)), hooks=(timing,))
    route = client.route("Orders", nameserver=addr)       # one 105 to this nameserver, never from a cache
    client.close()

Hooks get each request before it is sent, and each answer before its caller
(``routekeeper.RPCHook``).
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import random
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Self, TypeVar, assert_never

from routekeeper.remoting import wall_clock
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError, TooManyRequests
from routekeeper.remoting.route import TopicRouteData
from routekeeper.remoting.transport import RPCHook
from routekeeper.remoting.transport.blocking import BlockingClient

from .admin import Admin as AdminOperations
from .blocking_parts import Admin as Admin
from .blocking_parts import Producer as Producer
from .blocking_parts import PullConsumer as PullConsumer
from .blocking_parts import PushConsumer as PushConsumer
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
#: Seconds within which threads must end that do not wait for anything.
_MOMENT_S: Final = 1.0
MakeCore = Callable[[ClientConfig, Identity, random.Random], ClientCore]
_serials: Final = itertools.count(secrets.randbits(31))


class Client:
    """One client, safe for use by several threads or greenlets.

    Args:
        hooks: They get each request before it is sent, and each answer before its caller.
        send_threads: Number of sends of :meth:`Producer.send_async` that are under way at the same time.
        send_async_max: Bound of these sends that are under way or queued; at the bound, ``send_async`` waits.
        core: Makes the core, as :class:`~routekeeper.client.core.ClientCore` does.
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
        #: The operation of this client that runs between two effects holds this lock; read its state only
        #: under the lock.
        self.between_steps = threading.Lock()
        self._tls = secured(self.core.directory)
        self._transport = BlockingClient(
            connect_timeout_s=config.connect_timeout_s, hooks=hooks, tls=self._tls
        )
        self._membership: BlockingClient | None = None
        self._threads: set[threading.Thread] = set()
        # Held while a thread starts and is listed: so every running thread is listed, and none starts once we
        # wait for all.
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
        self._started = False
        _close_at_the_end(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the background threads: route, nameserver and heartbeat refresh. Done by ``with``."""
        self._check_open()
        if not self._started:
            self._started = True
            self.perform(self.core.start())

    def close(self) -> None:
        """Close consumers and producers, end the background threads, close the connections.

        Listeners, sends in threads and the client's own threads have ``shutdown_s`` together. Sends that are
        left then fail; their errors name the outcome.
        """
        if self.core.closing or os.getpid() != self._pid:
            return  # a forked process has nothing to close: the parent is the member
        _open_clients.pop(id(self), None)
        deadline_s = time.monotonic() + self.core.config.shutdown_s
        try:
            self.perform(self.core.close())
        finally:
            left = wait(tuple(self._sends), timeout=self._left_s(deadline_s)).not_done
            if left:
                log.warning("sends cut off, the client was closed sends=%d", len(left))
            self._transport.close(timeout_s=self._left_s(deadline_s))
            if self._membership is not None:
                self._membership.close(timeout_s=self._left_s(deadline_s))
            # Threads whose requests were cut off end now, unless something else blocks them.
            wait(left, timeout=self._left_s(time.monotonic() + _MOMENT_S))
            self._send_threads.end()
            # The other threads end within a moment. So wait for them even if the listeners used all the time.
            deadline_s = max(deadline_s, time.monotonic() + self._left_s(time.monotonic() + _MOMENT_S))
            with self._spawning:
                threads = tuple(self._threads)
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(timeout=self._left_s(deadline_s))
            self.perform(self.core.end())

    def left_open(self) -> bool:
        """Return whether data are lost if the program ends without :meth:`close`."""
        return self.core.left_open() or (not self.core.closing and bool(self._sends))

    def run(self, operation: Operation[T]) -> T:
        """Run one operation to its end; return its result or raise its exception.

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
            with self.between_steps:
                effect = next(operation)
            while True:
                try:
                    result = self._perform(effect)
                except Exception as error:
                    with self.between_steps:
                        effect = operation.throw(error)
                else:
                    with self.between_steps:
                        effect = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            operation.close()

    def route(self, topic: str, *, nameserver: str | None = None) -> TopicRouteData:
        """Ask a nameserver for a topic's route, never the cache.

        Args:
            nameserver: Ask this nameserver and no other.

        Raises:
            NoNameserver: If no nameserver answered.
            ResponseError: If the nameserver refused; code 17 if there is no route.
        """
        return self.run(self.admin.topic_route(topic, nameserver=nameserver))

    def producer(self, config: ProducerConfig | str) -> Producer:
        """Return a producer of a group, named or with its settings."""
        return Producer(self, ProducerConfig(group=config) if isinstance(config, str) else config)

    def push_consumer(
        self, config: ConsumerConfig | str, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Return a push consumer of a group, to be started.

        Args:
            subscriptions: Topic to tag expression, ``*`` or ``A || B``.
            listener: A plain function, called with each batch in threads of the client.

        Raises:
            InvalidArgument: If a subscription is malformed, or a call of the listener would not run.
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
        """Return a pull consumer of a group, to be started; more can be subscribed later."""
        settings = PullConsumerConfig(group=config) if isinstance(config, str) else config
        return PullConsumer(self, PullConsumerCore(self.core, settings, subscriptions or {}))

    def submit(self, operation: Operation[T], *, wait_s: float = 3.0) -> Future[T]:
        """Run one operation in a thread of this client's pool.

        Args:
            wait_s: Longest wait for a place if too many operations wait for a thread already.

        Raises:
            ClientClosed: If the client is closed.
            TooManyRequests: If there was no place in time; nothing was sent.
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
                except RuntimeError as error:  # too many threads, or the interpreter ends
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
        """Send heartbeats over connections of their own, whose threads read brokers' requests.

        Brokers send their requests over the connection of the heartbeat. All other requests use connections
        without threads, where one of the waiting callers reads. So a send needs no change of threads.
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
        with self.between_steps:
            answer = self.core.peer_request(request)
        # run it in the thread that reads: the broker waits for this answer, and heartbeats can wait that long
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
                # import it only here: HTTP and TLS take 30 ms to load, and most commands do not use them
                from .fetch import http_fetch

                return http_fetch(effect, None if self._tls is None else self._tls.context())
            case _:
                assert_never(effect)

    def _left_s(self, deadline_s: float) -> float:
        return max(0.0, min(deadline_s, self.core.deadline_s) - time.monotonic())

    def _at_most(self, timeout_s: float) -> float:
        """Return the timeout, or a shorter one if the program ends earlier."""
        if self.core.deadline_s == math.inf:
            return timeout_s
        return max(0.001, min(timeout_s, self.core.deadline_s - time.monotonic()))

    def _wait(self, effect: Wait) -> bool:
        signal = effect.signal
        woken = threading.Event()
        with self.between_steps:
            if signal.version != effect.seen:
                return True
            signal.on_next(woken.set)
        woken.wait(effect.timeout_s)
        with self.between_steps:
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
                if isinstance(error, RuntimeError):  # too many threads, or the interpreter ends
                    raise ClientError(f"no thread can be started: {error}") from error
                raise

    def _background(self, effect: Spawn) -> None:
        try:
            self.perform(effect.operation)
        except Exception:  # This is the boundary of a thread: log every failed operation.
            log.exception("background operation failed name=%s", effect.name)
        finally:
            self._threads.discard(threading.current_thread())


#: Open clients by identity. There is no lock: a fork could copy it while it is locked, for ever.
_open_clients: Final[weakref.WeakValueDictionary[int, Client]] = weakref.WeakValueDictionary()
#: Processes in which open clients are registered at multiprocessing, too.
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
    """Close the clients that the program left open, all of them within the longest ``shutdown_s`` of one.

    It closes only clients that would lose something: messages of ``put``, sends in threads, or offsets of
    consumers that are not stored.
    """
    known = [kept() for kept in _open_clients.valuerefs()]
    left = [client for client in known if client is not None and client.left_open()]
    for client in left:
        client.core.deadline_s = time.monotonic() + client.core.config.shutdown_s
    for client in left:
        try:
            client.close()
        except Exception as error:  # go on, because the other clients must be closed, too
            log.warning("client not closed at the end of the program error=%r", error)


def _deliver(effect: Deliver) -> Any:
    try:
        return effect.call(effect.argument)
    except (Exception, KeyboardInterrupt):
        raise
    # such as SystemExit, or the CancelledError of a loop that the listener runs
    except BaseException as error:
        raise ListenerEnded(error) from error


def local_identity() -> Identity:
    """Return an identity for a new client of this process."""
    return Identity(ip=local_ip(), pid=os.getpid(), serial=next(_serials) & 0xFFFFFFFF)


def local_ip() -> str:
    """Return the address from which this machine reaches others; the loopback address if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # an address of the documentation network: connect() chooses a source address and sends nothing
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
