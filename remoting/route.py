"""Bodies that describe topics, queues and brokers: routes, cluster table, registration.

Values are immutable. Writers produce compact text with members in alphabetical order and null members left
out, as fastjson does, because some readers cut the raw text (client-go inside ``brokerAddrs``).
Source: TopicRouteData, ClusterInfo, RegisterBrokerBody and TopicConfig of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

import msgspec
import orjson

from remoting.bounds import ADDR_MAX, FILTER_SERVERS_MAX, TOPIC_NAME_MAX
from remoting.codes import VERSION_3_0_11, VERSION_4_9_4, VERSION_5_0_0
from remoting.errors import LocalProtocolError, RemoteProtocolError
from remoting.lenient import (
    ANSWER,
    DEPTH_MAX,
    INT32_MAX,
    INT64_MAX,
    UNREADABLE,
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

#: Topics that one registration may carry. Real brokers have tens of thousands at most.
REGISTER_TOPICS_MAX: Final = 100_000
#: Size in bytes to which a compressed registration may inflate: 100,000 topics with names of 300 characters.
REGISTER_INFLATED_MAX: Final = 32 * 1024 * 1024
#: How many times its own size a compressed registration may inflate to. Real ones reach 15 to 40.
REGISTER_RATIO_MAX: Final = 128
#: Of a registration that only the tolerant reader can read: one with static topics, say, whose keys are bare.
REGISTER_LIMITS: Final = Limits(
    size=2 * 1024 * 1024, containers=32 * 1024, dialect_size=2 * 1024 * 1024, dialect_keys=16 * 1024
)
#: Static topics of one registration.
MAPPING_INFOS_MAX: Final = 4096

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_LENGTH: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">I")
_ZLIB_MAGIC: Final = 0x78
_ZLIB_START: Final = bytes((_ZLIB_MAGIC,))
_KNOWN_MAX: Final = 1000
_USUAL_MAX: Final = 64
_COUNT_ABOVE: Final = 4 * 1024 * 1024
#: Bytes that a topic takes at most where nothing but a registration is said; real ones take 150 to 250.
_TOPIC_SIZE_MAX: Final = 512


class RouteDialect(Enum):
    """How number keys of a route body are written."""

    UNQUOTED = "unquoted"  # {0:"addr"}: what every release reads, and no JSON
    QUOTED = "quoted"  # {"0":"addr"}, maps sorted, ASCII only: JSON


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Version of a broker's topic table. Releases compare it by equality, never by order.

    Attributes:
        state_version: Epoch of the master, 0 unless a 5.x controller assigned one.
        timestamp: Unix time in ms of the last change.
        counter: Changes so far.
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
            RemoteProtocolError: If it is no object or a part is no 64-bit integer.
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
        """Say whether no part is greater than ``other``'s, so that all its changes are in ``other`` too."""
        return (
            self.state_version <= other.state_version
            and self.timestamp <= other.timestamp
            and self.counter <= other.counter
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic as its broker configures it."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
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
            topic_name: Name to use if the object states none (the key it stood under).

        Raises:
            RemoteProtocolError: If it has no name or a member is of the wrong type.
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


def _topic_name(name: str) -> str:
    if not 0 < len(name) <= TOPIC_NAME_MAX:
        raise RemoteProtocolError(f"topic name has {len(name)} characters, allowed are 1 to {TOPIC_NAME_MAX}")
    return name


class QueueData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Queues that one broker name has of one topic."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """Addresses behind one broker name; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """Where a topic lives: the answer to request 105.

    Attributes:
        filter_server_table: Broker address to filter servers; None where 5.x names an address without any.
        order_topic_conf: ``broker-a:4;broker-b:4`` for an ordered topic; replaces queue data for producers.
        topic_queue_mapping_by_broker: Static topics (5.x): broker name to mapping info, kept as parsed JSON.
    """

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """All brokers and clusters: the answer to request 106."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBody:
    """Body of request 103.

    Attributes:
        filter_servers: None leaves the stored list as it is; empty removes it.
        mapping_infos: Static topics (5.x): topic to mapping info, kept as parsed JSON.
    """

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_configs: tuple[TopicConfig, ...] = ()
    filter_servers: tuple[str, ...] | None = None
    mapping_infos: Mapping[str, Any] = field(default_factory=dict)


_Int32 = Annotated[int, msgspec.Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]
_Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
_QueueNums = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
_TopicName = Annotated[str, msgspec.Meta(max_length=TOPIC_NAME_MAX)]


class TopicNumbers(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What a nameserver keeps of a topic's configuration.

    Attributes:
        topic_name: Empty if the object states none: the key counts then.
    """

    topic_name: _TopicName = ""
    read_queue_nums: _QueueNums = 16
    write_queue_nums: _QueueNums = 16
    perm: _Int32 = 6
    topic_sys_flag: _Int32 = 0


class _PlainVersion(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    state_version: _Int64 = 0
    timestamp: _Int64 = 0
    counter: _Int64 = 0


class _PlainWrapper(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    data_version: _PlainVersion = _PlainVersion()
    topic_config_table: dict[_TopicName, TopicNumbers]
    topic_queue_mapping_info_map: dict[str, msgspec.Raw] = {}


class _PlainBody(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_serialize_wrapper: _PlainWrapper
    filter_server_list: tuple[str, ...] | None = None


_plain_decoder: Final = msgspec.json.Decoder(_PlainBody)
_version_decoder: Final = msgspec.json.Decoder(_PlainVersion)


class PlainRegistration(msgspec.Struct, frozen=True):
    """What a nameserver needs of a registration, see :func:`read_registration`.

    Attributes:
        topics: By name. Their own ``topic_name`` may be empty.
        filter_servers, mapping_infos: As in :class:`RegisterBody`.
    """

    data_version: DataVersion
    topics: Mapping[str, TopicNumbers]
    filter_servers: tuple[str, ...] | None
    mapping_infos: Mapping[str, Any] = _NOTHING


def dialect_for(version: int, *, accept_standard_json_only: bool = False) -> RouteDialect:
    """Choose the dialect of a route for a caller, as 4.9.4 and later do.

    Source: ClientRequestProcessor and DefaultRequestProcessor, getRouteInfoByTopic.
    """
    if version >= VERSION_4_9_4 or accept_standard_json_only:
        return RouteDialect.QUOTED
    return RouteDialect.UNQUOTED


def encode_route(route: TopicRouteData, dialect: RouteDialect) -> bytes:
    """Encode a route body.

    Members that only 5.x knows are written for everybody; 4.9 skips them. The unquoted form also names
    ``topicSynFlag``, as 4.8 and client-go call ``topicSysFlag``.
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


def decode_route(body: bytes) -> TopicRouteData:
    """Decode a route body of either dialect.

    Raises:
        RemoteProtocolError: If it is not a route.
    """
    members = as_object(loads(body, ANSWER), "route")
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
    """Encode the cluster table; number keys are unquoted for every reader, as Java writes them."""
    brokers = ",".join(
        f"{_utf8(name)}:{_broker(data, _utf8, quoted=False)}" for name, data in info.broker_addr_table.items()
    )
    clusters = ",".join(
        f"{_utf8(name)}:[{','.join(map(_utf8, members))}]"
        for name, members in info.cluster_addr_table.items()
    )
    return f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{{{clusters}}}}}'.encode()


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Decode the cluster table.

    Raises:
        RemoteProtocolError: If it is none.
    """
    members = as_object(loads(body, ANSWER), "cluster info")
    brokers = as_object(members.get("brokerAddrTable") or {}, "brokerAddrTable")
    clusters = as_object(members.get("clusterAddrTable") or {}, "clusterAddrTable")
    return ClusterInfo(
        broker_addr_table={name: decode_broker(value) for name, value in brokers.items()},
        cluster_addr_table={name: as_texts(value, "clusterAddrTable") for name, value in clusters.items()},
    )


def body_crc32(body: bytes) -> int:
    """Return the checksum of a registration body as sent: CRC32 with the sign bit cleared."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_register_body(body: RegisterBody, *, compressed: bool, version: int) -> bytes:
    """Encode the body of a registration for a nameserver that takes it as from a sender of ``version``.

    Raises:
        LocalProtocolError: If a compressed topic's name or attributes cannot be split at blanks again.
    """
    if compressed:
        return zlib.compress(_plain_register_body(body, version=version), 9)
    wrapper: dict[str, Any] = {
        "dataVersion": body.data_version.to_json(),
        "topicConfigTable": {config.topic_name: config.to_json() for config in body.topic_configs},
    }
    if version < VERSION_3_0_11:
        return orjson.dumps(wrapper)
    if body.mapping_infos:
        wrapper["topicQueueMappingInfoMap"] = dict(body.mapping_infos)
    members: dict[str, Any] = {}
    if body.filter_servers is not None:
        members["filterServerList"] = list(body.filter_servers)
    return orjson.dumps(members | {"topicConfigSerializeWrapper": wrapper})


def _plain_register_body(body: RegisterBody, *, version: int) -> bytes:
    parts = [_sized(body.data_version.encode()), _LENGTH.pack(len(body.topic_configs))]
    for config in body.topic_configs:
        words = [
            config.topic_name,
            str(config.read_queue_nums),
            str(config.write_queue_nums),
            str(config.perm),
            config.topic_filter_type,
        ]
        if version >= VERSION_5_0_0:
            words.append(orjson.dumps(dict(config.attributes)).decode())
        if any(not word or " " in word for word in words[:5]):
            raise LocalProtocolError(f"topic {config.topic_name!r} cannot travel compressed: it has a blank")
        parts.append(_sized(" ".join(words).encode()))
    parts.append(_sized(orjson.dumps(list(body.filter_servers or ()))))
    if version >= VERSION_5_0_0:
        parts.append(_LENGTH.pack(len(body.mapping_infos)))
        parts += [_sized(orjson.dumps(info)) for info in body.mapping_infos.values()]
    return b"".join(parts)


def read_registration(
    body: bytes,
    *,
    compressed: bool,
    version: int,
    topics_max: int = REGISTER_TOPICS_MAX,
    inflated_max: int = REGISTER_INFLATED_MAX,
) -> PlainRegistration:
    """Read what a nameserver needs of a registration from a sender of ``version``.

    What brokers usually send is read some 10 times faster than by :func:`decode_register_body`: the
    compressed form, and standard JSON with numbers as numbers and without static topics. Anything else, up
    to :data:`REGISTER_LIMITS`, is read by that one. Both read alike, but for members that a nameserver does
    not use: the fast way skips them unchecked.

    Raises:
        RemoteProtocolError: As :func:`decode_register_body`.
    """
    if compressed or body[:1] == _ZLIB_START:
        data = _inflate(body, inflated_max)
        return _read_words(data, min(topics_max, _topics_of(body)))
    return read_plain_json(body, topics_max) or as_plain(
        _decode_json(body, version=version, topics_max=topics_max)
    )


def as_plain(body: RegisterBody) -> PlainRegistration:
    """Return what a nameserver needs of a registration; of equal names the last counts, as in Java's map."""
    return PlainRegistration(
        body.data_version,
        {
            config.topic_name: TopicNumbers(
                config.topic_name,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.topic_sys_flag,
            )
            for config in body.topic_configs
        },
        body.filter_servers,
        body.mapping_infos,
    )


def decode_register_body(
    body: bytes,
    *,
    compressed: bool,
    version: int,
    topics_max: int = REGISTER_TOPICS_MAX,
    inflated_max: int = REGISTER_INFLATED_MAX,
) -> RegisterBody:
    """Decode the whole body of a registration from a sender of ``version``.

    More tolerant than any release: a zlib stream is recognised although the header says that there is none
    (5.x brokers mislabel it), topics have five or six parts, and the mapping section may be missing.

    Raises:
        RemoteProtocolError: If it cannot be read, or is above a limit; memory stays within the limits.
    """
    if compressed or body[:1] == _ZLIB_START:
        data = _inflate(body, inflated_max)
        return _decode_plain(data, min(topics_max, _topics_of(body)))
    return _decode_json(body, version=version, topics_max=topics_max)


def _decode_json(body: bytes, *, version: int, topics_max: int) -> RegisterBody:
    if not body:
        return RegisterBody()
    members = as_object(loads(body, REGISTER_LIMITS), "registration")
    filters = None
    if version >= VERSION_3_0_11 or "topicConfigSerializeWrapper" in members:
        if members.get("filterServerList") is not None:
            filters = _filter_servers(members["filterServerList"])
        members = as_object(members.get("topicConfigSerializeWrapper") or {}, "topicConfigSerializeWrapper")
    table = as_object(members.get("topicConfigTable") or {}, "topicConfigTable")
    _check_topics(len(table), topics_max)
    mapping = as_object(members.get("topicQueueMappingInfoMap") or {}, "topicQueueMappingInfoMap")
    _check_mappings(len(mapping))
    return RegisterBody(
        data_version=DataVersion.from_json(members.get("dataVersion")),
        topic_configs=tuple(
            _registered(TopicConfig.from_json(table[name], topic_name=name)) for name in table
        ),
        filter_servers=filters,
        mapping_infos={_topic_name(name): _mapping_info(value) for name, value in mapping.items()},
    )


def read_plain_json(body: bytes, topics_max: int = REGISTER_TOPICS_MAX) -> PlainRegistration | None:
    """Read a registration that is standard JSON with numbers as numbers, without static topics.

    Returns:
        None if the body is anything else, or wrong: :func:`decode_register_body` tells which.

    Raises:
        RemoteProtocolError: If it is above a limit.
    """
    size = len(body)
    # Two objects a topic, with its attributes. Counting takes a tenth of reading: less is just read.
    if size > _COUNT_ABOVE and body.count(b"{") > 2 * topics_max + DEPTH_MAX:
        raise RemoteProtocolError(
            f"registration of {size} bytes has more than the {topics_max} topics allowed"
        )
    try:
        found = _plain_decoder.decode(body)
    except UNREADABLE:
        return None
    wrapper = found.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table
    if wrapper.topic_queue_mapping_info_map or len(topics) > topics_max or "" in topics:
        return None
    if size > _TOPIC_SIZE_MAX * (len(topics) + 1):
        return None  # much was skipped: who knows how deep it is nested
    filters = found.filter_server_list
    if filters and not _are_filter_servers(filters):
        return None
    for key, numbers in topics.items():
        if numbers.topic_name != key:
            # An object may state no name, or another one than the key it stands under. The last one counts.
            topics = {numbers.topic_name or key: numbers for key, numbers in topics.items()}
            break
    version = wrapper.data_version
    return PlainRegistration(
        DataVersion(
            state_version=version.state_version, timestamp=version.timestamp, counter=version.counter
        ),
        topics,
        filters,
    )


def _read_words(data: bytes, topics_max: int) -> PlainRegistration:
    """Read an inflated registration.

    Raises:
        RemoteProtocolError: If it is wrong.
    """
    reader = _Reader(data)
    version = _version(reader.sized())
    count = reader.count()
    _check_topics(count, topics_max)
    topics: dict[str, TopicNumbers] = {}
    # Most topics of a broker have equal configurations, so what follows their names is read once.
    known: dict[bytes, TopicNumbers] = {}
    # Sizes without a sign: a negative one ends behind the data too, where nothing can be read.
    position, end, size_at = reader.position, len(data), _SIZE.unpack_from
    try:
        for _ in range(count):
            start = position + 4
            position = start + size_at(data, position)[0]
            name, _, rest = data[start:position].partition(b" ")
            numbers = known.get(rest)
            if numbers is None:
                numbers = _usual_words(rest) if len(rest) <= _USUAL_MAX else _words(rest)
                if len(known) < _KNOWN_MAX:
                    known[rest] = numbers
            topics[name.decode()] = numbers
    except (UnicodeDecodeError, struct.error) as error:
        raise RemoteProtocolError(f"inflated registration of {end} bytes is malformed: {error}") from None
    if topics:
        _topic_name("" if "" in topics else max(topics, key=len))
    reader.position = position
    filters, mappings = reader.filter_servers(), reader.mapping_infos()
    return PlainRegistration(version, topics, filters, mappings)


def _decode_plain(data: bytes, topics_max: int) -> RegisterBody:
    reader = _Reader(data)
    version = DataVersion.from_json(loads(reader.sized()))
    count = reader.count()
    _check_topics(count, topics_max)
    return RegisterBody(
        data_version=version,
        topic_configs=tuple(_registered(_decode_words(reader.sized())) for _ in range(count)),
        filter_servers=reader.filter_servers(),
        mapping_infos=reader.mapping_infos(),
    )


def _topics_of(compressed: bytes) -> int:
    """Return how many topics a compressed registration may have: names differ, real ones take 2.4 bytes."""
    return 64 + len(compressed) // 2


def _check_topics(count: int, topics_max: int) -> None:
    if not 0 <= count <= topics_max:
        raise RemoteProtocolError(f"registration of {count} topics, allowed are 0 to {topics_max}")


def _check_mappings(count: int) -> None:
    if not 0 <= count <= MAPPING_INFOS_MAX:
        raise RemoteProtocolError(
            f"registration of {count} mapping infos, allowed are 0 to {MAPPING_INFOS_MAX}"
        )


def _registered(config: TopicConfig) -> TopicConfig:
    """Check a topic of a registration."""
    _topic_name(config.topic_name)
    for name, value in ("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums):
        if value < 0:
            raise RemoteProtocolError(f"{name} is {value}, allowed: integers from 0 to {INT32_MAX}")
    return config


def _are_filter_servers(values: tuple[str, ...]) -> bool:
    return len(values) <= FILTER_SERVERS_MAX and max(map(len, values), default=0) <= ADDR_MAX


def _filter_servers(value: object) -> tuple[str, ...]:
    values = as_texts(value, "filterServerList")
    if not _are_filter_servers(values):
        raise RemoteProtocolError(
            f"filterServerList has {len(values)} entries, the longest of {max(map(len, values))} characters, "
            f"allowed are {FILTER_SERVERS_MAX} of {ADDR_MAX}"
        )
    return values


def _mapping_info(value: object) -> dict[str, Any]:
    """Check the info of a static topic: plain values, and maps of plain values."""
    members = as_object(value, "mapping info")
    for name, member in members.items():
        for item in member.values() if type(member) is dict else (member,):
            if type(item) in (dict, list):
                raise RemoteProtocolError(
                    f"mapping info's {name} is nested, allowed are plain values and one map"
                )
    return members


def _version(data: bytes) -> DataVersion:
    """Read what :meth:`DataVersion.decode` reads."""
    try:
        read = _version_decoder.decode(data)
    except UNREADABLE:
        return DataVersion.from_json(loads(data))
    return DataVersion(state_version=read.state_version, timestamp=read.timestamp, counter=read.counter)


def _words(rest: bytes) -> TopicNumbers:
    """Read what follows a topic's name."""
    config = _registered(_decode_words(b"T " + rest))
    return TopicNumbers("", config.read_queue_nums, config.write_queue_nums, config.perm)


#: Brokers repeat themselves, so what they said lately is kept, if it is short.
_usual_words: Final = lru_cache(maxsize=1024)(_words)


def _decode_words(data: bytes) -> TopicConfig:
    try:
        name, read_queues, write_queues, perm, filter_type, *more = data.decode().split(" ", 5)
    except ValueError:
        raise RemoteProtocolError(
            f"compressed topic of {len(data)} bytes is not 'name reads writes perm filterType [attributes]'"
        ) from None
    return TopicConfig(
        topic_name=name,
        read_queue_nums=as_int(read_queues, "readQueueNums"),
        write_queue_nums=as_int(write_queues, "writeQueueNums"),
        perm=as_int(perm, "perm"),
        topic_filter_type=filter_type,
        attributes=as_text_map(loads(more[0]), "attributes") if more and more[0] else {},
    )


def _inflate(data: bytes, limit: int) -> bytes:
    limit = min(limit, REGISTER_RATIO_MAX * (len(data) + 64))
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"registration of {len(data)} bytes is no zlib stream: {error}") from None
    if len(plain) > limit:
        raise RemoteProtocolError(f"registration of {len(data)} bytes inflates above the limit of {limit}")
    if not stream.eof:
        raise RemoteProtocolError(f"registration's zlib stream of {len(data)} bytes ends early")
    return plain


class _Reader:
    """Walks over the length-prefixed parts of an inflated registration."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    @property
    def rest(self) -> int:
        return len(self._data) - self.position

    def count(self) -> int:
        if self.rest < 4:
            raise RemoteProtocolError(f"inflated registration of {len(self._data)} bytes ends early")
        (value,) = _LENGTH.unpack_from(self._data, self.position)
        self.position += 4
        return int(value)

    def sized(self) -> bytes:
        size = self.count()
        if not 0 <= size <= self.rest:
            raise RemoteProtocolError(f"part of {size} bytes runs past an inflated registration's end")
        part = self._data[self.position : self.position + size]
        self.position += size
        return part

    def filter_servers(self) -> tuple[str, ...]:
        servers = self.sized() if self.rest else b""
        return () if servers in (b"", b"[]") else _filter_servers(loads(servers))

    def mapping_infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        if self.rest:
            count = self.count()
            _check_mappings(count)
            for _ in range(count):
                info = _mapping_info(loads(self.sized()))
                infos[_topic_name(get_text(info, "topic") or "")] = info
        return infos


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


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
        RemoteProtocolError: If a member is of the wrong type.
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
    """Read only the queue data of a route body: what request 217 carries.

    Raises:
        RemoteProtocolError: If it is not a route.
    """
    return tuple(map(_decode_queues, get_list(as_object(loads(body), "route"), "queueDatas")))
