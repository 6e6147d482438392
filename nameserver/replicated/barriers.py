"""Barriers that make reads linearizable: which one a read waits for, and when the leader may answer one.

A read may be answered from a member's table once that holds everything that was acknowledged before the read
arrived. A barrier finds out: the member asks the leader, *after* the read arrived; the leader, with an entry
of its own term committed, takes its commit index and makes sure that it still led when it was asked; the
member waits until it has applied that index. Nothing is written to the journal.

All reads that arrive before a barrier is sent share it; reads that arrive later wait for the next one, which
is sent when the answer is here. So reads cost a fixed number of messages a round trip, however many they are.

What makes a leader sure: a majority of voters, itself included, that had not left its term at some instant
after the barrier was sent. A voter that asks says so by asking: it was in the term, after the read arrived.
Others are asked, and echo the number of a *round* that began after the barrier arrived, in a message of the
same term. This is the echoed clock of :mod:`routekeeper.nameserver.raft.consensus.contact` with a logical
clock.

Why that is enough. Let a write be acknowledged before the read arrived, in term U. If U is above the leader's
term T, a majority voted in U before the write was acknowledged, so before the read arrived; it shares a voter
with the majority above, which was still in T after that: a contradiction, for no term falls. If U is below T
or is T, the leader has the entry: it won T with a majority's votes, or appended the entry itself, and what it
states (``read_index``) covers it once an entry of its own term is committed; an answer that a follower gave
early, by what it holds itself, is covered because ``read_index`` is never below what was stated to it. Of
three voters, the asker and the leader are such a majority; of five, one more is asked, in a round that begins
after the barrier came, because another member's barrier may have been sent before this read arrived. A
barrier that waited in a buffer does no harm: it speaks of the instant at which it was sent, which is after
its reads arrived, and the index is read later still.

Pure: instants are loop times in seconds that are passed in. No lock, no future, no callback.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from routekeeper.nameserver.raft.consensus.members import majority

from .peer_messages import ReadIndex, ReadIndexReply

Route = tuple[int, str, int]
"""Term, leader, and the number of the link to it: where a barrier was sent."""

RESEND_S: Final = 1.0
"""A barrier without an answer is replaced after this time, though leader and link seem unchanged."""


GATHER_S: Final = (0.001, 0.004)
"""Shortest and longest time (s) for which the next barrier waits for as many reads as the last one served and
as wait already. Clients that read again and again read again soon, and a barrier costs more than a read. The
longer time is for reads that came back in time; each time that they did not, it is halved. A single reader
never waits, nor does a read that comes later.

On quiet cores three members answer 21 to 33 thousand linearizable reads/s, without gathering 11 to 15
(docs/decisions.md)."""


class Barriers:
    """The reads of one process, and the barriers that they wait for.

    Barriers are numbered from 1. A read gets the number of the barrier that it joined as a ticket, and may
    be answered once :attr:`passed` has reached it: a later barrier does for earlier reads too.

    Attributes:
        sent: Barriers sent so far, those sent again included.
        passed: Reads with tickets up to this one may be answered.
        joined: Reads of the barrier that is sent next.
        expected: Reads to wait for before it is sent.
        gather_until: Until when they are waited for.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.passed = 0
        self.joined = 0
        self.expected = 0
        self.gather_until = 0.0
        self._gather_s = GATHER_S[0]
        self._served = 0  # reads of the barriers that are under way
        self._wanted = 0  # the latest barrier that a read joined
        self._sent_at = 0.0
        self._route: Route | None = None
        self._confirmed = 0  # the latest whose index is known
        self._indexes: list[tuple[int, int]] = []  # (number, index) not applied yet, rising numbers

    def join(self) -> int:
        """Return the ticket of a read that arrives now: that of the next barrier to be sent."""
        self.joined += 1
        self._wanted = self.sent + 1
        return self._wanted

    def to_send(self, route: Route | None, *, now: float) -> int | None:
        """Return the number of a barrier to send now over ``route``, None if nothing is to be sent.

        One is under way at a time. One that was sent to another leader, or over a link that is gone, has
        no answer to wait for.
        """
        if route is None or self._wanted <= self._confirmed:
            return None
        if self.sent > self._confirmed and self._route == route and now - self._sent_at < RESEND_S:
            return None
        if self.joined < self.expected and now < self.gather_until:
            return None
        if self.expected > 1:
            in_time = self.joined >= self.expected
            self._gather_s = GATHER_S[1] if in_time else max(self._gather_s / 2, GATHER_S[0])
        self._served += self.joined
        self.joined = self.expected = 0
        self.sent += 1
        self._wanted = max(self._wanted, self.sent)
        self._route = route
        self._sent_at = now
        return self.sent

    def not_sent(self) -> None:
        """Take back the last :meth:`to_send`: the message could not leave."""
        self._route = None

    def confirmed(self, number: int, index: int) -> None:
        """A leader was certain: a table applied up to ``index`` has all that barrier ``number`` asks for."""
        if self._confirmed < number <= self.sent:
            self._confirmed = number
            self._indexes.append((number, index))

    def applied(self, index: int, *, now: float) -> None:
        """Entries up to ``index`` are in this process's table."""
        indexes = self._indexes
        for at in range(
            len(indexes) - 1, -1, -1
        ):  # a caller that passed a later one has passed all before it
            number, needed = indexes[at]
            if needed <= index:
                del indexes[: at + 1]
                self.passed = number
                if number == self.sent:
                    self.expected = self._served + self.joined
                    self._served = 0
                    self.gather_until = now + self._gather_s
                return


class Confirmations:
    """The leader's side of the barriers of one term: members that asked, voters that confirmed it.

    One round is under way at a time; members that ask meanwhile get the next one. Rounds are numbered from 1.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self.number = 0
        """Of the latest round."""
        self.asked: dict[str, ReadIndex] = {}
        """The newest question of each member that waits for the next round, of this leader itself, too: its
        ``voter`` is false, for it is counted anyway."""
        self.round: dict[str, ReadIndex] = {}
        """Those that the round under way is for; empty if it is over."""
        self._round_index = 0  # what was committed when it began
        self.confirmed_by: set[str] = set()
        """Voters that have answered the round under way."""

    def confirms(self, member: str, round_: int) -> None:
        """A voter answered a round: after it began, the member had not left the term."""
        if round_ == self.number:
            self.confirmed_by.add(member)

    def settle(self, *, commit_index: int, voters: Collection[str]) -> list[tuple[str, ReadIndexReply]]:
        """Return the answers that are certain now. Only while an entry of the own term is committed.

        Args:
            voters: Of the configuration in force; this leader counts, whether or not it is one.
        """
        confirmed: list[tuple[str, ReadIndexReply]] = []
        enough = majority(len(voters)) - 1  # voters beside the leader
        by = self.confirmed_by.intersection(voters)
        for questions, index, confirming in (
            (self.round, self._round_index, by),
            (self.asked, commit_index, set[str]()),
        ):
            for member, question in list(questions.items()):
                one_more = question.voter and member in voters and member not in confirming
                if len(confirming) + one_more >= enough:
                    confirmed.append((member, ReadIndexReply(number=question.number, index=index)))
                    del questions[member]
        return confirmed

    def begin(self, *, commit_index: int) -> int | None:
        """Begin a round if one is needed and none is under way.

        Returns:
            Its number, which voters are to be asked for; None if no round begins.
        """
        if not self.asked or self.round:
            return None
        self.number += 1
        self.confirmed_by.clear()
        self.round, self.asked = self.asked, self.round
        self._round_index = commit_index
        return self.number
