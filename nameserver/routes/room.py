"""Sizes of a route table, in total and for each host, and the check that a change stays within the limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from routekeeper.nameserver.commands import TableLimits
from routekeeper.nameserver.verdicts import Rejected
from routekeeper.remoting.codes import ResponseCode


class Held(msgspec.Struct):
    """Size of a table's content, in total or for one host.

    Attributes:
        pairs: Number of pairs of a topic and a broker name that has queue data of the topic.
        brokers: Number of brokers' records.
        size: Bytes of names, addresses and other texts together, in UTF-8.
    """

    topics: int = 0
    pairs: int = 0
    brokers: int = 0
    size: int = 0


class Ledger:
    """Sizes of a table's content, in total and for each host.

    The following content counts against the limits of a host:

    - the records of brokers that register from the host;
    - the topics that the host registered first;
    - all pairs of a topic and a broker name, if the host added the latest topic of this broker name.

    The host is the other end of the broker's connection. A client cannot choose this host, in contrast to the
    names and addresses in its registration.

    Attributes:
        whole: Sums of the whole table.
        by_host: Sums by host. Hosts without content have no entry.
    """

    __slots__ = ("by_host", "whole")

    def __init__(self) -> None:
        self.whole = Held()
        self.by_host: dict[str, Held] = {}

    def add(self, host: str, *, topics: int = 0, pairs: int = 0, brokers: int = 0, size: int = 0) -> None:
        """Add content to the sums of a host and of the whole table. Negative numbers subtract content."""
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
"""The four measures of a table.

Each measure has three texts: its attribute in :class:`Held` and :class:`TableLimits`, the words for error
texts, and the setting that bounds the measure.
"""


def excess(ledger: Ledger, limits: TableLimits | None, more: Held, *, moved: Held) -> Rejected | None:
    """Return the refusal of a change that would exceed a limit; None if it exceeds no limit.

    A change that does not enlarge the table exceeds no limit.

    Args:
        more: Content that the change adds to the table.
        moved: Existing content that now counts against another host's limits. After the change, it would
            count against the limits of the change's host.
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
            return refusal(f"the table would hold {count} {words}, allowed: {setting}={most}")
        if host is None:
            continue
        count = getattr(host, measure) + getattr(moved, measure) + added
        share = most * limits.host_percent // 100
        if count > share:
            return refusal(
                f"host {limits.host} would hold {count} {words}, allowed: {share}, that is "
                f"tableHostPercent={limits.host_percent} of {setting}={most}"
            )
    return None


_NOTHING: Final = Held()


def refusal(why: str) -> Rejected:
    """Return the verdict on a command that would exceed a limit, with the reason ``why``."""
    return Rejected(code=ResponseCode.SYSTEM_ERROR, remark=f"not applied: {why}")


def size_of(texts: Iterable[str | None]) -> int:
    """Return the size of texts in bytes of UTF-8. None counts as 0 bytes."""
    return sum([len(text) if text.isascii() else len(text.encode()) for text in texts if text])
