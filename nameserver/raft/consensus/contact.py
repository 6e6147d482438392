"""Contact: the time since this member certainly belonged to the cluster, dated by echoed clocks.

Each message carries the sender's clock and echoes the newest clock received from that peer in the same term,
so a message that waited in a buffer while a process was paused still proves nothing. An echo of our own clock
reading ``c``, in a message of our own term from a voter that accepted us as leader, proves that no other
leader had that voter after the instant ``c``. A majority of such echoes dates the leader. The leader states
the age of its contact together with its commit index; a follower adds the age of the echo of its own clock,
and counts the sum from the moment at which it has applied that commit index.

Clocks are local and in seconds; readings of different members are never compared. Pure: no clock is read
here.

Reads are many, and each asks whether contact is young enough. The date only rises, so a positive answer holds
until the clock passes the date plus the limit. :meth:`QuorumContact.in_time` stores that time and compares. A
negative answer is never stored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Final

from .members import majority

#: Statements of the leader that wait for their commit index. More arrive only while applying lags far behind;
#: then the oldest are dropped.
_PENDING_MAX: Final = 64
#: Seconds by which a stored positive answer ends early, so that rounding never makes it last too long.
_ROUNDING_S: Final = 1e-6


class QuorumContact:
    """Contact of one member, over all its terms.

    Attributes:
        date: The newest time of certain contact on this member's clock; -inf if none.
        pending: Statements that wait for :meth:`applied`: commit index and date, both rising.
    """

    def __init__(self, members: int) -> None:
        self._needed = majority(members)
        self._heard: dict[str, float] = {}  # newest clock of each peer in this term, which we echo to it
        self._echoed: dict[str, float] = {}  # newest own clock that each voter echoed in this term
        self._echoed_before: dict[str, float] = {}  # newest own clock that the peer echoed over a former link
        self.pending: deque[tuple[int, float]] = deque(maxlen=_PENDING_MAX)
        self.date = -math.inf
        # The stored positive answer of in_time: the limit for which it holds, and the time until which it
        # holds.
        self._limit = math.inf
        self._young_until = -math.inf

    def voters_are(self, others: Collection[str]) -> None:
        """Note the voters other than this member in the configuration in force; only their echoes count."""
        self._needed = majority(len(others) + 1)
        self._echoed = {peer: clock for peer, clock in self._echoed.items() if peer in others}
        self._echoed_before = {peer: clock for peer, clock in self._echoed_before.items() if peer in others}

    def in_time(self, now: float, limit: float) -> bool:
        """Return whether a stored answer says that contact is younger than ``limit``; if not, ask
        :meth:`younger`.
        """
        return now < self._young_until and limit == self._limit

    def younger(self, now: float, limit: float) -> bool:
        """Return whether contact is younger than ``limit`` at ``now``; store a positive answer."""
        self._limit = limit
        self._young_until = self.date + limit - _ROUNDING_S
        return self.age(now) < limit

    def age(self, now: float) -> float:
        """Return the seconds since the newest time of certain contact; inf if there was none."""
        return max(0.0, now - self.date)

    def new_term(self) -> None:
        """Forget the messages of the former term. The date stays, because it is a fact about the past."""
        self._young_until = -math.inf  # the next question is answered anew
        self._heard.clear()
        self._echoed.clear()
        self._echoed_before.clear()
        self.pending.clear()

    def forget(self, peer: str) -> None:
        """Forget the clocks of ``peer`` after a new link: it may be another process with another clock."""
        self._heard.pop(peer, None)
        if peer in self._echoed:
            self._echoed_before[peer] = self._echoed.pop(peer)

    def echo_for(self, peer: str) -> float | None:
        """Return the clock to echo in the next message to ``peer``."""
        return self._heard.get(peer)

    def accepted_by(self, peer: str, *, clock: float, echo: float | None, voter: bool) -> None:
        """Record the answer of a member that accepted us as the leader of our own term."""
        self._heard[peer] = max(clock, self._heard.get(peer, -math.inf))
        if voter and echo is not None:
            self._echoed[peer] = max(echo, self._echoed.get(peer, -math.inf))

    def stated_by_leader(
        self, leader: str, *, clock: float, echo: float | None, age: float | None, commit: int
    ) -> None:
        """Record a message from the leader of our own term: its clock, and its statement if it made one."""
        self._heard[leader] = max(clock, self._heard.get(leader, -math.inf))
        if echo is not None and age is not None:
            self._pend(commit, echo - max(age, 0.0))

    def _pend(self, commit: int, date: float) -> None:
        while self.pending and self.pending[-1][1] >= date and self.pending[-1][0] >= commit:
            self.pending.pop()
        self.pending.append((commit, date))

    def applied(self, index: int) -> None:
        """Count the statements about indexes up to ``index``, which is applied here now."""
        while self.pending and self.pending[0][0] <= index:
            self.date = max(self.date, self.pending.popleft()[1])

    def date_behind(self, index: int) -> float:
        """Return the date that will hold once everything up to ``index`` is applied here."""
        return max([self.date, *[date for commit, date in self.pending if commit <= index]])

    def led(self, now: float, index: int, applied: int) -> None:
        """Date this member as a leader that has committed in its term, once ``index`` is applied here.

        No member has applied an entry beyond ``index``; see :meth:`applied`.
        """
        date = self.majority_date(now)
        if applied >= index:
            self.date = max(self.date, date)
        else:
            self._pend(index, date)

    def majority_date(self, now: float) -> float:
        """Return the newest time at which a majority, this member included, is known to have accepted us."""
        dates = sorted([now, *self._echoed.values()], reverse=True)
        return dates[self._needed - 1] if len(dates) >= self._needed else -math.inf

    def member_date(self, peer: str) -> float:
        """Return the newest own clock that ``peer`` echoed in this term over its present link."""
        return self._echoed.get(peer, -math.inf)

    def accepted_date(self, peer: str) -> float:
        """Return the newest own clock that ``peer`` echoed in this term over any link, even a closed one."""
        return max(self.member_date(peer), self._echoed_before.get(peer, -math.inf))
