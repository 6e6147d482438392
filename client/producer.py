"""Operations that send messages. A driver does their I/O, see :mod:`.operation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.fields import FieldError, SendMessageFields, SendMessageResponseFields, at_queue_v2
from routekeeper.remoting.inflate import LZ4, ZSTANDARD
from routekeeper.remoting.message import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    SYS_COMPRESSED,
    BatchItem,
    compress_body,
    encode_batch,
    encode_properties,
    tag_hash,
)

from .callbacks import check_not_awaited, discarded
from .config import ProducerConfig, check_queue, check_timeout, check_topic
from .directory import Directory
from .errors import ClientClosed, InvalidArgument, SendNotApplied, SendOutcomeUnknown, describe
from .latency import NO_ANSWER_S, SlowBrokers
from .messages import Message as Message
from .messages import check_message, check_size, plain_body, wire_properties
from .namespace import Namespace
from .operation import Clock, Instant, Invoke, Oneway, Operation
from .retry import Outcome, QueueTurn, Verdict, classify_answer, classify_failure, merge_outcomes
from .route_cache import MessageQueue, PublishInfo
from .unique_ids import UniqueIds

if TYPE_CHECKING:
    import random  # only for type annotations: callers pass the random generator

#: Bits in a message's system flag for each compression algorithm. zlib sets no bit, as in clients before 5.0,
#: so that every consumer can decompress such a body.
_COMPRESSION: Final = {"zlib": 0, "lz4": LZ4, "zstd": ZSTANDARD}


class SendStatus(IntEnum):
    """A broker's report on how safely it stored a message. The number is the code of the broker's answer."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The status, queue and ids of a stored message.

    Attributes:
        message_id: Unique id created by the client and visible to consumers; for a batch, the ids of its
            messages with commas between them.
        offset_message_id: Id by which the broker finds the message.
        queue_offset: Offset of the message in the queue; for a batch, the offset of its first message. It is
            -1 if the broker sent no offset.
        tries: Number of tries.
        maybe_repeated: True if the outcome of an earlier try is unknown. The message may then be stored more
            than once.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    tries: int = 1
    maybe_repeated: bool = False


_STATUS: Final = {int(status): status for status in SendStatus}

#: Type of functions that pick the queue for a message. The arguments are the topic's queues for sends, at
#: least one queue, and the message.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def by_hash(key: str) -> QueueSelector:
    """Return a selector that picks the same queue for equal keys, as Java's SelectMessageQueueByHash does."""

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[abs(tag_hash(key)) % len(queues)]

    return select


class _Prepared(msgspec.Struct, frozen=True):
    """Parts of a send request that are the same in all tries.

    Attributes:
        arguments: Header fields of the request, except queue id and broker name.
    """

    code: int
    body: bytes
    arguments: dict[str, str]
    message_id: str


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """One message, encoded as a part of a batch's body."""

    message_id: str
    data: bytes


