"""Bodies that describe topics, queues and brokers: topic routes and the cluster table.

All values are immutable. The text on the wire is compact. Its members are in alphabetical order, and null
members are left out, as fastjson does. Some readers depend on this form, because they split the raw text
instead of parsing it. An example is client-go, which splits the text of ``brokerAddrs``.
Source: TopicRouteData, ClusterInfo and TopicConfig of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import msgspec
import orjson

from routekeeper.remoting.codes import VERSION_4_9_4
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import (
    ANSWER,
    INT64_MAX,
    Limits,
    as_int,
    as_object,
    as_text_map,
    as_texts,
    get_bool,
    get_int,
    get_list,
    get_text,
    loads,
)


class RouteDialect(Enum):
    """Spelling of keys that are numbers in a route body."""

    UNQUOTED = "unquoted"  # {0:"addr"}: every release reads this form; it is no valid JSON
    QUOTED = "quoted"  # {"0":"addr"}, with sorted maps and only ASCII characters: valid JSON


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Version of a broker's topic table.

    RocketMQ's programs test whether two versions are equal. They never test which version is newer.

    Attributes:
        state_version: Epoch of the master; 0 unless a 5.x controller assigned an epoch.
        timestamp: Time of the last change in Unix ms.
        counter: Number of changes so far.
    """

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def advanced(self, *, now_ms: int) -> DataVersion:
        """Return the version after one more change."""
        return DataVersion(state_version=self.state_version, timestamp=now_ms, counter=self.counter + 1)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form; missing members are 0.

        Raises:
            RemoteProtocolError: If the value is no object, or if a member is no 64-bit integer.
        """
        if value is None:
            return cls()
        members = as_object(value, "dataVersion")
        return cls(
            state_version=get_int(members, "stateVersion", limit=INT64_MAX),
            timestamp=get_int(members, "timestamp", limit=INT64_MAX),
            counter=get_int(members, "counter", limit=INT64_MAX),
        )

    def encode(self) -> bytes:
        return orjson.dumps(self.to_json())

    @classmethod
    def decode(cls, body: bytes) -> Self:
        return cls.from_json(loads(body)) if body else cls()

    def contained_in(self, other: DataVersion) -> bool:
        """Return True if no number of this version is greater than in ``other``.

        The version ``other`` then contains all changes of this version.
        """
        return (
            self.state_version <= other.state_version
            and self.timestamp <= other.timestamp
            and self.counter <= other.counter
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Configuration of a topic on one broker.

    Attributes:
        topic_name: Name of the topic.
        read_queue_nums: Number of queues that consumers read.
        write_queue_nums: Number of queues that producers write.
        perm: Permissions of the topic: 4 for reading, 2 for writing, 6 for reading and writing. 1 is added
            for a topic whose settings new topics inherit.
        topic_filter_type: Kind of message selection by tags; RocketMQ uses only SINGLE_TAG.
        topic_sys_flag: Flags of RocketMQ's own topics.
        order: True if an order configuration lists the topic's queues.
        attributes: Attributes of RocketMQ 5, such as ``message.type``. In a request that creates or changes a
            topic, each name begins with ``+`` or ``-``.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration in the JSON form of requests and answers."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, value: object, *, topic_name: str | None = None) -> Self:
        """Read the JSON form.

        Args:
            topic_name: Name to use if the object has no name; usually the key of the object in its table.

        Raises:
            RemoteProtocolError: If the topic has no name, or if a member has a wrong type.
        """
        members = as_object(value, "topic config")
        name = get_text(members, "topicName") or topic_name
        if not name:
            raise RemoteProtocolError("topic config has no topicName")
        return cls(
            topic_name=name,
            read_queue_nums=get_int(members, "readQueueNums", 16),
            write_queue_nums=get_int(members, "writeQueueNums", 16),
            perm=get_int(members, "perm", 6),
            topic_filter_type=get_text(members, "topicFilterType") or "SINGLE_TAG",
            topic_sys_flag=get_int(members, "topicSysFlag"),
            order=get_bool(members, "order"),
            attributes=as_text_map(members.get("attributes"), "attributes"),
        )


class QueueData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Queues of one topic on the brokers with one name (a master and its slaves)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """Addresses of the brokers with one name, by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """The route of a topic: the answer to GET_ROUTEINFO_BY_TOPIC 105.

    Attributes:
        filter_server_table: Filter servers by broker address. A value is None if a 5.x nameserver lists an
            address without any filter server.
        order_topic_conf: ``broker-a:4;broker-b:4`` for an ordered topic; producers use it instead of queue
            data.
        topic_queue_mapping_by_broker: Static topics (5.x): the mapping info of each broker as parsed JSON.
    """

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """All brokers and clusters: the answer to request code 106."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def dialect_for(version: int, *, accept_standard_json_only: bool = False) -> RouteDialect:
    """Choose the dialect of a route for a client, in the same way as RocketMQ 4.9.4 and later.

    Source: ClientRequestProcessor and DefaultRequestProcessor, getRouteInfoByTopic.
    """
    if version >= VERSION_4_9_4 or accept_standard_json_only:
        return RouteDialect.QUOTED
    return RouteDialect.UNQUOTED


def encode_route(route: TopicRouteData, dialect: RouteDialect) -> bytes:
    """Encode a route as the body of an answer.

    All clients get the members that only 5.x knows; clients of 4.9 skip these members. The unquoted form
    repeats ``topicSysFlag`` under the name ``topicSynFlag``, because 4.8 and client-go use this name.
    """
    quoted = dialect is RouteDialect.QUOTED
    text = _ascii if quoted else _utf8
    filters = sorted(route.filter_server_table.items()) if quoted else route.filter_server_table.items()
    parts = [
        '"brokerDatas":[' + ",".join(_broker(data, text, quoted=quoted) for data in route.broker_datas) + "]",
        '"filterServerTable":{'
        + ",".join(
            f"{text(addr)}:" + ("null" if servers is None else f"[{','.join(map(text, servers))}]")
            for addr, servers in filters
        )
        + "}",
    ]
    if route.order_topic_conf is not None:
        parts.append(f'"orderTopicConf":{text(route.order_topic_conf)}')
    parts.append('"queueDatas":[' + ",".join(_queues(data, text, quoted) for data in route.queue_datas) + "]")
    if route.topic_queue_mapping_by_broker is not None:
        parts.append(f'"topicQueueMappingByBroker":{_any(route.topic_queue_mapping_by_broker, text)}')
    return ("{" + ",".join(parts) + "}").encode()


def decode_route(body: bytes, limits: Limits = ANSWER) -> TopicRouteData:
    """Decode a route body of either :class:`RouteDialect`.

    Raises:
        RemoteProtocolError: If the body is no route.
    """
    members = as_object(loads(body, limits), "route")
    mapping = members.get("topicQueueMappingByBroker")
    filters = members.get("filterServerTable")
    return TopicRouteData(
        queue_datas=tuple(map(_decode_queues, get_list(members, "queueDatas"))),
        broker_datas=tuple(map(decode_broker, get_list(members, "brokerDatas"))),
        filter_server_table={
            addr: None if servers is None else as_texts(servers, "filterServerTable")
            for addr, servers in (() if filters is None else as_object(filters, "filterServerTable").items())
        },
        order_topic_conf=get_text(members, "orderTopicConf"),
        topic_queue_mapping_by_broker=None if mapping is None else as_object(mapping, "queue mapping"),
    )


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Encode the cluster table. As in Java, broker ids are keys without quotes: ``{0:"address"}``.

    All clients get this form, also clients that get routes with quoted keys.
    """
    brokers = ",".join(
        f"{_utf8(name)}:{_broker(data, _utf8, quoted=False)}" for name, data in info.broker_addr_table.items()
    )
    clusters = ",".join(
        f"{_utf8(name)}:[{','.join(map(_utf8, members))}]"
        for name, members in info.cluster_addr_table.items()
    )
    return f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{{{clusters}}}}}'.encode()


