"""The route table's memory of removed things."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Final, get_args

from routekeeper.nameserver.commands import BaseKind

from .entries import MASK, mark_of, mark_of_topic

TOMBSTONES_MAX: Final = 100_000
"""Bound of the removals that are remembered one by one. Above it, one floor revision replaces the older half.
The floor can only cause a second decision on a command; it never lets a command overwrite something newer.
"""


_NOTHING: Final[Mapping[str, int]] = {}


class Tombstones:
    """Removals by kind and key, with the revision of each, and their part of the digest of all state.

    Attributes:
        max: Bound of the removals, see :data:`TOMBSTONES_MAX`.
        by_kind: Kind to key to the revision of its removal. The code that stores topics also writes their
            removals here, see :meth:`topics_moved`.
        floor: A thing that is neither present nor listed was removed at or before this revision, or never
            existed.
        mark: Number for the removals in the digest of all state.
    """

    __slots__ = ("_marks_at", "by_kind", "floor", "mark", "max")

    def __init__(self, by_kind: Mapping[BaseKind, Mapping[Hashable, int]], floor: int, maximum: int) -> None:
        self.max = maximum
        self.by_kind: dict[BaseKind, dict[Hashable, int]] = {
            kind: dict(by_kind.get(kind, {})) for kind in get_args(BaseKind)
        }
        self.floor = floor
        # By revision: the marks of its removals, added up and multiplied by it. Without these, the removals
        # that stay would all be hashed again when the floor rises: 40 ms in one step.
        self._marks_at: dict[int, int] = {}
        for kind, removals in self.by_kind.items():
            for key, removed_at in removals.items():
                mark = mark_of_topic(str(key)) if kind == "topic" else mark_of(kind, key)
                self._marks_at[removed_at] = self._marks_at.get(removed_at, 0) + mark * removed_at
        self.mark = sum(self._marks_at.values()) & MASK

    def removed_at(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision of a removal; the floor if it is not listed."""
        return max(self.by_kind[kind].get(key, 0), self.floor)

    def note(self, kind: BaseKind, key: Hashable, revision: int, *, present: bool) -> None:
        """Remember a removal, or forget it when the thing exists again."""
        removals = self.by_kind[kind]
        removed_at = removals.pop(key, None)
        if removed_at is not None:
            self._add(removed_at, -mark_of(kind, key))
        if not present:
            removals[key] = revision
            self._add(revision, mark_of(kind, key))
            self._bound()

    def topics_moved(self, marks: Mapping[int, int], removed: Mapping[str, int]) -> None:
        """Remember removals of topics, and note that others were taken out of :attr:`by_kind`.

        Args:
            marks: By the revision of removals: the sum of their topics' marks, less than 0 if taken out.
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
        """Forget the older half of the removals if there are too many, and raise the floor above them.

        Args:
            removed: Removals of topics that are to be put into :attr:`by_kind`, all of one revision. They
                come last, because a large mapping takes long to grow.
        """
        kinds = self.by_kind
        if sum(map(len, kinds.values())) + len(removed) <= self.max:
            kinds["topic"].update(removed)
            return
        # By revision, not by order of insertion: a restored table has another order.
        revisions = sorted(chain(*(removals.values() for removals in kinds.values()), removed.values()))
        floor = self.floor = revisions[len(revisions) // 2]
        for kind, removals in kinds.items():
            kinds[kind] = {key: at for key, at in removals.items() if at > floor}
        if removed and next(iter(removed.values())) > floor:
            kinds["topic"].update(removed)
        self._marks_at = {at: mark for at, mark in self._marks_at.items() if at > floor}
        self.mark = sum(self._marks_at.values()) & MASK
