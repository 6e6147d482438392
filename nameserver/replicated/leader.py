"""The leader's work on top of the raft engine: it appends proposals, answers barriers and evicts brokers.

:class:`Sequencer`, :class:`Confirmations` and :class:`FailureDetector` hold the leader's state and make the
decisions; these classes do no I/O and read no clock. This module calls them and sends their answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    FIRST_FORMAT,
    LIMITS_FORMAT,
    Batch,
    Command,
    CommandFormatError,
    Evict,
    Proposal,
    RegisterBroker,
    Update,
    decoding_command,
    encode_batch,
    encode_command,
    format_of,
)
from routekeeper.nameserver.raft.consensus.members import majority
from routekeeper.nameserver.raft.types import Role
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.types import BrokerKey
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.steps import Steps, finish

from .barriers import Barriers, Confirmations
from .failure_detector import FailureDetector
from .peer_messages import (
    Deferral,
    Deferred,
    Propose,
    ReadIndex,
    ReadIndexCheck,
    ReadIndexCheckReply,
    ReadIndexReply,
    Report,
)
from .proposals import ProposalBook, Sequencer
from .reporter import PRUNE_PERIOD_S, REPORT_PERIOD_S, Reporter
from .surroundings import Component, Surroundings

logger = logging.getLogger(__name__)

LARGE_BYTES: Final = 2048
"""Largest command, in bytes as written to the log, whose decoded topics the leader keeps in memory.

10,000 topics take 26 KB in the log, but 2 MB of memory when they are decoded.
"""

ASK_ALL_S: Final = 0.05
"""Seconds after which the leader asks all voters to confirm its term, if too few voters have answered.

