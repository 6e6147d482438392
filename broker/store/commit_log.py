"""The commit log: records back to back in files that are named by their start offset.

The size of a file is limited. If a record does not fit into the remaining part of a file, a padding record
covers that part. The padding record has two numbers of 4 bytes: the size of the part, and
:data:`BLANK_MAGIC`. Only the last file may have no padding at its end. Appending is one write at the known
end of the log. After :meth:`CommitLog.append`, a record is in the page cache and survives a killed process.
Only :meth:`CommitLog.flush` makes the record survive a power cut.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from routekeeper.broker.errors import StoreUnavailable, refused_for
from routekeeper.broker.store.files import DISK, NO_DESCRIPTORS, Content, Disk, make_directories, write_whole
from routekeeper.broker.store.log_scan import HEAD_SIZE, size_of_record

logger = logging.getLogger(__name__)

#: Magic of the padding record at a file's end. Source: CommitLog.BLANK_MAGIC_CODE.
BLANK_MAGIC: Final = -875286124
_PAD: Final = struct.Struct(">ii")
_NAME_DIGITS: Final = 20
_REWRITE_BYTES: Final = 1 << 20
#: Bounds of one read that covers several records and the bytes between them. The first bound is the size of
#: the read in bytes. The second bound is the ratio of this size to the total size of the records.
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


class Part(NamedTuple):
    """Bytes of one log file, from the log offset ``begin`` on.

    Attributes:
        file_end: Log offset at which the content of the file ends.
        following: Log offset at which the next file starts; None if this is the last file.
    """

    begin: int
    data: bytes
    file_end: int
    following: int | None

    def cuts(self, at: int) -> bool:
        """Return True if the record at this position of ``data`` may go on after the end of ``data``.

        The record at position 0 is never cut.
        """
        if at == 0 or self.begin + len(self.data) == self.file_end:
            return False
        head = self.data[at : at + HEAD_SIZE]
        return len(head) < HEAD_SIZE or at + size_of_record(head, self.begin + at) > len(self.data)


def segment_name(offset: int) -> str:
    """Return the name of the file that starts at ``offset``."""
    return f"{offset:0{_NAME_DIGITS}d}"


class CommitLog:
    """Append-only bytes, addressed by physical offset.

    Only one thread may call the methods, except :meth:`flush`, :meth:`first_kept`, :meth:`remove_dropped` and
    :meth:`read_anywhere`.

    Args:
        keep_from: Offset of the first record to keep. The constructor removes files that begin below this
            offset, because an earlier process should have removed them. If it cannot remove a file, it logs
            an error and leaves the file out of the log.

    Attributes:
        directory: Folder of the log's files.
        flushed_offset: Offset below which all bytes survive a power cut.
        broken: Reason why nobody can write to the log any more, or None if the log works.
        refused: Reason why the disk last refused a record. :meth:`try_again` sets it to None when the disk
            accepts writes again.
    """

    def __init__(self, directory: Path, *, file_size: int, disk: Disk = DISK, keep_from: int = 0) -> None:
        self.directory = directory
        self._disk = disk
        self._file_size = file_size
        self._segments: list[_Segment] = []
        # Files that are no longer part of the log, but still on disk. Each has its descriptor if it is open.
        self._dropped: list[tuple[Path, int | None]] = []
        self.broken: str | None = None
        self.refused: str | None = None
        self._refused_size = 0  # size of the largest refused record
        self._scratch = bytearray(_SPAN_MAX)
        self._flushing = threading.Lock()  # allows one sync at a time; `close` waits until the sync has ended
        self._reading = threading.Lock()  # prevents closing a file while another thread reads it
        self._names_made = 1  # not 0, so that the first flush also syncs file names of an earlier process
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
        """Return the offset for a record of ``size`` bytes. If necessary, pad the file and begin a new file.

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
        """Write the bytes for which :meth:`reserve` was called: all of them or none.

        Raises:
            StoreUnavailable: If the disk is full or the log is broken. No part of ``data`` stays in the log.
        """
        last = self._segments[-1]
        self._write(last, data, len(data))
        last.written += len(data)

    def try_again(self) -> None:
        """Test if the disk accepts writes again. Write bytes of the largest refused size, then cut them off.

        Only a write can test this. The free space that a file system reports does not consider quotas and
        limits on files.
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
        """Return ``size`` bytes, or None if one file of the log does not hold all of them."""
        segment = self._find(offset)
        if segment is None or offset + size > segment.end:
            return None
        data = self._disk.read(segment.fd, size, offset - segment.start)
        return data if len(data) == size else None

    def read_anywhere(self, offset: int, size: int) -> bytes | None:
        """Do the same as :meth:`read`, but in any thread."""
        with self._reading:
            for segment in reversed(tuple(self._segments)):
                if segment.start <= offset:
                    if offset + size > segment.end:
                        return None
                    data = self._disk.read(segment.fd, size, offset - segment.start)
                    return data if len(data) == size else None
        return None

    def read_all(self, places: Sequence[tuple[int, int]]) -> bytes:
        """Return the records at these ascending (offset, size) pairs. Omit records that the log lacks."""
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
                # One read that includes the bytes between the records is faster than one read per record.
                whole = memoryview(self._scratch)[:span]
                if self._disk.read_into(segment.fd, whole, first - segment.start) == span:
                    return b"".join(
                        [whole[offset - first : offset - first + size] for offset, size in places]
                    )
        found = [self.read(offset, size) for offset, size in places]
        return b"".join([data for data in found if data is not None])

    def part(self, offset: int, size: int) -> Part | None:
        """Read up to ``size`` bytes from an offset on, but none after the end of a file. None: no such bytes.

        If the first record is larger, read the whole record. Unlike :meth:`contents`, this method maps no
        file, because an unreadable sector of a mapped file ends the process without a log line.

        Raises:
            OSError: If the disk cannot be read.
        """
        for segment in self._segments:
            if segment.start + segment.capacity > offset:
                begin = max(offset, segment.start)
                at, left = begin - segment.start, max(segment.end - begin, 0)
                data = self._read(segment, min(size, left), at)
                if len(data) < min(size, left):
                    left = len(data)  # somebody has cut the file
                record_size = size_of_record(data[:HEAD_SIZE], begin)
                if len(data) < min(record_size, left):
                    data = self._read(segment, min(record_size, left), at)
                following = None if segment is self._segments[-1] else segment.start + segment.capacity
                return Part(begin, data, begin + left, following)
        return None

    def flush(self) -> int:
        """Sync the written records, and return the offset below which all bytes are durable.

        Raises:
            StoreUnavailable: If a sync failed. The log then accepts no more records, because nobody knows
                which pages have reached the disk.
        """
        with self._flushing:
            if self.broken is not None:
                raise StoreUnavailable(self.broken)
            done = self.flushed_offset
            segments = tuple(self._segments)
            target = segments[-1].end if segments else 0
            # Read this count after `target`. If a new file were counted only in `target`, its content would
            # count as durable although its name was not synced.
            made = self._names_made
            for segment in segments:
                if segment.start + segment.capacity > done and segment.start < target:
                    self._sync(segment)
            if made != self._names_synced:
                try:
                    self._disk.sync_directory(self.directory)
                except OSError as error:
                    # Too many files are open, so the sync has not begun. A later call can try again.
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
            open_files = [segment.fd for segment in self._segments] + [fd for _, fd in self._dropped]
            for fd in open_files:
                if fd is not None:
                    self._disk.close(fd)
            self._segments.clear()
            self._dropped.clear()
            self.broken = "the log is closed"

    # Removing old files --------------------------------------------------------------------------

    def first_kept(self, before: float, count_max: int) -> int:
        """Return the offset at which the log would begin if its old files were removed.

        A file counts as old if its last write was before ``before`` (Unix s). At most ``count_max`` files
        count as old. The newest file, and files that are not synced, never count as old.
        """
        kept = self.min_offset
        for segment in tuple(self._segments)[:-1][:count_max]:
            end = segment.start + segment.capacity
            if end > self.flushed_offset or self._disk.modified(segment.fd) >= before:
                break
            kept = end
        return kept

    def start_of_file(self, offset: int) -> int:
        """Return the start of the file that has, or will have, the record at ``offset``."""
        starts = [segment.start for segment in self._segments if segment.start <= offset]
        return starts[-1] if starts else self.min_offset

    def drop_before(self, offset: int) -> int:
        """Remove the files below ``offset`` from the log, but not from the disk, and return their number."""
        count = sum(segment.start < offset for segment in self._segments)
        self._dropped += [(segment.path, segment.fd) for segment in self._segments[:count]]
        del self._segments[:count]
        return count

    def remove_dropped(self) -> None:
        """Remove from disk the files that :meth:`drop_before` has removed from the log, the oldest first.

        Raises:
            OSError: If a file cannot be removed. The next call tries this file again. All other files are
                removed.
        """
        failure = None
        for dropped in tuple(self._dropped):
            path, fd = dropped
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                pass  # somebody else has removed it
            except OSError as error:
                failure = failure or error
                continue
            self._dropped.remove(dropped)
            if fd is not None:
                with self._reading:
                    self._disk.close(fd)
        if failure is not None:
            raise failure

    # Methods for recovery ------------------------------------------------------------------------

    @property
    def last_start(self) -> int:
        return self._segments[-1].start if self._segments else 0

    @property
    def padded_to(self) -> int | None:
        """Start of the next file if the last file seems to end with padding, else None.

        The property may be wrong, because the last bytes of a message may look like padding.
        """
        return self._padding_end(self._segments[-1]) if self._segments else None

    def holes(self) -> tuple[tuple[int, int], ...]:
        """Return the gaps between files: from the end of one file to the beginning of the next file.

        If a file ends with padding, the gap begins only at the offset that the padding states for the next
        file.
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
        """Yield (start, start of the next file or None, content) of each file that ends above ``offset``.

        The yielded content is valid only until the next step of the iteration.
        """
        for segment in tuple(self._segments):
            if segment.start + segment.capacity > offset and segment in self._segments:
                following = None if segment is self._segments[-1] else segment.start + segment.capacity
                with self._disk.content(segment.fd) as data:
                    yield segment.start, following, data

    def read_through(self, offset: int) -> None:
        """Read one file from an offset to its end, and discard the bytes.

        Call this before using the file's mapped content. An unreadable sector raises an error here. In the
        mapped content, it would end the process without a log line.

        Raises:
            OSError: If the disk cannot be read.
        """
        segment = self._find(offset)
        if segment is not None:
            position = offset - segment.start
            while data := self._read(segment, _REWRITE_BYTES, position):
                position += len(data)

    def truncate(self, offset: int) -> None:
        """Cut the log at ``offset``. Remove files that begin at or after it, but keep at least one file.

        Call :meth:`flush` before the next write. Otherwise, after a power cut, the bytes that were cut could
        be back in the log, after the new records.
        """
        while len(self._segments) > 1 and self._segments[-1].start >= offset:
            segment = self._segments.pop()
            self._disk.close(segment.fd)
            self._disk.remove(segment.path)
        last = self._segments[-1]
        if last.start + last.capacity == offset:
            # All cut bytes were in later files. This file is complete, and ends with its padding.
            last.written = last.capacity
        else:
            last.capacity = max(self._file_size, offset - last.start + _PAD.size)
            last.written = max(0, min(self._disk.size(last.fd), offset - last.start))
            self._disk.cut(last.fd, last.written)
        self.flushed_offset = min(self.flushed_offset, offset)

    def seal(self, start: int, end: int) -> None:
        """Note that the file that starts at ``start`` ends at ``end``, so that it gets no more records."""
        segment = self._find(start)
        assert segment is not None
        segment.written = segment.capacity = end - start

    def rewrite(self, offset: int) -> None:
        """Write the bytes above ``offset`` again, so that :meth:`flush` syncs them.

        If a sync failed in an earlier process, the kernel may treat pages as written although they are not on
        the disk. A new write makes the kernel write these pages again.
        """
        for segment in self._segments:
            position = max(offset - segment.start, 0)
            size = self._disk.size(segment.fd)
            while position < size:
                data = self._disk.read(segment.fd, min(_REWRITE_BYTES, size - position), position)
                write_whole(self._disk, segment.fd, data, position)
                position += len(data)

    # Helper methods ------------------------------------------------------------------------------

    def _padding_end(self, segment: _Segment) -> int | None:
        """Return the start of the next file as this file's padding states it, or None without padding."""
        tail = self._disk.read(segment.fd, _PAD.size, max(segment.written - _PAD.size, 0))
        if len(tail) < _PAD.size:
            return None
        size, magic = _PAD.unpack(tail)
        return segment.end - _PAD.size + size if magic == BLANK_MAGIC and size >= _PAD.size else None

    def _read(self, segment: _Segment, size: int, at: int) -> bytes:
        try:
            return self._disk.read(segment.fd, size, at)
        except OSError as error:  # name the file, because the operator has to replace it
            raise OSError(error.errno, error.strerror, str(segment.path)) from error

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
                self._dropped.append((path, None))
                continue
            fd = self._disk.open(path)
            size = self._disk.size(fd)
            if following is not None:
                capacity = following - start
                size = min(size, capacity)
            else:
                capacity = max(self._file_size, size + _PAD.size)
            self._segments.append(_Segment(start, capacity, path, fd, size))
        try:
            self.remove_dropped()
        except OSError as error:  # the next removal of old files tries it again
            logger.error("old files not removed error=%s", error)

    def _begin_segment(self, start: int, size: int) -> None:
        """Begin a new file for a record of ``size`` bytes."""
        path = self.directory / segment_name(start)
        try:
            fd = self._disk.open(path, create=True)
        except OSError as error:
            raise self._refuse(size, f"cannot begin log file {path.name}: {error.strerror}", error) from error
        self._segments.append(_Segment(start, self._file_size, path, fd))
        # A record in this file counts as durable only after a flush has also made the file's name durable.
        self._names_made += 1

    def _sync(self, segment: _Segment) -> None:
        try:
            self._disk.sync_data(segment.fd)
        except OSError as error:
            self.broken = f"sync of {segment.path.name} failed: {error.strerror}"
            raise StoreUnavailable(self.broken) from error

    def _write(self, segment: _Segment, data: bytes, record_size: int) -> None:
        """Write bytes at a file's end, in order to store a record of ``record_size`` bytes."""
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
        segment.written = end  # The partial record may stay in the file, so no record may use its offsets.

    def _refuse(self, size: int, reason: str, error: OSError) -> StoreUnavailable:
        self.refused = reason
        self._refused_size = max(self._refused_size, size)
        return StoreUnavailable(reason, reason=refused_for(error))
