"""Why topics left: a bounded history, of this process only.

Pure: instants are passed in (wall clock, integer ms).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from routekeeper.nameserver.types import BrokerKey, LeaveReason

SUBJECTS_MAX: Final = 10_000
"""Topics that are remembered; the longest unchanged is forgotten first."""


EVENTS_MAX: Final = 8
"""Events that are remembered per topic."""


class Note(StrEnum):
    """What is worth remembering beside departures, in the words that ``explain`` shows."""

    PERMISSION_WIPED = "write permission wiped by an admin request"
    PERMISSION_ADDED = "write permission added by an admin request"


WORDS: Final[Mapping[LeaveReason, str]] = {
    LeaveReason.CONNECTION_CLOSED: "the broker's connection closed",
    LeaveReason.LEASE_EXPIRED: "the broker was not heard for its lease",
    LeaveReason.UNREGISTERED: "the broker unregistered",
    LeaveReason.DISPLACED: "another address took the broker's id",
    LeaveReason.MOVED: "the broker registered under another name or id",
    LeaveReason.FENCED: "another address holds the broker's id with a greater state version",
    LeaveReason.DELETED: "the topic was deleted here by an admin request",
    LeaveReason.ABSENT: "the broker's registration no longer had the topic",
}
"""What an operator reads."""


LEAVING: Final = frozenset(LeaveReason) - {LeaveReason.FENCED}
"""Reasons after which a topic or broker, or its part at one broker, is no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change that explains what is listed."""

    at_ms: int
    reason: LeaveReason | Note
    broker: BrokerKey | None = None
    detail: str = ""


class History:
    """The last events per topic, bounded in both directions."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, deque[Event]] = OrderedDict()

    def topics_changed(self, topics: Sequence[str], event: Event) -> None:
        """Note one event for all of these topics; of more than can be remembered, for the last ones."""
        for topic in topics[-SUBJECTS_MAX:]:
            self._topics.setdefault(topic, deque(maxlen=EVENTS_MAX)).append(event)
            self._topics.move_to_end(topic)
            if len(self._topics) > SUBJECTS_MAX:
                self._topics.popitem(last=False)

    def of_topic(self, topic: str) -> tuple[Event, ...]:
        """Return what is remembered of a topic, the oldest first."""
        return tuple(self._topics.get(topic, ()))


def in_words(reason: LeaveReason | Note) -> str:
    """Return the words for a reason."""
    return WORDS[reason] if isinstance(reason, LeaveReason) else reason.value
