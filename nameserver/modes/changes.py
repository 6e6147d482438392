"""The last changes of a route table, for its followers: lists that wait for a change, and watches.

Pure. A change costs the same however many topics it is about: the log keeps the tuples that the table made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import BrokerKey
from routekeeper.nameserver.verdicts import Applied

CHANGES_MAX: Final = 10_000
"""Bound of the remembered changes; the oldest is forgotten first."""

NAMES_MAX: Final = 100_000
"""Bound of the topic names in all remembered changes."""


class Kind(StrEnum):
    """Parts of a table that have a list of their own, for which requests can wait."""

    TOPICS = "topics"
    BROKERS = "brokers"
    KV = "kv"


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change, in the form for followers of the table.

    Attributes:
        topics: Topics whose own entry was changed, added or removed.
        names: Broker names whose change shows in the routes of all their topics.
        left: Brokers that are not listed any more.
    """

    revision: int
    topics: Sequence[str]
    names: Sequence[str]
    left: Sequence[BrokerKey]


class ChangeLog:
    """The changes since some revision, bounded in number and in names.

    Attributes:
        begun: The log has a follower; before that it notes nothing.
        epoch, revision: Epoch and revision of the table after the last noted change. The table can be ahead,
            because the changes of a raft log entry are noted when all its commands are applied.
        changed_at: Revision of the last change by kind; never below the true one.
    """

    def __init__(self, *, changes_max: int = CHANGES_MAX, names_max: int = NAMES_MAX) -> None:
        self._changes_max = changes_max
        self._names_max = names_max
        self._changes: deque[Change] = deque()
        self._names = 0
        self._floor = 0
        self.begun = False
        self.epoch = self.revision = 0
        self.changed_at = dict.fromkeys(Kind, 0)

    def begin(self, view: RouteView) -> None:
        """Begin to note changes. Earlier ones are unknown."""
        self.begun = True
        self.restart(view)

    def restart(self, view: RouteView) -> None:
        """Forget everything, because the table is another one."""
        self._forget(view.revision)
        self.epoch, self.revision = view.epoch, view.revision
        self.changed_at = dict.fromkeys(Kind, view.revision)

    def note(self, applied: Applied) -> frozenset[Kind]:
        """Note a change that was applied; return the kinds that differ from before."""
        revision = applied.revision
        if revision <= self.revision:
            return frozenset()  # the log begins after that revision
        kinds = _kinds_of(applied)
        if revision != self.revision + 1:  # the log missed a change, so it cannot name the changes since
            self._forget(revision - 1)
            kinds = _ALL
        self.revision = revision
        for kind in kinds:
            self.changed_at[kind] = revision
        left = tuple(gone.broker for gone in applied.left)
        self._changes.append(Change(revision, applied.topics, applied.names, left))
        self._names += len(applied.topics)
        while len(self._changes) > self._changes_max or self._names > self._names_max:
            oldest = self._changes.popleft()
            self._names -= len(oldest.topics)
            self._floor = oldest.revision
        return kinds

    def since(self, revision: int) -> list[Change] | None:
        """Return the changes above a revision of this epoch, the oldest first; None if some are forgotten."""
        if revision < self._floor:
            return None
        found = []
        for change in reversed(self._changes):
            if change.revision <= revision:
                break
            found.append(change)
        found.reverse()
        return found

    def _forget(self, floor: int) -> None:
        self._changes.clear()
        self._names = 0
        self._floor = floor


_ALL: Final = frozenset(Kind)
_ROUTES: Final = frozenset({Kind.TOPICS, Kind.BROKERS})
_RECORD: Final = frozenset({Kind.BROKERS})
_KV: Final = frozenset({Kind.KV})


def _kinds_of(applied: Applied) -> frozenset[Kind]:
    shows = bool(applied.topics or applied.names)
    if applied.kv_changed:
        return _ALL if shows else _KV
    return _ROUTES if shows else _RECORD
