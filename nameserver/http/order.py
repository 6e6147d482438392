"""A table's topic names in sorted order, updated in steps.

The time to read a page does not depend on the table's size.

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from routekeeper.nameserver.modes.changes import ChangeLog
from routekeeper.nameserver.routes.sorting import sorting
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.remoting.steps import STEP, Steps, in_chunks


class TopicOrder:
    """The sorted topics of a table. A reader first calls :meth:`catching_up` to apply the table's changes.

    Only one task at a time may use this object. Between two steps of an update, the names are incomplete.

    Args:
        view: Function that returns the current view of the table.
    """

    def __init__(self, view: Callable[[], RouteView], log: ChangeLog) -> None:
        self._view = view
        self._log = log
        self._at: tuple[int, int] | None = None  # epoch and revision of the last applied change
        self._blocks: list[list[str]] = []  # the sorted names; no block is empty
        self._lasts: list[str] = []  # the last name of each block

    def catching_up(self) -> Steps[None]:
        """Apply all changes in the change log, in steps. Include changes that arrive between the steps."""
        log = self._log
        while self._at != (log.epoch, log.revision):
            at = self._at
            changes = None if at is None or at[0] != log.epoch else log.since(at[1])
            if changes is None:
                yield from self._building()
                continue
            for change in changes:
                for chunk in in_chunks(change.topics):
                    view = self._view()
                    for topic in chunk:
                        if view.topic(topic) is None:
                            self._remove(topic)
                        else:
                            self._add(topic)
                    yield
                if log.epoch != at[0]:  # type: ignore[index]  # there is no list of changes without it
                    break
                self._at = log.epoch, change.revision

    def _building(self) -> Steps[None]:
        at = self._log.epoch, self._log.revision
        names = yield from sorting(self._view().topic_names())
        self._blocks = [names[start : start + STEP] for start in range(0, len(names), STEP)]
        self._lasts = [block[-1] for block in self._blocks]
        self._at = at

    def names(self) -> list[str]:
        """Return all names, sorted."""
        found: list[str] = []
        for block in self._blocks:
            found += block
        return found

    def after(self, name: str | None, prefix: str = "") -> Iterator[str]:
        """Yield the sorted names that begin with ``prefix``; if ``name`` is given, only names after it.

        The iterator is valid until a name is added or removed.
        """
        if name is None or name < prefix:
            place, find = prefix, bisect_left
        else:
            place, find = name, bisect_right
        start = find(self._lasts, place)
        for block in islice(self._blocks, start, None):
            first = find(block, place) if block[0] <= place else 0
            for topic in islice(block, first, None):
                if not topic.startswith(prefix):
                    return
                yield topic

    def _add(self, topic: str) -> None:
        place = bisect_left(self._lasts, topic)
        if place == len(self._blocks):
            if not self._blocks:
                self._blocks, self._lasts = [[topic]], [topic]
                return
            place -= 1
        block = self._blocks[place]
        at = bisect_left(block, topic)
        if at < len(block) and block[at] == topic:
            return
        block.insert(at, topic)
        if len(block) <= 2 * STEP:
            self._lasts[place] = block[-1]
            return
        halves = block[:STEP], block[STEP:]
        self._blocks[place : place + 1] = halves
        self._lasts[place : place + 1] = [half[-1] for half in halves]

    def _remove(self, topic: str) -> None:
        place = bisect_left(self._lasts, topic)
        if place == len(self._blocks):
            return
        block = self._blocks[place]
        at = bisect_left(block, topic)
        if at == len(block) or block[at] != topic:
            return
        del block[at]
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]
