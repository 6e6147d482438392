"""D4, D5, D6: who may become leader. Nobody deposes one that works, and a vote counts once."""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from .core import FOLLOWER, LEADER, Surroundings
from .messages import PreVote, PreVoteReply, RequestVote, Stale, VoteReply
from .patience import Patience

logger = logging.getLogger(__name__)

#: Before a silent leader is replaced, what waits in the sockets is read: a fraction of the heartbeat period.
LAST_LOOK: Final = 0.2
#: A member that asks in vain says so at most this often.
ASKING_SAID_EVERY_S: Final = 5.0


class Elections(Patience):
    """Asks before it stands, gives votes and counts them."""

    def __init__(self, given: Surroundings) -> None:
        self._votes: set[str] = set()
        self._pre_term = 0
        self._pre_votes: set[str] = set()
        self._asking_said = -math.inf
        self.elections = 0
        super().__init__(given)

    def follow_configuration(self) -> None:
        super().follow_configuration()
        self._votes.intersection_update(self._configuration.voters)
        self._pre_votes.intersection_update(self._configuration.voters)

    def _ask_before_standing(self, now: float) -> None:
        """D4: a real election, which raises the term, only after a majority said that it would vote for us.

        A member that was cut off or paused cannot depose a working leader: those who hear it refuse. Event
        loops may run due timers before they read sockets, so the last look comes after the deadline.
        """
        deadline = self._SyncObj__raftElectionDeadline
        if deadline >= now or self._go or self._SyncObj__transferInProgress:
            return
        if not self.other_voters and self._host.may_stand:
            return  # nobody to ask
        if math.isfinite(deadline) and deadline != self._last_look_at:
            self._last_look_at = self._SyncObj__raftElectionDeadline = now + LAST_LOOK * self._period
            return
        if self._host.may_stand and (
            self._SyncObj__raftLeader is not None or now - self._asking_said > ASKING_SAID_EVERY_S
        ):
            self._asking_said = now
            logger.info("asking for votes me=%s term=%d %s", self.selfNode.id, self.term + 1, self._ears(now))
        self._SyncObj__raftLeader = None  # silent for an election timeout: nobody knows
        self._ask_again_soon(now)
        if not self._host.may_stand:
            return
        self._pre_term = self.term + 1
        self._pre_votes.clear()
        for name in self.other_voters:
            self._host.send(
                name, PreVote(self._pre_term, self._log.last_index, self._SyncObj__getCurrentLogTerm())
            )

    def _ears(self, now: float) -> str:
        """What this member knows of its leader, for the log."""
        leader = self.leader_id
        linked = "none" if leader is None else "up" if self._host.linked_to(leader) else "down"
        return f"leader={leader} link={linked} {self._silence(now)}"

    def on_pre_vote(self, node: Any, m: PreVote) -> None:
        if m.term <= self.term:
            self._host.send(node.id, Stale(self.term))
            return
        mine = (self._SyncObj__getCurrentLogTerm(), self._log.last_index)
        if (
            self._host.may_vote
            and (m.last_term, m.last_index) >= mine
            and not self._hears_leader(self._clock())
        ):
            if m.term == self._pre_term and node.id > self._me and self.state != LEADER and not self._go:
                # Both ask at once, as after a leader's death: two of them standing would be none elected.
                self._pre_term = 0
                self._ask_again_soon(self._clock(), syncs=True)
            self._host.send(node.id, PreVoteReply(m.term))

    def on_pre_vote_reply(self, node: Any, m: PreVoteReply) -> None:
        if (
            m.term != self._pre_term
            or m.term != self.term + 1
            or self.state == LEADER
            or not self._host.may_stand
        ):
            return
        if node.id in self._configuration.voters:
            self._pre_votes.add(node.id)
        if self.is_majority(len(self._pre_votes)):
            self._go = True
            self._SyncObj__raftElectionDeadline = -math.inf

    def on_request_vote(self, node: Any, m: RequestVote) -> None:
        if m.term < self.term:
            self._host.send(node.id, Stale(self.term))  # D6
        elif self._host.may_vote and (m.transfer or not self._hears_leader(self._clock())):
            self._SyncObj__onMessageReceived(
                node,
                {
                    "type": "request_vote",
                    "term": m.term,
                    "last_log_index": m.last_index,
                    "last_log_term": m.last_term,
                },
            )

    def on_vote_reply(self, node: Any, m: VoteReply) -> None:
        """D5: one vote per voter."""
        if m.term == self.term and node.id not in self._votes and node.id in self._configuration.voters:
            self._votes.add(node.id)
            self._SyncObj__onMessageReceived(node, {"type": "response_vote", "term": m.term})

    def on_stale(self, term: int) -> None:
        """D6: someone is in a later term."""
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None

    def _say_standing(self) -> None:
        self.elections += 1
        reason = "the only member"
        if self._go:
            reason = f"{','.join(sorted(self._pre_votes))} would vote"
        elif self.transferring:
            reason = "asked to take over"
        logger.info(
            "election begun me=%s term=%d reason=%s %s",
            self.selfNode.id,
            self.term + 1,
            reason,
            self._silence(self._clock()),
        )

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if term != self.term:
            self._votes.clear()
            self._contact.new_term()
        super()._SyncObj__setCurrentTerm(term, votedForNodeId)
