"""The durable log: append-only segments of checksummed frames.

A frame has the operations of one write. It is durable as a whole or not at all::

    mark      4 bytes  D7 52 4B 4A
    size      u32      bytes of payload
    crc       u32      CRC-32 of salt, size and payload
    payload   msgpack  list of operations (nameserver.raft.consensus.log.Op)

The first frame of a segment is its header. The header's payload is the format, the segment number and a
random salt, each as u32. The header's crc uses the salt 0. The crc of all other frames uses the random salt,
so that nobody can hide a valid frame in the payload of another frame.

A torn tail is an incomplete frame at the end of the last segment, with no valid frame after it. A process
leaves a torn tail if it is killed during a write. At the next start, the member cuts the torn tail off. No
acknowledged entry is lost, because the member acknowledges an entry only after the write. There are two
exceptions, after which the member may lack acknowledged entries:

- The journal ends before the position in the file ``end`` (see ``end.py``). So the file was shortened.
- The machine stopped before it had synced all pages. Any page of the last segment may be lost, so valid
  frames may follow the bad frame. The member keeps the frames before the bad frame.

In both cases the member starts as a learner, which does not vote until it has caught up. Any other bad frame
is corruption, and the member refuses to start (rule 9 of docs/raft-rules.md).

The log has segments so that old entries can be deleted without a rewrite of the other entries. When a
snapshot begins, the journal begins a new segment. Once the snapshot is durable, the older segments are
deleted.

Under durability ``fsync`` the journal writes and syncs zeros after the last frame, before frames need this
space. When a frame overwrites zeros, the size and the blocks of the file do not change. So a sync of a frame
does not wait for the file system's own journal. Zeros after the last frame of the last segment are no damage.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from contextlib import closing
from dataclasses import dataclass, field
from os import urandom
from pathlib import Path
from typing import Any, Final

import msgspec

from routekeeper.nameserver.disk.files import DISK, FULL_ERRNOS, File, Files, StorageFull, write_all
from routekeeper.nameserver.raft.consensus.log import (
    FIRST_INDEX,
    OP_COMMIT,
    OP_ENTRY,
    OP_RESET,
    OP_TRUNCATE,
    Entry,
    Op,
)
from routekeeper.nameserver.raft.types import RaftStartError

from .end import JournalEnd, Position
from .slots import Damaged

logger = logging.getLogger(__name__)

FORMAT: Final = 1
MARK: Final = b"\xd7RKJ"
_HEAD: Final = struct.Struct(">4sII")
_HEADER: Final = struct.Struct(">III")
HEADER_SIZE: Final = _HEAD.size + _HEADER.size
#: Largest size in bytes of a frame's payload. A larger number in a frame's size field means damage.
FRAME_SIZE_MAX: Final = 1 << 30
_PREFIX: Final = "journal-"
_NAME: Final = re.compile(_PREFIX + "([0-9]+)")
#: Number of zero bytes to write at once. Several hundred small frames fit into this space. When fewer than
#: half of these zeros are left, the journal writes new zeros.
ZEROS: Final = 256 * 1024


class Corrupt(Exception):
    """A segment has damaged bytes that an interrupted write cannot explain."""


def encode_frame(payload: bytes, salt: int) -> bytes:
    """Return one frame with ``payload``."""
    return _HEAD.pack(MARK, len(payload), _checksum(payload, salt)) + payload


def _checksum(payload: bytes | memoryview, salt: int) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack(">II", salt, len(payload))))


def _frame_at(data: memoryview, start: int, salt: int) -> memoryview | None:
    """Return the payload of the valid frame that begins at ``start``, or None."""
    if len(data) - start < _HEAD.size:
        return None
    mark, size, checksum = _HEAD.unpack_from(data, start)
    if mark != MARK or size > FRAME_SIZE_MAX or start + _HEAD.size + size > len(data):
        return None
    payload = data[start + _HEAD.size : start + _HEAD.size + size]
    return payload if _checksum(payload, salt) == checksum else None


@dataclass(frozen=True, slots=True)
class Scanned:
    """A segment, split into ``good`` bytes of valid frames, and then zeros or a torn tail."""

    number: int
    salt: int
    payloads: list[memoryview]
    good: int
    torn: int  # number of bytes after the valid frames, up to the last byte that is not zero


def scan(data: bytes, *, doubted: bool = False) -> Scanned:
    """Split a segment into header and payloads.

    Args:
        doubted: True if a power cut may have lost pages that were not synced. Valid frames may then follow a
            bad frame.

    Raises:
        Corrupt: The header is bad, or a valid frame follows a bad frame.
    """
    view = memoryview(data)
    header = _frame_at(view, 0, 0)
    if header is None:
        # The segment is corrupt and not torn, because the header is synced before any other frame is written.
        if len(data) > HEADER_SIZE:
            raise Corrupt("bad header")
        return Scanned(0, 0, [], 0, len(data))
    version = int.from_bytes(header[:4], "big")
    if version != FORMAT or len(header) != _HEADER.size:
        raise Corrupt(f"format {version}, this program knows {FORMAT}")
    _, number, salt = _HEADER.unpack(header)
    payloads, good = [], _HEAD.size + len(header)
    while (payload := _frame_at(view, good, salt)) is not None:
        payloads.append(payload)
        good += _HEAD.size + len(payload)
    at = -1 if doubted else data.find(MARK, good + 1)
    while at >= 0:
        if _frame_at(view, at, salt) is not None:
            raise Corrupt(f"bad frame at byte {good}, but a valid one at byte {at}")
        at = data.find(MARK, at + 1)
    return Scanned(number, salt, payloads, good, max(0, len(data.rstrip(b"\0")) - good))


def encode_header(number: int, salt: int) -> bytes:
    """Return the first frame of a segment, with HEADER_SIZE bytes."""
    return encode_frame(_HEADER.pack(FORMAT, number, salt), 0)


@dataclass(slots=True)
class Replay:
    """The log that results from a sequence of operations."""

    # the index before the first of ``entries``; None before the first operation
    base_index: int | None = None
    base_term: int | None = None
    entries: list[Entry] = field(default_factory=list)
    commit_index: int = FIRST_INDEX

    def apply(self, op: Any) -> None:
        """Apply one operation to the log.

        Raises:
            Corrupt: The operation does not continue the earlier operations.
        """
        match op:
            case [kind, int(index), int(term), bytes(command)] if kind == OP_ENTRY:
                if self.base_index is None:
                    self.base_index = index - 1
                last = self.base_index + len(self.entries)
                if index != last + 1:
                    raise Corrupt(f"entry {index} follows entry {last}")
                self.entries.append((command, index, term))
            case [kind, int(first)] if kind == OP_TRUNCATE:
                if self.base_index is None or first <= self.base_index:
                    self.base_index, self.base_term, self.entries = first - 1, None, []
                del self.entries[first - self.base_index - 1 :]
            case [kind, int(index)] if kind == OP_COMMIT:
                self.commit_index = max(self.commit_index, index)
            case [kind, int(index), int(term)] if kind == OP_RESET:
                self.base_index, self.base_term, self.entries = index, term, []
                self.commit_index = max(self.commit_index, index)
            case _:
                raise Corrupt("an operation of an unknown kind (a newer format?)")


_encode_ops: Final = msgspec.msgpack.Encoder().encode
_decode_ops: Final = msgspec.msgpack.Decoder(list[Any]).decode


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    last_index: int = 0  # highest index of the entries in this segment

    def holds(self, ops: list[Any]) -> None:
        for op in ops:
            if op[0] == OP_ENTRY:
                self.last_index = max(self.last_index, op[1])


class Journal:
    """The segments of one member. The methods block. After the start, only the writer thread calls them.

    Args:
        directory: A directory with only the raft files of this member.
        sync: True for durability ``fsync``: each write returns when its bytes are on the disk. The files are
            opened with O_DSYNC, so that one system call writes and syncs. One call is faster than two,
            because after each call the thread may have to wait for Python's interpreter lock.

    Attributes:
        shortened: The reason why entries may be missing from this journal; empty if none are missing.
    """

    def __init__(self, directory: Path, *, sync: bool, files: Files = DISK) -> None:
        self._directory = directory
        self._sync = sync
        self._files = files
        self._segments: list[_Segment] = []
        self._file: File | None = None
        self._size = 0  # bytes of the last segment's frames; the next frame begins at this offset
        self._room = 0  # offset at which the zeros end; not above _size if there are no zeros
        self._no_room_before = 0  # after a full disk, write no zeros before _size reaches this value
        self._salt = 0
        self._end = JournalEnd(files, directory)
        self.shortened = ""

    # ---- start

    @staticmethod
    def segments_in(files: Files, directory: Path) -> list[tuple[int, Path]]:
        """Return number and path of each segment, with rising numbers."""
        found = map(_NAME.fullmatch, files.names(directory))
        return sorted((int(name[1]), directory / name[0]) for name in found if name)

    def recover(self, *, doubted: bool = False) -> tuple[Replay, int]:
        """Read all segments, and open the last segment for writing.

        Args:
            doubted: True if a power cut may have lost any page of the last segment. The last segment then
                ends before the first lost page. All earlier segments are synced.

        Returns:
            The log, and the number of bytes that it takes on the disk.

        Raises:
            RaftStartError: Data that was durable is damaged or missing.
            StorageFull, OSError: No segment could be opened for writing.
        """
        replay = Replay()
        paths = self.segments_in(self._files, self._directory)
        good = size_total = 0
        for number, path in paths:
            last = number == paths[-1][0]
            if self._segments and number != self._segments[-1].number + 1:
                raise damaged(path, f"segment {number - 1} before it is missing")
            data = self._files.read(path)
            segment = _Segment(number, path)
            try:
                scanned = scan(data, doubted=doubted and last)
                good = scanned.good
                if (good < len(data) or good == 0) and not last:
                    raise Corrupt(f"bad frame at byte {good}, but later segments exist")
                if scanned.torn or good == 0:
                    logger.warning("journal torn tail cut file=%s bytes=%d", path.name, scanned.torn)
                if good and scanned.number != number:
                    raise Corrupt(f"this is segment {scanned.number}")
                for ops in map(_decode_ops, scanned.payloads):
                    for op in ops:
                        replay.apply(op)
                    segment.holds(ops)
            except (Corrupt, msgspec.MsgspecError) as error:
                raise damaged(path, str(error)) from error
            self._salt = scanned.salt
            self._segments.append(segment)
            size_total += good
        self._compare(Position(self._segments[-1].number if self._segments else 0, good))
        if not self._segments:
            self._begin(1)
        else:
            self._file = self._open(self._segments[-1].path)
            self._cut(good)
            if good == 0:  # an earlier process was killed before it completed the segment's header
                self._write_header(self._segments[-1].number)
            # Sync the bytes of an earlier process, because from now on they count as durable.
            self._file.sync()
        return replay, size_total

    def _compare(self, found: Position) -> None:
        """Set :attr:`shortened` if the journal ends before the end that :mod:`.end` has stored."""
        try:
            kept = self._end.load()
        except Damaged as error:
            self.shortened = f"{error}: where the journal ended is unknown"
            return
        if found < kept:
            self.shortened = (
                f"{self._directory} was written up to byte {kept.size} of {_PREFIX}{kept.segment:08d}, "
                f"but ends at byte {found.size} of {_PREFIX}{found.segment:08d}"
            )

    def keep_end(self) -> None:
        """Store the journal's present end durably, and from now on store its end after each write.

        If entries may be missing, the caller must first store this fact in the member state. Otherwise the
        next start could not detect that entries are missing.
        """
        self._end.begin(self._position)

    def mark_end(self) -> None:
        """Store the journal's end. Call this after each write and before its acknowledgement."""
        self._end.save(self._position)

    @property
    def _position(self) -> Position:
        return Position(self._segments[-1].number, self._size)

    def _open(self, path: Path, *, new: bool = False) -> File:
        return self._files.open(path, write=True, new=new, durable=self._sync)

    # ---- writing

    def append(self, ops: list[Op]) -> None:
        """Write one frame. With ``sync``, the frame is durable when this method returns.

        Raises:
            StorageFull: The disk is full; nothing of the frame was kept.
            OSError: The disk is broken; the process must end.
        """
        self._write(encode_frame(_encode_ops(ops), self._salt))
        self._segments[-1].holds(ops)

    @property
    def _writing(self) -> File:
        assert self._file is not None, "recovered and not closed"
        return self._file

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._writing, self._size, data)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._cut(self._size)
            raise self._full(error) from error
        self._size += len(data)

    def _full(self, error: OSError) -> StorageFull:
        return StorageFull(error.errno, f"{self._directory}: {error.strerror}")

    def _cut(self, size: int) -> None:
        """Cut the last segment to ``size`` bytes, so that the next frame begins there."""
        self._writing.truncate(size)
        self._size = self._room = size

    @property
    def wants_room(self) -> bool:
        """True if :meth:`make_room` should write new zeros as soon as no write waits."""
        return self._sync and self._room - self._size < ZEROS // 2 and self._size >= self._no_room_before

    @property
    def out_of_room(self) -> bool:
        """True if :meth:`make_room` should write new zeros now, even while writes wait.

        In this case the zeros are nearly used up, and without zeros each write would be slow.
        """
        return self._room - self._size < ZEROS // 16 and self.wants_room

    def make_room(self) -> None:
        """Write zeros after the frames durably. On a full disk, write the next frames without zeros.

        Raises:
            OSError: The disk is broken; the process must end.
        """
        start = max(self._room, self._size)
        try:
            write_all(self._writing, start, bytes(ZEROS))
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # Free the space of the zeros, because the disk is full and other programs may need the space.
            self._writing.truncate(start)
            self._no_room_before = self._size + ZEROS
        else:
            self._room = start + ZEROS
            self._end.sync()

    def rotate(self) -> None:
        """Begin a new segment for the entries after the snapshot that begins now.

        Raises:
            StorageFull: The disk is full; the old segment stays in use.
        """
        old, old_size, old_salt = self._writing, self._size, self._salt
        try:
            self._cut(old_size)  # remove the zeros, because only the last segment may end in zeros
            old.sync()  # otherwise a power cut could lose frames of this segment but keep the new segment
            self._begin(self._segments[-1].number + 1)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            if self._writing is not old:
                self._files.unlink(self._segments.pop().path)
                self._writing.close()
            self._file, self._size, self._salt = old, old_size, old_salt
            self._room = self._no_room_before = old_size
            if isinstance(error, StorageFull):
                raise
            raise self._full(error) from error
        old.close()
        self.mark_end()
        self._end.sync()

    def _begin(self, number: int) -> None:
        path = self._directory / f"{_PREFIX}{number:08d}"
        self._file = self._open(path, new=True)
        self._size = self._room = self._no_room_before = 0
        self._segments.append(_Segment(number, path))
        self._write_header(number)
        self._file.sync()
        self._files.sync_directory(self._directory)

    def _write_header(self, number: int) -> None:
        self._salt = int.from_bytes(urandom(4), "big")
        self._write(encode_header(number, self._salt))

    def trim(self, index: int) -> None:
        """Delete segments that a snapshot at ``index`` covers, except the last segment."""
        while len(self._segments) > 1 and self._segments[0].last_index <= index:
            self._files.unlink(self._segments.pop(0).path)

    def close(self) -> None:
        """Sync and close the journal, and remove its zeros."""
        file, self._file = self._file, None
        if file is not None:
            with closing(self._end), closing(file):
                if self._room > self._size:
                    file.truncate(self._size)
                file.sync()
                self.mark_end()
                self._end.sync()


def damaged(path: Path, what: str) -> RaftStartError:
    return RaftStartError(
        f"raft: {path} is damaged: {what}; restore it, or empty this member's data directory while the "
        "others are up (it then catches up from them)"
    )
