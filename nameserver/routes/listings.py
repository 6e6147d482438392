"""Encoded lists as clients ask for them, kept as long as the table they show does not change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

#: Bytes of lists kept at once. A list of 100,000 topics is 3 MB.
LISTINGS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Shorter lists are made anew each time: whoever asks for clusters that are not there has nothing kept.
_WORTH_KEEPING: Final = 4 * 1024


class Listings:
    """The lists of one revision of a table."""

    __slots__ = ("_bytes", "_kept", "_revision")

    def __init__(self) -> None:
        self._revision: tuple[int, int] | None = None
        self._bytes = 0
        self._kept: dict[Hashable, bytes] = {}

    def get(self, revision: tuple[int, int], key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return a list as it was made at this revision, or make it.

        Args:
            revision: Of the table, after its epoch.
        """
        if revision != self._revision:
            self._kept.clear()
            self._bytes = 0
            self._revision = revision
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        made = make()
        if _WORTH_KEEPING <= len(made) <= LISTINGS_BYTES_MAX - self._bytes:
            self._kept[key] = made
            self._bytes += len(made)
        return made
