"""Liveness of brokers over all members: the leader's copy of their reports, and its judgement.

Reports decide nothing; the leader of a term gathers them in a :class:`FailureDetector` and judges by
:func:`judge`. Both sides keep copies and send differences: all changes after a version that the other side
has acknowledged. After a gap (a new leader, a restarted member) the receiver does not hold a message's base.
Its answer names the version it holds, and the next message starts there.

A message is dated by its arrival. So an age in it is never too great, but it is too small by the time that
the message was delayed. A silent broker may stay listed for that much longer, and none is evicted too early.

Pure: clocks are passed in, in seconds, always the liveness clock of the process that runs the code.
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
"""The last-seen times in one acknowledgement take about this many bytes at most."""

FORGET_S: Final = 10 * LEASE_DEFAULT_S
"""Time in seconds for which a leader remembers when a broker without record and connection was last seen."""

UNLISTED_MAX: Final = 20_000
"""Bound of the brokers without a record in the leader's own evidence, and in its copy of each member's
evidence. Brokers that were last seen longest ago are forgotten first. No member knows more of them."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class ReportedBy:
    """Copy of one member's evidence. Times are on this leader's clock."""

    boot_id: int
    version: int = 0
    counts: bool = False
    understands: int = FIRST_FORMAT
    contacts: dict[BrokerKey, BrokerContact] = field(default_factory=dict)


class FailureDetector:
    """Reports of all members to the leader of one term, and its decision which brokers are gone.

    Args:
        members: Identities of all members, this leader included: it reports to itself. See
            :meth:`members_are`.
        prior_term: Term of the previous leader. Times handed over from an older term are ignored, because
            a later leader may have heard from the broker since.
        clock: Time at which this member began to lead.
        judge_after_s: Two maximum election timeouts; after them the leader judges without missing reports.

    Attributes:
        members: The copy of each member's evidence, for members that have reported.
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
            known_format: Command format of an entry in the log, which every member must therefore know.
        """
        self.term = term
        self._known_format = known_format
        self._names = frozenset(members)
        self._prior_term = prior_term
        self._leads_since = clock
        self._judge_after_s = judge_after_s
        self.members: dict[str, ReportedBy] = {}
        # In the order of change, as Liveness keeps contacts: (last seen, version).
        self._hearings: dict[BrokerKey, tuple[float, int]] = {}
        self._version = 0
        self._judged: dict[BrokerKey, int] = {}

    def members_are(self, members: Collection[str]) -> None:
        """Use another configuration: a new member has yet to report, and a removed one does not count (rule
        11).
        """
        self._names = frozenset(members)
        self.members = {name: known for name, known in self.members.items() if name in self._names}

    def receive(self, member: str, report: Report, *, clock: float) -> Acknowledgement | None:
        """Store a report and return the answer; None if it is from another term or from no member."""
        if report.term != self.term or member not in self._names:
            return None
        known = self.members.get(member)
        if known is None or known.boot_id != report.boot_id:
            known = self.members[member] = ReportedBy(boot_id=report.boot_id)
        if report.base <= known.version <= report.version:
            offset = clock - report.clock
            handed = report.handed if report.handed_term >= self._prior_term else ()
            for heard in (*report.contacts, *handed):
                self.note(heard.broker, min(heard.heard_at, report.clock) + offset)  # never in the future
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
        """Do not count members that lost contact or have a new link until they have reported again."""
        for member in members:
            if member in self.members:
                self.members[member].counts = False

    def understood(self) -> int:
        """Return the newest command format that every member understands, as far as all have reported it."""
        if len(self.members) < len(self._names):
            return self._known_format
        return min([member.understands for member in self.members.values()])

    def ready(self, clock: float) -> bool:
        """Return whether this leader may judge brokers yet."""
        return len(self.members) == len(self._names) or clock - self._leads_since >= self._judge_after_s

    def judge(
        self, records: Iterable[Record], *, in_contact: Collection[str], clock: float
    ) -> tuple[Evict, ...]:
        """Return evictions in the order of the records; each revision of a record is evicted only once.

        Args:
            records: The brokers to judge: all brokers from time to time, and the brokers of a report at once.
            in_contact: Members seen within two minimum election timeouts, this one included.
        """
        if not self.ready(clock):
            return ()
        counting = [
            self.members[m] for m in sorted(in_contact) if m in self.members and self.members[m].counts
        ]
        # A member that has yet to report may have a connection with any broker.
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
                    continue  # nearly every broker: judge() would return None, and takes longer
            if self._judged.get(broker) == record.revision:
                continue
            if heard is None:
                # No member knows the broker. From here on this time is handed to the next leader as a
                # last-seen time; else each of several short leaders would begin to wait anew.
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
        """Forget a broker whose record was removed: its evidence says nothing about a next record."""
        self._hearings.pop(broker, None)

    def prune(self, is_listed: Callable[[BrokerKey], bool], *, clock: float) -> None:
        """Forget brokers without a record that have been silent without a connection for long, or are too
        many.
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

        A record counts too, because no report about its broker may be here: it may still be on its way, or it
        may have been forgotten together with a former record.
        """
        if at == NEVER:
            return
        before = self._hearings.get(broker)
        if before is not None and before[0] >= at:
            return
        self._version += 1
        self._hearings.pop(broker, None)  # a dict keeps insertion order, so the latest change is last
        self._hearings[broker] = (at, self._version)

    def _hearings_after(self, version: int) -> tuple[tuple[Hearing, ...], int]:
        """Return last-seen times that changed after a version, and the version they reach; the rest follows
        later.
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
    """Return why a broker's record should be removed, or None if it stays (rule 5).

    Gone: no member in contact has a connection with the broker, and one of them reports that its connection
    closed at the record's current revision. Silent: no member has heard from the broker for its lease.

    Args:
        contacts: The evidence of each member in contact, None for a member that does not know the broker.
            None in place of the list if one of these members has yet to report.
        heard_at: The latest known time at which the broker was seen, or else the time at which this leader
            began to lead.
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