def decode_cluster_info(body: bytes, limits: Limits = ANSWER) -> ClusterInfo:
    """Decode the cluster table.

    Raises:
        RemoteProtocolError: If the body is no cluster table.
    """
    members = as_object(loads(body, limits), "cluster info")
    brokers = as_object(members.get("brokerAddrTable") or {}, "brokerAddrTable")
    clusters = as_object(members.get("clusterAddrTable") or {}, "clusterAddrTable")
    return ClusterInfo(
        broker_addr_table={name: decode_broker(value) for name, value in brokers.items()},
        cluster_addr_table={name: as_texts(value, "clusterAddrTable") for name, value in clusters.items()},
    )


def _utf8(value: str) -> str:
    return orjson.dumps(value).decode()


def _ascii(value: str) -> str:
    return json.dumps(value)


def _broker(data: BrokerData, text: Callable[[str], str], *, quoted: bool) -> str:
    mark = '"' if quoted else ""
    addrs = ",".join(f"{mark}{i}{mark}:{text(addr)}" for i, addr in sorted(data.broker_addrs.items()))
    zone = "" if data.zone_name is None else f',"zoneName":{text(data.zone_name)}'
    return (
        f'{{"brokerAddrs":{{{addrs}}},"brokerName":{text(data.broker_name)},"cluster":{text(data.cluster)},'
        f'"enableActingMaster":{"true" if data.enable_acting_master else "false"}{zone}}}'
    )


