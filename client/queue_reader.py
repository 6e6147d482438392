"""Operations on single queues: pull messages, read offsets and store offsets. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from routekeeper.remoting.bodies import MessageQueue, SubscriptionData
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError, ResponseError
from routekeeper.remoting.fields import (
    FieldError,
    OffsetResponseFields,
    PullMessageFields,
    PullMessageResponseFields,
    QueryConsumerOffsetFields,
    QueueFields,
    SearchOffsetFields,
    UpdateConsumerOffsetFields,
)
from routekeeper.remoting.lenient import INT64_MAX
from routekeeper.remoting.message import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SYS_COMPRESSED,
    StoredMessage,
    decode_head,
    decode_message,
    decode_properties,
    decompress_body,
    parse_subscription,
    tag_hash,
)

from .config import check_group, check_text, check_topic
from .core import ClientCore
from .directory import ensure_success
from .errors import InvalidArgument, NoRoute, describe
from .messages import Message, own_properties
from .operation import Invoke, Oneway, Operation
from .process_queue import PROPERTY_BYTES, memory_size
from .route_cache import pick_read_addr

_PULL_COMMIT: Final = 1
_PULL_SUSPEND: Final = 2
_PULL_SUBSCRIPTION: Final = 4
#: Largest decompressed body, in bytes. A message with a larger body counts as unreadable.
BODY_MAX: Final = 16 * 1024 * 1024
#: Largest memory in bytes that one message takes, see :func:`.process_queue.memory_size`. The text of the
#: properties has a largest size. Each property takes at least four bytes of the text, so the number of
#: properties is limited, too.
MESSAGE_MAX: Final = BODY_MAX + PROPERTY_BYTES * (PROPERTIES_SIZE_MAX // 4 + 1)
#: Limit in bytes for the memory that the messages of one answer take.
PULL_MAX: Final = 2 * BODY_MAX
#: Number of messages that a pull requests if the caller passes no number.
_COUNT: Final = 32


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a consumer sees it.

    Attributes:
        topic: Topic to which the producer sent the message, even if this is a retry from the retry topic.
        body: The body, decompressed.
        message_id: Unique id that the producer created; the offset id if the message has no unique id.
        queue: Queue from which the message was read; for a retry, a queue of the group's retry topic.
        born_ms: Unix time in ms at which the producer created the message.
        store_ms: Unix time in ms at which the broker stored the message.
        reconsume_times: Number of times that consumers sent the message back for a retry.
    """

    topic: str
    body: bytes
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    born_ms: int
    store_ms: int
    reconsume_times: int
    flag: int
    sys_flag: int
    born_host: str
    store_host: str
    store_size: int = 0
    body_crc: int = 0
    prepared_transaction_offset: int = 0
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(PROPERTY_KEYS, "").split())

    def forward_to(self, topic: str) -> Message:
        """Return a new message for ``topic`` with the same body, tags, keys, flag and user properties.

        The copy lacks the properties that brokers and clients set, such as the number of tries.
        """
        return Message(
            topic=topic,
            body=self.body,
            tags=self.tags,
            keys=self.keys,
            flag=self.flag,
            properties=own_properties(self.properties),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenMessage:
    """A stored message that cannot be read, such as one whose body is compressed in an unknown way.

    Attributes:
        topic: Topic to which the producer sent the message; if that topic cannot be read, the queue's topic.
        reason: Reason why the message cannot be read.
        body, properties: Always empty. The stored message stays at the broker.
    """

    topic: str
    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    offset_message_id: str
    reason: str
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)


#: One message of a pull answer, readable or not.
Taken = ReceivedMessage | BrokenMessage


