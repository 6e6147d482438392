"""Body of a registration (REGISTER_BROKER 103), plain or compressed: a broker's data version and its topics.

This module writes JSON without blanks, as fastjson does. Source: RegisterBrokerBody of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
import orjson

from routekeeper.remoting.bounds import ADDR_MAX, FILTER_SERVERS_MAX, TOPIC_NAME_MAX
from routekeeper.remoting.codes import VERSION_3_0_11, VERSION_5_0_0
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.lenient import (
    INT32_MAX,
    INT64_MAX,
    UNREADABLE,
    Limits,
    as_int,
    as_object,
    as_text_map,
    as_texts,
    get_text,
    loads,
)
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.steps import STEP, Steps, finish, in_chunks

#: Largest number of topics in one registration. Real brokers have at most tens of thousands.
REGISTER_TOPICS_MAX: Final = 100_000
#: Largest decompressed size of a registration in bytes; enough for 100,000 topics with names of 300
#: characters.
REGISTER_INFLATED_MAX: Final = 32 * 1024 * 1024
#: Largest ratio of a registration's decompressed size to its compressed size. The ratio of real registrations
#: is 15 to 40.
REGISTER_RATIO_MAX: Final = 128
#: Limits of a registration that only :func:`read_any_json` can read. An example is a registration with static
#: topics: it has keys without quotes.
REGISTER_LIMITS: Final = Limits(
    size=2 * 1024 * 1024, containers=32 * 1024, dialect_size=2 * 1024 * 1024, dialect_keys=16 * 1024
)
#: Largest number of static topics in one registration.
MAPPING_INFOS_MAX: Final = 4096
#: Largest size in bytes of one static topic's mapping info. Each queue takes about 10 bytes.
MAPPING_INFO_BYTES_MAX: Final = 64 * 1024
#: Largest size in bytes of the text after a topic's name in a compressed registration. The text has four
#: short words and the topic's attributes.
TOPIC_WORDS_BYTES_MAX: Final = 16 * 1024

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_LENGTH: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">I")
_ZLIB_MAGIC: Final = 0x78
_ZLIB_START: Final = bytes((_ZLIB_MAGIC,))
_INFLATED_STEP: Final = 1024 * 1024
_SUMMED_STEP: Final = 1024 * 1024
_KNOWN_MAX: Final = 1000
_USUAL_MAX: Final = 64
#: Number of bytes of JSON that one step reads. A step takes 1 ms.
_PIECE_MAX: Final = 128 * 1024
#: Largest average size of a topic in a usual registration, in bytes; real topics have 150 to 250 bytes.
_TOPIC_SIZE_MAX: Final = 512


def _topic_name(name: str) -> str:
    if not 0 < len(name) <= TOPIC_NAME_MAX:
        raise RemoteProtocolError(f"topic name has {len(name)} characters, allowed are 1 to {TOPIC_NAME_MAX}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBody:
    """Body of a registration, REGISTER_BROKER 103.

    Attributes:
        filter_servers: None leaves the list that the nameserver has stored; an empty list removes it.
        mapping_infos: Static topics (5.x): the mapping info of each topic as parsed JSON.
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
    """A topic's configuration in the form that a nameserver stores.

    Attributes:
        topic_name: Empty if the JSON object has no name; the key of the object is then the topic's name.
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
_table_decoder: Final = msgspec.json.Decoder(dict[_TopicName, TopicNumbers])
_version_decoder: Final = msgspec.json.Decoder(_PlainVersion)

#: Matches the text before the first topic of a registration in JSON.
_TABLE_BEGINS: Final = re.compile(rb'[{,]\s*+"topicConfigTable"\s*+:\s*+\{\s*+(?=")')
#: Matches the text between two topics. It cannot match inside a topic: there, no object directly follows
#: another object.
_TOPIC_ENDS: Final = re.compile(rb'\}\s*+,\s*+(?="(?:[^"\\]|\\.)*+"\s*+:\s*+\{)', re.DOTALL)
_ENDS_TRIED: Final = 3
#: Entry that replaces the topics that were already read in pieces. No broker has a topic of this name.
_MARK: Final = ("\0", TopicNumbers("\0", 0, 0, -INT32_MAX - 1))
_MARK_JSON: Final = b'"\\u0000":{"topicName":"\\u0000","readQueueNums":0,"writeQueueNums":0,"perm":%d},' % -(
    INT32_MAX + 1
)


class PlainRegistration(msgspec.Struct, frozen=True):
    """The parts of a registration that a nameserver needs; :func:`reading_registration` returns them.

    Attributes:
        topics: Topics by name. A value's own ``topic_name`` may be empty.
        filter_servers, mapping_infos: As in :class:`RegisterBody`.
    """

    data_version: DataVersion
    topics: Mapping[str, TopicNumbers]
    filter_servers: tuple[str, ...] | None
    mapping_infos: Mapping[str, Any] = _NOTHING


def body_crc32(body: bytes) -> int:
    """Return the checksum of a registration body as sent: CRC32 with the sign bit cleared."""
    return zlib.crc32(body) & 0x7FFFFFFF


def summing_crc32(body: bytes) -> Steps[int]:
    """Compute :func:`body_crc32` in steps, so that a large body does not block other work."""
    found = 0
    for at in range(0, len(body), _SUMMED_STEP):
        found = zlib.crc32(body[at : at + _SUMMED_STEP], found)
        yield
    return found & 0x7FFFFFFF


def encode_register_body(body: RegisterBody, *, compressed: bool, version: int) -> bytes:
    """Encode the body of a registration as a broker of release ``version`` writes it.

    Raises:
        LocalProtocolError: If a topic's name or filter type is empty or has a blank. In the compressed form,
            blanks separate the parts of a topic.
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


