"""PySyncObj's Raft behind public names: only this module uses private names of PySyncObj (the library).

The library's own code elects, votes and advances the commit index; :class:`Library` calls it. There are two
kinds of overridden methods:

- Some methods replace the library's method. The reason is a defect of that method (D1 to D38, listed in
  docs/pysyncobj-defects.md), or the engine does the method's work.
- Other methods call the library's method, and also inform :class:`Rules` of the event.

The library's messages to peers become calls of :class:`Rules`, too.

Private methods can be replaced only by inheritance, so there is one subclass of the library's class. Private
names can change in any release of the library. Therefore the library's version is pinned exactly, and
:func:`check_library` checks each name when a member starts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from .pysyncobj_seam import LIBRARY_VERSION, context, missing_names, module
from .types import RaftStartError

if TYPE_CHECKING:
    import random

#: PySyncObj's numbers for the states of a member.
FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

SyncObj: Any = module.SyncObj


class Rules(Protocol):
    """Decisions that replace PySyncObj's own decisions. PySyncObj calls these methods while it runs."""

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None: ...
    def send_vote(self, peer: str, term: int) -> None: ...
    def replicate(self) -> None:
        """Send each peer the entries that it lacks. The library calls this on the leader only."""

    def term_begins(self, term: int) -> None:
        """Forget everything that belongs to the former term, because the term now changes to ``term``."""

    def state_changed(self, before: int, state: int) -> None: ...
    def leadership_begins(self) -> None:
        """Prepare to lead. The library calls this before it appends the first entry of the term."""


class _Named(str, Node):  # type: ignore[misc]  # the library has no types
    """A member as an object for PySyncObj. As a dict key, it is faster than PySyncObj's own class.

    Attributes:
        name: The name as plain text.
    """

    id: str

    def __init__(self, name: str) -> None:
        Node.__init__(self, name)
        self.name = name


class _Port(LibraryTransport):  # type: ignore[misc]  # the library has no types
    """A transport that turns the messages of PySyncObj into calls of :class:`Rules`."""

    ready = True

    def __init__(self, library: Library) -> None:
        super().__init__(None, None, [])
        self.library = library

    def send(self, node: Any, message: Mapping[str, Any]) -> bool:
        match message:
            case {"type": "request_vote", "term": term, "last_log_index": index, "last_log_term": last_term}:
                self.library.rules.send_vote_request(node.id, term, index, last_term)
            case {"type": "response_vote", "term": term}:
                self.library.rules.send_vote(node.id, term)
            case _:
                raise AssertionError(f"the library sent {message['type']}, which we do ourselves")
        return True


def _field(private: str) -> Any:
    """Return a property for a private field of PySyncObj.

    ``attrgetter`` reads the field without a Python function call. This saves time, because one proposal reads
    such fields about 150 times.
    """
    name = f"_SyncObj__{private}"
    return property(attrgetter(name), lambda library, value: setattr(library, name, value))


