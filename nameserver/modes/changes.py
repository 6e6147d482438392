"""The last changes of a route table, for requests that wait for a change, and for watches.

This module does no I/O. The log stores the table's own tuples without a copy, so the time to store a change
does not depend on its number of topics.
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
"""Largest number of remembered changes. Above this number, the oldest change is forgotten."""

NAMES_MAX: Final = 100_000
"""Largest number of topic names in all remembered changes together."""


class Kind(StrEnum):
    """The kinds of lists that a client can read. A request can wait for a change of such a list."""

    TOPICS = "topics"
    BROKERS = "brokers"
    KV = "kv"


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change of the table, with the values that waiting requests and watches need.

    Attributes:
        topics: Topics whose own entry was changed, added or removed.
        names: Broker names whose change is visible in the routes of all their topics.
        left: Brokers that the table no longer lists.
    """

    revision: int
    topics: Sequence[str]
    names: Sequence[str]
    left: Sequence[BrokerKey]


class ChangeLog:
    """The table's last changes. Their number and the number of their topic names are bounded.

    Attributes:
        begun: True once a request or a watch waits for changes. Before this time, the log stores nothing.
        epoch, revision: Epoch and revision of the table after the last stored change. The table's own
            revision may be greater, because the changes of a raft log entry are stored only after all
            commands of the entry are applied.
        changed_at: Revision of the last change, by kind of list. It may be too high: a client then only reads
            an unchanged list again. It is never too low: otherwise a client would miss a change.
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
        """Begin to store changes. The log knows no earlier changes."""
        self.begun = True
        self.restart(view)

    def restart(self, view: RouteView) -> None:
        """Forget all changes, because another table has replaced the former table."""
        self._forget(view.revision)
        self.epoch, self.revision = view.epoch, view.revision
        self.changed_at = dict.fromkeys(Kind, view.revision)

    def note(self, applied: Applied) -> frozenset[Kind]:
        """Store an applied change, and return the kinds of lists that may have changed."""
        revision = applied.revision
        if revision <= self.revision:
            return frozenset()  # Ignore a change from before the log began.
        kinds = _kinds_of(applied)
        if revision != self.revision + 1:  # The log missed a change, so forget the changes before the gap.
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
        """Return the changes after a revision of this epoch, oldest first; None if one of them is missing."""
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
