"""Messages: their stored layout, batches, properties, ids and tag hashes.

The commit log, the answers to pulls and the answers to look-ups of one message use the same layout.
Source: MessageDecoder, CommitLog and MessageClientIDSetter of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import msgspec

from routekeeper.remoting.addresses import join_address
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.inflate import deflate, inflate

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB, only 5.x: the length of the topic takes two bytes
MAGIC_BLANK: Final = -875286124  # 0xCBD43194: padding at the end of a log file

SYS_COMPRESSED: Final = 1
SYS_MULTI_TAGS: Final = 2
SYS_TRANSACTION_ROLLBACK: Final = 12
SYS_BORN_HOST_V6: Final = 16
SYS_STORE_HOST_V6: Final = 32
SYS_COMPRESSION_MASK: Final = 7 << 8  # 0 and 3 mean zlib, 1 means LZ4, 2 means Zstandard

PROPERTY_TAGS: Final = "TAGS"
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QID: Final = "REAL_QID"
PROPERTY_TRAN_MSG: Final = "TRAN_MSG"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_CLUSTER: Final = "CLUSTER"

#: Largest body in bytes that a broker accepts by default, and largest size of a decompressed body.
BODY_SIZE_MAX: Final = 4 * 1024 * 1024
PROPERTIES_SIZE_MAX: Final = 32767
#: Characters that end a name and a value in the text form of a message's properties.
NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"

_HEAD: Final = struct.Struct(">iiiiiqqiq")  # size, magic, crc, queue id, flag, offsets, sys flag, born
#: Layouts of a message's fields before the body. The keys are the sizes in bytes of the two IP addresses, the
#: producer's and the broker's.
_LAYOUTS: Final = {
    (born, store): struct.Struct(f">iiiiiqqiq{born}siq{store}siiqi") for born in (4, 16) for store in (4, 16)
}
_V4: Final = _LAYOUTS[4, 4]
#: Layouts for reading the fields of :data:`_LAYOUTS`. The keys are the ``SYS_`` bits of the two address
#: families. Each host's address and port are one field.
_HOSTS_TOGETHER: Final = {
    (SYS_BORN_HOST_V6 if born == 20 else 0) | (SYS_STORE_HOST_V6 if store == 20 else 0): struct.Struct(
        f">iiiiiqqiq{born}sq{store}siqi"
    )
    for born in (8, 20)
    for store in (8, 20)
}
_SYS_FLAG: Final = struct.Struct(">i")
_SYS_FLAG_AT: Final = 36
_PORT: Final = struct.Struct(">i")
_TIMESTAMP: Final = struct.Struct(">q")
_INT16: Final = struct.Struct(">h")
_ITEM: Final = struct.Struct(">iiiii")  # size, magic, crc, flag, body length

#: Sizes in bytes of UTF-16. A tag of at most ``_SHORT_TAG_BYTES`` is hashed unit by unit. A longer tag is
#: divided into parts of ``_HASHED_BYTES``, and each part is hashed at once. The masks ``_LOW_16`` and
#: ``_LOW_32`` select the lowest 16 or 32 bits in every 64 bits of a part.
_SHORT_TAG_BYTES: Final = 64
_HASHED_BYTES: Final = 8192
_LOW_16: Final = int.from_bytes(b"\0\0\0\0\0\0\xff\xff" * (_HASHED_BYTES // 8), "big")
_LOW_32: Final = int.from_bytes(b"\0\0\0\0\xff\xff\xff\xff" * (_HASHED_BYTES // 8), "big")


class Host(NamedTuple):
    """Address of a producer or broker inside a message.

    Attributes:
        ip: Text of an IPv4 or IPv6 address, never a name.
    """

    ip: str
    port: int

    def __str__(self) -> str:
        return join_address(self.ip, self.port)


#: Placeholder for an unknown host.
NO_HOST: Final = Host("127.0.0.1", 0)


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the broker stores and delivers it.

    Attributes:
        flag: Number that the user may set; RocketMQ does not use it.
        queue_offset: Index of this message in its queue.
        physical_offset: Position of this message in the commit log, in bytes.
        sys_flag: ``SYS_`` bits; the encoder sets the two bits of the hosts' address families.
        born_timestamp, store_timestamp: Time at the producer and at the broker, in Unix ms.
        prepared_transaction_offset: Commit log offset of the half message; 0 if there is none.
        body: Body as it is stored, which is compressed if ``sys_flag`` says so.
        properties: Properties in text form, see :func:`decode_properties`.
        crc: CRC32 of the body with the sign bit cleared, as received. If it is 0, the encoder computes it.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    store_timestamp: int = 0
    store_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    crc: int = 0

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host, self.physical_offset)


def body_crc(body: bytes) -> int:
    """Return the CRC32 of a message body with the sign bit cleared."""
    return zlib.crc32(body) & 0x7FFFFFFF


@lru_cache(maxsize=1024)
def _packed(ip: str) -> bytes:
    return ipaddress.ip_address(ip).packed


def _pack_ip(host: Host) -> bytes:
    try:
        return _packed(host.ip)
    except ValueError:
        raise LocalProtocolError(f"host {host.ip!r} is no IP address") from None


class Unplaced(Protocol):
    """A message without its position in the log; the members mean the same as in :class:`StoredMessage`."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> str: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def born_host(self) -> Host: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...


