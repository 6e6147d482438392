"""The Raft core of PySyncObj 0.3.17 with its known defects closed.

Terms, votes, the election restriction, the rule that only an entry of the current term commits, and the order
in which entries are applied are the library's. What it gets wrong is overridden, one method a defect where
that is possible, in the parts that :class:`RaftCore` is made of: :mod:`.core` (state, configuration, seams),
:mod:`.patience` (who is silent), :mod:`.elections`, :mod:`.following`, :mod:`.sending`, :mod:`.leading`,
:mod:`.applying`. Each defect: what happens, and where it is closed. Its scenario is played by the tests that
have its number in their names, and once more with the fix switched off, which must be found wrong.

D1
    A follower drops what follows older entries that are sent again, though it has acknowledged it: a leader
    counts on entries that are gone. :meth:`.following.Following.on_append`
D2
    The commit index is taken from pieces of a snapshot without a log check: the uncommitted tail of an old
    leader is applied, and reported as a success. :meth:`.following.Following.follow`
D3
    An acknowledgement of an earlier leadership counts for the entry that has its index now.
    :meth:`.sending.Sending.on_append_reply`
D4
    A member that was cut off or paused comes back with a higher term and deposes a working leader.
    :meth:`.elections.Elections._ask_before_standing`, :mod:`.watch`
D5
    Votes are counted by message: one voter that repeats itself makes a leader.
    :meth:`.elections.Elections.on_vote_reply`
D6
    Whoever is in an older term gets no answer: a stale leader leads on. :class:`.messages.Stale`,
    :meth:`.elections.Elections.on_stale`
D7
    Nothing is synced before it is acknowledged: a power cut of a majority loses it.
    :meth:`.following.Following.on_durable`, :meth:`.applying.Applying._SyncObj__getCurrentLogIndex`,
    :mod:`nameserver.raft.storage.journal`
D8
    Quorum is a count of connections: a leader that hears from nobody leads on for 30 s.
    :data:`.core.FALLBACK`, :mod:`.contact`
D9
    A read has no date: a leader that was replaced answers with old state. :mod:`.contact` (a barrier is a
    majority's echo of a later clock)
D10
    Anyone who can connect takes part: one message of a stranger deposes the leader.
    :meth:`RaftCore.receive`, :mod:`nameserver.raft.links.auth`
D11
    A command that raises is tried again in each tick, by each leader: the cluster stops for ever.
    :meth:`.applying.Applying._SyncObj__doApplyCommand`
D12
    A callback that raises makes its member apply the command twice. There are no callbacks:
    :meth:`RaftCore._applyCommand` is refused, verdicts come by apply.
D13
    A command that is lost on its way, or has no leader to go to, is never answered. As D12; what is proposed
    is sent again and has a deadline: ``nameserver.replicated.proposals``, ``nameserver.replicated``
D14
    A dump newer than the journal's first entries, as after a crash in between, makes the start throw the
    journal away. :func:`nameserver.raft.node.driver.join`
D15
    A damaged dump is passed over in silence: the member starts with nothing, and may lead.
    :meth:`nameserver.raft.storage.images.Snapshots.recover`
D16
    A snapshot older than the state is installed, and rolls it back. :meth:`.images.Images.on_part`
D17
    A peer that came back with less counts with what it once had. :meth:`RaftCore.link_up`
D18
    A conflict moves the leader back by one entry a heartbeat, and large tails for ever.
    :meth:`.following.Following.on_append` (the hint), :mod:`.replication`
D19
    A reset beyond the leader's own log is believed: nothing more is sent.
    :meth:`.sending.Sending.on_append_reply`
D20
    While a dump is being written, a lagging peer is sent ten thousand empty messages a tick.
    :meth:`.sending.Sending._send_image`
D21
    What a socket does not take at once leaves with the next message, whenever that is.
    :mod:`nameserver.raft.links.transport`
D22
    Each acknowledgement takes the leader back to it: what is under way is sent again.
    :meth:`.replication.Progress.acknowledged`
D23
    Request numbers begin at 1 in each life: the answer to a former one completes another command. As D12;
    proposals bear the number of their process: ``nameserver.replicated.proposals``
D24
    The first message after a silence is thrown away with its connection: a vote request, mostly.
    :meth:`nameserver.raft.links.transport.Link._check`
D25
    A member that was emptied, or keeps all in memory, votes again in a term in which it has voted, and counts
    for entries that it has lost. :attr:`.core.Host.may_vote`, :mod:`.members`, :mod:`.greetings`
    (learner)
D26
    Where the last piece of a large entry begins is computed from another length: the follower reads half an
    entry and raises. Entries travel whole. :meth:`.sending.Sending._SyncObj__sendAppendEntries`
D27
    A command waits in a deposed leader's queue and is applied over what is newer.
    :meth:`.sending.Sending.append` asks for the term; commands name what they were decided from:
    ``nameserver.routes``
D28
    A dump that fails is begun again at every second tick. :meth:`.images.Images.failed`
D29
    The child process that writes a dump holds every socket: the port of a killed member stays taken, and its
    dump appears later. There are no children. :meth:`nameserver.raft.node.driver.Driver._make_image`
D30
    The journal file is compacted in place, has no checksums and never shrinks: a crash on the way loses
    acknowledged entries. :mod:`nameserver.raft.storage.journal`
D31
    A version command above a member's own version is applied again and again. There is none: an entry of a
    kind that this program does not know stops the member. :meth:`.applying.Applying._SyncObj__doApplyCommand`
D32
    The pipe that wakes the member is full after 65,536 submissions, which raise though they were taken.
    There is no pipe. :meth:`nameserver.raft.node.driver.Driver.wake`
D33
    A member listens on every address of the machine unless told otherwise.
    :meth:`nameserver.raft.links.transport.Transport.listen`
D34
    What a stopped peer does not read is kept without a bound. :attr:`.replication.Progress.window_open`,
    :mod:`nameserver.raft.links.transport`
D35
    A second membership change is accepted while the first is uncommitted: two majorities may have no member
    in common. :meth:`.leading.Leading.change`
D36
    After a restart the stored membership counts only once its entry is applied again. :class:`.log.RaftLog`,
    :meth:`.core.CoreState.follow_configuration`
D37
    A leader cannot remove itself, and nothing hands over. :meth:`.leading.Leading.change`,
    :mod:`nameserver.raft.member`

All this leans on private names: :mod:`nameserver.raft.library` has the exact pin and checks them at start.
"""

