"""The tables of one broker on disk, and who waits for them and for the log (no thread, no clock).

Work goes in steps (:data:`routekeeper.broker.steps.Steps`), so that whoever drives it decides where it runs:
the broker's loop and a thread, or a simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routekeeper.broker.errors import StoreUnavailable
from routekeeper.broker.files import Disk, write_state
from routekeeper.broker.state import BrokerState
from routekeeper.broker.steps import Steps
from routekeeper.broker.store import MessageStore
from routekeeper.remoting.bodies import DelayOffsetTable
from routekeeper.remoting.properties import escape_properties

#: Why something is not on disk; None: it is.
Failure = OSError | StoreUnavailable | None
Done = Callable[[Failure], None]

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
SETTINGS: Final = "broker.properties"
NAME: Final = "broker.name"


class StateFile:
    """One file that is rewritten as a whole when its table has changed.

    Writes are collected: what changes while one is under way goes into the next.

    Args:
        version: Returns what differs after each change of the table.
        snapshot: Returns what encodes the table as it is now, later in a thread.
        before: What must have succeeded, in that thread, before the file may say so.
        saved: Called as a write begins; its result is called when that write is on disk.
        backup_too: Returns, as a write begins, whether the backup must not stay as it is.

    Attributes:
        failure: Why the last write failed.
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
        backup_too: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = path.name
        self.failure: Failure = None
        self._disk = disk
        self._path = path
        self._version = version
        self._snapshot = snapshot
        self._before = before
        self._saved = saved
        self._backup_too = backup_too
        self._on_disk: object = None
        self._waiting: list[Done] = []

    def is_as_loaded(self) -> None:
        """Say that the file holds what the table does."""
        self._on_disk = self._version()

    def when_saved(self, done: Done) -> None:
        """Call ``done`` when what the table holds now is on disk, or could not be written."""
        self._waiting.append(done)

    def save(self) -> Steps:
        """Write the table if it has changed; the outcome is told to those who wait, and kept."""
        version = self._version()
        waiting, self._waiting = self._waiting, []
        self.failure = None
        if version != self._on_disk:
            try:
                saved = self._saved()
                encode, backup_too = self._snapshot(), self._backup_too()
                yield lambda: self._write(encode, backup_too=backup_too)
            except (OSError, StoreUnavailable) as error:
                self.failure = error
            except Exception as error:  # one entry that cannot be encoded must not end the broker
                self.failure = StoreUnavailable(f"{self.name} cannot be encoded: {error!r}")
            else:
                self._on_disk = version
                saved()
        for done in waiting:
            done(self.failure)

    def _write(self, encode: Callable[[], bytes], *, backup_too: bool) -> None:
        self._before()
        write_state(self._disk, self._path, encode(), backup_too=backup_too)


class LogFlush:
    """Syncs the log for all who wait for it, as far as they wait at once.

    Attributes:
        failure: Why the last sync failed.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._waiting: list[tuple[int, Done]] = []
        self.failure: Failure = None

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def when_flushed(self, log_offset: int, done: Done) -> None:
        """Call ``done`` when everything below an offset is synced, or the disk refused."""
        self._waiting.append((log_offset, done))

    def flush(self) -> Steps:
        """Sync once; who came meanwhile waits for the next time."""
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
    """All files of one broker besides its store's."""

    topics: StateFile
    groups: StateFile
    offsets: StateFile
    delays: StateFile
    settings: StateFile

    def __iter__(self) -> Iterator[StateFile]:
        return iter((self.topics, self.groups, self.offsets, self.delays, self.settings))


def state_files(disk: Disk, directory: Path, state: BrokerState) -> StateFiles:
    """Return the files of a broker's tables in their directory."""
    store = state.store

    def topics_saved() -> Callable[[], None]:
        version, deletions = state.topics.data_version, store.deletions
        return lambda: state.topics_saved(version, deletions)

    def offsets() -> Callable[[], bytes]:
        data = state.offsets.to_table().encode()
        return lambda: data

    def delays() -> Callable[[], bytes]:
        table = DelayOffsetTable(offsets=dict(state.delay_offsets))
        return table.encode

    def settings() -> Callable[[], bytes]:
        data = escape_properties(state.changed_settings)
        return lambda: data

    return StateFiles(
        StateFile(
            disk,
            directory / TOPICS,
            version=lambda: state.topics.data_version,
            snapshot=state.topics.snapshot,
            saved=topics_saved,
            # With an older backup their topics would come back.
            backup_too=lambda: store.has_unconfirmed_deletions,
        ),
        StateFile(
            disk,
            directory / GROUPS,
            version=lambda: state.groups.data_version,
            snapshot=state.groups.snapshot,
        ),
        # What was consumed, sent back or delivered is in the log before these say that it is done with.
        StateFile(
            disk,
            directory / OFFSETS,
            version=lambda: state.offsets.changed,
            snapshot=offsets,
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