class Library(SyncObj):  # type: ignore[misc]  # the library has no types
    """One member's Raft state inside PySyncObj. The caller passes the time with each message and tick.

    Each member is identified by its name. ``now`` is a time on the member's own clock, in seconds.
    ``log`` is the object that the library uses as its journal.

    Attributes:
        rules: Makes the decisions that replace the library's decisions. The constructor does not call it.
        transferring: True if the leader itself asked for the election that is due or has begun.
    """

    # Fields of the library that are used here; the library's constructor sets them.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftElectionDeadline: float
    _SyncObj__transferInProgress: bool
    _SyncObj__lastResponseTime: dict[str, float]
    _SyncObj__raftMatchIndex: dict[str, int]
    _SyncObj__connectedNodes: Collection[str]
    _SyncObj__raftLeader: Any
    _SyncObj__votedForNodeId: str | None
    _SyncObj__noopIDx: int
    _SyncObj__otherNodes: Any
    _SyncObj__newAppendEntriesTime: float

    #: State of the member as a number: follower, candidate or leader.
    state: int = _field("raftState")
    #: The newest term that this member knows.
    term: int = _field("raftCurrentTerm")
    #: The index of the last entry that this member knows to be committed.
    commit_index: int = _field("raftCommitIndex")
    #: The index of the last applied entry. The engine raises it.
    applied_index: int = _field("raftLastApplied")
    #: The time at which a follower or candidate stands for election. Each message of a leader delays it.
    election_deadline: float = _field("raftElectionDeadline")
    #: True if the leader has asked this member to stand for election.
    transfer_in_progress: bool = _field("transferInProgress")
    #: On the leader: the time at which each voter's silence began. The leader steps down when a majority has
    #: been silent for too long.
    answered: dict[str, float] = _field("lastResponseTime")
    #: On the leader: for each voter, the last index up to which the voter's log is equal to the leader's log.
    #: The library computes the commit index from these indexes.
    match: dict[str, int] = _field("raftMatchIndex")
    #: The members to which a link is up. If the cluster has other voters, the library stands for election
    #: only while this collection is not empty.
    connected: Collection[str] = _field("connectedNodes")

    def __init__(
        self, me: str, log: Any, *, now: float, rng: random.Random, timeout: float, fallback: float
    ) -> None:
        self.rules: Rules
        self._random = rng.random
        self._log = log
        self._commit_limit: int | None = None
        self._node = functools.cache(_Named)
        self.transferring = False
        conf = SyncObjConf(
            autoTick=False,
            # The library only checks this value, because the engine replicates the entries.
            appendEntriesPeriod=timeout / 6,
            raftMinTimeout=timeout,
            raftMaxTimeout=2 * timeout,
            leaderFallbackTimeout=fallback,
            # The library only checks this value, because RouteKeeper has its own transport.
            connectionTimeout=2 * timeout,
            useFork=False,
        )
        conf.journalFile = log  # our substitute for createJournal returns this object unchanged
        self._at(now)
        super().__init__(_Named(me), [], conf=conf, transport=_Port(self))
        self.applied_index = log.base_index
        self.commit_index = max(self.commit_index, log.base_index)
        check_library(self)

    def _at(self, now: float) -> None:
        """Set the clock and the random source that the library reads in the next call."""
        context.now, context.random = now, self._random

    # ---- the state of the library

    @property
    def leader(self) -> str | None:
        leader: _Named | None = self._SyncObj__raftLeader
        return None if leader is None else leader.name

    @property
    def leads(self) -> bool:
        """True if this member leads and an entry of its own term is committed."""
        return self._SyncObj__raftState == LEADER and self._SyncObj__raftCommitIndex >= self._SyncObj__noopIDx

    @property
    def seen(self) -> tuple[object, ...]:
        """State, term, leader and :attr:`leads` in one tuple, so that a caller can detect any change."""
        state = self._SyncObj__raftState
        leads = state == LEADER and self._SyncObj__raftCommitIndex >= self._SyncObj__noopIDx
        return state, self._SyncObj__raftCurrentTerm, self._SyncObj__raftLeader, leads

    # ---- events

    def tick(self, now: float, *, commit_limit: int | None) -> None:
        """Do everything that is due at ``now``: stand for election, commit, replicate.

        The library reads the clock several times in a tick. If an election deadline passed between two
        readings, the library would stand for election without pre-votes. Therefore the library's clock shows
        ``now`` during the whole tick (repairs PySyncObj defect D4).

        Args:
            commit_limit: The last index that a majority holds durably (repairs PySyncObj defect D7). Without
                this limit, the library would count entries of the leader that are not yet in the leader's
                journal. It is None if this member does not lead. If this tick elects it, it commits nothing.
        """
        context.now, context.random = now, self._random
        self._commit_limit = commit_limit
        self.transferring = self.transfer_in_progress
        # Let the library call replicate() in each tick, because the engine decides which messages are sent.
        self._SyncObj__newAppendEntriesTime = -math.inf
        try:
            super()._onTick(0.0)
        finally:
            self._commit_limit = None

    def append_entries(
        self, now: float, leader: str, *, term: int, commit: int, entries: Sequence[tuple[bytes, int, int]]
    ) -> None:
        """Accept ``leader`` for ``term``, and replace the log from the first index in ``entries`` on."""
        message: dict[str, object] = {"type": "append_entries", "term": term, "commit_index": commit}
        if entries:
            prev = entries[0][1] - 1
            message |= {"prevLogIdx": prev, "prevLogTerm": self._log.term_at(prev), "entries": entries}
        self._receive(now, leader, message)

    def vote_request(self, now: float, peer: str, *, term: int, last_index: int, last_term: int) -> None:
        found = {"last_log_index": last_index, "last_log_term": last_term}
        self._receive(now, peer, {"type": "request_vote", "term": term, **found})

    def vote(self, now: float, peer: str, *, term: int) -> None:
        self._receive(now, peer, {"type": "response_vote", "term": term})
        self._commit_limit = None  # this vote may have made this member the leader, outside a tick

    def timeout_now(self, now: float, peer: str, *, term: int) -> None:
        self._receive(now, peer, {"type": "timeout_now", "term": term})

    def _receive(self, now: float, peer: str, message: Mapping[str, object]) -> None:
        context.now, context.random = now, self._random
        self._SyncObj__onMessageReceived(self._node(peer), message)

    # ---- methods by which the engine changes the library's state

    def become_follower(self, term: int | None = None) -> None:
        """Become a follower without a known leader, in ``term`` if it is given, else in the present term."""
        if term is not None:
            self._SyncObj__setCurrentTerm(term, None)
        self.stop_leading()
        self._SyncObj__raftLeader = None

    def stop_leading(self) -> None:
        self._SyncObj__setState(FOLLOWER)

    def forget_leader(self) -> None:
        self._SyncObj__raftLeader = None

    def count_voters(self, others: Iterable[str]) -> None:
        """Count only the votes, match indexes and answers of these members and of this member."""
        # Use a dict, because the order of a set differs from process to process. With a set, a simulated run
        # could not be repeated from its seed.
        self._SyncObj__otherNodes = dict.fromkeys(map(self._node, others)).keys()

    def remember_vote(self, name: str) -> None:
        """Record that this member gave its vote of the present term to ``name``."""
        self._log.setCurrentTerm(self.term, name)
        self._SyncObj__votedForNodeId = name

    def commit(self, index: int) -> None:
        """Raise the commit index to ``index``, or keep it if it is already higher."""
        self.commit_index = commit = max(self.commit_index, index)
        self._log.setRaftCommitIndex(commit)

    def restored(self, index: int) -> None:
        """Set applied and commit index to ``index`` after a snapshot at this index replaced the state."""
        self.applied_index = index
        self.commit(index)

    def draw_timeout(self) -> float:
        """Draw a random election timeout, in seconds."""
        self._at(math.nan)
        return float(self._SyncObj__generateRaftTimeout())

    # ---- overridden methods of the library

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if term != self.term:
            self.rules.term_begins(term)
        super()._SyncObj__setCurrentTerm(term, votedForNodeId)

    def _SyncObj__setState(self, newState: int) -> None:
        before = self._SyncObj__raftState
        if before != newState:
            super()._SyncObj__setState(newState)
            self.rules.state_changed(before, newState)

    def _SyncObj__onBecomeLeader(self) -> None:
        self.rules.leadership_begins()
        super()._SyncObj__onBecomeLeader()
        # The only voter is elected within a tick, and the caller of this tick passed no limit. Commit nothing
        # in this tick. Otherwise entries that the journal lacks would count as committed (defect D7).
        self._commit_limit = self.commit_index

    def _SyncObj__getCurrentLogIndex(self) -> int:
        last: int = self._log.last_index
        return last if self._commit_limit is None else min(last, self._commit_limit)

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply nothing, because the engine applies committed entries after the tick."""
        self._commit_limit = None  # The library has advanced the commit index; the limit is needed no more.
        return False

    def _SyncObj__sendAppendEntries(self) -> None:
        self.rules.replicate()

    def _SyncObj__sendNextNodeIdx(self, *_: object, **__: object) -> None:
        """Do nothing, because the engine answers later, when the received entries are durable.

        The library answers before that (defect D7). If the logs differ, its answer also lets the leader go
        back by only one entry (defect D18).
        """

    # ---- methods of the library whose original code must not run

    def _applyCommand(self, command: object, callback: object, commandType: object = None) -> NoReturn:
        """Raise an error, because only the leader itself appends entries to the log.

        The library's method also forwards commands to the leader, and passes results to callbacks. It has the
        defects D12, D13, D23, D27 and D31 of docs/pysyncobj-defects.md.
        """
        raise AssertionError("commands are not forwarded: append them")

    def _SyncObj__doApplyCommand(self, command: bytes) -> NoReturn:
        """Raise an error, because the engine applies the entries itself.

        The engine applies long entries in steps, and stops the member if an entry is unreadable. The library
        would apply an entry that raises an exception again in each tick (defect D11). It would also apply
        entries that are not durable yet (defect D7).
        """
        raise AssertionError("the engine applies entries")

    def _checkCommandsToApply(self) -> None:
        """Do nothing, because the library's command queue is not used."""

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """Do nothing, because RouteKeeper's own log entries change the membership.

        In the library, two changes at the same time can lead to two majorities without a common member. Its
        defects D35, D36 and D37 concern such changes.
        """

    def _SyncObj__tryLogCompaction(self) -> None:
        """Do nothing, because the engine takes the snapshots (repairs PySyncObj defects D14, D28 and D29)."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> NoReturn:
        raise AssertionError("the library's dumps are not used")


#: Private fields of the library that this module uses.
FIELDS: Final = tuple(name for name in Library.__annotations__ if name.startswith("_SyncObj__"))
#: Private methods of the library that this module calls and does not override.
CALLED: Final = ("_onTick", "_SyncObj__onMessageReceived", "_SyncObj__generateRaftTimeout")
OVERRIDDEN: Final = tuple(
    name
    for name in vars(Library)
    if name.startswith("_SyncObj__") or name in ("_applyCommand", "_checkCommandsToApply")
)


def check_library(made: Library | None = None) -> None:
    """Check that the installed library has the version and the private names that this module needs.

    Raises:
        RaftStartError: The library has another version, or a private name is missing.
    """
    missing = [name for name in (*CALLED, *OVERRIDDEN) if not callable(getattr(SyncObj, name, None))]
    missing += missing_names
    if made is not None:
        missing += [name for name in FIELDS if name not in vars(made)]
    if module.VERSION != LIBRARY_VERSION or missing:
        raise RaftStartError(
            f"raft: needs pysyncobj {LIBRARY_VERSION}, found {module.VERSION}"
            + (f" without {', '.join(missing)}" if missing else "")
        )