from __future__ import annotations

import math
from typing import NoReturn

from nameserver.raft.library import seam

from .applying import Applying
from .core import CANDIDATE, LEADER
from .following import Following
from .leading import Leading
from .messages import (
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotReply,
    Stale,
    TimeoutNow,
    VoteReply,
)


class RaftCore(Applying, Leading, Following):
    """One member's Raft state; messages, appends and ticks in, messages and applied entries out.

    Its parts are classes that it inherits, as the library's private methods can be replaced only that way.
    """

    def next_wake(self) -> float:
        """The next instant at which a tick has something to do."""
        if self.state == LEADER:
            return min((p.beat_at for p in self._progress.values()), default=math.inf)
        deadline = self._SyncObj__raftElectionDeadline
        return min(deadline, self._watch.due) if self.other_voters else deadline

    def seen(self, replay_end: int) -> tuple[object, ...]:
        """What others are told of when it changes; the applied index up to ``replay_end``."""
        state, leader = self._SyncObj__raftState, self._SyncObj__raftLeader
        return (
            state,
            self._SyncObj__raftCurrentTerm,
            leader,
            state == LEADER and self._SyncObj__raftCommitIndex >= self._SyncObj__noopIDx,
            self.passed,
            min(self._SyncObj__raftLastApplied, replay_end),
        )

    @property
    def due(self) -> bool:
        """Whether :meth:`tick` has something to do already, before :meth:`next_wake`."""
        commit = self._SyncObj__raftCommitIndex
        if self._SyncObj__raftLastApplied < commit:
            return True
        if self._SyncObj__raftState != LEADER:
            return self._go or self._SyncObj__raftElectionDeadline <= self._clock()
        last = self._log.last_index
        for p in self._progress.values():
            behind = p.next <= last and p.window_open
            if behind or p.transfer is not None or p.next <= self._log.base_index:
                return True
            if self._commit_untold(p):
                return True
        return commit < last and self._quorum_index() > commit

    def tick(self) -> None:
        self._onTick(0.0)

    def link_up(self, peer: str) -> None:
        """A link to ``peer`` is up. D17: it may have come back with less; what it said before is void."""
        self._contact.forget(peer)
        self._SyncObj__onNodeConnected(self.node(peer))
        if self.state == LEADER and peer in self._progress:
            self._set_progress(peer)

    def link_down(self, peer: str) -> None:
        self._SyncObj__onNodeDisconnected(self._nodes[peer])
        if self.state == LEADER:
            if peer in self._progress:
                self._set_progress(peer)
        elif peer == self.leader_id:
            # A killed leader's links close at once. Asking early is harmless: who still hears it refuses
            # (D4).
            soon = self._clock() + self._rng.uniform(0.0, self._timeout / 2)
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def receive(self, peer: str, message: Message) -> None:
        """Take one message from an authenticated peer. D10: only those take part that proved who they are.

        That may be more than the configuration here names: the leader can be a member that was added while
        this one was away. What counts in a majority is decided by the configuration.
        """
        node = self._nodes.get(peer)
        if node is None:
            return
        if self.state == LEADER:
            self._cause = f"{type(message).__name__} from {peer}"
        match message:
            case Append():
                self.on_append(node, message)
            case AppendReply():
                self.on_append_reply(node, message)
            case SnapshotReply():
                self.on_snapshot_reply(node, message)
            case PreVote():
                self.on_pre_vote(node, message)
            case PreVoteReply():
                self.on_pre_vote_reply(node, message)
            case RequestVote():
                self.on_request_vote(node, message)
            case VoteReply():
                self.on_vote_reply(node, message)
            case Stale():
                self.on_stale(message.term)
            case TimeoutNow():
                if self._host.may_stand:
                    self._SyncObj__onMessageReceived(node, {"type": "timeout_now", "term": message.term})
            case _:
                raise AssertionError(f"{type(message).__name__} is the engine's")

    def _onTick(self, timeToWait: float = 0.0) -> None:
        now = self._clock()
        led = self.state == LEADER
        self._SyncObj__newAppendEntriesTime = -math.inf  # what is to be sent is decided when it asks
        if led:
            # The library counts the leader for every index it has; the journal may not have it yet.
            self._commit_limit = self._quorum_index()
            self._cause = "no majority answered in time"
        else:
            self._ask_before_standing(now)
        self.transferring = self._SyncObj__transferInProgress
        # D4: the library reads the clock anew. A deadline that passed in between (long, if the process had to
        # wait for its turn just there) would be an election that nobody was asked about.
        seam.clock = lambda: now
        try:
            super()._onTick(0.0)
            if self.state == CANDIDATE and self._SyncObj__raftElectionDeadline > now + self._timeout:
                self._ask_again_soon(now, syncs=True)
            if led and self.state != LEADER and self._heir is not None:
                # Nobody answers. If that is a fault of one direction, they still hear this member, and would
                # wait for an election timeout more.
                self._host.send(self._heir, TimeoutNow(self.term))
        finally:
            seam.clock = self._clock
            self._commit_limit = None
            self._go = False

    # ---- library paths that must not run

    def _applyCommand(self, command: object, callback: object, commandType: object = None) -> NoReturn:
        """D12, D13, D23, D27, D31: entries enter by :meth:`append`, on the leader, and nowhere else."""
        raise AssertionError("commands are not forwarded: use append")

    def _checkCommandsToApply(self) -> None:
        """There is no command queue."""

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """D35, D36, D37: membership is in entries of our own, see :meth:`change`."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """D14, D28, D29: the engine takes snapshots."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> NoReturn:
        raise AssertionError("the library's dumps are not used")
