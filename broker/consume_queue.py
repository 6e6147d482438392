"""Consume queues: per queue, fixed entries that point into the commit log.

Entry, big-endian, 20 bytes::

    log_offset  i64
    size        i32   of the record; 0 marks an entry whose record is lost
    tags_code   i64   hash of the tag; in SCHEDULE_TOPIC_XXXX the instant of delivery in Unix ms

Everything here can be rebuilt from the log, so entries are written late and in bulk; until then they are
served from memory. Source: ConsumeQueue of RocketMQ 4.9.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ENTRY_SIZE: Final = 20
_ENTRY: Final = struct.Struct(">qiq")
_NAME_DIGITS: Final = 20
#: Entries of each queue kept in memory after they were written; where consumers usually read.
_KEPT_ENTRIES: Final = 256


class Entry(NamedTuple):
    """One decoded entry."""

    log_offset: int
    size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Entries of one queue that are not in its files yet."""

    directory: Path
    file_size: int
    index: int
    data: bytes


class ConsumeQueue:
    """Index of one queue of one topic.

    Attributes:
        min_index: First index that can be read.
        max_index: Index of the next entry to be appended.
    """

    __slots__ = ("_file_size", "_stored", "_tail", "_tail_index", "directory", "max_index", "min_index")

    def __init__(self, directory: Path, *, file_size: int) -> None:
        self.directory = directory
        self._file_size = max(file_size // ENTRY_SIZE, 1) * ENTRY_SIZE
        self.min_index = 0
        self.max_index = 0
        self._stored = 0  # entries below are in the files
        self._tail = bytearray()  # entries from _tail_index to max_index
        self._tail_index = 0

    @classmethod
    def recover(cls, directory: Path, *, file_size: int, log_min: int, log_end: int) -> ConsumeQueue | None:
        """Open the files of a queue and cut entries whose records are not in [log_min, log_end).

        Returns:
            None if the files are of another file size: they must be rebuilt.
        """
        queue = cls(directory, file_size=file_size)
        files = queue._files()
        if not files:
            return queue
        first, last = files[0], files[-1]
        if files != list(range(first, last + 1, queue._file_size)) or first % queue._file_size:
            return None
        low = first // ENTRY_SIZE
        size = (directory / f"{last:0{_NAME_DIGITS}d}").stat().st_size
        queue.max_index = (last + min(size, queue._file_size)) // ENTRY_SIZE
        queue.min_index = low
        queue._stored = queue._tail_index = queue.max_index
        # The head of the first file may be a hole; entries with a record follow, their offsets only grow.
        queue.min_index = queue._first(low, queue.max_index, lambda entry: entry.size > 0)
        queue.max_index = queue._first(
            queue.min_index, queue.max_index, lambda entry: entry.log_offset >= log_end
        )
        queue._stored = queue._tail_index = queue.max_index
        queue._cut_files(files)
        queue.raise_min(log_min)
        return queue

    def begin_at(self, index: int) -> None:
        """Start an empty queue at ``index``, as when the log's first files are gone."""
        assert self.max_index == self.min_index == self._stored
        self.min_index = self.max_index = self._stored = self._tail_index = index
        self._tail.clear()

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        self._tail += _ENTRY.pack(log_offset, size, tags_code)
        self.max_index += 1

    def read(self, index: int, count: int) -> list[Entry]:
        """Return up to ``count`` entries from ``index`` on; fewer at the end or where a file begins."""
        count = min(count, self.max_index - index)
        if count <= 0 or index < self.min_index:
            return []
        if index >= self._tail_index:
            start = (index - self._tail_index) * ENTRY_SIZE
            data = bytes(self._tail[start : start + count * ENTRY_SIZE])
        else:
            data = self._read_file(index, min(count, self._tail_index - index))
        return list(map(Entry._make, _ENTRY.iter_unpack(data)))

    def get(self, index: int) -> Entry | None:
        found = self.read(index, 1)
        return found[0] if found else None

    def raise_min(self, log_min: int) -> None:
        """Forget entries whose records the log no longer has."""
        if self.min_index < self.max_index:
            entry = self.get(self.min_index)
            if entry is not None and entry.log_offset < log_min:
                self.min_index = self._first(
                    self.min_index, self.max_index, lambda entry: entry.log_offset >= log_min
                )

    def unwritten(self) -> Unwritten | None:
        """Return what is not in the files yet; :meth:`written` says that it is now."""
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

    def delete_files(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _first(self, low: int, high: int, wanted: Callable[[Entry], bool]) -> int:
        """Return the first index in [low, high) whose entry is wanted, by bisection; else ``high``."""
        while low < high:
            middle = (low + high) // 2
            entry = self._entry_at(middle)
            if entry is not None and wanted(entry):
                high = middle
            else:
                low = middle + 1
        return low

    def _entry_at(self, index: int) -> Entry | None:
        if index >= self._tail_index:
            start = (index - self._tail_index) * ENTRY_SIZE
            return Entry._make(_ENTRY.unpack_from(self._tail, start))
        data = self._read_file(index, 1)
        return Entry._make(_ENTRY.unpack(data)) if data else None

    def _read_file(self, index: int, count: int) -> bytes:
        position = index * ENTRY_SIZE
        start = position - position % self._file_size
        size = min(count * ENTRY_SIZE, start + self._file_size - position)
        try:
            fd = os.open(self.directory / f"{start:0{_NAME_DIGITS}d}", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            data = os.pread(fd, size, position - start)
        finally:
            os.close(fd)
        return data[: len(data) - len(data) % ENTRY_SIZE]

    def _cut_files(self, files: list[int]) -> None:
        """Remove what lies above ``max_index``, or it would come back when the file has grown past it."""
        end = self.max_index * ENTRY_SIZE
        for start in files:
            path = self.directory / f"{start:0{_NAME_DIGITS}d}"
            if start >= end and start != files[0]:
                path.unlink()
            elif path.stat().st_size > end - start:
                os.truncate(path, max(end - start, 0))

    def _files(self) -> list[int]:
        try:
            return sorted(int(entry.name) for entry in self.directory.iterdir() if entry.name.isdecimal())
        except FileNotFoundError:
            return []


def write_entries(work: Unwritten) -> None:
    """Write entries to their files and sync them. Writing the same entries again does no harm.

    Raises:
        OSError: If they cannot be written; what is missing stays :meth:`ConsumeQueue.unwritten`.
    """
    work.directory.mkdir(parents=True, exist_ok=True)
    position, data = work.index * ENTRY_SIZE, memoryview(work.data)
    while data:
        start = position - position % work.file_size
        size = min(len(data), start + work.file_size - position)
        fd = os.open(work.directory / f"{start:0{_NAME_DIGITS}d}", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            written = os.pwrite(fd, data[:size], position - start)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        position += written
        data = data[written:]
