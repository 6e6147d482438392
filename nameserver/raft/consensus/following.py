"""D1, D2, D7: what a follower takes from its leader, what it commits, and what it acknowledges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .core import FOLLOWER, Surroundings
from .messages import ALIVE, MATCH, RESET, Append, AppendReply, Stale
from .patience import Patience

logger = logging.getLogger(__name__)


class Following(Patience):
    """Keeps its log equal to the leader's and says how far it is, once that is durable."""

    def __init__(self, given: Surroundings) -> None:
        self._matched = 0  # our log equals the current leader's up to here
        self._acknowledged = 0
        self._leader_durable = 0  # what the current leader said that is durable there
        self._reply_seq = 0
        self.refused_truncations = 0
        super().__init__(given)

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if term != self.term:
            self._matched = self._acknowledged = self._leader_durable = 0
        super()._SyncObj__setCurrentTerm(term, votedForNodeId)

    def follow(self, node: Any, term: int, commit: int = 0) -> None:
        """Accept ``node`` as leader of ``term``.

        D2: ``commit`` is only ever an index up to which our log was checked against the leader's; a piece of
        a snapshot says nothing about the log and brings 0.
        """
        self._accept(node, {"type": "append_entries", "term": term, "commit_index": commit})

    def _accept(self, node: Any, message: Mapping[str, Any]) -> None:
        """Hand the library what the leader said, after the checks that it lacks."""
        if self.leader_id != node.id:
            self.leader_changes += 1
            logger.info("leader changed term=%d leader=%s", message["term"], node.id)
        self._heard = self._clock()
        self._watch.heard()
        self._SyncObj__onMessageReceived(node, message)

    def on_append(self, node: Any, m: Append) -> None:
        """D1: keep what matches; drop only from the first entry that differs, never a committed one."""
        if m.term < self.term:
            self._host.send(node.id, Stale(self.term))
            return
        log = self._log
        prev, prev_term, entries = m.prev_index, m.prev_term, m.entries
        if prev < log.base_index:  # our image covers it, so it is committed and the same
            entries = entries[log.base_index - prev :]
            prev = log.base_index
        elif log.term_at(prev) != prev_term:
            self.follow(node, m.term)
            self._heard_statement(node.id, m)
            # D18: one step back to what is certainly the same, not one entry a heartbeat.
            hint = log.last_index + 1 if prev > log.last_index else self.commit_index + 1
            self._reply(node.id, m.seq, RESET, hint)
            return
        kept = 0
        while kept < len(entries) and log.term_at(prev + 1 + kept) == entries[kept][0]:
            kept += 1
        match, rest = prev + kept, entries[kept:]
        if rest and match < min(log.last_index, max(self.commit_index, self.applied_index)):
            self.refused_truncations += 1
            logger.critical(
                "truncation refused index=%d commit_index=%d leader=%s term=%d: committed entries differ",
                match + 1,
                self.commit_index,
                node.id,
                m.term,
            )
            return
        if rest:
            self._accept(
                node,
                {
                    "type": "append_entries",
                    "term": m.term,
                    "commit_index": min(m.commit, match + len(rest)),
                    "prevLogIdx": match,
                    "prevLogTerm": log.term_at(match),
                    "entries": [(command, match + 1 + i, term) for i, (term, command) in enumerate(rest)],
                },
            )
            if log.configuration is not self._configuration:
                self.follow_configuration()
        else:
            self.follow(node, m.term, min(m.commit, match))
        self._matched = max(self._matched, match + len(rest))
        self._reply_seq = max(self._reply_seq, m.seq)
        self._leader_durable = max(self._leader_durable, m.durable)
        self._heard_statement(node.id, m)
        durable = min(self._matched, log.durable_index)
        if m.beat or (entries and durable == self._matched):
            self._acknowledge(durable)
        self.commit_early()

    def _heard_statement(self, leader: str, m: Append) -> None:
        bound = max(m.commit, m.durable)
        self._contact.stated_by_leader(leader, clock=m.clock, echo=m.echo, age=m.age, commit=bound)

    def commit_early(self) -> None:
        """Follower: what is durable at the leader and here is committed, before the leader says so.

        An entry of the leader's own term that a majority of the voters has stored durably while in that term
        is committed; it does not take a leader that knows it. Of three voters, the leader and this one are
        a majority. The entry at ``index`` is durable at the leader, which said so in this term (what was said
        in another is dropped with the term); it is durable here, as this member, a voter with all that it
        ever promised (D25), has it in its journal; it is the same one, since ``index`` is not beyond what was
        compared with the leader's log in this term. Whoever is elected later needs the vote of one of the
        two, which it gets only with a log that has the entry. If the leader has meanwhile appended another
        configuration, which is not here yet: that differs by one member, so its majorities have one of
        the two as well, and the next one comes only once that is committed, and the entry with it.

        What others rely on: a leader that states its durable index answers reads, and dates contact, by
        :attr:`read_index`, which is never below what it stated. So nobody is served less than what was
        answered here.
        """
        index = min(self._leader_durable, self._matched, self._log.durable_index)
        if (
            index > self.commit_index
            and self.state == FOLLOWER
            and self.leader_id is not None
            and self._log.term_at(index) == self.term
            and self._host.may_vote
            and self._me in self._configuration.voters
            and self.leader_id in self._configuration.voters
            and self._settled_three
        ):
            self._SyncObj__raftCommitIndex = index
            self._log.setRaftCommitIndex(index)

    def on_durable(self) -> None:
        """D7: an entry is acknowledged when the journal holds it, not before."""
        durable = min(self._matched, self._log.durable_index)
        if self.state == FOLLOWER and self.leader_id is not None and durable > self._acknowledged:
            self._acknowledge(durable)
        self.commit_early()

    def _acknowledge(self, index: int) -> None:
        leader = self.leader_id
        if leader is not None and self.state == FOLLOWER:
            self._acknowledged = max(self._acknowledged, index)
            self._reply(leader, self._reply_seq, MATCH, index)

    def acknowledge_committed(self) -> None:
        """Everything committed here is the same at the leader, whatever was compared in this term."""
        self._matched = max(self._matched, self.commit_index)
        self._acknowledge(min(self._matched, self._log.durable_index))

    def restored(self, index: int) -> None:
        """The state machine holds the image at ``index``; the log was reset to it."""
        self.follow_configuration()
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self.commit_index, index)
        self._log.setRaftCommitIndex(self.commit_index)
        self._matched = max(self._matched, index)

    def remember_vote(self, leader: str) -> None:
        """A learner becomes a voter in the middle of a term: it must not vote for anyone else in it (D25)."""
        self._SyncObj__votedForNodeId = leader

    def say_alive(self, leader: str) -> None:
        """Answer the leader's clock while a state image is being installed."""
        self._reply(leader, 0, ALIVE, 0)

    def _reply(self, leader: str, seq: int, state: int, index: int) -> None:
        self._host.send(
            leader,
            AppendReply(
                self.term,
                seq,
                state,
                index,
                not self._host.may_vote,
                self._clock(),
                self._contact.echo_for(leader),
            ),
        )

    def _SyncObj__sendNextNodeIdx(self, *_: object, **__: object) -> None:
        """D7, D18: :meth:`on_append` answers, when the entries are durable."""
