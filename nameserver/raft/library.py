"""PySyncObj's Raft under public names: the only file that uses the library's private ones.

The library elects, votes and advances the commit index; :class:`Library` drives it. Terms, votes and the
commit rule run unchanged. Each method with a defect is overridden by a call of :class:`Rules`. Private
methods can be replaced only by inheritance, so there is one subclass, and nothing inherits from it. Private
names can change in any release, so the version is pinned exactly, and each name is checked at start.
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

#: States of a member, as the library numbers them.
FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

SyncObj: Any = module.SyncObj


class Rules(Protocol):
    """Decisions that replace the library's; it calls them while it runs."""

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None: ...
    def send_vote(self, peer: str, term: int) -> None: ...
    def replicate(self) -> None:
        """Leader: send each peer the entries that it lacks."""

    def term_begins(self, term: int) -> None:
        """The term changes to ``term``: forget the messages of the former one."""

    def state_changed(self, before: int, state: int) -> None: ...
    def leadership_begins(self) -> None:
        """Prepare to lead; called before the first entry of the term is appended."""


class _Named(str, Node):  # type: ignore[misc]  # the library has no types
    """A member in the form the library wants, with a faster lookup by name than the library's class.

    Attributes:
        name: The name as a plain text.
    """

    id: str

    def __init__(self, name: str) -> None:
        Node.__init__(self, name)
        self.name = name


class _Port(LibraryTransport):  # type: ignore[misc]  # the library has no types
    """The library's transport: it turns the library's few own messages into ours."""

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
    """Return a property for a field of the library, read without a Python frame of its own: one write reads
    such fields some 150 times.
    """
    name = f"_SyncObj__{private}"
    return property(attrgetter(name), lambda library, value: setattr(library, name, value))


