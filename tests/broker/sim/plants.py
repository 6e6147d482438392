"""Planted faults: each removes one sync or another precaution of the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from routekeeper.broker.store.consume_queue import Entry
from routekeeper.broker.store.files import write_state
from routekeeper.broker.store.journal import Journal, begin_journal, clear_journals, journal_of
from routekeeper.broker.store.steps import Steps
from routekeeper.remoting.message import StoredMessage

from .broker import ROOT, Simulation

Forgets = Callable[[str, Path], bool]

LOG, QUEUES, TABLES = ROOT / "commitlog", ROOT / "consumequeue", ROOT / "config"
INDEX = ROOT / "index"

SYNCS: dict[str, Forgets] = {
    "content of the log": lambda kind, path: kind == "data" and LOG in path.parents,
    "names of log files": lambda kind, path: kind == "names" and path == LOG,
    "content of tables": lambda kind, path: kind == "whole" and TABLES in path.parents,
    "content of journals": lambda kind, path: kind == "data" and TABLES in path.parents,
    "names of tables": lambda kind, path: kind == "names" and path == TABLES,
    "names of index files": lambda kind, path: kind == "names" and path == INDEX,
    "content of the checkpoint": lambda kind, path: kind == "whole" and path.parent == ROOT,
    "names of checkpoint and directories": lambda kind, path: kind == "names" and path == ROOT,
}

#: Function that is true for syncs of index files. If these syncs are left out, nothing is lost: the broker
#: rebuilds an index file with a wrong checksum from the log.
INDEX_CONTENT: Forgets = lambda kind, path: kind == "whole" and INDEX in path.parents  # noqa: E731


def _delays_before_the_log(simulation: Simulation) -> None:
    simulation.files.delays.before = lambda: None


def _deletions_before_the_table(simulation: Simulation) -> None:
    simulation.state.store.confirm_topics(0, 1 << 30)


def _rewrite(simulation: Simulation, *, backup_too: bool, journal_first: bool) -> None:
    """Replace the rewriting of the topic table by a variant that lacks a precaution.

    Args:
        backup_too: False to leave the table's former content in the backup.
        journal_first: True to remove the former journals before the table's file has their changes.
    """
    file, disk = simulation.files.topics, simulation.disk

    def rewrite(encode: Callable[[], bytes], counter: int | None) -> None:
        path = None if counter is None else journal_of(file.path, counter)
        if path is not None:
            begin_journal(disk, path)
        if journal_first:
            clear_journals(disk, file.path, keep=path, damaged=frozenset())
        data = encode()
        write_state(disk, file.path, data, backup_too=backup_too)
        clear_journals(disk, file.path, keep=path, damaged=frozenset())
        file.journal = None if path is None else Journal(disk, path, size_max=len(data))

    file.rewrite = rewrite  # type: ignore[method-assign]


def _backup_without_journal(simulation: Simulation) -> None:
    _rewrite(simulation, backup_too=False, journal_first=False)


def _journal_before_the_file(simulation: Simulation) -> None:
    _rewrite(simulation, backup_too=True, journal_first=True)


def _topics_not_waited_for(simulation: Simulation) -> None:
    simulation.state.unsaved_topics = _Nothing()


def _unread_is_dropped(simulation: Simulation) -> None:
    store = simulation.state.store
    read = store.message_at

    def message_at(physical_offset: int) -> StoredMessage | None:
        try:
            return read(physical_offset)
        except OSError:
            return None

    store.message_at = message_at  # type: ignore[method-assign]
    of = store.message_of

    def message_of(topic: str, queue_id: int, offset: int, entry: Entry) -> StoredMessage | None:
        try:
            return of(topic, queue_id, offset, entry)
        except OSError:
            return None

    store.message_of = message_of  # type: ignore[method-assign]


def _waiting_go_with_old_files(simulation: Simulation) -> None:
    store = simulation.state.store
    remove = store.remove_old_files

    def remove_old_files(*, before: float, count_max: int = sys.maxsize, keep_from: int = 0) -> Steps:
        return remove(before=before, count_max=count_max)

    store.remove_old_files = remove_old_files  # type: ignore[method-assign]


def _removal_is_not_noted(simulation: Simulation) -> None:
    simulation.state.store.note_begin = lambda offset: None  # type: ignore[method-assign]


class _Nothing(dict[str, int]):
    def __setitem__(self, key: str, value: int) -> None:
        pass


#: Functions that each remove one precaution from a simulated broker, by the name of the fault. The simulation
#: calls one of them after each start of the broker.
SPOILS: dict[str, Callable[[Simulation], None]] = {
    "delays are saved before what was delivered": _delays_before_the_log,
    "files of a deleted topic go before the table says so": _deletions_before_the_table,
    "the backup of the table is one that its journal does not go with": _backup_without_journal,
    "a journal goes before the file has its changes": _journal_before_the_file,
    "senders do not wait for their topic": _topics_not_waited_for,
    "what the disk does not give once counts as unreadable": _unread_is_dropped,
    "old files go with delayed messages that wait": _waiting_go_with_old_files,
    "old files go before the disk knows where the log begins": _removal_is_not_noted,
}

#: Functions that are true for certain syncs of queue files. If these syncs are left out, nothing is lost, but
#: the broker must rebuild its queues from the log, which takes minutes for a large log.
QUEUE_SYNCS: dict[str, Forgets] = {
    "content of queues": lambda kind, path: kind == "data" and QUEUES in path.parents,
    "names of queue files": lambda kind, path: kind == "names" and QUEUES in (path, *path.parents),
}
