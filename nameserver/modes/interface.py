"""The interface between the servers and the nameserver's mode, the freshness of reads, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from routekeeper.nameserver.commands import Command
from routekeeper.nameserver.liveness import Ownership
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import (
    Answer,
    BrokerKey,
    ConnectionId,
    LeaveReason,
    MinBrokerChange,
    Request,
)
from routekeeper.nameserver.verdicts import Verdict

from .changes import ChangeLog, Kind
from .explain import Explanation
from .group import Operations
from .timeline import Timeline

NO_QUORUM_TAG = "[NO_QUORUM]"
"""Start of the remark of the answer to a change that was not applied."""
OUTCOME_UNKNOWN_TAG = "[OUTCOME_UNKNOWN]"
"""Start of the remark of the answer to a change that may still be applied."""


class Freshness(Enum):
    """The required freshness of a read's data. The values are the words in settings and URLs."""

    STALE = "stale"
    """The answer comes from this process's own data, which may have any age."""
    DEFAULT = "default"
    """The answer may lack changes of the last moments before the request.

    It contains all changes that were acknowledged more than one minimum election timeout earlier.
    """
    LINEARIZABLE = "linearizable"
    """The answer contains all changes acknowledged before the request arrived. This needs a read barrier."""


DEFAULT: Final = Freshness.DEFAULT
LINEARIZABLE: Final = Freshness.LINEARIZABLE
"""Values of :class:`Freshness` as module constants, because every read uses them.

Python 3.11 takes 0.2 us to look up a member of an enum class.
"""


class ConsistencyError(Exception):
    """Base class of the errors that a mode raises to refuse a request.

    The remark of the answer consists of the error's tag and the error's message.
    """


class NoQuorum(ConsistencyError):
    """This member has no contact with a leader.

    Therefore a change was not applied, or the data are not fresh enough for a read.
    """


class OutcomeUnknown(ConsistencyError):
    """The deadline passed before the outcome was known. The change may still be applied."""


class NoRoom(ConsistencyError):
    """The change was not applied, because the table would exceed its limits."""


class FreshnessNotOffered(ConsistencyError):
    """This mode never offers the requested freshness. Independent mode does not offer linearizable reads.

    The HTTP server answers with status 400, because the request can never succeed in this mode.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyStatus:
    """Status of the nameserver's mode (independent or raft), for operators.

    Attributes:
        role: One of the words leader, follower, candidate, learner, and independent.
        term, commit_index, applied_index: Figures of the log. In independent mode, the term is 0 and both
            indexes are the table's revision.
        leader: Identity of the leader, if known.
        last_contact_ms: Age of the contact with a majority in ms (rule 8 of ``docs/raft-rules.md``). It is 0
            in independent mode, and None if there was no contact yet.
        members: Identities of the configured members; empty in independent mode.
        boot_id: Number of this process, so that counts before and after a restart are not compared.
        revision: Revision of the route table in this process.
        digest: Digest of the state that clients can read, as 32 hex digits.
        state_digest: Digest of all replicated state, as 32 hex digits.
        reads_ready: True if this process can now serve a read of default freshness.
        writes_ready: True if this process can now serve a write.
        waiting_for: Text that says why reads or writes are not ready; empty if both are ready.
        unwritten_files: Number of files that lack changes, because the disk refused the last write.
    """

    mode: str
    role: str
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    leader: str | None = None
    last_contact_ms: int | None = 0
    members: tuple[str, ...] = ()
    boot_id: int = 0
    revision: int = 0
    digest: str = ""
    state_digest: str = ""
    durability: str | None = None
    reads_ready: bool = True
    writes_ready: bool = True
    waiting_for: str = ""
    unwritten_files: int = 0


class Effects(Protocol):
    """Actions outside the table after a change was applied. The server implements these methods.

    A process that replays its log at the start calls none of these methods.
    """

    def close_connection(self, origin: ConnectionId) -> None:
        """Close a connection over which an evicted broker registered. Ignore an unknown connection.

        If a request of the broker is in flight, close the connection after the answer.
        """

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Send request 905 as a oneway request to the addresses in ``change``."""


BarrierPassed = Callable[[int, NoQuorum | None], None]
"""Function called on the event loop when a barrier has passed or failed.

The first argument is the barrier's number. The second argument is None if the barrier has passed. Otherwise
it is the error with which the reads of the barrier are refused. Barriers end in the order of their numbers. A
view that the function requests is valid until the function returns.
"""


