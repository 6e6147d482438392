"""Contact: the newest time at which this member certainly belonged to the cluster.

A member learns this time, its contact date, from echoes: other members send the member's own clock values
back. Each message carries two clock values:

- the sender's clock value;
- the echo: the newest clock value that the sender received from the receiver in the same term.

A message may wait in a buffer while a process is paused. The echo in it is then old, and the receiver
computes a contact date that is too old. A contact date is never too new.

The contact date of a leader: the leader sends the reading ``c`` of its own clock. A voter that accepted this
leader echoes ``c`` in a message of the leader's term. This proves that the voter had accepted no newer leader
at the time ``c``. The leader's contact date is the newest time that a majority has confirmed in this way.

The contact date of a follower: the leader sends the age of its contact and its commit index, and echoes the
follower's clock value. The age is the number of seconds since the leader's contact date. The follower's
contact date is the echoed clock value minus the age. The follower uses this date only after it has applied
the entries up to the commit index.

Clocks are local and in seconds. Clock values of different members are never compared. This module itself
reads no clock.

Each read request asks if the contact is younger than a limit. The contact date only rises, so a positive
answer stays true until the contact date plus the limit. :meth:`QuorumContact.younger` stores this time, and
:meth:`QuorumContact.in_time` compares the clock with the stored time. A negative answer is never stored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Final

from .members import majority

#: A leader's message states how long ago the leader last heard from a majority, and its commit index. A
#: follower keeps at most this number of statements until it has applied their commit index. If it applies
#: entries too slowly, it drops the oldest statements.
_PENDING_MAX: Final = 64
#: A stored positive answer ends this number of seconds early, so that rounding never makes it last too long.
_ROUNDING_S: Final = 1e-6


class QuorumContact:
    """The newest time at which one member certainly belonged to its cluster (contact), over all its terms.

    Attributes:
        date: The contact date, on this member's clock in seconds; -inf if there was no contact.
        pending: Statements of the leader that wait for :meth:`applied`, as commit index and date. Both
            numbers rise from one statement to the next.
    """

    def __init__(self, members: int) -> None:
        self._needed = majority(members)
        # The newest clock value that each peer sent in this term. It is sent back to the peer as echo.
        self._heard: dict[str, float] = {}
        # newest clock value of this member that each voter echoed in this term
        self._echoed: dict[str, float] = {}
        # newest clock value of this member that each peer echoed in this term over a link that is closed now
        self._echoed_before: dict[str, float] = {}
        self.pending: deque[tuple[int, float]] = deque(maxlen=_PENDING_MAX)
        self.date = -math.inf
        # The stored positive answer of younger(): its argument ``limit`` in seconds, and the time until which
        # the contact is younger than this limit.
        self._limit = math.inf
        self._young_until = -math.inf

    def voters_are(self, others: Collection[str]) -> None:
        """Set the voters of the configuration in force, except this member. Only their echoes count."""
        self._needed = majority(len(others) + 1)
        self._echoed = {peer: clock for peer, clock in self._echoed.items() if peer in others}
        self._echoed_before = {peer: clock for peer, clock in self._echoed_before.items() if peer in others}

    def in_time(self, now: float, limit: float) -> bool:
        """Return True if a stored answer says that contact was less than ``limit`` seconds before ``now``.

        If the result is False, the caller must ask :meth:`younger`.
        """
        return now < self._young_until and limit == self._limit

    def younger(self, now: float, limit: float) -> bool:
        """Return True if contact was less than ``limit`` seconds before ``now``; store a positive answer."""
        self._limit = limit
        self._young_until = self.date + limit - _ROUNDING_S
        return self.age(now) < limit

    def age(self, now: float) -> float:
        """Return the age of the newest certain contact in seconds; inf if there was no contact."""
        return max(0.0, now - self.date)

    def new_term(self) -> None:
        """Forget the clock values of the former term. Keep ``date``, because past contact stays a fact."""
        self._young_until = -math.inf  # discard the stored answer, so that the next read calls younger()
        self._heard.clear()
        self._echoed.clear()
        self._echoed_before.clear()
        self.pending.clear()

    def forget(self, peer: str) -> None:
        """Forget the clock values of ``peer``, because a new process behind a new link has another clock."""
        self._heard.pop(peer, None)
        if peer in self._echoed:
            self._echoed_before[peer] = self._echoed.pop(peer)

    def echo_for(self, peer: str) -> float | None:
        """Return the clock value to echo in the next message to ``peer``; None before its first message."""
        return self._heard.get(peer)

    def accepted_by(self, peer: str, *, clock: float, echo: float | None, voter: bool) -> None:
        """Record an answer from a member that accepted this member as the leader of the present term.

        Args:
            clock: The answering member's clock value, which is sent back to it later.
            echo: The clock value of this member that the answer sends back, if any.
            voter: True if the answering member counts in a majority. Otherwise ``echo`` is ignored.
        """
        self._heard[peer] = max(clock, self._heard.get(peer, -math.inf))
        if voter and echo is not None:
            self._echoed[peer] = max(echo, self._echoed.get(peer, -math.inf))

    def stated_by_leader(
        self, leader: str, *, clock: float, echo: float | None, age: float | None, commit: int
    ) -> None:
        """Record a message from the leader of the present term.

        Args:
            clock: The leader's clock value.
            echo: The clock value of this member that the leader sends back, if any.
            age: Seconds since the leader itself certainly belonged to the cluster, if the leader states them.
            commit: The leader's commit index.
        """
        self._heard[leader] = max(clock, self._heard.get(leader, -math.inf))
        if echo is not None and age is not None:
            self._pend(commit, echo - max(age, 0.0))

    def _pend(self, commit: int, date: float) -> None:
        while self.pending and self.pending[-1][1] >= date and self.pending[-1][0] >= commit:
            self.pending.pop()
        self.pending.append((commit, date))

    def applied(self, index: int) -> None:
        """Record that this member has applied ``index``, and raise ``date`` accordingly.

        The leader's statements with a commit index up to ``index`` are valid now. ``date`` becomes the newest
        of their dates, if it is older.
        """
        while self.pending and self.pending[0][0] <= index:
            self.date = max(self.date, self.pending.popleft()[1])

    def date_behind(self, index: int) -> float:
        """Return the value that ``date`` will have once the entries up to ``index`` are applied."""
        return max([self.date, *[date for commit, date in self.pending if commit <= index]])

    def led(self, now: float, index: int, applied: int) -> None:
        """Compute ``date`` on a leader that has committed an entry of its own term.

        ``index`` is the leader's commit index, so no member has applied a later entry. If this leader has not
        applied ``index`` yet, the new date becomes valid only when :meth:`applied` is called with ``index``.
        """
        date = self.majority_date(now)
        if applied >= index:
            self.date = max(self.date, date)
        else:
            self._pend(index, date)

    def majority_date(self, now: float) -> float:
        """Return the newest time at which a majority, this member included, accepted this leader."""
        dates = sorted([now, *self._echoed.values()], reverse=True)
        return dates[self._needed - 1] if len(dates) >= self._needed else -math.inf

    def member_date(self, peer: str) -> float:
        """Return this member's newest clock value that ``peer`` echoed in this term over its present link."""
        return self._echoed.get(peer, -math.inf)

    def accepted_date(self, peer: str) -> float:
        """Return this member's newest clock value that ``peer`` echoed in this term over any link.

        The result includes echoes over links that have been closed since.
        """
        return max(self.member_date(peer), self._echoed_before.get(peer, -math.inf))