class PullResult(msgspec.Struct, frozen=True):
    """The answer to one pull. Its ``code`` is SUCCESS or one of the ``PULL_`` codes.

    Attributes:
        broken: Messages of the answer that cannot be read.
        passed_over: True if the requested message cannot be read and its end cannot be found. The message is
            then skipped: ``next_offset`` is the offset after the message, or a later offset.
        deferred: Not 0 if messages of the answer, from ``next_offset`` on, were left out; see
            :class:`Received`.
    """

    code: int
    messages: tuple[ReceivedMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    broken: tuple[BrokenMessage, ...] = ()
    passed_over: bool = False
    deferred: int = 0


def subscription(topic: str, expression: str, version_ms: int) -> SubscriptionData:
    """Return a subscription by tags, from an expression such as ``*`` or ``A || B``.

    Raises:
        InvalidArgument: If topic or expression is invalid.
    """
    check_topic(topic)
    check_text(f"tag expression of topic {topic!r}", expression)
    try:
        tags = parse_subscription(expression)
    except LocalProtocolError as error:
        raise InvalidArgument(str(error)) from None
    return SubscriptionData(
        topic=topic,
        sub_string=" || ".join(tags) if tags else "*",
        tags=tags,
        codes=tuple(tag_hash(tag) for tag in tags),
        sub_version=version_ms,
    )


def receive(
    stored: StoredMessage,
    broker_name: str,
    *,
    store_size: int = 0,
    queue: MessageQueue | None = None,
    with_body: bool = True,
) -> ReceivedMessage:
    """Convert a stored message into the consumer's form.

    Args:
        store_size: Size of the message in the commit log, in bytes.
        queue: The queue from which the message was read, if known.
        with_body: False to leave the body empty and decompress nothing.

    Raises:
        RemoteProtocolError: If the body cannot be decompressed.
    """
    properties = decode_properties(stored.properties)
    topic = stored.topic
    if topic.startswith(RETRY_PREFIX):
        topic = properties.get(PROPERTY_RETRY_TOPIC, topic)
    offset_id = stored.offset_message_id
    if queue is None or queue.queue_id != stored.queue_id or queue.topic != stored.topic:
        queue = MessageQueue(topic=stored.topic, broker_name=broker_name, queue_id=stored.queue_id)
    return ReceivedMessage(
        topic=topic,
        body=_plain_body(stored) if with_body else b"",
        message_id=properties.get(PROPERTY_UNIQ_KEY, offset_id),
        offset_message_id=offset_id,
        queue=queue,
        queue_offset=stored.queue_offset,
        commit_log_offset=stored.physical_offset,
        born_ms=stored.born_timestamp,
        store_ms=stored.store_timestamp,
        reconsume_times=stored.reconsume_times,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_host=str(stored.born_host),
        store_host=str(stored.store_host),
        store_size=store_size,
        body_crc=stored.crc,
        prepared_transaction_offset=stored.prepared_transaction_offset,
        properties=properties,
    )


def _plain_body(stored: StoredMessage) -> bytes:
    if stored.sys_flag & SYS_COMPRESSED:
        return decompress_body(stored.body, stored.sys_flag, size_max=BODY_MAX)
    return stored.body


class Received(NamedTuple):
    """Messages of a pull answer.

    Attributes:
        found: Messages in the order of their offsets.
        rest: Last bytes of the answer, if they begin with a message whose end cannot be found; else empty.
        deferred: Not 0 if the last messages of the answer were left out, so that the next pull must fetch
            them. The number is the memory in bytes of the first message that was left out, or 1 if its size
            is unknown.
    """

    found: list[Taken]
    rest: bytes = b""
    deferred: int = 0


def receive_all(
    body: bytes,
    queue: MessageQueue,
    *,
    count: int = _COUNT,
    first: int = 0,
    end: int = INT64_MAX,
    room: int = PULL_MAX,
) -> Received:
    """Return at most ``count`` messages of a pull answer, and only as many as fit into ``room`` bytes.

    If a message cannot be read but its header is valid, the following messages are still returned. But a
    message whose body cannot be decompressed is the last message that is returned.

    Args:
        count: Largest number of messages. A correct broker sends no more than the pull requested, but a
            hostile broker could send 100,000 messages.
        first, end: The queue offsets of an answer increase, from ``first`` to below ``end``. A message with
            another offset is damaged. If it can be decoded, it gets the lowest possible offset. If it cannot
            be decoded, the size in its header may be wrong, too, so no later message is read.
        room: Limit in bytes for the memory that all messages take, see :func:`.process_queue.memory_size`.
    """
    found: list[Taken] = []
    position = 0
    while position < len(body):
        if len(found) >= count:
            return Received(found, deferred=1)
        low = found[-1].queue_offset + 1 if found else first
        message: Taken
        try:
            stored, message_end = decode_message(body, position)
        except RemoteProtocolError as error:
            try:
                head = decode_head(body, position)
            except RemoteProtocolError:
                return Received(found, body[position:])
            if not low <= head.queue_offset < end:
                return Received(found, body[position:])
            message_end = head.end
            message = BrokenMessage(
                topic=queue.topic,
                queue=queue,
                queue_offset=head.queue_offset,
                commit_log_offset=head.physical_offset,
                offset_message_id="",
                reason=str(error),
            )
        else:
            if not low <= stored.queue_offset < end:
                stored = msgspec.structs.replace(stored, queue_offset=low)
            try:
                message = receive(stored, queue.broker_name, store_size=message_end - position, queue=queue)
            except RemoteProtocolError as error:
                # Read no further message of this answer. The failed attempt may have decompressed as much as
                # the largest body, although the message takes little memory. ``room`` does not limit this
                # work.
                count = len(found) + 1
                properties = decode_properties(stored.properties)
                message = BrokenMessage(
                    topic=properties.get(PROPERTY_RETRY_TOPIC, stored.topic),
                    queue=queue,
                    queue_offset=stored.queue_offset,
                    commit_log_offset=stored.physical_offset,
                    offset_message_id=stored.offset_message_id,
                    reason=str(error),
                )
        size = memory_size(message)
        room -= size
        if room < 0:
            return Received(found, deferred=size)
        found.append(message)
        position = message_end
    return Received(found)


def matching(messages: Iterable[ReceivedMessage], tags: Collection[str]) -> tuple[ReceivedMessage, ...]:
    """Return the messages whose tag is in ``tags``, or all messages if ``tags`` is empty.

    Brokers compare only hashes of tags, so they may send messages with other tags.
    """
    if not tags:
        return tuple(messages)
    return tuple(message for message in messages if message.tags in tags)


class QueueReader:
    """Operations on single queues, for the pull consumer and the push consumer."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self.group = group

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscribed: SubscriptionData,
        *,
        count: int = _COUNT,
        commit: int = 0,
        suspend_s: float = 0.0,
        timeout_s: float = 10.0,
        broker_id: int = 0,
        with_subscription: bool = True,
        unless: Callable[[], bool] | None = None,
        room: Callable[[], int] | None = None,
    ) -> Operation[PullResult]:
        """Pull messages from ``offset`` on, filtered by the subscription's tags.

        The last messages of an answer are left for the next pull in these cases:

        - the answer has more than ``count`` messages;
        - the messages would take more memory than ``room`` allows;
        - a body before them cannot be decompressed.

        Args:
            count: Largest number of messages, at least 1.
            commit: Offset that the same request stores for the group, if above 0.
            suspend_s: Seconds for which the broker may wait for a message if none is available.
            unless: As for :class:`.operation.Invoke`.
            room: Function called when the answer has arrived. It returns the number of bytes of memory that
                all messages may take. A number above ``PULL_MAX`` counts as ``PULL_MAX``.

        Raises:
            NoRoute: If the queue's broker is in no known route.
            ResponseError: If the broker answers with an error.
            ConnectionLost, RequestTimeout, RemoteProtocolError: If the broker does not answer, or the answer
                cannot be read.
        """
        addr = yield from self.addr(queue, broker_id=broker_id)
        fields = PullMessageFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=(_PULL_COMMIT if commit > 0 else 0)
            | (_PULL_SUSPEND if suspend_s > 0 else 0)
            | (_PULL_SUBSCRIPTION if with_subscription else 0),
            commit_offset=commit,
            suspend_timeout_ms=int(suspend_s * 1000),
            subscription=subscribed.sub_string if with_subscription else None,
            sub_version=subscribed.sub_version,
            expression_type=subscribed.expression_type,
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields.to_ext())
        response: RemotingCommand = yield Invoke(addr, request, timeout_s, unless)
        ensure_success(
            response,
            addr,
            also=(
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ),
        )
        try:
            answer = PullMessageResponseFields.parse(response.ext_fields)
        except FieldError as error:
            raise RemoteProtocolError(f"pull answer of {addr}: {error}") from None
        found: list[Taken] = []
        next_offset = answer.next_begin_offset
        passed_over = False
        deferred = 0
        if response.code == ResponseCode.SUCCESS:
            found, rest, deferred = receive_all(
                response.body,
                queue,
                count=count,
                first=offset,
                end=next_offset,
                room=PULL_MAX if room is None else min(room(), PULL_MAX),
            )
            if deferred:
                next_offset = found[-1].queue_offset + 1 if found else offset
            elif rest and found:
                next_offset = found[-1].queue_offset + 1
            elif rest and count > 1:
                # Pull the unreadable message alone, so that only this message is skipped.
                return (
                    yield from self.pull(
                        queue,
                        offset,
                        subscribed,
                        count=1,
                        timeout_s=timeout_s,
                        broker_id=broker_id,
                        with_subscription=with_subscription,
                        unless=unless,
                        room=room,
                    )
                )
            elif rest:
                next_offset = max(next_offset, offset + 1)
                passed_over = True
        return PullResult(
            response.code,
            matching((each for each in found if isinstance(each, ReceivedMessage)), subscribed.tags),
            next_offset,
            answer.min_offset,
            answer.max_offset,
            answer.suggest_which_broker_id,
            tuple(each for each in found if isinstance(each, BrokenMessage)),
            passed_over,
            deferred,
        )

    def committed(self, queue: MessageQueue) -> Operation[int | None]:
        """Return the offset stored for the group, or None if no offset is stored.

        Raises:
            As :meth:`pull`.
        """
        addr = yield from self.addr(queue)
        fields = QueryConsumerOffsetFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields.to_ext())
        response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(response, addr)

    def commit(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        oneway: bool = False,
        unless: Callable[[], bool] | None = None,
    ) -> Operation[None]:
        """Store ``offset`` as the group's next offset.

        Args:
            oneway: Do not wait for the broker's answer.
            unless: As for :class:`.operation.Invoke`.

        Raises:
            As :meth:`pull`.
        """
        addr = yield from self.addr(queue)
        fields = UpdateConsumerOffsetFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields.to_ext(), oneway=oneway)
        if oneway:
            yield Oneway(addr, request, unless)
        else:
            timeout_s = self._core.config.call_timeout_s
            response: RemotingCommand = yield Invoke(addr, request, timeout_s, unless)
            ensure_success(response, addr)

    def min_offset(self, queue: MessageQueue) -> Operation[int]:
        """Return the offset of the oldest message that the broker still stores.

        Raises:
            As :meth:`pull`.
        """
        return (yield from self._bound(RequestCode.GET_MIN_OFFSET, queue))

    def max_offset(self, queue: MessageQueue) -> Operation[int]:
        """Return the offset that the next message of the queue will get.

        Raises:
            As :meth:`pull`.
        """
        return (yield from self._bound(RequestCode.GET_MAX_OFFSET, queue))

    def search_offset(self, queue: MessageQueue, wall_ms: int) -> Operation[int]:
        """Return the offset of the first message stored at or after ``wall_ms`` (Unix time in ms).

        Raises:
            As :meth:`pull`.
        """
        addr = yield from self.addr(queue)
        fields = SearchOffsetFields(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=wall_ms, broker_name=queue.broker_name
        )
        request = RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields.to_ext())
        response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
        return _offset(response, addr)

    def addr(self, queue: MessageQueue, *, broker_id: int = 0) -> Operation[str]:
        """Return the address of the broker to ask about a queue.

        Raises:
            NoRoute: If no known route contains the queue's broker, even after a query to the nameservers.
        """
        directory = self._core.directory
        addr = pick_read_addr(directory.routes.addrs(queue.broker_name), broker_id)
        if addr is None:
            yield from directory.refresh_quietly(queue.topic)
            addr = pick_read_addr(directory.routes.addrs(queue.broker_name), broker_id)
        if addr is None:
            raise NoRoute(queue.topic, f"no address of broker {queue.broker_name} is known")
        return addr

    def _bound(self, code: int, queue: MessageQueue) -> Operation[int]:
        addr = yield from self.addr(queue)
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        response: RemotingCommand = yield Invoke(
            addr, RemotingCommand.request(code, fields.to_ext()), self._core.config.call_timeout_s
        )
        return _offset(response, addr)


def _offset(response: RemotingCommand, addr: str) -> int:
    ensure_success(response, addr)
    try:
        return OffsetResponseFields.parse(response.ext_fields).offset
    except FieldError as error:
        raise RemoteProtocolError(f"offset answer of {addr}: {error}") from None


class TopicReader:
    """Operations that read a topic queue by queue for one caller, without a consumer group."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self.reader = QueueReader(core, check_group(group))

    def queues(self, topic: str) -> Operation[tuple[MessageQueue, ...]]:
        """Return the topic's queues for reads.

        Raises:
            NoRoute: If the topic has no queues for reads.
            NoNameserver: If the cache has no route and no nameserver answered.
        """
        directory = self._core.directory
        found = directory.routes.subscribe(check_topic(topic))
        if not found:
            try:
                yield from directory.refresh(topic)
            except ResponseError as error:
                raise NoRoute(topic, describe(error)) from None
            found = directory.routes.subscribe(topic)
        if not found:
            raise NoRoute(topic, "the route has no readable queue")
        return found

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = "*",
        count: int = _COUNT,
        suspend_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> Operation[PullResult]:
        """Pull messages from ``offset`` on; see :meth:`QueueReader.pull`.

        With ``suspend_s`` above 0, the broker waits up to that many seconds if no message is available.
        """
        limit_s = suspend_s + 10.0 if timeout_s is None else timeout_s
        result = yield from self.reader.pull(
            queue,
            offset,
            subscription(queue.topic, expression, 0),
            count=count,
            suspend_s=suspend_s,
            timeout_s=limit_s,
        )
        return result
