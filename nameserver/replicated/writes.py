"""Writes: a command from its proposal to its verdict, for the process that decided it.

A verdict is learnt by applying; one timer gives up on all that have none in time. What is sent again, and
when, is decided by the :class:`ProposalBook`; the leader's side is in :mod:`.log_queue`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from nameserver.commands import FORMAT_VERSION, Command, Proposal, format_of, written_and_read
from nameserver.modes.interface import ConsistencyError, NoQuorum, OutcomeUnknown
from nameserver.raft import RaftMember
from nameserver.routes.table import RouteTable
from nameserver.types import BrokerKey, ConnectionId
from nameserver.verdicts import Applied, Moved, NoChange, RegisterReply, Verdict

from . import peer_messages
from .contact import ANSWER_MARGIN_S, ContactWatch, Links
from .leadership import Decoded, Leadership
from .log_queue import LogQueue
from .observer import Observer
from .peer_messages import Deferred, Propose
from .proposals import WRITE_DEADLINE_S, ProposalBook
from .registering import Told
from .reporter import Reporter
from .reports import Reports

logger = logging.getLogger(__name__)

PROPOSE_BYTES: Final = 1024 * 1024
"""Commands are sent to the leader in messages of about this many bytes; one command is never split."""

LATE_MAX: Final = 10_000
"""Registrations whose verdict is still looked out for after their request was answered."""


class _Waiter(msgspec.Struct, frozen=True):
    """Who waits for a proposal's verdict, and until when (loop time, s)."""

    told: Told
    until: float


