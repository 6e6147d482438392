"""State of the route table: its revision, the changes since an earlier revision, digests and snapshots."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, assert_never

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

_STATE: Final = (
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


class RouteStore:
    """State of a route table. Each command first raises the revision by one, then changes the state.

    Attributes:
        revision: Number of applied changes.
        epoch: Number that grows with each restore of a snapshot. Revisions of two epochs must not be
            compared. The epoch is stored beside the table's snapshot, not in the snapshot.
        listings: Encoded lists for clients. :meth:`adopt` exchanges them together with the state.
        ledger: Sizes of the content, in total and for each host.
        limited: True once a command with limits was applied. All members then understand limits.
        strict: True if :meth:`.table.RouteTable.apply` checks all limits. It is False for a replicated table,
            because members that run different releases must reach equal verdicts. Limits that an older
            release does not know are then checked only before a command is proposed.
    """

    __slots__ = (*_STATE, "strict")

    def __init__(self, image: Image, tombstones_max: int) -> None:
        self.strict = True
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
        """Return the revision of the last change, addition or removal of an entry.

        The removal of an absent entry may have been forgotten. The result is then the revision up to which
        removals may have been forgotten.
        """
        present = self.present(kind, key)
        return self.tombstones.removed_at(kind, key) if present is None else present

    def present(self, kind: BaseKind, key: Any) -> int | None:
        """Return the revision of the entry's last change; None if the entry is absent."""
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
        """Return the digest of the state that clients can read, as 32 hex digits.

        Tables with equal content have equal digests in both modes.
        """
        return _hex(self.brokers.shown + self.topics.shown + self.kv.shown)

    def state_digest(self) -> str:
        """Return the digest of all replicated state, including revisions and remembered removals."""
        rest = self.brokers.rest() + self.topics.rest + self.kv.rest
        gone = self.tombstones
        # Older members compute the digest without this value, and the digests of all members must be equal. A
        # group can have older members only before its first command with limits.
        limited = (True,) if self.limited else ()
        parts = self.digest(), _hex(rest), _hex(gone.mark), self.revision, gone.floor
        return _hex(mark_of(*parts, *limited))

    # -- snapshots

    def copy_for_snapshot(self) -> Image:
        """Return a copy of the state that another thread can encode.

        This call takes only as long as the copies of a few dicts, because the values are shared.
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
        """Exchange the state with another store, in constant time. Existing views of the table stay valid.

        The other store then has this store's former state. It takes long to free a large state, so the owner
        of the other store should free it at a time without urgent work.
        """
        for part in _STATE:
            mine, others = getattr(self, part), getattr(other, part)
            setattr(self, part, others)
            setattr(other, part, mine)


def _hex(digest: int) -> str:
    return f"{digest & MASK:032x}"
