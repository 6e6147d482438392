"""Index of messages by key. Messages of the last seconds may be missing in the index.

New entries are in memory first, and later in files. A file has the entries of one part of the log, sorted by
hash. A file is written as a whole and never changed. The first search in a file checks the file's checksum.

A power cut may remove the end of the log. At a start, the broker removes files whose part of the log is no
longer complete. The broker reads a part of the log again if this part has no file, or if the file is damaged.

The layout of a file, big-endian::

    magic        8 bytes "RKINDEX2"
    begin, end   u64    the part of the log; begin is the file's name
    first, last  u64    least and greatest store time in the file, Unix ms
    count        u64    number of entries
    checksum     u32    CRC-32 of the entries
    entries      u64 hash of topic#key, u64 store time, u64 log offset; ascending
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from routekeeper.broker.store.commit_log import CommitLog
from routekeeper.broker.store.files import Disk, make_directories, write_atomic
from routekeeper.broker.store.log_scan import Damage, Padding, Record, scan
from routekeeper.broker.store.steps import no_work
from routekeeper.remoting.message import (
    NAME_END,
    PAIR_END,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    decode_properties,
)

logger = logging.getLogger(__name__)

#: Largest number of indexed keys of one message. Without this bound, small messages could make a large index.
KEYS_MAX: Final = 64
#: Default of the largest number of messages whose entries are in one file.
FILE_MESSAGES: Final = 20_000
#: Number of keys per counted message. A message with up to 4 keys counts as one message of a file. A message
#: with 64 keys counts as 16 messages. Otherwise such messages would make memory and files 64 times as large.
_KEYS_PER_MESSAGE: Final = 4
#: Largest number of log bytes that one file covers. After a start, at most this many bytes are read again.
_FILE_LOG_BYTES: Final = 64 << 20
#: Bounds of one slice, the work of one step: number of messages, entries of these messages, and bytes of the
#: log. If the messages wait in memory, the third bound counts characters of their properties instead.
_SLICE_MESSAGES: Final = 256
_SLICE_ENTRIES: Final = 1024
_SLICE_BYTES: Final = 256 << 10
#: Largest number of messages that wait in memory to be indexed, and of characters of their properties.
#: Further messages are read from the log later.
NOTED_MAX: Final = 100_000
NOTED_CHARACTERS_MAX: Final = 32 << 20
#: Largest number of full index files whose entries are only in memory, because files cannot be written. At
#: this number, no further messages are indexed until a file is written.
_UNWRITTEN_FILES: Final = 4
#: Largest number of hashes that one call sorts. Other threads cannot run during such a call.
_SORTED_AT_ONCE: Final = 4096
#: Number of files that one step of a search reads.
_SEARCH_FILES: Final = 16
#: Largest number of entries of one key that a search takes from one file. It takes the youngest entries. The
#: number equals the largest number of results of a query.
FOUND_MAX: Final = 64

_MAGIC: Final = b"RKINDEX2"
_HEAD: Final = struct.Struct(">8sQQQQQI")
_ENTRY: Final = struct.Struct(">QQQ")
_KEYS_MARK: Final = f"{PROPERTY_KEYS}{NAME_END}"
_UNIQUE_MARK: Final = f"{PROPERTY_UNIQ_KEY}{NAME_END}"

#: Sort key of the entries in a file: hash and store time.
_Place = tuple[int, int]
_PLACE: Final = struct.Struct(">QQ")


class Noted(NamedTuple):
    """A message in the log that must still be indexed."""

    topic: str
    properties: str
    offset: int
    end: int
    store_ms: int


class IndexEntry(NamedTuple):
    """An entry of the index: store time and log offset of a message."""

    store_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The header of one index file."""

    path: Path
    begin: int
    end: int
    first_ms: int
    last_ms: int
    count: int
    checksum: int


