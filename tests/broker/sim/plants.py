"""Syncs and other precautions taken out, one at a time: each must be found by a seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from routekeeper.remoting.message import StoredMessage

from .broker import ROOT, Simulation

Forgets = Callable[[str, Path], bool]

LOG, QUEUES, TABLES = ROOT / "commitlog", ROOT / "consumequeue", ROOT / "config"
INDEX = ROOT / "index"

SYNCS: dict[str, Forgets] = {
    "content of the log": lambda kind, path: kind == "data" and LOG in path.parents,
    "names of log files": lambda kind, path: kind == "names" and path == LOG,
    "content of tables": lambda kind, path: kind == "whole" and TABLES in path.parents,
    "names of tables": lambda kind, path: kind == "names" and path == TABLES,
    "content of index files": lambda kind, path: kind == "whole" and INDEX in path.parents,
    "names of index files": lambda kind, path: kind == "names" and path == INDEX,
    "content of the checkpoint": lambda kind, path: kind == "whole" and path.parent == ROOT,
    "names of checkpoint and directories": lambda kind, path: kind == "names" and path == ROOT,
}


def _delays_before_the_log(simulation: Simulation) -> None:
    simulation.files.delays._before = lambda: None


def _deletions_before_the_table(simulation: Simulation) -> None:
    simulation.state.store._confirmed = 1 << 30


def _deletions_before_the_backup(simulation: Simulation) -> None:
    simulation.files.topics._backup_too = lambda: False


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


class _Nothing(dict[str, int]):
    def __setitem__(self, key: str, value: int) -> None:
        pass


#: Done to each simulation after each start of its broker.
SPOILS: dict[str, Callable[[Simulation], None]] = {
    "delays are saved before what was delivered": _delays_before_the_log,
    "files of a deleted topic go before the table says so": _deletions_before_the_table,
    "the backup of the table does not know of a deletion": _deletions_before_the_backup,
    "senders do not wait for their topic": _topics_not_waited_for,
    "what the disk does not give once counts as unreadable": _unread_is_dropped,
}

#: Without these nothing is lost, but queues are built anew, which takes minutes for a large log.
QUEUE_SYNCS: dict[str, Forgets] = {
    "content of queues": lambda kind, path: kind == "data" and QUEUES in path.parents,
    "names of queue files": lambda kind, path: kind == "names" and QUEUES in (path, *path.parents),
}
