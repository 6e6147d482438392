"""Requests that store messages: 10, 310, 320 and 36. This module accesses files only through the store.

Source: SendMessageProcessor and AbstractSendMessageProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import Refusal, Refused, StoreUnavailable, refused_for
from routekeeper.broker.requests.tags import cached_tag_hash, tags_code
from routekeeper.broker.store.messages import Draft, Placed
from routekeeper.broker.tables.state import FAQ, BrokerState, Call, KnownSend, Later
from routekeeper.broker.tables.state_files import TOPICS
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC, is_sending_forbidden, name_fault, retry_topic
from routekeeper.remoting.codes import (
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    RequestCode,
    ResponseCode,
)
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import FieldError, LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.fields import SendBackFields, SendMessageFields, SendMessageResponseFields
from routekeeper.remoting.message import (
    NAME_END,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    SYS_MULTI_TAGS,
    SYS_TRANSACTION_ROLLBACK,
    BatchItem,
    decode_batch,
    decode_properties,
    encode_properties,
    join_properties,
)
from routekeeper.remoting.route import TopicConfig

_UNIT: Final = 1
_UNIT_SUB: Final = 2
_UNIQUE_MARK: Final = f"{PROPERTY_UNIQ_KEY}{NAME_END}"
_VERSION_3_4_9: Final = 121
_MULTI_TAG: Final = "MULTI_TAG"
_TIMER_PROPERTIES: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
#: Bytes that a batch's body contains if a message in it has a property that is not allowed in batches. Three
#: searches of the whole body are faster than decoding the properties of every message.
_REFUSED_MARKS: Final = (
    f"{PROPERTY_TRAN_MSG}{NAME_END}".encode(),
    f"{PROPERTY_DELAY}{NAME_END}".encode(),
    b"TIMER_DEL",
)
#: Properties that change a message's topic, or cause its refusal, or are written by the broker (CLUSTER).
_STEERING: Final = frozenset({PROPERTY_DELAY, PROPERTY_TRAN_MSG, PROPERTY_CLUSTER, *_TIMER_PROPERTIES})
_SEND_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
#: Arguments of request 310 that are equal in all messages that one producer sends to one queue. Together, the
#: values of these arguments are called the kind of a message.
_KIND: Final = itemgetter(*"abcdefhjkm")
#: Largest number of kinds of messages in the cache, and of characters in one kind. Producers choose the
#: values that make up a kind, so both numbers need a bound.
KNOWN_MAX: Final = 4096
_KIND_LENGTH_MAX: Final = 1024
_DIGITS_MAX: Final = 18
#: Largest number of messages in one batch. Storing this many messages blocks the event loop for 0.1 s.
BATCH_MAX: Final = 10_000
#: Largest number of bytes that the properties in a batch's header may add to all messages of the batch
#: together. The broker adds these properties to every message, so that a short request could otherwise make
#: it store hundreds of megabytes at once. If a batch has 10,000 messages, 419 bytes of properties may be
#: added to each of them. Java's producers send about 50 bytes, and the broker adds about 70 bytes.
BATCH_SHARED_MAX: Final = 4 * 1024 * 1024
_ITEM_SIZE: Final = struct.Struct(">i")
_NO_DELAY: Final = "batch request does not support delayed messages"
_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def send(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve requests 10, 310 and 320: store one message or a batch."""
    request = call.request
    config = state.config
    region, trace = config.region_id, "true" if config.trace_on else "false"
    try:
        sent = _send_known(state, call) if request.code == _SEND_V2 else None
        drafts, unique_key, waits, topic, queue_id = sent or _drafts(state, call)
        placed = _store(state, drafts, now_ms=call.now_ms)
    except Refusal as refusal:
        state.stats.refused[refusal.reason] += 1
        return request.reply(
            refusal.code, remark=refusal.remark, ext_fields={"MSG_REGION": region, "TRACE_ON": trace}
        )
    except FieldError as error:
        state.stats.refused[Refused.ILLEGAL] += 1
        return request.reply(
            ResponseCode.SYSTEM_ERROR,
            remark=str(error),
            ext_fields={"MSG_REGION": region, "TRACE_ON": trace},
        )
    answer = SendMessageResponseFields(
        msg_id=",".join([state.message_id(place.physical_offset) for place in placed]),
        queue_id=queue_id,
        queue_offset=placed[0].queue_offset,
        transaction_id=unique_key,
        msg_region=region,
        trace_on=trace,
    )
    return _answer(state, request.reply(ext_fields=answer.to_ext()), topic, waits=waits)


