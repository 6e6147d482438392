"""Liveness of brokers: what this member hears and reports, and how it judges while it leads.

What decides is pure (:mod:`routekeeper.nameserver.liveness`, :mod:`.failure_detector`); everything that is
heard passes through here, because the leader must be told of it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from routekeeper.nameserver.commands import FIRST_FORMAT, LIMITS_FORMAT
from routekeeper.nameserver.raft.types import Role
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.types import BrokerKey, ConnectionId

from .failure_detector import FailureDetector
from .leader import Leadership
from .peer_messages import Acknowledgement, Report
from .reporter import REPORT_PERIOD_S, Reporter
from .surroundings import Part, Surroundings

PRUNE_PERIOD_S: Final = 5.0
"""How often what is known of brokers without a record is looked through."""


class Reports(Part):
    """What is heard here, on its way to the leader; as leader, what all members heard.

    Attributes:
        reporter: What is told, and what leaders acknowledged of it.
        due: The leader is to be told something. What is said of a connection precedes the command that came
            over it, so nothing is proposed meanwhile.
    """

    def __init__(self, given: Surroundings, leadership: Leadership) -> None:
        self.due = False
        self.reporter = Reporter(given.liveness, boot_id=leadership.book.boot_id)
        super().__init__(given)
        self._leadership = leadership
        self._prune_at = 0.0
        self._judge_all_at = 0.0
        self._judged_with: set[str] = set()  # members in contact when all brokers were judged last
        self._told_over: dict[str, int] = {}  # the link over which each member's last report came

    # -- what is heard here

    def hear(self, broker: BrokerKey, origin: ConnectionId, *, lease_ms: int) -> None:
        """Note who registers over which connection."""
        self._advance()
        before = self._liveness.contact(broker)
        self._liveness.registering(broker, origin, lease_s=lease_ms / 1000)
        if before is None or before.owner != origin or not before.connected:
            self.soon()
        self._observer.heard(broker, registers=True)

    def heard(self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float | None = None) -> None:
        """Note that a broker lives, without a registration."""
        self._advance()
        self._liveness.heard(broker, origin, lease_s=lease_s)
        self._observer.heard(broker, registers=False)

    def registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int) -> None:
        """Note at which revision the record of a broker is that registered over a connection."""
        before = self._liveness.version
        self._liveness.registered(broker, origin, revision=revision)
        if self._liveness.version != before:
            self.soon()

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Note the end of a connection."""
        before = self._liveness.version
        revision_of = partial(self._table.present, "record")
        self._liveness.closed(origin, by_us=by_us, revision_of=revision_of)
        if self._liveness.version != before:
            self.soon()

    def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Note a broker's goodbye over a connection of its own: evidence as a close is."""
        self._liveness.withdrawn(broker, origin, revision=self._table.present("record", broker))
        self.soon()
        self._observer.withdrawn(broker)

    def removed(self, broker: BrokerKey) -> None:
        """Note that a record is gone: what was heard before says nothing of a next one."""
        self._liveness.removed(broker)
        self.reporter.removed(broker)
        if self._leadership.failure_detector is not None:
            self._leadership.failure_detector.removed(broker)

    def listed(self, broker: BrokerKey) -> None:
        """Note that a record was made."""
        if self._leadership.failure_detector is not None:
            self._leadership.failure_detector.note(broker, self._liveness.clock)

    # -- the member's side

    def soon(self) -> None:
        """Report after everything that is ready in this turn of the loop."""
        self.due = True
        self._work_soon()

    def tick(self) -> None:
        """Advance the liveness clock, and do whatever it is time for."""
        liveness, detector = self._liveness, self._leadership.failure_detector
        self._advance()
        if liveness.clock >= self._prune_at:
            self._prune_at = liveness.clock + PRUNE_PERIOD_S
            liveness.prune()
            self.reporter.prune(self._is_listed)
            if detector is not None:
                detector.prune(self._is_listed, clock=liveness.clock)
        if self._member.leader is not None and self.reporter.due():
            self.due = True
        here = self._here()
        if here != self._judged_with or liveness.clock >= self._judge_all_at:
            self._judged_with = here
            self._judge_all_at = liveness.clock + REPORT_PERIOD_S
            self._judge(list(self._table.view.records()))

    def follow_leader(self, *, linked_anew: bool) -> None:
        """Report to a leader that is new, or linked anew since the last look."""
        if self._member.leader is not None and (self.reporter.lead_by(self._member.term) or linked_anew):
            self.due = True

    def send_due(self) -> bool:
        """Tell the leader what changed here, if that is due; the leader tells itself.

        Returns:
            Whether it is due no more.
        """
        if not self.due:
            return True
        leader = self._member.leader
        if leader is None or (leader != self._me and leader not in self._links):
            return False
        self.reporter.lead_by(self._member.term)
        for report in self.reporter.reports():
            self._observer.reporting(report)
            if leader == self._me:
                self.receive(self._me, report)
            elif not self._send(leader, report):
                return False
        self.due = False
        return True

    def acknowledged(self, member: str, answer: Acknowledgement) -> None:
        """Take a leader's answer to a report."""
        if member == self._member.leader and self.reporter.acknowledged(answer):
            self.soon()

    # -- the leader's side

    def receive(self, member: str, report: Report, link: int | None = None) -> None:
        """Leader: take a report, answer it, judge whom it speaks of.

        Args:
            link: Over which it came; None for the present one.
        """
        link = self._member.link_number(member) if link is None else link
        detector = self._leadership.failure_detector
        if detector is None or detector.term != report.term:
            if report.term >= self._member.term:
                self._leadership.early[member] = report, link
            return
        detector.members_are(self._member.members)
        self._advance()
        answer = detector.receive(member, report, clock=self._liveness.clock)
        if answer is None:
            return
        if answer.version == report.version and self._told_over.get(member) != link:
            self._told_over[member] = link
            self._judge_all_at = 0.0  # its word was missing
        if member == self._me:
            self.reporter.acknowledged(answer)
        else:
            self._send(member, answer)
        view = self._table.view
        told = [view.record(contact.broker) for contact in report.contacts if not contact.connected]
        self._judge([record for record in told if record is not None])

    def leads_from(self, term: int, *, prior_term: int) -> None:
        """An entry that marks who leads is applied: if it is this leader's own, it counts and judges now."""
        if self._member.role is not Role.LEADER or self._member.term != term:
            return
        self._leadership.failure_detector = FailureDetector(
            term=term,
            members=self._member.members,
            prior_term=prior_term,
            clock=self._liveness.clock,
            judge_after_s=4 * self._member.contact_limit,
            known_format=LIMITS_FORMAT if self._table.limited else FIRST_FORMAT,
        )
        self.reporter.lead_by(term)
        self.soon()
        early, self._leadership.early = self._leadership.early, {}
        for member, (report, link) in early.items():
            self.receive(member, report, link)

    def _advance(self) -> None:
        """Move the liveness clock.

        A process that stood still may read what came meanwhile before its timer moves this clock, and is not
        to date that by the clock's old reading.
        """
        self._liveness.advance(self._loop.time())

    def _judge(self, records: list[Record]) -> None:
        detector, sequencer = self._leadership.failure_detector, self._leadership.sequencer
        if detector is None or sequencer is None or sequencer.term != detector.term:
            return
        here = self._here()
        detector.members_are(self._member.members)
        detector.out_of_contact((set(self._member.members) - here) | self._linked_anew(here))
        for eviction in detector.judge(records, in_contact=here, clock=self._liveness.clock):
            self._leadership.evict(eviction)

    def _linked_anew(self, members: set[str]) -> set[str]:
        """Return who has yet to report over the present link: the former one may have taken some."""
        number = self._member.link_number
        return {m for m in members if m != self._me and number(m) != self._told_over.get(m)}

    def _here(self) -> set[str]:
        """Leader: the members in contact, itself included; empty elsewhere."""
        if self._leadership.failure_detector is None:
            return set()
        heard_within = 2 * self._member.contact_limit
        return {m for m in self._member.members if self._member.member_age(m) < heard_within}

    def _is_listed(self, broker: BrokerKey) -> bool:
        return self._table.view.record(broker) is not None
