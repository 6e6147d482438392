"""Barriers that make reads linearizable: choose a barrier for each read, and decide the leader's answers.

A read may be answered from a member's table once the table has everything that was acknowledged before the
read arrived. A barrier ensures this in three steps:

1. After the read has arrived, the member sends a barrier to the leader.
2. The leader must have committed an entry of its own term. The leader notes its commit index, makes sure that
   it still led after the barrier was sent, and answers with the noted index.
3. The member waits until it has applied this index. Then it answers the read.

A barrier writes nothing to the journal.

All reads that arrive before a barrier is sent share this barrier. Later reads wait for the next barrier,
which is sent after the present barrier is answered. So the number of messages does not depend on the number
of reads.

The leader makes sure that it still led after the barrier was sent. For this, a majority of voters must have
been in the leader's term at some time after the barrier was sent. The leader is one of these voters.

- The voter that sent the barrier was in the term after the read arrived, so the leader need not ask it. In a
  cluster of three voters, this voter and the leader are the majority.
- The leader asks other voters in a *round*. It sends them a round number, and they send the number back in a
  message of the same term. In a cluster of five voters, one such answer completes the majority.
- Only a round that began after the barrier arrived counts. An earlier round may have begun for another
  member's barrier, which was sent before this read arrived.

A round number is a logical clock, and is echoed like the clocks in
:mod:`routekeeper.nameserver.raft.consensus.contact`.

Proof: let a write be acknowledged in term U, before the read arrived, and let the leader's term be T.

- U above T is impossible. A majority voted in U before the write was acknowledged, so before the read
  arrived. This majority shares a voter with the majority that confirmed T. The shared voter was in U before
  the read arrived, and in T after it arrived. But a voter's term never falls.
- If U is T or below, the leader has the entry: it won T with a majority's votes, or appended the entry
  itself. The leader's ``read_index`` covers the entry once an entry of the leader's own term is committed.
- A follower may acknowledge the write before the leader has applied it. But the follower knows from the
  leader that the entry is committed. So ``read_index``, the leader's commit index, is not below this entry.

A barrier that waited in a buffer does no harm. It was sent after its reads arrived, and the leader reads its
commit index even later.

This module does no I/O: the caller passes in times, in seconds of the loop's clock. There is no lock, no
future and no callback.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from routekeeper.nameserver.raft.consensus.members import majority

from .peer_messages import ReadIndex, ReadIndexReply

Route = tuple[int, str, int]
"""The leader to which a barrier is sent: term, name of the leader, and number of the link to the leader."""

RESEND_S: Final = 1.0
"""Seconds after which an unanswered barrier is replaced by a new barrier, even over the same link."""


GATHER_S: Final = (0.001, 0.004)
"""Shortest and longest time in seconds for which the next barrier waits for more reads (gathering).

A barrier costs more than a read, and a client that reads in a loop soon sends its next read. So the next
barrier waits for an expected number of reads: the number of reads that the last barrier served, plus the
number of reads that wait already. If this number of reads arrives in time, the next wait may take the longest
time. Otherwise the limit for the next wait is halved, down to the shortest time. A single reader never waits.

On quiet cores, three members answer 21 to 33 thousand linearizable reads/s with gathering, and 11 to 15
thousand without gathering (docs/decisions.md)."""


class Barriers:
    """The reads of one process, and the barriers that they wait for.

    Barriers are numbered from 1. A read gets the number of its barrier as a ticket. The read may be answered
    once :attr:`passed` is equal to the ticket or higher: a barrier also serves reads with lower tickets.

    Attributes:
        sent: Number of barriers sent so far, repetitions included.
        passed: Reads with tickets up to this number may be answered.
        joined: Number of reads that joined the next barrier.
        expected: Number of reads for which the next barrier waits.
        gather_until: Time at which the next barrier is sent without waiting for more reads.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.passed = 0
        self.joined = 0
        self.expected = 0
        self.gather_until = 0.0
        self._gather_s = GATHER_S[0]
        # Number of reads that the sent barriers serve, counted anew each time when all sent barriers have
        # passed.
        self._served = 0
        self._wanted = 0  # number of the latest barrier that a read joined
        self._sent_at = 0.0
        self._route: Route | None = None
        self._confirmed = 0  # latest barrier for which the leader sent an index
        # barriers whose index is not applied yet, as (barrier, index) in rising order
        self._indexes: list[tuple[int, int]] = []

    def join(self) -> int:
        """Return the ticket of a read that arrives now: the number of the next barrier."""
        self.joined += 1
        self._wanted = self.sent + 1
        return self._wanted

    def to_send(self, route: Route | None, *, now: float) -> int | None:
        """Return the number of a barrier to send now over ``route``; None if no barrier must be sent.

        One barrier is under way at a time. If a barrier was sent to another leader, or over a link that is
        closed now, it is not under way any more, because no answer is expected.
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
        """Undo the last :meth:`to_send`, because the message could not be sent; the barrier is sent again."""
        self._route = None

    def confirmed(self, number: int, index: int) -> None:
        """Record the leader's answer: a table that has applied ``index`` serves the reads of this barrier.

        Args:
            number: Number of the barrier.
        """
        if self._confirmed < number <= self.sent:
            self._confirmed = number
            self._indexes.append((number, index))

    def applied(self, index: int, *, now: float) -> None:
        """Record that this process's table has the entries up to ``index``."""
        indexes = self._indexes
        # Begin with the latest barrier: if its index is applied, all earlier barriers may pass, too.
        for at in range(len(indexes) - 1, -1, -1):
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
    """A leader's record of one term: the members that sent barriers, and the voters that confirmed the term.

    In a round the leader asks the voters if they are still in its term. One round is under way at a time. If
    a member sends a barrier during a round, its barrier waits for the next round. Rounds are numbered from 1.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self.number = 0
        """Number of the latest round; 0 before the first round."""
        self.asked: dict[str, ReadIndex] = {}
        """Newest barrier (message) of each member that waits for the next round. In this leader's own message
        ``voter`` is false, because the leader is counted in every round anyway."""
        self.round: dict[str, ReadIndex] = {}
        """Barriers (messages) that the round under way will answer; empty if no round is under way."""
        self._round_index = 0  # commit index at the beginning of the round
        self.confirmed_by: set[str] = set()
        """Voters that have answered the round under way."""

    def confirms(self, member: str, round_: int) -> None:
        """Record a voter's answer to a round: the voter was still in the term after the round began."""
        if round_ == self.number:
            self.confirmed_by.add(member)

    def settle(self, *, commit_index: int, voters: Collection[str]) -> list[tuple[str, ReadIndexReply]]:
        """Return the answers to barriers for which a majority has confirmed the term.

        Call this method only after an entry of this leader's own term is committed.

        Args:
            voters: The voters of the configuration in force, this leader included.
        """
        confirmed: list[tuple[str, ReadIndexReply]] = []
        enough = majority(len(voters)) - 1  # number of voters needed besides the leader
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
        """Begin a round if a member waits for the next round and no round is under way.

        Returns:
            The number of the round, which the caller must send to the voters; None if no round begins.
        """
        if not self.asked or self.round:
            return None
        self.number += 1
        self.confirmed_by.clear()
        self.round, self.asked = self.asked, self.round
        self._round_index = commit_index
        return self.number