def encode_message(message: StoredMessage) -> bytes:
    """Return a message in the stored layout. A topic above 127 bytes needs the layout of RocketMQ 5.x.

    Raises:
        LocalProtocolError: If a part is above its limit.
    """
    return encode_placed(
        message,
        message.queue_offset,
        message.physical_offset,
        message.store_timestamp,
        message.store_host,
        message.crc,
    )


def encode_placed(
    message: Unplaced,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: Host,
    crc: int = 0,
) -> bytes:
    """Return a message in the stored layout, at the given position; see :func:`encode_message`.

    Raises:
        LocalProtocolError: If a part is above its limit.
    """
    born_host = message.born_host
    born_ip, store_ip = _pack_ip(born_host), _pack_ip(store_host)
    sys_flag = message.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
    layout = _V4
    if len(born_ip) != 4 or len(store_ip) != 4:
        sys_flag |= SYS_BORN_HOST_V6 if len(born_ip) == 16 else 0
        sys_flag |= SYS_STORE_HOST_V6 if len(store_ip) == 16 else 0
        layout = _LAYOUTS[len(born_ip), len(store_ip)]
    magic, topic = _topic_part(message.topic)
    properties = message.properties.encode()
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"properties of {len(properties)} bytes are above {PROPERTIES_SIZE_MAX}")
    body = message.body
    try:
        head = layout.pack(
            layout.size + len(body) + len(topic) + 2 + len(properties),
            magic,
            crc or zlib.crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            sys_flag,
            message.born_timestamp,
            born_ip,
            born_host.port,
            store_timestamp,
            store_ip,
            store_host.port,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise LocalProtocolError(
            f"message of topic {message.topic!r} has a number too large: {error}"
        ) from None
    return b"".join((head, body, topic, _INT16.pack(len(properties)), properties))


@lru_cache(maxsize=4096)
def _topic_part(topic: str) -> tuple[int, bytes]:
    """Return the magic number for a topic, and the topic's length and name as a message contains them.

    Raises:
        LocalProtocolError: If the topic is too long.
    """
    name = topic.encode()
    if len(name) > 32767:
        raise LocalProtocolError(f"topic of {len(name)} bytes is above 32767")
    return (
        (MAGIC_V2, _INT16.pack(len(name)) + name)
        if len(name) > 127
        else (MAGIC_V1, bytes((len(name),)) + name)
    )


def decode_message(data: bytes, start: int = 0) -> tuple[StoredMessage, int]:
    """Decode one message; return the message and the position after it.

    Raises:
        RemoteProtocolError: If the bytes at ``start`` are no complete message.
    """
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(data, start + _SYS_FLAG_AT)
        layout = _HOSTS_TOGETHER[sys_flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)]
        (
            size,
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            _,
            born,
            born_host,
            stored,
            store_host,
            reconsume_times,
            prepared,
            body_size,
        ) = layout.unpack_from(data, start)
        end = start + size
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            raise RemoteProtocolError(
                f"message at {start} has magic {magic}, known are {MAGIC_V1}, {MAGIC_V2}"
            )
        if end > len(data) or size < layout.size:
            raise RemoteProtocolError(f"message of {size} bytes at {start} runs past the data's {len(data)}")
        body_at = start + layout.size
        topic_at = body_at + body_size
        if body_size < 0 or topic_at >= end:
            raise RemoteProtocolError(
                f"body of {body_size} bytes at {body_at} runs past its message's end at {end}"
            )
        if magic == MAGIC_V1:
            topic_size = data[topic_at]
            topic_at += 1
        else:
            (topic_size,) = _INT16.unpack_from(data, topic_at)
            topic_at += 2
        topic_end = topic_at + topic_size
        (properties_size,) = _INT16.unpack_from(data, topic_end)
        if topic_size < 0 or properties_size < 0 or topic_end + 2 + properties_size != end:
            raise RemoteProtocolError(
                f"topic of {topic_size} and properties of {properties_size} bytes end not at {end} as their"
                " message does"
            )
        return (
            StoredMessage(
                topic=bytes(data[topic_at:topic_end]).decode(),
                queue_id=queue_id,
                body=bytes(data[body_at : body_at + body_size]),
                properties=bytes(data[topic_end + 2 : end]).decode(),
                flag=flag,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
                sys_flag=sys_flag,
                born_timestamp=born,
                born_host=_host_of(born_host),
                store_timestamp=stored,
                store_host=_host_of(store_host),
                reconsume_times=reconsume_times,
                prepared_transaction_offset=prepared,
                crc=crc,
            ),
            end,
        )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"message at {start} of {len(data)} bytes is malformed: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHead:
    """Position and queue of a stored message, read from its first bytes only.

    Attributes:
        end: Position of the first byte after the message.
    """

    queue_id: int
    queue_offset: int
    physical_offset: int
    end: int


