"""Requests that read queues: pulls 11 and 361, offsets 14, 15, 29 to 32, 43 and 45.

This module accesses files only through the store.

Source: PullMessageProcessor, ConsumerManageProcessor and AdminBrokerProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.tags import subscription_codes
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import Batch, GetStatus
from routekeeper.broker.tables.state import FAQ, BrokerState, Call, Stepwise, Work, no_group
from routekeeper.remoting.addresses import charged_host
from routekeeper.remoting.bodies import DelayOffsetTable, SubscriptionData, SubscriptionGroupConfig
from routekeeper.remoting.codes import PERM_READ, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import (
    OffsetResponseFields,
    PullMessageFields,
    PullMessageResponseFields,
    QueryConsumerOffsetFields,
    QueueFields,
    SearchOffsetFields,
    TimestampResponseFields,
    UpdateConsumerOffsetFields,
)
from routekeeper.remoting.route import TopicConfig

_COMMIT: Final = 1
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4
_GROUP: Final = "consumerGroup"
#: Longest time for which a pull is held, in ms. It must be below 30 s, the timeout of Java clients.
SUSPEND_MAX_MS: Final = 25_000
#: Longest tag expression, in characters. The properties of a message have the same limit, in bytes.
EXPRESSION_MAX: Final = 32_768
#: Approximate memory of a held pull, and of each tag code in a held pull, in bytes.
_PULL_BYTES: Final = 600
_CODE_BYTES: Final = 100


class Pull(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A checked pull request.

    Attributes:
        host: The client's host. The memory of a held pull counts towards the quota of this host.
        offset: Next queue offset to read. While the pull is held, the offset moves past entries that do not
            match.
        codes: Wanted tag codes, or None for all messages.
        suspend_ms: Longest time for which the pull may be held, in ms, or 0 if it must be answered at once.
        parked: True if the pull has been held before. If only entries that do not match arrive, such a pull
            is held again, at the offset after these entries. One search must reach the queue's end for that.
    """

    request: RemotingCommand
    connection: int
    topic: str
    queue_id: int
    first_offset: int
    offset: int
    count_max: int
    bytes_max: int
    codes: frozenset[int] | None
    suspend_ms: int
    parked: bool = False
    suggest_broker_id: int = 0
    topic_sys_flag: int = 0
    host: str = ""

    @property
    def size(self) -> int:
        """Approximate memory of the pull while it is held, in bytes."""
        return _PULL_BYTES + _CODE_BYTES * len(self.codes or ())

    def to_park(self) -> Pull:
        """Return the pull in the form in which it is held: with only those fields that its answer needs."""
        if self.parked:
            return self
        kept = {_GROUP: self.request.ext_fields.get(_GROUP, "")}
        request = msgspec.structs.replace(self.request, ext_fields=kept, body=b"", remark=None)
        return msgspec.structs.replace(self, request=request, parked=True)


class Park(msgspec.Struct, frozen=True):
    """An instruction to hold a pull until its queue gets messages, or until its longest hold time is over."""

    pull: Pull


