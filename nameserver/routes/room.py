"""Room in a route table, in all and for each host, and the check that a change fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from routekeeper.nameserver.commands import TableLimits
from routekeeper.nameserver.verdicts import Rejected
from routekeeper.remoting.codes import ResponseCode


class Held(msgspec.Struct):
    """Counts of things in a table; the sizes are bytes of their texts in UTF-8.

    Attributes:
        pairs: Of a topic and a broker name that has queue data of it.
        brokers: Records.
    """

    topics: int = 0
    pairs: int = 0
    brokers: int = 0
    size: int = 0


class Ledger:
    """Sums of a table's content, kept up to date at a few additions per change.

    A host is charged for the records of its registrations, for topics that it was the first to bring, and for
    the pairs of each broker name to which it was the last to add a topic. A stranger chooses names and
    addresses of brokers, but not the host from which it speaks.

    Attributes:
        whole: Of the table.
        by_host: By host; those that hold nothing are left out.
    """

    __slots__ = ("by_host", "whole")

    def __init__(self) -> None:
        self.whole = Held()
        self.by_host: dict[str, Held] = {}

    def add(self, host: str, *, topics: int = 0, pairs: int = 0, brokers: int = 0, size: int = 0) -> None:
        """Count what a host holds more, or less if a number is below 0."""
        held = self.by_host.get(host)
        if held is None:
            held = self.by_host[host] = Held()
        for counts in (self.whole, held):
            counts.topics += topics
            counts.pairs += pairs
            counts.brokers += brokers
            counts.size += size
        if not (held.pairs or held.size or held.topics or held.brokers):
            del self.by_host[host]


_MEASURES: Final = (
    ("topics", "topics", "tableTopicsMax"),
    ("pairs", "pairs of topic and broker name", "tablePairsMax"),
    ("brokers", "brokers", "tableBrokersMax"),
    ("size", "bytes of names and addresses", "tableBytesMax"),
)
"""Members of :class:`Held` and :class:`TableLimits`, their words, and the settings that bound them."""


def excess(ledger: Ledger, limits: TableLimits | None, more: Held, *, moved: Held) -> Rejected | None:
    """Return why a change may not apply, None if it may. A change that adds nothing always may.

    Args:
        more: What the table would hold more.
        moved: What its host would be charged for that is in the table already.
    """
    if limits is None:
        return None
    host = ledger.by_host.get(limits.host, _NOTHING) if limits.host else None
    for measure, words, setting in _MEASURES:
        added, most = getattr(more, measure), getattr(limits, measure)
        if added <= 0:
            continue
        count = getattr(ledger.whole, measure) + added
        if count > most:
            return _rejected(f"the table would hold {count} {words}, allowed: {setting}={most}")
        if host is None:
            continue
        count = getattr(host, measure) + getattr(moved, measure) + added
        share = most * limits.host_percent // 100
        if count > share:
            return _rejected(
                f"host {limits.host} would hold {count} {words}, allowed: {share}, that is "
                f"tableHostPercent={limits.host_percent} of {setting}={most}"
            )
    return None


_NOTHING: Final = Held()


def _rejected(why: str) -> Rejected:
    return Rejected(code=ResponseCode.SYSTEM_ERROR, remark=f"not applied: {why}")


def size_of(texts: Iterable[str | None]) -> int:
    """Return the bytes of texts in UTF-8; None has none."""
    return sum([len(text) if text.isascii() else len(text.encode()) for text in texts if text])
