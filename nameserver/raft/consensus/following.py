"""The rules by which a follower accepts, commits and acknowledges entries.

This module repairs PySyncObj's defects D1, D2 and D7 (docs/pysyncobj-defects.md).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from routekeeper.nameserver.raft.library import FOLLOWER

from .log import Entry
from .messages import ALIVE, MATCH, RESET, Append, AppendReply
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)


class Following(EnginePart):
    """The part of a follower's engine that copies the leader's log, and acknowledges durable entries.

    Attributes:
        leader_changes: Number of times that this member accepted another leader than before.
        acknowledged: The last index that this member acknowledged to the leader of this term.
        refused_truncations: Number of append messages that would have dropped committed entries.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._matched = 0  # the last index up to which this log certainly equals the leader's log
        self._reply_seq = 0
        self.acknowledged = 0
        self.leader_changes = 0
        self.refused_truncations = 0
        self._refused_of: tuple[str, int] | None = None

    def term_begins(self) -> None:
        self._matched = self.acknowledged = 0

    def accept_leader(self, leader: str, term: int, commit: int = 0, entries: Sequence[Entry] = ()) -> None:
        """Accept ``leader`` as leader of ``term``, and replace the end of this log by ``entries``.

        ``commit`` is a committed index up to which this log is known to equal the leader's log (repairs
        PySyncObj defect D2). A piece of a snapshot does not prove that the logs are equal, so after a piece
        the caller passes 0.
        """
        library, shared, now = self._library, self.shared, self._clock()
        if library.leader != leader:
            self.leader_changes += 1
            self._say(leader, "leader changed term=%d leader=%s", term, leader)
        shared.heard = now
        shared.watch.heard()
        library.append_entries(now, leader, term=term, commit=commit, entries=entries)

    def on_append(self, peer: str, m: Append) -> None:
        """Compare this log with the received entries, and replace it from the first different entry on.

        A committed entry is never replaced (repairs PySyncObj defect D1).
        """
        library, log = self._library, self._log
        prev, prev_term, entries = m.prev_index, m.prev_term, m.entries
        # Skip entries that the snapshot covers. They are committed, so they equal the leader's entries.
        if prev < log.base_index:
            entries = entries[log.base_index - prev :]
            prev = log.base_index
        elif log.term_at(prev) != prev_term:
            self.accept_leader(peer, m.term)
            self._take_statement(peer, m)
            # Ask the leader to go back to an index up to which both logs are certainly equal. The library
            # would go back by only one entry with each heartbeat (PySyncObj defect D18).
            hint = log.last_index + 1 if prev > log.last_index else library.commit_index + 1
            self._reply(peer, m.seq, RESET, hint)
            return
        kept = 0
        # Number of received entries whose index is already in this log.
        here = min(len(entries), log.last_index - prev)
        while kept < here and log.term_at(prev + 1 + kept) == entries[kept][0]:
            kept += 1
        match, rest = prev + kept, entries[kept:]
        if rest and match < min(log.last_index, max(library.commit_index, library.applied_index)):
            self.refused_truncations += 1
            # Log the refusal once for each leader, not with every heartbeat.
            if self._refused_of != (peer, m.term):
                self._refused_of = peer, m.term
                logger.critical(
                    "truncation refused index=%d commit_index=%d leader=%s term=%d: committed entries differ",
                    match + 1,
                    library.commit_index,
                    peer,
                    m.term,
                )
            return
        new: Sequence[Entry] = ()
        if rest:
            new = [(command, index, term) for index, (term, command) in enumerate(rest, match + 1)]
        matched = match + len(rest)
        self.accept_leader(peer, m.term, min(m.commit, matched), new)
        self._matched = max(self._matched, matched)
        self._reply_seq = max(self._reply_seq, m.seq)
        self._take_statement(peer, m)
        durable = min(self._matched, log.durable_index)
        if m.beat or (entries and durable == self._matched):
            self._acknowledge(durable)

    def _take_statement(self, leader: str, m: Append) -> None:
        self._contact.stated_by_leader(leader, clock=m.clock, echo=m.echo, age=m.age, commit=m.commit)

    def while_installing(self, peer: str, m: Append) -> None:
        """Answer the leader without accepting entries, because a snapshot will soon replace the log."""
        self.accept_leader(peer, m.term)
        self._take_statement(peer, m)
        self.say_alive(peer)

    def on_durable(self) -> None:
        """Acknowledge entries to the leader when the journal holds them durably.

        PySyncObj acknowledges entries earlier, so that a power cut can lose them (its defect D7).
        """
        durable = min(self._matched, self._log.durable_index)
        if durable > self.acknowledged:
            self._acknowledge(durable)

    def _acknowledge(self, index: int) -> None:
        leader = self._library.leader
        if leader is not None and self._library.state == FOLLOWER:
            self.acknowledged = max(self.acknowledged, index)
            self._reply(leader, self._reply_seq, MATCH, index)

    def acknowledge_committed(self) -> None:
        """Acknowledge the committed entries to the leader.

        No comparison of the two logs is needed, because every leader's log has all committed entries.
        """
        self._matched = max(self._matched, self._library.commit_index)
        self._acknowledge(min(self._matched, self._log.durable_index))

    def say_alive(self, leader: str) -> None:
        """Echo the leader's clock. Acknowledge no index, because a snapshot will soon replace the log."""
        self._reply(leader, 0, ALIVE, 0)

    def _reply(self, leader: str, seq: int, state: int, index: int) -> None:
        learner, echo = not self.shared.may_vote, self._contact.echo_for(leader)
        reply = AppendReply(self._library.term, seq, state, index, learner, self._clock(), echo)
        self._effects.send(leader, reply)
