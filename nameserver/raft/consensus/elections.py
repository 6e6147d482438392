"""Elections that never replace a working leader.

A member asks for pre-votes before each election, and counts each voter once. This module repairs PySyncObj's
defects D4, D5 and D6 (docs/pysyncobj-defects.md).
"""

from __future__ import annotations

import logging
import math
from typing import Final

from routekeeper.nameserver.raft.library import LEADER

from .messages import PreVote, PreVoteReply, RequestVote, Stale, TimeoutNow, VoteReply
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)

#: Time from the election deadline to the request for pre-votes, in heartbeat periods. In this time the member
#: reads the messages that wait in its sockets, because they may show that the leader works.
LAST_LOOK: Final = 0.2
#: Shortest time in seconds between two log lines of a member that asks for pre-votes in vain.
ASKING_SAID_EVERY_S: Final = 5.0


class Elections(EnginePart):
    """The part of the engine for elections.

    It handles pre-votes itself. It checks received votes, and requests for this member's vote, before it
    passes them to the library (PySyncObj).

    Attributes:
        elected_if_standing: True if a majority promised its votes. This member then stands for election in
            the next tick.
        count: Number of elections that this member began.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._votes: set[str] = set()
        self._pre_term = 0
        self._pre_votes: set[str] = set()
        self._asking_said = -math.inf
        self.elected_if_standing = False
        self.count = 0

    def ask_before_standing(self, now: float) -> None:
        """Ask for pre-votes, and allow an election only if a majority promises its votes.

        Members that receive the leader's messages refuse a pre-vote. Therefore a member that was cut off or
        paused cannot replace a working leader, and does not raise the term (repairs PySyncObj defect D4).

        After a pause, an event loop may run a due timer before it reads the messages in its sockets.
        Therefore this member reads the sockets once more after the election deadline, before it asks for
        pre-votes.
        """
        library, shared = self._library, self.shared
        deadline = library.election_deadline
        if deadline >= now or self.elected_if_standing or library.transfer_in_progress:
            return
        if not shared.other_voters and shared.may_stand:
            return  # without other voters, this member stands for election without pre-votes
        if math.isfinite(deadline) and deadline != shared.last_look_at:
            shared.last_look_at = library.election_deadline = now + LAST_LOOK * shared.period
            return
        if shared.may_stand and (library.leader is not None or now - self._asking_said > ASKING_SAID_EVERY_S):
            self._asking_said = now
            logger.info("asking for votes me=%s term=%d %s", self._me, library.term + 1, self._heard(now))
        library.forget_leader()  # the leader was silent for a whole election timeout
        shared.ask_again_soon(now)
        if not shared.may_stand:
            return
        self._pre_term = library.term + 1
        self._pre_votes.clear()
        for name in shared.other_voters:
            self._effects.send(name, PreVote(self._pre_term, self._log.last_index, self._log.last_term))

    def _heard(self, now: float) -> str:
        """Return a log text with the leader, the state of its link, and the age of its last message."""
        leader = self._library.leader
        linked = "none" if leader is None else "up" if leader in self._effects.greeted else "down"
        return f"leader={leader} link={linked} {self.shared.silence(now)}"

    def on_pre_vote(self, peer: str, m: PreVote) -> None:
        library = self._library
        if m.term <= library.term:
            self._effects.send(peer, Stale(library.term))
            return
        has_all = (m.last_term, m.last_index) >= (self._log.last_term, self._log.last_index)
        if has_all and self.shared.may_vote and not self.shared.hears_leader(self._clock()):
            both_ask = m.term == self._pre_term and library.state != LEADER
            if both_ask and peer > self._me and not self.elected_if_standing:
                # Both members ask for pre-votes at the same time, for example after the leader's death. Let
                # the peer stand for election first. If both members stood, neither could get a majority.
                self._pre_term = 0
                self.shared.ask_again_soon(self._clock(), syncs=True)
            self._effects.send(peer, PreVoteReply(m.term))

    def on_pre_vote_reply(self, peer: str, m: PreVoteReply) -> None:
        library = self._library
        asked = m.term == self._pre_term == library.term + 1 and library.state != LEADER
        if not (asked and self.shared.may_stand):
            return
        self._pre_votes.add(peer)
        if self.shared.is_majority(self._pre_votes):
            self.elected_if_standing = True
            self.shared.stand_now()

    def on_request_vote(self, peer: str, m: RequestVote) -> None:
        now = self._clock()
        if self.shared.may_vote and (m.transfer or not self.shared.hears_leader(now)):
            self._library.vote_request(now, peer, term=m.term, last_index=m.last_index, last_term=m.last_term)

    def on_vote_reply(self, peer: str, m: VoteReply) -> None:
        """Count at most one vote of each voter, even if the voter's message arrives twice.

        PySyncObj counts messages instead of voters (its defect D5).
        """
        voters = self.shared.configuration.voters
        if m.term == self._library.term and peer not in self._votes and peer in voters:
            self._votes.add(peer)
            self._library.vote(self._clock(), peer, term=m.term)

    def on_stale(self, peer: str, m: Stale) -> None:
        """Change to the newer term that ``m`` names (repairs PySyncObj defect D6)."""
        if m.term > self._library.term:
            self._library.become_follower(m.term)

    def on_timeout_now(self, peer: str, m: TimeoutNow) -> None:
        if self.shared.may_stand:
            self._library.timeout_now(self._clock(), peer, term=m.term)

    def term_begins(self) -> None:
        self._votes.clear()

    def say_standing(self) -> None:
        """Count and log an election that this member begins."""
        self.count += 1
        reason = "the only member"
        if self.elected_if_standing:
            reason = f"{','.join(sorted(self._pre_votes))} would vote"
        elif self._library.transferring:
            reason = "asked to take over"
        term, silence = self._library.term + 1, self.shared.silence(self._clock())
        self._say(self._me, "election begun me=%s term=%d reason=%s %s", self._me, term, reason, silence)
