"""Reads that wait: for contact with a leader, or for a barrier that makes them linearizable.

:mod:`.barriers` decides which barrier a read joins. The leader's part of the work is in :mod:`.leader`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from routekeeper.nameserver.modes.interface import BarrierPassed, Freshness, NoQuorum
from routekeeper.nameserver.modes.waiters import resolve, wake
from routekeeper.nameserver.routes.view import RouteView

from .barriers import Barriers, Route
from .leader import Leader
from .peer_messages import BARRIER_FORMAT, ReadIndex, ReadIndexCheck, ReadIndexCheckReply, ReadIndexReply
from .proposals import WRITE_DEADLINE_S
from .reporter import Reporter
from .surroundings import Component, Surroundings

logger = logging.getLogger(__name__)

CONTACT_LOOK_S: Final = 0.01
"""Seconds between two checks for contact while requests wait for it. One timer serves all these requests."""

ANSWER_MARGIN_S: Final = 0.05
"""Seconds before its deadline at which a request stops waiting, so that its answer leaves in time."""


class _Joined(NamedTuple):
    """Reads that joined one barrier: their deadline, and the functions to call when the barrier ends."""

    deadline: float
    callbacks: list[BarrierPassed]


class Reader(Component):
    """The waiting reads of this process, and this process's contact with a leader.

    Attributes:
        refused: Number of reads refused because their freshness could not be guaranteed (wire and HTTP).
    """

    def __init__(
        self, given: Surroundings, *, barriers: Barriers, leader: Leader, reporter: Reporter
    ) -> None:
        super().__init__(given)
        self.refused = 0
        self._barriers = barriers
        self._leader = leader
        self._reporter = reporter
        # Time at which contact was lost, None while in contact. A process begins without contact.
        self._out_since: float | None = self._loop.time()
        self._contact_waiters: dict[asyncio.Future[None], Callable[[], bool] | None] = {}
        self._contact_timer: asyncio.TimerHandle | None = None
        self._waiting: dict[int, _Joined] = {}  # reads by the number of their barrier, in rising order
        self._late_timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Handle | None = None  # scheduled call that sends the next barrier
        self._asks_soon = False
        self._joined_latest = 0  # latest barrier that a read joined, with the callback in _joined_by
        self._joined_by: BarrierPassed | None = None

    async def await_view(
        self, freshness: Freshness, *, deadline: float, otherwise: Callable[[], bool] | None = None
    ) -> RouteView:
        """Return a view that is as fresh as ``freshness`` requires; see :meth:`Consistency.await_view`.

        A default read waits until the deadline, but no longer than one maximum election timeout.

        Args:
            otherwise: Returns True if a default read need not wait for the entry that is being applied. It is
                called only while that entry alone prevents contact.

        Raises:
            NoQuorum: Contact was not found, or the barrier was not passed, in time.
        """
        try:
            if freshness is Freshness.LINEARIZABLE:
                await self.await_barrier(deadline=deadline)
            elif freshness is Freshness.DEFAULT:
                longest = self._loop.time() + 2 * self._member.contact_limit
                await self.await_contact(deadline=min(deadline, longest), otherwise=otherwise)
        except NoQuorum:
            self.refused += 1
            raise
        return self._table.view

    def end(self) -> None:
        """Wake or refuse all waiting reads, because this process ends."""
        wake(self._contact_waiters)
        self._refuse(up_to=math.inf)

    # -- contact with a leader ----------------------------------------------------------------------------

    def why_not(self) -> str:
        """Return the reason why this member cannot serve, in the style of RocketMQ's remarks."""
        member = self._member
        if waiting := member.waiting_for:
            return f"no leader, the first start waits for {', '.join(waiting)}"
        if distrusted := member.distrusted:
            return (
                f"no leader, {', '.join(distrusted)} may lack acknowledged changes and the rest is no "
                f"majority; if nobody else comes back, start {member.best}, whose log is the best, with "
                "--force-new-cluster"
            )
        if member.leader is None:
            return "no leader"
        if not member.in_contact():
            return f"no leader with a majority, {member.leader} was the last one"
        if member.leader != self._me and member.leader not in self._links:
            return f"no link to leader {member.leader}"
        return f"too much is under way at leader {member.leader}"

    def log_contact(self) -> None:
        """Log each loss and each return of contact once, and wake reads that wait for contact."""
        member, now, here = self._member, self._loop.time(), self._member.in_contact()
        if here and self._out_since is not None:
            after_s, self._out_since = now - self._out_since, None
            logger.info("contact found leader=%s term=%d after_s=%.3f", member.leader, member.term, after_s)
        elif not here and self._out_since is None:
            self._out_since = now
            logger.info("contact lost leader=%s term=%d", member.leader, member.term)
        self._wake_in_contact()

    async def await_contact(self, *, deadline: float, otherwise: Callable[[], bool] | None = None) -> None:
        """Return as soon as this member is in contact with a leader.

        Some evidence of contact becomes valid only when the entry that is being applied is complete. If only
        this entry still prevents contact, return also when ``otherwise`` returns True.

        Raises:
            NoQuorum: This member was not in contact by the deadline.
        """
        while not self._member.in_contact() and not self._given.closing and self._loop.time() < deadline:
            if otherwise is not None and self._member.in_contact_behind_entry() and otherwise():
                return
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._contact_waiters[waiter] = otherwise
            self._wake_in_contact()
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                break
            finally:
                self._contact_waiters.pop(waiter, None)
        if not self._member.in_contact():
            raise NoQuorum(f"name server not ready: {self.why_not()}")

    def _wake_in_contact(self) -> None:
        if self._contact_waiters and self._member.in_contact():
            wake(self._contact_waiters)
        if self._contact_waiters and self._contact_timer is None:
            self._contact_timer = self._loop.call_later(CONTACT_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._contact_timer = None
        if not self._given.closing:
            if self._contact_waiters and self._member.in_contact_behind_entry():  # check once for all waiters
                waiters = self._contact_waiters.items()
                wake([waiter for waiter, otherwise in waiters if otherwise is not None and otherwise()])
            self._wake_in_contact()

    # -- barriers -----------------------------------------------------------------------------------------

    @property
    def barriers_sent(self) -> int:
        """Return the number of barriers sent so far, repetitions included."""
        return self._barriers.sent

    async def await_barrier(self, *, deadline: float) -> None:
        """Return as soon as this member's table has every change that was acknowledged before this call.

        Raises:
            NoQuorum: The table did not contain these changes by the deadline.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.join(lambda number, error: resolve(waiter, error))
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise self._no_barrier() from None

    def join(self, passed: BarrierPassed) -> int:
        """Join the next barrier; ``passed`` is called when the read may be answered or is refused.

        Return the barrier's number (see :meth:`Consistency.join_barrier`).
        """
        barriers = self._barriers
        number = self._joined_latest
        # True for nearly every read: an earlier read with the same callback has joined this barrier already.
        if number == barriers.sent + 1 and passed is self._joined_by:
            barriers.joined += 1
            if self._asking is not None and barriers.joined >= barriers.expected:
                self._ask_soon()
            return number
        number = self._joined_latest = barriers.join()
        self._joined_by = passed
        joined = self._waiting.get(number)
        if joined is not None:
            joined.callbacks.append(passed)
            return number
        now = self._loop.time()
        deadline = now + WRITE_DEADLINE_S - ANSWER_MARGIN_S
        self._waiting[number] = _Joined(deadline, [passed])
        if self._late_timer is None:
            self._late_timer = self._loop.call_at(deadline, self._refuse_late)
        self._gather(now)
        return number

    def take_index(self, answer: ReadIndexReply) -> None:
        """Take the index that the leader sent for a barrier; answer the reads that need not wait any more."""
        self._barriers.confirmed(answer.number, answer.index)
        self.answer_waiting()

    def take_check(self, member: str, question: ReadIndexCheck) -> None:
        """Answer a leader's question: this member confirms that it is still in the leader's term."""
        if question.term == self._member.term and self._member.votes:
            self._send(member, ReadIndexCheckReply(term=question.term, number=question.number))

    def answer_waiting(self) -> None:
        """Answer the reads whose barrier has passed, and send the next barrier."""
        if not self._waiting:
            return
        self._barriers.applied(self._member.applied_index, now=self._loop.time())
        passed = self._barriers.passed
        for number in list(self._waiting):
            if number > passed:
                break
            self._end_barrier(number, None)
        if self._waiting:
            self.ask()

    def ask(self) -> None:
        """Send the barrier that reads wait for, unless an answer to an earlier barrier is expected."""
        if not self._waiting or self._given.closing:
            return
        now, route = self._loop.time(), self._route()
        number = self._barriers.to_send(route, now=now)
        if number is None or route is None:
            if now < self._barriers.gather_until:
                self._gather(now)
            return
        term, leader, _ = route
        if leader == self._me:
            self._leader.take_barrier(leader, ReadIndex(term=term, number=number, voter=False))
        elif not self._send(leader, ReadIndex(term=term, number=number, voter=self._member.votes)):
            self._barriers.not_sent()

    def _route(self) -> Route | None:
        """Return term, leader and link number for a barrier to send now; None if no barrier can be sent."""
        term, leader = self._member.term, self._member.leader
        if leader == self._me:
            return term, leader, 0
        if leader is None or leader not in self._links or self._reporter.term != term:
            return None
        if self._reporter.leader_reads < BARRIER_FORMAT:  # the leader may not know the message
            return None
        return term, leader, self._links[leader]

    def _gather(self, now: float) -> None:
        """Send a barrier in the next loop iteration, or wait longer so that more reads can join it."""
        barriers = self._barriers
        if barriers.joined >= barriers.expected or now >= barriers.gather_until:
            self._ask_soon()
        elif self._asking is None:
            self._asking = self._loop.call_at(barriers.gather_until, self._ask_now)

    def _ask_soon(self) -> None:
        """Send a barrier once, after all callbacks of this loop iteration."""
        if not self._asks_soon:
            self._asks_soon = True
            if self._asking is not None:
                self._asking.cancel()
            self._asking = self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asking, self._asks_soon = None, False
        self.ask()

    def _end_barrier(self, number: int, error: NoQuorum | None) -> None:
        # Forget that a read joined the barrier. If its reads are refused before the barrier is sent, the next
        # read joins the same barrier, and then needs a new entry in _waiting.
        if number == self._joined_latest:
            self._joined_latest = 0
        for callback in self._waiting.pop(number).callbacks:
            try:
                callback(number, error)
            except Exception:
                logger.exception("reads failed after their barrier number=%d", number)

    def _refuse_late(self) -> None:
        """Refuse the reads whose deadline has passed.

        One timer serves all reads, because the oldest reads have the first deadline.
        """
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
            self._end_barrier(number, error)

    def _no_barrier(self) -> NoQuorum:
        if self._given.closing:
            return NoQuorum("name server not ready: it is shutting down")
        leader = self._member.leader
        if self._member.in_contact() and leader != self._me and self._route() is None:
            return NoQuorum(f"name server not ready: leader {leader} runs an older release without barriers")
        return NoQuorum(f"name server not ready: {self.why_not()}")