class _Sent(NamedTuple):
    """The messages that a send stores, and the values that its answer needs.

    Attributes:
        waits: True if the sender wants to wait until the message is on disk.
        topic: Topic of the message. For a delayed message, the topic to which it goes after its delay.
    """

    drafts: list[Draft]
    unique_key: str | None
    waits: bool
    topic: str
    queue_id: int


def _send_known(state: BrokerState, call: Call) -> _Sent | None:
    """Read a message without most checks, if an earlier message with the same arguments has passed them.

    The values of these arguments are called the kind of a message. A cache has the kinds of checked messages.
    Return None if the kind is not in the cache, or if a property of this message needs a check. Otherwise the
    result equals the result of :func:`_drafts`.
    """
    request = call.request
    ext = request.ext_fields
    try:
        known = state.known_sends[_kind_of(ext)]
        born, text = ext["g"], ext["i"]
    except KeyError:
        return None
    settings = state.config
    topic = known.topic.topic_name
    if (
        known.settings is not settings
        or state.topics.get(topic) is not known.topic
        or len(request.body) > settings.message_size_max
        or not (born.isascii() and born.isdigit() and len(born) <= _DIGITS_MAX)
    ):
        return None
    properties = decode_properties(text)
    if text.count(NAME_END) != len(properties) or not _STEERING.isdisjoint(properties):
        return None
    waits = properties.pop(PROPERTY_WAIT, "true").lower() != "false"
    _mark(properties, settings)
    tags = properties.get(PROPERTY_TAGS)
    draft = Draft(
        topic=topic,
        queue_id=known.queue_id,
        body=request.body,
        properties=_spell(properties),
        tags_code=cached_tag_hash(tags) if tags else 0,
        born_host=call.peer,
        flag=known.flag,
        sys_flag=known.sys_flag,
        born_timestamp=int(born),
        reconsume_times=known.reconsume_times,
    )
    return _Sent([draft], properties.get(PROPERTY_UNIQ_KEY), waits, topic, known.queue_id)


def _mark(properties: dict[str, str], settings: BrokerConfig) -> None:
    """Add the region, the cluster and the trace mark to a message's properties.

    The trace mark tells consumers to trace the message. The consumer of RocketMQ 5.x discards the trace of a
    message that has no region. Source: AbstractSendMessageProcessor.buildMsgContext, RocketMQ 5.3.
    """
    properties["MSG_REGION"] = settings.region_id
    properties["TRACE_ON"] = "true" if settings.trace_on else "false"
    properties[PROPERTY_CLUSTER] = settings.cluster_name


