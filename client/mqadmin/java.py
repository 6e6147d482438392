"""Texts in the form in which Java prints them, for scripts that parse the output of RocketMQ's tool.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from routekeeper.remoting.bodies import MessageQueue, SubscriptionGroupConfig
from routekeeper.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from routekeeper.remoting.logs import printable
from routekeeper.remoting.message import tag_hash
from routekeeper.remoting.route import BrokerData, QueueData, TopicConfig, TopicRouteData
from routekeeper.remoting.wall_clock import local_text

from ..queue_reader import ReceivedMessage

#: Text of each of the 256 byte values. Java's bytes have a sign, so the texts are "0" to "127", then "-128"
#: to "-1".
_SIGNED: Final = tuple(str(byte - 256 if byte > 127 else byte) for byte in range(256))
#: Number of bytes that are converted to text in one step.
_PIECE: Final = 64 * 1024


def perm_text(perm: int) -> str:
    """Return permissions as text, such as ``RW-``. Source: PermName.perm2String."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def flag(value: bool) -> str:
    return "true" if value else "false"


def text(value: Any) -> str:
    """Return a JSON value as Java prints it."""
    if value is None:
        return "null"
    return flag(value) if isinstance(value, bool) else str(value)


def map_text(values: Mapping[Any, Any]) -> str:
    """Return a mapping as ``{a=1, b=2}``, in the order of the mapping's keys."""
    return "{" + ", ".join(f"{key}={value}" for key, value in values.items()) + "}"


def hash_order(names: Iterable[str], *, buckets: int = 128) -> list[str]:
    """Return names in the order in which a Java HashMap with this number of buckets iterates over them."""

    def bucket(name: str) -> int:
        value = tag_hash(name) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(names, key=bucket)


def topic_config_text(topic: TopicConfig) -> str:
    """Return a topic's settings as text. Source: TopicConfig.toString, RocketMQ 5.3."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums},"
        f" writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)},"
        f" topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag},"
        f" order={flag(topic.order)}, attributes={map_text(topic.attributes)}]"
    )


def group_config_members(
    config: SubscriptionGroupConfig, more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Return a group's settings by name, in the order in which RocketMQ 5.3 prints them.

    A broker of RocketMQ 4.9 lacks some of these settings. They get the defaults of RocketMQ 5.3.

    Args:
        more: Settings that :class:`SubscriptionGroupConfig` lacks, by JSON names.
    """
    subscriptions = more.get("subscriptionDataSet")
    return {
        "groupName": config.group_name,
        "consumeEnable": flag(config.consume_enable),
        "consumeFromMinEnable": flag(config.consume_from_min_enable),
        "consumeBroadcastEnable": flag(config.consume_broadcast_enable),
        "consumeMessageOrderly": flag(more.get("consumeMessageOrderly") is True),
        "retryQueueNums": str(config.retry_queue_nums),
        "retryMaxTimes": str(config.retry_max_times),
        "groupRetryPolicy": _retry_policy_text(more.get("groupRetryPolicy")),
        "brokerId": str(config.broker_id),
        "whichBrokerWhenConsumeSlowly": str(config.which_broker_when_consume_slowly),
        "notifyConsumerIdsChangedEnable": flag(config.notify_consumer_ids_changed_enable),
        "groupSysFlag": str(more.get("groupSysFlag", 0)),
        "consumeTimeoutMinute": str(more.get("consumeTimeoutMinute", 15)),
        "subscriptionDataSet": "null" if subscriptions is None else str(subscriptions),
        "attributes": map_text(more.get("attributes") or {}),
    }


