"""Encoded lists for clients. A list is used again for further requests until a request needs a newer list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

#: Largest size in bytes of all kept lists together. A list of 100,000 topics has 3 MB.
LISTINGS_BYTES_MAX: Final = 64 * 1024 * 1024
#: Lists below this size in bytes are encoded again for each request. If they were kept, a client could fill
#: the memory with short lists, by requests for many clusters that do not exist.
_WORTH_KEEPING: Final = 4 * 1024


class Listings:
    """The last encoded lists of a table, each with the table's revision at which it was made."""

    __slots__ = ("_kept", "_size")

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[int, bytes]] = {}  # the oldest list is the first entry
        self._size = 0

    def find(self, key: Hashable, *, revision: int) -> bytes | None:
        """Return the kept list for ``key`` if it was made at ``revision`` or later, else None."""
        made_at, found = self._kept.get(key, (-1, b""))
        return found if made_at >= revision else None

    def keep(self, key: Hashable, made: bytes, *, revision: int) -> None:
        """Keep a list that was made at ``revision``, in place of the former list for ``key``.

        If the kept lists exceed their size limit, forget the oldest lists.
        """
        self._forget(key)
        if not _WORTH_KEEPING <= len(made) <= LISTINGS_BYTES_MAX:
            return
        while self._size + len(made) > LISTINGS_BYTES_MAX:
            self._forget(next(iter(self._kept)))
        self._kept[key] = revision, made
        self._size += len(made)

    def _forget(self, key: Hashable) -> None:
        _, former = self._kept.pop(key, (0, b""))
        self._size -= len(former)
