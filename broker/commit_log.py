"""The commit log: records back to back in files named by their start offset.

A file never grows above its size; what is left when a record does not fit is covered by a padding record
(8 bytes: rest of the file, :data:`BLANK_MAGIC`). Appending is one ``pwrite`` at the known end, so a record is
in the page cache (and survives a killed process) when :meth:`CommitLog.append` returns, and only
:meth:`CommitLog.flush` makes it survive a power cut.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.errors import StoreUnavailable

logger = logging.getLogger(__name__)

#: Magic of the padding record at a file's end. Source: CommitLog.BLANK_MAGIC_CODE.
BLANK_MAGIC: Final = -875286124
_PAD: Final = struct.Struct(">ii")
_NAME_DIGITS: Final = 20


@dataclass(slots=True, eq=False)
class _Segment:
    start: int
    capacity: int
    path: Path
    fd: int
    written: int = field(default=0)

    @property
    def end(self) -> int:
        return self.start + self.written


def segment_name(offset: int) -> str:
    """Return the name of the file that starts at ``offset``."""
    return f"{offset:0{_NAME_DIGITS}d}"


class CommitLog:
    """Append-only bytes addressed by physical offset.

    Appends, reads and deletion belong to one thread; :meth:`flush` may run in another.

    Attributes:
        flushed_offset: Everything below survives a power cut.
    """

    def __init__(self, directory: Path, *, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._segments: list[_Segment] = []
        self._broken: str | None = None
        self._flushing = threading.Lock()  # descriptors stay open while one thread syncs them
        directory.mkdir(parents=True, exist_ok=True)
        self._open_segments()
        self.flushed_offset = self.min_offset

    @property
    def min_offset(self) -> int:
        return self._segments[0].start if self._segments else 0

    @property
    def max_offset(self) -> int:
        return self._segments[-1].end if self._segments else 0

    @property
    def segment_starts(self) -> tuple[int, ...]:
        return tuple(segment.start for segment in self._segments)

    def reserve(self, size: int) -> int:
        """Return the offset at which a record of ``size`` bytes will go; may pad and begin a new file.

        Raises:
            StoreUnavailable: If the disk is full or the log is broken.
        """
        if self._broken is not None:
            raise StoreUnavailable(self._broken)
        if size + _PAD.size > self._file_size:
            raise StoreUnavailable(f"record of {size} bytes does not fit a log file of {self._file_size}")
        if not self._segments:
            self._begin_segment(0)
        last = self._segments[-1]
        if last.written + size + _PAD.size > last.capacity:
            if last.written < last.capacity:
                self._write(last, _PAD.pack(last.capacity - last.written, BLANK_MAGIC))
                last.written = last.capacity
            self._begin_segment(last.start + last.capacity)
            last = self._segments[-1]
        return last.end

    def append(self, data: bytes) -> None:
        """Write what was reserved; all of it or nothing.

        Raises:
            StoreUnavailable: If the disk is full or the log is broken; nothing of ``data`` stays.
        """
        last = self._segments[-1]
        self._write(last, data)
        last.written += len(data)

    def read(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes, or None if they are not all within one file of the log."""
        segment = self._find(offset)
        if segment is None or offset + size > segment.end:
            return None
        data = os.pread(segment.fd, size, offset - segment.start)
        return data if len(data) == size else None

    def flush(self) -> int:
        """Sync what is written; return the offset below which everything is durable now.

        Raises:
            StoreUnavailable: If a sync failed. The log takes no more records: after a failed sync nobody
                knows which pages reached the disk.
        """
        with self._flushing:
            target = self.max_offset
            done = self.flushed_offset
            for segment in tuple(self._segments):
                if segment.start + segment.capacity > done and segment.start < target:
                    try:
                        os.fdatasync(segment.fd)
                    except OSError as error:
                        self._broken = f"sync of {segment.path.name} failed: {error.strerror}"
                        raise StoreUnavailable(self._broken) from error
            self.flushed_offset = max(target, done)
            return self.flushed_offset

    def truncate(self, offset: int) -> None:
        """Cut the log at ``offset``; files that begin at or after it are removed, but one stays."""
        while len(self._segments) > 1 and self._segments[-1].start >= offset:
            segment = self._segments.pop()
            os.close(segment.fd)
            segment.path.unlink()
        if self._segments:
            last = self._segments[-1]
            last.written = max(0, min(last.written, offset - last.start))
            os.ftruncate(last.fd, last.written)
            os.fsync(last.fd)
        self.flushed_offset = min(self.flushed_offset, offset)

    def seal(self, start: int) -> None:
        """Note that the file that starts at ``start`` ends with its padding: nothing more goes into it."""
        segment = self._find(start)
        assert segment is not None
        segment.written = segment.capacity

    def delete_segments_before(self, mtime: float) -> list[Path]:
        """Remove the oldest files last written before ``mtime`` (Unix s), never the newest or unsynced."""
        removed = []
        while len(self._segments) > 1:
            oldest = self._segments[0]
            if oldest.start + oldest.capacity > self.flushed_offset or os.fstat(oldest.fd).st_mtime >= mtime:
                break
            del self._segments[0]
            os.close(oldest.fd)
            oldest.path.unlink()
            removed.append(oldest.path)
        return removed

    def map_segments(self, offset: int) -> Iterator[tuple[int, mmap.mmap]]:
        """Yield (start, content) of each file that ends above ``offset``; a content is valid for its turn."""
        for segment in tuple(self._segments):
            size = os.fstat(segment.fd).st_size
            if segment.start + segment.capacity > offset and size:
                with mmap.mmap(segment.fd, size, access=mmap.ACCESS_READ) as data:
                    yield segment.start, data

    def close(self) -> None:
        with self._flushing:
            for segment in self._segments:
                os.close(segment.fd)
            self._segments.clear()
            self._broken = "the log is closed"

    def _find(self, offset: int) -> _Segment | None:
        for segment in reversed(self._segments):
            if segment.start <= offset:
                return segment if offset < segment.start + segment.capacity else None
        return None

    def _open_segments(self) -> None:
        names = sorted(entry.name for entry in self._directory.iterdir() if entry.name.isdecimal())
        starts = [int(name) for name in names]
        for position, (name, start) in enumerate(zip(names, starts, strict=True)):
            path = self._directory / name
            size = path.stat().st_size
            if position + 1 < len(starts):
                capacity = starts[position + 1] - start
                size = min(size, capacity)
            else:
                capacity = max(self._file_size, size + _PAD.size)
            fd = os.open(path, os.O_RDWR)
            self._segments.append(_Segment(start, capacity, path, fd, size))

    def _begin_segment(self, start: int) -> None:
        path = self._directory / segment_name(start)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise StoreUnavailable(f"cannot begin log file {path.name}: {error.strerror}") from error
        self._segments.append(_Segment(start, self._file_size, path, fd))

    def _write(self, segment: _Segment, data: bytes) -> None:
        if self._broken is not None:
            raise StoreUnavailable(self._broken)
        position, size = segment.written, len(data)
        try:
            written = os.pwrite(segment.fd, data, position)
            while written < size:
                more = os.pwrite(segment.fd, memoryview(data)[written:], position + written)
                if more == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += more
        except OSError as error:
            try:
                os.ftruncate(segment.fd, position)
            except OSError as failure:
                self._broken = f"cannot cut a partial record in {segment.path.name}: {failure.strerror}"
            raise StoreUnavailable(f"cannot write {size} bytes to the log: {error.strerror}") from error
