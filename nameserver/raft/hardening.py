"""The Raft core of PySyncObj 0.3.17 with its known defects closed.

Terms, votes, the election restriction, the rule that only an entry of the current term commits, and the order
in which entries are applied are the library's. What it gets wrong is overridden here, one method a defect
where that is possible. Each defect: what happens, and where it is closed. Its scenario is played by the tests
that have its number in their names, and once more with the fix switched off, which must be found wrong.

D1
    A follower drops what follows older entries that are sent again, though it has acknowledged it: a leader
    counts on entries that are gone. :meth:`RaftCore.on_append`
D2
    The commit index is taken from pieces of a snapshot without a log check: the uncommitted tail of an old
    leader is applied, and reported as a success. :meth:`RaftCore.follow`
D3
    An acknowledgement of an earlier leadership counts for the entry that has its index now.
    :meth:`RaftCore.on_append_reply`
D4
    A member that was cut off or paused comes back with a higher term and deposes a working leader.
    :meth:`RaftCore._ask_before_standing`, :mod:`.watch`
D5
    Votes are counted by message: one voter that repeats itself makes a leader.
    :meth:`RaftCore.on_vote_reply`
D6
    Whoever is in an older term gets no answer: a stale leader leads on. :class:`messages.Stale`
D7
    Nothing is synced before it is acknowledged: a power cut of a majority loses it.
    :meth:`RaftCore.on_durable`, :meth:`RaftCore._onTick`, :mod:`.journal`
D8
    Quorum is a count of connections: a leader that hears from nobody leads on for 30 s.
    ``leaderFallbackTimeout``, :mod:`.contact`
D9
    A read has no date: a leader that was replaced answers with old state. :mod:`.contact` (a barrier is a
    majority's echo of a later clock)
D10
    Anyone who can connect takes part: one message of a stranger deposes the leader.
    :meth:`RaftCore.receive`, :mod:`.auth`
D11
    A command that raises is tried again in each tick, by each leader: the cluster stops for ever.
    :meth:`RaftCore._SyncObj__doApplyCommand`
D12
    A callback that raises makes its member apply the command twice. There are no callbacks:
    :meth:`RaftCore._applyCommand` is refused, verdicts come by apply.
D13
    A command that is lost on its way, or has no leader to go to, is never answered. As D12; what is proposed
    is sent again and has a deadline: ``nameserver.proposals``, ``nameserver.replicated``
D14
    A dump newer than the journal's first entries, as after a crash in between, makes the start throw the
    journal away. :func:`.driver.join`
D15
    A damaged dump is passed over in silence: the member starts with nothing, and may lead.
    :meth:`.snapshot.Snapshots.recover`
D16
    A snapshot older than the state is installed, and rolls it back. :meth:`.engine.Engine._on_snapshot_part`
D17
    A peer that came back with less counts with what it once had. :meth:`RaftCore.link_up`
D18
    A conflict moves the leader back by one entry a heartbeat, and large tails for ever.
    :meth:`RaftCore.on_append` (the hint), :mod:`.replication`
D19
    A reset beyond the leader's own log is believed: nothing more is sent. :meth:`RaftCore.on_append_reply`
D20
    While a dump is being written, a lagging peer is sent ten thousand empty messages a tick.
    :meth:`RaftCore._send_image`
D21
    What a socket does not take at once leaves with the next message, whenever that is. :mod:`.transport`
D22
    Each acknowledgement takes the leader back to it: what is under way is sent again.
    :meth:`.replication.Progress.acknowledged`
D23
    Request numbers begin at 1 in each life: the answer to a former one completes another command. As D12;
    proposals bear the number of their process: ``nameserver.proposals``
D24
    The first message after a silence is thrown away with its connection: a vote request, mostly.
    :meth:`.transport.Link._check`
D25
    A member that was emptied, or keeps all in memory, votes again in a term in which it has voted, and counts
    for entries that it has lost. ``Host.may_vote``, :mod:`.members`, :class:`.engine.Engine` (learner)
D26
    Where the last piece of a large entry begins is computed from another length: the follower reads half an
    entry and raises. Entries travel whole. :meth:`RaftCore._SyncObj__sendAppendEntries`
D27
    A command waits in a deposed leader's queue and is applied over what is newer. :meth:`RaftCore.append`
    asks for the term; commands name what they were decided from: ``nameserver.route_table``
D28
    A dump that fails is begun again at every second tick. :meth:`.engine.Engine.image_failed`
D29
    The child process that writes a dump holds every socket: the port of a killed member stays taken, and its
    dump appears later. There are no children. :meth:`.driver.Driver._make_image`
D30
    The journal file is compacted in place, has no checksums and never shrinks: a crash on the way loses
    acknowledged entries. :mod:`.journal`
D31
    A version command above a member's own version is applied again and again. There is none: an entry of a
    kind that this program does not know stops the member. :meth:`RaftCore._SyncObj__doApplyCommand`
D32
    The pipe that wakes the member is full after 65,536 submissions, which raise though they were taken.
    There is no pipe. :meth:`.driver.Driver.wake`
D33
    A member listens on every address of the machine unless told otherwise.
    :meth:`.transport.Transport.listen`
D34
    What a stopped peer does not read is kept without a bound. :attr:`.replication.Progress.window_open`,
    :mod:`.transport`
D35
    A second membership change is accepted while the first is uncommitted: two majorities may have no member
    in common. :meth:`RaftCore.change`
D36
    After a restart the stored membership counts only once its entry is applied again. :class:`.log.RaftLog`,
    :meth:`RaftCore.follow_configuration`
D37
    A leader cannot remove itself, and nothing hands over. :meth:`RaftCore.change`, :mod:`.member`

All this leans on private names: :mod:`.library` has the exact pin and checks them at start.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from .contact import Contact
from .library import LibraryTransport, Node, SyncObj, SyncObjConf, check_library, seam
from .log import CONFIGURATION, NO_OP, REGULAR, RaftLog
from .members import Configuration, encode_configuration
from .messages import (
    ALIVE,
    MATCH,
    RESET,
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotPart,
    SnapshotReply,
    Stale,
    TimeoutNow,
    VoteReply,
)
from .replication import (
    BATCH_BYTES,
    PART_BYTES,
    PARTS_WINDOW,
    TRANSFER_TIMEOUT_S,
    Progress,
    Transfer,
    quorum_index,
)
from .types import StopMember
from .watch import Watch

if TYPE_CHECKING:
    import random

logger = logging.getLogger(__name__)

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

#: Entries applied in one step, so that a long replay does not hold the loop.
APPLY_STEP: Final = 512
#: A leader that a majority has not answered for so many election timeouts steps down.
FALLBACK: Final = 1.5
#: Before a silent leader is replaced, what waits in the sockets is read: a fraction of the heartbeat period.
LAST_LOOK: Final = 0.2
#: What takes long to apply is expected to take others as long, up to so many election timeouts.
APPLY_PATIENCE: Final = 4
#: A member that asks in vain says so at most this often.
ASKING_SAID_EVERY_S: Final = 5.0


class Host(Protocol):
    """What the core needs from the engine around it."""

    @property
    def may_vote(self) -> bool:
        """False for a learner (D25)."""

    @property
    def may_stand(self) -> bool:
        """False for a learner, for whoever is no voter, and while the own journal stalls."""

    def send(self, peer: str, message: Message) -> bool: ...
    def apply(self, payload: bytes, index: int, term: int) -> None: ...
    def image(self) -> tuple[int, int, int, bytes] | None:
        """Index, term, size and encoded configuration of the newest state image."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None: ...
    @property
    def all_read_durable(self) -> bool:
        """Every member has said that it understands :attr:`Append.durable`."""

    @property
    def states_durable(self) -> bool:
        """As leader it says what is durable here: under durability ``memory``, and if all read it."""

    def role_changed(self) -> None: ...
    def linked_to(self, peer: str) -> bool: ...