def group_config_text(config: SubscriptionGroupConfig, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a group's settings as text. Source: SubscriptionGroupConfig.toString, RocketMQ 5.3."""
    return "SubscriptionGroupConfig" + map_text(group_config_members(config, more))


def _retry_policy_text(policy: Any) -> str:
    """Return a retry policy as text.

    Source: toString of GroupRetryPolicy and of the two policies that it may contain, RocketMQ 5.3.
    """
    members = policy if isinstance(policy, Mapping) else {}
    texts = ["null", "null"]
    for number, name in enumerate(("exponentialRetryPolicy", "customizedRetryPolicy")):
        inner = members.get(name)
        if isinstance(inner, Mapping):
            texts[number] = name[0].upper() + name[1:] + map_text(inner)
    return (
        f"GroupRetryPolicy{{type={members.get('type', 'CUSTOMIZED')}, exponentialRetryPolicy={texts[0]},"
        f" customizedRetryPolicy={texts[1]}}}"
    )


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as text. Source: MessageQueue.toString."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def message_text(message: ReceivedMessage, *, min_offset: int, max_offset: int) -> str:
    """Return a message in the form of MessageExt.toString, with the body as a list of signed bytes.

    Args:
        min_offset, max_offset: Lowest and highest offset of the message's queue. Java's consumer adds these
            offsets to the properties.
    """
    properties = dict(message.properties)
    properties |= {"MIN_OFFSET": str(min_offset), "MAX_OFFSET": str(max_offset)}
    ordered = {name: properties[name] for name in hash_order(properties)}
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={message.queue.queue_id},"
        f" storeSize={message.store_size}, queueOffset={message.queue_offset}, sysFlag={message.sys_flag},"
        f" bornTimestamp={message.born_ms}, bornHost=/{message.born_host}, storeTimestamp={message.store_ms},"
        f" storeHost=/{message.store_host}, msgId={message.offset_message_id},"
        f" commitLogOffset={message.commit_log_offset}, bodyCRC={message.body_crc},"
        f" reconsumeTimes={message.reconsume_times},"
        f" preparedTransactionOffset={message.prepared_transaction_offset},"
        f" toString()=Message{{topic='{message.topic}', flag={message.flag}, properties={map_text(ordered)},"
        f" body=[{_signed_bytes(message.body)}], transactionId='null'}}]"
    )


def _signed_bytes(body: bytes) -> str:
    # Convert 64 KB at a time. A list with a text for each byte of a large body would need much more memory
    # than the result.
    starts = range(0, len(body), _PIECE)
    return ", ".join(", ".join(map(_SIGNED.__getitem__, body[at : at + _PIECE])) for at in starts)


def time_text(wall_ms: int) -> str:
    """Return local time as ``2026-11-21 12:01:10,752``. Source: UtilAll.timeMillisToHumanString2."""
    text = local_text(wall_ms)
    return text if text == str(wall_ms) else f"{text},{wall_ms % 1000:03d}"


def route_text(route: TopicRouteData) -> str:
    """Return a route as fastjson prints it: with tabs, and without quotes around keys that are numbers."""
    return _pretty(
        {
            "brokerDatas": [_broker(data) for data in route.broker_datas],
            "filterServerTable": {
                addr: None if servers is None else list(servers)
                for addr, servers in route.filter_server_table.items()
            },
            "orderTopicConf": route.order_topic_conf,
            "queueDatas": [_queues(data) for data in route.queue_datas],
            "topicQueueMappingByBroker": route.topic_queue_mapping_by_broker,
        },
        0,
    )


def route_document(route: TopicRouteData) -> dict[str, Any]:
    """Return a route as a JSON document. Keys that are numbers in Java become texts."""
    return {
        "brokerDatas": [
            _broker(data) | {"brokerAddrs": {str(i): addr for i, addr in sorted(data.broker_addrs.items())}}
            for data in route.broker_datas
        ],
        "filterServerTable": dict(route.filter_server_table),
        "orderTopicConf": route.order_topic_conf,
        "queueDatas": [_queues(data) for data in route.queue_datas],
    }


def json_text(value: Any) -> str:
    """Return a value as fastjson prints it. A tuple stands for a Java set and takes one line."""
    return _pretty(value, 0)


def _broker(data: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": dict(sorted(data.broker_addrs.items())),
        "brokerName": data.broker_name,
        "cluster": data.cluster,
        "enableActingMaster": data.enable_acting_master,
        "zoneName": data.zone_name,
    }


def _queues(data: QueueData) -> dict[str, Any]:
    return {
        "brokerName": data.broker_name,
        "perm": data.perm,
        "readQueueNums": data.read_queue_nums,
        "topicSysFlag": data.topic_sys_flag,
        "writeQueueNums": data.write_queue_nums,
    }


def _pretty(value: Any, depth: int) -> str:
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        if all(isinstance(key, int) for key in value):
            # If a map's keys are numbers, fastjson prints a line break only before the closing brace.
            return (
                "{"
                + ",".join(f"{key}:{_pretty(item, depth + 1)}" for key, item in value.items())
                + outer
                + "}"
            )
        known = ((key, item) for key, item in value.items() if item is not None)
        members = (f"{_quoted(str(key))}:{_pretty(item, depth + 1)}" for key, item in known)
        return "{" + inner + ("," + inner).join(members) + outer + "}"
    if isinstance(value, tuple):
        return "[" + ",".join(_pretty(item, depth + 1) for item in value) + "]"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            return "[]"
        return "[" + inner + ("," + inner).join(_pretty(item, depth + 1) for item in value) + outer + "]"
    if isinstance(value, bool):
        return flag(value)
    if isinstance(value, str):
        return _quoted(value)
    return str(value)


def _quoted(text: str) -> str:
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
