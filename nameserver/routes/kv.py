"""The KV configuration of a route table, and its part of the digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .entries import KvEntry, mark_of
from .tombstones import Tombstones

_NO_VALUES: Final[Mapping[str, KvEntry]] = {}


class KvStore:
    """Values by namespace and key; who changes them names the revision of the change.

    Attributes:
        spaces: By namespace, by key. A namespace that was there once stays, and its map is replaced, never
            changed.
        seen: Whether there ever was a namespace.
        shown: Part of the digest of what clients see.
        rest: Part of the digest of what is replicated beside that, but for removals.
    """

    __slots__ = ("_tombstones", "rest", "seen", "shown", "spaces")

    def __init__(self, tombstones: Tombstones) -> None:
        self._tombstones = tombstones
        self.spaces: dict[str, Mapping[str, KvEntry]] = {}
        self.seen = False
        self.shown = 0
        self.rest = 0

    def value(self, namespace: str, key: str) -> KvEntry | None:
        """Return one value, None if there is none."""
        return self.spaces.get(namespace, _NO_VALUES).get(key)

    def add_namespace(self, namespace: str) -> None:
        if namespace not in self.spaces:
            self.spaces[namespace] = {}
            self.shown += mark_of("s", namespace)
        self.seen = True

    def put(self, namespace: str, key: str, entry: KvEntry | None, revision: int) -> None:
        """Put a value, or with None remove it."""
        self.add_namespace(namespace)
        values = dict(self.spaces[namespace])
        before = values.pop(key, None)
        if before is not None:
            self.shown -= mark_of("k", namespace, key, before.value)
            self.rest -= mark_of("K", namespace, key, before.revision)
        if entry is not None:
            values[key] = entry
            self._add_marks(namespace, key, entry)
        self.spaces[namespace] = values
        self._tombstones.note("key", (namespace, key), revision, present=entry is not None)

    def take(self, spaces: Mapping[str, Mapping[str, KvEntry]], *, seen: bool) -> None:
        """Take over what an image has; there is nothing yet."""
        for namespace, values in spaces.items():
            self.add_namespace(namespace)
            self.spaces[namespace] = values
            for key, entry in values.items():
                self._add_marks(namespace, key, entry)
        self.seen = seen

    def _add_marks(self, namespace: str, key: str, entry: KvEntry) -> None:
        self.shown += mark_of("k", namespace, key, entry.value)
        self.rest += mark_of("K", namespace, key, entry.revision)
