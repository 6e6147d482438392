"""Scan of a log file for intact records and their ends. This module does no I/O and reads no clock."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

from routekeeper.broker.store.files import Content
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.frame import FRAME_SIZE_MAX
from routekeeper.remoting.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    StoredMessage,
    body_crc,
    decode_message,
)

_HEAD: Final = struct.Struct(">ii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))
#: Position of a record's magic in the record, in bytes.
_MAGIC_AT: Final = 4


#: Layouts of a record from its beginning to its body. Fields: size, magic, crc, queue id, queue offset, log
#: offset, store time, body size. Each key is a combination of the flags for IPv6 hosts.
_LAYOUTS: Final = {
    (SYS_BORN_HOST_V6 if born == 20 else 0) | (SYS_STORE_HOST_V6 if store == 20 else 0): struct.Struct(
        f">iiii4xqq4x8x{born}xq{store}x4x8xi"
    )
    for born in (8, 20)
    for store in (8, 20)
}
_HOSTS_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_SYS_FLAG_AT: Final = 36


#: Largest record in bytes: a message that came in one frame, and properties that the broker may have added.
RECORD_MAX: Final = FRAME_SIZE_MAX + 64 * 1024
#: Number of bytes at a record's beginning that contain its size, magic and log offset.
HEAD_SIZE: Final = 36
_PLACED: Final = struct.Struct(">ii20xq")


class Record(NamedTuple):
    """The fields of a message in the commit log that recovery needs, named as in ``StoredMessage``."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    properties: str


class Padding(NamedTuple):
    """A file's padding record: the log offset at which it begins, and the offset of the next file."""

    offset: int
    end: int


class Damage(NamedTuple):
    """The end of the intact records: log offset at which damaged bytes begin, or at which the data end."""

    offset: int


def read_record(data: Content, position: int, *, base: int) -> tuple[StoredMessage, int] | None:
    """Decode and verify the record at ``position`` of a file that starts at log offset ``base``.

    Returns:
        The message and the position after its record, or None if no intact record with this log offset begins
        at ``position``.
    """
    try:
        message, end = decode_message(cast(bytes, data), position)
    except RemoteProtocolError:
        return None
    if message.physical_offset != base + position or message.crc != body_crc(message.body):
        return None
    return message, end


def size_of_record(head: bytes | None, log_offset: int) -> int:
    """Return the size of the record at a log offset, from its first bytes, or 0 if no record begins there.

    Senders choose the bytes of message bodies, and any client may query any offset. Therefore this function
    must not accept bytes inside a body as the beginning of a record.
    """
    if head is None or len(head) < HEAD_SIZE:
        return 0
    size, magic, placed = _PLACED.unpack_from(head)
    known = magic in (MAGIC_V1, MAGIC_V2)
    return size if known and placed == log_offset and HEAD_SIZE < size <= RECORD_MAX else 0


def is_record_of(data: bytes, *, topic: str, queue_id: int, queue_offset: int, log_offset: int) -> bool:
    """Return True if the bytes are the record of a given message of a queue. The body is not checked."""
    try:
        (sys_flag,) = _INT32.unpack_from(data, _SYS_FLAG_AT)
        layout = _LAYOUTS[sys_flag & _HOSTS_V6]
        size, magic, _, queue, offset, placed, _, body_size = layout.unpack_from(data, 0)
        if (size, queue, offset, placed) != (len(data), queue_id, queue_offset, log_offset) or body_size < 0:
            return False
        at = layout.size + body_size
        if magic == MAGIC_V1:
            length, at = data[at], at + 1
        elif magic == MAGIC_V2:
            (length,), at = _INT16.unpack_from(data, at), at + 2
        else:
            return False
    except (struct.error, IndexError):
        return False
    return data[at : at + length] == topic.encode()


#: Largest number of bytes of a record before its body, over all address families.
_BEFORE_BODY: Final = max(layout.size for layout in _LAYOUTS.values())
#: Records up to this size in bytes are read whole. For larger records, two small reads take less time.
_AT_ONCE: Final = 4096
#: Number of bytes of the field that has the length of the topic's name, by magic.
_TOPIC_LENGTHS: Final = {MAGIC_V1: 1, MAGIC_V2: 2}


class _Head(NamedTuple):
    """Fields of a record before its body. Their total size in bytes is ``before_body``."""

    before_body: int
    size: int
    magic: int
    crc: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    body_size: int


def _head_of(data: bytes | None) -> _Head | None:
    try:
        (sys_flag,) = _INT32.unpack_from(data or b"", _SYS_FLAG_AT)
        layout = _LAYOUTS[sys_flag & _HOSTS_V6]
        head = _Head(layout.size, *layout.unpack_from(data or b"", 0))
    except struct.error:
        return None
    return head if head.magic in _TOPIC_LENGTHS else None


