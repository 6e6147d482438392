"""The blocking driver: performs the effects of operations on plain sockets, for threads and greenlets.

    with Client(ClientConfig(nameservers=("127.0.0.1:9876",))) as client:
        producer = client.producer(ProducerConfig(group="orders"))
        result = producer.send(Message(topic="Orders", body=b"..."))
        client.consume(ConsumerConfig(group="billing"), {"Orders": "*"}, listen)

Any operation of ``client.admin`` or :mod:`client.broker_registration` runs by ``client.run(operation)``,
from any thread.

Used without ``with``, a client starts no thread at all: routes are refreshed by the send that finds them due,
and no heartbeats are sent. That is the form for load generators with many clients in one process, also under
gevent's patching::

    client = Client(ClientConfig(nameservers=(addr,)), hooks=(timing,))
    route = client.route("Orders", nameserver=addr)       # one 105 to this nameserver, never from a cache
    client.run(register(addr, registration))              # one 103, see client.broker_registration
    client.close()

Hooks see each request before it is sent and each answer before its caller does
(``remoting.transport.Hook``).
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar, assert_never

from client.admin import Admin
from client.config import ClientConfig, ProducerConfig
from client.consumer import ConsumerConfig, Listener, PushConsumerCore
from client.core import MEMBERSHIP_REQUESTS, PEER_REQUESTS, ClientCore, Identity
from client.errors import ClientClosed
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
from remoting.route import TopicRouteData
from remoting.transport import Hook
from remoting.transport.blocking import BlockingClient

log = logging.getLogger(__name__)
T = TypeVar("T")
_serials: Final = itertools.count(secrets.randbits(31))


class Client:
    """One client, safe for use by several threads or greenlets.

    Args:
        hooks: See each request before it is sent and each answer before its caller does.
        send_threads: How many sends of :meth:`Producer.send_async` are under way at a time.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        hooks: tuple[Hook, ...] = (),
        rng: random.Random | None = None,
        send_threads: int = 8,
    ) -> None:
        self.core = ClientCore(config, local_identity(), rng or random.Random())
        self.admin = Admin(self.core.directory)
        self._hooks = hooks
        self._step = threading.Lock()  # one operation of this client at a time is between two effects
        self._transport = BlockingClient(connect_timeout_s=config.connect_timeout_s, hooks=hooks)
        self._membership: BlockingClient | None = None
        self._threads: set[threading.Thread] = set()
        self._spawning = threading.Lock()  # a thread is known once it runs; none begins once we wait for all
        self._send_threads = send_threads
        self._pool: ThreadPoolExecutor | None = None
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the background threads: route, nameserver and heartbeat refresh. Done by ``with``."""
        if not self._started:
            self._started = True
            self.run(self.core.start())

    def close(self) -> None:
        """Close consumers and producers, end the background threads, close the connections."""
        if self.core.closing:
            return
        try:
            self.run(self.core.close())
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
            self._transport.close()
            if self._membership is not None:
                self._membership.close()
            with self._spawning:
                threads = tuple(self._threads)
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(timeout=self.core.config.shutdown_s)

    def run(self, operation: Operation[T]) -> T:
        """Run one operation to its end; return its result or raise what it raises."""
        try:
            with self._step:
                effect = next(operation)
            while True:
                try:
                    result = self._perform(effect)
                except Exception as error:
                    with self._step:
                        effect = operation.throw(error)
                else:
                    with self._step:
                        effect = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            operation.close()

    def route(self, topic: str, *, nameserver: str | None = None) -> TopicRouteData:
        """Ask a nameserver for a topic's route, now and over the wire.

        Args:
            nameserver: Ask this one and no other.

        Raises:
            NoNameserver: If none answered.
            ResponseError: If it refused; code 17 if there is no route.
        """
        return self.run(self.admin.topic_route(topic, nameserver=nameserver))

    def producer(self, config: ProducerConfig) -> Producer:
        """Return a producer; there is nothing to start or to close."""
        self.core.add_producer(config.group)
        return Producer(self, config)

    def consume(
        self, config: ConsumerConfig, subscriptions: Mapping[str, str], listener: Listener
    ) -> PushConsumer:
        """Start a push consumer: topic to tag expression, and what is called with each batch, in threads."""
        core = PushConsumerCore(self.core, config, subscriptions, listener)
        self._serve_brokers()
        self.start()
        self.run(core.start())
        return PushConsumer(self, core)

    def pull_consumer(self, group: str) -> PullConsumerCore:
        """Return the operations of a pull consumer, for :meth:`run`."""
        return PullConsumerCore(self.core, group)

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Run one operation in a thread of this client's pool.

        Raises:
            ClientClosed: If the client is closed.
        """
        if self.core.closing:
            operation.close()
            raise ClientClosed("the client is closed")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._send_threads, thread_name_prefix="client")
        return self._pool.submit(self.run, operation)

    def _serve_brokers(self) -> None:
        """Send heartbeats over connections of their own, whose threads read what brokers ask of us.

        Brokers send their requests over the connection that brought the heartbeat. Everything else stays on
        connections without threads, where one of the waiting callers reads: a send pays no change of threads.
        """
        if self._membership is None:
            self._membership = BlockingClient(
                connect_timeout_s=self.core.config.connect_timeout_s, hooks=self._hooks
            )
            for code in PEER_REQUESTS:
                self._membership.on_request(code, self._peer_request)

    def _transport_for(self, request: RemotingCommand) -> BlockingClient:
        if self._membership is not None and request.code in MEMBERSHIP_REQUESTS:
            return self._membership
        return self._transport

    def _peer_request(self, addr: str, request: RemotingCommand) -> RemotingCommand | None:
        with self._step:
            return self.core.peer_request(request)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Invoke():
                return self._transport_for(effect.request).invoke(
                    effect.addr, effect.request, timeout_s=effect.timeout_s
                )
            case Oneway():
                return self._transport_for(effect.request).invoke_oneway(effect.addr, effect.request)
            case Clock():
                return Instant(time.monotonic(), time.time_ns() // 1_000_000)
            case Wait():
                return self._wait(effect)
            case Sleep():
                return time.sleep(effect.seconds)
            case Spawn():
                return self._spawn(effect)
            case Deliver():
                return effect.call(effect.argument)
            case Fetch():
                # HTTP and TLS are 30 ms of loading, and most commands speak remoting only
                from client.fetch import http_fetch

                return http_fetch(effect)
            case _:
                assert_never(effect)

    def _wait(self, effect: Wait) -> bool:
        signal = effect.signal
        woken = threading.Event()
        with self._step:
            if signal.version != effect.seen:
                return True
            signal.on_next(woken.set)
        woken.wait(effect.timeout_s)
        with self._step:
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
            except BaseException:
                self._threads.discard(thread)
                raise

    def _background(self, effect: Spawn) -> None:
        try:
            self.run(effect.operation)
        except Exception:  # a thread's boundary: one failed operation must not go unseen
            log.exception("background operation failed name=%s", effect.name)
        finally:
            self._threads.discard(threading.current_thread())


class Producer:
    """Sends messages of one group; see :class:`client.producer.ProducerCore` for meaning and errors."""

    def __init__(self, client: Client, config: ProducerConfig) -> None:
        self._client = client
        self.core = ProducerCore(config, client.core.directory, client.core.ids, client.core.rng)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored."""
        return self._client.run(self.core.send(message, queue=queue, select=select, timeout_s=timeout_s))

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Send one message; the future ends as :meth:`send` would.

        Raises:
            ClientClosed: If the client is closed.
        """
        return self._client.submit(self.core.send(message, queue=queue, select=select, timeout_s=timeout_s))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request."""
        return self._client.run(self.core.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, select: QueueSelector | None = None
    ) -> None:
        """Send one message without asking for an answer."""
        self._client.run(self.core.send_oneway(message, queue=queue, select=select))


class PushConsumer:
    """A running push consumer; see :class:`client.consumer.PushConsumerCore`."""

    def __init__(self, client: Client, core: PushConsumerCore) -> None:
        self._client = client
        self.core = core

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Queues that this member consumes now."""
        return self.core.assigned

    def close(self) -> None:
        """Stop: end listener calls, store offsets, leave the group."""
        self._client.run(self.core.close())


def local_identity() -> Identity:
    """Return an identity for one more client of this process."""
    return Identity(ip=local_ip(), pid=os.getpid(), serial=next(_serials) & 0xFFFFFFFF)


def local_ip() -> str:
    """Return the address this machine uses towards others, the loopback one if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation network: chooses a source address, sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