def reading_registration(
    body: bytes,
    *,
    compressed: bool,
    version: int,
    topics_max: int = REGISTER_TOPICS_MAX,
    inflated_max: int = REGISTER_INFLATED_MAX,
) -> Steps[PlainRegistration]:
    """Read, in steps, the parts of a registration that a nameserver needs.

    This function is more tolerant than any release of RocketMQ:

    - It recognises a zlib stream even if the header says that there is none; 5.x brokers send such headers.
    - A topic may have five or six parts.
    - The section with mapping infos may be missing.

    :func:`read_plain_json` reads short JSON and :func:`reading_long_json` long JSON. :func:`read_any_json`
    reads all JSON that the first two functions cannot read.

    Args:
        version: Release of the broker that sent the body.

    Raises:
        RemoteProtocolError: If the body cannot be read or is above a limit. Memory stays within the limits.
    """
    if compressed or body[:1] == _ZLIB_START:
        data = yield from _inflating(body, inflated_max)
        return (yield from _reading_words(data, min(topics_max, _topics_of(body))))
    if len(body) <= _PIECE_MAX:
        plain = read_plain_json(body, topics_max)
    else:
        plain = yield from reading_long_json(body, topics_max)
    return plain or read_any_json(body, version=version, topics_max=topics_max)


def read_any_json(body: bytes, *, version: int, topics_max: int = REGISTER_TOPICS_MAX) -> PlainRegistration:
    """Read a registration in any form of JSON that brokers use, up to :data:`REGISTER_LIMITS`.

    An empty body is a registration without topics. If two topics have the same name, the last topic counts,
    as in Java's map.

    Raises:
        RemoteProtocolError: If the body is no registration, or is above a limit.
    """
    if not body:
        return PlainRegistration(DataVersion(), {}, None)
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
    configs = [TopicConfig.from_json(value, topic_name=name) for name, value in table.items()]
    return PlainRegistration(
        DataVersion.from_json(members.get("dataVersion")),
        {
            _topic_name(config.topic_name): _not_negative(
                TopicNumbers(
                    config.topic_name,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm,
                    config.topic_sys_flag,
                )
            )
            for config in configs
        },
        filters,
        {_topic_name(name): _mapping_info(value) for name, value in mapping.items()},
    )


