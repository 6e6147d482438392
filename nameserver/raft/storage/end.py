"""The journal's end, kept beside it, so that a start notices a journal that was shortened.

``DATA/raft/end`` has three blocks::

    crc        u32   CRC-32 of the rest
    sequence   u64   of this value
    segment    u64   number of the journal's last segment
    size       u64   bytes of its frames

One block holds the last synced value; the other two take newer values in turn. So a value survives a killed
process; a write that was interrupted leaves the value before it. A power cut leaves at least the synced
value, which is written when the journal is closed, begins a segment, or writes zeros ahead.

A value is written after the frame that it counts and before that frame is acknowledged. Under ``fsync`` it is
therefore never ahead of the durable journal, and after a kill it counts all acknowledged frames.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from routekeeper.nameserver.disk.files import FULL_ERRNOS, File, Files, replace_file, write_all

from .slots import BLOCK, Damaged

END: Final = "end"
_VALUE: Final = struct.Struct(">IQQQ")
_BLOCKS: Final = 3
_ALL_BLOCKS: Final = frozenset(range(_BLOCKS))
_SIZE_MAX: Final = 64 * 1024


class Position(NamedTuple):
    """A place in the journal: the number of a segment, and bytes of it."""

    segment: int
    size: int


#: The position before a journal is known.
UNKNOWN: Final = Position(0, 0)


class JournalEnd:
    """The file that keeps the journal's end. Blocking; one call at a time."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self.path = directory / END
        self._file: File | None = None
        self._sequence = 0
        self._written = 0  # the block of the newest value
        self._synced = 0  # the block that may not be written to
        self._whole = False

    def create(self) -> None:
        """Create the file durably, with an unknown position."""
        self._replace(UNKNOWN)

    def load(self) -> Position:
        """Return the last position that was kept; :data:`UNKNOWN` if there is no file yet.

        Raises:
            Damaged: There is a file, and no block of it can be read.
        """
        try:
            raw = self._files.read(self.path, size_max=_SIZE_MAX)
        except FileNotFoundError:
            return UNKNOWN
        values = ((_parse(raw[block * BLOCK : (block + 1) * BLOCK]), block) for block in range(_BLOCKS))
        found = [(*value, block) for value, block in values if value is not None]
        if not found:
            raise Damaged(f"{self.path} is damaged")
        self._sequence, position, self._written = max(found)
        self._synced = self._written
        self._whole = len(raw) == _BLOCKS * BLOCK
        return position

    def begin(self, position: Position) -> None:
        """Store ``position`` durably, in place of any former one; :meth:`save` may follow.

        An undamaged file is written in place, so that a full disk does not keep a member from starting.
        """
        if not self._whole:
            self._replace(position)
        self._file = self._files.open(self.path, write=True)
        # The newest value may come from a killed process that did not sync it. It must be durable before
        # save() writes over an older value.
        self._file.sync()
        self.save(position)
        self.sync()

    def _replace(self, position: Position) -> None:
        replace_file(self._files, self.path, [self._encode(position).ljust(BLOCK, b"\0") * _BLOCKS])

    def save(self, position: Position) -> None:
        """Store ``position``; do nothing before :meth:`begin`. A failure on a full disk does no harm."""
        if self._file is not None:
            block = min(_ALL_BLOCKS - {self._written, self._synced})
            try:
                write_all(self._file, block * BLOCK, self._encode(position))
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
            else:
                self._written = block

    def sync(self) -> None:
        """Make all saved values durable."""
        if self._file is not None:
            self._file.sync()
            self._synced = self._written

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _encode(self, position: Position) -> bytes:
        self._sequence += 1
        rest = _VALUE.pack(0, self._sequence, *position)[4:]
        return zlib.crc32(rest).to_bytes(4, "big") + rest


def _parse(raw: bytes) -> tuple[int, Position] | None:
    if len(raw) < _VALUE.size:
        return None
    checksum, sequence, segment, size = _VALUE.unpack_from(raw)
    if zlib.crc32(raw[4 : _VALUE.size]) != checksum:
        return None
    return sequence, Position(segment, size)