class ProducerCore:
    """Operations of one producer group."""

    def __init__(
        self, config: ProducerConfig, directory: Directory, ids: UniqueIds, rng: random.Random
    ) -> None:
        self._namespace = Namespace(directory.config.namespace)
        self.config = replace(config, group=self._namespace.inside(config.group))
        self._directory = directory
        self._ids = ids
        self._turn = QueueTurn(rng)
        self._slow = SlowBrokers()
        self.closed = False

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> Operation[SendResult]:
        """Send one message. If a try fails, try other brokers.

        Args:
            queue: Queue to use. If given, there is only one try.
            select: Function that picks the queue. If given, there is only one try, because a retry at another
                queue would break the order of messages.
            timeout_s: Seconds for all tries together.

        Raises:
            InvalidArgument: If the message is invalid; nothing was sent.
            NoRoute, NoNameserver: If the topic has no queue for sends; nothing was sent.
            SendNotApplied: If certainly no broker stored the message.
            SendOutcomeUnknown: If a broker may have stored the message.
            ClientClosed: If the producer is closed; nothing was sent.
        """
        # Check the arguments now, not in the operation's first step. A send that waits for a thread begins
        # later. If close() has begun meanwhile, the check would refuse this send, but the message must be
        # sent.
        self.check_use(message, queue, select, timeout_s)
        return self._send_one(message, queue, select, timeout_s)

    def _send_one(
        self,
        message: Message,
        queue: MessageQueue | None,
        select: QueueSelector | None,
        timeout_s: float | None,
    ) -> Operation[SendResult]:
        instant: Instant = yield Clock()
        topic = self._namespace.inside(message.topic)
        prepared = self._prepare(message, topic, instant.wall_ms, {})
        pick: Callable[[PublishInfo], MessageQueue] | None = None
        if queue is not None:
            fixed = self._namespace.queue_inside(queue)
            pick = lambda info: fixed  # noqa: E731 - one of three ways to pick, no name needed
        elif select is not None:
            chosen = select
            pick = lambda info: self._select(chosen, info, message)  # noqa: E731
        result = yield from self._send(prepared, topic, instant.now_s, pick, timeout_s)
        return result

    def resend(self, message: Message, reserved: Mapping[str, str]) -> Operation[SendResult]:
        """Send a copy of a received message, in the same way as :meth:`send`.

        ``reserved`` are properties whose names only RocketMQ itself may use.
        """
        instant: Instant = yield Clock()
        topic = self._namespace.inside(message.topic)
        prepared = self._prepare(message, topic, instant.wall_ms, reserved)
        return (yield from self._send(prepared, topic, instant.now_s, None, None))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> Operation[SendResult]:
        """Send messages of one topic in one request.

        The broker stores either all messages, in one queue and in the same order, or no message.

        Raises:
            InvalidArgument: If ``messages`` is empty, if the messages differ in topic or wait_store, or if a
                message is delayed or too large.
            RemotingError: As :meth:`send`.
        """
        if not messages:
            raise InvalidArgument("a batch of 0 messages, at least 1 is needed")
        for message in messages:
            self.check_use(message, queue, None, timeout_s)
        instant: Instant = yield Clock()
        prepared = self._prepare_batch(messages, instant.wall_ms)
        topic = self._namespace.inside(messages[0].topic)
        result = yield from self._send(prepared, topic, instant.now_s, self._fixed(queue), timeout_s)
        return result

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, select: QueueSelector | None = None
    ) -> Operation[None]:
        """Send one message in a single try and request no answer. The outcome stays unknown.

        Raises:
            As :meth:`send`, for errors that are known before the request is sent.
        """
        self.check_use(message, queue, select, None)
        instant: Instant = yield Clock()
        topic = self._namespace.inside(message.topic)
        prepared = self._prepare(message, topic, instant.wall_ms, {})
        info = yield from self._publish_info(topic)
        if queue is not None:
            target = self._namespace.queue_inside(queue)
        else:
            target = self._turn.pick(info) if select is None else self._select(select, info, message)
        addr = yield from self._master(target)
        if addr is None:
            raise SendNotApplied(message.topic, None, (f"broker {target.broker_name} has no known master",))
        try:
            yield Oneway(addr, self._request(prepared, target, oneway=True))
        except RemotingError as error:
            failure = (f"{addr}: {describe(error)}",)
            if classify_failure(error).outcome is Outcome.UNKNOWN:
                raise SendOutcomeUnknown(message.topic, None, failure) from error
            raise SendNotApplied(message.topic, None, failure) from error

    def queues(self, topic: str) -> Operation[tuple[MessageQueue, ...]]:
        """Return the topic's queues for sends.

        Raises:
            NoRoute, NoNameserver: If the topic has no queue for sends.
            ClientClosed: If the producer is closed.
        """
        self._check_open()
        info = yield from self._publish_info(self._namespace.inside(topic))
        return tuple(map(self._namespace.queue_outside, info.queues))

    def check_use(
        self,
        message: object,
        queue: object,
        select: QueueSelector | None,
        timeout_s: float | None,
    ) -> None:
        """Check the arguments' types, and check that the producer is open.

        The message's content is checked later.

        Raises:
            InvalidArgument: If an argument has a wrong type.
            ClientClosed: If the producer is closed.
        """
        self._check_open()
        check_message(message)
        if queue is not None:
            check_queue(queue)
        if select is not None:
            check_not_awaited("select", select)
        if timeout_s is not None:
            check_timeout(timeout_s)

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed(f"the producer of group {self.config.group!r} is closed, make a new one")

    def _select(self, select: QueueSelector, info: PublishInfo, message: Message) -> MessageQueue:
        queues = (
            tuple(map(self._namespace.queue_outside, info.queues)) if self._namespace.name else info.queues
        )
        return self._namespace.queue_inside(selected(select, queues, message))

    def _fixed(self, queue: MessageQueue | None) -> Callable[[PublishInfo], MessageQueue] | None:
        if queue is None:
            return None
        fixed = self._namespace.queue_inside(queue)
        return lambda info: fixed

    def _send(
        self,
        prepared: _Prepared,
        topic: str,
        start_s: float,
        pick: Callable[[PublishInfo], MessageQueue] | None,
        timeout_s: float | None,
    ) -> Operation[SendResult]:
        config = self.config
        deadline_s = start_s + (config.send_timeout_s if timeout_s is None else timeout_s)
        routes = self._directory.routes
        known = routes.publish(topic) if self._directory.kept else None
        info = known if known is not None and known.queues else (yield from self._publish_info(topic))
        tries_max = 1 if pick is not None else 1 + config.retry_times
        outcomes: list[Outcome] = []
        failures: list[str] = []
        code: int | None = None
        stored: SendResult | None = None
        last_broker: str | None = None
        now_s = start_s
        for number in range(tries_max):
            if number or info is not known:
                instant: Instant = yield Clock()
                now_s = instant.now_s
            left_s = deadline_s - now_s
            if left_s <= 0:
                break
            if pick is not None:
                target = pick(info)
            else:
                slow = self._slow.avoided(now_s)
                target = self._turn.pick(info, last_broker=last_broker, avoid=slow)
            last_broker = target.broker_name
            limit_s = left_s
            if number + 1 < tries_max and config.retry_unknown and info.several_brokers:
                limit_s = min(left_s, config.try_timeout_s)
            addr = routes.master(target.broker_name) or (yield from self._master(target))
            if addr is None:
                outcomes.append(Outcome.NOT_APPLIED)
                failures.append(f"broker {target.broker_name} has no known master")
                continue
            verdict: Verdict
            try:
                response: RemotingCommand = yield Invoke(addr, self._request(prepared, target), limit_s)
            except RemotingError as error:
                verdict = classify_failure(error)
                if config.latency_fault_enable:
                    yield from self._note(target, since_s=None)
                failures.append(f"{addr}: {describe(error)}")
            else:
                if config.latency_fault_enable:
                    yield from self._note(target, since_s=now_s)
                code = response.code
                verdict = classify_answer(code, response.remark)
                if verdict.outcome is Outcome.APPLIED:
                    seen = self._namespace.queue_outside(target)
                    result = _result(
                        response, prepared, seen, tries=len(outcomes) + 1, doubt=Outcome.UNKNOWN in outcomes
                    )
                    if (
                        result.status is SendStatus.SEND_OK
                        or not config.retry_another_broker_when_not_store_ok
                    ):
                        return result
                    stored = result
                else:
                    failures.append(f"{addr}: CODE: {code}  DESC: {response.remark or ''}")
            outcomes.append(verdict.outcome)
            if verdict.outcome is Outcome.UNKNOWN and not config.retry_unknown:
                break
            if not verdict.retry and verdict.outcome is not Outcome.APPLIED:
                break
        if stored is not None:
            return stored
        if merge_outcomes(outcomes) is Outcome.UNKNOWN:
            raise SendOutcomeUnknown(topic, code, tuple(failures))
        raise SendNotApplied(topic, code, tuple(failures))

    def _note(self, target: MessageQueue, *, since_s: float | None) -> Operation[None]:
        """Remember the latency of a broker after a try.

        Args:
            since_s: Instant in seconds at which the try began; None if the broker gave no answer.
        """
        instant: Instant = yield Clock()
        latency_s = NO_ANSWER_S if since_s is None else instant.now_s - since_s
        self._slow.sent(target.broker_name, latency_s, instant.now_s)

    def _publish_info(self, topic: str) -> Operation[PublishInfo]:
        info = yield from self._directory.publish_info(
            topic,
            default_queue_nums=self.config.default_topic_queue_nums,
            default_topic=self.config.create_topic_key,
        )
        return info

    def _master(self, queue: MessageQueue) -> Operation[str | None]:
        addr = self._directory.routes.master(queue.broker_name)
        if addr is None:
            # Refresh the route: an order configuration may name a broker that the cached route lacks.
            try:
                yield from self._directory.refresh(queue.topic)
            except RemotingError:
                return None
            addr = self._directory.routes.master(queue.broker_name)
        return addr

    def _prepare(self, message: Message, topic: str, wall_ms: int, reserved: Mapping[str, str]) -> _Prepared:
        """Encode a message. ``topic`` is the topic's name at the brokers, with the namespace."""
        check_topic(topic)
        config = self.config
        body, sys_flag = plain_body(message, config.message_size_max), 0
        properties = {**wire_properties(message), **reserved}
        message_id = properties.setdefault(PROPERTY_UNIQ_KEY, self._ids.next(wall_ms))
        if self._namespace.name:
            properties[PROPERTY_INSTANCE_ID] = self._namespace.name
        if len(body) > config.compress_above:
            method = _COMPRESSION[config.compress_type]
            body = compress_body(body, method=method, level=config.compress_level)
            sys_flag = SYS_COMPRESSED | method << 8
        # A consumer may use this method to send a message to the group's retry topic. The properties then
        # contain the numbers of retries. Move these numbers to the request's header.
        retried = topic.startswith(RETRY_PREFIX)
        reconsumed = int(properties.pop(PROPERTY_RECONSUME_TIME, "0")) if retried else 0
        reconsume_max = properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None) if retried else None
        arguments = self._arguments(
            topic,
            message.flag,
            properties,
            wall_ms,
            sys_flag=sys_flag,
            reconsume_times=reconsumed,
            max_reconsume_times=None if reconsume_max is None else int(reconsume_max),
        )
        return _Prepared(RequestCode.SEND_MESSAGE_V2, body, arguments, message_id)

    def _prepare_batch(self, messages: Sequence[Message], wall_ms: int) -> _Prepared:
        first = messages[0]
        items = []
        for message in messages:
            if message.topic != first.topic or message.wait_store != first.wait_store:
                raise InvalidArgument(
                    f"a batch has one topic and one wait_store, got {message.topic!r} {message.wait_store}"
                    f" beside {first.topic!r} {first.wait_store}"
                )
            if message.delay_level:
                raise InvalidArgument(f"delay_level={message.delay_level}, in a batch only 0 is allowed")
            items.append(self.item(message, wall_ms))
        return self._prepare_items(first.topic, first.wait_store, items, wall_ms)

    def item(self, message: Message, wall_ms: int) -> EncodedItem:
        """Encode one message of a batch.

        Raises:
            InvalidArgument: If the message is invalid, or too large for a batch that has no other message.
        """
        if message.topic.startswith(RETRY_PREFIX):
            raise InvalidArgument(f"a batch to the retry topic {message.topic!r} is not allowed")
        check_topic(self._namespace.inside(message.topic))
        body = plain_body(message, self.config.message_size_max)
        properties = wire_properties(message)
        message_id = properties[PROPERTY_UNIQ_KEY] = self._ids.next(wall_ms)
        text = encode_properties(properties)
        _check_properties_size(text)
        data = encode_batch((BatchItem(flag=message.flag, body=body, properties=text),))
        if len(data) > self.config.message_size_max:
            raise InvalidArgument(
                f"message of {len(data)} bytes with its properties,"
                f" at most {self.config.message_size_max} are allowed in a batch"
            )
        return EncodedItem(message_id, data)

    def _prepare_items(
        self, topic: str, wait_store: bool, items: Sequence[EncodedItem], wall_ms: int
    ) -> _Prepared:
        body = b"".join(item.data for item in items)
        check_size(body, self.config.message_size_max)
        properties = {PROPERTY_WAIT: _flag(wait_store)}
        if self._namespace.name:
            properties[PROPERTY_INSTANCE_ID] = self._namespace.name
        arguments = self._arguments(self._namespace.inside(topic), 0, properties, wall_ms, batch=True)
        message_ids = ",".join([item.message_id for item in items])
        return _Prepared(RequestCode.SEND_BATCH_MESSAGE, body, arguments, message_ids)

    def send_items(
        self,
        topic: str,
        items: Sequence[EncodedItem],
        *,
        wait_store: bool,
        queue: MessageQueue | None,
    ) -> Operation[SendResult]:
        """Send encoded messages of one topic in one request.

        Raises:
            As :meth:`send_batch`.
        """
        instant: Instant = yield Clock()
        prepared = self._prepare_items(topic, wait_store, items, instant.wall_ms)
        stored = self._namespace.inside(topic)
        return (yield from self._send(prepared, stored, instant.now_s, self._fixed(queue), None))

    def _arguments(
        self,
        topic: str,
        flag: int,
        properties: Mapping[str, str],
        wall_ms: int,
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        batch: bool = False,
    ) -> dict[str, str]:
        text = encode_properties(properties)
        _check_properties_size(text)
        return SendMessageFields(
            producer_group=self.config.group,
            topic=topic,
            default_topic=self.config.create_topic_key,
            default_topic_queue_nums=self.config.default_topic_queue_nums,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=wall_ms,
            flag=flag,
            properties=text,
            reconsume_times=reconsume_times,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            batch=batch,
        ).to_ext_v2()

    def _request(self, prepared: _Prepared, queue: MessageQueue, *, oneway: bool = False) -> RemotingCommand:
        arguments = at_queue_v2(prepared.arguments, queue.queue_id, queue.broker_name)
        return RemotingCommand.request(prepared.code, arguments, prepared.body, oneway=oneway)


