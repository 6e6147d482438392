"""One member's reports about brokers, and the evidence that the leader has acknowledged.

Evidence means last-seen times and connections of brokers.

The leader's side is :mod:`.failure_detector`. This module does no I/O and reads no clock: callers pass times,
in seconds of the liveness clock of the process that runs the code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from routekeeper.nameserver.commands import FIRST_FORMAT
from routekeeper.nameserver.commands import FORMAT_VERSION as COMMAND_FORMAT
from routekeeper.nameserver.liveness import NEVER, Contact, Liveness
from routekeeper.nameserver.types import BrokerKey, ConnectionId

from .peer_messages import FORMAT as MESSAGE_FORMAT
from .peer_messages import Acknowledgement, BrokerContact, Hearing, Report, in_parts, size_of

REPORT_PERIOD_S: Final = 1.0
"""Seconds between two reports of last-seen times; new and closed connections are reported at once."""


PRUNE_PERIOD_S: Final = 5.0
"""Interval in seconds at which a member forgets brokers that have no record."""


FRESH_SHARE: Final = 0.75
"""Greatest age of a fresh last-seen time, as a fraction of the broker's lease.

Only the newest last-seen time that a leader has acknowledged counts. While this time is fresh, a registration
of the broker that changes nothing is answered without the log.
"""


PART_BYTES: Final = 1024 * 1024
"""Approximate largest size in bytes of one part of a report; also of the leader's answer to a report."""

# Largest number of reports that wait for an acknowledgement. Older reports are forgotten, because a newer
# report contains their changes.
_OUTSTANDING_MAX: Final = 8