def decode_head(data: bytes, start: int) -> MessageHead:
    """Decode only the position, queue and end of a message that :func:`decode_message` refuses.

    Raises:
        RemoteProtocolError: If even these fields cannot be read; then the next message cannot be found.
    """
    try:
        size, magic, _, queue_id, _, queue_offset, physical_offset, _, _ = _HEAD.unpack_from(data, start)
    except struct.error:
        raise RemoteProtocolError(f"message at {start} of {len(data)} bytes ends in its head") from None
    if magic not in (MAGIC_V1, MAGIC_V2) or not _HEAD.size <= size <= len(data) - start:
        raise RemoteProtocolError(f"message at {start} of {len(data)} bytes: size {size}, magic {magic}")
    return MessageHead(
        queue_id=queue_id, queue_offset=queue_offset, physical_offset=physical_offset, end=start + size
    )


def decode_messages(data: bytes) -> Iterator[StoredMessage]:
    """Yield the messages in ``data``, which has no gaps between messages, as in the answer to a pull.

    Raises:
        RemoteProtocolError: If ``data`` does not end at the end of a message, or if a message is malformed.
            All earlier messages were yielded.
    """
    position = 0
    while position < len(data):
        message, position = decode_message(data, position)
        yield message


@lru_cache(maxsize=4096)
def _host_of(packed: bytes) -> Host:
    """Return the host in 8 or 20 bytes. Results are cached, so all messages of a sender share one object."""
    (port,) = _PORT.unpack_from(packed, len(packed) - 4)
    return Host(str(ipaddress.ip_address(packed[:-4])), port)


