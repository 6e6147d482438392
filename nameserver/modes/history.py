"""The reasons why topics left the table: a bounded history of this process only.

This module does no I/O and reads no clock: callers pass Unix times in integer ms.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from routekeeper.nameserver.types import BrokerKey, LeaveReason

from .timeline import Timeline

SUBJECTS_MAX: Final = 10_000
"""Largest number of topics that are remembered for one change."""

NAMES_MAX: Final = 100_000
"""Largest number of topic names in all remembered changes; above it the oldest change is forgotten."""

EVENTS_MAX: Final = 8
"""Largest number of events that are shown for a topic: its last events."""


class Note(StrEnum):
    """Kinds of events that are no removals. The values are the words that ``explain`` shows."""

    PERMISSION_WIPED = "write permission wiped by an admin request"
    PERMISSION_ADDED = "write permission added by an admin request"


WORDS: Final[Mapping[LeaveReason, str]] = {
    LeaveReason.CONNECTION_CLOSED: "the broker's connection closed",
    LeaveReason.LEASE_EXPIRED: "the broker was silent for its whole lease",
    LeaveReason.UNREGISTERED: "the broker unregistered",
    LeaveReason.DISPLACED: "another address took the broker's id",
    LeaveReason.MOVED: "the broker registered under another name or id",
    LeaveReason.FENCED: "another address holds the broker's id with a greater state version",
    LeaveReason.DELETED: "the topic was deleted here by an admin request",
    LeaveReason.ABSENT: "the broker's registration no longer had the topic",
}
"""Descriptions of the reasons, as operators read them."""


LEAVING: Final = frozenset(LeaveReason) - {LeaveReason.FENCED}
"""Reasons after which a topic, a broker, or a topic's queues at one broker are no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change that explains the present routes."""

    at_ms: int
    reason: LeaveReason | Note
    broker: BrokerKey | None = None
    detail: str = ""


class History:
    """The last changes, bounded in number and in topic names.

    Storing a change takes the same time for few and for many topics. A search for a topic reads all changes;
    such searches are rare.

    Attributes:
        departures: Number of brokers that left, by reason.
        timeline: The last events of this process.
    """

    def __init__(self) -> None:
        self.departures: Counter[LeaveReason] = Counter()
        self.timeline = Timeline()
        self._changes: deque[tuple[Sequence[str], Event]] = deque()
        self._names = 0

    def topics_changed(self, topics: Sequence[str], event: Event) -> None:
        """Store one event for these topics, but at most for the last :data:`SUBJECTS_MAX` of them."""
        kept = topics[-SUBJECTS_MAX:]
        self._changes.append((kept, event))
        self._names += len(kept)
        while self._names > NAMES_MAX:
            forgotten, _ = self._changes.popleft()
            self._names -= len(forgotten)

    def of_topic(self, topic: str) -> tuple[Event, ...]:
        """Return the last events of a topic, the oldest first; at most :data:`EVENTS_MAX`."""
        events = (event for topics, event in reversed(self._changes) if topic in topics)
        return tuple(islice(events, EVENTS_MAX))[::-1]


def in_words(reason: LeaveReason | Note) -> str:
    """Return the words that operators see for a reason."""
    return WORDS[reason] if isinstance(reason, LeaveReason) else reason.value
