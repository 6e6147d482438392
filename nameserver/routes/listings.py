"""Encoded lists for clients, kept as long as their table does not change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

#: Largest size in bytes of all kept lists together. A list of 100,000 topics has 3 MB.
LISTINGS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Lists below this size in bytes are not kept but made anew for each request. Otherwise a client could fill
#: the memory: it could ask for many clusters that do not exist, and each short list would be kept.
_WORTH_KEEPING: Final = 4 * 1024


class Listings:
    """The lists of one revision of a table."""

    __slots__ = ("_kept", "_revision")

    def __init__(self) -> None:
        self._revision = 0
        self._kept: dict[Hashable, bytes] = {}

    def get(self, revision: int, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the list that is kept for this revision and key, or make the list."""
        if revision != self._revision:
            self._kept.clear()
            self._revision = revision
        found = self._kept.get(key)
        if found is None:
            found = make()
            if _WORTH_KEEPING <= len(found) <= LISTINGS_BYTES_MAX - sum(map(len, self._kept.values())):
                self._kept[key] = found
        return found