def _kind_of(ext: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the kind of a message: all arguments except the message's properties and its birth time.

    Raises:
        KeyError: If an argument is missing. Our clients and Java's always send all of them.
    """
    return (*_KIND(ext), ext.get("l"), ext.get("n"))


def _learn(state: BrokerState, call: Call, draft: Draft) -> None:
    """Add the arguments of a checked send to the cache, so that equal arguments need no second check.

    Call this function only if the broker stores messages with these arguments without a change.
    """
    topic = state.topics.get(draft.topic)
    try:
        kind = _kind_of(call.request.ext_fields)
    except KeyError:
        return
    assert topic is not None
    if sum([len(text) for text in kind if text is not None]) > _KIND_LENGTH_MAX:
        return
    if len(state.known_sends) >= KNOWN_MAX:
        state.known_sends.clear()
    state.known_sends[kind] = KnownSend(
        topic, state.config, draft.queue_id, draft.flag, draft.sys_flag, draft.reconsume_times
    )


def _drafts(state: BrokerState, call: Call) -> _Sent:
    """Return the messages that a send stores.

    Raises:
        Refusal: If the message must not be stored.
        FieldError: If an argument cannot be read.
    """
    request = call.request
    if request.code == RequestCode.SEND_MESSAGE:
        fields = SendMessageFields.parse(request.ext_fields)
    else:
        fields = SendMessageFields.parse_v2(request.ext_fields)
    properties = decode_properties(fields.properties or "")
    unique_key = properties.get(PROPERTY_UNIQ_KEY)
    waits = properties.pop(PROPERTY_WAIT, "true").lower() != "false"
    drafts, queue_id, topic = _checked(state, call, fields, properties)
    as_it_came = drafts[0].topic == fields.topic == topic and queue_id == fields.queue_id
    is_batch = fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
    if request.code == _SEND_V2 and as_it_came and not is_batch and not topic.startswith(RETRY_PREFIX):
        _learn(state, call, drafts[0])
    return _Sent(drafts, unique_key, waits, topic, queue_id)


def _checked(
    state: BrokerState, call: Call, fields: SendMessageFields, properties: dict[str, str]
) -> tuple[list[Draft], int, str]:
    """Return the messages to store, the queue id for the answer, and the topic.

    This function changes ``properties``.

    Raises:
        Refusal: If the message must not be stored.
    """
    config = _check(state, call, fields)
    queue_id = fields.queue_id if fields.queue_id >= 0 else state.pick_queue(config.write_queue_nums)
    _check_kind(state, properties)
    if len(call.request.body) > state.config.message_size_max:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: body of {len(call.request.body)} bytes is above"
            f" maxMessageSize {state.config.message_size_max}",
        )
    topic = fields.topic
    reconsume_times = fields.reconsume_times or 0
    if topic.startswith(RETRY_PREFIX):
        config, queue_id = _retry_or_dead(state, call, fields, config, queue_id)
        topic = config.topic_name
    base = Draft(
        topic=topic,
        queue_id=queue_id,
        body=call.request.body,
        properties="",
        tags_code=0,
        born_host=call.peer,
        flag=fields.flag,
        sys_flag=(fields.sys_flag & ~SYS_TRANSACTION_ROLLBACK)
        | (SYS_MULTI_TAGS if config.topic_filter_type == _MULTI_TAG else 0),
        born_timestamp=fields.born_timestamp,
        reconsume_times=reconsume_times,
    )
    _mark(properties, state.config)
    if fields.batch or call.request.code == RequestCode.SEND_BATCH_MESSAGE:
        return _batch_drafts(state, call, base, properties), queue_id, topic
    level = 0 if topic.startswith(DLQ_PREFIX) else _delay_level(properties)
    text = _spell(properties)
    draft = msgspec.structs.replace(base, properties=text, tags_code=tags_code(text))
    if level > 0:
        draft = delayed(state, draft, properties, level, now_ms=call.now_ms)
    return [draft], queue_id, topic


def _check_kind(state: BrokerState, properties: Mapping[str, str]) -> None:
    """Check that a message is neither a half message of a transaction nor a timer message.

    Raises:
        Refusal: If the message is of one of these two kinds.
    """
    if properties.get(PROPERTY_TRAN_MSG, "").lower() == "true":
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.advertise.ip}] sending transaction message is forbidden",
        )
    if any(name in properties for name in _TIMER_PROPERTIES):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
        )


def _check(state: BrokerState, call: Call, fields: SendMessageFields) -> TopicConfig:
    """Check a message as RocketMQ does, in the same order. Create a missing topic if the settings allow it.

    Source: AbstractSendMessageProcessor.msgCheck.
    """
    topic = fields.topic
    config = state.topics.get(topic)
    if not state.config.broker_permission & PERM_WRITE and config is not None and config.order:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the broker[{state.advertise.ip}] sending message is forbidden"
        )
    fault = name_fault(topic)
    if fault is not None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
    if is_sending_forbidden(topic):
        raise Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    if config is None:
        config = _create(state, call, fields)
    queues = max(config.write_queue_nums, config.read_queue_nums)
    if fields.queue_id >= queues or queues <= 0 or (fields.queue_id < 0 and config.write_queue_nums <= 0):
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{fields.queue_id}] is illegal, topic[{topic}] has"
            f" writeQueueNums={config.write_queue_nums} readQueueNums={config.read_queue_nums}",
        )
    return config


def _create(state: BrokerState, call: Call, fields: SendMessageFields) -> TopicConfig:
    topic = fields.topic
    is_retry = topic.startswith(RETRY_PREFIX)
    sys_flag = (_UNIT_SUB if is_retry else _UNIT) if fields.unit_mode else 0
    state.require_room_for_topics(topic)
    config = state.topics.create_for_send(
        topic,
        default_topic=fields.default_topic,
        queue_nums=fields.default_topic_queue_nums,
        sys_flag=sys_flag,
        auto_create=state.config.auto_create_topic_enable,
        now_ms=call.now_ms,
    )
    if config is not None:
        state.topic_changed(topic)
        return config
    if is_retry:
        return state.ensure_group_topic(topic, queue_nums=1, now_ms=call.now_ms, sys_flag=sys_flag)
    raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")


def _retry_or_dead(
    state: BrokerState, call: Call, fields: SendMessageFields, config: TopicConfig, queue_id: int
) -> tuple[TopicConfig, int]:
    """Return topic and queue id for a message that was sent to a retry topic.

    After too many tries, the message goes to the group's dead-letter topic. Consumers that hold queue locks
    (orderly consumers) repeat tries themselves. They send a message only after their last try, so their
    message becomes a dead letter at once.
    Source: AbstractSendMessageProcessor.handleRetryAndDLQ, RocketMQ 5.3.
    """
    group = fields.topic[len(RETRY_PREFIX) :]
    group_config = state.require_group(group, now_ms=call.now_ms)
    times_max = group_config.retry_max_times
    if call.request.version >= _VERSION_3_4_9 and fields.max_reconsume_times is not None:
        times_max = fields.max_reconsume_times
    if (fields.reconsume_times or 0) <= times_max and not state.locks.any_held(group, now=call.now):
        return config, queue_id
    return state.ensure_group_topic(DLQ_PREFIX + group, queue_nums=1, now_ms=call.now_ms), 0


def _batch_drafts(state: BrokerState, call: Call, base: Draft, properties: dict[str, str]) -> list[Draft]:
    if base.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {base.topic}"
        )
    if PROPERTY_DELAY in properties:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_DELAY)
    _check_count(call.request.body)
    try:
        items = decode_batch(call.request.body)
    except RemoteProtocolError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    if not items:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "batch request holds no message")
    if any(mark in call.request.body for mark in _REFUSED_MARKS):
        _check_items(state, items)
    # A 5.x producer gives the whole batch one unique id. Do not add this id to a message that has a unique id
    # of its own. Otherwise the batch's id would hide the message's id.
    batch_key = properties.pop(PROPERTY_UNIQ_KEY, None)
    common = _spell(properties)
    with_key = join_properties(_spell({PROPERTY_UNIQ_KEY: batch_key}), common) if batch_key else common
    each = len(with_key.encode())
    if each * len(items) > BATCH_SHARED_MAX:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: the batch's common properties of {each} bytes, in each of its"
            f" {len(items)} messages, are {each * len(items)} bytes, allowed are {BATCH_SHARED_MAX}",
        )
    drafts = []
    for item in items:
        # Decode the properties to be sure, because the name of the unique id may also occur in a value.
        own = _UNIQUE_MARK in item.properties and PROPERTY_UNIQ_KEY in decode_properties(item.properties)
        text = _bounded(join_properties(item.properties, common if own else with_key))
        drafts.append(
            msgspec.structs.replace(
                base, body=item.body, flag=item.flag, properties=text, tags_code=tags_code(text)
            )
        )
    return drafts


def _check_items(state: BrokerState, items: list[BatchItem]) -> None:
    """Check the properties of each message in a batch. The batch's own properties are checked elsewhere.

    Delay level 0 is allowed, because it means no delay, and Java's producers allow it in batches.

    Raises:
        Refusal: If one of the messages is a half message, a timer message or a delayed message.
    """
    for item in items:
        properties = decode_properties(item.properties)
        _check_kind(state, properties)
        if _delay_level(properties) > 0:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_DELAY)


def _check_count(batch: bytes) -> None:
    """Check that a batch has at most BATCH_MAX messages.

    Raises:
        Refusal: If the batch has more messages.
    """
    count = position = 0
    while position + _ITEM_SIZE.size <= len(batch):
        (size,) = _ITEM_SIZE.unpack_from(batch, position)
        if size <= 0:
            return  # the batch is malformed, and the decoder reports that later
        position += size
        count += 1
        if count > BATCH_MAX:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request holds more messages than are taken at once, allowed are {BATCH_MAX}",
            )


def send_back(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve request 36: store a message that a consumer could not process, as a retry or as a dead letter.

    Raises:
        Refusal: If the message must not be stored, or if the store cannot accept it.
    """
    fields = SendBackFields.parse(call.request.ext_fields)
    group_config = state.require_group(fields.group, now_ms=call.now_ms)
    if not state.config.broker_permission & PERM_WRITE:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the broker[{state.advertise.ip}] sending message is forbidden"
        )
    if group_config.retry_queue_nums <= 0:
        return call.request.reply()
    sys_flag = _UNIT_SUB if fields.unit_mode else 0
    config = state.ensure_group_topic(
        retry_topic(fields.group),
        queue_nums=group_config.retry_queue_nums,
        now_ms=call.now_ms,
        sys_flag=sys_flag,
    )
    if not config.perm & PERM_WRITE:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the topic[{config.topic_name}] sending message is forbidden"
        )
    message = state.store.message_at(fields.offset)
    if message is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {fields.offset}")
    properties = decode_properties(message.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
    # Remove the properties of an earlier delay. Otherwise they would change the new delay.
    for name in (PROPERTY_DELAY, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QID):
        properties.pop(name, None)
    properties[PROPERTY_WAIT] = "false"
    times_max = group_config.retry_max_times
    if call.request.version >= _VERSION_3_4_9 and fields.max_reconsume_times is not None:
        times_max = fields.max_reconsume_times
    dead = message.reconsume_times >= times_max or fields.delay_level < 0
    if dead:
        config = state.ensure_group_topic(
            DLQ_PREFIX + fields.group, queue_nums=1, now_ms=call.now_ms, perm=PERM_READ | PERM_WRITE
        )
        properties.setdefault(_DLQ_ORIGIN_TOPIC, properties[PROPERTY_RETRY_TOPIC])
        properties.setdefault(_DLQ_ORIGIN_MESSAGE_ID, properties[PROPERTY_ORIGIN_MESSAGE_ID])
    # A producer may have set a negative number of tries, but a level must not be negative. 0 means no delay.
    level = 0 if dead else max(fields.delay_level or 3 + message.reconsume_times, 0)
    if level:
        properties[PROPERTY_DELAY] = str(level)
    text = _spell(properties)
    draft = Draft(
        topic=config.topic_name,
        queue_id=state.pick_queue(config.write_queue_nums),
        body=message.body,
        properties=text,
        tags_code=tags_code(text),
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        reconsume_times=message.reconsume_times + 1,
    )
    if level:
        draft = delayed(state, draft, properties, level, now_ms=call.now_ms)
    _store(state, [draft], now_ms=call.now_ms)
    state.stats.sent_back(message.topic, fields.group)
    return _answer(state, call.request.reply(), config.topic_name, waits=True)


def delayed(
    state: BrokerState, draft: Draft, properties: dict[str, str], level: int, *, now_ms: int
) -> Draft:
    """Return the message as stored in the schedule topic, with its real topic and queue in properties.

    Raises:
        Refusal: If the message's properties are too large, or if the real topic cannot be written to disk. A
            refusal is also raised if the real queue does not exist yet, and the broker has its largest number
            of queues.
    """
    levels = state.config.delay_levels_ms
    level = min(level, len(levels))
    waiting = properties | {
        PROPERTY_DELAY: str(level),
        PROPERTY_REAL_TOPIC: draft.topic,
        PROPERTY_REAL_QID: str(draft.queue_id),
    }
    text = _spell(waiting)
    _require_written(state, draft.topic)
    # Reserve the queue after the other checks. Otherwise refused messages would use up the allowed queues.
    state.require_room_for_queue(draft.topic, draft.queue_id, reserve=True)
    return msgspec.structs.replace(
        draft,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=text,
        tags_code=now_ms + levels[level - 1],
    )


def due_again(message_topic: str, properties: str) -> tuple[str, int] | None:
    """Return the real topic and queue id of a delayed message that is due, or None if they cannot be read."""
    found = decode_properties(properties)
    topic, queue_id = found.get(PROPERTY_REAL_TOPIC), found.get(PROPERTY_REAL_QID, "")
    if topic is None or not queue_id.isdecimal() or topic == message_topic:
        return None
    return topic, int(queue_id)


def _store(state: BrokerState, drafts: list[Draft], *, now_ms: int) -> list[Placed]:
    """Store messages of one queue.

    Raises:
        Refusal: If the store cannot accept the messages, or if the topic cannot be written to disk.
    """
    _require_written(state, drafts[0].topic)
    state.require_room_for_queue(drafts[0].topic, drafts[0].queue_id)
    try:
        if len(drafts) == 1:
            placed = [state.store.put(drafts[0], now_ms=now_ms)]
        else:
            placed = state.store.put_all(drafts, now_ms=now_ms)
    except StoreUnavailable as error:
        raise Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"service not available now. It may be caused by one of the following reasons: {error}",
            reason=error.reason,
        ) from None
    except LocalProtocolError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None
    size = state.store.log.max_offset - placed[0].physical_offset
    state.stats.stored(drafts[0].topic, len(placed), size)
    state.effects.arrived.add((drafts[0].topic, drafts[0].queue_id))
    return placed


