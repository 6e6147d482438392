"""D3, D17 to D20, D22, D26, D34: what a leader sends to whom, and what their answers count for."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from .core import LEADER, Surroundings
from .log import NO_OP, REGULAR
from .messages import MATCH, RESET, Append, AppendReply, SnapshotPart, SnapshotReply
from .patience import Patience
from .replication import (
    BATCH_BYTES,
    PART_BYTES,
    PARTS_WINDOW,
    TRANSFER_TIMEOUT_S,
    Progress,
    Transfer,
    quorum_index,
)

logger = logging.getLogger(__name__)


class Sending(Patience):
    """Appends entries, sends each member what it lacks, and knows what a majority holds."""

    def __init__(self, given: Surroundings) -> None:
        self._progress: dict[str, Progress] = {}
        self._stated = 0  # the greatest durable index that it told anybody in this term
        super().__init__(given)

    def follow_configuration(self) -> None:
        former = set(self._configuration.voters)
        super().follow_configuration()
        if self.state != LEADER:
            return
        members = self._configuration.members
        for name in self._progress.keys() - set(members):
            del self._progress[name]
        for name in members:
            if name != self._me and name not in self._progress:
                self._set_progress(name)
                self._SyncObj__lastResponseTime[self._nodes[name]] = -math.inf
        for name in self.other_voters:
            if name not in former:  # it has as long to answer as all at the beginning of a term
                self._SyncObj__lastResponseTime[self._nodes[name]] = self._clock()

    @property
    def read_index(self) -> int:
        """Leader: the last index that any member can have applied, see :meth:`commit_early`."""
        return max(self.commit_index, self._stated) if self.state == LEADER else self.commit_index

    def read_index_in(self, term: int) -> int | None:
        """Return :attr:`read_index` if this member :attr:`leads` in ``term``, None if not. In one call."""
        commit: int = self._SyncObj__raftCommitIndex
        if (
            self._SyncObj__raftState != LEADER
            or self._SyncObj__raftCurrentTerm != term
            or commit < self._SyncObj__noopIDx
        ):
            return None
        return commit if commit > self._stated else self._stated

    def read_index_with(self, member: str, term: int) -> int | None:
        """As :meth:`read_index_in`; None also if this member and ``member``, a voter, are no majority."""
        voters = self._configuration.voters
        return self.read_index_in(term) if member in voters and len(voters) <= 3 else None

    @property
    def progress(self) -> Mapping[str, Progress]:
        return self._progress

    def _quorum_index(self) -> int:
        """What a majority holds; this member counts for what its journal has."""
        matches = [p.match if self._counts(name, p) else 0 for name, p in self._progress.items()]
        return quorum_index(len(self._configuration.voters), self._log.durable_index, matches)

    def replicate(self) -> None:
        """Leader: send what was appended, before the next tick."""
        if self.state == LEADER:
            self._SyncObj__sendAppendEntries()

    def append(self, payload: bytes, term: int) -> int | None:
        """Append one entry if this member leads in ``term``; return its index."""
        if self.state != LEADER or self.term != term:
            return None
        index = self._log.last_index + 1
        self._log.add(REGULAR + payload, index, term)
        return index

    def append_no_op(self) -> int:
        index = self._log.last_index + 1
        self._log.add(NO_OP, index, self.term)
        return index

    def _set_progress(self, peer: str) -> None:
        self._progress[peer] = Progress(next=self._log.last_index + 1)
        self._SyncObj__raftMatchIndex[self._nodes[peer]] = 0

    def _counts(self, peer: str, progress: Progress) -> bool:
        """Whether what ``peer`` holds and says counts: not if it was emptied (D25), nor before it votes."""
        return not progress.learner and peer in self._configuration.voters

    def _heard_follower(self, node: Any, m: AppendReply | SnapshotReply) -> Progress | None:
        """D3: an answer counts only in the term it was given in."""
        progress = self._progress.get(node.id)
        if m.term != self.term or self.state != LEADER or progress is None:
            return None
        progress.learner = m.learner
        counts = self._counts(node.id, progress)
        self._contact.accepted_by(node.id, clock=m.clock, echo=m.echo, voter=counts)
        # D8: the library steps down when a majority has been silent for leaderFallbackTimeout; an answer
        # counts from when it was asked for, a learner's never.
        seen = self._contact.member_date(node.id) if counts else -math.inf
        times = self._SyncObj__lastResponseTime
        times[node] = max(seen, times.get(node, -math.inf)) if counts else seen
        self._watch.heard()
        return progress

    def on_append_reply(self, node: Any, m: AppendReply) -> None:
        progress = self._heard_follower(node, m)
        if progress is None:
            return
        if m.state == MATCH:
            progress.acknowledged(min(m.index, self._log.last_index))
            if progress.transfer is not None and progress.match >= progress.transfer.index:
                progress.transfer = None
            # D25: what a learner holds does not count for the majority.
            self._SyncObj__raftMatchIndex[node] = progress.match if self._counts(node.id, progress) else 0
        elif m.state == RESET and progress.transfer is None and m.seq >= progress.reset_floor:
            progress.rewind(min(m.index, self._log.last_index + 1))  # D19: never beyond our own log
        if m.learner and not progress.catch_up_entry and progress.match >= self._log.last_index:
            # D25: a learner is done when an entry appended after it came back is committed without it.
            progress.catch_up_entry = self.append_no_op()

    def on_snapshot_reply(self, node: Any, m: SnapshotReply) -> None:
        progress = self._heard_follower(node, m)
        transfer = progress.transfer if progress is not None else None
        if progress is None or transfer is None or transfer.index != m.index:
            return
        if m.offset == 0 and transfer.acknowledged:  # it could not be stored there
            progress.transfer = None
        elif m.offset > transfer.acknowledged:
            transfer.acknowledged = min(m.offset, transfer.size)
            transfer.sent = max(transfer.sent, transfer.acknowledged)
            transfer.moved_at = self._clock()

    def _to_state(self) -> int:
        """The durable index to tell the followers, so that they can commit early; 0 for none.

        Only under durability ``memory``, where it travels with the entries themselves: the commit index needs
        no message, and followers have it two hops earlier. With a disk it would need a message of its own
        after each sync, which on two cores costs the leader what followers gain (measured); and while the
        disks of followers hang nobody would be in contact, as nobody could have applied what was stated.
        """
        durable = self._log.durable_index
        if (
            durable > self.commit_index
            and self._settled_three
            and self._host.states_durable
            and self._log.term_at(durable) == self.term
        ):
            return durable
        return 0

    def _commit_untold(self, p: Progress) -> bool:
        """Whether a peer must be told the commit index: not if it finds that out by itself."""
        commit = self.commit_index
        if p.commit_sent >= commit:
            return False
        finds_out = p.durable_sent >= commit and p.commit_sent >= self._log.configuration_index
        return p.learner or not finds_out

    def _SyncObj__sendAppendEntries(self) -> None:
        """Send each peer what it lacks, as far as its window allows; a heartbeat if one is due.

        D20, D26, D34: no clock-bounded loop, no chunks of entries, a bound on what is under way. D21, D24:
        see transport.
        """
        now = self._clock()
        age: float | None = None
        # Whoever does not read what was stated would take the commit index for all that was answered.
        all_said = self.read_index == self.commit_index or self._host.all_read_durable
        if self.leads and all_said:  # what is not applied here yet is so there before the age counts
            age = now - self._contact.majority_date(now)
        stated = self._to_state()
        for peer, progress in self._progress.items():
            if self._nodes[peer] in self._SyncObj__connectedNodes:
                self._replicate(peer, progress, now, None if age == math.inf else age, stated)
            else:
                progress.beat_at = now + self._period

    def _replicate(self, peer: str, p: Progress, now: float, age: float | None, stated: int) -> None:
        log = self._log
        beat = now >= p.beat_at
        if p.next <= log.base_index or p.transfer is not None:
            self._send_image(peer, p, now)
        while True:
            more = p.transfer is None and log.base_index < p.next <= log.last_index and p.window_open
            if not (beat or more or (p.transfer is None and self._commit_untold(p))):
                return
            self._stated = max(self._stated, stated)
            prev = min(p.next, log.last_index + 1) - 1
            if prev < log.base_index:
                prev = log.last_index
            entries = log.read(p.next, bytes_max=BATCH_BYTES) if more else []
            p.seq += 1
            self._host.send(
                peer,
                Append(
                    self.term,
                    p.seq,
                    self.commit_index,
                    prev,
                    log.term_at(prev) or 0,
                    entries,
                    log.last_index,
                    beat,
                    now,
                    self._contact.echo_for(peer),
                    age,
                    self._stated,
                ),
            )
            p.commit_sent, p.durable_sent = self.commit_index, self._stated
            if beat:
                p.beat_at = now + self._period
                beat = False
            if entries:
                p.sent(prev + len(entries), sum(len(command) for _, command in entries))

    def _send_image(self, peer: str, p: Progress, now: float) -> None:
        """The peer lacks what only the state image has: send it in pieces, a few under way.

        D20: a new image may be in the making meanwhile; the one at hand is sent.
        """
        if p.transfer is not None and now - p.transfer.moved_at > TRANSFER_TIMEOUT_S:
            p.transfer = None
        if p.transfer is None:
            image = self._host.image()
            if image is None or image[0] < self._log.base_index:
                return
            p.transfer = Transfer(*image, moved_at=now)
            logger.info("snapshot transfer began peer=%s index=%d bytes=%d", peer, image[0], image[2])
        t = p.transfer
        while t.sent < t.size and t.sent - t.acknowledged < PART_BYTES * PARTS_WINDOW:
            data = self._host.read_image(t.index, t.sent, PART_BYTES)
            if not data:
                p.transfer = None  # replaced by a newer one: begin again with that
                return
            p.seq += 1
            part = SnapshotPart(
                self.term,
                p.seq,
                t.index,
                t.index_term,
                t.size,
                t.sent,
                data,
                self._log.last_index,
                now,
                self._contact.echo_for(peer),
                t.configuration,
            )
            self._host.send(peer, part)
            t.sent += len(data)
