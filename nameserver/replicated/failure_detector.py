"""Liveness of brokers over all members: the members' reports to the leader, and the leader's evictions.

A single report evicts no broker. The leader of a term collects the reports in a :class:`FailureDetector`, and
decides by :func:`judge` which brokers to evict.

Evidence means last-seen times and connections of brokers. Members and leader keep copies of each other's
evidence. They send each other only differences: all changes after a version that the receiver has
acknowledged. After a leader change or a restart, the receiver may not have this version. Then its answer
names the version that it has, and the next message starts from that version.

A message carries times of the sender's clock, together with the present reading of that clock. The receiver
computes ages from them, and subtracts each age from the time at which the message arrived. If the message was
delayed, the result is too late by the delay, and never too early. So a silent broker may stay in the table
longer by the delay, but no broker is evicted too early.

This module does no I/O. The caller passes in the time, in seconds of its process's liveness clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, TypeVar

from msgspec.structs import replace

from routekeeper.nameserver.commands import FIRST_FORMAT, Evict
from routekeeper.nameserver.liveness import LEASE_DEFAULT_S, NEVER
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.types import BrokerKey, LeaveReason

from .peer_messages import FORMAT as MESSAGE_FORMAT
from .peer_messages import Acknowledgement, BrokerContact, Hearing, Report, in_parts, size_of

HEARINGS_BYTES: Final = 1024 * 1024
"""Approximate largest size, in bytes, of the list of last-seen times in one acknowledgement."""

FORGET_S: Final = 10 * LEASE_DEFAULT_S
"""Seconds for which a leader keeps the last-seen time of a broker that has no record and no connection."""

UNLISTED_MAX: Final = 20_000
"""Largest number of brokers without a record in the leader's own table of last-seen times, and in its copy of
each member's report. If there are more, the leader forgets the brokers that were last seen longest ago."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class ReportedBy:
    """The leader's copy of one member's last-seen times and connections. Times are on this leader's clock."""

    boot_id: int
    version: int = 0
    counts: bool = False
    understands: int = FIRST_FORMAT
    contacts: dict[BrokerKey, BrokerContact] = field(default_factory=dict)