def _queues(data: QueueData, text: Callable[[str], str], quoted: bool) -> str:
    synonym = "" if quoted else f'"topicSynFlag":{data.topic_sys_flag},'
    return (
        f'{{"brokerName":{text(data.broker_name)},"perm":{data.perm},"readQueueNums":{data.read_queue_nums},'
        f'{synonym}"topicSysFlag":{data.topic_sys_flag},"writeQueueNums":{data.write_queue_nums}}}'
    )


def _any(value: Any, text: Callable[[str], str]) -> str:
    if text is _ascii:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return orjson.dumps(value).decode()


def decode_broker(value: object) -> BrokerData:
    """Read the JSON form of a broker's addresses.

    Raises:
        RemoteProtocolError: If a member has a wrong type.
    """
    members = as_object(value, "broker data")
    addrs = as_object(members.get("brokerAddrs") or {}, "brokerAddrs")
    by_id = {
        as_int(broker_id, "broker id", limit=INT64_MAX): get_text(addrs, broker_id) or ""
        for broker_id in addrs
    }
    return BrokerData(
        cluster=get_text(members, "cluster") or "",
        broker_name=get_text(members, "brokerName") or "",
        broker_addrs=by_id,
        enable_acting_master=get_bool(members, "enableActingMaster"),
        zone_name=get_text(members, "zoneName"),
    )


def _decode_queues(value: object) -> QueueData:
    members = as_object(value, "queue data")
    sys_flag = "topicSysFlag" if "topicSysFlag" in members else "topicSynFlag"
    return QueueData(
        broker_name=get_text(members, "brokerName") or "",
        read_queue_nums=get_int(members, "readQueueNums", least=0),
        write_queue_nums=get_int(members, "writeQueueNums", least=0),
        perm=get_int(members, "perm"),
        topic_sys_flag=get_int(members, sys_flag),
    )


def decode_queue_datas(body: bytes) -> tuple[QueueData, ...]:
    """Read only the queue data of a route body; request code 217 has such a body.

    Raises:
        RemoteProtocolError: If the body is no route.
    """
    return tuple(map(_decode_queues, get_list(as_object(loads(body), "route"), "queueDatas")))
