"""Requests about topics and the broker itself: 17, 21, 25, 26, 28, 33, 202, 208, 215, 300, 305, 351, 907.

This module accesses files only through the store.

Source: AdminBrokerProcessor and QueryMessageProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from routekeeper.broker.config import NAMESRV_KEYS, SECRET_KEYS, apply_properties
from routekeeper.broker.errors import Refusal, SettingError
from routekeeper.broker.requests.audited import NAMED_MAX, settings_text, topic_text
from routekeeper.broker.requests.group_requests import QUEUES_MAX, TURN, consume_offsets
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC, TopicChange, name_fault
from routekeeper.remoting.bodies import (
    ConsumeOffset,
    ConsumeStats,
    GroupList,
    KVTable,
    MessageQueue,
    TopicList,
    TopicOffset,
    TopicStats,
)
from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.codes import VERSION, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import ConsumeStatsFields, CreateTopicFields, TopicFields, ViewMessageFields
from routekeeper.remoting.logs import apply_log_level
from routekeeper.remoting.message import encode_message
from routekeeper.remoting.properties import REQUEST_SIZE_MAX, format_properties, parse_properties
from routekeeper.remoting.route import TopicConfig

VERSION_TEXT: Final = "V5_3_3"
_GIB: Final = 1024**3
#: Ranges of the time that it takes to store a message, as named in the answer to request 28. Source:
#: StoreStatsService, RocketMQ 4.9 and 5.3.
_PUT_SPANS: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)


def create_topic(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve request 17: create or change a topic.

    The answer waits until the topic is on disk and, if the topic has changed, has been sent to the
    nameservers.

    Raises:
        Refusal: If the name or a number of the topic is not allowed.
    """
    fields = CreateTopicFields.parse(call.request.ext_fields)
    asked = TopicConfig(
        topic_name=fields.topic,
        read_queue_nums=fields.read_queue_nums,
        write_queue_nums=fields.write_queue_nums,
        perm=fields.perm,
        topic_filter_type=fields.topic_filter_type,
        topic_sys_flag=fields.topic_sys_flag,
        order=fields.order,
    )
    change = TopicChange(asked, fields.attributes or "")
    note_topics(state, state.effects.about, [change])
    config = checked_topic(state, change)
    state.require_room_for_topics(config.topic_name)
    changed = state.topics.put(config, now_ms=call.now_ms)
    if changed:
        state.topic_changed(config.topic_name)
    # Wait for the disk even if the topic stays the same. An earlier change may not be on disk yet.
    return Later(reply=call.request.reply(), topics_saved=True, registered=changed)


def checked_topic(state: BrokerState, change: TopicChange) -> TopicConfig:
    """Check a change of a topic, and return the topic's configuration after this change.

    Raises:
        Refusal: If the name or a number of the topic is not allowed.
    """
    asked = change.config
    name = asked.topic_name
    fault = name_fault(name)
    if fault is None and state.topics.is_system(name):
        fault = f"The topic[{name}] is conflict with system topic."
    if fault is None and not 0 <= asked.perm <= 7:
        fault = f"perm {asked.perm} is outside 0..7"
    for queues in (asked.read_queue_nums, asked.write_queue_nums):
        if fault is None and not 0 <= queues <= QUEUE_NUMS_MAX:
            fault = f"queue count {queues} is outside 0..{QUEUE_NUMS_MAX}"
    if fault is not None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
    try:
        return change.apply_to(state.topics.get(name))
    except ValueError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None


def note_topics(state: BrokerState, about: dict[str, str], changes: Sequence[TopicChange]) -> None:
    """Add the old and the new configuration of the first NAMED_MAX changed topics to the audit line."""
    some = changes[:NAMED_MAX]
    if len(changes) != 1:
        about["count"] = str(len(changes))
    about["topic"] = " ".join(change.config.topic_name for change in some)
    olds = [state.topics.get(change.config.topic_name) for change in some]
    if any(olds):
        about["old"] = "; ".join("none" if old is None else topic_text(old) for old in olds)
    about["new"] = "; ".join(topic_text(*change) for change in some)


