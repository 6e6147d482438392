"""Files of one broker's tables, and lists of callers that wait for a write or a sync.

Writes are divided into steps (:data:`routekeeper.broker.store.steps.Steps`). The caller decides where the
steps run: in the broker's loop and a thread, or in a simulator. This module starts no thread and reads no
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from routekeeper.broker.errors import StoreUnavailable
from routekeeper.broker.store.files import Disk, make_directories, write_state
from routekeeper.broker.store.journal import (
    Change,
    Journal,
    Table,
    begin_journal,
    clear_journals,
    encode_line,
    journal_of,
)
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.store.steps import Steps
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.bodies import DelayOffsetTable
from routekeeper.remoting.properties import escape_properties

#: The reason why data could not be stored, or None if the data are on disk.
Failure = OSError | StoreUnavailable | None
Done = Callable[[Failure], None]

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
SETTINGS: Final = "broker.properties"
NAME: Final = "broker.name"


class StateFile:
    """A file that contains one whole table. The whole file is written again after the table has changed.

    Changes made to the table during a write are stored by the next write.

    Args:
        version: Returns a value that changes with each change of the table.
        snapshot: Returns a function that encodes the current table. That function runs later, in a thread.
        before: Called before each write, in the thread that writes. After an error here, nothing is written.
        saved: Called when a write begins. It returns a function that is called when the data of this write
            are on disk.

    Attributes:
        path: Path of the file.
        before: The argument of the same name.
        failure: The error of the last write, or None if that write succeeded.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        *,
        version: Callable[[], object],
        snapshot: Callable[[], Callable[[], bytes]],
        before: Callable[[], object] = lambda: None,
        saved: Callable[[], Callable[[], None]] = lambda: lambda: None,
    ) -> None:
        self.name = path.name
        self.failure: Failure = None
        self._disk = disk
        self.path = path
        self._version = version
        self._snapshot = snapshot
        self.before = before
        self._saved = saved
        self._on_disk: object = None
        self._waiting: list[Done] = []

    def is_as_loaded(self) -> None:
        """Record that the table was just loaded, so the file on disk has the table's current content."""
        self._on_disk = self._version()

    def when_saved(self, done: Done) -> None:
        """Call ``done`` when the table's current content is on disk, or when its write has failed."""
        self._waiting.append(done)

    def save(self, *, whole: bool = False) -> Steps:
        """Write the table if it has changed. Then report the outcome to the waiting callers.

        The outcome is also stored in ``failure``.

        Args:
            whole: True to write the whole table into its file and to remove the table's journal. False if it
                is enough to write the changes into the journal.
        """
        version = self._version()
        waiting, self._waiting = self._waiting, []
        self.failure = None
        if version != self._on_disk or (whole and self._has_journal):
            try:
                saved = self._saved()
                yield self._prepare(whole=whole)
            except (OSError, StoreUnavailable) as error:
                self.failure = error
            except Exception as error:  # an entry that cannot be encoded must not stop the broker
                self.failure = StoreUnavailable(f"{self.name} cannot be encoded: {error!r}")
            else:
                self._on_disk = version
                saved()
        for done in waiting:
            done(self.failure)

    @property
    def _has_journal(self) -> bool:
        return False

    def _prepare(self, *, whole: bool) -> Callable[[], None]:
        """Return a function that writes the current table. The function runs later, in a thread."""
        encode = self._snapshot()

        def write() -> None:
            self.before()
            write_state(self._disk, self.path, encode())

        return write


