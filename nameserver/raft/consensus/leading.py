"""The messages that a leader sends, and the rules for counting the answers.

This module repairs PySyncObj's defects D3, D17 to D20, D22, D26 and D34 (docs/pysyncobj-defects.md).
"""

from __future__ import annotations

import logging
import math
from typing import Final

from routekeeper.nameserver.raft.library import LEADER

from .log import NO_OP
from .members import quorum_index
from .messages import MATCH, RESET, Append, AppendReply, SnapshotPart, SnapshotReply, TimeoutNow
from .part import EnginePart, Shared
from .replication import BATCH_BYTES, PART_BYTES, PARTS_WINDOW, TRANSFER_TIMEOUT_S, Progress, Transfer

logger = logging.getLogger(__name__)

#: Shortest and longest time in seconds for which a leader begins no transfer after it could not read its
#: newest snapshot. The time doubles while the same snapshot stays unreadable.
UNREADABLE_PAUSE_S: Final = (1.0, 60.0)


class Leading(EnginePart):
    """The leader's part of the engine: it appends and sends entries, and finds the index that a majority has.

    Attributes:
        progress: The known state of each other member's log. It is empty unless this member leads.
        notified_removed: Peers to which this leader has sent :class:`.messages.Removed`.
        handing_over_until: Time until which no entry is appended, so that a follower can receive the whole
            log and take over.
        elected: Number of times that this member was elected.
        successor: The linked voter with the longest log at the end of this member's last term as leader.
        doing: The present activity of this member, for the log line that says why it stopped leading.
        unreadable_image: Index of the newest snapshot if this member could not read it, else 0. A new
            snapshot must replace the unreadable snapshot, because members without data need a snapshot.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._handed_over = False  # True if this leader asked another member to take over
        self.unreadable_image = 0
        self._no_transfer_before = -math.inf
        self._unreadable_pause_s = UNREADABLE_PAUSE_S[0]
        self.progress: dict[str, Progress] = {}
        self.notified_removed: set[str] = set()
        self.handing_over_until = -math.inf
        self.elected = 0
        self.successor: str | None = None
        self.doing = ""

    def image_replaced(self) -> None:
        """Allow transfers of the snapshot to peers again, because this member has stored a new snapshot."""
        self.unreadable_image = 0
        self._no_transfer_before = -math.inf

    # ---- the term

    def leadership_begins(self) -> None:
        self._handed_over = False
        for name in self.shared.other_members:
            self._set_progress(name)
        self.elected += 1
        # The index of the term's first entry. Its commit also commits all entries of earlier terms.
        first = self._log.last_index + 1
        logger.info("leader elected term=%d me=%s last_index=%d", self._library.term, self._me, first)

    def leadership_ends(self) -> None:
        """Remember the best successor, and log why this member stopped leading."""
        voters, linked = self.shared.configuration.voters, self._effects.greeted
        held = {name: p.match for name, p in self.progress.items() if name in voters and name in linked}
        self.successor = max(held, key=held.__getitem__, default=None)
        now = self._clock()
        ages = ((name, now - self._contact.member_date(name)) for name in self.progress)
        answers = ",".join(
            f"{name}:{age * 1000:.0f}" if math.isfinite(age) else f"{name}:never" for name, age in ages
        )
        logger.log(
            logging.INFO if self._handed_over else logging.WARNING,
            "leader steps down me=%s term=%d reason=%s answers_ms=%s own_gap_ms=%.0f",
            self._me,
            self._library.term,
            self.doing,
            answers,
            self.shared.watch.longest * 1000,
        )
        self.progress.clear()
        self.notified_removed.clear()
        self.handing_over_until = -math.inf

    def step_down(self, reason: str) -> None:
        """Stop leading without a change of the term."""
        if self._library.state == LEADER:
            self.doing = reason
            self._library.become_follower()
            self.shared.postpone(self._clock())

    def hand_over(self, to: str | None = None) -> None:
        """Ask a voter to take over: ``to``, or any voter if ``to`` is None.

        The voter must hold the whole log. If there is no such voter, nothing happens.
        """
        for name, p in sorted(self.progress.items()):
            has_all = self._counts(name, p) and p.match == self._log.last_index
            if has_all and name in self._effects.greeted and to in (None, name):
                self._handed_over = True
                self._effects.send(name, TimeoutNow(self._library.term))
                return

    def ask_successor(self) -> None:
        """Ask the successor to stand for election, after this member stopped leading for lack of answers.

        If only one direction of the network fails, the other members still receive this member's messages.
        Without this request, the other members would wait another election timeout.
        """
        if self.successor is not None:
            self._effects.send(self.successor, TimeoutNow(self._library.term))

    # ---- the members

    def adopt_configuration(self) -> None:
        """Use the newest configuration in the log from now on, and begin to replicate to its new members."""
        former = self.shared.configuration.voters
        self.shared.adopt_configuration()
        if self._library.state != LEADER:
            return
        others = self.shared.other_members
        for name in self.progress.keys() - set(others):
            del self.progress[name]
        for name in others:
            if name not in self.progress:
                self._set_progress(name)
                self._library.answered[name] = -math.inf
            if name in self.shared.other_voters and name not in former:
                # Give a new voter as much time for its first answer as all voters get when a term begins.
                self._library.answered[name] = self._clock()

    def link_changed(self, peer: str) -> None:
        """Begin replication to ``peer`` again, because ``peer`` may have come back with less data.

        PySyncObj goes on to count the peer for entries that the peer has lost (its defect D17).
        """
        self.notified_removed.discard(peer)
        if peer in self.progress:
            self._set_progress(peer)

    # ---- the commit index

    def read_index_in(self, term: int) -> int | None:
        """Return the commit index if this member leads in ``term`` and has committed an entry of this term.

        Otherwise return None. No member can have applied a later entry than this index, because followers
        learn the commit index from the leader.
        """
        library = self._library
        return library.commit_index if library.term == term and library.leads else None

    def quorum_index(self) -> int:
        """Return the last index that a majority, with this leader as a member, holds durably.

        PySyncObj also counts entries that are not on the disk yet (its defect D7).
        """
        progress = self.progress
        matches = [0 if (p := progress[voter]).learner else p.match for voter in self.shared.other_voters]
        return quorum_index(len(self.shared.configuration.voters), self._log.durable_index, matches)

    # ---- entries

    def add(self, command: bytes) -> int:
        """Append an entry of any kind in this term, and return its index."""
        index = self._log.last_index + 1
        self._log.add(command, index, self._library.term)
        return index

    def _set_progress(self, peer: str) -> None:
        self.progress[peer] = Progress(next=self._log.last_index + 1)
        self._library.match[peer] = 0

    def _counts(self, peer: str, progress: Progress) -> bool:
        """Return True if ``peer`` counts in a majority, because it is a voter that has not lost its data.

        PySyncObj also counts a peer that has lost its data (its defect D25).
        """
        return not progress.learner and peer in self.shared.configuration.voters

    def trusted(self, peer: str) -> Progress | None:
        """Return the progress of ``peer`` if a link is up and the peer did not lose its data.

        Otherwise return None. PySyncObj also trusts a peer that has lost its data (its defect D25).
        """
        progress = self.progress.get(peer)
        linked = peer in self._effects.greeted
        return progress if linked and progress is not None and not progress.learner else None

    def _take_answer(self, peer: str, m: AppendReply | SnapshotReply) -> Progress | None:
        """Return the sender's progress if the answer is from this term, else None.

        PySyncObj also counts an answer to an earlier leadership of this member (its defect D3).
        """
        progress = self.progress.get(peer)
        if m.term != self._library.term or self._library.state != LEADER or progress is None:
            return None
        progress.learner = m.learner
        counts = self._counts(peer, progress)
        self._contact.accepted_by(peer, clock=m.clock, echo=m.echo, voter=counts)
        # The library (PySyncObj) steps down when a majority has been silent for longer than
        # leaderFallbackTimeout (a setting). A voter's silence is counted from the sending of the last message
        # that the voter answered, not from the answer's arrival (repairs PySyncObj defect D8). A learner's
        # answer never counts.
        seen = max(self._contact.member_date(peer), self._library.answered.get(peer, -math.inf))
        self._library.answered[peer] = seen if counts else -math.inf
        self.shared.watch.heard()
        return progress

    def on_append_reply(self, peer: str, m: AppendReply) -> None:
        progress = self._take_answer(peer, m)
        if progress is None:
            return
        if m.state == MATCH:
            progress.acknowledged(min(m.index, self._log.last_index))
            if progress.transfer is not None and progress.match >= progress.transfer.index:
                progress.transfer = None
            # Entries that a learner holds do not count for the majority (repairs PySyncObj defect D25).
            self._library.match[peer] = progress.match if self._counts(peer, progress) else 0
        elif m.state == RESET and progress.transfer is None and m.seq >= progress.reset_floor:
            # Never set the next index beyond the end of this leader's own log (repairs PySyncObj defect D19).
            progress.rewind(min(m.index, self._log.last_index + 1))
        if m.learner and not progress.catch_up_entry and progress.match >= self._log.last_index:
            # This learner now has all entries. It lost its data earlier, so it must not vote before it
            # certainly has every committed entry. The proof is a new entry that the voters commit without
            # counting this learner (repair of PySyncObj's defect D25). Append this entry now, because the
            # next proposal may come much later.
            progress.catch_up_entry = self.add(NO_OP)

    def on_snapshot_reply(self, peer: str, m: SnapshotReply) -> None:
        progress = self._take_answer(peer, m)
        transfer = progress.transfer if progress is not None else None
        if progress is None or transfer is None or transfer.index != m.index:
            return
        if m.offset == 0 and transfer.acknowledged:  # the peer could not store the snapshot, so begin again
            progress.transfer = None
        elif m.offset > transfer.acknowledged:
            transfer.acknowledged = min(m.offset, transfer.size)
            transfer.sent = max(transfer.sent, transfer.acknowledged)
            transfer.moved_at = self._clock()

    @property
    def due(self) -> bool:
        """True if this leader must send some peer a message before the next heartbeat is due."""
        last, base, commit = self._log.last_index, self._log.base_index, self._library.commit_index
        for p in self.progress.values():
            if p.next <= base and p.transfer is None:
                behind = self.shared.now >= self._no_transfer_before
            else:
                behind = p.next <= last and p.window_open
            if behind or p.transfer is not None or p.commit_sent < commit:
                return True
        return False

    def replicate(self) -> None:
        """Send each peer the entries that it lacks, up to WINDOW_BYTES, or a heartbeat if it is due.

        This method repairs three defects of PySyncObj's method: it loops with a time limit (D20), sends an
        entry in pieces (D26), and has no bound for the bytes under way to a peer (D34).
        """
        now = self._clock()
        # Send the age of the newest majority contact, even if this leader has not applied the commit index
        # yet. A follower uses this age only after it has applied the commit index of the same message.
        age = now - self._contact.majority_date(now) if self._library.leads else math.inf
        for peer, progress in self.progress.items():
            if peer in self._effects.greeted:
                self._send_to(peer, progress, now, None if age == math.inf else age)
            else:
                progress.beat_at = now + self.shared.period

    def _send_to(self, peer: str, p: Progress, now: float, age: float | None) -> None:
        log, term, commit = self._log, self._library.term, self._library.commit_index
        last, echo, beat = log.last_index, self._contact.echo_for(peer), now >= p.beat_at
        if p.next <= log.base_index or p.transfer is not None:
            self._send_image(peer, p, now)
        while True:
            more = p.transfer is None and log.base_index < p.next <= last and p.window_open
            if not (beat or more or (p.transfer is None and p.commit_sent < commit)):
                return
            prev = min(p.next, last + 1) - 1
            if prev < log.base_index:
                prev = last
            prev_term = log.term_at(prev) or 0
            entries = log.read(p.next, bytes_max=BATCH_BYTES) if more else []
            p.seq += 1
            append = Append(term, p.seq, commit, prev, prev_term, entries, last, beat, now, echo, age)
            self._effects.send(peer, append)
            p.commit_sent = commit
            if beat:
                p.beat_at = now + self.shared.period
                beat = False
            if entries:
                p.sent(prev + len(entries), sum([len(command) for _, command in entries]))

    def _send_image(self, peer: str, p: Progress, now: float) -> None:
        """Send the snapshot in pieces, a few at a time, because the peer lacks entries that were deleted.

        While the snapshot is being sent, this member may make a newer snapshot. The transfer continues with
        the old snapshot as long as the old snapshot can be read (repairs PySyncObj defect D20).
        """
        if p.transfer is not None and now - p.transfer.moved_at > TRANSFER_TIMEOUT_S:
            p.transfer = None
        if p.transfer is None:
            image = self.shared.held_image.image()
            if image is None or image[0] < self._log.base_index or now < self._no_transfer_before:
                return
            p.transfer = Transfer(*image, moved_at=now)
            self._say(peer, "snapshot transfer began peer=%s index=%d bytes=%d", peer, image[0], image[2])
        t, last, echo = p.transfer, self._log.last_index, self._contact.echo_for(peer)
        while t.sent < t.size and t.sent - t.acknowledged < PART_BYTES * PARTS_WINDOW:
            data = self.shared.held_image.read_image(t.index, t.sent, PART_BYTES)
            if data is None:
                p.transfer = None
                newest = self.shared.held_image.image()
                # If a newer snapshot has replaced this snapshot, begin with the newer one at once. If this
                # snapshot is still the newest, its file cannot be read. In this case pause, because each
                # attempt sends the readable part again.
                if newest is not None and newest[0] == t.index:
                    shortest, longest = UNREADABLE_PAUSE_S
                    again = self.unreadable_image == t.index
                    pause_s = min(2 * self._unreadable_pause_s, longest) if again else shortest
                    self._unreadable_pause_s = pause_s
                    self.unreadable_image = t.index
                    self._no_transfer_before = now + pause_s
                return
            if not data:
                return  # this member's disk has not read the piece yet
            p.seq += 1
            term, offset = self._library.term, t.sent
            part = SnapshotPart(
                term, p.seq, t.index, t.index_term, t.size, offset, data, last, now, echo, t.configuration
            )
            self._effects.send(peer, part)
            t.sent += len(data)