class Library(SyncObj):  # type: ignore[misc]  # the library has no types
    """One member's Raft state inside the library, driven by messages and ticks that carry their time.

    Members are named by text here. ``now`` is a time on the member's own clock, in seconds; ``log`` is the
    object that the library uses as its journal.

    Attributes:
        rules: Decides in the library's place; called by every method except the constructor.
        transferring: The leader itself asked for the election that is due or under way.
    """

    # Fields of the library that are used here; its constructor sets them.
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

    #: The state, as the library numbers it.
    state: int = _field("raftState")
    #: The newest term that this member knows.
    term: int = _field("raftCurrentTerm")
    #: The last index that is known to be committed.
    commit_index: int = _field("raftCommitIndex")
    #: The last index that is applied; the engine moves it.
    applied_index: int = _field("raftLastApplied")
    #: The instant at which a follower or candidate that hears nothing stands for election.
    election_deadline: float = _field("raftElectionDeadline")
    #: True if the leader has asked this member to stand.
    transfer_in_progress: bool = _field("transferInProgress")
    #: Leader: the time from which each voter's last answer counts. The library steps down when the answers
    #: of a majority are too old.
    answered: dict[str, float] = _field("lastResponseTime")
    #: Leader: the index up to which each voter counts for the commit index.
    match: dict[str, int] = _field("raftMatchIndex")
    #: Linked members; with other voters in the group, the library stands for election only if some are
    #: linked.
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
            appendEntriesPeriod=timeout / 6,  # checked, but used only by its replication
            raftMinTimeout=timeout,
            raftMaxTimeout=2 * timeout,
            leaderFallbackTimeout=fallback,
            connectionTimeout=2 * timeout,  # checked, but used only by its transport
            useFork=False,
        )
        conf.journalFile = log  # createJournal is the identity
        self._at(now)
        super().__init__(_Named(me), [], conf=conf, transport=_Port(self))
        self.applied_index = log.base_index
        self.commit_index = max(self.commit_index, log.base_index)
        check_library(self)

    def _at(self, now: float) -> None:
        """Set the clock and the random source that the library reads in the next call."""
        context.now, context.random = now, self._random

    # ---- its state

    @property
    def leader(self) -> str | None:
        leader: _Named | None = self._SyncObj__raftLeader
        return None if leader is None else leader.name

    @property
    def leads(self) -> bool:
        """Return whether this member leads, and an entry of its own term is committed."""
        return self._SyncObj__raftState == LEADER and self._SyncObj__raftCommitIndex >= self._SyncObj__noopIDx

    @property
    def seen(self) -> tuple[object, ...]:
        """State, term, leader, and whether it :attr:`leads`: in one call, to be compared."""
        state = self._SyncObj__raftState
        leads = state == LEADER and self._SyncObj__raftCommitIndex >= self._SyncObj__noopIDx
        return state, self._SyncObj__raftCurrentTerm, self._SyncObj__raftLeader, leads

    # ---- events

    def tick(self, now: float, *, commit_limit: int | None) -> None:
        """Do everything that is due at ``now``: stand for election, commit, replicate.

        D4: the library reads the clock several times in a tick. If an election deadline passed in between, it
        would stand without having asked for pre-votes, so its clock stays at ``now``.

        Args:
            commit_limit: D7: the index that a majority holds durably. The library counts the leader for every
                index in its memory, which its journal may not hold yet.
        """
        context.now, context.random = now, self._random
        self._commit_limit = commit_limit
        self.transferring = self.transfer_in_progress
        self._SyncObj__newAppendEntriesTime = -math.inf  # the engine decides what is sent
        try:
            super()._onTick(0.0)
        finally:
            self._commit_limit = None

    def append_entries(
        self, now: float, leader: str, *, term: int, commit: int, entries: Sequence[tuple[bytes, int, int]]
    ) -> None:
        """Accept ``leader`` for ``term``; ``entries`` replace all entries from the first one's index on."""
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

    def timeout_now(self, now: float, peer: str, *, term: int) -> None:
        self._receive(now, peer, {"type": "timeout_now", "term": term})

    def _receive(self, now: float, peer: str, message: Mapping[str, object]) -> None:
        context.now, context.random = now, self._random
        self._SyncObj__onMessageReceived(self._node(peer), message)

    # ---- state changes of our own rules

    def become_follower(self, term: int | None = None) -> None:
        """Become a follower without a leader, in this term or in ``term``."""
        if term is not None:
            self._SyncObj__setCurrentTerm(term, None)
        self.stop_leading()
        self._SyncObj__raftLeader = None

    def stop_leading(self) -> None:
        self._SyncObj__setState(FOLLOWER)

    def forget_leader(self) -> None:
        self._SyncObj__raftLeader = None

    def count_voters(self, others: Iterable[str]) -> None:
        """Count votes, matches and answers of these, and of this member."""
        # The order of a set of names differs between processes; a dict's does not, so simulated seeds replay.
        self._SyncObj__otherNodes = dict.fromkeys(map(self._node, others)).keys()

    def remember_vote(self, name: str) -> None:
        """Count the vote of this term as given to ``name``."""
        self._log.setCurrentTerm(self.term, name)
        self._SyncObj__votedForNodeId = name

    def commit(self, index: int) -> None:
        """Commit up to ``index``, if it is above the commit index."""
        self.commit_index = commit = max(self.commit_index, index)
        self._log.setRaftCommitIndex(commit)

    def restored(self, index: int) -> None:
        """Set applied and commit index after a snapshot at ``index`` replaced state and log."""
        self.applied_index = index
        self.commit(index)

    def draw_timeout(self) -> float:
        """Draw seconds until an election."""
        self._at(math.nan)
        return float(self._SyncObj__generateRaftTimeout())

    # ---- overridden

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

    def _SyncObj__getCurrentLogIndex(self) -> int:
        last: int = self._log.last_index
        return last if self._commit_limit is None else min(last, self._commit_limit)

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply nothing: the engine applies committed entries after the tick, and moves the applied index."""
        self._commit_limit = None  # the commit loop is over
        return False

    def _SyncObj__sendAppendEntries(self) -> None:
        self.rules.replicate()

    def _SyncObj__sendNextNodeIdx(self, *_: object, **__: object) -> None:
        """D7, D18: do not answer here; the receiver of a message answers when its entries are durable."""

    # ---- library paths that must not run

    def _applyCommand(self, command: object, callback: object, commandType: object = None) -> NoReturn:
        """D12, D13, D23, D27, D31: entries enter the log on the leader, and nowhere else."""
        raise AssertionError("commands are not forwarded: append them")

    def _SyncObj__doApplyCommand(self, command: bytes) -> NoReturn:
        """D7, D11: an entry is applied in steps, and stops the member if it cannot be read."""
        raise AssertionError("the engine applies entries")

    def _checkCommandsToApply(self) -> None:
        """Do nothing: there is no command queue."""

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """D35, D36, D37: do nothing; our own entries change the membership."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """D14, D28, D29: do nothing; the engine takes snapshots."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> NoReturn:
        raise AssertionError("the library's dumps are not used")


#: Fields that are used.
FIELDS: Final = tuple(name for name in Library.__annotations__ if name.startswith("_SyncObj__"))
#: Private methods that are called and not overridden.
CALLED: Final = ("_onTick", "_SyncObj__onMessageReceived", "_SyncObj__generateRaftTimeout")
OVERRIDDEN: Final = tuple(
    name
    for name in vars(Library)
    if name.startswith("_SyncObj__") or name in ("_applyCommand", "_checkCommandsToApply")
)


def check_library(made: Library | None = None) -> None:
    """Make sure that the library is the one this module was written for.

    Raises:
        RaftStartError: If its version differs or a private name is gone.
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