In each round of questions, the leader first asks only as many voters as a majority needs.
"""


class Leader(Component):
    """The leader's work at one member: its state for the present term, and the methods that do the work.

    Attributes:
        sequencer: Decides which proposals are appended next; None if this member does not lead.
        rounds: Read barriers that members sent, and the voters' answers that decide about them; None if this
            member does not lead.
        failure_detector: Judges which brokers must be evicted. None until this leader has applied an entry
            of its own term.
        barriers_answered: Number of barriers answered, for other members and for this member itself.
        rounds_begun: Number of rounds of questions to voters that were begun to answer barriers.
        judge_all_at: Time at which this leader judges all brokers next, in seconds of the liveness clock.
        judged_with: Members with which this leader was in contact when it last judged all brokers.
    """

    def __init__(
        self,
        given: Surroundings,
        *,
        book: ProposalBook,
        reporter: Reporter,
        barriers: Barriers,
        answer_reads: Callable[[], None],
        peer_log: LimitedLog,
    ) -> None:
        """Make the state of a member that does not lead yet.

        Args:
            book: The proposals of this process, no matter which member leads.
            reporter: Makes this process's reports, no matter which member leads.
            barriers: The barriers of this process's reads, no matter which member leads.
            answer_reads: Answers the reads whose barriers have passed.
        """
        super().__init__(given)
        self._book = book
        self._reporter = reporter
        self._barriers = barriers
        self._answer_reads = answer_reads
        self._peer_log = peer_log
        self.sequencer: Sequencer | None = None
        self.rounds: Confirmations | None = None
        self.failure_detector: FailureDetector | None = None
        self.barriers_answered = self.rounds_begun = 0
        # Reports that arrived before the failure detector existed. Key: the member. Value: its latest report,
        # and the number of the link over which the report came.
        self._early: dict[str, tuple[Report, int]] = {}
        # Decoded commands by boot id and sequence, kept until they are applied or dropped. A small command is
        # kept completely, so that it is decoded only once. A large command is kept without its topics.
        # Commands of other processes are kept only while this member leads.
        self._decoded: dict[tuple[int, int], Command] = {}
        self._mark_due = False  # True while the empty first entry of this leader's term is not yet appended
        self._near: list[str] = []  # linked voters; the voter that last sent a barrier message comes first
        self._round_timer: asyncio.TimerHandle | None = None
        self._prune_at = 0.0
        self.judge_all_at = 0.0
        self.judged_with: set[str] = set()
        self._reported_over: dict[str, int] = {}  # number of the link over which each member last reported

    def update_role(self) -> None:
        """Begin or stop leading, according to this member's role and term.

        A message that another member sends to the new leader may arrive before this process was told of the
        change. So this method is also called when such a message arrives.
        """
        member, term = self._member, self._member.term
        if member.role is not Role.LEADER:
            self.end()
        elif self.sequencer is None or self.sequencer.term != term:
            self.end()
            self.sequencer = Sequencer(term=term)
            self.rounds = Confirmations(term=term)
            logger.info("leading term=%d", term)
            self._mark_due = True
            self.mark()

    def mark(self) -> None:
        """Append an empty entry, which marks the start of this leader's term; see FailureDetector.prior_term.

        If the entry cannot be appended now, the next call tries again.
        """
        if self._mark_due and self.sequencer is not None:
            mark = encode_batch(Batch(proposals=()))
            self._mark_due = self._member.append(mark, term=self.sequencer.term) is None

    def end(self) -> None:
        """Forget the leader's state; do nothing if this member did not lead."""
        if self.sequencer is None:
            return
        logger.info("no longer leading term=%d", self.sequencer.term)
        self.sequencer = None
        self.rounds = None
        self.failure_detector = None
        self._early.clear()
        for mark in [mark for mark in self._decoded if mark[0] != self._book.boot_id]:
            del self._decoded[mark]

    # -- proposals ----------------------------------------------------------------------------------------

    def take_proposals(self, member: str, message: Propose) -> None:
        """Queue another member's proposals, or defer them, if this member leads in the message's term.

        To defer a proposal is to send it back, so that the proposer decides again (:class:`Deferral`).
        """
        self.update_role()
        if self.sequencer is not None and self.sequencer.term == message.term:
            self._line.run(self._taking(member, message), lambda _: None, sender=member, host=member)

    def _taking(self, member: str, message: Propose) -> Steps[bool]:
        for proposal, attempt in zip(message.proposals, message.attempts, strict=True):
            if self.sequencer is None or self.sequencer.term != message.term:
                break
            yield from self._offering(proposal, member, attempt=attempt)
        self._work_soon()
        return True

    def offer(self, proposal: Proposal, *, attempt: int = 1) -> None:
        """Queue a proposal of this process, or defer it. Call this method only while this member leads.

        Args:
            attempt: Number of times that the proposer has handed the proposal to a leader.
        """
        finish(self._offering(proposal, self._me, attempt=attempt))

    def _offering(self, proposal: Proposal, member: str, *, attempt: int) -> Steps[None]:
        sequencer = self.sequencer
        assert sequencer is not None, "offered without leading"
        if sequencer.knows(proposal):
            return  # the proposer sent the proposal again, because it waited long for the outcome
        # The newest format that every member understands, as far as this leader knows.
        detector = self.failure_detector
        understood = FIRST_FORMAT if detector is None else detector.understood()
        needed = format_of(proposal.command)
        if needed > FIRST_FORMAT and needed > understood:
            # A former leader allowed this newer format, but some member may not understand it. Drop the
            # proposal here; the proposer sends it again later.
            self._refuse(logging.WARNING, member, "format=%d understood=%d", needed, understood)
            return
        mark = (proposal.boot_id, proposal.sequence)
        command = self._decoded.get(mark)
        if command is None:
            try:
                command = yield from decoding_command(proposal.command)
            except CommandFormatError as error:
                self._refuse(logging.ERROR, member, "error=%s", error)
                return
            if self.sequencer is not sequencer:
                return  # this member stopped leading, or its term changed, while the command was decoded
            self.keep_decoded(proposal, command)
        moved_at = self._member.applied_index if self._table.moved(command) else None
        pairs = self._table.unnamed_pairs(command)
        deferral = sequencer.offer(proposal, command, member, moved_at=moved_at, attempt=attempt, pairs=pairs)
        if deferral is not None:
            self._send_deferrals([(member, deferral)])

    def _refuse(self, level: int, member: str, why: str, *values: object) -> None:
        self._peer_log.write(level, member, f"proposal refused member=%s {why}", member, *values)

    def keep_decoded(self, proposal: Proposal, command: Command) -> None:
        """Keep a decoded command, so that it is decoded only once; drop the topics of a large command."""
        mark = (proposal.boot_id, proposal.sequence)
        if _is_large(proposal) and isinstance(command, RegisterBroker | Update):
            command = replace(command, topics=())
            if isinstance(command, RegisterBroker):
                command = replace(command, mappings=())
        self._decoded[mark] = command

    def pop_decoded(self, proposal: Proposal) -> Command | None:
        """Remove a kept command and return it; None if the command must be decoded again."""
        command = self._decoded.pop((proposal.boot_id, proposal.sequence), None)
        return None if _is_large(proposal) else command

    def forget_proposal(self, sequence: int, *, withdraw: bool) -> None:
        """Forget a proposal of this process.

        Args:
            withdraw: True to remove the proposal from this leader's queue, too. Necessary if the client will
                be answered "not applied".
        """
        if withdraw and self.sequencer is not None:
            self.sequencer.withdraw(self._book.boot_id, sequence)
        self._decoded.pop((self._book.boot_id, sequence), None)

    def append(self) -> None:
        """Append the next entry, made of queued proposals, unless an entry is in flight."""
        sequencer = self.sequencer
        batch = None if sequencer is None else sequencer.next_batch()
        if sequencer is None or batch is None:
            return
        index = self._member.append(encode_batch(batch), term=sequencer.term)
        if index is None:
            if self._member.role is Role.LEADER and self._member.term == sequencer.term:
                # This member is handing over leadership, so the engine appends nothing now. If the handover
                # fails, the next tick tries to append again.
                sequencer.not_appended()
            else:
                self.end()
            return
        for proposal in batch.proposals:
            if proposal.boot_id == self._book.boot_id:
                self._book.appended(proposal.sequence, term=sequencer.term)
        self._send_deferrals(sequencer.appended(index))

    def applied(self, index: int) -> None:
        """Record that an entry is applied, so that the next entry may be appended."""
        if self.sequencer is not None:
            self.sequencer.applied(index)

    def _send_deferrals(self, deferrals: Iterable[tuple[str, Deferral]]) -> None:
        by_member: dict[str, list[Deferral]] = {}
        for member, deferral in deferrals:
            self._decoded.pop((deferral.boot_id, deferral.sequence), None)
            by_member.setdefault(member, []).append(deferral)
        term = self._member.term
        for member, of_member in by_member.items():
            if member == self._me:
                for deferral in of_member:
                    self._book.defer(deferral, term=term)
            else:
                # If this message is lost, the proposer sends its proposal again.
                self._send(member, Deferred(term=term, deferrals=tuple(of_member)))

    # -- read barriers ------------------------------------------------------------------------------------

    def take_barrier(self, member: str, barrier: ReadIndex) -> None:
        """Handle a read barrier of another member or of this leader.

        Answer it at once if the sender and this leader are a majority. Otherwise ask the voters first.
        """
        if barrier.voter:
            index = self._member.read_index_with(member, barrier.term)
            if index is not None:  # the sender and this leader together are a majority of the voters
                self.barriers_answered += 1
                self._note_voter(member)
                # The answer is lost only if the link breaks. The other member then sends its barrier again.
                self._send(member, ReadIndexReply(number=barrier.number, index=index))
                return
        rounds = self._rounds_of(barrier.term)
        if rounds is None:
            return
        if barrier.voter:
            self._note_voter(member)
        rounds.asked[member] = barrier
        self.settle_rounds()

    def take_confirmation(self, member: str, answer: ReadIndexCheckReply) -> None:
        """Record that a voter confirmed this leader's term, in answer to a :class:`ReadIndexCheck`."""
        rounds = self.rounds
        if rounds is not None and rounds.term == answer.term:
            self._note_voter(member)
            rounds.confirms(member, answer.number)
            self.settle_rounds()

    def settle_rounds(self) -> None:
        """Answer barriers for which a majority has confirmed this term; ask voters about other barriers."""
        rounds, member = self.rounds, self._member
        if rounds is None or not (rounds.asked or rounds.round):
            return
        index = member.read_index_in(rounds.term)
        if index is None:
            return
        voters = member.voters
        confirmed = rounds.settle(commit_index=index, voters=voters)
        if confirmed:
            self.barriers_answered += len(confirmed)
            for asker, answer in confirmed:
                if asker == self._me:
                    self._barriers.confirmed(answer.number, answer.index)
                else:
                    # The answer is lost only if the link breaks. The member then sends its barrier again.
                    self._send(asker, answer)
            self._answer_reads()
            index = member.read_index_in(rounds.term)
            if index is None:
                return
        if rounds.begin(commit_index=index) is not None:
            self.rounds_begun += 1
            enough = majority(len(voters)) - 1
            self._ask_voters(rounds, self._near[:enough])
            if self._round_timer is None:
                wait_s = ASK_ALL_S if len(self._near) >= enough else 0.0
                self._round_timer = self._loop.call_later(wait_s, self._ask_all)

    def forget_unlinked(self) -> None:
        """Forget voters that are not linked any more."""
        self._near = [member for member in self._near if member in self._links]

    def _rounds_of(self, term: int) -> Confirmations | None:
        """Return the read barriers of ``term``; None if this member does not lead in ``term``."""
        if self.rounds is None or self.rounds.term != term:
            self.update_role()
        return self.rounds if self.rounds is not None and self.rounds.term == term else None

    def _note_voter(self, member: str) -> None:
        if self._near[:1] != [member]:
            self._near = [member, *(other for other in self._near if other != member)]

    def _ask_voters(self, rounds: Confirmations, members: Iterable[str]) -> None:
        question = ReadIndexCheck(term=rounds.term, number=rounds.number)
        for member in members:
            self._send(member, question)

    def _ask_all(self) -> None:
        """Ask all other voters to confirm the term, too: the voters that were asked first may hang."""
        self._round_timer = None
        rounds = self.rounds
        if rounds is not None and rounds.round and not self._given.closing:
            self._ask_voters(rounds, sorted(self._member.linked - rounds.confirmed_by))
            self._round_timer = self._loop.call_later(ASK_ALL_S, self._ask_all)

    # -- brokers ------------------------------------------------------------------------------------------

    def begin_to_judge(self, term: int, *, prior_term: int) -> None:
        """Begin to judge which brokers must be evicted, if this member leads in ``term``.

        The caller has just applied the empty first entry of ``term``, see :meth:`mark`.

        Args:
            prior_term: The previous leader's term. Last-seen times of older leaders are ignored.
        """
        if self._member.role is not Role.LEADER or self._member.term != term:
            return
        self.failure_detector = FailureDetector(
            term=term,
            members=self._member.members,
            prior_term=prior_term,
            clock=self._liveness.clock,
            judge_after_s=4 * self._member.contact_limit,
            known_format=LIMITS_FORMAT if self._table.limited else FIRST_FORMAT,
        )
        self._reporter.lead_by(term)
        self._reporter.is_due = True
        self._work_soon()
        early, self._early = self._early, {}
        for member, (report, link) in early.items():
            self.take_report(member, report, link)

    def take_report(self, member: str, report: Report, link: int | None = None) -> None:
        """Store a report, answer it, and judge the brokers that it names.

        Args:
            link: Number of the link over which the report came; None for the member's present link.
        """
        link = self._member.link_number(member) if link is None else link
        detector = self.failure_detector
        if detector is None or detector.term != report.term:
            if report.term >= self._member.term:
                self._early[member] = report, link
            return
        detector.members_are(self._member.members)
        self._liveness.advance(self._loop.time())
        answer = detector.receive(member, report, clock=self._liveness.clock)
        if answer is None:
            return
        if answer.version == report.version and self._reported_over.get(member) != link:
            self._reported_over[member] = link
            self.judge_all_at = 0.0  # at the next tick, judge all brokers with the help of this report
        if member == self._me:
            self._reporter.acknowledged(answer)
        else:
            self._send(member, answer)
        view = self._table.view
        unconnected = [view.record(contact.broker) for contact in report.contacts if not contact.connected]
        self._judge([record for record in unconnected if record is not None])

    def tick(self) -> None:
        """Judge all brokers once per second, and also when the set of members in contact has changed.

        The caller must advance the liveness clock before this call, because brokers' silence is measured by
        this clock.
        """
        clock, detector = self._liveness.clock, self.failure_detector
        if clock >= self._prune_at:
            self._prune_at = clock + PRUNE_PERIOD_S
            if detector is not None:
                detector.prune(self._is_listed, clock=clock)
        in_contact = self.in_contact()
        if in_contact != self.judged_with or clock >= self.judge_all_at:
            self.judged_with = in_contact
            self.judge_all_at = clock + REPORT_PERIOD_S
            self._judge(list(self._table.view.records()))

    def removed(self, broker: BrokerKey) -> None:
        """Forget a broker whose record was removed, so that old reports do not count for a new record."""
        if self.failure_detector is not None:
            self.failure_detector.removed(broker)

    def listed(self, broker: BrokerKey) -> None:
        """Note that the table now has a record of this broker, whose silence counts from now on."""
        if self.failure_detector is not None:
            self.failure_detector.note(broker, self._liveness.clock)

    def evict(self, eviction: Evict) -> None:
        """Propose an eviction to this leader's own queue, for the present term.

        The eviction is never sent to a later leader, because a later leader judges by the reports that it has
        received itself.
        """
        sequence = self._book.next_sequence()
        data = encode_command(eviction)
        self.offer(Proposal(boot_id=self._book.boot_id, sequence=sequence, command=data))
        self._observer.evicting(eviction, sequence)
        self._work_soon()

    def _judge(self, records: list[Record]) -> None:
        detector, sequencer = self.failure_detector, self.sequencer
        if detector is None or sequencer is None or sequencer.term != detector.term:
            return
        in_contact = self.in_contact()
        detector.members_are(self._member.members)
        detector.out_of_contact((set(self._member.members) - in_contact) | self._linked_anew(in_contact))
        for eviction in detector.judge(records, in_contact=in_contact, clock=self._liveness.clock):
            self.evict(eviction)

    def _linked_anew(self, members: set[str]) -> set[str]:
        """Return the members that have not reported over their present link yet.

        A report over a former link may be lost.
        """
        number = self._member.link_number
        return {m for m in members if m != self._me and number(m) != self._reported_over.get(m)}

    def in_contact(self) -> set[str]:
        """Return the members with which this leader is in contact, and this leader itself.

        The set is empty while this member does not judge brokers.
        """
        if self.failure_detector is None:
            return set()
        within_s = 2 * self._member.contact_limit
        return {m for m in self._member.members if self._member.member_age(m) < within_s}

    def _is_listed(self, broker: BrokerKey) -> bool:
        return self._table.view.record(broker) is not None


def _is_large(proposal: Proposal) -> bool:
    return len(proposal.command) > LARGE_BYTES
