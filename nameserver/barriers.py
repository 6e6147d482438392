"""Barriers that make reads linearizable: which one a read waits for, and when the leader may answer one.

A read may be answered from a member's table once that holds everything that was acknowledged before the read
arrived. A barrier finds out: the member asks the leader, *after* the read arrived; the leader, with an entry
of its own term committed, takes its commit index and makes sure that it still led when it was asked; the
member waits until it has applied that index. Nothing is written to the journal.

All reads that arrive before a barrier is sent share it; reads that arrive later wait for the next one, which
is sent when the answer is here. So reads cost a fixed number of messages a round trip, however many they are.

What makes a leader sure: a majority of voters, itself included, that had not left its term at some instant
after the barrier was sent. The asking voter says so by asking. The others say so by echoing a clock that the
leader read after the barrier arrived (:mod:`nameserver.raft.contact`): a *round*.

Pure: instants are loop times in seconds that are passed in. No lock, no future, no callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

Route = tuple[int, str, int]
"""Term, leader, and the number of the link to it: where a barrier was sent."""

RESEND_S: Final = 1.0
"""A barrier without an answer is replaced after this time, though leader and link seem unchanged."""


class Barriers:
    """The reads of one process, and the barriers that they wait for.

    Barriers are numbered from 1. A read gets the number of the barrier that it joined as a ticket, and may
    be answered once :attr:`passed` has reached it: a later barrier does for earlier reads too.
    """

    def __init__(self) -> None:
        self._wanted = 0  # the latest barrier that a read joined
        self._sent = 0
        self._sent_at = 0.0
        self._route: Route | None = None
        self._confirmed = 0  # the latest whose index is known
        self._indexes: list[tuple[int, int]] = []  # (number, index) not applied yet, rising numbers
        self._passed = 0

    @property
    def sent(self) -> int:
        """Barriers sent so far, those sent again included."""
        return self._sent

    @property
    def passed(self) -> int:
        """Reads with tickets up to this one may be answered."""
        return self._passed

    def join(self) -> int:
        """Return the ticket of a read that arrives now: that of the next barrier to be sent."""
        self._wanted = self._sent + 1
        return self._wanted

    def to_send(self, route: Route | None, *, now: float) -> int | None:
        """Return the number of a barrier to send now over ``route``, None if nothing is to be sent.

        One is under way at a time. One that was sent to another leader, or over a link that is gone, has
        no answer to wait for.
        """
        if route is None or self._wanted <= self._confirmed:
            return None
        if self._sent > self._confirmed and self._route == route and now - self._sent_at < RESEND_S:
            return None
        self._sent += 1
        self._wanted = max(self._wanted, self._sent)
        self._route = route
        self._sent_at = now
        return self._sent

    def not_sent(self) -> None:
        """Take back what :meth:`to_send` said last: the message could not leave."""
        self._route = None

    def confirmed(self, number: int, index: int) -> None:
        """A leader was certain: a table applied up to ``index`` has all that barrier ``number`` asks for."""
        if self._confirmed < number <= self._sent:
            self._confirmed = number
            self._indexes.append((number, index))

    def applied(self, index: int) -> None:
        """Entries up to ``index`` are in this process's table."""
        while self._indexes:
            done = [at for at, (_, needed) in enumerate(self._indexes) if needed <= index]
            if not done:
                return
            self._passed = self._indexes[done[-1]][0]
            del self._indexes[: done[-1] + 1]


class Certain(Protocol):
    """Whether a majority of voters stood by this leader since an instant, counting ``asker`` as one.

    Without an instant nobody but the leader and the asker counts.
    """

    def __call__(self, since: float | None, *, asker: str | None) -> bool: ...


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What the leader answers: ``member``'s barrier ``number`` is passed by a table applied to ``index``."""

    member: str
    number: int
    index: int


class Rounds:
    """The leader's side of the barriers of one term: who asked, and which round makes it certain.

    One round is under way at a time; who asks meanwhile gets the next one.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self._asked: dict[str, tuple[int, bool]] = {}  # newest number of each member, whether it votes
        self._round: dict[str, tuple[int, bool, int]] = {}  # the same with the commit index
        self._since: float | None = None

    @property
    def pending(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._asked or self._round)

    def ask(self, member: str, number: int, *, voter: bool) -> None:
        """A member, or this leader itself, asks; a later question of a member replaces its earlier ones.

        Args:
            voter: It votes, so by asking it stands by this leader. Never of the leader itself, which is
                counted anyway.
        """
        self._asked[member] = number, voter

    def settle(
        self,
        *,
        commit_index: int,
        certain: Certain,
        begin: Callable[[], float],
    ) -> list[Confirmed]:
        """Return what is certain now; begins a round if one is needed. Only while an own entry is committed.

        Args:
            begin: Has a message sent to every voter; returns the clock that its echo must reach.
        """
        confirmed: list[Confirmed] = []
        if self._since is not None:
            for member, (number, voter, index) in list(self._round.items()):
                if certain(self._since, asker=member if voter else None):
                    confirmed.append(Confirmed(member, number, index))
                    del self._round[member]
            if not self._round:
                self._since = None
        for member, (number, voter) in list(self._asked.items()):
            if certain(None, asker=member if voter else None):
                confirmed.append(Confirmed(member, number, commit_index))
                del self._asked[member]
        if self._asked and self._since is None:
            # The clock is read after all of them have asked.
            self._round = {m: (number, voter, commit_index) for m, (number, voter) in self._asked.items()}
            self._asked.clear()
            self._since = begin()
        return confirmed
