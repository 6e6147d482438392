"""The revisions at which entries were removed from the route table.

The entries are topics, records, broker names and KV keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Final, get_args

from routekeeper.nameserver.commands import BaseKind

from .entries import MASK, mark_of, mark_of_topic

TOMBSTONES_MAX: Final = 100_000
"""Largest number of removals that the table remembers, each with its revision.

Above this number, the table forgets the older half of the removals. For all forgotten removals together, it
remembers only the newest revision, the floor. Because of the floor, a member may have to compute a command a
second time, but no command overwrites newer state.
"""


_NOTHING: Final[Mapping[str, int]] = {}


class Tombstones:
    """The revision of each removal, by kind and key. The removals are part of the digest of all state.

    Attributes:
        max: Largest number of removals (see :data:`TOMBSTONES_MAX`).
        by_kind: Revision of each removal, by kind and then by key. :class:`.topics.Draft` itself deletes
            removals of topics from this mapping, and reports this to :meth:`topics_moved`.
        floor: Revision up to which removals may have been forgotten. An entry that is neither in the table
            nor in ``by_kind`` was removed at or before the floor, or never existed.
        mark: Number that all removals together add to the digest of all state.
    """

    __slots__ = ("_marks_at", "by_kind", "floor", "mark", "max")

    def __init__(self, by_kind: Mapping[BaseKind, Mapping[Hashable, int]], floor: int, maximum: int) -> None:
        self.max = maximum
        self.by_kind: dict[BaseKind, dict[Hashable, int]] = {
            kind: dict(by_kind.get(kind, {})) for kind in get_args(BaseKind)
        }
        self.floor = floor
        # For each revision: the sum of the hashes (marks) of the entries that it removed, times the revision.
        # When old removals are forgotten, their sums are dropped. Without these sums, all remaining removals
        # would have to be hashed again, and one step would take 40 ms.
        self._marks_at: dict[int, int] = {}
        for kind, removals in self.by_kind.items():
            for key, removed_at in removals.items():
                mark = mark_of_topic(str(key)) if kind == "topic" else mark_of(kind, key)
                self._marks_at[removed_at] = self._marks_at.get(removed_at, 0) + mark * removed_at
        self.mark = sum(self._marks_at.values()) & MASK

    def removed_at(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision of an entry's removal.

        If the removal is not remembered, return ``floor``, the revision up to which removals may have been
        forgotten.
        """
        return max(self.by_kind[kind].get(key, 0), self.floor)

    def note(self, kind: BaseKind, key: Hashable, revision: int, *, present: bool) -> None:
        """Remember the removal of an entry.

        If ``present`` is True, forget the removal instead, because the entry exists again.
        """
        removals = self.by_kind[kind]
        removed_at = removals.pop(key, None)
        if removed_at is not None:
            self._add(removed_at, -mark_of(kind, key))
        if not present:
            removals[key] = revision
            self._add(revision, mark_of(kind, key))
            self._bound()

    def topics_moved(self, marks: Mapping[int, int], removed: Mapping[str, int]) -> None:
        """Remember new removals of topics, and update :attr:`mark`.

        Args:
            marks: For each revision, the change of the sum of the hashes (marks) of topics removed at this
                revision. New removals increase the sum. Removals that the caller deleted from
                :attr:`by_kind` decrease the sum.
            removed: The topics that are removed now, each with the present revision.
        """
        for revision, mark in marks.items():
            self._add(revision, mark)
        self._bound(removed)

    def _add(self, revision: int, mark: int) -> None:
        change = mark * revision
        left = self._marks_at.get(revision, 0) + change
        if left:
            self._marks_at[revision] = left
        else:
            self._marks_at.pop(revision, None)
        self.mark = (self.mark + change) & MASK

    def _bound(self, removed: Mapping[str, int] = _NOTHING) -> None:
        """Add removals of topics. If there are too many removals, forget the older half and raise ``floor``.

        Args:
            removed: Removals of topics to put into :attr:`by_kind`, all of one revision. Older removals are
                forgotten first, because it takes long to add many keys to a large mapping.
        """
        kinds = self.by_kind
        if sum(map(len, kinds.values())) + len(removed) <= self.max:
            kinds["topic"].update(removed)
            return
        # Sort by revision, so that all members forget the same removals. The order of insertion can differ
        # between members, for example after one of them was restored from a snapshot.
        revisions = sorted(chain(*(removals.values() for removals in kinds.values()), removed.values()))
        floor = self.floor = revisions[len(revisions) // 2]
        for kind, removals in kinds.items():
            kinds[kind] = {key: at for key, at in removals.items() if at > floor}
        if removed and next(iter(removed.values())) > floor:
            kinds["topic"].update(removed)
        self._marks_at = {at: mark for at, mark in self._marks_at.items() if at > floor}
        self.mark = sum(self._marks_at.values()) & MASK
