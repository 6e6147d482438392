"""Writes: a command from its proposal to its verdict, for the process that decided it.

A verdict is learnt by applying; one timer gives up on all that have none in time. What is sent again, and
when, is decided by the :class:`.proposals.ProposalBook`; the leader's side is in :mod:`.leader`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from functools import partial
from typing import Final

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    FIRST_FORMAT,
    FORMAT_VERSION,
    LIMITS_FORMAT,
    Command,
    Limited,
    Proposal,
    format_of,
    written_and_read,
)
from routekeeper.nameserver.modes.interface import ConsistencyError, NoQuorum, NoRoom, OutcomeUnknown
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.nameserver.verdicts import Applied, Moved, NoChange, RegisterReply, Verdict
from routekeeper.remoting.steps import Steps, finish

from .contact import ANSWER_MARGIN_S, ContactWatch
from .leader import Leadership
from .peer_messages import Propose, in_parts
from .proposals import WRITE_DEADLINE_S, Sender, Told, Write
from .reports import Reports
from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)

PROPOSE_BYTES: Final = 1024 * 1024
"""Commands are sent to the leader in messages of about this many bytes; one command is never split."""

LATE_MAX: Final = 10_000
"""Registrations whose verdict is still looked out for after their request was answered."""


class Writes(Part):
    """The changes that this process proposes.

    Attributes:
        refused: Changes answered "not applied".
        unknown: Changes answered "may apply yet".
    """

    def __init__(
        self, given: Surroundings, leadership: Leadership, reports: Reports, contact: ContactWatch
    ) -> None:
        self.refused = self.unknown = 0
        super().__init__(given)
        self._leadership = leadership
        self._book = leadership.book
        self._reporter = reports.reporter
        self._reports = reports
        self._contact = contact
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # kept here: not every handle of uvloop knows its instant
        self._to_tell: list[tuple[Told, Verdict]] = []  # by the entry that is being applied
        # Of writes whose outcome is unknown: a verdict that comes after all dates evidence.
        self._late: OrderedDict[int, Sender] = OrderedDict()

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command and wait for its verdict.

        Raises:
            NoQuorum, OutcomeUnknown, CommandTooLarge, CommandFormatError: As :meth:`Mode.propose`.
        """
        waiter: asyncio.Future[Verdict] = self._loop.create_future()
        sequence = finish(self.entering(command, deadline=deadline, told=partial(resolve, waiter)))
        try:
            return await waiter
        finally:
            self._strike_out(sequence, late=True)

    def entering(
        self, command: Command, *, deadline: float, told: Told, registration: Sender | None = None
    ) -> Steps[int]:
        """Propose a command; ``told`` is called later, and returns before anything else happens here.

        Args:
            registration: Who registers by it.

        Returns:
            The proposal's sequence.

        Raises:
            NoQuorum, NoRoom, CommandTooLarge, CommandFormatError: Nothing was proposed.
        """
        if (
            isinstance(command, Limited)
            and command.limits is not None
            and self._reporter.understood < LIMITS_FORMAT
        ):
            # No member may apply what another would reject: this one judges alone, before it proposes.
            rejected = self._table.excess(command)
            if rejected is not None:
                raise NoRoom(rejected.remark)
            command = replace(command, limits=None)
        data, command = yield from written_and_read(command)
        if self._given.closing:
            raise NoQuorum("not applied: this name server is shutting down")
        needed = format_of(data)
        if needed > self._reporter.understood:
            raise NoQuorum(
                f"not applied: it needs format {needed}, and a member knows only "
                f"{self._reporter.understood}, or has not said yet: it runs an older release"
            )
        if not self._book.has_room(data):
            raise NoQuorum("not applied: too many changes are under way here")
        sequence = self._book.add(data, deadline=deadline, told=told, registration=registration)
        if deadline - ANSWER_MARGIN_S < self._timer_at:
            self._give_up_at(deadline - ANSWER_MARGIN_S)
        self._leadership.keep(Proposal(boot_id=self._book.boot_id, sequence=sequence, command=data), command)
        self._work_soon()
        return sequence

    def hand_out(self) -> None:
        """Give the leader what it does not have yet."""
        if not self._book:
            return
        now, term, leader = self._loop.time(), self._member.term, self._member.leader
        understood = self._reporter.understood
        sequencer = self._leadership.sequencer
        if sequencer is not None and sequencer.term == term:
            for write in self._book.outgoing((term, 0), now=now, understood=understood):
                self._book.handed(write, (term, 0), now=now, may_reach_log=False)
                self._leadership.offer(write.proposal, self._me, attempt=write.attempts)
            return
        if leader is None or leader not in self._links:
            return
        route = (term, self._links[leader])
        outgoing = self._book.outgoing(route, now=now, understood=understood)
        for chunk in in_parts(outgoing, lambda write: len(write.proposal.command), PROPOSE_BYTES):
            proposals = tuple([write.proposal for write in chunk])
            attempts = tuple([write.attempts + 1 for write in chunk])
            if not self._send(leader, Propose(term=term, proposals=proposals, attempts=attempts)):
                return
            for write in chunk:
                self._book.handed(write, route, now=now, may_reach_log=True)

    def release(self) -> None:
        """Have decided again what a leader deferred, and differences that a member does not know."""
        for sequence in self._book.released(applied_index=self._member.applied_index):
            self._end(sequence, Moved(revision=self._table.revision))
        if self._reporter.understood < FORMAT_VERSION:
            for sequence in self._book.beyond(self._reporter.understood):
                self._end(sequence, Moved(revision=self._table.revision))

    def table_replaced(self, *, term: int) -> None:
        """Settle what cannot have its verdict any more: an image came in place of entries.

        Args:
            term: Of the last leader that began to lead in the image.
        """
        # All are told later: this is called amid the engine's work.
        for write in [write for write in self._book if write.in_doubt]:
            unknown_yet = OutcomeUnknown("a state image came meanwhile, which holds the change or not")
            self._end(write.proposal.sequence, unknown_yet, later=True)
        # Differences are decided again: revisions of another table may be the same by chance.
        for sequence in self._book.beyond(FIRST_FORMAT):
            self._end(sequence, Moved(revision=self._table.revision), later=True)
        self._book.applied(term)

    def settle(self, sequence: int, verdict: Verdict) -> None:
        """Take the verdict on a proposal of this process; :meth:`tell` follows."""
        write = self._book.remove(sequence)
        registration = self._late.pop(sequence, None) if write is None else write.registration
        reply = verdict.reply if isinstance(verdict, Applied | NoChange) else None
        if registration is not None and isinstance(reply, RegisterReply) and reply.revision is not None:
            self._reports.registered(*registration, revision=reply.revision)
        if write is not None and write.told is not None:
            self._observer.settled(verdict)
            self._to_tell.append((write.told, verdict))

    def tell(self, *, index: int) -> None:
        """Tell whom the entry that was just applied has settled."""
        settled, self._to_tell = self._to_tell, []
        for told, verdict in settled:
            try:
                told(verdict)
            except Exception:
                logger.exception("a change was not answered index=%d", index)

    def end(self) -> None:
        """Answer all that still wait."""
        for write in list(self._book):
            self._give_up(write)

    def _strike_out(self, sequence: int, *, late: bool) -> Told | None:
        """Forget a proposal; return who waited for it.

        Args:
            late: Its verdict may come yet. If not, it is taken out of this member's own queue as leader.
        """
        if not late and self._leadership.sequencer is not None:
            self._leadership.sequencer.withdraw(self._book.boot_id, sequence)
        self._leadership.decoded.pop((self._book.boot_id, sequence), None)
        write = self._book.remove(sequence)
        if write is None:
            return None
        if late and write.registration is not None:
            self._late[sequence] = write.registration
            if len(self._late) > LATE_MAX:
                self._late.popitem(last=False)
        return write.told

    def _give_up_at(self, until: float) -> None:
        """One timer for all who wait: nearly all have their verdict long before it fires."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(until, self._give_up_late), until

    def _give_up_late(self) -> None:
        if self._given.closing:
            return
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time() + ANSWER_MARGIN_S
        for write in [write for write in self._book if write.deadline <= now]:
            self._give_up(write)
        if self._book:
            self._give_up_at(min(write.deadline for write in self._book) - ANSWER_MARGIN_S)

    def _give_up(self, write: Write) -> None:
        """Settle a proposal that got no verdict in time: not applied if it never left, else unknown."""
        why = self._contact.why_not()
        outcome: ConsistencyError = NoQuorum(f"not applied: {why}")
        if write.in_doubt:
            outcome = OutcomeUnknown(f"no verdict within {WRITE_DEADLINE_S} s, it may apply yet: {why}")
        self._end(write.proposal.sequence, outcome)

    def _end(self, sequence: int, outcome: Moved | ConsistencyError, *, later: bool = False) -> None:
        """Forget a proposal that has no verdict, and tell who waits for it what came of it instead."""
        unknown = isinstance(outcome, OutcomeUnknown)
        told = self._strike_out(sequence, late=unknown)
        self.unknown += unknown
        self.refused += isinstance(outcome, NoQuorum)
        if told is not None and later:
            self._loop.call_soon(told, outcome)
        elif told is not None:
            told(outcome)