class _Named(str, Node):  # type: ignore[misc]  # the library has no types
    """A member as the library wants it; looked up by name, which the library's own does in Python."""

    id: str


class Stopped(Exception):
    """The state machine cannot read an entry; this member must stop."""


class _Port(LibraryTransport):  # type: ignore[misc]  # the library has no types
    """The library's transport: its few own messages become ours."""

    ready = True

    def __init__(self, host: Host, core: RaftCore) -> None:
        super().__init__(None, None, [])
        self._host = host
        self._core = core

    def send(self, node: Any, message: Mapping[str, Any]) -> bool:
        match message["type"]:
            case "request_vote":
                request = RequestVote(
                    message["term"],
                    message["last_log_index"],
                    message["last_log_term"],
                    self._core.transferring,
                )
                return self._host.send(node.id, request)
            case "response_vote":
                return self._host.send(node.id, VoteReply(message["term"]))
            case "timeout_now":
                return self._host.send(node.id, TimeoutNow(message["term"]))
        raise AssertionError(f"the library sent {message['type']}, which we do ourselves")


class RaftCore(SyncObj):  # type: ignore[misc]  # the library has no types
    """One member's Raft state; messages, appends and ticks in, messages and applied entries out."""

    # The library's own, set by its constructor.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Any
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftMatchIndex: dict[Any, int]
    _SyncObj__lastResponseTime: dict[Any, float]
    _SyncObj__transferInProgress: bool
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int
    _SyncObj__connectedNodes: set[Any]
    _SyncObj__otherNodes: Any

    def __init__(
        self,
        *,
        me: str,
        log: RaftLog,
        host: Host,
        contact: Contact,
        clock: Callable[[], float],
        rng: random.Random,
        election_timeout_s: float,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._host = host
        self._contact = contact
        self._log = log
        self._timeout = election_timeout_s
        self._period = election_timeout_s / 6
        self._me = me
        self._configuration = log.configuration
        self._three = False
        # All that are or were linked or configured; only voters count, only members are sent the log.
        others = (name for name in self._configuration.members if name != me)
        self._nodes: dict[str, Any] = {name: _Named(name) for name in others}
        self._progress: dict[str, Progress] = {}
        self._votes: set[str] = set()
        self._pre_term = 0
        self._pre_votes: set[str] = set()
        self._go = False  # a majority would vote for us: stand in the next tick
        self._heard = -math.inf
        self._matched = 0  # follower: our log equals the current leader's up to here
        self._acknowledged = 0
        self._leader_durable = 0  # follower: what the current leader said that is durable there
        self._stated = 0  # leader: the greatest durable index that it told anybody in this term
        self._reply_seq = 0
        self._commit_limit: int | None = None
        self._watch = Watch(self._period)
        self._last_look_at = math.nan
        self._asking_said = -math.inf
        self._heir: str | None = None  # the linked voter that held most of the log when this one last led
        self._cause = ""  # what this member is doing right now, for the line that says why it stopped leading
        self._handed_over = False  # this leader asked another to take over
        self.transferring = False
        self.leader_changes = 0
        self.elections = 0
        self.refused_truncations = 0
        self.apply_errors = 0
        self.passed = 0  # committed entries that the state machine does not see
        self.enter()
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=self._period,
            raftMinTimeout=election_timeout_s,
            raftMaxTimeout=2 * election_timeout_s,
            leaderFallbackTimeout=FALLBACK * election_timeout_s,
            connectionTimeout=2 * election_timeout_s,  # checked by the library, used only by its transport
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            useFork=False,
        )
        conf.journalFile = log  # createJournal is the identity
        super().__init__(_Named(me), [], conf=conf, transport=_Port(host, self))
        self.follow_configuration()
        self._SyncObj__raftLastApplied = log.base_index
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, log.base_index)
        check_library(self)

    def enter(self) -> None:
        """Make the library use this core's clock and random source; notice if this member stood still."""
        seam.clock = self._clock
        seam.rng = self._rng
        now = self._clock()
        late = self._watch.look(now)
        if late:
            self._forgive(now, late)

    def restart_watch(self) -> None:
        """What took long just now happens once: the member did not stand still."""
        self._watch.restart(self._clock())

    # ---- what the engine reads

    @property
    def lost(self) -> float:
        """Seconds by which this member was late so far: nobody was slow meanwhile (see :mod:`.watch`)."""
        return self._watch.lost

    @property
    def state(self) -> int:
        return self._SyncObj__raftState

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def leader_id(self) -> str | None:
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def read_index(self) -> int:
        """Leader: the last index that any member can have applied, see :meth:`commit_early`."""
        return max(self.commit_index, self._stated) if self.state == LEADER else self.commit_index

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def leads(self) -> bool:
        """Leader, and an entry of its own term is committed."""
        return self.state == LEADER and self.commit_index >= self._SyncObj__noopIDx

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

    def next_wake(self) -> float:
        """The next instant at which a tick has something to do."""
        if self.state == LEADER:
            return min((p.beat_at for p in self._progress.values()), default=math.inf)
        deadline = self._SyncObj__raftElectionDeadline
        return min(deadline, self._watch.due) if self.other_voters else deadline

    @property
    def configuration(self) -> Configuration:
        """The one in force: the newest in the log."""
        return self._configuration

    @property
    def other_voters(self) -> tuple[str, ...]:
        return tuple(name for name in self._configuration.voters if name != self._me)

    def is_majority(self, others: int) -> bool:
        """Whether so many other voters and this one are more than half."""
        return (others + 1) * 2 > len(self._configuration.voters)

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

    def _quorum_index(self) -> int:
        """What a majority holds; this member counts for what its journal has."""
        matches = [p.match if self._counts(name, p) else 0 for name, p in self._progress.items()]
        return quorum_index(len(self._configuration.voters), self._log.durable_index, matches)

    # ---- what the engine does

    def tick(self) -> None:
        self._onTick(0.0)

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

    def follow_configuration(self) -> None:
        """D36: what the log holds last is in force, from append on, and no more once it is dropped.

        The library's set of other nodes is that of the voters: it counts their votes, matches and answers.
        """
        former = set(self._configuration.voters)
        self._configuration = configuration = self._log.configuration
        self._three = len(configuration.voters) == 3 and not configuration.learners
        for name in configuration.members:
            if name != self._me:
                self._know(name)
        # A set of names has another order in each process; with this one a simulated seed replays.
        voters = [self._nodes[name] for name in self.other_voters]
        self._SyncObj__otherNodes = dict.fromkeys(voters).keys()
        self._contact.voters_are(self.other_voters)
        self._votes.intersection_update(configuration.voters)
        self._pre_votes.intersection_update(configuration.voters)
        if self.state == LEADER:
            for name in self._progress.keys() - set(configuration.members):
                del self._progress[name]
            for name in configuration.members:
                if name != self._me and name not in self._progress:
                    self._set_progress(name)
                    self._SyncObj__lastResponseTime[self._nodes[name]] = -math.inf
            for node in voters:  # a new voter has as long to answer as all at the beginning of a term
                if node.id not in former:
                    self._SyncObj__lastResponseTime[node] = self._clock()

    def _know(self, peer: str) -> Any:
        return self._nodes.setdefault(peer, _Named(peer))

    def stand_now(self) -> None:
        """Do not wait for the election timeout (the only member; the one asked to take over)."""
        self._SyncObj__raftElectionDeadline = -math.inf

    def step_down(self, reason: str = "asked to") -> None:
        """Stop leading without a new term."""
        if self.state == LEADER:
            self._cause = reason
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None
            self._postpone(self._clock())

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

    def restored(self, index: int) -> None:
        """The state machine holds the image at ``index``; the log was reset to it."""
        self.follow_configuration()
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self.commit_index, index)
        self._log.setRaftCommitIndex(self.commit_index)
        self._matched = max(self._matched, index)

    def link_up(self, peer: str) -> None:
        """A link to ``peer`` is up. D17: it may have come back with less; what it said before is void."""
        self._contact.forget(peer)
        self._SyncObj__onNodeConnected(self._know(peer))
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

    # ---- D4, D5, D6: elections

    def _postpone(self, now: float) -> None:
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()

    def _ask_again_soon(self, now: float, *, syncs: bool = False) -> None:
        """Without a leader a refused or split attempt is repeated soon; asking first makes that harmless.

        Not as soon if votes are under way: two disks must sync one, and asking anew makes it worthless.
        """
        least, most = (3, 6) if syncs else (1, 3)
        self._SyncObj__raftElectionDeadline = now + self._rng.uniform(least, most) * self._period

    def _forgive(self, now: float, late: float) -> None:
        """This member stood still for so long: that was nobody's silence (see :mod:`.watch`)."""
        until = self._watch.listening_until
        if until > now:
            level = logging.WARNING if late > self._timeout else logging.DEBUG
            logger.log(level, "member stood still me=%s ms=%.0f", self.selfNode.id, late * 1000)
        self._heard = max(self._heard, min(now, self._heard + late))
        if self.state == LEADER:
            # The library steps down when answers are older than leaderFallbackTimeout; -inf never counts.
            times, oldest = self._SyncObj__lastResponseTime, until - FALLBACK * self._timeout
            for node, answered in times.items():
                if answered > -math.inf:
                    times[node] = max(answered, min(now, answered + late), oldest)
            return
        deadline = self._SyncObj__raftElectionDeadline
        if math.isfinite(deadline) and not self._go:
            self._SyncObj__raftElectionDeadline = max(deadline + late, until)
            if deadline == self._last_look_at:
                self._last_look_at = self._SyncObj__raftElectionDeadline  # one last look is enough

    def _expect_silence(self, took: float) -> None:
        """What took this member so long to apply takes the others as long: they say nothing meanwhile."""
        now, took = self._clock(), min(took, APPLY_PATIENCE * self._timeout)
        if self.state == LEADER:
            times = self._SyncObj__lastResponseTime
            for node, answered in times.items():
                if answered > -math.inf:
                    times[node] = now + took
        elif self._SyncObj__raftLeader is not None and math.isfinite(self._SyncObj__raftElectionDeadline):
            self._heard = now + took
            self._postpone(self._heard)

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

    def _silence(self, now: float) -> str:
        heard = f"{(now - self._heard) * 1000:.0f}" if math.isfinite(self._heard) else "never"
        return f"last_heard_ms={heard} own_gap_ms={self._watch.longest * 1000:.0f}"

    def _hears_leader(self, now: float) -> bool:
        """Whether a leader works as far as this member can tell (stickiness)."""
        listening = now < self._watch.listening_until
        if self.state == LEADER:
            return listening or now - self._contact.majority_date(now) < self._timeout
        leader = self.leader_id
        if leader is None or not self._host.linked_to(leader):
            return False
        return listening or now - self._heard < self._timeout

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

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if term != self.term:
            if self.state == LEADER:  # the library would do so a moment later
                self._cause += f", of term {term}"
                self._SyncObj__setState(FOLLOWER)
            self._votes.clear()
            self._matched = self._acknowledged = self._leader_durable = 0
            self._contact.new_term()
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

    # ---- following: D1, D2, D7

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

    def node(self, peer: str) -> Any:
        return self._know(peer)

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

    @property
    def _settled_three(self) -> bool:
        """Three voters and nobody else are in force, and that is committed."""
        return self._three and self._log.configuration_index <= self.commit_index

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

    # ---- leading: D3, D17, D18, D19, D20, D22, D26, D34

    def _set_progress(self, peer: str) -> None:
        self._progress[peer] = Progress(next=self._log.last_index + 1)
        self._SyncObj__raftMatchIndex[self._nodes[peer]] = 0

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

    def _counts(self, peer: str, progress: Progress) -> bool:
        """Whether what ``peer`` holds and says counts: not if it was emptied (D25), nor before it votes."""
        return not progress.learner and peer in self._configuration.voters

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

    # ---- the tick: D7 (commit), D11

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

    def _SyncObj__getCurrentLogIndex(self) -> int:
        last = self._log.last_index
        return last if self._commit_limit is None else min(last, self._commit_limit)

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply a bounded number of entries; the rest in the next step.

        A leader first tells the others what is committed: whoever wrote over a follower waits for that, and
        large entries, which take long, are applied everywhere at once, while each has just heard the leader.
        """
        commit = self._SyncObj__raftCommitIndex
        applied = self._SyncObj__raftLastApplied
        self._commit_limit = None  # the commit loop is over; entries may be appended from here on
        last = -1
        if applied < commit and self.state == LEADER:
            self._SyncObj__sendAppendEntries()
            last = self._log.last_index
        self._SyncObj__raftCommitIndex = min(commit, applied + APPLY_STEP)
        began = self._clock()
        try:
            super()._SyncObj__applyLogEntries()
        finally:
            self._SyncObj__raftCommitIndex = commit
        took = self._clock() - began
        if took > self._period:
            self._expect_silence(took)
        if last == self._log.last_index:  # all is said, unless something was appended meanwhile
            self._SyncObj__newAppendEntriesTime = math.inf
        return False

    def apply_committed(self) -> None:
        """Apply what the journal says is committed (start), without taking part in anything yet."""
        while self.applied_index < self.commit_index:
            self._SyncObj__applyLogEntries()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        """D11: an entry is applied once, whatever happens; one that cannot be read stops the member."""
        index = self.applied_index + 1
        term = self._log.term_at(index) or 0
        kind = command[:1]
        if kind in (NO_OP, CONFIGURATION):  # the latter is in force since it was appended
            self.passed += 1
            return
        if kind != REGULAR:
            raise Stopped(
                f"entry {index} is of kind {kind.hex() or 'none'}, which this program does not know"
            )
        try:
            self._host.apply(command[1:], index, term)
        except StopMember as error:
            raise Stopped(f"entry {index}: {error}") from error
        except Exception:
            # D11: an entry that raises is counted and passed; repeated, it would stop the group for ever.
            self.apply_errors += 1
            logger.exception("apply raised index=%d term=%d", index, term)

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