def _require_written(state: BrokerState, topic: str) -> None:
    """Check that the topic table is not known to be unwritable while it must be written for this topic.

    The broker acknowledges a message only when its topic is on disk. Without this check, it would store one
    more copy of the message each time that the producer sends it again.

    Raises:
        Refusal: If the last write of the topic table has failed, and the table on disk lacks this topic or
            its last change.
    """
    failure = state.unwritten_files.get(TOPICS)
    if failure is not None and topic in state.unsaved_topics:
        reason = failure.strerror if isinstance(failure, OSError) else failure
        raise Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"cannot write {TOPICS}: {reason}",
            reason=refused_for(failure),
        )


def _answer(
    state: BrokerState, reply: RemotingCommand, topic: str, *, waits: bool
) -> RemotingCommand | Later:
    """Return the answer, or an instruction to send it only when the data that it acknowledges are on disk.

    With SYNC_FLUSH, the message must be on disk before the answer. The topic must be on disk with every flush
    setting, because the broker at its next start drops messages of topics that are not in its topic table.

    Args:
        topic: Topic of the message. For a delayed message, the topic to which it goes after its delay.
        waits: False if the sender does not want to wait for the disk (property ``WAIT=false``).
    """
    synced = state.store.log.max_offset if state.config.sync_flush and waits else 0
    unsaved = bool(state.unsaved_topics) and topic in state.unsaved_topics
    return Later(reply=reply, log_offset=synced, topics_saved=unsaved) if synced or unsaved else reply


def _delay_level(properties: dict[str, str]) -> int:
    text = properties.get(PROPERTY_DELAY, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _spell(properties: dict[str, str]) -> str:
    try:
        return _bounded(encode_properties(properties))
    except LocalProtocolError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}") from None


def _bounded(text: str) -> str:
    if len(text) <= PROPERTIES_SIZE_MAX // 4:  # a character has at most four bytes
        return text
    size = len(text.encode())
    if size > PROPERTIES_SIZE_MAX:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: properties of {size} bytes are above {PROPERTIES_SIZE_MAX}",
        )
    return text
