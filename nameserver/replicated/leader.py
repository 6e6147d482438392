"""What this member holds while it leads, and how it carries proposals into the log.

Decides nothing: what a leader holds is pure (:class:`Sequencer`, :class:`Confirmations`,
:class:`FailureDetector`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    FIRST_FORMAT,
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
from routekeeper.nameserver.raft.types import Role
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.steps import Steps, finish

from .barriers import Confirmations
from .failure_detector import FailureDetector
from .peer_messages import Deferral, Deferred, Propose, Report
from .proposals import ProposalBook, Sequencer
from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)

LARGE_BYTES: Final = 2048
"""Of its log form, above which a command is not kept decoded: 10,000 topics are 26 KB and 2 MB then."""


class Leadership(Part):
    """What this member holds while it leads, all of it of one term.

    It takes proposals, its own and those of other members, appends them, and says when to decide again.

    Attributes:
        book: What this process has proposed, whoever leads.
        sequencer: What is appended next; None if it does not lead.
        rounds: The barriers that it is asked for; None if it does not lead.
        failure_detector: What it was told of brokers; None before an entry of its own term is applied.
        early: Reports that came before that, by member, each with the link that it came over.
        decoded: Commands on their way by boot id and sequence, kept until they are applied or given up, so
            that small ones are decoded once; of large ones (:data:`LARGE_BYTES`) without their topics. Those
            of other processes only while it leads.
    """

    def __init__(self, given: Surroundings, *, boot_id: int, peer_log: LimitedLog) -> None:
        self.book = ProposalBook(boot_id=boot_id)
        self.sequencer: Sequencer | None = None
        self.rounds: Confirmations | None = None
        self.failure_detector: FailureDetector | None = None
        self.early: dict[str, tuple[Report, int]] = {}
        self.decoded: dict[tuple[int, int], Command] = {}
        super().__init__(given)
        self._peer_log = peer_log
        self._mark_due = False  # the mark of this leadership could not be appended yet

    def follow(self) -> None:
        """Lead if this member leads, in its present term.

        Also called when others ask: they may know of a new leader before its own loop turns.
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

    def rounds_of(self, term: int) -> Confirmations | None:
        """Return the rounds of a term, if this member leads in it."""
        if self.rounds is None or self.rounds.term != term:
            self.follow()
        return self.rounds if self.rounds is not None and self.rounds.term == term else None

    def mark(self) -> None:
        """Mark in the log who leads, see FailureDetector.prior_term; again if it was not the time for it."""
        if self._mark_due and self.sequencer is not None:
            mark = encode_batch(Batch(proposals=()))
            self._mark_due = self._member.append(mark, term=self.sequencer.term) is None

    def end(self) -> None:
        """Forget all that a leader holds, if this member led."""
        if self.sequencer is None:
            return
        logger.info("no longer leading term=%d", self.sequencer.term)
        self.sequencer = None
        self.rounds = None
        self.failure_detector = None
        self.early.clear()
        for mark in [mark for mark in self.decoded if mark[0] != self.book.boot_id]:
            del self.decoded[mark]

    # -- proposals

    def take(self, member: str, message: Propose) -> None:
        """Take another member's proposals, if this one leads in the term that they name."""
        self.follow()
        if self.sequencer is not None and self.sequencer.term == message.term:
            self._line.run(self._taking(member, message), lambda _: None)

    def _taking(self, member: str, message: Propose) -> Steps[bool]:
        for proposal, attempt in zip(message.proposals, message.attempts, strict=True):
            if self.sequencer is None or self.sequencer.term != message.term:
                break
            yield from self._offering(proposal, member, attempt=attempt)
        self._work_soon()
        return True

    def deferred(self, member: str, message: Deferred) -> None:
        """Take a leader's answer to proposals of this process."""
        for deferral in message.deferrals:
            self.book.defer(deferral, term=message.term)
        self._work_soon()

    def offer(self, proposal: Proposal, member: str, *, attempt: int = 1) -> None:
        """Take a proposal at once into the queue, or say when to decide again. Only while this member leads.

        Args:
            attempt: How many times its proposer has handed it over.
        """
        finish(self._offering(proposal, member, attempt=attempt))

    def _offering(self, proposal: Proposal, member: str, *, attempt: int) -> Steps[None]:
        sequencer = self.sequencer
        assert sequencer is not None, "offered without leading"
        # The newest format that every member understands, as far as this leader was told.
        detector = self.failure_detector
        understood = FIRST_FORMAT if detector is None else detector.understood()
        needed = format_of(proposal.command)
        if needed > FIRST_FORMAT and needed > understood:
            # Whoever proposed it was told otherwise by a former leader; it is sent again, and told anew.
            self._refuse(logging.WARNING, member, "format=%d understood=%d", needed, understood)
            return
        mark = (proposal.boot_id, proposal.sequence)
        command = self.decoded.get(mark)
        if command is None:
            try:
                command = yield from decoding_command(proposal.command)
            except CommandFormatError as error:
                self._refuse(logging.ERROR, member, "error=%s", error)
                return
            if self.sequencer is not sequencer:
                return  # it led no more, or in another term, before that was read
            self.keep(proposal, command)
        moved_at = self._member.applied_index if self._table.moved(command) else None
        deferral = sequencer.offer(proposal, command, member, moved_at=moved_at, attempt=attempt)
        if deferral is not None:
            self._send_deferrals([(member, deferral)])

    def _refuse(self, level: int, member: str, why: str, *values: object) -> None:
        self._peer_log.write(level, member, f"proposal refused member=%s {why}", member, *values)

    def keep(self, proposal: Proposal, command: Command) -> None:
        """Keep a command that was read, so that it is not read again; of a large one all but its topics."""
        mark = (proposal.boot_id, proposal.sequence)
        if _is_large(proposal) and isinstance(command, RegisterBroker | Update):
            command = replace(command, topics=())
        self.decoded[mark] = command

    def taken(self, proposal: Proposal) -> Command | None:
        """Return a command that is kept and is kept no more; None if it must be read."""
        command = self.decoded.pop((proposal.boot_id, proposal.sequence), None)
        return None if _is_large(proposal) else command

    def evict(self, eviction: Evict) -> None:
        """Propose an eviction. Only this leader may append it, and only in the term in which it judged."""
        sequence = self.book.next_sequence()
        data = encode_command(eviction)
        self.offer(Proposal(boot_id=self.book.boot_id, sequence=sequence, command=data), self._me)
        self._observer.evicting(eviction, sequence)
        self._work_soon()

    def append(self) -> None:
        """Append what waits, unless an entry of ours is in flight."""
        sequencer = self.sequencer
        batch = None if sequencer is None else sequencer.next_batch()
        if sequencer is None or batch is None:
            return
        index = self._member.append(encode_batch(batch), term=sequencer.term)
        if index is None:
            if self._member.role is Role.LEADER and self._member.term == sequencer.term:
                sequencer.not_appended()  # it hands over, perhaps in vain: the next tick tries again
            else:
                self.end()
            return
        for proposal in batch.proposals:
            if proposal.boot_id == self.book.boot_id:
                self.book.appended(proposal.sequence, term=sequencer.term)
        self._send_deferrals(sequencer.appended(index))

    def _send_deferrals(self, deferrals: Iterable[tuple[str, Deferral]]) -> None:
        by_member: dict[str, list[Deferral]] = {}
        for member, deferral in deferrals:
            self.decoded.pop((deferral.boot_id, deferral.sequence), None)
            by_member.setdefault(member, []).append(deferral)
        term = self._member.term
        for member, told in by_member.items():
            if member == self._me:
                for deferral in told:
                    self.book.defer(deferral, term=term)
            else:
                # A lost one is no harm: the proposal is sent again.
                self._send(member, Deferred(term=term, deferrals=tuple(told)))


def _is_large(proposal: Proposal) -> bool:
    return len(proposal.command) > LARGE_BYTES
