"""Journal of a table: changes since the table's file was written, in a second file in the same folder.

Writing a table of 90,000 topics anew for each change takes a quarter of a second. Therefore the table's file
is rewritten rarely, and later changes become lines of a journal, ``STEM-COUNTER.journal``. COUNTER is the
counter of the version in the table's file. A line has this form::

    5d0b5e3c [{"dataVersion": {...}, "put": [...], "delete": [...]}, ...]

A line begins with the CRC-32 of its text. The changes in one line become durable together. The broker syncs a
line before it acknowledges one of these changes, and before it writes the next line. So after a crash, only
the last line can be incomplete. A journal may remain after its table was rewritten. Therefore the broker
skips lines whose changes are already in the table.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import orjson

from routekeeper.broker.store.files import Disk, read_whole, write_whole
from routekeeper.remoting.route import DataVersion

logger = logging.getLogger(__name__)

#: A journal of at most this size in bytes is never full, even if its table is small.
JOURNAL_BYTES_MIN: Final = 64 * 1024
#: Largest number of changes that wait for the disk. If there are more, the broker writes the whole table.
CHANGES_MAX: Final = 10_000
_NAME: Final = re.compile(r"-(-?[0-9]{1,19})\.journal")


class Row(Protocol):
    """One row of a table."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """One version of a table, as the difference from its previous version.

    Attributes:
        put: New or changed rows.
        delete: Names of removed rows.
        more: JSON members that only one kind of table has.
    """

    version: DataVersion
    put: tuple[Row, ...] = ()
    delete: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        put = [entry.to_json() for entry in self.put]
        return {"dataVersion": self.version.to_json(), "put": put, "delete": list(self.delete), **self.more}


class Changes:
    """Changes of a table that must still be written to its journal, bounded in number."""

    def __init__(self) -> None:
        self._noted: list[Change] = []
        self._is_complete = True

    def note(self, change: Change) -> None:
        if len(self._noted) < CHANGES_MAX:
            self._noted.append(change)
        else:
            self._is_complete = False

    def take(self) -> tuple[Change, ...] | None:
        """Return the changes and forget them, or None if there were more than CHANGES_MAX."""
        taken = tuple(self._noted) if self._is_complete else None
        self._noted, self._is_complete = [], True
        return taken


class Table(Protocol):
    """A table whose file has a journal.

    Attributes:
        changes: Changes since the file or the journal was last written.
        is_journaled: True if the file that was loaded says that the table has a journal.
    """

    changes: Changes
    is_journaled: bool

    @property
    def data_version(self) -> DataVersion: ...

    def snapshot(self, *, journaled: bool = False) -> Callable[[], bytes]:
        """Return a function that encodes the current table. The function may run later, in any thread.

        Args:
            journaled: True to state in the encoded table that it has a journal.
        """

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Apply a journal's change if the table lacks it. Return False if an earlier change is missing.

        Raises:
            ValueError: If the JSON is not a change of this table. The table stays as it was.
        """


@dataclass(frozen=True, slots=True)
class JournalsRead:
    """Outcome of reading the journals of a table.

    Attributes:
        is_used: True if the table has a journal or should have one.
        lacks: True if acknowledged changes may be missing in the table.
        damaged: Names of journals with lines that cannot be read.
    """

    is_used: bool
    lacks: bool
    damaged: frozenset[str] = frozenset()


def encode_line(changes: Iterable[Change]) -> bytes:
    """Return the journal line for some changes."""
    text = orjson.dumps([change.to_json() for change in changes])
    return b"%08x %s\n" % (crc32(text), text)


@dataclass(frozen=True, slots=True)
class Lines:
    """Decoded content of a journal.

    Attributes:
        damaged: Number of bytes in unreadable lines that are followed by a readable line.
        torn: Number of bytes after the last readable line.
    """

    changes: list[Mapping[str, Any]]
    damaged: int
    torn: int


