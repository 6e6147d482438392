"""The position at which the journal ends, stored in a file of its own.

By this position, a start detects that the journal was shortened.

The file ``DATA/raft/end`` has three blocks. Each block has one value (a position with checksum and number)::

    crc        u32   CRC-32 of the other fields of this value
    sequence   u64   number of this value; a newer value has a higher number
    segment    u64   number of the journal's last segment
    size       u64   bytes of the frames in this segment

One block has the last synced value. Newer values are written to the other two blocks in turn, without a sync.
So an interrupted write damages only one block, and the former value is still in another block. If the process
is killed, the newest value survives. After a power cut, at least the synced value survives. A value is synced
when the journal is closed, begins a segment, or writes zeros after its frames.

A frame is first written to the journal, then counted in a new value, and then acknowledged. So under
durability ``fsync`` the value counts only durable frames. If the process is killed, the value still counts
all acknowledged frames.
"""

from __future__ import annotations

import errno
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
    """A position in the journal: the number of a segment, and the offset in this segment in bytes."""

    segment: int
    size: int


#: The position while no journal is known.
UNKNOWN: Final = Position(0, 0)


class JournalEnd:
    """The file that keeps the journal's end. Its methods block, and only one of them may run at a time."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self.path = directory / END
        self._file: File | None = None
        self._sequence = 0
        self._written = 0  # number of the block with the newest value
        # Number of the block with the synced value. It is not overwritten before a newer value is synced.
        self._synced = 0
        self._whole = False

    def create(self) -> None:
        """Create the file durably, with an unknown position."""
        self._replace(UNKNOWN)

    def load(self) -> Position:
        """Return the newest position in the file, or :data:`UNKNOWN` if there is no file yet.

        Raises:
            Damaged: The file exists, but no block of it is intact, or the disk cannot read the whole file. An
                unreadable block may have the newest position, so the other blocks are no substitute.
        """
        try:
            raw = self._files.read(self.path, size_max=_SIZE_MAX)
        except FileNotFoundError:
            return UNKNOWN
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Damaged(f"{self.path} cannot be read: {error.strerror}") from error
        values = ((_parse(raw[block * BLOCK : (block + 1) * BLOCK]), block) for block in range(_BLOCKS))
        found = [(*value, block) for value, block in values if value is not None]
        if not found:
            raise Damaged(f"{self.path} is damaged")
        self._sequence, position, self._written = max(found)
        self._synced = self._written
        self._whole = len(raw) == _BLOCKS * BLOCK
        return position

    def begin(self, position: Position) -> None:
        """Store ``position`` durably, in place of any former position, and allow :meth:`save`.

        An undamaged file is overwritten in place, so that a member can start even if the disk is full.
        """
        if not self._whole:
            self._replace(position)
        self._file = self._files.open(self.path, write=True)
        # A killed process may have written the newest value without a sync. Sync this value before save()
        # overwrites an older value. Otherwise a power cut could destroy both values.
        self._file.sync()
        self.save(position)
        self.sync()

    def _replace(self, position: Position) -> None:
        replace_file(self._files, self.path, [self._encode(position).ljust(BLOCK, b"\0") * _BLOCKS])

    def save(self, position: Position) -> None:
        """Store ``position`` without a sync. Before :meth:`begin`, do nothing.

        If the disk is full, the former value stays. A value that is too low does no harm, because a journal
        that is longer than the value does not look shortened.
        """
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
        """Make all saved values durable. On a full disk, only the value of the last sync is durable."""
        if self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
            else:
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
