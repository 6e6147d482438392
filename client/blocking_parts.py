"""Producers, consumers and administration that :class:`routekeeper.client.blocking.Client` returns to users.

These classes only run operations. The operations' docstrings describe the meaning and the errors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, TypeVarTuple

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.errors import RemotingError

from .admin import Admin as AdminOperations
from .callbacks import check_not_awaited
from .config import ProducerConfig, check_timeout
from .consumer import PushConsumerCore
from .core import ClientCore
from .errors import ClientClosed, InvalidArgument
from .linger import LingerCore, OnDelivery, call_back
from .member import GroupMember
from .methods import show_as_called
from .operation import Operation
from .producer import Message, ProducerCore, QueueSelector, SendResult
from .pull_consumer import PullConsumerCore
from .queue_reader import ReceivedMessage

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Steps:
    """A runner for the code of a client's operations. Only one thread at a time runs such code.

    A thread does its I/O between two calls of :meth:`run`, so a slow server blocks no other thread.

    Attributes:
        lock: Held while :meth:`run` runs code of an operation. Other code that holds this lock must not call
            functions of the user.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._thread: int | None = None  # id of the thread that runs run() now

    def run(self, call: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call a function that reads or changes the state of operations.

        Raises:
            InvalidArgument: As :meth:`check`; ``call`` was not called.
        """
        self.check()
        with self.lock:
            self._thread = threading.get_ident()
            try:
                return call(*arguments)
            finally:
                self._thread = None

    def check(self) -> None:
        """Check that the current thread is not inside :meth:`run`.

        Operations call functions of the user, such as queue selectors and log handlers. If such a function
        used the client, the thread would wait for its own lock for ever.

        Raises:
            InvalidArgument: If the current thread is inside :meth:`run`.
        """
        # Check the lock, too: if KeyboardInterrupt interrupted run(), ``_thread`` may be out of date.
        if self._thread == threading.get_ident() and self.lock.locked():
            raise InvalidArgument(
                "a queue selector, log handler or signal handler called the client inside a call of the same"
                " client, and would never end; allowed are calls in other threads, or after the outer call"
            )


class Client(Protocol):
    """Members of :class:`routekeeper.client.blocking.Client` that this module uses; see that class."""

    core: ClientCore
    admin: AdminOperations
    steps: Steps

    def start(self) -> None: ...

    def run(self, operation: Operation[T]) -> T: ...

    def perform(self, operation: Operation[T]) -> T: ...

    def perform_close(self, operation: Operation[Any]) -> None: ...

    def submit(self, operation: Operation[T], *, wait_s: float = ...) -> Future[T]: ...

    def serve_brokers(self) -> None: ...


def _performed(operation: Callable[Concatenate[Any, P], Operation[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs an operation of ``self.core``.

    The operation has the name of ``operation``, and gets the arguments of the call.
    """
    name = operation.__name__

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._client.run(getattr(self.core, name)(*args, **kwargs))
        return result

    functools.update_wrapper(method, operation)
    return method


@show_as_called
class Producer:
    """A producer of one group. :class:`routekeeper.client.producer.ProducerCore` describes the methods.

    A producer needs no start. :meth:`close`, or the end of ``with``, sends the messages that were added with
    :meth:`put` and are not sent yet.
    """

    def __init__(self, client: Client, config: ProducerConfig) -> None:
        self._client = client
        self.core = ProducerCore(config, client.core.directory, client.core.ids, client.core.rng)
        self._linger = LingerCore(client.core, self.core, functools.partial(_tell, self.core))
        client.core.add_producer(
            self.core.config.group,
            self.core,
            self._linger.close,
            self._linger.end,
            lambda: self._linger.unsent,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    send = _performed(ProducerCore.send)
    send_batch = _performed(ProducerCore.send_batch)
    send_oneway = _performed(ProducerCore.send_oneway)
    queues = _performed(ProducerCore.queues)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> Future[SendResult]:
        """Send one message in a thread, and return a future with the result or the error of :meth:`send`.

        This method waits while ``send_async_max`` sends run or are queued. It waits for at most ``timeout_s``
        seconds, or ``send_timeout_s`` if ``timeout_s`` is None.

        Raises:
            ClientClosed: If the client is closed.
            TooManyRequests: If ``send_async_max`` sends still ran or were queued after this wait; nothing was
                sent.
        """
        if timeout_s is not None:
            check_timeout(timeout_s)
        wait_s = self.core.config.send_timeout_s if timeout_s is None else timeout_s
        return self._client.submit(
            self.core.send(message, queue=queue, select=select, timeout_s=timeout_s), wait_s=wait_s
        )

    def put(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future[SendResult]:
        """Add a message to a batch, which is sent after ``linger_s`` seconds at the latest.

        This method waits while this message and all unsent messages would together exceed ``buffer_size``
        bytes.

        The returned future ends with the result or the error that :meth:`send` would produce. Before the
        future ends, a thread of the client calls ``on_delivery(error, result)``, with None for one of the two
        arguments.

        ``on_delivery`` may call this method, for example to send the message again. A call from
        ``on_delivery`` never waits, because buffer space becomes free only after ``on_delivery`` has
        returned.

        Raises:
            InvalidArgument: If the message cannot be sent in a batch; it was not added.
            ClientClosed: If the producer is closed; the message was not added.
        """
        if on_delivery is not None:
            check_not_awaited("on_delivery", on_delivery)
        future: Future[SendResult] = Future()
        self._client.run(
            self._linger.put(
                message,
                (future, on_delivery),
                queue=queue,
                select=select,
                may_wait=self.core not in _reporting.producers,
            )
        )
        return future

    def flush(self) -> None:
        """Send the messages that were put before, and return when the outcome of each of them is known.

        Raises:
            InvalidArgument: If a delivery callback of this producer calls this method. The call would wait
                for ever for the message of that callback.
        """
        if self.core in _reporting.producers:
            raise InvalidArgument(
                f"flush of group {self.core.config.group!r} in its own delivery callback would never end,"
                " allowed is flush outside of the callback"
            )
        self._client.perform(self._linger.flush())

    def close(self) -> None:
        """Send the messages of :meth:`put`, and leave the group."""
        self._client.perform_close(self._client.core.close_producer(self.core.config.group, self.core))


class _Reporting(threading.local):
    """The producers for which the current thread is reporting the outcomes of messages.

    During the report, the thread calls callbacks of the user. A callback must not wait for space in the
    producer's buffer, because the reported messages use that space until the callback has returned.
    """

    producers: frozenset[ProducerCore] = frozenset()


_reporting = _Reporting()


def _tell(
    producer: ProducerCore, outcomes: Sequence[tuple[Any, SendResult | RemotingError]]
) -> list[BaseException]:
    failures = []
    former = _reporting.producers
    _reporting.producers = former | {producer}
    try:
        for (future, on_delivery), outcome in outcomes:
            if on_delivery is not None and (failure := call_back(on_delivery, outcome)) is not None:
                failures.append(failure)
            if not future.set_running_or_notify_cancel():
                continue  # the future is done already, because the user has cancelled it
            if isinstance(outcome, RemotingError):
                future.set_exception(outcome)  # this call also runs the future's own callbacks
            else:
                future.set_result(outcome)
    finally:
        _reporting.producers = former
    return failures


@show_as_called
class Consumer:
    """Methods of push and pull consumers; :class:`routekeeper.client.member.GroupMember` describes them."""

    def __init__(self, client: Client, core: GroupMember) -> None:
        self._client = client
        self.core = core

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Return the queues that this member consumes now."""
        return self.core.assigned

    def start(self) -> None:
        """Join the group and begin to pull; start the client if needed. ``with`` calls this method."""
        self._client.serve_brokers()
        self._client.start()
        self._client.run(self.core.start())

    def close(self) -> None:
        """Stop pulling, wait for running calls of the listener, store offsets, leave the group."""
        self._client.perform_close(self.core.close())

    subscribe = _performed(GroupMember.subscribe)
    unsubscribe = _performed(GroupMember.unsubscribe)
    seek = _performed(GroupMember.seek)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling and delivering messages of these queues, by default of all assigned queues."""
        self._client.steps.run(lambda: self.core.pause(queues or self.core.assigned))

    def resume(self, *queues: MessageQueue) -> None:
        """Pull and deliver messages of these paused queues again, by default of all paused queues."""
        self._client.steps.run(lambda: self.core.resume(queues or tuple(self.core.paused)))


class PushConsumer(Consumer):
    """A consumer that calls a listener; see :class:`routekeeper.client.consumer.PushConsumerCore`."""

    core: PushConsumerCore


@show_as_called
class PullConsumer(Consumer):
    """A consumer that returns messages on request.

    :class:`routekeeper.client.pull_consumer.PullConsumerCore` describes the methods.

        with client.pull_consumer("billing", {"Orders": "*"}) as consumer:
            for message in consumer:
                ...

    The loop ends when the consumer is closed. A message counts as consumed when the next message is
    requested.
    """

    core: PullConsumerCore

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            (message,) = self._client.run(self.core.poll(count=1))
        except ClientClosed:
            raise StopIteration from None
        return message

    poll = _performed(PullConsumerCore.poll)
    commit = _performed(PullConsumerCore.commit)
    committed = _performed(PullConsumerCore.committed)
    min_offset = _performed(PullConsumerCore.min_offset)
    max_offset = _performed(PullConsumerCore.max_offset)
    search_offset = _performed(PullConsumerCore.search_offset)


@show_as_called
class Admin:
    """Requests of administrators to nameservers and brokers; see :class:`routekeeper.client.admin.Admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.core = client.admin

    topic_route = _performed(AdminOperations.topic_route)
    cluster_info = _performed(AdminOperations.cluster_info)
    topic_list = _performed(AdminOperations.topic_list)
    kv_get = _performed(AdminOperations.kv_get)
    kv_list = _performed(AdminOperations.kv_list)
    kv_put = _performed(AdminOperations.kv_put)
    kv_delete = _performed(AdminOperations.kv_delete)
    wipe_write_perm = _performed(AdminOperations.wipe_write_perm)
    add_write_perm = _performed(AdminOperations.add_write_perm)
    namesrv_config = _performed(AdminOperations.namesrv_config)
    update_namesrv_config = _performed(AdminOperations.update_namesrv_config)
    delete_topic_in_nameservers = _performed(AdminOperations.delete_topic_in_nameservers)
    create_topic = _performed(AdminOperations.create_topic)
    create_topic_in_cluster = _performed(AdminOperations.create_topic_in_cluster)
    delete_topic_in_broker = _performed(AdminOperations.delete_topic_in_broker)
    topic_stats = _performed(AdminOperations.topic_stats)
    broker_runtime = _performed(AdminOperations.broker_runtime)
    broker_config = _performed(AdminOperations.broker_config)
    call = _performed(AdminOperations.call)
    consume_stats = _performed(AdminOperations.consume_stats)
    consumer_connection = _performed(AdminOperations.consumer_connection)
    consumer_groups_of = _performed(AdminOperations.consumer_groups_of)
    add_to_order_conf = _performed(AdminOperations.add_to_order_conf)
    explain_route = _performed(AdminOperations.explain_route)