def decode_lines(content: bytes) -> Lines:
    """Decode a journal's content.

    Lines after a damaged line are decoded, too, because each line can be read without the others.
    """
    *lines, rest = content.split(b"\n")
    changes: list[Mapping[str, Any]] = []
    damaged = tail = 0
    for line in lines:
        found = _decode_line(line)
        if found is None:
            tail += len(line) + 1
        else:
            changes += found
            damaged, tail = damaged + tail, 0
    return Lines(changes, damaged, tail + len(rest))


def _decode_line(line: bytes) -> list[Mapping[str, Any]] | None:
    check, _, text = line.partition(b" ")
    if check != b"%08x" % crc32(text):
        return None
    changes: list[Mapping[str, Any]] = orjson.loads(text)
    return changes


def journal_of(path: Path, counter: int) -> Path:
    """Return the path of a journal, for the version counter in the table's file."""
    return path.with_name(f"{path.stem}-{counter}.journal")


def journals_of(disk: Disk, path: Path) -> list[Path]:
    """Return the existing journals of a table, the oldest first."""
    found = []
    for name in disk.names(path.parent):
        match = _NAME.fullmatch(name, len(path.stem)) if name.startswith(path.stem) else None
        if match:
            found.append((int(match[1]), path.with_name(name)))
    return [journal for _, journal in sorted(found)]


def read_journals(disk: Disk, path: Path, table: Table) -> JournalsRead:
    """Apply the journals to a table that was loaded from ``path``. Log missing and damaged journal lines.

    Raises:
        OSError: If the disk fails.
        ValueError: If a line has the right checksum, but its content cannot be used.
    """
    journals = journals_of(disk, path)
    damaged = set()
    lacks = False
    if table.is_journaled and journal_of(path, table.data_version.counter) not in journals:
        logger.error("journal missing file=%s", journal_of(path, table.data_version.counter))
        lacks = True
    for journal in journals:
        lines, version = decode_lines(read_whole(disk, journal)), table.data_version.counter
        try:
            follows = [table.apply(change) for change in lines.changes]
        except ValueError as error:
            raise ValueError(f"{journal} is as it was written, but cannot be read: {error}") from error
        if lines.damaged:
            logger.error("journal damaged file=%s bytes=%s", journal, lines.damaged)
        elif not all(follows):
            logger.error("changes before a journal are missing file=%s known_version=%s", journal, version)
        if lines.torn:
            logger.warning("torn end of a journal dropped file=%s bytes=%s", journal, lines.torn)
        if lines.damaged or lines.torn:
            damaged.add(journal.name)
            lacks = True
        lacks |= not all(follows)
    return JournalsRead(is_used=bool(journals) or lacks, lacks=lacks, damaged=frozenset(damaged))


class Journal:
    """A journal that is being written, by one thread at a time.

    Args:
        size_max: Size in bytes above which the journal is full, so that the table must be rewritten.
    """

    def __init__(self, disk: Disk, path: Path, *, size_max: int) -> None:
        self._disk = disk
        self._path = path
        self._size_max = max(size_max, JOURNAL_BYTES_MIN)
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size > self._size_max

    def append(self, line: bytes) -> None:
        """Write a line and sync it.

        Raises:
            OSError: If the disk failed. A part of the line may be in the file, so the caller must not append
                to this journal again.
        """
        fd = self._disk.open(self._path)
        try:
            write_whole(self._disk, fd, line, self._size)
            self._disk.sync_data(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.cut(fd, self._size)
            raise
        finally:
            self._disk.close(fd)
        self._size += len(line)


def begin_journal(disk: Disk, path: Path) -> None:
    """Create an empty journal whose name is durable.

    Raises:
        OSError: If the disk failed.
    """
    fd = disk.open(path, empty=True)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.sync_directory(path.parent)


def clear_journals(disk: Disk, path: Path, *, keep: Path | None, damaged: frozenset[str]) -> None:
    """Remove a table's journals except ``keep``. Rename damaged journals to ``NAME.damaged`` instead.

    Errors of the disk are ignored. The table's file already has all changes, so the journals do no harm.
    """
    with contextlib.suppress(OSError):
        for journal in journals_of(disk, path):
            if journal == keep:
                continue
            if journal.name in damaged:
                disk.rename(journal, journal.with_name(f"{journal.name}.damaged"))
            else:
                disk.remove(journal)