def stored_at(
    read: Callable[[int, int], bytes | None],
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    size: int,
) -> int | None:
    """Return the store time (Unix ms) of a record, or None if the log lacks this record at the offset.

    The body of a large record is not read, because it may have 4 MiB.

    Args:
        read: Function that returns bytes of the log: from an offset on, of a given size.
        size: Size of the record according to its queue entry.
    """
    data = read(log_offset, min(size, _AT_ONCE)) or b""
    head = _head_of(data)
    if head is None or (head.size, head.queue_id, head.queue_offset, head.physical_offset) != (
        size,
        queue_id,
        queue_offset,
        log_offset,
    ):
        return None
    name, length_size = topic.encode(), _TOPIC_LENGTHS[head.magic]
    at, end = head.before_body + head.body_size, size - length_size - len(name)
    if not head.before_body <= at <= end or len(name) >= 1 << 8 * length_size:
        return None
    wanted = len(name).to_bytes(length_size, "big") + name
    found = data[at : at + len(wanted)] if size <= _AT_ONCE else read(log_offset + at, len(wanted))
    return head.store_timestamp if found == wanted else None


def first_stored_at(read: Callable[[int, int], bytes | None], log_offset: int) -> int | None:
    """Return the store time (Unix ms) of the record at a log offset, or None if there is no record.

    Args:
        read: Function that returns bytes of the log: from an offset on, of a given size.
    """
    size = size_of_record(read(log_offset, HEAD_SIZE), log_offset)
    head = _head_of(read(log_offset, min(_BEFORE_BODY, size))) if size else None
    return None if head is None else head.store_timestamp


def read_indexed(data: Content, position: int, *, base: int) -> tuple[Record, int] | None:
    """Verify a record as :func:`read_record` does, but return only the fields that recovery needs."""
    try:
        (sys_flag,) = _INT32.unpack_from(data, position + _SYS_FLAG_AT)
        layout = _LAYOUTS[sys_flag & _HOSTS_V6]
        size, magic, crc, queue_id, queue_offset, physical_offset, store_timestamp, body_size = (
            layout.unpack_from(data, position)
        )
        end = position + size
        if physical_offset != base + position or end > len(data) or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return None
        body_at = position + layout.size
        at = body_at + body_size
        if body_size < 0 or at >= end or crc != zlib.crc32(data[body_at:at]) & 0x7FFFFFFF:
            return None
        if magic == MAGIC_V1:
            topic_size = data[at]
            at += 1
        else:
            (topic_size,) = _INT16.unpack_from(data, at)
            at += 2
        topic_end = at + topic_size
        (properties_size,) = _INT16.unpack_from(data, topic_end)
        if topic_size < 0 or properties_size < 0 or topic_end + 2 + properties_size != end:
            return None
        topic = data[at:topic_end].decode()
        properties = data[topic_end + 2 : end].decode()
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return Record(topic, queue_id, queue_offset, physical_offset, store_timestamp, properties), end


def scan(data: Content, start: int, *, base: int) -> Iterator[tuple[Record, int] | Padding | Damage]:
    """Yield the records from position ``start`` on, each with its size in bytes.

    The last item is the file's :class:`Padding`, or the first :class:`Damage`.

    Args:
        base: Log offset at which the file begins.
    """
    position = start
    size_of_all = len(data)
    while position < size_of_all:
        found = read_indexed(data, position, base=base)
        if found is not None:
            record, end = found
            yield record, end - position
            position = end
            continue
        if len(data) - position >= _HEAD.size:
            size, magic = _HEAD.unpack_from(data, position)
            if magic == MAGIC_BLANK and size >= _HEAD.size:
                yield Padding(base + position, base + position + size)
                return
        break
    yield Damage(base + position)


def positions(data: Content, start: int, *, end: int | None = None) -> Iterator[int]:
    """Yield each position from ``start`` on at which a record may begin, because its magic is there.

    The positions ascend.

    Args:
        end: Position in ``data`` at which the search ends, or None for the end of the data.
    """
    stop = len(data) if end is None else end
    # Store the next hit of each magic. Otherwise, in a body that is full of one magic, each step would search
    # for the other magic again.
    hits = {magic: data.find(magic, start + _MAGIC_AT, stop) for magic in _MAGICS}
    while left := [hit for hit in hits.values() if hit >= 0]:
        first = min(left)
        yield first - _MAGIC_AT
        for magic, hit in hits.items():
            if hit == first:
                hits[magic] = data.find(magic, first + 1, stop)


def find_record(data: Content, start: int, *, base: int) -> int | None:
    """Return the position of the first intact record at or after ``start``, found by its magic."""
    for position in positions(data, start):
        if read_indexed(data, position, base=base) is not None:
            return position
    return None
