"""Snapshots on disk, with one file for each snapshot.

A member writes a file under a temporary name, syncs the file, and then renames it. So a file with a
snapshot's name is always a complete snapshot. A snapshot file can be copied, and restored in another cluster.

Layout, big-endian::

    magic          4 bytes  RKSN
    format         u32
    index          u64      last log index that the snapshot covers
    term           u64      term of the entry at index
    size           u64      bytes of snapshot
    crc            u32      CRC-32 of all other fields
    members_size   u32
    members        bytes    the configuration in force at index, see members.encode_configuration
    snapshot       bytes    as the state machine made it

This program reads and writes format 1 only.
"""

from __future__ import annotations

import errno
import logging
import re
import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routekeeper.nameserver.disk.files import DISK, File, Files, replace_file

from .journal import damaged

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_MAGIC: Final = b"RKSN"
_HEAD: Final = struct.Struct(">4sIQQQI")  # the fields from magic to crc
_CRC_AT: Final = _HEAD.size - 4
_MEMBERS_AT: Final = _HEAD.size + 4
_PREFIX: Final = "snapshot-"
#: The name of a snapshot file, or of a temporary file. The directory may also have files of an operator.
_NAME: Final = re.compile(_PREFIX + r"[0-9]{20}(\.tmp)?")
#: Number of bytes to read at once when a file is compared with its checksum.
_PIECE: Final = 4 * 1024 * 1024
#: Largest accepted size of the members field in bytes. A real configuration is far smaller.
_MEMBERS_MAX: Final = 1024 * 1024
#: Number of stored snapshots: the newest snapshot, and the former snapshot, which a leader may still be
#: sending.
_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The file of a snapshot.

    Attributes:
        size: Bytes of the snapshot, without the header.
        configuration: The encoded configuration in the header.
    """

    index: int
    term: int
    size: int
    path: Path
    configuration: bytes = b""

    @property
    def file_size(self) -> int:
        return _MEMBERS_AT + len(self.configuration) + self.size


class Snapshots:
    """The snapshots of one member. All methods block and must run in one thread.

    Attributes:
        newest: The newest stored snapshot, or None. Any thread may read this attribute.
    """

    def __init__(self, directory: Path, files: Files = DISK) -> None:
        self._directory = directory
        self._files = files
        self.newest: SnapshotFile | None = None
        # For each snapshot index: the open file, and the offset at which the snapshot begins in the file.
        # Files stay open, so that a replaced snapshot stays readable for a transfer that has begun (repairs
        # PySyncObj defect D20).
        self._open: dict[int, tuple[File, int]] = {}

    def recover(self) -> tuple[SnapshotFile, bytes] | None:
        """Read the newest snapshot, and delete unfinished files. Return None if there is no snapshot.

        Raises:
            RaftStartError: The newest snapshot is damaged (repairs PySyncObj defect D15). An older snapshot
                cannot be used instead, because the journal no longer has the entries between the two
                snapshots.
        """
        names = self._names()
        for name in names:
            if name.endswith(".tmp"):
                self._files.unlink(self._directory / name)
        paths = [self._directory / name for name in names if not name.endswith(".tmp")]
        if not paths:
            return None
        path = paths[-1]
        try:
            self.newest, data = parse(self._files.read(path), path)
        except ValueError as error:
            raise damaged(path, str(error)) from error
        return self.newest, data

    def _names(self) -> list[str]:
        return list(filter(_NAME.fullmatch, self._files.names(self._directory)))

    def store(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        """Write a snapshot durably, and delete snapshots that are not needed any more.

        Raises:
            OSError: The snapshot is not stored, and :attr:`newest` is unchanged. If only the last sync of the
                directory failed, the file exists, and a start would use it. :meth:`discard` deletes the file.
        """
        path = self._directory / f"{_PREFIX}{index:020d}"
        head = _HEAD.pack(_MAGIC, FORMAT, index, term, len(data), 0)[:_CRC_AT]
        members = len(configuration).to_bytes(4, "big") + configuration
        checksum = zlib.crc32(data, zlib.crc32(head + members)).to_bytes(4, "big")
        replace_file(self._files, path, (head + checksum + members, data))
        if self.newest is not None and self.newest.index > index:
            return
        self.newest = SnapshotFile(index, term, len(data), path, configuration)
        try:
            self._tidy(index)
        except OSError as error:  # do not raise: the new snapshot itself is durable
            logger.warning("older snapshot not deleted error=%s", error.strerror)

    def _tidy(self, replaced: int) -> None:
        """Close the former file at index ``replaced``, and close and delete all but the newest snapshots."""
        if replaced in self._open:
            self._open.pop(replaced)[0].close()
        for held in sorted(self._open)[:-_KEEP]:
            self._open.pop(held)[0].close()
        for name in self._names()[:-_KEEP]:
            # Keep the newest snapshot even if its index is low: under durability ``memory``, indexes begin
            # again at each start.
            if self.newest is None or name != self.newest.path.name:
                self._files.unlink(self._directory / name)

    def discard(self, index: int) -> None:
        """Delete durably the file that a failed :meth:`store` may have left, so that no start uses the file.

        Raises:
            OSError: A start may still find the snapshot.
        """
        path = self._directory / f"{_PREFIX}{index:020d}"
        try:
            self._files.modified_at(path)
        except FileNotFoundError:
            return  # the store failed before the file got its name
        self._files.unlink(path)
        self._files.sync_directory(self._directory)

    def read(self, index: int, offset: int, size: int) -> bytes | None:
        """Return a piece of the snapshot at ``index``; None if the snapshot has been deleted.

        Before the first piece, the whole file is compared with its checksum. Without this check, a file that
        was damaged on this disk could become the state of another member.

        Raises:
            OSError: The snapshot cannot be read, or is damaged.
        """
        if index not in self._open:
            try:
                file = self._files.open(self._directory / f"{_PREFIX}{index:020d}")
            except FileNotFoundError:
                if self.newest is not None and self.newest.index == index:
                    raise
                return None
            try:
                start = _image_at(file.read_at(0, _MEMBERS_AT))
            except BaseException:
                file.close()
                raise
            self._open[index] = (file, start)
        file, start = self._open[index]
        if offset == 0:
            _check(file)
        return file.read_at(start + offset, size)

    def check(self, image: SnapshotFile) -> None:
        """Compare a snapshot file with its checksum.

        Raises:
            OSError: The file cannot be read, or is damaged.
        """
        with closing(self._files.open(image.path)) as file:
            _check(file)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()


def _image_at(raw: bytes) -> int:
    """Return the offset of the state in a snapshot file that begins with ``raw``."""
    return _MEMBERS_AT + int.from_bytes(raw[_HEAD.size : _MEMBERS_AT], "big")


def _check(file: File) -> None:
    raw = file.read_at(0, _MEMBERS_AT)
    found, at = zlib.crc32(raw[_HEAD.size :], zlib.crc32(raw[:_CRC_AT])), len(raw)
    while piece := file.read_at(at, _PIECE):
        found, at = zlib.crc32(piece, found), at + len(piece)
    if len(raw) < _MEMBERS_AT or found != int.from_bytes(raw[_CRC_AT : _HEAD.size], "big"):
        raise OSError(errno.EIO, "its checksum is wrong")


def parse(raw: bytes, path: Path) -> tuple[SnapshotFile, bytes]:
    """Split a snapshot file into the values of its header and the state.

    Raises:
        ValueError: The file is damaged, of another format, or not a snapshot.
    """
    if len(raw) < _MEMBERS_AT:
        raise ValueError(f"{len(raw)} bytes, less than a header")
    magic, version, index, term, size, checksum = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError("no snapshot")
    if version != FORMAT:
        raise ValueError(f"a snapshot of format {version}, this program knows {FORMAT}")
    start = _image_at(raw)
    if start - _HEAD.size > _MEMBERS_MAX:
        raise ValueError(f"{start - _HEAD.size} bytes of members")
    data = raw[start:]
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes of image, {size} expected")
    if zlib.crc32(memoryview(raw)[_HEAD.size :], zlib.crc32(raw[:_CRC_AT])) != checksum:
        raise ValueError("bad checksum")
    return SnapshotFile(index, term, size, path, raw[_MEMBERS_AT:start]), data
