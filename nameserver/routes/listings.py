"""Encoded lists for clients, kept as long as their table does not change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

#: Bound of the kept lists in bytes. A list of 100,000 topics has 3 MB.
LISTINGS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Lists below this size in bytes are made anew each time. So requests for clusters that do not exist fill no
#: memory.
_WORTH_KEEPING: Final = 4 * 1024


class Listings:
    """The lists of one revision of a table."""

    __slots__ = ("_kept", "_revision")

    def __init__(self) -> None:
        self._revision = 0
        self._kept: dict[Hashable, bytes] = {}

    def get(self, revision: int, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the kept list of this revision of the table, or make it."""
        if revision != self._revision:
            self._kept.clear()
            self._revision = revision
        found = self._kept.get(key)
        if found is None:
            found = make()
            if _WORTH_KEEPING <= len(found) <= LISTINGS_BYTES_MAX - sum(map(len, self._kept.values())):
                self._kept[key] = found
        return found
