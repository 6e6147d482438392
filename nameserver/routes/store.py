"""State of the route table: its revision, the changes since an earlier revision, digests and snapshots."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, assert_never

from routekeeper.nameserver.commands import BaseKind
from routekeeper.nameserver.types import KvEntry

from .brokers import BrokerStore
from .entries import MASK, NameEntry, Record, mark_of
from .image import Image
from .kv import KvStore
from .listings import Listings
from .room import Ledger
from .tombstones import Tombstones
from .topics import TopicStore


class RouteStore:
    """State of a route table. Each command first raises the revision by one, then changes the state.

    Attributes:
        revision: Number of changes applied.
        epoch: Grows with each restore of a snapshot; revisions of two epochs must not be compared. It is
            stored beside the table's snapshot, not in it.
        listings: Lists that were encoded at this revision; they are exchanged together with the state.
        ledger: Sizes of the content, in all and by host.
        limited: A command with limits was applied, so each member understands limits.
    """

    __slots__ = (
        "brokers",
        "epoch",
        "kv",
        "ledger",
        "limited",
        "listings",
        "revision",
        "tombstones",
        "topics",
    )

    def __init__(self, image: Image, tombstones_max: int) -> None:
        self.revision = image.revision
        self.epoch = 0
        self.listings = Listings()
        self.tombstones = Tombstones(image.tombstones, image.floor, tombstones_max)
        self.limited = image.limited
        self.ledger = Ledger()
        self.brokers = BrokerStore(image.names, image.records, self.tombstones, self.ledger)
        self.topics = TopicStore(image.topics, self.tombstones, self.ledger)
        for name, entry in image.names.items():
            self.topics.charge(name, entry.host)
        self.kv = KvStore(image.kv, self.tombstones)

    # -- revisions

    def moved_at(self, kind: BaseKind, key: Hashable) -> int:
        """Return the revision of a thing's last change, addition or removal; at least the floor if absent."""
        present = self.present(kind, key)
        return self.tombstones.removed_at(kind, key) if present is None else present

    def present(self, kind: BaseKind, key: Any) -> int | None:
        """Return the revision of something, None if it is absent."""
        found: Record | NameEntry | KvEntry | None
        match kind:
            case "topic":
                topic = self.topics.entries.get(key)
                return None if topic is None else max(topic.revision, self.brokers.shown_at(topic.queues))
            case "record":
                found = self.brokers.records.get(key)
            case "name":
                found = self.brokers.names.get(key)
            case "key":
                found = self.kv.value(*key)
            case _:
                assert_never(kind)
        return None if found is None else found.revision

    # -- digests

    def digest(self) -> str:
        """Return the digest of what clients can read: 32 hex digits, equal for equal tables in every mode."""
        return _hex(self.brokers.shown + self.topics.shown + self.kv.shown)

    def state_digest(self) -> str:
        """Return the digest of all replicated state, revisions and remembered removals included."""
        rest = self.brokers.rest() + self.topics.rest + self.kv.rest
        gone = self.tombstones
        # a table that never applied a command with limits keeps its former digest
        limited = (True,) if self.limited else ()
        parts = self.digest(), _hex(rest), _hex(gone.mark), self.revision, gone.floor
        return _hex(mark_of(*parts, *limited))

    # -- images

    def copy_for_snapshot(self) -> Image:
        """Return a copy of the state for another thread to encode.

        It costs as much as a few copies of dicts.
        """
        brokers, tombstones = self.brokers, self.tombstones
        return Image(
            revision=self.revision,
            floor=tombstones.floor,
            digest=self.digest(),
            topics=self.topics.entries.copy(),
            names=brokers.names.copy(),
            records=brokers.records.copy(),
            kv=self.kv.spaces.copy(),
            tombstones={kind: removals.copy() for kind, removals in tombstones.by_kind.items()},
            limited=self.limited,
        )

    def adopt(self, other: RouteStore) -> None:
        """Exchange state with another store, in constant time; views stay valid.

        The other store then holds the former state of this one. Its owner may free it when time does not
        matter.
        """
        for part in RouteStore.__slots__:
            mine, others = getattr(self, part), getattr(other, part)
            setattr(self, part, others)
            setattr(other, part, mine)


def _hex(digest: int) -> str:
    return f"{digest & MASK:032x}"