class FailureDetector:
    """The brokers' last-seen times and connections that all members reported to one term's leader.

    This class decides by them which brokers to evict.

    Args:
        members: Identities of all members, this leader included, because the leader reports to itself, too.
            See :meth:`members_are`.
        prior_term: Term of the previous leader. A report may repeat last-seen times that its sender received
            from a former leader. If the term of that leader is older than ``prior_term``, these times are
            ignored, because the previous leader may have had newer times.
        clock: Time at which this member began to lead.
        judge_after_s: Two maximum election timeouts, in seconds. After this time the leader judges even if
            reports are missing.

    Attributes:
        members: A copy of the last-seen times and connections that each member reported; a member that has
            not reported is missing.
    """

    def __init__(
        self,
        *,
        term: int,
        members: Collection[str],
        prior_term: int,
        clock: float,
        judge_after_s: float,
        known_format: int = FIRST_FORMAT,
    ) -> None:
        """Begin a term.

        Args:
            known_format: Newest command format of which the log certainly has an entry. Every member knows
                this format, because every member applies the entry.
        """
        self.term = term
        self._known_format = known_format
        self._names = frozenset(members)
        self._prior_term = prior_term
        self._leads_since = clock
        self._judge_after_s = judge_after_s
        self.members: dict[str, ReportedBy] = {}
        # Last-seen time and version of each broker; the broker that changed last is at the end.
        self._hearings: dict[BrokerKey, tuple[float, int]] = {}
        self._version = 0
        self._judged: dict[BrokerKey, int] = {}

    def members_are(self, members: Collection[str]) -> None:
        """Use another list of members (rule 11 of docs/raft-rules.md).

        A new member counts after its first report. A removed member does not count any more.
        """
        self._names = frozenset(members)
        self.members = {name: known for name, known in self.members.items() if name in self._names}

    def receive(self, member: str, report: Report, *, clock: float) -> Acknowledgement | None:
        """Store a report and return the answer; None if the report's term or its sender is wrong."""
        if report.term != self.term or member not in self._names:
            return None
        known = self.members.get(member)
        if known is None or known.boot_id != report.boot_id:
            known = self.members[member] = ReportedBy(boot_id=report.boot_id)
        if report.base <= known.version <= report.version:
            offset = clock - report.clock
            handed = report.handed if report.handed_term >= self._prior_term else ()
            for heard in (*report.contacts, *handed):
                # The broker cannot have been seen after the report was made, so a later time is wrong.
                self.note(heard.broker, min(heard.heard_at, report.clock) + offset)
            known.contacts.update({line.broker: _shifted(line, offset) for line in report.contacts})
            known.version = report.version
            known.counts = not report.more
            known.understands = report.understands
        seen = min(report.hearings_seen, self._version)
        hearings, seen_then = ((), seen) if report.more else self._hearings_after(seen)
        return Acknowledgement(
            term=self.term,
            boot_id=report.boot_id,
            version=known.version,
            clock=clock,
            hearings_base=seen,
            hearings_version=seen_then,
            hearings=hearings,
            reads=MESSAGE_FORMAT,
            understood=self.understood(),
        )

    def out_of_contact(self, members: Iterable[str]) -> None:
        """Ignore these members' reports about connections until they report again.

        They lost contact or have a new link, so their last report may be lost.
        """
        for member in members:
            if member in self.members:
                self.members[member].counts = False

    def understood(self) -> int:
        """Return the newest command format that every member understands.

        While a member has not reported yet, its format is unknown, so the result is ``known_format``.
        """
        if len(self.members) < len(self._names):
            return self._known_format
        return min([member.understands for member in self.members.values()])

    def ready(self, clock: float) -> bool:
        """Return True once this leader may judge brokers."""
        return len(self.members) == len(self._names) or clock - self._leads_since >= self._judge_after_s

    def judge(
        self, records: Iterable[Record], *, in_contact: Collection[str], clock: float
    ) -> tuple[Evict, ...]:
        """Return evictions in the order of the records, at most one eviction for each revision of a record.

        Args:
            records: The records of the brokers to judge. The caller passes all records from time to time.
                When a report arrives, the caller at once passes the records of the report's brokers.
            in_contact: Members that this leader saw within two minimum election timeouts, itself included.
        """
        if not self.ready(clock):
            return ()
        counting = [
            self.members[m] for m in sorted(in_contact) if m in self.members and self.members[m].counts
        ]
        # A member that has not reported yet may have a connection with any broker. So without its report, no
        # broker is evicted for a closed connection.
        complete = len(counting) == len(self._names.intersection(in_contact))
        nearest = counting[0].contacts if complete and counting else None
        hearings = self._hearings
        found = []
        for record in records:
            broker = record.broker
            heard = hearings.get(broker)
            if heard is not None and clock - heard[0] <= record.lease_ms / 1000:
                if not complete:
                    continue
                contact = None if nearest is None else nearest.get(broker)
                if contact is not None and contact.connected:
                    continue  # fast path for nearly every broker: judge() would return None, but takes longer
            if self._judged.get(broker) == record.revision:
                continue
            if heard is None:
                # No member has seen the broker. Count its silence from the beginning of this term, and store
                # this time as a last-seen time, so that the next leader gets it. Otherwise each of several
                # leaders with short terms would begin to count anew.
                self.note(broker, self._leads_since)
            reason = judge(
                record,
                [member.contacts.get(broker) for member in counting] if complete else None,
                heard_at=hearings[broker][0],
                clock=clock,
            )
            if reason is not None:
                self._judged[broker] = record.revision
                found.append(Evict(**broker._asdict(), revision=record.revision, reason=reason))
        return tuple(found)

    def removed(self, broker: BrokerKey) -> None:
        """Forget the last-seen time of a broker whose record was removed.

        If the broker registers again, the time of its new record counts (see :meth:`note`).
        """
        self._hearings.pop(broker, None)

    def prune(self, is_listed: Callable[[BrokerKey], bool], *, clock: float) -> None:
        """Forget old brokers without a record.

        A broker is old if it has no connection and has been silent for longer than FORGET_S. If there are
        more than UNLISTED_MAX brokers without a record, the oldest are forgotten, too.
        """

        def stays(broker: BrokerKey, heard_at: float) -> bool:
            return clock - heard_at <= FORGET_S or is_listed(broker)

        self._judged = {b: revision for b, revision in self._judged.items() if is_listed(b)}
        self._hearings = {b: heard for b, heard in self._hearings.items() if stays(b, heard[0])}
        _forget_oldest(self._hearings, is_listed, lambda heard: heard[0])
        for member in self.members.values():
            known = member.contacts
            member.contacts = {b: c for b, c in known.items() if c.connected or stays(b, c.heard_at)}
            _forget_oldest(member.contacts, is_listed, lambda contact: contact.heard_at)

    def note(self, broker: BrokerKey, at: float) -> None:
        """Record the time at which a broker was last seen, or at which its record was made.

        The time at which a record was made counts, too, because this leader may have no report about the
        broker. The report may still be on its way, or the leader may have forgotten it together with a former
        record of the broker.
        """
        if at == NEVER:
            return
        before = self._hearings.get(broker)
        if before is not None and before[0] >= at:
            return
        self._version += 1
        self._hearings.pop(broker, None)  # insert again: the latest change must come last
        self._hearings[broker] = (at, self._version)

    def _hearings_after(self, version: int) -> tuple[tuple[Hearing, ...], int]:
        """Return last-seen times that changed after ``version``, and the version of the last returned change.

        If there are too many changes for one message, return the oldest of them. The next call, with the
        returned version, returns more.
        """
        later = list(takewhile(lambda broker: self._hearings[broker][1] > version, reversed(self._hearings)))
        hearings = (
            Hearing(**broker._asdict(), heard_at=self._hearings[broker][0]) for broker in reversed(later)
        )
        found = next(in_parts(hearings, size_of, HEARINGS_BYTES), [])
        up_to = self._version if len(found) == len(later) else self._hearings[found[-1].broker][1]
        return tuple(found), up_to