def pull_message(state: BrokerState, call: Call) -> RemotingCommand | Park:
    """Serve requests 11 and 361 when they arrive.

    Raises:
        Refusal: If the group may not consume, or the topic may not be read.
    """
    fields = PullMessageFields.parse(call.request.ext_fields)
    pull = _check(state, call, fields)
    if fields.sys_flag & _COMMIT and fields.commit_offset >= 0:
        with suppress(Refusal):  # only the answer to request 15 can report that a commit failed
            _commit(state, fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
    return look(state, pull)


def _commit(state: BrokerState, topic: str, group: str, queue_id: int, offset: int) -> None:
    """Store a group's offset of one queue. Lower an offset that is above the queue's end.

    A consumer may still commit offsets of a topic that was deleted and created again. If such an offset, or
    the queue's end, were stored, the group would skip messages of the new topic. Therefore the broker stores
    the offset of the first message that the group may not have read.

    Raises:
        Refusal: If the broker would store too many offsets.
    """
    state.commit_offsets(topic, group, {queue_id: state.store.within(topic, queue_id, offset)})


def look(state: BrokerState, pull: Pull) -> RemotingCommand | Park:
    """Search for messages that a pull wants. The server repeats the search when the queue gets messages.

    Check the permissions of a held pull again: an operator may have withdrawn them since the pull arrived.
    """
    if pull.parked and (refusal := _refusal(state, pull)) is not None:
        return pull.request.reply(refusal.code, remark=refusal.remark)
    try:
        found = state.store.get(
            pull.topic,
            pull.queue_id,
            pull.offset,
            count_max=pull.count_max,
            bytes_max=pull.bytes_max,
            codes=pull.codes,
        )
    except Mending:  # Messages are still searched in the log. The consumer must repeat its pull.
        low, high = state.store.bounds(pull.topic, pull.queue_id)
        found = Batch(GetStatus.MESSAGE_WAS_REMOVING, pull.offset, low, high)
    code = _code(found.status, pull.offset)
    if pull.suspend_ms > 0 and code == ResponseCode.PULL_NOT_FOUND:
        return Park(pull.to_park())
    is_at_end = found.next_begin >= found.max_offset
    if pull.suspend_ms > 0 and pull.parked and found.status is GetStatus.NO_MATCHED_MESSAGE and is_at_end:
        # None of the new messages matches this pull. Hold the pull at the offset after these messages. Do not
        # hold it before the queue's end: a search reads a bounded number of entries, and a wanted message
        # after them would wait until the next message arrives. The consumer must pull again at once.
        return Park(msgspec.structs.replace(pull, offset=found.next_begin))
    return _answer(state, pull, found, code)


def time_over(state: BrokerState, pull: Pull) -> RemotingCommand:
    """Answer a held pull whose longest hold time is over."""
    final = msgspec.structs.replace(pull, suspend_ms=0)
    answer = look(state, final)
    assert isinstance(answer, RemotingCommand)
    if answer.code == ResponseCode.PULL_NOT_FOUND and pull.offset > pull.first_offset:
        # Give the consumer the next offset. Otherwise its next pull would read the same entries again.
        return msgspec.structs.replace(answer, code=ResponseCode.PULL_RETRY_IMMEDIATELY)
    return answer


def _refusal(state: BrokerState, pull: Pull) -> Refusal | None:
    """Return the refusal of a held pull whose permission was withdrawn; else None."""
    group = pull.request.ext_fields.get(_GROUP, "")
    topic_config, group_config = state.topics.get(pull.topic), state.groups.get(group)
    try:
        _require_broker_readable(state)
        if group_config is not None:
            _require_enabled(group, group_config)
        elif not state.config.auto_create_subscription_group:
            raise no_group(group)
        if topic_config is not None:  # for a deleted topic, the search says that the offset is gone
            _require_topic_readable(pull.topic, topic_config)
    except Refusal as refusal:
        return refusal
    return None


def _require_broker_readable(state: BrokerState) -> None:
    if not state.config.broker_permission & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the broker[{state.advertise.ip}] pulling message is forbidden"
        )


def _require_enabled(group: str, config: SubscriptionGroupConfig) -> None:
    if not config.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")


def _require_topic_readable(topic: str, config: TopicConfig) -> None:
    if not config.perm & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")