def read_plain_json(body: bytes, topics_max: int = REGISTER_TOPICS_MAX) -> PlainRegistration | None:
    """Read a registration in standard JSON, without static topics and without numbers in quotes.

    Brokers without static topics send such registrations. The results are the same as with
    :func:`read_any_json`. The only difference is that this function does not check members that a nameserver
    does not use.

    Returns:
        None if the body has another form or is wrong. :func:`read_any_json` then reads it or raises the
        error.
    """
    try:
        found = _plain_decoder.decode(body)
    except UNREADABLE:
        return None
    topics = found.topic_config_serialize_wrapper.topic_config_table
    for key, numbers in topics.items():
        if numbers.topic_name != key:
            topics = finish(_named_as_stated(topics))
            break
    return _usable(found, topics, topics_max, size=len(body))


def reading_long_json(
    body: bytes, topics_max: int = REGISTER_TOPICS_MAX, *, piece_max: int = _PIECE_MAX
) -> Steps[PlainRegistration | None]:
    """Read the same registrations as :func:`read_plain_json`, in steps. Each step reads some topics.

    The last step reads the remaining fields of the JSON object.

    Args:
        piece_max: Largest size of a piece in bytes. The text before the topics must be shorter than this, and
            also the text after the topics.

    Returns:
        None if :func:`read_plain_json` would return None, or if the text before or after the topics is too
        long.

    Raises:
        RemoteProtocolError: If there are too many topics.
    """
    begin = _TABLE_BEGINS.search(body, 0, piece_max)
    if begin is None:
        return None
    topics: dict[str, TopicNumbers] = {}
    names_differ, at = False, begin.end()
    while len(body) - at > piece_max:
        piece, at = _read_piece(body, at, piece_max)
        if piece is None:
            return None
        topics |= piece
        names_differ = names_differ or _names_differ(piece)
        if len(topics) > topics_max:
            raise RemoteProtocolError(
                f"registration of {len(body)} bytes has more than the {topics_max} topics allowed"
            )
        yield
    try:
        found = _plain_decoder.decode(b"".join((body[: begin.end()], _MARK_JSON, body[at:])))
    except UNREADABLE:
        return None
    last = found.topic_config_serialize_wrapper.topic_config_table
    if next(iter(last.items()), None) != _MARK:
        return None  # the topics read above came from another part of the body, not from its topic table
    del last[_MARK[0]]
    topics |= last
    if names_differ or _names_differ(last):
        topics = yield from _named_as_stated(topics)
    return _usable(found, topics, topics_max, size=len(body))


