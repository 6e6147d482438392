"""Producers, consumers and administration that :class:`routekeeper.client.aio.Client` returns to its users.

Most methods of these classes only run an operation. The operation's docstring describes arguments and errors.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.errors import RemotingError

from .admin import Admin as AdminOperations
from .callbacks import check_not_awaited
from .config import ProducerConfig
from .consumer import PushConsumerCore
from .core import ClientCore
from .errors import ClientClosed
from .linger import LingerCore, OnDelivery, call_back
from .member import GroupMember
from .methods import show_as_called
from .operation import Operation
from .producer import Message, ProducerCore, QueueSelector, SendResult
from .pull_consumer import PullConsumerCore
from .queue_reader import ReceivedMessage

P = ParamSpec("P")
T = TypeVar("T")


class Client(Protocol):
    """Members of :class:`routekeeper.client.aio.Client` that this module uses; see that class."""

    core: ClientCore
    admin: AdminOperations

    async def start(self) -> None: ...

    def serve_brokers(self) -> None: ...

    async def run(self, operation: Operation[T]) -> T: ...

    async def perform(self, operation: Operation[T]) -> T: ...


def _awaited(
    operation: Callable[Concatenate[Any, P], Operation[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that runs the operation of ``self.core`` with the same name and arguments."""
    name = operation.__name__

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._client.run(getattr(self.core, name)(*args, **kwargs))
        return result

    functools.update_wrapper(method, operation)
    return method