def _check(state: BrokerState, call: Call, fields: PullMessageFields) -> Pull:
    config = state.config
    group, topic = fields.consumer_group, fields.topic
    _require_broker_readable(state)
    group_config = state.require_group(group, now_ms=call.now_ms)
    _require_enabled(group, group_config)
    topic_config = state.topics.get(topic)
    if topic_config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
    _require_topic_readable(topic, topic_config)
    if not 0 <= fields.queue_id < topic_config.read_queue_nums:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{fields.queue_id}] is illegal, topic:[{topic}]"
            f" topicConfig.readQueueNums:[{topic_config.read_queue_nums}] consumer:[{call.peer}]",
        )
    if fields.sys_flag & _SUBSCRIPTION:
        expression = fields.subscription or "*"
        codes = _codes_of(expression, fields.expression_type or "TAG")
    else:
        codes = _registered_codes(
            state,
            group,
            topic,
            fields.sub_version,
            broadcast_enable=group_config.consume_broadcast_enable,
        )
    suspend_ms = 0
    if fields.sys_flag & _SUSPEND:
        wanted_ms = fields.suspend_timeout_ms if config.long_polling_enable else config.short_polling_ms
        suspend_ms = min(max(wanted_ms, 0), SUSPEND_MAX_MS)
    bytes_max = config.transfer_bytes_max
    if fields.max_msg_bytes is not None and fields.max_msg_bytes > 0:
        bytes_max = min(bytes_max, fields.max_msg_bytes)
    return Pull(
        request=call.request,
        connection=call.connection,
        topic=topic,
        queue_id=fields.queue_id,
        first_offset=fields.queue_offset,
        offset=fields.queue_offset,
        count_max=min(max(fields.max_msg_nums, 1), config.transfer_count_max),
        bytes_max=bytes_max,
        codes=codes,
        suspend_ms=suspend_ms,
        topic_sys_flag=topic_config.topic_sys_flag,
        host=charged_host(call.peer.ip),
    )


def _registered_codes(
    state: BrokerState, group: str, topic: str, sub_version: int, *, broadcast_enable: bool
) -> frozenset[int] | None:
    """Return the tag codes that a group's members subscribe to in heartbeats; None for all messages."""
    consumers = state.clients.consumer_group(group)
    if consumers is None:
        raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
    if consumers.is_broadcasting and not broadcast_enable:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
        )
    subscription = consumers.subscriptions.get(topic)
    if subscription is None:
        raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
    if subscription.sub_version < sub_version:
        raise Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if topic not in consumers.codes:
        try:
            consumers.codes[topic] = codes_of_subscription(subscription)
        except Refusal as refusal:
            # Store a copy. The exception itself would keep the expression and this call in memory.
            consumers.codes[topic] = Refusal(refusal.code, refusal.remark)
    codes = consumers.codes[topic]
    if isinstance(codes, Refusal):
        raise Refusal(codes.code, codes.remark)
    return codes


def codes_of_subscription(subscription: SubscriptionData) -> frozenset[int] | None:
    """Return the tag codes that a subscription wants, or None for all messages.

    Raises:
        Refusal: If the subscription's expression is not a tag expression.
    """
    if subscription.class_filter_mode or subscription.sub_string == "*":
        return None
    if subscription.expression_type == "TAG" and subscription.codes:
        return frozenset(subscription.codes)
    return _codes_of(subscription.sub_string, subscription.expression_type)


def _codes_of(expression: str, expression_type: str) -> frozenset[int] | None:
    if expression_type not in ("TAG", ""):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )
    if len(expression) > EXPRESSION_MAX:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {len(expression)} characters, allowed are"
            f" {EXPRESSION_MAX}",
        )
    try:
        return subscription_codes(expression)
    except ValueError:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        ) from None


def _code(status: GetStatus, offset: int) -> int:
    match status:
        case GetStatus.FOUND:
            return ResponseCode.SUCCESS
        case GetStatus.NO_MESSAGE_IN_QUEUE:
            return ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        case GetStatus.OFFSET_TOO_SMALL | GetStatus.OFFSET_OVERFLOW_BADLY:
            return ResponseCode.PULL_OFFSET_MOVED
        case GetStatus.OFFSET_OVERFLOW_ONE | GetStatus.OFFSET_FOUND_NULL:
            return ResponseCode.PULL_NOT_FOUND
        case GetStatus.NO_MATCHED_MESSAGE | GetStatus.MESSAGE_WAS_REMOVING:
            return ResponseCode.PULL_RETRY_IMMEDIATELY


def _answer(state: BrokerState, pull: Pull, found: Batch, code: int) -> RemotingCommand:
    state.stats.pulls.total += 1
    if found.count:
        group = pull.request.ext_fields.get(_GROUP, "")
        state.stats.handed_out(pull.topic, group, found.count, len(found.body))
        state.stats.get_found.total += 1
    else:
        state.stats.get_missed.total += 1
    fields = PullMessageResponseFields(
        suggest_which_broker_id=pull.suggest_broker_id,
        next_begin_offset=found.next_begin,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        topic_sys_flag=pull.topic_sys_flag,
        group_sys_flag=0,
    )
    return pull.request.reply(code, remark=found.status.value, ext_fields=fields.to_ext(), body=found.body)


