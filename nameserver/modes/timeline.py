"""The last events of each kind at one nameserver, for people to read.

This module does no I/O and reads no clock. Callers pass Unix times in integer ms. Any client can cause some
kinds of events at any rate. Therefore each kind has its own bounded list, so that a flood of one kind does
not remove events of other kinds.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec

EVENTS_PER_KIND: Final = 200
"""Largest number of remembered events of each kind. Above it, the oldest event of the kind is forgotten."""
REPEATS_WITHIN_MS: Final = 10_000
"""An equal event within this time in ms makes no new entry, but raises the count of the earlier event."""
TEXT_MAX: Final = 200
"""Largest number of characters of each text of an event. It is limited because clients choose these texts."""


class EventKind(StrEnum):
    """Kinds of events on the timeline."""

    LEADER = "leader"
    CONTACT = "contact"
    JOINED = "joined"
    LEFT = "left"
    REFUSED = "refused"
    CHANGED = "changed"


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event at this nameserver.

    Attributes:
        number: Number of this event's last change: an event that is counted again gets a new number.
        at_ms, until_ms: Unix times in ms of the event's first and last occurrence.
        kind: One of :class:`EventKind`; a newer release may have more kinds.
        subject: The member, broker, topic or other object that the event is about.
        by: The peer that requested the change; empty if no peer requested it.
        count: Number of times that the event happened.
    """

    number: int
    at_ms: int
    until_ms: int
    kind: str
    subject: str
    detail: str = ""
    by: str = ""
    count: int = 1


class Timeline:
    """The last events of each kind.

    Attributes:
        number: Number of the last change of an event; 0 before the first event.
    """

    def __init__(self) -> None:
        self.number = 0
        self._rings: dict[EventKind, deque[TimelineEvent]] = {
            kind: deque(maxlen=EVENTS_PER_KIND) for kind in EventKind
        }

    def note(
        self, kind: EventKind, *, at_ms: int, subject: str, detail: str = "", by: str = "", count: int = 1
    ) -> None:
        """Add an event. If it repeats the last event of its kind, only raise that event's count."""
        subject, detail, by = subject[:TEXT_MAX], detail[:TEXT_MAX], by[:TEXT_MAX]
        self.number += 1
        ring = self._rings[kind]
        if ring:
            last = ring[-1]
            repeats = (last.subject, last.detail, last.by) == (subject, detail, by)
            if repeats and 0 <= at_ms - last.until_ms <= REPEATS_WITHIN_MS:
                ring[-1] = msgspec.structs.replace(
                    last, number=self.number, until_ms=at_ms, count=last.count + count
                )
                return
        event = TimelineEvent(
            number=self.number,
            at_ms=at_ms,
            until_ms=at_ms,
            kind=kind,
            subject=subject,
            detail=detail,
            by=by,
            count=count,
        )
        ring.append(event)

    def after(self, number: int) -> list[TimelineEvent]:
        """Return the events whose number is greater than ``number``, in the order of their numbers."""
        found = [event for event in chain.from_iterable(self._rings.values()) if event.number > number]
        return sorted(found, key=lambda event: event.number)


class GroupNotes:
    """Recorder of a raft group's events on the timeline.

    The events are a new leader, the loss and return of contact with the leader, and refused requests.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._leader: tuple[str, int] | None = None
        self._in_contact: bool | None = None
        self._refused = (0, 0)

    def look(
        self, *, at_ms: int, leader: str | None, term: int, in_contact: bool, refused: tuple[int, int]
    ) -> None:
        """Compare the group with its state at the last call, and add events for the differences.

        Args:
            in_contact: True if this member has contact with a leader.
            refused: Two numbers since the process started: refused reads, and refused writes.
        """
        note = self._timeline.note
        if leader is not None and (leader, term) != self._leader:
            self._leader = leader, term
            note(EventKind.LEADER, at_ms=at_ms, subject=leader, detail=f"leads term {term}")
        if in_contact != self._in_contact and (in_contact or self._in_contact is not None):
            words = "contact with the leader found" if in_contact else "contact with the leader lost"
            note(EventKind.CONTACT, at_ms=at_ms, subject=leader or "no leader", detail=words)
        self._in_contact = in_contact
        for word, before, now in zip(("reads", "writes"), self._refused, refused, strict=True):
            if now > before:
                note(
                    EventKind.REFUSED,
                    at_ms=at_ms,
                    subject=word,
                    detail="refused without contact with a leader",
                    count=now - before,
                )
        self._refused = refused