class Writes:
    """The changes that this process proposes.

    Attributes:
        refused: Changes answered "not applied".
        unknown: Changes answered "may apply yet".

    Args:
        work_soon: Called when there is something to hand out.
    """

    def __init__(
        self,
        member: RaftMember,
        leadership: Leadership,
        queue: LogQueue,
        table: RouteTable,
        book: ProposalBook,
        decoded: Decoded,
        reporter: Reporter,
        reports: Reports,
        links: Links,
        contact: ContactWatch,
        *,
        me: str,
        work_soon: Callable[[], None],
    ) -> None:
        self.observer: Observer | None = None
        self.refused = self.unknown = 0
        self._member = member
        self._leadership = leadership
        self._queue = queue
        self._table = table
        self._book = book
        self._decoded = decoded
        self._reporter = reporter
        self._reports = reports
        self._links = links
        self._contact = contact
        self._me = me
        self._work_soon = work_soon
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, _Waiter] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # kept here: not every handle of uvloop knows its instant
        self._to_tell: list[tuple[Told, Verdict]] = []  # by the entry that is being applied
        # Registrations under way, also after their request was answered: their verdict dates evidence.
        self._registering: OrderedDict[int, tuple[BrokerKey, ConnectionId]] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """Return how many have no verdict yet."""
        return len(self._book)

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command and wait for its verdict.

        Raises:
            NoQuorum, OutcomeUnknown, CommandTooLarge, CommandFormatError: As :meth:`Mode.propose`.
        """
        waiter: asyncio.Future[Verdict] = self._loop.create_future()

        def told(outcome: Verdict | ConsistencyError) -> None:
            if waiter.done():
                return
            if isinstance(outcome, ConsistencyError):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)

        sequence = self.enter(command, deadline=deadline, told=told)
        try:
            return await waiter
        finally:
            self._strike_out(sequence)

    def enter(
        self,
        command: Command,
        *,
        deadline: float,
        told: Told,
        registration: tuple[BrokerKey, ConnectionId] | None = None,
    ) -> int:
        """Propose a command; ``told`` is called later, and returns before anything else happens here.

        Args:
            registration: The broker, and the connection over which it registers.

        Returns:
            The proposal's sequence.

        Raises:
            NoQuorum, CommandTooLarge, CommandFormatError: Nothing was proposed.
        """
        data, command = written_and_read(command)
        if self._closed:
            raise NoQuorum("not applied: this name server is shutting down")
        needed = format_of(data)
        if needed > self._reporter.understood:
            raise NoQuorum(
                f"not applied: it needs format {needed}, and a member knows only "
                f"{self._reporter.understood}, or has not said yet: it runs an older release"
            )
        if not self._book.has_room(data):
            raise NoQuorum("not applied: too many changes are under way here")
        sequence = self._book.add(data, deadline=deadline)
        until = deadline - ANSWER_MARGIN_S
        self._waiters[sequence] = _Waiter(told, until)
        if until < self._timer_at:
            self._give_up_at(until)
        self._decoded[self._book.boot_id, sequence] = command
        if registration is not None:
            self._registering[sequence] = registration
            if len(self._registering) > LATE_MAX:
                self._registering.popitem(last=False)
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
            for proposal in self._book.outgoing((term, 0), now=now, understood=understood):
                self._book.handed(proposal.sequence, (term, 0), now=now, may_reach_log=False)
                self._queue.offer(proposal, self._me, attempt=self._book.attempts(proposal.sequence))
            return
        if leader is None or leader == self._me or leader not in self._links.up:
            return
        route = (term, self._links.number(leader))
        chunk: list[Proposal] = []
        size = 0
        for proposal in self._book.outgoing(route, now=now, understood=understood):
            if chunk and size + len(proposal.command) > PROPOSE_BYTES:
                if not self._send_chunk(leader, route, chunk, now):
                    return
                chunk, size = [], 0
            chunk.append(proposal)
            size += len(proposal.command)
        if chunk:
            self._send_chunk(leader, route, chunk, now)

    def deferred(self, message: Deferred) -> None:
        """Take a leader's word that proposals are to be decided again."""
        for deferral in message.deferrals:
            self._book.defer(deferral, term=message.term)

    def applied(self, term: int) -> None:
        """Note that an entry of a term was applied; :meth:`settle` came before."""
        self._book.applied(term)

    def release(self) -> None:
        """Have decided again what a leader deferred, and differences that a member does not know."""
        if self._book.defers:
            for sequence in self._book.released(applied_index=self._member.applied_index):
                self._decide_again(sequence)
        if self._book.has_newer and self._reporter.understood < FORMAT_VERSION:
            for sequence in self._book.beyond(self._reporter.understood):
                self._decide_again(sequence)

    def table_replaced(self, *, term: int) -> None:
        """Settle what cannot have its verdict any more: an image came in place of entries.

        Args:
            term: Of the last leader that began to lead in the image.
        """
        unknown, again = self._book.unseen()
        for sequence in unknown:
            waiter = self._strike_out(sequence)
            if waiter is not None:  # told later, here and below: this is called amid the engine's work
                self.unknown += 1
                unknown_yet = OutcomeUnknown("a state image came meanwhile, which holds the change or not")
                self._loop.call_soon(waiter.told, unknown_yet)
        for sequence in again:
            self._queue.withdraw(sequence)
            waiter = self._strike_out(sequence)
            if waiter is not None:
                self._loop.call_soon(waiter.told, Moved(revision=self._table.revision))
        self._book.applied(term)

    def _decide_again(self, sequence: int) -> None:
        self._queue.withdraw(sequence)  # our own queue as leader may hold it yet
        waiter = self._strike_out(sequence)
        if waiter is not None:
            waiter.told(Moved(revision=self._table.revision))

    def settle(self, sequence: int, verdict: Verdict) -> None:
        """Take the verdict on a proposal of this process; :meth:`tell` follows."""
        registration = self._registering.pop(sequence, None)
        if registration is not None and isinstance(verdict, Applied | NoChange):
            revision = verdict.reply.revision if isinstance(verdict.reply, RegisterReply) else None
            if revision is not None:
                self._reports.registered(*registration, revision=revision)
        self._book.remove(sequence)
        waiter = self._waiters.pop(sequence, None)
        if waiter is not None:
            if self.observer is not None:
                self.observer.settled(verdict)
            self._to_tell.append((waiter.told, verdict))

    def tell(self, *, index: int) -> None:
        """Tell whom the entry that was just applied has settled."""
        settled, self._to_tell = self._to_tell, []
        for told, verdict in settled:
            try:
                told(verdict)
            except Exception:
                logger.exception("a change was not answered index=%d", index)

    def stop(self) -> None:
        """Begin to close: nothing more is proposed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Answer all that still wait."""
        for sequence in list(self._waiters):
            self._give_up(sequence)

    def _strike_out(self, sequence: int) -> _Waiter | None:
        """Forget a proposal; return who waited for it."""
        self._decoded.pop((self._book.boot_id, sequence), None)
        self._book.remove(sequence)
        return self._waiters.pop(sequence, None)

    def _give_up_at(self, until: float) -> None:
        """One timer for all who wait: nearly all have their verdict long before it fires."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(until, self._give_up_late), until

    def _give_up_late(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time()
        for sequence in [sequence for sequence, waiter in self._waiters.items() if waiter.until <= now]:
            self._give_up(sequence)
        if self._waiters:
            self._give_up_at(min(waiter.until for waiter in self._waiters.values()))

    def _give_up(self, sequence: int) -> None:
        """Settle a proposal that got no verdict in time: not applied if it never left, else unknown."""
        waiting = self._book.get(sequence)
        waiter = self._strike_out(sequence)
        if waiter is None:
            return
        if waiting is None or not waiting.in_doubt:
            self._queue.withdraw(sequence)  # our own queue as leader may hold it yet
            self._registering.pop(sequence, None)
            self.refused += 1
            waiter.told(NoQuorum(f"not applied: {self._contact.why_not()}"))
        else:
            self.unknown += 1
            unknown = f"no verdict within {WRITE_DEADLINE_S} s, it may apply yet: {self._contact.why_not()}"
            waiter.told(OutcomeUnknown(unknown))

    def _send_chunk(self, leader: str, route: tuple[int, int], chunk: list[Proposal], now: float) -> bool:
        attempts = tuple([self._book.attempts(proposal.sequence) + 1 for proposal in chunk])
        message = Propose(term=route[0], proposals=tuple(chunk), attempts=attempts)
        if not self._member.send(leader, peer_messages.encode(message)):
            return False
        for proposal in chunk:
            self._book.handed(proposal.sequence, route, now=now, may_reach_log=True)
        return True