class Consistency(Protocol):
    """Interface of the nameserver's modes: independent (one process) and raft (a group of processes).

    A mode orders changes of routes, bounds the age of reads, and tracks which brokers live. All methods run
    on one event loop. Deadlines are loop times in seconds.
    """

    @property
    def operations(self) -> Operations | None:
        """Operations on the raft group; None in independent mode."""

    def explain(self, topic: str) -> Explanation:
        """Explain why a topic has a route or has no route. This uses only local data and never waits."""

    def view(self, freshness: Freshness) -> RouteView:
        """Return a read-only view of the live table, valid until the caller next awaits.

        This method is synchronous, so that a read needs no asyncio task. For a linearizable view use
        :meth:`await_view` or :meth:`join_barrier`, because such a view needs a barrier that begins after the
        read arrived.

        Raises:
            NoQuorum: If the freshness cannot be given now.
            FreshnessNotOffered: If this method never gives this freshness.
        """

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        """Return a view that is as fresh as ``freshness`` requires.

        In raft mode, a default read waits if necessary until this member is in contact with a leader. A
        linearizable read waits until a read barrier has passed.

        Raises:
            NoQuorum: If the mode cannot give the freshness by the deadline. It may raise this error earlier.
            FreshnessNotOffered: If this mode never gives this freshness.
        """

    def join_barrier(self, passed: BarrierPassed) -> int:
        """Call ``passed`` once ``view(STALE)`` contains all changes that are acknowledged until now.

        Most reads use this method, because the method creates no object for each read. All calls before a
        barrier is sent share the barrier.

        Returns:
            The barrier's number. The first number is 1, and later numbers are higher. ``passed`` gets the
            same number.

        Raises:
            FreshnessNotOffered: In independent mode.
        """

    def refuse_read(self, error: NoQuorum) -> Answer:
        """Return the answer to a read whose barrier did not pass, and count the refusal."""

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str = "",
        turn_of: str = "",
    ) -> Answer | None:
        """Decide a registration (request 103). Unlike :meth:`execute`, this method needs no asyncio task.

        Args:
            host: Host of the connection. Entries that the request adds to the table count against the limits
                of this host. All loopback addresses are one host.
            turn_of: Host in whose turn the work runs, because hosts take turns; empty means ``host``. Each
                loopback address is a separate host.

        Returns:
            The answer, if it is ready at once. Otherwise None, and ``answered`` is called later with the
            answer, on the loop.
        """

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        """Answer a request from the current table. If the request changes the table, propose a command first.

        If a table entry that the command depends on changes first, the command has no effect and its result
        is ``Moved``. In this case, decide the request again from the newer table.

        This method raises no errors of the mode. NoQuorum and OutcomeUnknown become answers of code 1 whose
        remarks start with the error's tag. This method also serves reads, which are as fresh as the setting
        ``routeFreshness`` requires.

        Args:
            host: Host of the connection. Entries that the request adds to the table count against the limits
                of this host.
        """

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Record a connection's end.

        If this process did not close the connection, its end is evidence that the connection's brokers are
        gone.

        Args:
            by_us: True if this process closed the connection.
        """

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return True if a broker registered over this connection.

        The server must not close such a connection after it has refused a read, because the broker's
        registration depends on the connection.
        """

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return a connection's relation to a broker: owner, older or stranger."""

    @property
    def departures(self) -> Mapping[LeaveReason, int]:
        """Number of brokers that left the table since the start of this process, by reason."""

    @property
    def timeline(self) -> Timeline:
        """The last events of this process, for people."""

    def connection_of(self, broker: BrokerKey) -> ConnectionId | None:
        """Return the open connection to which a broker belongs, or None if this process has none."""

    def last_seen_s(self, broker: BrokerKey) -> float | None:
        """Return the seconds since a broker's last message to this process, or None without a message."""

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it exceeds ``after``, or at the deadline.

        This method also returns when the table gets another epoch, because revisions of two epochs cannot be
        compared.
        """

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever a topic's route may have changed, or another table replaces the table.

        The call comes while a change is being applied, so ``changed`` may only schedule work. A topic has at
        most one follower.
        """

    def unfollow(self, topic: str) -> None:
        """Stop the calls for a topic that :meth:`follow` began."""

    @property
    def changes(self) -> ChangeLog:
        """The log of the table's last changes, for its followers: waiting requests and watches.

        It stores nothing before the first follower.
        """

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        """Return once a list of this kind has changed after revision ``after``, or at the deadline.

        This method also returns when the table gets another epoch, because revisions of two epochs cannot be
        compared.
        """

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command, and return its result once this process has applied the command.

        Raises:
            NoQuorum: If the command was certainly not applied.
            OutcomeUnknown: If the deadline passed before the outcome was known.
            CommandTooLarge: If the command is larger than the log allows.
            CommandFormatError: If the command cannot be read back, which is a defect of this program.
        """

    def status(self) -> ConsistencyStatus:
        """Return the status of this mode. This uses only local data and never waits."""

    async def close(self) -> None:
        """Stop timers and release resources. Requests in flight get their answers first."""