# Batches -----------------------------------------------------------------------------------------


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One message inside the body of a batch send."""

    body: bytes
    properties: str = ""
    flag: int = 0


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch send.

    Raises:
        LocalProtocolError: If an item's properties are above the limit.
    """
    parts = []
    for item in items:
        properties = item.properties.encode()
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise LocalProtocolError(f"properties of {len(properties)} bytes are above {PROPERTIES_SIZE_MAX}")
        size = _ITEM.size + len(item.body) + _INT16.size + len(properties)
        parts.append(_ITEM.pack(size, 0, 0, item.flag, len(item.body)))
        parts += (item.body, _INT16.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchItem]:
    """Decode the body of a batch send.

    Raises:
        RemoteProtocolError: If an item is malformed, or if ``data`` does not end at the end of an item.
    """
    items = []
    position = 0
    try:
        while position < len(data):
            size, _magic, _crc, flag, body_size = _ITEM.unpack_from(data, position)
            end = position + size
            body_at = position + _ITEM.size
            after_body = body_at + body_size
            if body_size < 0 or after_body + _INT16.size > end or end > len(data):
                raise RemoteProtocolError(
                    f"batch item of {size} bytes at {position} or its body of {body_size} runs past its end"
                    f" or the data's at {len(data)}"
                )
            (properties_size,) = _INT16.unpack_from(data, after_body)
            properties_at = after_body + _INT16.size
            if properties_size < 0 or properties_at + properties_size != end:
                raise RemoteProtocolError(
                    f"batch item of {size} bytes at {position} does not end with its properties of"
                    f" {properties_size} bytes"
                )
            items.append(
                BatchItem(
                    body=data[body_at:after_body], properties=data[properties_at:end].decode(), flag=flag
                )
            )
            position = end
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"batch of {len(data)} bytes is malformed: {error}") from None
    return items


# Properties --------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> str:
    """Join properties to their text form, with a separator after each pair, as RocketMQ 5.x does.

    A value may contain ``NAME_END``, because only the first ``NAME_END`` in a pair ends the name.

    Raises:
        LocalProtocolError: If a name contains one of the two separators, or a value contains ``PAIR_END``.
    """
    text = "".join([f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items()])
    if text.count(NAME_END) != len(properties) or text.count(PAIR_END) != len(properties):
        for name, value in properties.items():
            if not is_separable(name, value):
                raise LocalProtocolError(
                    f"property {name[:80]!r} holds a separator: 0x02, or 0x01 in its name"
                )
    return text


def is_separable(name: str, value: str) -> bool:
    """Return True if the text form of a property gives the same name and value when it is read again."""
    return NAME_END not in name and PAIR_END not in name and PAIR_END not in value


def decode_properties(text: str) -> dict[str, str]:
    """Split text into properties; drop incomplete and empty pairs.

    If a name occurs several times, its last value counts.
    """
    properties = {}
    for pair in text.split(PAIR_END):
        name, mark, value = pair.partition(NAME_END)
        if mark and name and value:
            properties[name] = value
    return properties


def join_properties(first: str, second: str) -> str:
    """Join two texts of properties; add the separator that 4.9 senders omit at the end of the first text."""
    if first and second and not first.endswith(PAIR_END):
        return first + PAIR_END + second
    return first + second


# Ids and hashes ----------------------------------------------------------------------------------


