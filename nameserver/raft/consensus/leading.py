"""D35, D37: becoming leader and ceasing to be it, of its own accord as well; changes of the members."""

from __future__ import annotations

import logging
import math

from .core import CANDIDATE, FOLLOWER, LEADER, Surroundings
from .elections import Elections
from .log import CONFIGURATION
from .members import Configuration, encode_configuration
from .messages import TimeoutNow
from .sending import Sending

logger = logging.getLogger(__name__)


class Leading(Elections, Sending):
    """Takes office, hands over, steps down and says why."""

    def __init__(self, given: Surroundings) -> None:
        self._heir: str | None = None  # the linked voter that held most of the log when this one last led
        self._cause = ""  # what this member is doing right now, for the line that says why it stopped leading
        self._handed_over = False  # this leader asked another to take over
        super().__init__(given)

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if term != self.term and self.state == LEADER:  # the library would do so a moment later
            self._cause += f", of term {term}"
            self._SyncObj__setState(FOLLOWER)
        super()._SyncObj__setCurrentTerm(term, votedForNodeId)

    def _SyncObj__setState(self, newState: int) -> None:
        before = self._SyncObj__raftState
        super()._SyncObj__setState(newState)
        if before != newState:
            if before == LEADER:
                voters = self._configuration.voters
                heirs = {n: p.match for n, p in self._progress.items() if n in voters}
                linked = (name for name in heirs if self._host.linked_to(name))
                self._heir = max(linked, key=heirs.__getitem__, default=None)
                self._say_stopped_leading()
            elif newState == CANDIDATE:
                self._say_standing()
            if newState != LEADER:
                self._progress.clear()
            self._host.role_changed()

    def _SyncObj__onBecomeLeader(self) -> None:
        self._handed_over = False
        self._stated = 0
        for name in self._configuration.members:
            if name != self._me:
                self._set_progress(name)
        super()._SyncObj__onBecomeLeader()
        self.leader_changes += 1
        logger.info(
            "leader elected term=%d me=%s last_index=%d", self.term, self.selfNode.id, self._log.last_index
        )

    def step_down(self, reason: str = "asked to") -> None:
        """Stop leading without a new term."""
        if self.state == LEADER:
            self._cause = reason
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None
            self._postpone(self._clock())

    def _say_stopped_leading(self) -> None:
        now = self._clock()
        ages = ((name, now - self._contact.member_date(name)) for name in self._progress)
        answers = ",".join(
            f"{name}:{age * 1000:.0f}" if math.isfinite(age) else f"{name}:never" for name, age in ages
        )
        logger.log(
            logging.INFO if self._handed_over else logging.WARNING,
            "leader steps down me=%s term=%d reason=%s answers_ms=%s own_gap_ms=%.0f",
            self.selfNode.id,
            self.term,
            self._cause,
            answers,
            self._watch.longest * 1000,
        )

    def hand_over(self, to: str | None = None) -> str | None:
        """Ask ``to``, or a voter of our choice, to take over; None if nobody has the whole log."""
        ready = [
            name
            for name, p in self._progress.items()
            if name in self._configuration.voters
            and not p.learner
            and p.match == self._log.last_index
            and self._host.linked_to(name)
        ]
        if self.state != LEADER or not ready or (to is not None and to not in ready):
            return None
        target = to if to is not None else min(ready)
        self._handed_over = True
        self._host.send(target, TimeoutNow(self.term))
        return target

    def change(self, configuration: Configuration) -> str | int:
        """Append another configuration; return its index, or why that must not be.

        D35: the one before must be committed, and an entry of this term, else two majorities without a common
        member could come about. D37: a leader never appends one in which it does not vote. So the member that
        goes never holds the entry that removes it: it is in force here, and is not sent there.
        """
        if self.state != LEADER:
            return "this member does not lead"
        if not self.leads:
            return "the leader has not committed an entry of its own term yet; ask again"
        if self._log.configuration_index > self.commit_index:
            return "another change of the members is under way; ask again"
        if self._me not in configuration.voters:
            return "the leader cannot remove itself"
        index = self._log.last_index + 1
        self._log.add(CONFIGURATION + encode_configuration(configuration), index, self.term)
        self.follow_configuration()
        return index