def _read_piece(body: bytes, at: int, piece_max: int) -> tuple[dict[str, TopicNumbers] | None, int]:
    """Read topics from position ``at`` on: between half of ``piece_max`` and ``piece_max`` bytes.

    The piece is cut where a topic seems to end. If the piece can then be read, the topic really ends at the
    cut. After a cut inside a text or an inner object, the piece would be incomplete and could not be read.

    Returns:
        The topics, or None if no cut makes a readable piece; and the position of the next topic.
    """
    ends = _TOPIC_ENDS.finditer(body, at + piece_max // 2, at + piece_max)
    for end in islice(ends, _ENDS_TRIED):
        try:
            return _table_decoder.decode(b"{%b}" % body[at : end.start() + 1]), end.end()
        except UNREADABLE:
            continue
    return None, at


def _names_differ(topics: Mapping[str, TopicNumbers]) -> bool:
    """Return True if a topic's object has no name, or a name that differs from its key."""
    return any(numbers.topic_name != key for key, numbers in topics.items())


def _named_as_stated(topics: Mapping[str, TopicNumbers]) -> Steps[dict[str, TopicNumbers]]:
    """Return topics by the name that their object states, or else by their key.

    If two topics have the same name, the last topic counts.
    """
    named: dict[str, TopicNumbers] = {}
    for chunk in in_chunks(topics.items()):
        if named:
            yield
        named |= {numbers.topic_name or key: numbers for key, numbers in chunk}
    return named


def _usable(
    found: _PlainBody, topics: Mapping[str, TopicNumbers], topics_max: int, *, size: int
) -> PlainRegistration | None:
    """Return the registration of a body of ``size`` bytes; None if only :func:`read_any_json` may read it."""
    wrapper = found.topic_config_serialize_wrapper
    if wrapper.topic_queue_mapping_info_map or len(topics) > topics_max or "" in topics:
        return None
    if size > _TOPIC_SIZE_MAX * (len(topics) + 1):
        return None  # msgspec skipped large parts, which may be nested too deeply
    filters = found.filter_server_list
    if filters and not _are_filter_servers(filters):
        return None
    version = wrapper.data_version
    return PlainRegistration(
        DataVersion(
            state_version=version.state_version, timestamp=version.timestamp, counter=version.counter
        ),
        topics,
        filters,
    )


def _reading_words(data: bytes, topics_max: int) -> Steps[PlainRegistration]:
    """Read a decompressed registration, in steps.

    Raises:
        RemoteProtocolError: If the bytes are no valid registration.
    """
    reader = _Reader(data)
    version = _version(reader.sized())
    count = reader.count()
    _check_topics(count, topics_max)
    topics: dict[str, TopicNumbers] = {}
    # Most topics of a broker have equal configurations. So each different text after a topic's name is parsed
    # only once.
    known: dict[bytes, TopicNumbers] = {}
    # Sizes are read as unsigned numbers. A negative size then looks larger than the data, and is refused.
    position, end, size_at = reader.position, len(data), _SIZE.unpack_from
    parsed = 0  # bytes of long texts that this step has parsed
    try:
        for done in range(0, count, STEP):
            for _ in range(min(STEP, count - done)):
                start = position + 4
                position = start + size_at(data, position)[0]
                name, _, rest = data[start:position].partition(b" ")
                numbers = known.get(rest)
                if numbers is None:
                    if len(rest) <= _USUAL_MAX:
                        numbers = _usual_words(rest)
                    else:
                        numbers = _words(rest)
                        parsed += len(rest)
                        if parsed > _PIECE_MAX:
                            parsed = 0
                            yield
                    if len(known) < _KNOWN_MAX:
                        known[rest] = numbers
                topics[name.decode()] = numbers
            if done + STEP < count:
                yield
    except (UnicodeDecodeError, struct.error) as error:
        raise RemoteProtocolError(f"inflated registration of {end} bytes is malformed: {error}") from None
    if topics:
        _topic_name("" if "" in topics else max(topics, key=len))
    reader.position = position
    filters = reader.filter_servers()
    mappings = yield from reader.mapping_infos()
    return PlainRegistration(version, topics, filters, mappings)


def _topics_of(compressed: bytes) -> int:
    """Return the largest plausible number of topics in a compressed body.

    The result is 64 plus half the number of bytes. A real topic takes 2.4 bytes of a compressed body.
    """
    return 64 + len(compressed) // 2


def _check_topics(count: int, topics_max: int) -> None:
    if not 0 <= count <= topics_max:
        raise RemoteProtocolError(f"registration of {count} topics, allowed are 0 to {topics_max}")


def _check_mappings(count: int) -> None:
    if not 0 <= count <= MAPPING_INFOS_MAX:
        raise RemoteProtocolError(
            f"registration of {count} mapping infos, allowed are 0 to {MAPPING_INFOS_MAX}"
        )


def _not_negative(numbers: TopicNumbers) -> TopicNumbers:
    """Return the numbers of a topic after checking that no number of queues is negative."""
    for name, value in (
        ("readQueueNums", numbers.read_queue_nums),
        ("writeQueueNums", numbers.write_queue_nums),
    ):
        if value < 0:
            raise RemoteProtocolError(f"{name} is {value}, allowed: integers from 0 to {INT32_MAX}")
    return numbers


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
    """Return the info of a static topic, after a check that it has only plain values, and maps of them."""
    members = as_object(value, "mapping info")
    for name, member in members.items():
        for item in member.values() if type(member) is dict else (member,):
            if type(item) in (dict, list):
                raise RemoteProtocolError(
                    f"mapping info's {name} is nested, allowed are plain values and one map"
                )
    return members


def _version(data: bytes) -> DataVersion:
    """Read a data version, as :meth:`DataVersion.decode` does."""
    try:
        read = _version_decoder.decode(data)
    except UNREADABLE:
        return DataVersion.from_json(loads(data))
    return DataVersion(state_version=read.state_version, timestamp=read.timestamp, counter=read.counter)


def _words(rest: bytes) -> TopicNumbers:
    """Read the text that follows a topic's name in a compressed registration."""
    if len(rest) > TOPIC_WORDS_BYTES_MAX:
        raise RemoteProtocolError(
            f"compressed topic has {len(rest)} bytes after its name, allowed: at most {TOPIC_WORDS_BYTES_MAX}"
        )
    try:
        read_queues, write_queues, perm, _, *more = rest.decode().split(" ", 4)
    except ValueError:
        raise RemoteProtocolError(
            f"compressed topic has {len(rest)} bytes after its name, "
            "allowed: 'reads writes perm filterType [attributes]'"
        ) from None
    if more and more[0]:
        as_text_map(loads(more[0]), "attributes")
    return _not_negative(
        TopicNumbers(
            "",
            as_int(read_queues, "readQueueNums"),
            as_int(write_queues, "writeQueueNums"),
            as_int(perm, "perm"),
        )
    )


#: Cache of :func:`_words` for recent short texts, because brokers send the same texts again.
_usual_words: Final = lru_cache(maxsize=1024)(_words)


def _inflating(data: bytes, limit: int) -> Steps[bytes]:
    limit = min(limit, REGISTER_RATIO_MAX * (len(data) + 64))
    stream = zlib.decompressobj()
    parts: list[bytes] = []
    left, room = data, limit + 1
    try:
        # Ask for one byte more than the limit. A body of exactly the limit would otherwise end the loop
        # before the end of its stream is seen.
        while not stream.eof and room > 0:
            if parts:
                yield
            part = stream.decompress(left, min(_INFLATED_STEP, room))
            left = stream.unconsumed_tail
            if not part and not left:
                break
            parts.append(part)
            room -= len(part)
    except zlib.error as error:
        raise RemoteProtocolError(f"registration of {len(data)} bytes is no zlib stream: {error}") from None
    plain = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(plain) > limit:
        raise RemoteProtocolError(f"registration of {len(data)} bytes inflates above the limit of {limit}")
    if not stream.eof:
        raise RemoteProtocolError(f"registration's zlib stream of {len(data)} bytes ends early")
    return plain


class _Reader:
    """Reader of the length-prefixed parts of a decompressed registration."""

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

    def mapping_infos(self) -> Steps[dict[str, Any]]:
        infos: dict[str, Any] = {}
        if self.rest:
            count = self.count()
            _check_mappings(count)
            begin = step_begin = self.position
            for _ in range(count):
                data = self.sized()
                if self.position - begin > REGISTER_LIMITS.size:
                    raise RemoteProtocolError(
                        f"mapping infos have more than the {REGISTER_LIMITS.size} bytes allowed"
                    )
                info = _mapping_info(loads(data))
                infos[_topic_name(get_text(info, "topic") or "")] = info
                if self.position - step_begin > _PIECE_MAX:
                    step_begin = self.position
                    yield
        return infos


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
