"""Changes of a table since its file was written, appended to a file beside it: ``STEM-COUNTER.journal``.

Rewriting a table of 90,000 topics for each change takes a quarter of a second. So the file is rewritten now
and then, and the changes since are lines of its journal, whose name has the counter of the file's version::

    5d0b5e3c [{"dataVersion": {...}, "put": [...], "delete": [...]}, ...]

A line begins with the CRC-32 of the rest. It holds the changes that are made durable together: it is synced
before one of them is acknowledged, and before the next line is written. So only a last line can be torn.
Lines whose changes the table has are passed over: a journal may outlive the file that it belongs to.
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

#: A journal below this size is never too large, however small its table is.
JOURNAL_BYTES_MIN: Final = 64 * 1024
#: Changes that wait for the disk; with more of them the whole table is written.
CHANGES_MAX: Final = 10_000
_NAME: Final = re.compile(r"-(-?[0-9]{1,19})\.journal")


class Row(Protocol):
    """One row of a table."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """One version of a table, by what differs from the one before.

    Attributes:
        put: Rows that are new or have changed.
        delete: Names of those that are gone.
        more: Members that only one kind of table has.
    """

    version: DataVersion
    put: tuple[Row, ...] = ()
    delete: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        put = [entry.to_json() for entry in self.put]
        return {"dataVersion": self.version.to_json(), "put": put, "delete": list(self.delete), **self.more}


class Changes:
    """Changes of a table that wait for its journal, bounded in number."""

    def __init__(self) -> None:
        self._noted: list[Change] = []
        self._is_complete = True

    def note(self, change: Change) -> None:
        if len(self._noted) < CHANGES_MAX:
            self._noted.append(change)
        else:
            self._is_complete = False

    def take(self) -> tuple[Change, ...] | None:
        """Return the changes and forget them; None if there were too many to keep."""
        taken = tuple(self._noted) if self._is_complete else None
        self._noted, self._is_complete = [], True
        return taken


class Table(Protocol):
    """A table whose file has a journal.

    Attributes:
        changes: Those since the file or the journal was last written.
        is_journaled: Whether the file that was loaded has a journal.
    """

    changes: Changes
    is_journaled: bool

    @property
    def data_version(self) -> DataVersion: ...

    def snapshot(self, *, journaled: bool = False) -> Callable[[], bytes]:
        """Return what encodes the table as it is now, at any later time and in any thread."""

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Make a change again, unless the table has it; return False if one before it is missing.

        Raises:
            ValueError: If it is none; nothing has changed then.
        """


@dataclass(frozen=True, slots=True)
class JournalsRead:
    """Outcome of reading the journals of a table.

    Attributes:
        is_used: There was a journal, or there should have been one.
        lacks: The table may lack changes that were acknowledged.
        damaged: Names of journals with lines that cannot be read.
    """

    is_used: bool
    lacks: bool
    damaged: frozenset[str] = frozenset()


def encode_line(changes: Iterable[Change]) -> bytes:
    """Return the line that holds some changes."""
    text = orjson.dumps([change.to_json() for change in changes])
    return b"%08x %s\n" % (crc32(text), text)


@dataclass(frozen=True, slots=True)
class Lines:
    """Content of a journal.

    Attributes:
        damaged: Bytes of lines that cannot be read, with others behind them that can.
        torn: Bytes behind the last line that can be read.
    """

    changes: list[Mapping[str, Any]]
    damaged: int
    torn: int


def decode_lines(content: bytes) -> Lines:
    """Return what a journal says; lines behind a damaged one count, as each stands for itself."""
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
    """Return the path of the journal that goes with a version of a table's file."""
    return path.with_name(f"{path.stem}-{counter}.journal")


def journals_of(disk: Disk, path: Path) -> list[Path]:
    """Return the journals that are there of a table, oldest first."""
    found = []
    for name in disk.names(path.parent):
        match = _NAME.fullmatch(name, len(path.stem)) if name.startswith(path.stem) else None
        if match:
            found.append((int(match[1]), path.with_name(name)))
    return [journal for _, journal in sorted(found)]


def read_journals(disk: Disk, path: Path, table: Table) -> JournalsRead:
    """Bring a table that was loaded from ``path`` up to date; log what is missing or damaged.

    Raises:
        OSError: If the disk refuses.
        ValueError: If a line is as it was written, and cannot be used.
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
    """A journal that is being written, from one thread at a time.

    Args:
        size_max: Above it the table is to be rewritten.
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
            OSError: If the disk refused; a part of it may be there, so nothing may be appended any more.
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
    """Make an empty journal whose name is durable.

    Raises:
        OSError: If the disk refused.
    """
    fd = disk.open(path, empty=True)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.sync_directory(path.parent)


def clear_journals(disk: Disk, path: Path, *, keep: Path | None, damaged: frozenset[str]) -> None:
    """Remove a table's journals except one; the last that is damaged stays as ``STEM.journal.damaged``.

    A disk that refuses is left alone: their lines are older than the file.
    """
    with contextlib.suppress(OSError):
        for journal in journals_of(disk, path):
            if journal == keep:
                continue
            if journal.name in damaged:
                disk.rename(journal, path.with_name(f"{path.stem}.journal.damaged"))
            else:
                disk.remove(journal)
