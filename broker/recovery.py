"""Reads a log file after a crash: which records are whole, and what a bad one means (pure)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Final, cast

from remoting.errors import RemoteProtocolError
from remoting.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, StoredMessage, body_crc, decode_message

Bytes = bytes | mmap

_HEAD: Final = struct.Struct(">ii")
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))
#: Bytes before a record's magic.
_MAGIC_AT: Final = 4


class Padding(int):
    """Marks that a file ends here with its padding record; the value is the offset of that record."""


class Damage(int):
    """Marks bytes that are no record; the value is the offset where they begin."""


def read_record(data: Bytes, position: int, *, base: int) -> tuple[StoredMessage, int] | None:
    """Decode and verify the record at ``position`` of a file that starts at log offset ``base``.

    Returns:
        The message and the position after it; None if there is no whole record that belongs just here.
    """
    try:
        message, end = decode_message(cast(bytes, data), position)
    except RemoteProtocolError:
        return None
    if message.physical_offset != base + position or message.crc != body_crc(message.body):
        return None
    return message, end


def scan(data: Bytes, start: int, *, base: int) -> Iterator[tuple[StoredMessage, int] | Padding | Damage]:
    """Yield each record from position ``start`` on with its size.

    Ends at the end of the data, after the file's :class:`Padding`, or after the first :class:`Damage`.
    """
    position = start
    while position < len(data):
        found = read_record(data, position, base=base)
        if found is not None:
            message, end = found
            yield message, end - position
            position = end
            continue
        if len(data) - position >= _HEAD.size:
            _, magic = _HEAD.unpack_from(data, position)
            if magic == MAGIC_BLANK:
                yield Padding(base + position)
                return
        yield Damage(base + position)
        return


def find_record(data: Bytes, start: int, *, base: int) -> int | None:
    """Return the position of the first whole record at or after ``start``, found by its magic."""
    at = start + _MAGIC_AT
    while True:
        hits = [hit for magic in _MAGICS if (hit := data.find(magic, at)) >= 0]
        if not hits:
            return None
        position = min(hits) - _MAGIC_AT
        if read_record(data, position, base=base) is not None:
            return position
        at = min(hits) + 1
