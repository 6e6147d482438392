"""Consume queues: for each queue, entries of fixed size that point into the commit log.

Entry, big-endian, 20 bytes::

    log_offset  i64
    size        i32   of the record; 0: the record is lost, and log_offset is that of the next record
    tags_code   i64   hash of the tag; in SCHEDULE_TOPIC_XXXX the delivery time in Unix ms

All entries can be rebuilt from the log, so the broker writes entries late and many at a time. Until an entry
is written, the broker reads it from memory. Source: ConsumeQueue of RocketMQ 4.9.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from routekeeper.broker.store.files import DISK, Disk, make_directories, write_whole

ENTRY_SIZE: Final = 20
ENTRY: Final = struct.Struct(">qiq")
_NAME_DIGITS: Final = 20
#: Number of a queue's newest entries that stay in memory after their write. Most consumers read them.
_KEPT_ENTRIES: Final = 256


#: Number of entries that recovery reads in one call.
_BLOCK_ENTRIES: Final = 4096


class Entry(NamedTuple):
    """One decoded entry of a queue."""

    log_offset: int
    size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Entries of one queue that are not in the queue's files yet."""

    directory: Path
    file_size: int
    index: int
    data: bytes


class ConsumeQueue:
    """Entries of one queue of one topic.

    Attributes:
        min_index: Index of the first readable entry.
        max_index: Index of the next entry to append.
        lost_from: The queue's end when the broker started, if entries after it may have been lost. Otherwise
            0. Entries may be lost if the machine has restarted since the last checkpoint, or if an operator
            accepted damage. New messages then get the indexes of the lost entries.
    """

    __slots__ = (
        "_disk",
        "_file_size",
        "_stored",
        "_tail",
        "_tail_index",
        "_weight",
        "directory",
        "lost_from",
        "max_index",
        "min_index",
    )

    def __init__(self, directory: Path, *, file_size: int, disk: Disk = DISK) -> None:
        self.directory = directory
        self._disk = disk
        self._file_size = max(file_size // ENTRY_SIZE, 1) * ENTRY_SIZE
        self._weight = zlib.crc32(f"{directory.parent.name}/{directory.name}".encode()) | 1
        self.min_index = 0
        self.max_index = 0
        self.lost_from = 0
        self._stored = 0  # index below which entries are in the files
        self._tail = bytearray()  # entries from _tail_index to max_index, in memory
        self._tail_index = 0

    @classmethod
    def recover(
        cls, directory: Path, *, file_size: int, log_min: int, log_end: int, disk: Disk = DISK
    ) -> ConsumeQueue | None:
        """Open the files of a queue, and cut entries whose records are not in [log_min, log_end).

        Returns:
            The queue, or None if it must be rebuilt. The reason is that a file is missing or was cut, or that
            the files were made with another ``file_size``.
        """
        queue = cls(directory, file_size=file_size, disk=disk)
        files = queue._files()
        if not files:
            return queue
        first, last = files[0], files[-1]
        if files != list(range(first, last + 1, queue._file_size)) or first % queue._file_size:
            return None
        if any(queue._size_of(start) < queue._file_size for start in files[:-1]):
            return None  # somebody cut this file: the broker begins a file only after a full file
        low = first // ENTRY_SIZE
        queue.max_index = (last + min(queue._size_of(last), queue._file_size)) // ENTRY_SIZE
        queue.min_index = low
        queue._stored = queue._tail_index = queue.max_index
        # Entries that were not synced may have any content: zeros, or log offsets that the log no longer has.
        queue.max_index = queue._end_of_synced(low, log_end)
        queue._stored = queue._tail_index = queue.max_index
        if log_min:  # in a log that begins at 0, zeros at a queue's beginning mean damage
            # The first file may begin with a part that was never written. All entries are after that part.
            queue.min_index = queue._end_of_hole(low)
        queue._cut_files(files)
        if log_min:
            queue.raise_min(queue.first_in_files(log_min), log_min)
        return queue

    @property
    def weighed_length(self) -> int:
        """The queue's length, multiplied by a number that is computed from the queue's name.

        The checkpoint has the sum of these products over all queues. In a sum of plain lengths, two wrong
        lengths could cancel out.
        """
        return self.max_index * self._weight

    @property
    def last_log_offset(self) -> int:
        """Log offset in the queue's last entry, or 2**63 if the queue has no entry."""
        entry = self._entry_at(self.max_index - 1) if self.max_index else None
        return 2**63 if entry is None else entry.log_offset

    def begin_at(self, index: int) -> None:
        """Start an empty queue at ``index``, because old files of the log were removed."""
        assert self.max_index == self.min_index == self._stored
        self.min_index = self.max_index = self._stored = self._tail_index = index
        self._tail.clear()

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        self._tail += ENTRY.pack(log_offset, size, tags_code)
        self.max_index += 1

    def within(self, index: int) -> int:
        """Return ``index``, or the index at which the consumer must continue if ``index`` is above the end.

        An index above the end means that the queue no longer has messages that the consumer has read. The
        topic was deleted and created again, or a restart of the machine removed the messages. The consumer
        must then continue before all messages that were stored since. In RocketMQ the consumer continues at
        the queue's end, and so skips these messages.
        """
        return index if index <= self.max_index else max(self.min_index, self.lost_from)

    def holds(self, index: int) -> bool:
        """Return True if the entries from ``index`` on are in memory."""
        return index >= self._tail_index

    def read_bytes(self, index: int, count: int) -> bytes | bytearray:
        """Return up to ``count`` encoded entries from ``index`` on, but none after the end of a file."""
        count = min(count, self.max_index - index)
        if count <= 0 or index < self.min_index:
            return b""
        if index >= self._tail_index:
            start = (index - self._tail_index) * ENTRY_SIZE
            return self._tail[start : start + count * ENTRY_SIZE]
        return self._read_file(index, min(count, self._tail_index - index))

    def read(self, index: int, count: int) -> list[Entry]:
        """Return up to ``count`` decoded entries from ``index`` on, but none after the end of a file."""
        return list(map(Entry._make, ENTRY.iter_unpack(self.read_bytes(index, count))))

    def get(self, index: int) -> Entry | None:
        found = self.read(index, 1)
        return found[0] if found else None

    def unwritten(self) -> Unwritten | None:
        """Return the entries that are not in the files yet. After writing them, call :meth:`written`."""
        if self._stored == self.max_index:
            return None
        start = (self._stored - self._tail_index) * ENTRY_SIZE
        return Unwritten(self.directory, self._file_size, self._stored, bytes(self._tail[start:]))

    def written(self, done: Unwritten) -> None:
        self._stored = done.index + len(done.data) // ENTRY_SIZE
        surplus = self._stored - self._tail_index - _KEPT_ENTRIES
        if surplus > _KEPT_ENTRIES:
            del self._tail[: surplus * ENTRY_SIZE]
            self._tail_index += surplus

    def overwrite(self, index: int, entries: Sequence[Entry]) -> bool:
        """Write repaired entries over damaged entries in the files. Return False if a write failed."""
        per_file = self._file_size // ENTRY_SIZE
        while entries:
            some = entries[: per_file - index % per_file]
            position = index * ENTRY_SIZE
            start = position - position % self._file_size
            try:
                fd = self._disk.open(self._path(start))
                try:
                    data = b"".join(ENTRY.pack(*entry) for entry in some)
                    write_whole(self._disk, fd, data, position - start)
                finally:
                    self._disk.close(fd)
            except OSError:
                return False
            index += len(some)
            entries = entries[len(some) :]
        return True

    # Removal of the oldest entries ---------------------------------------------------------------

    def first_in_files(self, log_min: int) -> int:
        """Return the index of the first entry whose record is still in the log. Search entries in files only.

        Any thread may call this method. If no entry in the files has such a record, the result is the index
        at which the entries in memory begin.
        """
        low, high = self.min_index, self._tail_index
        return low if low >= high else self._first(low, high, log_min)

    def raise_min(self, index: int, log_min: int) -> None:
        """Drop entries whose records are no longer in the log.

        Args:
            index: Result of :meth:`first_in_files`, which another thread has called. Reading the files here
                would block the event loop.
        """
        self.min_index = max(index, self.min_index)
        if self.min_index >= self._tail_index:
            self.min_index = self._first(self.min_index, self.max_index, log_min)

    def remove_old_files(self) -> None:
        """Remove files in which all entries are below ``min_index``, the oldest first.

        Any thread may call this method. The last file stays, because its name and size give the queue's
        length.

        Raises:
            OSError: If a file cannot be removed.
        """
        for start in self._files()[:-1]:
            if start + self._file_size > self.min_index * ENTRY_SIZE:
                break
            self._remove(start)

    # Helper methods ------------------------------------------------------------------------------

    def _first(self, low: int, high: int, log_min: int) -> int:
        """Return the first index in [low, high) whose record is at ``log_min`` or later, or else ``high``.

        Damaged entries can mislead the bisection. Therefore a result counts only if the entry before it
        points below ``log_min``. Otherwise the search goes on at lower indexes.
        """
        while low < high:
            begin, end = low, high
            while begin < end:
                middle = (begin + end) // 2
                entry = self._entry_at(middle)
                if entry is not None and entry.log_offset >= log_min:
                    end = middle
                else:
                    begin = middle + 1
            before = self._entry_at(begin - 1) if begin > low else None
            if before is None or (before != _HOLE and before.size >= 0 and 0 <= before.log_offset < log_min):
                return begin
            high = begin - 1
        return low

    def _end_of_hole(self, low: int) -> int:
        """Return the first index from ``low`` on whose entry was written.

        If no entry was written, return the index of the queue's end.
        """
        while low < self.max_index:
            data = self._read_file(low, min(_BLOCK_ENTRIES, self.max_index - low))
            empty = (len(data) - len(data.lstrip(b"\0"))) // ENTRY_SIZE
            low += empty
            if not data or empty * ENTRY_SIZE < len(data):
                return low
        return low

    def _end_of_synced(self, low: int, log_end: int) -> int:
        """Return the index after the last entry that points below ``log_end``, or ``low`` without one."""
        end = self.max_index
        while end > low:
            per_file = self._file_size // ENTRY_SIZE
            start = max(low, (end - 1) // per_file * per_file, end - _BLOCK_ENTRIES)
            entries = list(map(Entry._make, ENTRY.iter_unpack(self._read_file(start, end - start))))
            for index in range(len(entries) - 1, -1, -1):
                if entries[index] != _HOLE and entries[index].log_offset < log_end:
                    return start + index + 1
            end = start
        return low

    def _entry_at(self, index: int) -> Entry | None:
        if index >= self._tail_index:
            start = (index - self._tail_index) * ENTRY_SIZE
            return Entry._make(ENTRY.unpack_from(self._tail, start))
        data = self._read_file(index, 1)
        return Entry._make(ENTRY.unpack(data)) if data else None

    def _read_file(self, index: int, count: int) -> bytes:
        position = index * ENTRY_SIZE
        start = position - position % self._file_size
        size = min(count * ENTRY_SIZE, start + self._file_size - position)
        try:
            fd = self._disk.open(self._path(start))
        except FileNotFoundError:
            return b""
        try:
            data = self._disk.read(fd, size, position - start)
        finally:
            self._disk.close(fd)
        return data[: len(data) - len(data) % ENTRY_SIZE]

    def _path(self, start: int) -> Path:
        return self.directory / f"{start:0{_NAME_DIGITS}d}"

    def _size_of(self, start: int) -> int:
        fd = self._disk.open(self._path(start))
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def _cut_files(self, files: list[int]) -> None:
        """Cut the entries from ``max_index`` on. Otherwise these old entries would follow new entries."""
        end = self.max_index * ENTRY_SIZE
        for start in reversed(files):
            if start >= end and start != files[0]:
                self._remove(start)
                continue
            fd = self._disk.open(self._path(start))
            try:
                if self._disk.size(fd) > max(end - start, 0):
                    self._disk.cut(fd, max(end - start, 0))
                    self._disk.sync_data(fd)
            finally:
                self._disk.close(fd)
            break

    def _remove(self, start: int) -> None:
        # Sync each removal before the next one. Otherwise a power cut could undo only the first one. The
        # files would then have a gap, and the next start would build all queues anew.
        self._disk.remove(self._path(start))
        self._disk.sync_directory(self.directory)

    def _files(self) -> list[int]:
        try:
            return sorted(int(name) for name in self._disk.names(self.directory) if name.isdecimal())
        except FileNotFoundError:
            return []


#: Entry that a read returns for a part of a file that was never written.
_HOLE: Final = Entry(0, 0, 0)


def write_entries(disk: Disk, work: Unwritten) -> None:
    """Write entries to their files, durably (also the files' names). The call may be repeated.

    Raises:
        OSError: If the entries cannot be written. :meth:`ConsumeQueue.unwritten` still returns them.
    """
    position, data = work.index * ENTRY_SIZE, memoryview(work.data)
    while data:
        start = position - position % work.file_size
        size = min(len(data), start + work.file_size - position)
        path = work.directory / f"{start:0{_NAME_DIGITS}d}"
        try:
            fd = disk.open(path)
        except FileNotFoundError:
            fd = _make(disk, path)
        try:
            write_whole(disk, fd, data[:size], position - start)
            disk.sync_data(fd)
        finally:
            disk.close(fd)
        position += size
        data = data[size:]


def _make(disk: Disk, path: Path) -> int:
    make_directories(disk, path.parent)
    fd = disk.open(path, create=True)
    try:
        disk.sync_directory(path.parent)
    except OSError:
        disk.close(fd)
        disk.remove(path)  # otherwise the next call would find the file and assume that its name is durable
        raise
    return fd