class JournaledFile(StateFile):
    """A table's file with a journal. Storing a change takes equally long for small and large tables.

    The file and its backup have the same content. So one journal of later changes is valid for the file and
    for the backup.

    Args:
        damaged: Names of damaged journals, which are renamed instead of deleted.

    Attributes:
        journal: Journal for the next changes, or None if the next write must store the whole table.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        table: Table,
        *,
        saved: Callable[[], Callable[[], None]] = lambda: lambda: None,
        damaged: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(disk, path, version=lambda: table.data_version, snapshot=table.snapshot, saved=saved)
        self._table = table
        self._damaged = damaged
        self.journal: Journal | None = None

    @property
    def _has_journal(self) -> bool:
        return self.journal is not None

    def _prepare(self, *, whole: bool) -> Callable[[], None]:
        changes, journal = self._table.changes.take(), self.journal
        self.journal = None  # append nothing after a failed write, because the last line may be incomplete
        if journal is not None and changes is not None and not whole and not journal.is_full:
            return partial(self._append, journal, changes)
        counter = None if whole else self._table.data_version.counter
        return partial(self.rewrite, self._table.snapshot(journaled=not whole), counter)

    def _append(self, journal: Journal, changes: tuple[Change, ...]) -> None:
        journal.append(encode_line(changes))
        self.journal = journal

    def rewrite(self, encode: Callable[[], bytes], counter: int | None) -> None:
        """Write the whole table into the file.

        Args:
            counter: Counter of the table's version. It becomes part of the name of a new, empty journal. None
                for no journal.
        """
        data = encode()
        make_directories(self._disk, self.path.parent)
        path = None if counter is None else journal_of(self.path, counter)
        if path is not None:
            # Create the journal first, because the file says that it has a journal. If the file were written
            # first, a power cut between the two writes would leave a file without its journal. A journal of
            # this name may exist already, if the table has not changed since the last rewrite. Such a
            # journal is empty, because a change would have increased the counter.
            begin_journal(self._disk, path)
        write_state(self._disk, self.path, data, backup_too=True)
        clear_journals(self._disk, self.path, keep=path, damaged=self._damaged)
        self.journal = None if path is None else Journal(self._disk, path, size_max=len(data))


class LogFlush:
    """Callers that wait for a sync of the log. One sync answers all callers that wait when the sync begins.

    Attributes:
        failure: The error of the last sync, or None if that sync succeeded.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting: list[tuple[int, Done]] = []
        self.failure: Failure = None

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def when_flushed(self, log_offset: int, done: Done) -> None:
        """Call ``done`` when the log is synced up to an offset, or when a sync has failed."""
        self._waiting.append((log_offset, done))

    def flush(self) -> Steps:
        """Sync the log once. Callers that arrive during the sync wait for the next sync."""
        log = self._store.log
        if log.flushed_offset == log.max_offset and not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self.failure = None
        try:
            flushed: int = yield self._store.flush_log
        except StoreUnavailable as error:
            self.failure = error
            flushed = log.flushed_offset
        for log_offset, done in waiting:
            if log_offset <= flushed:
                done(None)
            elif self.failure is not None:
                done(self.failure)
            else:
                self._waiting.append((log_offset, done))


@dataclass(frozen=True, slots=True)
class StateFiles:
    """All files of one broker's tables. The message store has its own files."""

    topics: JournaledFile
    groups: JournaledFile
    offsets: StateFile
    delays: StateFile
    settings: StateFile

    def __iter__(self) -> Iterator[StateFile]:
        return iter((self.topics, self.groups, self.offsets, self.delays, self.settings))


def state_files(
    disk: Disk, directory: Path, state: BrokerState, *, damaged: frozenset[str] = frozenset()
) -> StateFiles:
    """Create the file objects for a broker's tables in a directory.

    Args:
        damaged: Names of journals that were found damaged.
    """
    store = state.store

    def topics_saved() -> Callable[[], None]:
        version, deletions = state.topics.data_version, store.deletions
        return lambda: state.topics_saved(version, deletions)

    def delays() -> Callable[[], bytes]:
        table = DelayOffsetTable(offsets=dict(state.delay_offsets))
        return table.encode

    def settings() -> Callable[[], bytes]:
        data = escape_properties(state.changed_settings)
        return lambda: data

    return StateFiles(
        JournaledFile(disk, directory / TOPICS, state.topics, saved=topics_saved, damaged=damaged),
        JournaledFile(disk, directory / GROUPS, state.groups, damaged=damaged),
        # Sync the log before writing the offsets of consumers and of delayed messages. When a consumer sends
        # a message back, or when a delay ends, the broker writes a copy of the message to the log. The offset
        # then counts the message as consumed. If only the offset were on disk, a power cut would lose the
        # message.
        StateFile(
            disk,
            directory / OFFSETS,
            version=lambda: state.offsets.changed,
            snapshot=state.offsets.snapshot,
            before=store.flush_log,
        ),
        StateFile(
            disk,
            directory / DELAYS,
            version=lambda: dict(state.delay_offsets),
            snapshot=delays,
            before=store.flush_log,
        ),
        StateFile(
            disk,
            directory / SETTINGS,
            version=lambda: dict(state.changed_settings),
            snapshot=settings,
        ),
    )
