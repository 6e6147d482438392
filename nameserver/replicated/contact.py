"""Contact with a leader, and who waits for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from routekeeper.nameserver.modes.interface import NoQuorum
from routekeeper.nameserver.modes.waiters import wake

from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)

CONTACT_LOOK_S: Final = 0.01
"""How often requests that wait for contact with a leader look for it; one timer serves all of them."""

ANSWER_MARGIN_S: Final = 0.05
"""Whatever a request waits for, it waits so much shorter than its deadline: the answer leaves within it."""


class ContactWatch(Part):
    """Says when contact with a majority is lost and found, and wakes those who wait for it."""

    def __init__(self, given: Surroundings) -> None:
        super().__init__(given)
        # Nobody is in contact before the first time; then it is said whenever that ends.
        self._out_since: float | None = self._loop.time()
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def why_not(self) -> str:
        """Say why this member cannot serve, beginning with what the wire's remark is known for."""
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

    def follow(self) -> None:
        """Look at it now: one line when it is lost, and one when it is found again."""
        member, now, here = self._member, self._loop.time(), self._member.in_contact()
        if here and self._out_since is not None:
            after_s, self._out_since = now - self._out_since, None
            logger.info("contact found leader=%s term=%d after_s=%.3f", member.leader, member.term, after_s)
        elif not here and self._out_since is None:
            self._out_since = now
            logger.info("contact lost leader=%s term=%d", member.leader, member.term)
        self._look()

    async def require(self, *, deadline: float) -> None:
        """Return once this member is in contact with a leader.

        Raises:
            NoQuorum: If it was not by the deadline.
        """
        while not self._member.in_contact() and not self._given.closing and self._loop.time() < deadline:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(waiter)
            self._look()
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                break
            finally:
                self._waiters.discard(waiter)
        if not self._member.in_contact():
            raise NoQuorum(f"name server not ready: {self.why_not()}")

    def end(self) -> None:
        """Let those go who still wait."""
        wake(self._waiters)

    def _look(self) -> None:
        if self._waiters and self._member.in_contact():
            wake(self._waiters)
        if self._waiters and self._timer is None:
            self._timer = self._loop.call_later(CONTACT_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if not self._given.closing:
            self._look()
