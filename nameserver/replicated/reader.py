"""Reads that wait: for contact with a leader, or for a barrier that makes them linearizable.

Carries barriers to the leader and back, and the leader's rounds to the voters and back. Which barrier a read
waits for, and what makes a leader certain, is decided in :mod:`routekeeper.nameserver.replicated.barriers`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from routekeeper.nameserver.modes.interface import BarrierPassed, Freshness, NoQuorum
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.nameserver.raft.consensus.members import majority
from routekeeper.nameserver.routes.view import RouteView

from .barriers import Barriers, Confirmations, Route
from .contact import ANSWER_MARGIN_S, ContactWatch
from .leader import Leadership
from .peer_messages import BARRIER_FORMAT, ReadIndex, ReadIndexCheck, ReadIndexCheckReply, ReadIndexReply
from .proposals import WRITE_DEADLINE_S
from .reporter import Reporter
from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)

ASK_ALL_S: Final = 0.05
"""A round of barriers asks as many voters as it needs, and everybody if it is not over after this time."""


class _Joined(NamedTuple):
    """Reads that joined one barrier: until when they wait, and who is to be told."""

    deadline: float
    told: list[BarrierPassed]


class Reads(Part):
    """The reads of this process that wait, and while it leads the barriers that members ask it for.

    Attributes:
        barriers: Those of the reads of this process.
        refused: Reads refused because their freshness could not be had, on the wire and over HTTP.
        confirmed: As leader: barriers answered, to other members and to itself.
        begun: As leader: rounds that those needed.
    """

    def __init__(
        self, given: Surroundings, leadership: Leadership, reporter: Reporter, contact: ContactWatch
    ) -> None:
        self.refused = self.confirmed = self.begun = 0
        super().__init__(given)
        self._leadership = leadership
        self._reporter = reporter
        self._contact = contact
        self.barriers = Barriers()
        self._waiting: dict[int, _Joined] = {}  # by barrier, in the order of their numbers
        self._late_timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Handle | None = None  # is going to ask: in this turn, or when enough was waited
        self._asks_soon = False
        self._joined_latest = 0  # the barrier joined last, and by whom
        self._joined_by: BarrierPassed | None = None
        self._near: list[str] = []  # voters, who spoke of barriers last first
        self._round_timer: asyncio.TimerHandle | None = None

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        """Return the view with this freshness, waiting for contact with a leader or a barrier if need be.

        A default read waits until the deadline, but no longer than one maximum election timeout.

        Raises:
            NoQuorum: If there was no contact, or no barrier, in time.
        """
        try:
            if freshness is Freshness.LINEARIZABLE:
                await self.barrier(deadline=deadline)
            elif freshness is Freshness.DEFAULT:
                longest = self._loop.time() + 2 * self._member.contact_limit
                await self._contact.require(deadline=min(deadline, longest))
        except NoQuorum:
            self.refused += 1
            raise
        return self._table.view

    async def barrier(self, *, deadline: float) -> None:
        """Return once the table here misses nothing that was acknowledged before this call.

        Raises:
            NoQuorum: If that was not reached by the deadline.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.join(lambda number, error: resolve(waiter, error))
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise self._no_barrier() from None

    def join(self, passed: BarrierPassed) -> int:
        """Join the next barrier, see :meth:`Consistency.join_barrier`."""
        barriers = self.barriers
        number = self._joined_latest
        if number == barriers.sent + 1 and passed is self._joined_by:  # nearly every read
            barriers.joined += 1
            if self._asking is not None and barriers.joined >= barriers.expected:
                self._ask_soon()
            return number
        number = self._joined_latest = barriers.join()
        self._joined_by = passed
        joined = self._waiting.get(number)
        if joined is not None:
            joined.told.append(passed)
            return number
        now = self._loop.time()
        deadline = now + WRITE_DEADLINE_S - ANSWER_MARGIN_S
        self._waiting[number] = _Joined(deadline, [passed])
        if self._late_timer is None:
            self._late_timer = self._loop.call_at(deadline, self._refuse_late)
        self._gather(now)
        return number

    def answered(self, member: str, answer: ReadIndexReply) -> None:
        """Take the leader's answer to a barrier."""
        self.barriers.confirmed(answer.number, answer.index)
        self.answer_waiting()

    def answer_waiting(self) -> None:
        """Let reads go whose barrier is passed, and send the next one."""
        if not self._waiting:
            return
        self.barriers.applied(self._member.applied_index, now=self._loop.time())
        passed = self.barriers.passed
        for number in list(self._waiting):
            if number > passed:
                break
            self._end(number, None)
        if self._waiting:
            self.ask()

    def end(self) -> None:
        """Refuse all that still wait."""
        self._refuse(up_to=math.inf)

    def _where(self) -> Route | None:
        """Where a barrier goes now; None if it can go nowhere."""
        term, leader = self._member.term, self._member.leader
        if leader == self._me:
            return term, leader, 0
        if leader is None or leader not in self._links or self._reporter.term != term:
            return None
        if self._reporter.leader_reads < BARRIER_FORMAT:  # it has not said so yet, or is older
            return None
        return term, leader, self._links[leader]

    def _gather(self, now: float) -> None:
        """Send a barrier in the next turn of the loop, or later if more reads are waited for."""
        barriers = self.barriers
        if barriers.joined >= barriers.expected or now >= barriers.gather_until:
            self._ask_soon()
        elif self._asking is None:
            self._asking = self._loop.call_at(barriers.gather_until, self._ask_now)

    def _ask_soon(self) -> None:
        """Ask once after everything that is ready in this turn of the loop."""
        if not self._asks_soon:
            self._asks_soon = True
            if self._asking is not None:
                self._asking.cancel()
            self._asking = self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asking, self._asks_soon = None, False
        self.ask()

    def ask(self) -> None:
        """Send the barrier that reads wait for, unless one is under way."""
        if not self._waiting or self._given.closing:
            return
        now, route = self._loop.time(), self._where()
        number = self.barriers.to_send(route, now=now)
        if number is None or route is None:
            if now < self.barriers.gather_until:
                self._gather(now)
            return
        term, leader, _ = route
        if leader == self._me:
            self.asked(leader, ReadIndex(term=term, number=number, voter=False))
        elif not self._send(leader, ReadIndex(term=term, number=number, voter=self._member.votes)):
            self.barriers.not_sent()

    def _end(self, number: int, error: NoQuorum | None) -> None:
        if number == self._joined_latest:  # refused before it was sent: who joins it now is not known yet
            self._joined_latest = 0
        for told in self._waiting.pop(number).told:
            try:
                told(number, error)
            except Exception:
                logger.exception("reads failed after their barrier number=%d", number)

    def _refuse_late(self) -> None:
        """One timer for all reads: the oldest ones have the first deadline."""
        self._late_timer = None
        self._refuse(up_to=self._loop.time())
        first = next(iter(self._waiting.values()), None)
        if first is not None:
            self._late_timer = self._loop.call_at(first.deadline, self._refuse_late)

    def _refuse(self, *, up_to: float) -> None:
        error = self._no_barrier()
        for number, joined in list(self._waiting.items()):
            if joined.deadline > up_to:
                break
            self._end(number, error)

    def _no_barrier(self) -> NoQuorum:
        if self._given.closing:
            return NoQuorum("name server not ready: it is shutting down")
        leader = self._member.leader
        if self._member.in_contact() and leader != self._me and self._where() is None:
            return NoQuorum(f"name server not ready: leader {leader} runs an older release without barriers")
        return NoQuorum(f"name server not ready: {self._contact.why_not()}")

    # -- the leader's side

    def asked(self, member: str, barrier: ReadIndex) -> None:
        """Take a member's question, or one of this leader's own reads, see :attr:`Confirmations.asked`."""
        if barrier.voter:
            index = self._member.read_index_with(member, barrier.term)
            if index is not None:  # of three, asker and leader are enough
                self.confirmed += 1
                self._heard_voter(member)
                # A lost one is no harm: the link is gone, and the barrier is sent again.
                self._send(member, ReadIndexReply(number=barrier.number, index=index))
                return
        rounds = self._leadership.rounds_of(barrier.term)
        if rounds is None:
            return
        if barrier.voter:
            self._heard_voter(member)
        rounds.asked[member] = barrier
        self.settle_round()

    def questioned(self, member: str, question: ReadIndexCheck) -> None:
        """A voter: say to a leader that asks for it that this member stands by it."""
        if question.term == self._member.term and self._member.votes:
            self._send(member, ReadIndexCheckReply(term=question.term, number=question.number))

    def confirmed_by(self, member: str, answer: ReadIndexCheckReply) -> None:
        """Take a voter's answer."""
        rounds = self._leadership.rounds
        if rounds is not None and rounds.term == answer.term:
            self._heard_voter(member)
            rounds.confirms(member, answer.number)
            self.settle_round()

    def settle_round(self) -> None:
        """Answer the barriers that are certain, begin a round for the others."""
        rounds, member = self._leadership.rounds, self._member
        if rounds is None or not (rounds.asked or rounds.round):
            return
        index = member.read_index_in(rounds.term)
        if index is None:
            return
        voters = member.voters
        confirmed = rounds.settle(commit_index=index, voters=voters)
        if confirmed:
            self.confirmed += len(confirmed)
            for asker, answer in confirmed:
                if asker == self._me:
                    self.barriers.confirmed(answer.number, answer.index)
                else:
                    # A lost one is no harm: the link is gone, and the barrier is sent again.
                    self._send(asker, answer)
            self.answer_waiting()
            index = member.read_index_in(rounds.term)
            if index is None:
                return
        if rounds.begin(commit_index=index) is not None:
            self.begun += 1
            enough = majority(len(voters)) - 1
            self._ask_voters(rounds, self._near[:enough])
            if self._round_timer is None:
                wait_s = ASK_ALL_S if len(self._near) >= enough else 0.0
                self._round_timer = self._loop.call_later(wait_s, self._ask_all)

    def follow_links(self) -> None:
        """Forget voters that are not linked any more."""
        self._near = [member for member in self._near if member in self._links]

    def _heard_voter(self, member: str) -> None:
        if self._near[:1] != [member]:
            self._near = [member, *(other for other in self._near if other != member)]

    def _ask_voters(self, rounds: Confirmations, members: Iterable[str]) -> None:
        question = ReadIndexCheck(term=rounds.term, number=rounds.number)
        for member in members:
            self._send(member, question)

    def _ask_all(self) -> None:
        """A round that nobody answers in time is asked of everybody: one may be gone, or stand still."""
        self._round_timer = None
        rounds = self._leadership.rounds
        if rounds is not None and rounds.round and not self._given.closing:
            self._ask_voters(rounds, sorted(self._member.linked - rounds.confirmed_by))
            self._round_timer = self._loop.call_later(ASK_ALL_S, self._ask_all)
