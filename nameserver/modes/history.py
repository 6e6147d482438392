"""A bounded history of the reasons why topics and brokers left the table, as this process saw them.

This module does no I/O and reads no clock. Callers pass Unix times in integer ms.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from operator import attrgetter
from typing import Final, NamedTuple

from routekeeper.nameserver.types import BrokerKey, LeaveReason

from .timeline import Timeline

SUBJECTS_MAX: Final = 10_000
"""Largest number of topics that the history remembers for one change."""

NAMES_MAX: Final = 100_000
"""Largest number of topic names in all remembered changes.

Above this number, the oldest change is forgotten.
"""

EVENTS_MAX: Final = 8
"""Largest number of events that are shown for a topic. These are the topic's last events."""


class Note(StrEnum):
    """Kinds of events that remove nothing from the table. The values are the words that ``explain`` shows."""

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
"""The words for each reason that operators read."""


LEAVING: Final = frozenset(LeaveReason) - {LeaveReason.FENCED}
"""Reasons after which a topic, a broker, or a topic's queues at one broker are no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One applied change that may be the reason why a topic has its present route, or has none."""

    at_ms: int
    reason: LeaveReason | Note
    broker: BrokerKey | None = None
    detail: str = ""


class _Change(NamedTuple):
    number: int
    topics: frozenset[str]
    event: Event


_NUMBER: Final[Callable[[_Change], int]] = attrgetter("number")
_SMALL: Final = 100
"""Largest number of topics of a change that is entered in the index of :class:`History`."""


class History:
    """The last changes of the table. The number of changes and the number of their topics are bounded.

    An index has the changes of each topic. It would take too long to enter a change with more than
    :data:`_SMALL` topics (a large change) into the index. So a search for a topic's changes reads the index,
    and each of the few large changes. A search must be fast, because any client can ask for any topic at any
    rate.

    Attributes:
        departures: Number of brokers that left the table, by reason.
        timeline: The last events of this process.
    """

    def __init__(self) -> None:
        self.departures: Counter[LeaveReason] = Counter()
        self.timeline = Timeline()
        self._changes: deque[_Change] = deque()
        self._large: deque[_Change] = deque()  # the changes with more than _SMALL topics
        # Index: for each topic, its last changes that are not large, oldest first, at most EVENTS_MAX.
        self._small: dict[str, tuple[_Change, ...]] = {}
        self._names = self._number = 0

    @property
    def remembered(self) -> int:
        """Number of changes in this history."""
        return len(self._changes)

    def topics_changed(self, topics: Sequence[str], event: Event) -> None:
        """Store one event for the last :data:`SUBJECTS_MAX` of these topics."""
        kept = frozenset(topics[-SUBJECTS_MAX:])
        if not kept:  # no search finds a change without topics
            return
        self._number += 1
        change = _Change(self._number, kept, event)
        self._changes.append(change)
        self._names += len(kept)
        if len(kept) > _SMALL:
            self._large.append(change)
        else:
            for topic in kept:
                self._small[topic] = (*self._small.get(topic, ())[1 - EVENTS_MAX :], change)
        while self._names > NAMES_MAX:
            self._forget(self._changes.popleft())

    def _forget(self, change: _Change) -> None:
        self._names -= len(change.topics)
        if len(change.topics) > _SMALL:
            self._large.popleft()
            return
        for topic in change.topics:
            changes = self._small[topic]
            if changes[0] is not change:  # the index holds only newer changes of this topic
                continue
            if len(changes) == 1:
                del self._small[topic]
            else:
                self._small[topic] = changes[1:]

    def of_topic(self, topic: str) -> tuple[Event, ...]:
        """Return the last :data:`EVENTS_MAX` events of a topic, oldest first."""
        large = (change for change in self._large if topic in change.topics)
        changes = merge(self._small.get(topic, ()), large, key=_NUMBER)
        return tuple(change.event for change in deque(changes, EVENTS_MAX))


def in_words(reason: LeaveReason | Note) -> str:
    """Return the words that operators see for a reason."""
    return WORDS[reason] if isinstance(reason, LeaveReason) else reason.value
