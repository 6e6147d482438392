"""The leader's side of linearizable reads: asks the voters, and answers the barriers that are certain.

What makes a leader certain is decided in :mod:`nameserver.replicated.barriers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from nameserver.raft.consensus.members import majority

from .barriers import Barriers, Confirmations
from .leadership import Leadership
from .peer_messages import ReadIndex, ReadIndexCheck, ReadIndexCheckReply, ReadIndexReply
from .surroundings import Part, Surroundings

ASK_ALL_S: Final = 0.05
"""A round of barriers asks as many voters as it needs, and everybody if it is not over after this time."""


class ReadIndexRounds(Part):
    """Carries a leader's rounds to the voters and back, and its certainty to those who asked.

    Attributes:
        confirmed: Barriers answered, to other members and to itself.
        begun: Rounds that those needed.

    Args:
        barriers: Of this member's own reads.
        on_own: Called when barriers of this member may have been answered.
    """

    def __init__(
        self, given: Surroundings, leadership: Leadership, barriers: Barriers, *, on_own: Callable[[], None]
    ) -> None:
        self.confirmed = self.begun = 0
        super().__init__(given)
        self._leadership = leadership
        self._barriers = barriers
        self._on_own = on_own
        self._near: list[str] = []  # voters, who spoke of barriers last first
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, member: str, barrier: ReadIndex) -> None:
        """Take a member's question, or one of this leader's own reads: then ``voter`` is false, see
        :meth:`Confirmations.ask`.
        """
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
        rounds.ask(member, barrier)
        self.settle()

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
            self.settle()

    def settle(self) -> None:
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
            for answer in confirmed:
                if answer.member == self._me:
                    self._barriers.confirmed(answer.number, answer.commit_index)
                else:
                    # A lost one is no harm: the link is gone, and the barrier is sent again.
                    self._send(answer.member, ReadIndexReply(number=answer.number, index=answer.commit_index))
            self._on_own()
            index = member.read_index_in(rounds.term)
            if index is None:
                return
        if rounds.begin(commit_index=index) is not None:
            self.begun += 1
            enough = majority(len(voters)) - 1
            self._ask_voters(rounds, self._near[:enough])
            if self._timer is None:
                wait_s = ASK_ALL_S if len(self._near) >= enough else 0.0
                self._timer = self._loop.call_later(wait_s, self._ask_all)

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
        self._timer = None
        rounds = self._leadership.rounds
        if rounds is not None and rounds.round and not self._given.closing:
            self._ask_voters(rounds, sorted(self._member.linked - rounds.confirmed_by))
            self._timer = self._loop.call_later(ASK_ALL_S, self._ask_all)
