"""A small value that is replaced in place, so that it can change on a full disk.

The value survives an interrupted write. The file has two slots, and no disk block belongs to both slots::

    crc        u32   CRC-32 of the fields that follow
    sequence   u64   number of the value
    size       u32   bytes of payload
    payload

Each value is written to one slot, synced, written to the other slot, and synced. So after an interrupted
write, at least one slot is complete, and has the newest value that :meth:`Slots.save` has stored completely.
If one slot is unreadable, the other slot still has the value. If both slots are unreadable, the value is
lost.
"""

from __future__ import annotations

import errno
import logging
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from routekeeper.nameserver.disk.files import File, Files, replace_file, write_all

logger = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(">IQI")
#: Size in bytes of a disk block. An interrupted write can damage a whole block, so slots share no block.
BLOCK: Final = 4096


class Damaged(Exception):
    """The file is missing, or neither slot can be read."""


class Slots:
    """The file of one value. The methods block, and only one of them may run at a time.

    Args:
        size: Size of a slot in bytes, a multiple of BLOCK.
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
        slot = self._slot(payload)
        replace_file(self._files, self._path, (slot, slot))

    def load(self) -> bytes:
        """Open the file, and return the newest value. If the slots differ, first make them equal.

        Raises:
            Damaged: The newest value cannot be read.
        """
        try:
            self._file = self._files.open(self._path, write=True)
        except FileNotFoundError:
            raise Damaged(f"{self._path} is missing") from None
        copies = {at: self._read(at) for at in (0, self._size)}
        found = [slot for slot in copies.values() if slot is not None]
        if not found:
            raise Damaged(f"{self._path} is damaged")
        newest = max(found, key=lambda slot: slot[0])
        self._sequence, payload = newest
        if any(slot != newest for slot in copies.values()):
            # Write the other slot first, because an interrupted write may damage the block that it writes.
            self._write(payload, sorted(copies, key=lambda at: copies[at] == newest))
        else:
            self._file.sync()  # an earlier process may have been killed between its write and its sync
        return payload

    def _read(self, at: int) -> tuple[int, bytes] | None:
        """Return the number and the value in the slot at ``at``, or None if they cannot be read."""
        assert self._file is not None
        try:
            return _parse(self._file.read_at(at, self._size))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            logger.warning("copy unreadable file=%s byte=%d error=%s", self._path, at, error.strerror)
            return None

    def save(self, payload: bytes) -> None:
        """Store a value durably."""
        self._write(payload, (0, self._size))

    def _write(self, payload: bytes, places: Iterable[int]) -> None:
        """Write the slots that begin at ``places``, one after the other.

        Write whole slots, because a disk can repair an unreadable block only if the whole block is written.
        """
        slot = self._slot(payload)
        assert self._file is not None
        for at in places:
            write_all(self._file, at, slot)
            self._file.sync()

    def _slot(self, payload: bytes) -> bytes:
        self._sequence += 1
        rest = _HEAD.pack(0, self._sequence, len(payload))[4:] + payload
        slot = zlib.crc32(rest).to_bytes(4, "big") + rest
        assert len(slot) <= self._size, f"{len(slot)} bytes in a slot of {self._size}"
        return slot.ljust(self._size, b"\0")

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