def delete_topic(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve request 215, DELETE_TOPIC_IN_BROKER.

    The broker does not inform the nameservers at once. Its next periodic registration sends the new
    version of the topic table.

    Raises:
        Refusal: If the topic is a system topic, or if its name is not allowed.
    """
    topic = TopicFields.parse(call.request.ext_fields).topic
    state.effects.about["topic"] = topic
    if (old := state.topics.get(topic)) is not None:
        state.effects.about["old"] = topic_text(old)
    fault = name_fault(topic)
    if fault is not None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
    if state.topics.is_system(topic):
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
    if old is None or not state.topics.delete(topic, now_ms=call.now_ms):
        return Later(reply=call.request.reply(), topics_saved=True, offsets_saved=True)
    # Let the server answer the held pulls of this topic now, with "offset moved". Otherwise a consumer could
    # keep its offset of a deleted queue, and commit this offset to a new topic of the same name.
    state.effects.deleted_topics.add(topic)
    state.store.delete_topic(topic)
    state.stats.drop_topic(topic)
    state.offsets.drop_topic(topic)
    state.effects.save_topics = True
    return Later(reply=call.request.reply(), topics_saved=True, offsets_saved=True)


def all_topics(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 21, GET_ALL_TOPIC_CONFIG."""
    return call.request.reply(body=state.topics.to_json())


def topic_config(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 351, GET_TOPIC_CONFIG.

    Raises:
        Refusal: If the topic is unknown.
    """
    topic = TopicFields.parse(call.request.ext_fields).topic
    config = state.topics.get(topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
    return call.request.reply(body=orjson.dumps(config.to_json()))


def topic_stats(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 202, GET_TOPIC_STATS_INFO.

    Raises:
        Refusal: If the topic is unknown.
    """
    topic = TopicFields.parse(call.request.ext_fields).topic
    config = state.require_topic(topic)
    queue_nums = max(config.read_queue_nums, config.write_queue_nums)
    return Stepwise(_topic_stats(state, call, topic, queue_nums), asked=call.request, queues=queue_nums)


def _topic_stats(state: BrokerState, call: Call, topic: str, queue_nums: int) -> Work:
    offsets = {}
    for first in range(0, queue_nums, TURN):
        some = range(first, min(first + TURN, queue_nums))
        bounds = [state.store.bounds(topic, queue_id) for queue_id in some]
        places = [(queue_id, high - 1) for queue_id, (_, high) in zip(some, bounds, strict=True)]
        times: list[int | None] = yield state.store.stored_times(topic, places)
        for queue_id, (low, high), stored in zip(some, bounds, times, strict=True):
            offsets[state.queue(topic, queue_id)] = TopicOffset(
                min_offset=low, max_offset=high, last_update_timestamp=stored or 0
            )
    body: bytes = yield TopicStats(offsets=offsets).encode
    return call.request.reply(body=body)


def consume_stats(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 208: return a group's progress in each queue of the requested topic.

    If the request names no topic, return the progress in all topics to which the group subscribes or for
    which it has offsets.

    Raises:
        Refusal: If the request names no topic, and the group's topics have too many queues for one answer.
    """
    fields = ConsumeStatsFields.parse(call.request.ext_fields)
    group = fields.consumer_group
    online = state.clients.consumer_group(group)
    if fields.topic:
        topics: tuple[str, ...] = (fields.topic,)
    else:
        subscribed = tuple(online.subscriptions) if online is not None else ()
        topics = tuple(dict.fromkeys(state.offsets.topics_of(group) + subscribed))
    configs = [config for topic in topics if (config := state.topics.get(topic)) is not None]
    queues = sum(config.read_queue_nums for config in configs)
    if not fields.topic and queues > QUEUES_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the group has {queues} queues, {QUEUES_MAX} at most are listed: ask topic by topic",
        )
    return Stepwise(_consume_stats(state, call, group, topics), asked=call.request, queues=queues)


def _consume_stats(state: BrokerState, call: Call, group: str, topics: tuple[str, ...]) -> Work:
    offsets: dict[MessageQueue, ConsumeOffset] = {}
    tps = 0.0
    for topic in topics:
        config = state.topics.get(topic)
        if config is not None:
            offsets |= yield from consume_offsets(state, group, topic, config.read_queue_nums)
            tps += state.stats.consume_tps(topic, group)
    body: bytes = yield ConsumeStats(offsets=offsets, consume_tps=tps).encode
    return call.request.reply(body=body)


def topic_consumers(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 300, QUERY_TOPIC_CONSUME_BY_WHO."""
    topic = TopicFields.parse(call.request.ext_fields).topic
    groups = dict.fromkeys(state.clients.consumers_of(topic) + state.offsets.groups_of(topic))
    return call.request.reply(body=GroupList(groups=tuple(groups)).encode())


def system_topics(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 305, GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    return call.request.reply(body=TopicList(topics=state.topics.system_topics()).encode())


def view_message(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 33, VIEW_MESSAGE_BY_ID.

    Raises:
        Refusal: If no message starts at the given offset of the commit log.
    """
    offset = ViewMessageFields.parse(call.request.ext_fields).offset
    message = state.store.message_at(offset)
    if message is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return call.request.reply(body=encode_message(message))


#: Settings that operators' tools expect from every broker. The values are fixed, because this broker has no
#: such settings. RocketMQ 4.9.7's exportConfigs fails if one of them is missing.
_FIXED_SETTINGS: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
}


def broker_config(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 26, GET_BROKER_CONFIG."""
    version = orjson.dumps(state.config_version.to_json()).decode()
    tls = {"useTLS": str(state.tls_to_nameservers).lower()}
    body = format_properties(_FIXED_SETTINGS | tls | state.config.to_properties()).encode()
    return call.request.reply(ext_fields={"version": version}, body=body)


def update_config(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve request 25: change settings that may change at run time.

    The answer waits until the changes are on disk, so that later starts use them.

    Raises:
        Refusal: If one key may not be changed at run time, or one value is invalid. Then no setting changes.
    """
    if not call.request.body:
        return call.request.reply()
    size = len(call.request.body)
    if size > REQUEST_SIZE_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, f"settings of {size} bytes: allowed are {REQUEST_SIZE_MAX}"
        )
    try:
        values = parse_properties(call.request.body.decode())
    except ValueError as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
    before = state.config.to_properties()
    state.effects.about |= {
        "old": settings_text({key: before[key] for key in values if key in before}),
        "new": settings_text({key: "******" if key in SECRET_KEYS else values[key] for key in values}),
    }
    unknown = sorted(set(values) - before.keys())
    if unknown:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"no such setting: {', '.join(unknown)[:200]}; allowed are {', '.join(sorted(state.live_keys))}",
        )
    fixed = sorted(set(values) - state.live_keys)
    if fixed:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"Can not update config in black list. {', '.join(fixed)[:200]} may only be set at start;"
            f" allowed are {', '.join(sorted(state.live_keys))}",
        )
    try:
        changed, _ = apply_properties(state.config, values)
        changed.validate()
    except SettingError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
    # Register even if the permission stays the same, because administrators set the same value again to make
    # a broker register.
    if "brokerPermission" in values:
        state.topics.restate(now_ms=call.now_ms)
        state.effects.save_topics = True
        state.effects.register_all = True
    if NAMESRV_KEYS & values.keys():  # Resolve the host names again, even if the value stays the same.
        state.effects.nameservers = True
    if "logLevel" in values:
        apply_log_level(changed.log_level)
    state.config = changed
    state.config_version = state.config_version.advanced(now_ms=call.now_ms)
    spelled = changed.to_properties()
    state.changed_settings |= {key: spelled[key] for key in values}
    return Later(reply=call.request.reply(), settings_saved=True)


def runtime_info(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 28, GET_BROKER_RUNTIME_INFO."""
    return Stepwise(_runtime_info(state, call), asked=call.request)


def _runtime_info(state: BrokerState, call: Call) -> Work:
    store, stats = state.store, state.stats
    (total, free), earliest = yield lambda: (store.disk_space(), store.earliest_log_time())
    low, high = store.log.min_offset, store.log.max_offset
    put, got = str(stats.put.total), str(stats.got.total)
    used = f"{(total - free) / total:.4f}" if total else "0.0"
    table = {
        "brokerActive": "true",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_TEXT,
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration(call.now_ms - stats.started_ms),
        "commitLogMinOffset": str(low),
        "commitLogMaxOffset": str(high),
        "commitLogDirCapacity": f"Total : {total / _GIB:.1f} GiB, Free : {free / _GIB:.1f} GiB.",
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{store.log.directory}": used,
        "consumeQueueDiskRatio": used,
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "earliestMessageTimeStamp": str(earliest),
        "getFoundTps": stats.get_found.spell(call.now),
        "getMissTps": stats.get_missed.spell(call.now),
        "getTotalTps": stats.pulls.spell(call.now),
        "getTransferedTps": stats.got.spell(call.now),
        "getTransferredTps": stats.got.spell(call.now),
        "msgGetTotalTodayMorning": str(stats.mornings[1][1]),
        "msgGetTotalTodayNow": got,
        "msgGetTotalYesterdayMorning": str(stats.mornings[0][1]),
        "msgPutTotalTodayMorning": str(stats.mornings[1][0]),
        "msgPutTotalTodayNow": put,
        "msgPutTotalYesterdayMorning": str(stats.mornings[0][0]),
        "pageCacheLockTimeMills": "0",
        "ackThreadPoolQueueCapacity": "0",
        "ackThreadPoolQueueHeadWaitTimeMills": "0",
        "ackThreadPoolQueueSize": "0",
        "litePullThreadPoolQueueCapacity": "0",
        "litePullThreadPoolQueueHeadWaitTimeMills": "0",
        "litePullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueCapacity": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "getMessageEntireTimeMax": "0",
        "putLatency99": "0.00",
        "putLatency999": "0.00",
        "putMessageAverageSize": str(stats.put_bytes / stats.put.total if stats.put.total else 0.0),
        "putMessageDistributeTime": "".join(f"[{span}]:0 " for span in _PUT_SPANS),
        "putMessageEntireTimeMax": "0",
        "putMessageFailedTimes": str(sum(stats.refused.values())),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageTimesTotal": put,
        "putTps": stats.put.spell(call.now),
        "queryThreadPoolQueueCapacity": "0",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "remainHowManyDataToFlush": f"{high - store.log.flushed_offset} B",
        "remainTransientStoreBufferNumbs": "0",
        "sendThreadPoolQueueCapacity": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "sendThreadPoolQueueSize": "0",
        "startAcceptSendRequestTimeStamp": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "0",
        "timerCongestNum": "0",
        "timerDequeueTps": "0.0",
        "timerEnqueueTps": "0.0",
        "timerOffsetBehind": "0",
        "timerReadBehind": "0",
    }
    for level in range(1, len(state.config.delay_levels_ms) + 1):
        _, end = store.bounds(SCHEDULE_TOPIC, level - 1)
        if end:
            table[f"scheduleMessageOffset_{level}"] = f"{state.delay_offsets.get(level, 0)},{end}"
    return call.request.reply(body=KVTable(table=table).encode())


def ha_status(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 907: report a master without slaves, because this broker does not support replication.

    Source: DefaultHAService.getRuntimeInfo, RocketMQ 5.3.
    """
    idle = {
        "activated": False,
        "lastReadTimestamp": 0,
        "lastWriteTimestamp": 0,
        "masterFlushOffset": 0,
        "maxOffset": 0,
        "transferredByteInSecond": 0,
    }
    status = {
        "haClientRuntimeInfo": idle,
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": state.store.log.max_offset,
    }
    return call.request.reply(body=orjson.dumps(status))


def _duration(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
