"""The last events of one nameserver, for people: a bounded number of each kind.

Pure: instants are passed in (wall clock, integer ms). Strangers can cause some kinds at any rate. So each
kind has a bounded list of its own, and a flood of one kind displaces no other event.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec

EVENTS_PER_KIND: Final = 200
"""Bound of the remembered events of each kind; the oldest is forgotten first."""
REPEATS_WITHIN_MS: Final = 10_000
"""A repeated event within this time is only counted; it makes no new entry."""
TEXT_MAX: Final = 200
"""Bound of each text of an event in characters, because strangers choose these texts."""


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
        at_ms: Time of its first occurrence.
        until_ms: Time of its last occurrence.
        kind: One of :class:`EventKind`; a newer release may have more.
        subject: The member, broker, topic or other thing that it is about.
        by: The peer that requested it; empty if none did.
        count: How often it happened.
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
    """The last events.

    Attributes:
        number: Number of the last change of an event, 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._rings: dict[EventKind, deque[TimelineEvent]] = {
            kind: deque(maxlen=EVENTS_PER_KIND) for kind in EventKind
        }

    def note(
        self, kind: EventKind, *, at_ms: int, subject: str, detail: str = "", by: str = "", count: int = 1
    ) -> None:
        """Note an event, or count it if it repeats the last one of its kind."""
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
        """Return the events that came or changed after a number, in the order of their last change."""
        found = [event for event in chain.from_iterable(self._rings.values()) if event.number > number]
        return sorted(found, key=lambda event: event.number)


class GroupNotes:
    """Compares a raft group with its state at the last call, and notes changes: leader, contact, refusals."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._leader: tuple[str, int] | None = None
        self._in_contact: bool | None = None
        self._refused = (0, 0)

    def look(
        self, *, at_ms: int, leader: str | None, term: int, in_contact: bool, refused: tuple[int, int]
    ) -> None:
        """Compare the group with the last call.

        Args:
            refused: Reads and writes refused since the start.
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