def judge(
    record: Record, contacts: Iterable[BrokerContact | None] | None, *, heard_at: float, clock: float
) -> LeaveReason | None:
    """Return the reason to remove a broker's record, or None if the record stays.

    There are two reasons to remove the record (rule 5 of docs/raft-rules.md):

    - The broker is gone. No member in contact with the leader has a connection with the broker. One of these
      members reports that the broker unregistered or that its connection closed, at most one lease ago. The
      record has not changed since.
    - The broker is silent. No member has received a message from it for the length of its lease.

    Args:
        contacts: For each member in contact with the leader, its report about the broker; an item is None if
            the member does not know the broker. If one of these members has not reported yet, pass None in
            place of the list.
        heard_at: The latest known time at which the broker was seen. If it is unknown, pass the time at which
            this leader began to lead.
    """
    lease_s = record.lease_ms / 1000
    known = [contact for contact in contacts or () if contact is not None]
    if not any(contact.connected for contact in known):
        goodbyes = [
            contact.unregistered
            for contact in known
            if contact.closed_at is not None
            and contact.closed_revision == record.revision
            and clock - contact.closed_at <= lease_s
        ]
        if goodbyes:
            return LeaveReason.UNREGISTERED if any(goodbyes) else LeaveReason.CONNECTION_CLOSED
    if clock - heard_at > lease_s:
        return LeaveReason.LEASE_EXPIRED
    return None


def _forget_oldest(
    known: dict[BrokerKey, _T], is_listed: Callable[[BrokerKey], bool], heard_at: Callable[[_T], float]
) -> None:
    if len(known) <= UNLISTED_MAX:
        return
    unlisted = [broker for broker in known if not is_listed(broker)]
    unlisted.sort(key=lambda broker: heard_at(known[broker]))
    for broker in unlisted[: max(0, len(unlisted) - UNLISTED_MAX)]:
        del known[broker]


def _shifted(contact: BrokerContact, offset: float) -> BrokerContact:
    closed_at = None if contact.closed_at is None else contact.closed_at + offset
    return replace(contact, heard_at=contact.heard_at + offset, closed_at=closed_at)