def offset_message_id(host: Host, physical_offset: int) -> str:
    """Return the message id that contains the store host and the offset.

    Tools connect to this host to read the message.
    """
    return (_pack_ip(host) + _PORT.pack(host.port) + _TIMESTAMP.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """Return the store host and the commit log offset that a message id contains.

    Raises:
        RemoteProtocolError: If the text is no message id with a store host and an offset.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise RemoteProtocolError(f"message id {text[:80]!r} is not 32 or 56 hexadecimal digits")
    ip_size = len(data) - 12
    (port,) = _PORT.unpack_from(data, ip_size)
    (offset,) = _TIMESTAMP.unpack_from(data, ip_size + 4)
    return Host(str(ipaddress.ip_address(data[:ip_size])), port), offset


def unique_message_id(*, ip: str, pid: int, source_hash: int, ms_of_month: int, counter: int) -> str:
    """Return the id that a producer gives a message before sending it (property UNIQ_KEY).

    Args:
        source_hash: 32 bits that distinguish programs with the same process id.
        ms_of_month: Milliseconds since the beginning of the month.
        counter: Counter of the producer's messages, taken modulo 65536.
    """
    tail = struct.pack(
        ">HIIH",
        pid & 0xFFFF,
        source_hash & 0xFFFFFFFF,
        ms_of_month & 0xFFFFFFFF,
        counter & 0xFFFF,
    )
    return (_pack_ip(Host(ip, 0)) + tail).hex().upper()


def tag_hash(tag: str) -> int:
    """Return Java's ``String.hashCode`` of a tag, a signed 32-bit number."""
    value = 0
    data = tag.encode("utf-16-be", "surrogatepass")
    if len(data) <= _SHORT_TAG_BYTES:
        for high, low in zip(data[::2], data[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    else:
        for begin in range(0, len(data), _HASHED_BYTES):
            part = data[begin : begin + _HASHED_BYTES]
            value = (value * pow(31, len(part) // 2, 1 << 32) + _hash_at_once(part)) & 0xFFFFFFFF
    return value - 2**32 if value & 0x80000000 else value


def _hash_at_once(units: bytes) -> int:
    """Return the hash of at most ``_HASHED_BYTES`` of UTF-16, as an unsigned 32-bit number.

    The hash is a polynomial in 31, and each unit is a coefficient. One large integer holds all coefficients
    in lanes of equal width. Each arithmetic operation then changes all lanes at once, in compiled code. A
    loop in Python would take ten times longer, and any client may send a long tag.
    """
    narrow = int.from_bytes(units, "big")  # lanes of 16 bits; the lowest lane holds the last unit
    # Combine four lanes of 16 bits to one lane of 64 bits. The sum is below 2**31.
    lanes = (
        (narrow & _LOW_16)
        + ((narrow >> 16) & _LOW_16) * 31
        + ((narrow >> 32) & _LOW_16) * 31**2
        + ((narrow >> 48) & _LOW_16) * 31**3
    )
    count = (len(units) + 7) // 8
    while count > 1:
        # Combine the upper half of the lanes with the lower half. The value of each lane is below 2**32
        # before and after this step. Therefore the product and the sum fit in the 64 bits of a lane.
        count = (count + 1) // 2
        upper = lanes >> (64 * count)
        lower = lanes ^ (upper << (64 * count))
        lanes = (upper * pow(31, 4 * count, 1 << 32) + lower) & _LOW_32
    return lanes & 0xFFFFFFFF


def parse_subscription(expression: str | None) -> tuple[str, ...]:
    """Return the tags of ``A || B``, in order and without repeats; empty if all messages match.

    Raises:
        LocalProtocolError: If the expression has separators but no tag.
    """
    if expression is None or expression.strip() in ("", "*"):
        return ()
    tags = tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
    if not tags:
        raise LocalProtocolError(f"subscription {expression!r} names no tag")
    return tags


# Compression -------------------------------------------------------------------------------------


def compress_body(body: bytes, *, method: int = 0, level: int = 5) -> bytes:
    """Compress a body as producers do; the caller sets ``SYS_COMPRESSED`` and the method's bits."""
    return deflate(body, method, level=level)


def decompress_body(body: bytes, sys_flag: int, *, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Return the body decompressed if ``sys_flag`` says that it is compressed; otherwise unchanged.

    Raises:
        RemoteProtocolError: If the compression method is unknown, if the body is no complete stream of this
            method, or if the decompressed body is larger than ``size_max``.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    return inflate(body, (sys_flag & SYS_COMPRESSION_MASK) >> 8, size_max=size_max)
