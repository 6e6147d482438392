"""A small value that is replaced in place, so that it needs no new space and is never lost.

A file of two slots, each in blocks of its own::

    crc        u32   CRC-32 of what follows
    sequence   u64   of the value
    size       u32   bytes of payload
    payload

Both slots are written for each value, one after the other, each synced before the next. So at any time one of
them is complete and holds the newest value that was reported as stored. One unreadable slot does no harm; two
are damage.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

from routekeeper.nameserver.disk.files import File, Files, replace_file, write_all

_HEAD: Final = struct.Struct(">IQI")
#: The largest piece that a disk can lose at once; two slots never share one.
BLOCK: Final = 4096


class Damaged(Exception):
    """The file is not there, or neither slot can be read."""


class Slots:
    """The file of one value. Blocking; one call at a time.

    Args:
        size: Of a slot, in bytes: whole blocks.
    """

    def __init__(self, files: Files, path: Path, *, size: int) -> None:
        assert size % BLOCK == 0
        self._files = files
        self._path = path
        self._size = size
        self._file: File | None = None
        self._sequence = 0

    def create(self, payload: bytes) -> None:
        """Create the file durably, with its first value."""
        slot = self._slot(payload).ljust(self._size, b"\0")
        replace_file(self._files, self._path, (slot, slot))

    def load(self) -> bytes:
        """Open the file and return the newest value, after writing it to both slots.

        Raises:
            Damaged: The newest value cannot be read.
        """
        try:
            self._file = self._files.open(self._path, write=True)
        except FileNotFoundError:
            raise Damaged(f"{self._path} is missing") from None
        raw = [self._file.read_at(at, self._size) for at in (0, self._size)]
        found = [slot for slot in map(_parse, raw) if slot is not None]
        if not found:
            raise Damaged(f"{self._path} is damaged")
        self._sequence, payload = max(found, key=lambda slot: slot[0])
        if len(found) < 2 or found[0] != found[1]:
            self.save(payload)
        else:
            self._file.sync()  # an earlier process may have been killed before its sync
        return payload

    def save(self, payload: bytes) -> None:
        """Store a value durably."""
        slot = self._slot(payload)
        assert self._file is not None
        for at in (0, self._size):
            write_all(self._file, at, slot)
            self._file.sync()

    def _slot(self, payload: bytes) -> bytes:
        self._sequence += 1
        rest = _HEAD.pack(0, self._sequence, len(payload))[4:] + payload
        slot = zlib.crc32(rest).to_bytes(4, "big") + rest
        assert len(slot) <= self._size, f"{len(slot)} bytes in a slot of {self._size}"
        return slot

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parse(raw: bytes) -> tuple[int, bytes] | None:
    if len(raw) < _HEAD.size:
        return None
    checksum, sequence, size = _HEAD.unpack_from(raw)
    end = _HEAD.size + size
    if end > len(raw) or zlib.crc32(memoryview(raw)[4:end]) != checksum:
        return None
    return sequence, raw[_HEAD.size : end]
