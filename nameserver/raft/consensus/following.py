"""D1, D2, D7: the rules by which a follower takes entries, commits them and acknowledges them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from routekeeper.nameserver.raft.library import FOLLOWER

from .log import Entry
from .messages import ALIVE, MATCH, RESET, Append, AppendReply
from .part import EnginePart, Shared

logger = logging.getLogger(__name__)


class Following(EnginePart):
    """Keeps its log equal to the leader's, and acknowledges entries once they are durable.

    Attributes:
        leader_changes: Number of times that another leader was accepted.
        acknowledged: The last index that was acknowledged to the leader of this term.
        refused_truncations: Appends that would have dropped committed entries.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._matched = 0  # our log equals the current leader's up to this index
        self._reply_seq = 0
        self.acknowledged = 0
        self.leader_changes = 0
        self.refused_truncations = 0
        self._refused_of: tuple[str, int] | None = None

    def term_begins(self) -> None:
        self._matched = self.acknowledged = 0

    def accept_leader(self, leader: str, term: int, commit: int = 0, entries: Sequence[Entry] = ()) -> None:
        """Accept ``leader`` as leader of ``term``, and replace the end of our log by ``entries``.

        D2: ``commit`` is an index up to which our log was compared with the leader's. A piece of a snapshot
        says nothing about the log, so it brings 0.
        """
        library, shared, now = self._library, self.shared, self._clock()
        if library.leader != leader:
            self.leader_changes += 1
            self._say(leader, "leader changed term=%d leader=%s", term, leader)
        shared.heard = now
        shared.watch.heard()
        library.append_entries(now, leader, term=term, commit=commit, entries=entries)

    def on_append(self, peer: str, m: Append) -> None:
        """D1: keep entries that match; drop them only from the first that differs, and never a committed
        one.
        """
        library, log = self._library, self._log
        prev, prev_term, entries = m.prev_index, m.prev_term, m.entries
        if prev < log.base_index:  # our snapshot covers it, so it is committed and the same
            entries = entries[log.base_index - prev :]
            prev = log.base_index
        elif log.term_at(prev) != prev_term:
            self.accept_leader(peer, m.term)
            self._take_statement(peer, m)
            # D18: step back to an index that is certainly equal, not by one entry with each heartbeat.
            hint = log.last_index + 1 if prev > log.last_index else library.commit_index + 1
            self._reply(peer, m.seq, RESET, hint)
            return
        kept = 0
        # Number of received entries for whose index our log has an entry.
        here = min(len(entries), log.last_index - prev)
        while kept < here and log.term_at(prev + 1 + kept) == entries[kept][0]:
            kept += 1
        match, rest = prev + kept, entries[kept:]
        if rest and match < min(log.last_index, max(library.commit_index, library.applied_index)):
            self.refused_truncations += 1
            if self._refused_of != (peer, m.term):  # log it once, not with every heartbeat
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
        """Accept the leader and answer it, while a snapshot is about to replace the log."""
        self.accept_leader(peer, m.term)
        self._take_statement(peer, m)
        self.say_alive(peer)

    def on_durable(self) -> None:
        """D7: acknowledge entries only when the journal holds them."""
        durable = min(self._matched, self._log.durable_index)
        if durable > self.acknowledged:
            self._acknowledge(durable)

    def _acknowledge(self, index: int) -> None:
        leader = self._library.leader
        if leader is not None and self._library.state == FOLLOWER:
            self.acknowledged = max(self.acknowledged, index)
            self._reply(leader, self._reply_seq, MATCH, index)

    def acknowledge_committed(self) -> None:
        """Acknowledge the committed entries: the leader's log has the same ones, even if they were not
        compared.
        """
        self._matched = max(self._matched, self._library.commit_index)
        self._acknowledge(min(self._matched, self._log.durable_index))

    def say_alive(self, leader: str) -> None:
        """Answer the leader's clock while a snapshot is being installed."""
        self._reply(leader, 0, ALIVE, 0)

    def _reply(self, leader: str, seq: int, state: int, index: int) -> None:
        learner, echo = not self.shared.may_vote, self._contact.echo_for(leader)
        reply = AppendReply(self._library.term, seq, state, index, learner, self._clock(), echo)
        self._effects.send(leader, reply)
