"""Liveness of brokers over all members: what a member reports, and how the leader judges it.

Reports decide nothing; the leader of a term gathers them in a :class:`FailureDetector` and judges by
:func:`judge`. Both sides keep copies that are brought up to date by differences: all that changed after a
version that the other side acknowledged. A gap (a new leader, a restarted member) shows as a base that the
receiver does not hold; its answer names what it holds, and the next message starts there.

A message is dated by its arrival: an age in it is never too great, but too small by the time for which a link
held it up. So a broker that falls silent may stay listed for that much longer, and none goes early.

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
"""Hearings in one acknowledgement take about this many bytes at most."""

FORGET_S: Final = 10 * LEASE_DEFAULT_S
"""How long a leader remembers a hearing of a broker that has no record and no connection."""

UNLISTED_MAX: Final = 20_000
"""Brokers without a record that a leader remembers, of its own and of each member's evidence. Those heard
longest ago are forgotten first. No member knows more of them."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class ReportedBy:
    """Copy of one member's evidence. Instants are on this leader's clock."""

    boot_id: int
    version: int = 0
    counts: bool = False
    understands: int = FIRST_FORMAT
    contacts: dict[BrokerKey, BrokerContact] = field(default_factory=dict)


class FailureDetector:
    """Reports of all members to the leader of one term, and its judgement which brokers are gone.

    Args:
        members: Identities of all members, this leader included: it reports to itself. See
            :meth:`members_are`.
        prior_term: Term of the last leader before this one that began to lead. Hearings handed over from an
            older term are worth nothing: somebody else may have heard the broker since.
        clock: The instant of beginning to lead.
        judge_after_s: Two maximum election timeouts; by then anyone who has not reported is not waited for.

    Attributes:
        members: The copy of each member's evidence, of those that have reported.
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
            known_format: Of a command that is in the log already, so that every member has to know it.
        """
        self.term = term
        self._known_format = known_format
        self._names = frozenset(members)
        self._prior_term = prior_term
        self._leads_since = clock
        self._judge_after_s = judge_after_s
        self.members: dict[str, ReportedBy] = {}
        # In the order of change, as Liveness keeps contacts: (youngest hearing, version).
        self._hearings: dict[BrokerKey, tuple[float, int]] = {}
        self._version = 0
        self._judged: dict[BrokerKey, int] = {}

    def members_are(self, members: Collection[str]) -> None:
        """Take over the configuration: a new member has yet to report, a removed one is gone (rule 11)."""
        self._names = frozenset(members)
        self.members = {name: known for name, known in self.members.items() if name in self._names}

    def receive(self, member: str, report: Report, *, clock: float) -> Acknowledgement | None:
        """Take a report and return the answer; None if it is not for this term or of no member."""
        if report.term != self.term or member not in self._names:
            return None
        known = self.members.get(member)
        if known is None or known.boot_id != report.boot_id:
            known = self.members[member] = ReportedBy(boot_id=report.boot_id)
        if report.base <= known.version <= report.version:
            offset = clock - report.clock
            handed = report.handed if report.handed_term >= self._prior_term else ()
            for heard in (*report.contacts, *handed):
                self.note(heard.broker, min(heard.heard_at, report.clock) + offset)  # not in the future
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
        """Note members out of contact, or with another link; each counts again with its next report."""
        for member in members:
            if member in self.members:
                self.members[member].counts = False

    def understood(self) -> int:
        """Return the newest command format that every member understands, as far as all have said."""
        if len(self.members) < len(self._names):
            return self._known_format
        return min(member.understands for member in self.members.values())

    def ready(self, clock: float) -> bool:
        """Return whether this leader may judge yet."""
        return len(self.members) == len(self._names) or clock - self._leads_since >= self._judge_after_s

    def judge(
        self, records: Iterable[Record], *, in_contact: Collection[str], clock: float
    ) -> tuple[Evict, ...]:
        """Return the evictions, in the order of the records; each revision of a record is judged only once.

        Args:
            records: Of the brokers to look at: all of them now and then, those of a report at once.
            in_contact: Members heard within two minimum election timeouts, this one included.
        """
        if not self.ready(clock):
            return ()
        counting = [
            self.members[m] for m in sorted(in_contact) if m in self.members and self.members[m].counts
        ]
        # Somebody who is here, but has yet to report, may have a connection with anyone.
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
                    continue  # nearly every broker: judge() would say the same at greater length
            if self._judged.get(broker) == record.revision:
                continue
            if heard is None:
                # Nobody knows it. From here on this is handed to the next leaders as a hearing is, or leaders
                # that follow one another would each begin anew.
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
        """Note that a record is gone: what was heard before says nothing of a next one."""
        self._hearings.pop(broker, None)

    def prune(self, is_listed: Callable[[BrokerKey], bool], *, clock: float) -> None:
        """Forget brokers without a record that are silent without a connection for long, or too many."""

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
        """Note that a broker was heard, or its record made: silent it cannot have been for longer than that.

        The hearing behind a record may be on its way, or have been forgotten with a former record.
        """
        if at == NEVER:
            return
        before = self._hearings.get(broker)
        if before is not None and before[0] >= at:
            return
        self._version += 1
        self._hearings.pop(broker, None)  # a dict keeps insertion order: the latest change lies last
        self._hearings[broker] = (at, self._version)

    def _hearings_after(self, version: int) -> tuple[tuple[Hearing, ...], int]:
        """Return hearings that changed after a version, and up to which: what is more follows later."""
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
    """Say why a broker's record should go, or None if it stays (rule 5).

    Gone: none of the members in contact has a connection with it, and one of them says that its connection
    closed at the record's current revision. Silent: nobody has heard it for its lease.

    Args:
        contacts: What each member in contact says of this broker, None for one that knows nothing of it; None
            instead of all if one of them has yet to report.
        heard_at: The youngest hearing known, or the instant at which this leader began to lead.
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
