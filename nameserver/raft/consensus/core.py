"""What all parts of a member's Raft core share: its state, the way out of it, and the seams to the library.

:mod:`.hardening` says which parts there are, and what is wrong with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nameserver.raft.library import LibraryTransport, Node, SyncObj, SyncObjConf, check_library, seam

from .contact import Contact
from .log import RaftLog
from .members import Configuration
from .messages import Message, RequestVote, TimeoutNow, VoteReply

if TYPE_CHECKING:
    import random

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

#: A leader that a majority has not answered for so many election timeouts steps down (D8).
FALLBACK: Final = 1.5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts of one member are given at their construction."""

    me: str
    log: RaftLog
    host: Host
    contact: Contact
    clock: Callable[[], float]
    rng: random.Random
    election_timeout_ms: int

    @property
    def election_timeout_s(self) -> float:
        return self.election_timeout_ms / 1000

    @property
    def period(self) -> float:
        """Seconds between two heartbeats of a leader."""
        return self.election_timeout_s / 6


class _Named(str, Node):  # type: ignore[misc]  # the library has no types
    """A member as the library wants it; looked up by name, which the library's own does in Python."""

    id: str


class _Port(LibraryTransport):  # type: ignore[misc]  # the library has no types
    """The library's transport: its few own messages become ours."""

    ready = True

    def __init__(self, host: Host, core: CoreState) -> None:
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


class CoreState(SyncObj):  # type: ignore[misc]  # the library has no types
    """The state that all parts read, and the configuration in force.

    Each part sets what is its own before it goes on to the next constructor: the library's, the last one,
    calls methods that the parts override.
    """

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

    def __init__(self, given: Surroundings) -> None:
        self._clock = given.clock
        self._rng = given.rng
        self._host = given.host
        self._contact = given.contact
        self._log = log = given.log
        self._timeout = given.election_timeout_s
        self._period = given.period
        self._me = given.me
        self._configuration = log.configuration
        self._three = False
        # All that are or were linked or configured; only voters count, only members are sent the log.
        others = (name for name in self._configuration.members if name != given.me)
        self._nodes: dict[str, Any] = {name: _Named(name) for name in others}
        self.transferring = False
        self.leader_changes = 0
        seam.clock, seam.rng = given.clock, given.rng
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=given.period,
            raftMinTimeout=given.election_timeout_s,
            raftMaxTimeout=2 * given.election_timeout_s,
            leaderFallbackTimeout=FALLBACK * given.election_timeout_s,
            connectionTimeout=2 * given.election_timeout_s,  # checked, but used only by its transport
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            useFork=False,
        )
        conf.journalFile = log  # createJournal is the identity
        super().__init__(_Named(given.me), [], conf=conf, transport=_Port(given.host, self))
        self.follow_configuration()
        self._SyncObj__raftLastApplied = log.base_index
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, log.base_index)
        check_library(self)

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
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def leads(self) -> bool:
        """Leader, and an entry of its own term is committed."""
        return self.state == LEADER and self.commit_index >= self._SyncObj__noopIDx

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

    @property
    def _settled_three(self) -> bool:
        """Three voters and nobody else are in force, and that is committed."""
        return self._three and self._log.configuration_index <= self.commit_index

    def follow_configuration(self) -> None:
        """D36: what the log holds last is in force, from append on, and no more once it is dropped.

        The library's set of other nodes is that of the voters: it counts their votes, matches and answers.
        """
        self._configuration = configuration = self._log.configuration
        self._three = len(configuration.voters) == 3 and not configuration.learners
        for name in configuration.members:
            if name != self._me:
                self.node(name)
        # A set of names has another order in each process; with this one a simulated seed replays.
        voters = [self._nodes[name] for name in self.other_voters]
        self._SyncObj__otherNodes = dict.fromkeys(voters).keys()
        self._contact.voters_are(self.other_voters)

    def node(self, peer: str) -> Any:
        """The library's face of a member, whether it is configured or only linked."""
        return self._nodes.setdefault(peer, _Named(peer))