@show_as_called
class Producer:
    """A producer of one group. :class:`routekeeper.client.producer.ProducerCore` describes the methods.

    A producer needs no start. :meth:`close`, or the end of ``async with``, sends the messages that were added
    with :meth:`put` and are not sent yet.
    """

    def __init__(self, client: Client, config: ProducerConfig) -> None:
        self._client = client
        self.core = ProducerCore(config, client.core.directory, client.core.ids, client.core.rng)
        self._linger = LingerCore(client.core, self.core, _tell)
        client.core.add_producer(
            self.core.config.group,
            self.core,
            self._linger.close,
            self._linger.end,
            lambda: self._linger.unsent,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    send = _awaited(ProducerCore.send)
    send_batch = _awaited(ProducerCore.send_batch)
    send_oneway = _awaited(ProducerCore.send_oneway)
    queues = _awaited(ProducerCore.queues)

    async def put(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> asyncio.Future[SendResult]:
        """Add a message to a batch, which is sent after ``linger_s`` seconds at the latest.

        This method waits while this message and all unsent messages would together exceed ``buffer_size``
        bytes.

        The returned future ends with the result or the error that :meth:`send` would produce. Before the
        future ends, the client calls ``on_delivery(error, result)``, with None for one of the two arguments.
        ``on_delivery`` must be a plain function.

        Raises:
            InvalidArgument: If the message cannot be sent in a batch; it was not added.
            ClientClosed: If the producer is closed; the message was not added.
        """
        if on_delivery is not None:
            check_not_awaited("on_delivery", on_delivery)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        await self._client.run(self._linger.put(message, (future, on_delivery), queue=queue, select=select))
        return future

    async def flush(self) -> None:
        """Send the messages that were put before, and return when the outcome of each of them is known."""
        await self._client.perform(self._linger.flush())

    async def close(self) -> None:
        """Send the messages of :meth:`put`, and leave the group."""
        await self._client.perform(self._client.core.close_producer(self.core.config.group, self.core))


async def _tell(outcomes: Sequence[tuple[Any, SendResult | RemotingError]]) -> list[BaseException]:
    failures = []
    for (future, on_delivery), outcome in outcomes:
        if on_delivery is not None and (failure := call_back(on_delivery, outcome)) is not None:
            failures.append(failure)
        if future.done():
            continue  # the future is done already, because the user has cancelled it
        if isinstance(outcome, RemotingError):
            future.set_exception(outcome)
            if on_delivery is not None:
                # ``on_delivery`` has reported the error already, so the user may never read the future. Read
                # its error here, because asyncio logs each error of a future that nobody has read.
                future.exception()
        else:
            future.set_result(outcome)
    return failures


@show_as_called
class Consumer:
    """Methods of push and pull consumers; :class:`routekeeper.client.member.GroupMember` describes them."""

    def __init__(self, client: Client, core: GroupMember) -> None:
        self._client = client
        self.core = core

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Return the queues that this member consumes now."""
        return self.core.assigned

    async def start(self) -> None:
        """Join the group and begin to pull. Start the client first if it is not started.

        ``async with`` calls this method.
        """
        self._client.serve_brokers()
        await self._client.start()
        await self._client.run(self.core.start())

    async def close(self) -> None:
        """Stop pulling, wait for running calls of the listener, store offsets, leave the group."""
        await self._client.perform(self.core.close())

    subscribe = _awaited(GroupMember.subscribe)
    unsubscribe = _awaited(GroupMember.unsubscribe)
    seek = _awaited(GroupMember.seek)

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling and delivering messages of these queues, by default of all assigned queues."""
        self.core.pause(queues or self.core.assigned)

    def resume(self, *queues: MessageQueue) -> None:
        """Pull and deliver messages of these paused queues again, by default of all paused queues."""
        self.core.resume(queues or tuple(self.core.paused))


class PushConsumer(Consumer):
    """A consumer that calls a listener; see :class:`routekeeper.client.consumer.PushConsumerCore`."""

    core: PushConsumerCore


@show_as_called
class PullConsumer(Consumer):
    """A consumer that returns messages on request.

    :class:`routekeeper.client.pull_consumer.PullConsumerCore` describes the methods.

        async with client.pull_consumer("billing", {"Orders": "*"}) as consumer:
            async for message in consumer:
                ...

    The loop ends when the consumer is closed. A message counts as consumed when the next message is
    requested.
    """

    core: PullConsumerCore

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        try:
            (message,) = await self._client.run(self.core.poll(count=1))
        except ClientClosed:
            raise StopAsyncIteration from None
        return message

    poll = _awaited(PullConsumerCore.poll)
    commit = _awaited(PullConsumerCore.commit)
    committed = _awaited(PullConsumerCore.committed)
    min_offset = _awaited(PullConsumerCore.min_offset)
    max_offset = _awaited(PullConsumerCore.max_offset)
    search_offset = _awaited(PullConsumerCore.search_offset)


@show_as_called
class Admin:
    """Requests of administrators to nameservers and brokers; see :class:`routekeeper.client.admin.Admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.core = client.admin

    topic_route = _awaited(AdminOperations.topic_route)
    cluster_info = _awaited(AdminOperations.cluster_info)
    topic_list = _awaited(AdminOperations.topic_list)
    kv_get = _awaited(AdminOperations.kv_get)
    kv_list = _awaited(AdminOperations.kv_list)
    kv_put = _awaited(AdminOperations.kv_put)
    kv_delete = _awaited(AdminOperations.kv_delete)
    wipe_write_perm = _awaited(AdminOperations.wipe_write_perm)
    add_write_perm = _awaited(AdminOperations.add_write_perm)
    namesrv_config = _awaited(AdminOperations.namesrv_config)
    update_namesrv_config = _awaited(AdminOperations.update_namesrv_config)
    delete_topic_in_nameservers = _awaited(AdminOperations.delete_topic_in_nameservers)
    create_topic = _awaited(AdminOperations.create_topic)
    create_topic_in_cluster = _awaited(AdminOperations.create_topic_in_cluster)
    delete_topic_in_broker = _awaited(AdminOperations.delete_topic_in_broker)
    topic_stats = _awaited(AdminOperations.topic_stats)
    broker_runtime = _awaited(AdminOperations.broker_runtime)
    broker_config = _awaited(AdminOperations.broker_config)
    call = _awaited(AdminOperations.call)
    consume_stats = _awaited(AdminOperations.consume_stats)
    consumer_connection = _awaited(AdminOperations.consumer_connection)
    consumer_groups_of = _awaited(AdminOperations.consumer_groups_of)
    add_to_order_conf = _awaited(AdminOperations.add_to_order_conf)
    explain_route = _awaited(AdminOperations.explain_route)