def keys_of(properties: str) -> list[str]:
    """Return the keys by which a message can be found, without duplicates: the keys in KEYS, and its id."""
    begin = properties.find(_UNIQUE_MARK)
    if _KEYS_MARK not in properties and (begin < 0 or properties.find(_UNIQUE_MARK, begin + 1) < 0):
        # Shortcut for nearly all messages. A message that has only a unique id needs no full decoding.
        if begin < 0 or (begin and properties[begin - 1] != PAIR_END):
            return []
        end = properties.find(PAIR_END, begin)
        key = properties[begin + len(_UNIQUE_MARK) : end if end >= 0 else None]
        return [key] if key else []
    decoded = decode_properties(properties)
    keys = decoded.get(PROPERTY_KEYS, "").split(" ")[: KEYS_MAX - 1]
    return list(dict.fromkeys(filter(None, [*keys, decoded.get(PROPERTY_UNIQ_KEY, "")])))


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a key.

    Java's hash is not used, because clients can easily find many keys with the same Java hash.
    """
    digest = blake2b(f"{topic}#{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class MessageIndex:
    """The index of one store. One thread calls all methods. Yielded steps may run in another thread.

    Args:
        directory: Folder of the index files.
        log: The commit log whose messages are indexed, after the log's recovery.
        file_messages: Number of messages after which the next step writes their entries to a file. A message
            with many keys counts as several messages, see :data:`_KEYS_PER_MESSAGE`.

    Attributes:
        damaged: Number of damaged files that were found since the start and written again.
    """

    def __init__(
        self, disk: Disk, directory: Path, log: CommitLog, *, file_messages: int = FILE_MESSAGES
    ) -> None:
        self.damaged = 0
        self._disk = disk
        self._directory = directory
        self._log = log
        self._file_messages = file_messages
        self._unwritten_max = _UNWRITTEN_FILES * file_messages
        self._noted: deque[Noted] = deque()
        self._noted_characters = 0
        self._recent: dict[int, list[IndexEntry]] = {}
        self._recent_count = 0  # messages, where a message with many keys counts as several
        self._recent_ms = (0, 0)
        self._sealing: dict[int, list[IndexEntry]] = {}
        self._sealing_count = 0
        self._checked: set[Path] = set()  # files whose checksum is correct
        self._unsound: set[Path] = set()  # damaged files that must be written again
        make_directories(disk, directory)
        self._files = self._load()
        self._begin = self._position = self._files[-1].end if self._files else log.min_offset

    @property
    def position(self) -> int:
        """Log offset below which messages are indexed."""
        return self._position

    @property
    def noted(self) -> int:
        """Number of messages that wait in memory to be indexed."""
        return len(self._noted)

    def note(
        self, topic: str, properties: str, offset: int, end: int, store_ms: int, *, later: bool = False
    ) -> None:
        """Take a message that was just appended to the log. Index it now, unless earlier messages wait.

        Args:
            later: True if a later step must index the message, because the caller has many messages.
        """
        if not later and offset == self._position and not self._noted and self._has_room:
            self._add(topic, keys_of(properties), offset, end, store_ms)
        elif len(self._noted) < NOTED_MAX and self._noted_characters < NOTED_CHARACTERS_MAX:
            self._noted.append(Noted(topic, properties, offset, end, store_ms))
            self._noted_characters += len(properties)

    # Indexing of new messages ----------------------------------------------------------------------

    def follow(self) -> Generator[Callable[[], Any], Any, None]:
        """Index the messages after :attr:`position`. Write a file whenever a file has enough entries.

        Raises:
            OSError: If a file cannot be written, see :meth:`seal`.
        """
        while self._is_due or self._position < self._log.max_offset:
            if self._is_due:
                yield from self.seal()
            else:
                self._slice()
            yield no_work

    def catch_up(self, slices: int) -> Generator[Callable[[], Any], Any, None]:
        """Index the messages after :attr:`position` in at most ``slices`` steps. Write no files."""
        while slices and self._position < self._log.max_offset and self._has_room:
            slices -= 1
            self._slice()
            yield no_work

    @property
    def _is_due(self) -> bool:
        return self._recent_count >= self._file_messages or self._position - self._begin >= _FILE_LOG_BYTES

    @property
    def _has_room(self) -> bool:
        return self._recent_count + self._sealing_count < self._unwritten_max

    def _slice(self) -> None:
        # Index a larger backlog in larger steps. Otherwise, while clients send many batches, each iteration
        # of the event loop would add more messages than one step indexes.
        share = len(self._noted) // 8
        taken_max = max(_SLICE_MESSAGES, share)
        entries_max = max(_SLICE_ENTRIES, 2 * share)
        characters_max = max(_SLICE_BYTES, 256 * share)
        taken = entries = characters = 0
        while self._noted and self._noted[0].offset <= self._position:
            if taken >= taken_max or entries >= entries_max or characters >= characters_max:
                break
            topic, properties, offset, end, store_ms = self._noted.popleft()
            self._noted_characters -= len(properties)
            if offset == self._position:
                keys = keys_of(properties)
                self._add(topic, keys, offset, end, store_ms)
                taken += 1
                entries += len(keys)
                characters += len(properties)
        if not taken:
            self._read_log()

    def seal(self) -> Generator[Callable[[], Any], Any, None]:
        """Write the entries in memory to a new file.

        Raises:
            OSError: If the disk failed. The entries stay in memory, and a later call tries again.
        """
        if self._position == self._begin or self._sealing:
            return
        begin, end, entries, times = self._begin, self._position, self._recent, self._recent_ms
        count = self._recent_count
        self._sealing, self._recent, self._recent_count, self._recent_ms = entries, {}, 0, (0, 0)
        self._sealing_count = count
        try:
            written: IndexFile = yield lambda: self._write(begin, end, entries, times)
        except OSError:
            for value, found in self._recent.items():
                entries.setdefault(value, []).extend(found)
            self._recent, self._recent_count = entries, self._recent_count + count
            self._recent_ms = _span(times, self._recent_ms)
            raise
        finally:
            self._sealing, self._sealing_count = {}, 0
        self._files.append(written)
        self._begin = end

    def drop_before(self, offset: int) -> list[Path]:
        """Drop entries of messages that the log no longer has.

        Return the files to remove. Any thread may remove these files.
        """
        gone = [file.path for file in self._files if file.end <= offset]
        self._files = self._files[len(gone) :]
        if self._begin < offset:
            if self._position < offset:
                self._recent, self._recent_count, self._position = {}, 0, offset
            if not self._sealing:
                self._begin = max(self._begin, min(offset, self._position))
        return gone

    def _read_log(self) -> None:
        """Read the next part of the log from the log's files, and index the messages in this part."""
        records, position = self._next_records(self._position)
        for record, keys, start, end in records:
            self._add(record.topic, keys, start, end, record.store_timestamp)
        self._position = position

    def _next_records(self, position: int) -> tuple[list[tuple[Record, list[str], int, int]], int]:
        """Return some records from a log offset on, and the log offset after these records.

        Each record comes with its message's keys, and with the log offsets of its start and its end.
        """
        records: list[tuple[Record, list[str], int, int]] = []
        entries = 0
        part = self._log.part(position, _SLICE_BYTES)
        if part is None:
            return records, self._log.max_offset
        at, base = 0, part.begin
        for found in scan(part.data, 0, base=base):
            if isinstance(found, Padding | Damage):
                break
            record, size = found
            keys = keys_of(record.properties)
            records.append((record, keys, base + at, base + at + size))
            entries += len(keys)
            at += size
            if at >= _SLICE_BYTES or entries >= _SLICE_ENTRIES:
                return records, base + at
        if part.cuts(at):
            return records, base + at
        # Go on with the next file. This file ends here, or an operator has accepted damage here.
        return records, self._log.max_offset if part.following is None else part.following

    def _add(self, topic: str, keys: list[str], offset: int, end: int, store_ms: int) -> None:
        self._position = end
        for key in keys:
            self._recent.setdefault(key_hash(topic, key), []).append(IndexEntry(store_ms, offset))
        self._recent_count += max(1, -(-len(keys) // _KEYS_PER_MESSAGE))
        if not self._recent_ms[0] <= store_ms <= self._recent_ms[1]:
            self._recent_ms = _span(self._recent_ms, (store_ms, store_ms))

    def _write(
        self, begin: int, end: int, entries: dict[int, list[IndexEntry]], times: tuple[int, int]
    ) -> IndexFile:
        encoded = bytearray()
        for value in _sorted_in_parts(entries):
            # This sort is fast. The messages came in the order of time, so their entries are nearly sorted.
            for found in sorted(entries[value]):
                encoded += _ENTRY.pack(value, *found)
        path, count, checksum = self._directory / f"{begin:020d}", len(encoded) // _ENTRY.size, crc32(encoded)
        head = _HEAD.pack(_MAGIC, begin, end, *times, count, checksum)
        write_atomic(self._disk, path, head + encoded)
        return IndexFile(path, begin, end, *times, count, checksum)

    # Searching -------------------------------------------------------------------------------------

    def search(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int
    ) -> Iterator[Callable[[], list[IndexEntry]]]:
        """Yield steps that may run in any thread. Each step returns entries, the youngest entry first.

        An entry may belong to another key with the same hash, or to a message that was removed. The caller
        has to exclude both cases when it reads the message.
        """
        wanted = key_hash(topic, key)
        recent = [
            found
            for found in (*self._sealing.get(wanted, ()), *self._recent.get(wanted, ()))
            if begin_ms <= found.store_ms <= end_ms
        ][-FOUND_MAX:]
        yield lambda: recent[::-1]
        files = [file for file in self._files if file.last_ms >= begin_ms and file.first_ms <= end_ms]
        low, high = (wanted, max(begin_ms, 0)), (wanted, max(end_ms, -1) + 1)
        while files:
            some, files = files[-_SEARCH_FILES:], files[:-_SEARCH_FILES]
            yield partial(self._look, some[::-1], low, high)
            for file in [file for file in some if file.path in self._unsound]:
                yield from self._make_again(file, wanted, begin_ms, end_ms)

    def _look(self, files: list[IndexFile], low: _Place, high: _Place) -> list[IndexEntry]:
        found: list[IndexEntry] = []
        for file in files:
            try:
                fd = self._disk.open(file.path)
            except FileNotFoundError:
                continue  # another thread has removed the file, because its messages left the log
            try:
                if self._is_sound(file, fd):
                    found += _entries(self._disk, fd, file.count, low, high)
            finally:
                self._disk.close(fd)
        return found

    def _is_sound(self, file: IndexFile, fd: int) -> bool:
        """Return True if a file is undamaged. The first call, in any thread, reads the whole file."""
        if file.path not in self._checked:
            entries = self._disk.read(fd, file.count * _ENTRY.size, _HEAD.size)
            if len(entries) != file.count * _ENTRY.size or crc32(entries) != file.checksum:
                self._unsound.add(file.path)
                return False
            self._checked.add(file.path)
        return True

    def _make_again(
        self, file: IndexFile, wanted: int, begin_ms: int, end_ms: int
    ) -> Iterator[Callable[[], list[IndexEntry]]]:
        """Write a damaged file again from its part of the log. Also yield the entries that a search wants."""
        entries: dict[int, list[IndexEntry]] = {}
        times, position = (0, 0), file.begin
        while position < file.end and position < self._log.max_offset:
            records, position = self._next_records(position)
            for record, keys, start, _ in records:
                if start < file.end:
                    store_ms = record.store_timestamp
                    times = _span(times, (store_ms, store_ms))
                    for key in keys:
                        entries.setdefault(key_hash(record.topic, key), []).append(
                            IndexEntry(store_ms, start)
                        )
            yield list
        found = [each for each in entries.get(wanted, ()) if begin_ms <= each.store_ms <= end_ms]
        if file.path in self._unsound:  # not in the set if another search has repaired it
            self._unsound.discard(file.path)
            self.damaged += 1
            logger.error("index file damaged, made again from the log file=%s", file.path.name)

            def write() -> list[IndexEntry]:
                self._write(file.begin, file.end, entries, times)
                return []

            yield write
        yield lambda: found[-FOUND_MAX:][::-1]

    # Loading at the start --------------------------------------------------------------------------

    def _load(self) -> list[IndexFile]:
        """Return the files that cover the log without a gap from its beginning on. Remove all other files."""
        files: list[IndexFile] = []
        unfit, expired = [], []
        names = self._disk.names(self._directory)
        for name in sorted(name for name in names if len(name) == 20 and name.isdecimal()):
            path = self._directory / name
            file = self._header(path)
            fits = file is not None and file.end > self._log.min_offset and file.end <= self._log.max_offset
            if fits and file is not None:
                fits = file.begin == files[-1].end if files else file.begin <= self._log.min_offset
            if fits and file is not None:
                files.append(file)
            elif file is not None and file.end <= self._log.min_offset:
                expired.append(path)
            else:
                unfit.append(path)
        for path in expired:
            try:
                self._disk.remove(path)
            except OSError as error:  # the file does no harm, and the next start tries it again
                logger.error("old files not removed error=%s", error)
        for path in (*unfit, *(self._directory / name for name in names if name.endswith(".tmp"))):
            self._disk.remove(path)
        if unfit:
            # Sync the removal. Otherwise a power cut could bring a file back after the log got new content at
            # the same offsets. The file would then count as the index of this content.
            self._disk.sync_directory(self._directory)
            logger.info("index files removed count=%s", len(unfit))
        return files

    def _header(self, path: Path) -> IndexFile | None:
        fd = self._disk.open(path)
        try:
            head, size = self._disk.read(fd, _HEAD.size, 0), self._disk.size(fd)
        finally:
            self._disk.close(fd)
        if len(head) < _HEAD.size:
            return None
        magic, begin, end, first_ms, last_ms, count, checksum = _HEAD.unpack(head)
        if (
            magic != _MAGIC
            or size != _HEAD.size + count * _ENTRY.size
            or begin != int(path.name)
            or end <= begin
        ):
            return None
        return IndexFile(path, begin, end, first_ms, last_ms, count, checksum)


def _entries(disk: Disk, fd: int, count: int, low: _Place, high: _Place) -> list[IndexEntry]:
    """Return the youngest entries between two sort keys (hash, store time) in a file, the youngest first."""

    def place(index: int) -> _Place:
        data = disk.read(fd, _PLACE.size, _HEAD.size + index * _ENTRY.size)
        value, store_ms = _PLACE.unpack(data)
        return value, store_ms

    first = bisect_left(range(count), low, key=place)
    if first == count or place(first) >= high:
        return []
    end = bisect_left(range(count), high, lo=first, key=place)
    first = max(first, end - FOUND_MAX)
    data = disk.read(fd, (end - first) * _ENTRY.size, _HEAD.size + first * _ENTRY.size)
    return [IndexEntry(store_ms, offset) for _, store_ms, offset in _ENTRY.iter_unpack(data)][::-1]


def _sorted_in_parts(values: Iterable[int]) -> Iterator[int]:
    """Yield numbers in ascending order. Sort parts of them, and merge the sorted parts.

    One sort of a million hashes would stop all other threads for seconds, also the event loop.
    """
    rest = iter(values)
    return merge(*iter(lambda: sorted(islice(rest, _SORTED_AT_ONCE)), []))


def _span(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the shortest time span that includes both time spans. (0, 0) means no time span."""
    if one == (0, 0) or other == (0, 0):
        return other if one == (0, 0) else one
    return min(one[0], other[0]), max(one[1], other[1])
