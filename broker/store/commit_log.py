"""The commit log: records back to back in files named by their start offset.

A file never grows above its size. If a record does not fit into the rest of a file, a padding record covers
the rest (8 bytes: size of the rest, :data:`BLANK_MAGIC`). So only the last file may end without one.
Appending is one write at the known end: when :meth:`CommitLog.append` returns, the record is in the page
cache and survives a killed process. Only :meth:`CommitLog.flush` makes it survive a power cut.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from routekeeper.broker.errors import StoreUnavailable, refused_for
from routekeeper.broker.store.files import DISK, NO_DESCRIPTORS, Content, Disk, make_directories, write_whole

logger = logging.getLogger(__name__)

#: Magic of the padding record at a file's end. Source: CommitLog.BLANK_MAGIC_CODE.
BLANK_MAGIC: Final = -875286124
_PAD: Final = struct.Struct(">ii")
_NAME_DIGITS: Final = 20
_REWRITE_BYTES: Final = 1 << 20
#: Bounds of one read for several near records: its size in bytes, and that size in relation to the records'
#: own.
_SPAN_MAX: Final = 512 << 10
_SPAN_TIMES: Final = 10


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

    Only one thread may call it, except for :meth:`flush`, :meth:`first_kept`, :meth:`remove_dropped` and
    :meth:`read_anywhere`.

    Args:
        keep_from: Files that end at or below this offset should have been removed earlier; they are removed
            now.

    Attributes:
        directory: Folder of its files.
        flushed_offset: Everything below survives a power cut.
        broken: Why the log cannot be written any more; None if it can.
        refused: Why the disk did not store a record; None once it stores a record of that size, see
            :meth:`try_again`.
    """

    def __init__(self, directory: Path, *, file_size: int, disk: Disk = DISK, keep_from: int = 0) -> None:
        self.directory = directory
        self._disk = disk
        self._file_size = file_size
        self._segments: list[_Segment] = []
        self._dropped: list[_Segment] = []
        self.broken: str | None = None
        self.refused: str | None = None
        self._refused_size = 0  # size of the largest refused record
        self._scratch = bytearray(_SPAN_MAX)
        self._flushing = threading.Lock()  # allows one sync at a time, and keeps descriptors open meanwhile
        self._reading = threading.Lock()  # keeps descriptors open while other threads read
        self._names_made = 1  # names that an earlier process made may not be durable
        self._names_synced = 0
        make_directories(disk, directory)
        self._open_segments(keep_from)
        self.flushed_offset = self.min_offset

    @property
    def min_offset(self) -> int:
        return self._segments[0].start if self._segments else 0

    @property
    def max_offset(self) -> int:
        return self._segments[-1].end if self._segments else 0

    def reserve(self, size: int) -> int:
        """Return the offset for a record of ``size`` bytes; pad the file and begin a new one if necessary.

        Raises:
            StoreUnavailable: If the disk is full or the log is broken.
        """
        if self.broken is not None:
            raise StoreUnavailable(self.broken)
        if size + _PAD.size > self._file_size:
            raise StoreUnavailable(f"record of {size} bytes does not fit a log file of {self._file_size}")
        if not self._segments:
            self._begin_segment(0, size)
        last = self._segments[-1]
        if last.written + size + _PAD.size > last.capacity:
            if last.written < last.capacity:
                self._write(last, _PAD.pack(last.capacity - last.written, BLANK_MAGIC), size)
                last.written = last.capacity
            self._begin_segment(last.start + last.capacity, size)
            last = self._segments[-1]
        return last.end

    def append(self, data: bytes) -> None:
        """Write the reserved bytes: all or none.

        Raises:
            StoreUnavailable: If the disk is full or the log is broken; no part of ``data`` stays.
        """
        last = self._segments[-1]
        self._write(last, data, len(data))
        last.written += len(data)

    def try_again(self) -> None:
        """Test whether the disk has room again: write a record as large as refused ones, then cut it off.

        Only a write can test that: a file system's figure of free space does not include quotas and limits on
        files.
        """
        if self.refused is None or self.broken is not None:
            return
        size = self._refused_size
        try:
            self.reserve(size)
            last = self._segments[-1]
            self._write(last, bytes(size), size)
        except StoreUnavailable:
            return
        try:
            self._disk.cut(last.fd, last.written)
        except OSError as error:
            self._cannot_cut(last, last.written + size, error)
            return
        self.refused, self._refused_size = None, 0

    def read(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes, or None if they are not all within one file of the log."""
        segment = self._find(offset)
        if segment is None or offset + size > segment.end:
            return None
        data = self._disk.read(segment.fd, size, offset - segment.start)
        return data if len(data) == size else None

    def read_anywhere(self, offset: int, size: int) -> bytes | None:
        """Same as :meth:`read`, for any thread."""
        with self._reading:
            for segment in reversed(tuple(self._segments)):
                if segment.start <= offset:
                    if offset + size > segment.end:
                        return None
                    data = self._disk.read(segment.fd, size, offset - segment.start)
                    return data if len(data) == size else None
        return None

    def read_all(self, places: Sequence[tuple[int, int]]) -> bytes:
        """Return the bytes at these places (offset, size), ascending; missing places are left out."""
        if len(places) > 1:
            first, (last, last_size) = places[0][0], places[-1]
            span = last + last_size - first
            segment = self._find(first)
            wanted = sum([size for _, size in places])
            if (
                segment is not None
                and last + last_size <= segment.end
                and span <= min(_SPAN_MAX, wanted * _SPAN_TIMES)
            ):
                # One read of all, including the bytes between them, takes less time than a read for each.
                whole = memoryview(self._scratch)[:span]
                if self._disk.read_into(segment.fd, whole, first - segment.start) == span:
                    return b"".join(
                        [whole[offset - first : offset - first + size] for offset, size in places]
                    )
        found = [self.read(offset, size) for offset, size in places]
        return b"".join([data for data in found if data is not None])

    def flush(self) -> int:
        """Sync the written records; return the offset below which everything is durable now.

        Raises:
            StoreUnavailable: If a sync failed. The log then accepts no more records, because after a failed
                sync it is unknown which pages reached the disk.
        """
        with self._flushing:
            if self.broken is not None:
                raise StoreUnavailable(self.broken)
            done = self.flushed_offset
            segments = tuple(self._segments)
            target = segments[-1].end if segments else 0
            made = self._names_made  # read these after the target, so that they include all its files
            for segment in segments:
                if segment.start + segment.capacity > done and segment.start < target:
                    self._sync(segment)
            if made != self._names_synced:
                try:
                    self._disk.sync_directory(self.directory)
                except OSError as error:
                    # nothing was synced and nothing is lost, so a later call can try again
                    if error.errno in NO_DESCRIPTORS:
                        raise StoreUnavailable(
                            f"cannot open {self.directory.name}: {error.strerror}"
                        ) from error
                    self.broken = f"sync of {self.directory.name} failed: {error.strerror}"
                    raise StoreUnavailable(self.broken) from error
                self._names_synced = made
            self.flushed_offset = max(target, done)
            return self.flushed_offset

    def close(self) -> None:
        with self._flushing, self._reading:
            for segment in self._segments + self._dropped:
                self._disk.close(segment.fd)
            self._segments.clear()
            self._dropped.clear()
            self.broken = "the log is closed"

    # Removing old files --------------------------------------------------------------------------

    def first_kept(self, before: float, count_max: int) -> int:
        """Return where the log would begin without its oldest files last written before an instant (Unix s).

        It leaves out at most ``count_max`` files; it always keeps the newest file, and files that are not
        synced.
        """
        kept = self.min_offset
        for segment in tuple(self._segments)[:-1][:count_max]:
            end = segment.start + segment.capacity
            if end > self.flushed_offset or self._disk.modified(segment.fd) >= before:
                break
            kept = end
        return kept

    def drop_before(self, offset: int) -> int:
        """Forget the files below ``offset`` and return their number; they stay on the disk."""
        count = sum(segment.start < offset for segment in self._segments)
        self._dropped += self._segments[:count]
        del self._segments[:count]
        return count

    def remove_dropped(self) -> None:
        """Remove the forgotten files from disk, the oldest first.

        Raises:
            OSError: If a file cannot be removed; the next call tries this file and the later ones again.
        """
        while self._dropped:
            oldest = self._dropped[0]
            self._disk.remove(oldest.path)
            del self._dropped[0]
            with self._reading:
                self._disk.close(oldest.fd)

    # For recovery --------------------------------------------------------------------------------

    @property
    def last_start(self) -> int:
        return self._segments[-1].start if self._segments else 0

    @property
    def padded_to(self) -> int | None:
        """Return the beginning of the next file if the last one seems to end with padding.

        User data at the end may look the same.
        """
        return self._padding_end(self._segments[-1]) if self._segments else None

    def holes(self) -> tuple[tuple[int, int], ...]:
        """Return the gaps between files: each from the end of one file to the beginning of the next.

        The padding at a file's end says where the next file begins, unless the file has its full size.
        """
        found = []
        for segment, following in pairwise(self._segments):
            end = segment.start + segment.written
            if end < following.start:
                padded = self._padding_end(segment)
                if padded is None or padded > following.start:
                    padded = end
                if padded != following.start:
                    found.append((padded, following.start))
        return tuple(found)

    def contents(self, offset: int) -> Iterator[tuple[int, int | None, Content]]:
        """Yield (start, start of the next file, content) of each file that ends above ``offset``.

        A content is valid until the next step of the iteration.
        """
        for segment in tuple(self._segments):
            if segment.start + segment.capacity > offset and segment in self._segments:
                following = None if segment is self._segments[-1] else segment.start + segment.capacity
                with self._disk.content(segment.fd) as data:
                    yield segment.start, following, data

    def truncate(self, offset: int) -> None:
        """Cut the log at ``offset``; remove files that begin at or after it, but keep at least one file.

        Call :meth:`flush` before anything is written: otherwise a power cut could bring cut bytes back behind
        new records.
        """
        while len(self._segments) > 1 and self._segments[-1].start >= offset:
            segment = self._segments.pop()
            self._disk.close(segment.fd)
            self._disk.remove(segment.path)
        last = self._segments[-1]
        if last.start + last.capacity == offset:
            # the file ended with its padding, and the cut bytes were in the next file
            last.written = last.capacity
        else:
            last.capacity = max(self._file_size, offset - last.start + _PAD.size)
            last.written = max(0, min(self._disk.size(last.fd), offset - last.start))
            self._disk.cut(last.fd, last.written)
        self.flushed_offset = min(self.flushed_offset, offset)

    def seal(self, start: int, end: int) -> None:
        """Note that the file that starts at ``start`` ends at ``end``: no record is added to it any more."""
        segment = self._find(start)
        assert segment is not None
        segment.written = segment.capacity = end - start

    def rewrite(self, offset: int) -> None:
        """Write the bytes above ``offset`` again, so that :meth:`flush` syncs them.

        After a failed sync in an earlier process, the kernel may count pages as written that are not on the
        disk.
        """
        for segment in self._segments:
            position = max(offset - segment.start, 0)
            size = self._disk.size(segment.fd)
            while position < size:
                data = self._disk.read(segment.fd, min(_REWRITE_BYTES, size - position), position)
                write_whole(self._disk, segment.fd, data, position)
                position += len(data)

    # Parts ---------------------------------------------------------------------------------------

    def _padding_end(self, segment: _Segment) -> int | None:
        """Return where the next file begins, from the padding of this one; None if it has no padding."""
        tail = self._disk.read(segment.fd, _PAD.size, max(segment.written - _PAD.size, 0))
        if len(tail) < _PAD.size:
            return None
        size, magic = _PAD.unpack(tail)
        return segment.end - _PAD.size + size if magic == BLANK_MAGIC and size >= _PAD.size else None

    def _find(self, offset: int) -> _Segment | None:
        for segment in reversed(self._segments):
            if segment.start <= offset:
                return segment if offset < segment.start + segment.capacity else None
        return None

    def _open_segments(self, keep_from: int) -> None:
        starts = sorted(int(name) for name in self._disk.names(self.directory) if name.isdecimal())
        for start, following in zip(starts, [*starts[1:], None], strict=False):
            path = self.directory / segment_name(start)
            if start < keep_from:
                self._disk.remove(path)
                continue
            fd = self._disk.open(path)
            size = self._disk.size(fd)
            if following is not None:
                capacity = following - start
                size = min(size, capacity)
            else:
                capacity = max(self._file_size, size + _PAD.size)
            self._segments.append(_Segment(start, capacity, path, fd, size))

    def _begin_segment(self, start: int, size: int) -> None:
        """Begin a file for a record of ``size`` bytes."""
        path = self.directory / segment_name(start)
        try:
            fd = self._disk.open(path, create=True)
        except OSError as error:
            raise self._refuse(size, f"cannot begin log file {path.name}: {error.strerror}", error) from error
        self._segments.append(_Segment(start, self._file_size, path, fd))
        # the next flush makes the name durable, before any record in the file counts as durable
        self._names_made += 1

    def _sync(self, segment: _Segment) -> None:
        try:
            self._disk.sync_data(segment.fd)
        except OSError as error:
            self.broken = f"sync of {segment.path.name} failed: {error.strerror}"
            raise StoreUnavailable(self.broken) from error

    def _write(self, segment: _Segment, data: bytes, record_size: int) -> None:
        """Write bytes at a file's end, as part of storing a record of ``record_size`` bytes."""
        if self.broken is not None:
            raise StoreUnavailable(self.broken)
        position, size = segment.written, len(data)
        try:
            written = self._disk.write(segment.fd, data, position)
            if written < size:
                write_whole(self._disk, segment.fd, memoryview(data)[written:], position + written)
        except OSError as error:
            try:
                self._disk.cut(segment.fd, position)
            except OSError as failure:
                self._cannot_cut(segment, position + size, failure)
            reason = f"cannot write {size} bytes to the log: {error.strerror}"
            raise self._refuse(record_size, reason, error) from error

    def _cannot_cut(self, segment: _Segment, end: int, error: OSError) -> None:
        self.broken = f"cannot cut a partial record in {segment.path.name}: {error.strerror}"
        segment.written = end  # the file may come back after a power cut, so the next one begins behind it

    def _refuse(self, size: int, reason: str, error: OSError) -> StoreUnavailable:
        self.refused = reason
        self._refused_size = max(self._refused_size, size)
        return StoreUnavailable(reason, reason=refused_for(error))
