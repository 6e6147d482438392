"""JSON bodies between clients, brokers and admin tools, except the bodies of routes and registrations.

Each type is written by ``encode`` and read by ``decode``. In a map with queues as keys, each key is written
as the queue's JSON object, and not as a text in quotes. Keys that are numbers are written without quotes.
RocketMQ's Java programs write the same forms.
Source: the ``body`` and ``heartbeat`` packages of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import orjson

from routekeeper.remoting.bounds import (
    CHOICE_MAX,
    CLIENT_ID_MAX,
    GROUPS_MAX,
    NAME_MAX,
    SUBSCRIPTIONS_MAX,
    TAGS_MAX,
    TOPIC_NAME_MAX,
)
from routekeeper.remoting.codes import LanguageCode
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import (
    ANSWER,
    INT64_MAX,
    Limits,
    as_int,
    as_object,
    as_texts,
    get_bool,
    get_int,
    get_list,
    get_text,
    loads,
)
from routekeeper.remoting.route import DataVersion

_Value = TypeVar("_Value")

#: Names of Java's enums in the order of their numbers. C++ clients send the numbers.
_CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _long(members: Mapping[str, Any], name: str, default: int = 0) -> int:
    return get_int(members, name, default, limit=INT64_MAX)


def _required(members: Mapping[str, Any], name: str, *, length_max: int) -> str:
    value = get_text(members, name)
    if not value:
        raise RemoteProtocolError(f"{name} is missing or empty")
    if len(value) > length_max:
        raise RemoteProtocolError(f"{name} has {len(value)} characters, allowed are {length_max}")
    return value


def _choice(members: Mapping[str, Any], name: str, default: str, known: Sequence[str] = ()) -> str:
    """Return a member that names a choice, such as the consume type; the default if it is absent or empty.

    The member may be the choice's number, or its name in any case. A server keeps this value in memory, so a
    long value is refused. A choice that RocketMQ does not know is allowed.

    Args:
        name: Name of the member, such as ``consumeType``.
        known: Names of the choices in upper case, in the order of their numbers.

    Raises:
        RemoteProtocolError: If the value is too long.
    """
    number = members.get(name)
    if type(number) is int and 0 <= number < len(known):
        return known[number]
    value = get_text(members, name) or default
    if len(value) > CHOICE_MAX:
        raise RemoteProtocolError(
            f"{name} {value[:40]!r} and so on has {len(value)} characters, allowed are {CHOICE_MAX}"
        )
    upper = value.upper()
    return upper if upper in known else value


def _at_most(values: Collection[Any], count: int, what: str) -> Collection[Any]:
    if len(values) > count:
        raise RemoteProtocolError(f"{what} has {len(values)} entries, allowed are {count}")
    return values


def _number_keyed(values: Mapping[int, int]) -> bytes:
    return b"{" + b",".join(b"%d:%d" % entry for entry in values.items()) + b"}"


def _read_number_keyed(value: object, what: str) -> dict[int, int]:
    members = as_object(value, what)
    return {
        as_int(key, f"{what}'s key"): as_int(number, what, limit=INT64_MAX) for key, number in members.items()
    }


def _check_subscriptions(consumers: Iterable[object]) -> None:
    """Check the numbers of subscriptions and tags in a heartbeat before they are parsed.

    Raises:
        RemoteProtocolError: If there are too many subscriptions or tags.
    """
    lists = [value.get("subscriptionDataSet") for value in consumers if type(value) is dict]
    subscriptions = [value for found in lists if type(found) is list for value in found]
    _at_most(subscriptions, SUBSCRIPTIONS_MAX, "subscriptionDataSet of all groups")
    known = [value for value in subscriptions if type(value) is dict]
    for name in ("tagsSet", "codeSet"):
        count = sum(len(found) for value in known if type(found := value.get(name)) is list)
        if count > TAGS_MAX:
            raise RemoteProtocolError(
                f"{name} has {count} entries in all subscriptions, allowed are {TAGS_MAX}"
            )


# Queues as keys ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MessageQueue:
    """One queue of a topic at one broker name.

    Attributes:
        topic: Name of the topic.
        broker_name: Name of the broker that holds the queue.
        queue_id: Number of the queue at this broker name, from 0.
    """

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        """Return the queue in the JSON form of requests and answers."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a queue from its JSON object, or from a quoted key that contains the object's JSON text.

        Raises:
            RemoteProtocolError: The value has neither form.
        """
        members = as_object(loads(value) if type(value) is str else value, "message queue")
        return cls(
            topic=_required(members, "topic", length_max=TOPIC_NAME_MAX),
            broker_name=get_text(members, "brokerName") or "",
            queue_id=get_int(members, "queueId"),
        )


def queue_keyed(values: Mapping[MessageQueue, Any]) -> bytes:
    """Return a JSON object with queues as keys.

    Each key is the JSON object of a queue, and not a text in quotes. RocketMQ's Java programs write this
    form.
    """
    entries = (orjson.dumps(queue.to_json()) + b":" + orjson.dumps(value) for queue, value in values.items())
    return b"{" + b",".join(entries) + b"}"


def _read_queue_keyed(value: object, what: str, read: Callable[[Any], _Value]) -> dict[MessageQueue, _Value]:
    members = as_object({} if value is None else value, what)
    return {MessageQueue.from_json(key): read(item) for key, item in members.items()}


def read_queue_offsets(value: object) -> dict[MessageQueue, int]:
    """Return the offsets in a JSON object whose keys are queues."""
    return _read_queue_keyed(value, "offsets", lambda item: as_int(item, "offset", limit=INT64_MAX))


# Lists and plain tables --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """Answer to requests 206, 224, 304, 305, 311, 312 and 313: a list of topics."""

    topics: tuple[str, ...] = ()
    broker_addr: str | None = None

    def encode(self) -> bytes:
        members: dict[str, Any] = {} if self.broker_addr is None else {"brokerAddr": self.broker_addr}
        return orjson.dumps(members | {"topicList": self.topics})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "topic list")
        return cls(
            topics=as_texts(members.get("topicList") or [], "topicList"),
            broker_addr=get_text(members, "brokerAddr"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable:
    """A table of texts by name: one namespace of the KV configuration, or a broker's runtime figures."""

    table: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return orjson.dumps({"table": dict(self.table)})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        table = as_object(as_object(loads(body, ANSWER), "KV table").get("table") or {}, "table")
        return cls(table={name: get_text(table, name) or "" for name in table})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Answer to request 300: the consumer groups of a topic."""

    groups: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps({"groupList": self.groups})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "group list")
        return cls(groups=as_texts(members.get("groupList") or [], "groupList"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerIdList:
    """Answer to request 38: client ids of a consumer group."""

    consumer_ids: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps({"consumerIdList": self.consumer_ids})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "consumer id list")
        return cls(consumer_ids=as_texts(members.get("consumerIdList") or [], "consumerIdList"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMemberGroup:
    """Answer to request 901: the addresses of one broker name, by broker id."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        addrs = b",".join(b"%d:%b" % (i, orjson.dumps(addr)) for i, addr in sorted(self.broker_addrs.items()))
        return b'{"brokerMemberGroup":{"brokerAddrs":{%b},"brokerName":%b,"cluster":%b}}' % (
            addrs,
            orjson.dumps(self.broker_name),
            orjson.dumps(self.cluster),
        )