def query_consumer_offset(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 14, QUERY_CONSUMER_OFFSET.

    As in RocketMQ, a group without a stored offset starts at offset 0 if the queue is young, no matter which
    ConsumeFromWhere its consumers use. A queue is young if none of its messages was deleted, and if its first
    message is so near the end of the commit log that this message is probably in memory.

    Raises:
        Refusal: If no offset is stored, and the queue is not young or the request forbids a start at 0.
    """
    fields = QueryConsumerOffsetFields.parse(call.request.ext_fields)
    offset = state.offsets.get(fields.topic, fields.consumer_group, fields.queue_id)
    if offset is None:
        low, _ = state.store.bounds(fields.topic, fields.queue_id)
        if low > 0 or fields.set_zero_if_not_found is False or not _first_is_hot(state, fields):
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        offset = 0
    return call.request.reply(ext_fields=OffsetResponseFields(offset=offset).to_ext())


def _first_is_hot(state: BrokerState, fields: QueryConsumerOffsetFields) -> bool:
    entries = state.store.entries(fields.topic, fields.queue_id, 0, 1)
    return not entries or state.store.log.max_offset - entries[0].log_offset <= state.hot_bytes


def update_consumer_offset(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 15, UPDATE_CONSUMER_OFFSET. An offset above the queue's end is lowered.

    Raises:
        Refusal: If the group, topic or queue does not exist (as in RocketMQ 5.3), or if the broker would
            store too many offsets.
    """
    fields = UpdateConsumerOffsetFields.parse(call.request.ext_fields)
    state.require_group(fields.consumer_group, now_ms=call.now_ms)
    config = state.topics.get(fields.topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} not exist!")
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if not 0 <= fields.queue_id < queues or fields.commit_offset < 0:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId {fields.queue_id} is outside 0..{queues - 1}"
            f" or commitOffset {fields.commit_offset} is negative",
        )
    _commit(state, fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
    return call.request.reply()


def search_offset(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 29, SEARCH_OFFSET_BY_TIMESTAMP."""
    fields = SearchOffsetFields.parse(call.request.ext_fields)
    offset = state.store.offset_at_time(
        fields.topic,
        fields.queue_id,
        fields.timestamp,
        upper=(fields.boundary_type or "").upper() == "UPPER",
    )
    return call.request.reply(ext_fields=OffsetResponseFields(offset=offset).to_ext())


def max_offset(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 30, GET_MAX_OFFSET."""
    fields = QueueFields.parse(call.request.ext_fields)
    offset = state.store.bounds(fields.topic, fields.queue_id)[1]
    return call.request.reply(ext_fields=OffsetResponseFields(offset=offset).to_ext())


def min_offset(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 31, GET_MIN_OFFSET."""
    fields = QueueFields.parse(call.request.ext_fields)
    offset = state.store.bounds(fields.topic, fields.queue_id)[0]
    return call.request.reply(ext_fields=OffsetResponseFields(offset=offset).to_ext())


def earliest_store_time(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 32, GET_EARLIEST_MSG_STORETIME."""
    fields = QueueFields.parse(call.request.ext_fields)
    timestamp = state.store.earliest_time(fields.topic, fields.queue_id)
    return call.request.reply(ext_fields=TimestampResponseFields(timestamp=timestamp).to_ext())


def all_consumer_offsets(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 43, GET_ALL_CONSUMER_OFFSET."""
    return Stepwise(_all_offsets(state, call), asked=call.request)


def _all_offsets(state: BrokerState, call: Call) -> Work:
    body: bytes = yield state.offsets.snapshot()
    return call.request.reply(body=body)


def all_delay_offsets(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 45, GET_ALL_DELAY_OFFSET."""
    return call.request.reply(body=DelayOffsetTable(offsets=state.delay_offsets).encode())
