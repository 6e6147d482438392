"""Reads that wait: for contact with a leader, or for a barrier that makes them linearizable.

:mod:`.barriers` decides which barrier a read joins; the leader's work for barriers is in :mod:`.leader`.
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
"""Interval in seconds at which requests that wait for contact check for it; one timer serves all of them."""

ANSWER_MARGIN_S: Final = 0.05
"""A request stops waiting this many seconds before its deadline, so that its answer leaves in time."""


class _Joined(NamedTuple):
    """Reads that joined one barrier: their deadline, and the functions to call at its end."""

    deadline: float
    callbacks: list[BarrierPassed]


class Reader(Component):
    """The waiting reads of this process, and the contact with a leader that they wait for.

    Attributes:
        refused: Number of reads refused for lack of freshness, on the wire and over HTTP.
    """

    def __init__(
        self, given: Surroundings, *, barriers: Barriers, leader: Leader, reporter: Reporter
    ) -> None:
        super().__init__(given)
        self.refused = 0
        self._barriers = barriers
        self._leader = leader
        self._reporter = reporter
        # A process begins without contact; afterwards each loss and each return is logged.
        self._out_since: float | None = self._loop.time()
        self._contact_waiters: dict[asyncio.Future[None], Callable[[], bool] | None] = {}
        self._contact_timer: asyncio.TimerHandle | None = None
        self._waiting: dict[int, _Joined] = {}  # reads by the number of their barrier, rising
        self._late_timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Handle | None = None  # the next send, now or after gathering
        self._asks_soon = False
        self._joined_latest = 0  # the latest barrier that a read joined, and its callback
        self._joined_by: BarrierPassed | None = None

    async def await_view(
        self, freshness: Freshness, *, deadline: float, otherwise: Callable[[], bool] | None = None
    ) -> RouteView:
        """Return the view with this freshness; wait for contact with a leader or for a barrier if necessary.

        A default read waits until the deadline, but no longer than one maximum election timeout.

        Args:
            otherwise: Returns whether a default read need not wait for the entry that is being applied.
                It is called while only that entry prevents contact.

        Raises:
            NoQuorum: There was no contact, or no barrier, in time.
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
        """Answer all waiting reads."""
        wake(self._contact_waiters)
        self._refuse(up_to=math.inf)

    # -- contact with a leader ----------------------------------------------------------------------------

    def why_not(self) -> str:
        """Return why this member cannot serve. The text begins like the remarks of RocketMQ's protocol."""
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
        """Log each loss and return of contact once, and wake reads that wait for it."""
        member, now, here = self._member, self._loop.time(), self._member.in_contact()
        if here and self._out_since is not None:
            after_s, self._out_since = now - self._out_since, None
            logger.info("contact found leader=%s term=%d after_s=%.3f", member.leader, member.term, after_s)
        elif not here and self._out_since is None:
            self._out_since = now
            logger.info("contact lost leader=%s term=%d", member.leader, member.term)
        self._wake_in_contact()

    async def await_contact(self, *, deadline: float, otherwise: Callable[[], bool] | None = None) -> None:
        """Return once this member is in contact with a leader.

        If only the entry that is being applied prevents contact, return also if ``otherwise`` allows it.

        Raises:
            NoQuorum: It was not in contact by the deadline.
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
            if self._contact_waiters and self._member.in_contact_behind_entry():  # one check for all waiters
                waiters = self._contact_waiters.items()
                wake([waiter for waiter, otherwise in waiters if otherwise is not None and otherwise()])
            self._wake_in_contact()

    # -- barriers -----------------------------------------------------------------------------------------

    @property
    def barriers_sent(self) -> int:
        """Return the number of barriers sent so far, repetitions included."""
        return self._barriers.sent

    async def await_barrier(self, *, deadline: float) -> None:
        """Return once the table here has everything that was acknowledged before this call.

        Raises:
            NoQuorum: The table did not have it by the deadline.
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
        barriers = self._barriers
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
        """Handle the leader's answer to a barrier."""
        self._barriers.confirmed(answer.number, answer.index)
        self.answer_waiting()

    def take_check(self, member: str, question: ReadIndexCheck) -> None:
        """Answer a leader's question: confirm that this member is still in the leader's term."""
        if question.term == self._member.term and self._member.votes:
            self._send(member, ReadIndexCheckReply(term=question.term, number=question.number))

    def answer_waiting(self) -> None:
        """Answer reads whose barrier has passed, and send the next barrier."""
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
        """Send the barrier that reads wait for, unless one is under way."""
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
        """Return the recipient of a barrier that is sent now; None if no member can get one."""
        term, leader = self._member.term, self._member.leader
        if leader == self._me:
            return term, leader, 0
        if leader is None or leader not in self._links or self._reporter.term != term:
            return None
        if self._reporter.leader_reads < BARRIER_FORMAT:  # the leader has not stated its format, or is older
            return None
        return term, leader, self._links[leader]

    def _gather(self, now: float) -> None:
        """Send a barrier in the next turn of the loop, or later to gather more reads."""
        barriers = self._barriers
        if barriers.joined >= barriers.expected or now >= barriers.gather_until:
            self._ask_soon()
        elif self._asking is None:
            self._asking = self._loop.call_at(barriers.gather_until, self._ask_now)

    def _ask_soon(self) -> None:
        """Send a barrier once, after all callbacks of this turn of the loop."""
        if not self._asks_soon:
            self._asks_soon = True
            if self._asking is not None:
                self._asking.cancel()
            self._asking = self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asking, self._asks_soon = None, False
        self.ask()

    def _end_barrier(self, number: int, error: NoQuorum | None) -> None:
        if number == self._joined_latest:  # refused before it was sent: the next read must join it anew
            self._joined_latest = 0
        for callback in self._waiting.pop(number).callbacks:
            try:
                callback(number, error)
            except Exception:
                logger.exception("reads failed after their barrier number=%d", number)

    def _refuse_late(self) -> None:
        """Refuse reads whose deadline has passed. One timer serves all; the oldest reads have the first
        deadline.
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