# Clients and groups ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """A consumer group's subscription to one topic.

    Attributes:
        sub_string: Expression, such as ``A || B``; ``*`` means all messages.
        tags: The tags in the expression; empty for all messages.
        codes: Hashes of the tags, by which the broker filters messages; see
            ``routekeeper.remoting.message.tag_hash``.
        sub_version: Time in Unix ms at which the subscription was made. A newer subscription replaces an
            older subscription.
    """

    topic: str
    sub_string: str = "*"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": self.codes,
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": self.tags,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        members = as_object(value, "subscription")
        return cls(
            topic=_required(members, "topic", length_max=TOPIC_NAME_MAX),
            sub_string=get_text(members, "subString") or "*",
            tags=as_texts(members.get("tagsSet") or [], "tagsSet"),
            codes=tuple(
                as_int(code, "codeSet")
                for code in _at_most(get_list(members, "codeSet"), TAGS_MAX, "codeSet")
            ),
            sub_version=_long(members, "subVersion"),
            expression_type=_choice(members, "expressionType", "TAG"),
            class_filter_mode=get_bool(members, "classFilterMode"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    """One consumer group in a heartbeat."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group_name,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription.to_json() for subscription in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        members = as_object(value, "consumer data")
        subscriptions = get_list(members, "subscriptionDataSet")
        return cls(
            group_name=_required(members, "groupName", length_max=NAME_MAX),
            consume_type=_choice(members, "consumeType", "CONSUME_PASSIVELY", _CONSUME_TYPES),
            message_model=_choice(members, "messageModel", "CLUSTERING", _MESSAGE_MODELS),
            consume_from_where=_choice(members, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET", _FROM_WHERE),
            subscriptions=tuple(map(SubscriptionData.from_json, subscriptions)),
            unit_mode=get_bool(members, "unitMode"),
        )


#: Names of the members in a heartbeat, by their lower case.
_HEARTBEAT_NAMES: Final = {
    name.lower(): name
    for name in (
        "clientID",
        "consumerDataSet",
        "producerDataSet",
        "groupName",
        "consumeType",
        "messageModel",
        "consumeFromWhere",
        "subscriptionDataSet",
        "unitMode",
        "topic",
        "subString",
        "tagsSet",
        "codeSet",
        "subVersion",
        "expressionType",
        "classFilterMode",
    )
}


def _respelt(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of a heartbeat, and the objects in its arrays, with the usual names of members."""
    return {
        _HEARTBEAT_NAMES.get(name.lower(), name): [
            _respelt(item) if type(item) is dict else item for item in value
        ]
        if type(value) is list
        else value
        for name, value in members.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """Body of HEART_BEAT 34.

    Attributes:
        consumers: The client's consumer groups. :meth:`decode` returns each group once. If a body names a
            group several times, the last entry counts. In RocketMQ's broker, too, a later entry replaces an
            earlier entry.
        producer_groups: The client's producer groups; :meth:`decode` returns each group once.
    """

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [consumer.to_json() for consumer in self.consumers],
                "producerDataSet": [{"groupName": name} for name in self.producer_groups],
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body), "heartbeat")
        if "clientID" not in members:  # Java ignores the case of names, and .NET clients write ClientID
            members = _respelt(members)
        consumers = _at_most(get_list(members, "consumerDataSet"), GROUPS_MAX, "consumerDataSet")
        names = _at_most(get_list(members, "producerDataSet"), GROUPS_MAX, "producerDataSet")
        producers = (as_object(value, "producer data") for value in names)
        _check_subscriptions(consumers)
        by_group = {consumer.group_name: consumer for consumer in map(ConsumerData.from_json, consumers)}
        return cls(
            client_id=_required(members, "clientID", length_max=CLIENT_ID_MAX),
            consumers=tuple(by_group.values()),
            producer_groups=tuple(
                dict.fromkeys(_required(producer, "groupName", length_max=NAME_MAX) for producer in producers)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A broker's settings of one consumer group.

    Attributes:
        consume_message_orderly: Setting for POP consumers, which 5.x brokers serve. Other consumers choose
            ordered consumption themselves.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "groupName": self.group_name,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    def encode(self) -> bytes:
        return orjson.dumps(self.to_json())

    @classmethod
    def from_json(cls, value: object) -> Self:
        members = as_object(value, "subscription group config")

        def switch(name: str) -> bool:
            return get_bool(members, name) if members.get(name) is not None else True

        return cls(
            group_name=_required(members, "groupName", length_max=NAME_MAX),
            consume_enable=switch("consumeEnable"),
            consume_from_min_enable=switch("consumeFromMinEnable"),
            consume_broadcast_enable=switch("consumeBroadcastEnable"),
            consume_message_orderly=members.get("consumeMessageOrderly") is not None
            and get_bool(members, "consumeMessageOrderly"),
            retry_queue_nums=get_int(members, "retryQueueNums", 1),
            retry_max_times=get_int(members, "retryMaxTimes", 16),
            broker_id=_long(members, "brokerId"),
            which_broker_when_consume_slowly=_long(members, "whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=switch("notifyConsumerIdsChangedEnable"),
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        return cls.from_json(loads(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupTable:
    """Answer to request 201, and the content of ``subscriptionGroup.json``.

    Attributes:
        journal: True if later changes are in a journal beside the file.
    """

    data_version: DataVersion = field(default_factory=DataVersion)
    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    journal: bool = False

    def encode(self) -> bytes:
        table = {name: config.to_json() for name, config in self.groups.items()}
        members = {"dataVersion": self.data_version.to_json(), "subscriptionGroupTable": table}
        return orjson.dumps(members | ({"journal": True} if self.journal else {}))

    @classmethod
    def decode(cls, body: bytes, limits: Limits = ANSWER) -> Self:
        members = as_object(loads(body, limits), "subscription group table")
        table = as_object(members.get("subscriptionGroupTable") or {}, "subscriptionGroupTable")
        return cls(
            data_version=DataVersion.from_json(members.get("dataVersion")),
            groups={name: SubscriptionGroupConfig.from_json(value) for name, value in table.items()},
            journal=members.get("journal") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """One client in a broker's list of the clients of a group."""

    client_id: str
    client_addr: str
    language: LanguageCode | None = None
    version: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": (self.language if self.language is not None else LanguageCode.OTHER).name,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        members = as_object(value, "connection")
        language = get_text(members, "language") or ""
        return cls(
            client_id=get_text(members, "clientId") or "",
            client_addr=get_text(members, "clientAddr") or "",
            language=LanguageCode[language] if language in LanguageCode.__members__ else None,
            version=get_int(members, "version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection:
    """Answer to request 204: the clients of a producer group."""

    connections: tuple[ClientConnection, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps({"connectionSet": [connection.to_json() for connection in self.connections]})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "producer connection")
        return cls(connections=tuple(map(ClientConnection.from_json, get_list(members, "connectionSet"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    """Answer to request 203: the clients of a consumer group, and its subscriptions."""

    connections: tuple[ClientConnection, ...] = ()
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "connectionSet": [connection.to_json() for connection in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {topic: data.to_json() for topic, data in self.subscriptions.items()},
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "consumer connection")
        table = as_object(members.get("subscriptionTable") or {}, "subscriptionTable")
        return cls(
            connections=tuple(map(ClientConnection.from_json, get_list(members, "connectionSet"))),
            consume_type=get_text(members, "consumeType") or "CONSUME_PASSIVELY",
            message_model=get_text(members, "messageModel") or "CLUSTERING",
            consume_from_where=get_text(members, "consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET",
            subscriptions={topic: SubscriptionData.from_json(value) for topic, value in table.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatch:
    """Body of LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42."""

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.consumer_group,
                "mqSet": [queue.to_json() for queue in self.queues],
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body), "lock batch")
        return cls(
            consumer_group=_required(members, "consumerGroup", length_max=NAME_MAX),
            client_id=_required(members, "clientId", length_max=CLIENT_ID_MAX),
            queues=tuple(map(MessageQueue.from_json, get_list(members, "mqSet"))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchResponse:
    """Answer to request 41: the queues that the client has locked now."""

    locked: tuple[MessageQueue, ...] = ()

    def encode(self) -> bytes:
        return orjson.dumps({"lockOKMQSet": [queue.to_json() for queue in self.locked]})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "lock batch answer")
        return cls(locked=tuple(map(MessageQueue.from_json, get_list(members, "lockOKMQSet"))))


# Offsets and statistics --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffsetTable:
    """Answer to request 43, and the content of ``consumerOffset.json``.

    ``offsets`` maps ``topic@group`` to a map from queue id to offset.
    """

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        entries = (
            orjson.dumps(key) + b":" + _number_keyed(by_queue) for key, by_queue in self.offsets.items()
        )
        return b'{"offsetTable":{' + b",".join(entries) + b"}}"

    @classmethod
    def decode(cls, body: bytes, limits: Limits = ANSWER) -> Self:
        table = as_object(
            as_object(loads(body, limits), "offset table").get("offsetTable") or {}, "offsetTable"
        )
        return cls(offsets={key: _read_number_keyed(value, "offsets") for key, value in table.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOffsetTable:
    """Answer to request 45, and the content of ``delayOffset.json``: offsets by delay level."""

    offsets: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return b'{"offsetTable":' + _number_keyed(self.offsets) + b"}"

    @classmethod
    def decode(cls, body: bytes, limits: Limits = ANSWER) -> Self:
        table = as_object(loads(body, limits), "offset table").get("offsetTable") or {}
        return cls(offsets=_read_number_keyed(table, "offsetTable"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffsets:
    """Body of requests 220 and 222: offsets by queue."""

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return b'{"offsetTable":' + queue_keyed(self.offsets) + b"}"

    @classmethod
    def decode(cls, body: bytes) -> Self:
        members = as_object(loads(body, ANSWER), "queue offsets")
        table = members.get("offsetTable")
        if type(table) is list:  # the form for programs that cannot read objects as keys, such as C++ clients
            pairs: Iterable[Any] = table
            offsets: dict[MessageQueue, int] = {}
            for pair in pairs:
                if type(pair) is list and len(pair) == 2:
                    offsets[MessageQueue.from_json(pair[0])] = as_int(pair[1], "offset", limit=INT64_MAX)
                else:
                    entry = as_object(pair, "queue offset")
                    offsets[MessageQueue.from_json(entry)] = _long(entry, "offset")
            return cls(offsets=offsets)
        return cls(
            offsets=_read_queue_keyed(
                table, "offsetTable", lambda value: as_int(value, "offset", limit=INT64_MAX)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset:
    """Smallest and largest offset of one queue.

    ``last_update_timestamp`` is the time of the last message in Unix ms; 0 if the queue is empty.
    """

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """Answer to request 202: offsets of a topic by queue."""

    offsets: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)

    def encode(self) -> bytes:
        table = {
            queue: {
                "lastUpdateTimestamp": offset.last_update_timestamp,
                "maxOffset": offset.max_offset,
                "minOffset": offset.min_offset,
            }
            for queue, offset in self.offsets.items()
        }
        return b'{"offsetTable":' + queue_keyed(table) + b"}"

    @classmethod
    def decode(cls, body: bytes) -> Self:
        def read(value: object) -> TopicOffset:
            members = as_object(value, "topic offset")
            return TopicOffset(
                min_offset=_long(members, "minOffset"),
                max_offset=_long(members, "maxOffset"),
                last_update_timestamp=_long(members, "lastUpdateTimestamp"),
            )

        table = as_object(loads(body, ANSWER), "topic stats").get("offsetTable")
        return cls(offsets=_read_queue_keyed(table, "offsetTable", read))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOffset:
    """A consumer group's progress in one queue.

    ``last_timestamp`` is the time of the last consumed message in Unix ms. ``pull_offset`` is the offset up
    to which the group has pulled (5.x). The command consumerProgress of 5.x prints the difference between
    ``pull_offset`` and ``consumer_offset`` as messages in flight.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats:
    """Answer to request 208: a consumer group's progress; ``consume_tps`` is messages per second."""

    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    def encode(self) -> bytes:
        table = {
            queue: {
                "brokerOffset": offset.broker_offset,
                "consumerOffset": offset.consumer_offset,
                "lastTimestamp": offset.last_timestamp,
                "pullOffset": offset.pull_offset,
            }
            for queue, offset in self.offsets.items()
        }
        tps = orjson.dumps(float(self.consume_tps))
        return b'{"consumeTps":' + tps + b',"offsetTable":' + queue_keyed(table) + b"}"

    @classmethod
    def decode(cls, body: bytes) -> Self:
        return cls.from_json(loads(body, ANSWER))

    @classmethod
    def from_json(cls, value: object) -> Self:
        def read(value: object) -> ConsumeOffset:
            entry = as_object(value, "consume offset")
            return ConsumeOffset(
                broker_offset=_long(entry, "brokerOffset"),
                consumer_offset=_long(entry, "consumerOffset"),
                pull_offset=_long(entry, "pullOffset"),
                last_timestamp=_long(entry, "lastTimestamp"),
            )

        members = as_object(value, "consume stats")
        tps = members.get("consumeTps") or 0.0
        return cls(
            offsets=_read_queue_keyed(members.get("offsetTable"), "offsetTable", read),
            consume_tps=float(tps) if type(tps) in (int, float) else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectlyResult:
    """Answer to request 309; ``spent_ms`` is the time that the listener took, in ms."""

    consume_result: str = "CR_SUCCESS"
    order: bool = False
    auto_commit: bool = True
    spent_ms: int = 0
    remark: str | None = None

    def encode(self) -> bytes:
        members: dict[str, Any] = {
            "autoCommit": self.auto_commit,
            "consumeResult": self.consume_result,
            "order": self.order,
        }
        if self.remark is not None:
            members["remark"] = self.remark
        return orjson.dumps(members | {"spentTimeMills": self.spent_ms})
