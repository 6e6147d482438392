"""The KV configuration of a route table, and the numbers that it adds to the table's digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.nameserver.types import KvEntry

from .entries import mark_of
from .tombstones import Tombstones

KV_ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Largest size in bytes of the namespace, the key and the value of one entry together, in UTF-8."""
KV_NAME_BYTES_MAX: Final = 1024
"""Largest size in bytes of a namespace and a key together, in UTF-8.

The bound is needed because the table remembers namespace and key for a while after a removal.
"""
KV_BYTES_MAX: Final = 3 * 1024 * 1024
"""Largest size in bytes of the whole configuration, as measured by :func:`size_of`.

Because of this bound, an import fits into one command. The KV file also stays far below the limit for files
that are read at the start.
"""
_ENTRY_OVERHEAD: Final = 64
"""Bytes that each entry and each namespace counts in addition to its texts."""


def text_size(*texts: str | None) -> int:
    """Return the size in bytes of the texts of an entry, or of a namespace.

    Raises:
        ValueError: A text is not valid Unicode.
    """
    return sum(len(text.encode()) for text in texts if text is not None)


def size_of(table: Mapping[str, Mapping[str, str | None]]) -> int:
    """Return the number of bytes of a whole KV configuration that counts against :data:`KV_BYTES_MAX`."""
    return sum(
        _counted(namespace) + sum(_counted(key, value) for key, value in values.items())
        for namespace, values in table.items()
    )


def _counted(*texts: str | None) -> int:
    return text_size(*texts) + _ENTRY_OVERHEAD


class KvStore:
    """Values by namespace and key. The caller passes each change's revision.

    Attributes:
        spaces: Values by namespace and key. A namespace is never removed. Its map is never changed, only
            replaced.
        shown: Number that this store adds to the digest of the state that clients see.
        rest: Number that this store adds to the digest of the other replicated state. Removed entries are not
            counted here.
        size: Size of the whole configuration in bytes (see :func:`size_of`).
    """

    __slots__ = ("_tombstones", "rest", "shown", "size", "spaces")

    def __init__(self, spaces: Mapping[str, Mapping[str, KvEntry]], tombstones: Tombstones) -> None:
        self._tombstones = tombstones
        self.spaces: dict[str, Mapping[str, KvEntry]] = {}
        self.shown = self.rest = self.size = 0
        for namespace, values in spaces.items():
            self.add_namespace(namespace)
            self.spaces[namespace] = values
            for key, entry in values.items():
                self._count(namespace, key, entry, 1)

    def value(self, namespace: str, key: str) -> KvEntry | None:
        """Return one value; None if the key does not exist."""
        return self.spaces.get(namespace, {}).get(key)

    def add_namespace(self, namespace: str) -> None:
        if namespace not in self.spaces:
            self.spaces[namespace] = {}
            self.size += _counted(namespace)
            self.shown += mark_of("s", namespace)

    def excess(self, namespace: str, key: str, value: str | None) -> int:
        """Return the size in bytes that the configuration would have after a put, if it is too large; else 0.

        The size is too large if it is above :data:`KV_BYTES_MAX` and above the present size. The caller then
        refuses the put.
        """
        more = _counted(key, value) + (0 if namespace in self.spaces else _counted(namespace))
        before = self.value(namespace, key)
        size = self.size + more - (0 if before is None else _counted(key, before.value))
        return size if size > KV_BYTES_MAX and size > self.size else 0

    def put(self, namespace: str, key: str, entry: KvEntry | None, revision: int) -> None:
        """Store a value, or remove the key if ``entry`` is None."""
        self.add_namespace(namespace)
        values = dict(self.spaces[namespace])
        before = values.pop(key, None)
        if before is not None:
            self._count(namespace, key, before, -1)
        if entry is not None:
            values[key] = entry
            self._count(namespace, key, entry, 1)
        self.spaces[namespace] = values
        self._tombstones.note("key", (namespace, key), revision, present=entry is not None)

    def _count(self, namespace: str, key: str, entry: KvEntry, sign: int) -> None:
        self.size += sign * _counted(key, entry.value)
        self.shown += sign * mark_of("k", namespace, key, entry.value)
        self.rest += sign * mark_of("K", namespace, key, entry.revision)
