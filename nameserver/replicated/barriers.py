"""Barriers that make reads linearizable: the barrier that a read joins, and when the leader may answer it.

A read may be answered from a member's table once the table holds everything that was acknowledged before the
read arrived. A barrier ensures that. *After* the read arrived, the member asks the leader. The leader must
have committed an entry of its own term; it takes its commit index and makes sure that it still led when it
was asked. The member waits until it has applied that index. Nothing is written to the journal.

All reads that arrive before a barrier is sent share it. Later ones wait for the next barrier, which is sent
after the answer to the present one. So reads cost a fixed number of messages a round trip, for any number
of reads.

A leader is sure when a majority of voters, itself included, had not left its term at some time after the
barrier was sent. A voter that sends a barrier proves this by sending it: it was in the term after the read
arrived. Other voters are asked. They echo the number of a *round* that began after the barrier arrived, in a
message of the same term. This is the echoed clock of
:mod:`routekeeper.nameserver.raft.consensus.contact` with a logical clock.

Proof: let a write be acknowledged in term U, before the read arrived, and let the leader's term be T.

- U above T is impossible. A majority voted in U before the write was acknowledged, so before the read
  arrived. It shares a voter with the majority above, which was still in T later; but no voter's term
  falls.
- If U is T or below, the leader has the entry: it won T with a majority's votes, or appended the entry
  itself. Its ``read_index`` covers the entry once an entry of its own term is committed. If a follower
  answered early, from its own log, the leader had sent it the commit index, and ``read_index`` is never
  below that.

Of three voters, the asker and the leader are such a majority. Of five, one more is asked, in a round that
begins after the barrier arrived, because another member's barrier may have been sent before this read
arrived. A barrier that waited in a buffer does no harm: it was sent after its reads arrived, and the index is
read later.

Pure: times are loop times in seconds that are passed in. No lock, no future, no callback.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from routekeeper.nameserver.raft.consensus.members import majority

from .peer_messages import ReadIndex, ReadIndexReply

Route = tuple[int, str, int]
"""The recipient of a barrier: term, leader, and the number of the link to the leader."""

RESEND_S: Final = 1.0
"""A barrier without an answer is replaced after this time in seconds, even over the same link."""


GATHER_S: Final = (0.001, 0.004)
"""Shortest and longest time in seconds for which the next barrier waits for more reads (gathering).

A barrier costs more than a read, and clients that read in a loop send the next read soon. So the next barrier
waits for as many reads as the last barrier served, plus the reads that wait already. If they come in time,
the longest time applies; each time that they do not, the time is halved. A single reader never waits.

On quiet cores, three members answer 21 to 33 thousand linearizable reads/s with gathering, and 11 to 15
thousand without (docs/decisions.md)."""


class Barriers:
    """The reads of one process, and the barriers that they wait for.

    Barriers are numbered from 1. A read gets the number of its barrier as a ticket, and may be answered once
    :attr:`passed` has reached it: a later barrier serves earlier reads, too.

    Attributes:
        sent: Number of barriers sent so far, repetitions included.
        passed: Reads with tickets up to this one may be answered.
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
        self._served = 0  # number of reads that the barriers under way serve
        self._wanted = 0  # the latest barrier that a read joined
        self._sent_at = 0.0
        self._route: Route | None = None
        self._confirmed = 0  # the latest barrier with a known index
        self._indexes: list[tuple[int, int]] = []  # (number, index) not applied yet, with rising numbers

    def join(self) -> int:
        """Return the ticket of a read that arrives now: the number of the next barrier."""
        self.joined += 1
        self._wanted = self.sent + 1
        return self._wanted

    def to_send(self, route: Route | None, *, now: float) -> int | None:
        """Return the number of a barrier to send now over ``route``, None if none must be sent.

        One barrier is under way at a time. A barrier that went to another leader, or over a link that is
        gone, does not count, because no answer to it is expected.
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
        """Undo the last :meth:`to_send`, because the message could not be sent."""
        self._route = None

    def confirmed(self, number: int, index: int) -> None:
        """Record the leader's answer: a table that has applied ``index`` serves the reads of barrier
        ``number``.
        """
        if self._confirmed < number <= self.sent:
            self._confirmed = number
            self._indexes.append((number, index))

    def applied(self, index: int, *, now: float) -> None:
        """Record that this process's table has the entries up to ``index``."""
        indexes = self._indexes
        for at in range(len(indexes) - 1, -1, -1):  # a barrier that passed lets all earlier ones pass
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
    """The leader's work for the barriers of one term: the members that asked, and the voters that confirmed
    it.

    One round is under way at a time; members that ask meanwhile wait for the next one. Rounds are numbered
    from 1.
    """

    def __init__(self, *, term: int) -> None:
        self.term = term
        self.number = 0
        """Number of the latest round; 0 before the first."""
        self.asked: dict[str, ReadIndex] = {}
        """The newest question of each member that waits for the next round. This leader's own question has
        ``voter`` false, because the leader counts anyway."""
        self.round: dict[str, ReadIndex] = {}
        """The questions that the round under way will answer; empty if no round is under way."""
        self._round_index = 0  # commit index when the round began
        self.confirmed_by: set[str] = set()
        """Voters that have answered the round under way."""

    def confirms(self, member: str, round_: int) -> None:
        """Record a voter's answer to a round: the member had not left the term after the round began."""
        if round_ == self.number:
            self.confirmed_by.add(member)

    def settle(self, *, commit_index: int, voters: Collection[str]) -> list[tuple[str, ReadIndexReply]]:
        """Return the answers that are certain now. Call it only after an entry of the own term is committed.

        Args:
            voters: The voters of the configuration in force; this leader always counts, even as no voter.
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
            The number of the round, for the question to voters; None if no round begins.
        """
        if not self.asked or self.round:
            return None
        self.number += 1
        self.confirmed_by.clear()
        self.round, self.asked = self.asked, self.round
        self._round_index = commit_index
        return self.number
