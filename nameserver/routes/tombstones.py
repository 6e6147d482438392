"""The route table's memory of removed things."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import Any, Final, get_args

from routekeeper.nameserver.commands import BaseKind

from .entries import MASK, mark_of, mark_of_topic, sum_of_products

TOMBSTONES_MAX: Final = 100_000
"""Bound of the removals that are remembered one by one. Above it, one floor revision replaces the older half.
The floor can only cause a second decision on a command; it never lets a command overwrite something newer.
"""


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

    __slots__ = ("by_kind", "floor", "mark", "max")

    def __init__(self, by_kind: Mapping[BaseKind, Mapping[Hashable, int]], floor: int, maximum: int) -> None:
        self.max = maximum
        self.by_kind: dict[BaseKind, dict[Hashable, int]] = {
            kind: dict(by_kind.get(kind, {})) for kind in get_args(BaseKind)
        }
        self.floor = floor
        self.mark = _mark_of_all(self.by_kind)

    def removed_at(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision of a removal; the floor if it is not listed."""
        return max(self.by_kind[kind].get(key, 0), self.floor)

    def note(self, kind: BaseKind, key: Hashable, revision: int, *, present: bool) -> None:
        """Remember a removal, or forget it when the thing exists again."""
        removals = self.by_kind[kind]
        removed_at = removals.pop(key, None)
        if removed_at is not None:
            self.mark = (self.mark - mark_of(kind, key) * removed_at) & MASK
        if not present:
            removals[key] = revision
            self.mark = (self.mark + mark_of(kind, key) * revision) & MASK
            self._bound()

    def topics_moved(self, marks: int) -> None:
        """Note that removals of topics were put into :attr:`by_kind`, or taken out of it.

        Args:
            marks: Sum of each topic's mark times the revision of its removal, less than 0 if taken out.
        """
        self.mark = (self.mark + marks) & MASK
        self._bound()

    def _bound(self) -> None:
        """Forget the older half of the removals if there are too many, and raise the floor above them."""
        kinds = self.by_kind
        if sum(map(len, kinds.values())) <= self.max:
            return
        # By revision, not by order of insertion: a restored table has another order.
        revisions = sorted(chain.from_iterable(removals.values() for removals in kinds.values()))
        floor = self.floor = revisions[len(revisions) // 2]
        for kind, removals in kinds.items():
            kinds[kind] = {key: at for key, at in removals.items() if at > floor}
        self.mark = _mark_of_all(kinds)


def _mark_of_all(by_kind: Mapping[BaseKind, Mapping[Any, int]]) -> int:
    topics = by_kind["topic"]
    total = sum_of_products([mark_of_topic(str(topic)) for topic in topics], list(topics.values()))
    for kind, removals in by_kind.items():
        if kind != "topic":
            total += sum(mark_of(kind, key) * removed_at for key, removed_at in removals.items())
    return total & MASK