class Reporter:
    """Source of one process's reports; it remembers which evidence the leader has acknowledged.

    Attributes:
        is_due: True if a report must be sent as soon as there is a leader.
    """

    def __init__(self, liveness: Liveness, *, boot_id: int) -> None:
        self._liveness = liveness
        self._boot_id = boot_id
        self.is_due = False
        self._number = 0  # number of the last report
        self.heard_acknowledged: dict[BrokerKey, float] = {}
        """Newest last-seen time of each broker that this member reported and that a leader acknowledged."""
        self._handed: dict[BrokerKey, float] = {}
        self._handed_term = 0
        self._begin(0)

    def _begin(self, term: int) -> None:
        self.term = term
        """Term of the leader to which this member reports; 0 before the first leader."""
        self.base = 0
        """Version of this member's evidence that the leader of this term has acknowledged; 0 if none."""
        self._acknowledged_in_term = False
        self._outstanding: deque[tuple[int, Report]] = deque()  # parts sent, each with its report's number
        self.hearings: dict[BrokerKey, float] = {}
        """Last-seen time of each broker, as the leader of this term has sent it."""
        self._hearings_seen = 0
        self._last_at: float | None = None
        self.leader_reads = 0
        """Newest message format that the leader of this term can read; 0 before the leader's first answer."""
        self.understood = FIRST_FORMAT
        """Newest command format that the leader of this term may append: all members understand it."""

    def lead_by(self, term: int) -> bool:
        """Record the leader of ``term``. If the term is new, the next report is a full report.

        Returns:
            True if the term is new.
        """
        if term == self.term:
            return False
        if self._acknowledged_in_term:
            self._handed, self._handed_term = self.hearings, self.term
        self._begin(term)
        return True

    def period_is_over(self) -> bool:
        """Return True if one second has passed since the last report of this term."""
        return self._last_at is None or self._liveness.clock - self._last_at >= REPORT_PERIOD_S

    def reports(self, part_bytes: int = PART_BYTES) -> tuple[Report, ...]:
        """Return the changes since the last acknowledged report, in parts; nearly always there is one part.

        The parts must be sent in this order, because each part builds on the part before. First come the
        last-seen times that the former leader had sent to this member. The changes follow, the oldest first.
        """
        self._last_at = self._liveness.clock
        self._number += 1
        while self._outstanding and self._outstanding[0][0] <= self._number - _OUTSTANDING_MAX:
            self._outstanding.popleft()
        handing = not self._acknowledged_in_term and bool(self._handed)
        base = self.base
        # Items of the report, each with a version. The report is sent in parts. Each part has the version of
        # its last item.
        news: list[tuple[Hearing | BrokerContact, int]] = []
        if handing:
            news += [(Hearing(**broker._asdict(), heard_at=at), base) for broker, at in self._handed.items()]
        changes = reversed(self._liveness.changes_since(base))
        news += [(_line_of(broker, contact), contact.version) for broker, contact in changes]
        split = list(in_parts(news, lambda line: size_of(line[0]), part_bytes)) or [[]]
        parts = []
        for lines in split:
            more = lines is not split[-1]
            version = lines[-1][1] if more else self._liveness.version
            part = Report(
                term=self.term,
                boot_id=self._boot_id,
                base=base,
                version=version,
                clock=self._liveness.clock,
                contacts=tuple([line for line, _ in lines if isinstance(line, BrokerContact)]),
                hearings_seen=self._hearings_seen,
                handed_term=self._handed_term if handing else 0,
                handed=tuple([line for line, _ in lines if isinstance(line, Hearing)]),
                understands=COMMAND_FORMAT,
                reads=MESSAGE_FORMAT,
                more=more,
            )
            parts.append(part)
            self._outstanding.append((self._number, part))
            base = version
        return tuple(parts)

    def acknowledged(self, answer: Acknowledgement) -> bool:
        """Record the leader's answer to a report.

        Returns:
            True if the leader has missed a report. The reports sent afterwards do not contain the changes of
            the missed report, so a new report must be sent at once.
        """
        if answer.term != self.term or answer.boot_id != self._boot_id:
            return False
        self.leader_reads, self.understood = answer.reads, answer.understood
        self.base = min(answer.version, self._liveness.version)
        whole = False
        while self._outstanding and self._outstanding[0][1].version <= answer.version:
            _, part = self._outstanding.popleft()
            for contact in part.contacts:
                self.heard_acknowledged[contact.broker] = contact.heard_at
            whole = whole or not part.more
        if answer.hearings_base <= self._hearings_seen:
            offset = self._liveness.clock - answer.clock
            for hearing in answer.hearings:
                self.hearings[hearing.broker] = min(hearing.heard_at, answer.clock) + offset
            self._hearings_seen = max(self._hearings_seen, answer.hearings_version)
            # Send the former leader's last-seen times again until all parts of a report are acknowledged.
            # Some of these times may have been lost with a closed link.
            self._acknowledged_in_term = self._acknowledged_in_term or whole
        gap = bool(self._outstanding) and self._outstanding[0][1].base > answer.version
        if gap:
            self._outstanding.clear()
        return gap

    def may_vouch(self, broker: BrokerKey, origin: ConnectionId, *, in_contact: bool, lease_s: float) -> bool:
        """Return True if a request without changes from this broker may be answered without a log entry.

        This member must be in contact with a leader. An earlier registration over the same connection must
        have succeeded. A leader must have acknowledged that this member saw the broker recently. See rules 3
        and 8 of docs/raft-rules.md.

        Args:
            origin: The connection over which the request came.
            in_contact: True if this member is in contact with a leader.
            lease_s: The lease in the broker's record, in seconds.
        """
        contact = self._liveness.contact(broker)
        return (
            in_contact
            and contact is not None
            and contact.owner == origin
            and contact.connected
            and contact.confirmed
            and self._liveness.clock - self.heard_acknowledged.get(broker, NEVER) < FRESH_SHARE * lease_s
        )

    def removed(self, broker: BrokerKey) -> None:
        """Forget a broker whose record was removed: old evidence must not count for a new record."""
        for known in (self.heard_acknowledged, self.hearings, self._handed):
            known.pop(broker, None)

    def prune(self, is_listed: Callable[[BrokerKey], bool]) -> None:
        """Forget brokers that have no record and no contact with this member."""
        for known in (self.heard_acknowledged, self.hearings, self._handed):
            for broker in [b for b in known if not is_listed(b) and self._liveness.contact(b) is None]:
                del known[broker]


def _line_of(broker: BrokerKey, contact: Contact) -> BrokerContact:
    """Return the evidence about one broker in the form that reports use."""
    closing = contact.closing
    return BrokerContact(
        **broker._asdict(),
        heard_at=contact.heard_at,
        connected=contact.connected,
        closed_at=None if closing is None else closing.at,
        closed_revision=None if closing is None else closing.revision,
        unregistered=closing is not None and closing.unregistered,
    )