def selected(select: QueueSelector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Return the queue that the user's selector chooses.

    Raises:
        InvalidArgument: If the selector does not return a MessageQueue; nothing was sent.
    """
    queue = select(queues, message)
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(f"select returned {discarded(queue)}, allowed a MessageQueue")
    return queue


def _check_properties_size(text: str) -> None:
    if len(text) > PROPERTIES_SIZE_MAX // 4:  # a character takes up to 4 bytes in UTF-8
        size = len(text.encode())
        if size > PROPERTIES_SIZE_MAX:
            raise InvalidArgument(f"properties of {size} bytes, at most {PROPERTIES_SIZE_MAX} are allowed")


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _result(
    response: RemotingCommand, prepared: _Prepared, queue: MessageQueue, *, tries: int, doubt: bool
) -> SendResult:
    try:
        answer = SendMessageResponseFields.parse(response.ext_fields)
    except FieldError:
        # Raise no error if the answer lacks the offset, because the answer's code says that the message is
        # stored.
        answer = SendMessageResponseFields(msg_id="", queue_id=queue.queue_id, queue_offset=-1)
    return SendResult(
        status=_STATUS[response.code],
        message_id=prepared.message_id,
        offset_message_id=answer.msg_id,
        queue=queue if answer.queue_id == queue.queue_id else replace(queue, queue_id=answer.queue_id),
        queue_offset=answer.queue_offset,
        tries=tries,
        maybe_repeated=doubt,
    )
