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
    """The answer always comes from this process's own data, without a bound on their age."""
    DEFAULT = "default"
    """The answer contains all changes acknowledged more than one minimum election timeout before the request
    arrived."""
    LINEARIZABLE = "linearizable"
    """The answer contains all changes acknowledged before the request arrived; this needs a read barrier."""


DEFAULT: Final = Freshness.DEFAULT
LINEARIZABLE: Final = Freshness.LINEARIZABLE
"""The two values of :class:`Freshness` as module constants, so that reads do not look them up in the class.

Python 3.11 takes 0.2 us for one such look-up.
"""


class ConsistencyError(Exception):
    """Base of the errors that a mode raises on purpose.

    The remark of the answer consists of the error's tag and the error's message.
    """


class NoQuorum(ConsistencyError):
    """This member has no contact with a leader.

    A change was therefore not applied, or the data for a read are not fresh enough.
    """


class OutcomeUnknown(ConsistencyError):
    """The deadline passed before the outcome was known. The change may still be applied."""


class NoRoom(ConsistencyError):
    """The change was not applied, because the table would exceed its bounds."""


class FreshnessNotOffered(ConsistencyError):
    """This mode never offers the requested freshness. Independent mode does not offer linearizable reads.

    HTTP answers 400, because the client made the mistake.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyStatus:
    """Status of the nameserver's mode (independent or raft), for operators.

    Attributes:
        role: leader, follower, candidate, learner, or independent.
        term, commit_index, applied_index: Figures of the log. In independent mode, the term is 0 and both
            indexes are the table's revision.
        leader: Identity of the leader, if known.
        last_contact_ms: Age of the contact with a majority in ms (rule 8 of ``docs/raft-rules.md``); 0 in
            independent mode, None if there was no contact yet.
        members: Identities of the configured members; empty in independent mode.
        boot_id: Number of this process, so that counts before and after a restart are not compared.
        revision: Revision of the route table in this process.
        digest: Digest of the state that clients can read, 32 hex digits.
        state_digest: Digest of all replicated state, 32 hex digits.
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

    When a process replays its log at the start, it calls none of these methods.
    """

    def close_connection(self, origin: ConnectionId) -> None:
        """Close a connection over which an evicted broker registered. Ignore an unknown connection.

        If a request of that broker is in flight, close the connection after the answer.
        """

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Send request 905 as a oneway request to the addresses in ``change``."""


BarrierPassed = Callable[[int, NoQuorum | None], None]
"""Function called on the event loop when a barrier has passed or failed.

The first argument is the barrier's number. The second argument is None if the barrier has passed, else the
error with which the reads of the barrier are refused. Barriers end in the order of their numbers. A view that
the function requests is valid until the function returns.
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
        """Explain why a topic has a route here or none. Uses only local data and never waits."""

    def view(self, freshness: Freshness) -> RouteView:
        """Return a read-only view of the live table, valid until the caller next awaits.

        This method is synchronous, because the read path uses it. For a linearizable view use
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
            NoQuorum: If the mode cannot give the freshness by the deadline. This error may come earlier.
            FreshnessNotOffered: If this mode never gives this freshness.
        """

    def join_barrier(self, passed: BarrierPassed) -> int:
        """Call ``passed`` once ``view(STALE)`` contains all changes that are acknowledged until now.

        The read path uses this method, because the method creates no object for each read. All calls before a
        barrier is sent share that barrier.

        Returns:
            The barrier's number, from 1 and rising. ``passed`` gets the same number.

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
            turn_of: Host in whose turn the work runs, because hosts take turns; empty means ``host``. Here
                each loopback address is a host of its own. In ``host``, which counts for the table's bounds,
                all loopback addresses are one host.

        Returns:
            The answer, if it is ready at once. Otherwise None: ``answered`` is called later with the answer,
                on the loop.
        """

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        """Answer a request from the current table. If the request changes the table, propose a command first.

        If a table entry that the command depends on changes first, the command has no effect and its result
        is ``Moved``. In this case, decide the request again from the newer table.

        This method raises no errors of the mode: NoQuorum and OutcomeUnknown become answers of code 1 whose
        remarks start with the error's tag. This method also serves reads, which are as fresh as the setting
        ``routeFreshness`` requires.

        Args:
            host: Host of the connection. Entries that the request adds to the table count against this host.
        """

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Record a connection's end.

        If this process did not close the connection, this end is evidence that the connection's brokers
        are gone.
        """

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return True if a broker registered over this connection.

        The server must not close such a connection after it has refused a read.
        """

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return the relation of a connection to a broker."""

    @property
    def departures(self) -> Mapping[LeaveReason, int]:
        """Number of brokers that left the table since the start of this process, by reason."""

    @property
    def timeline(self) -> Timeline:
        """The last events of this process, for people."""

    def connection_of(self, broker: BrokerKey) -> ConnectionId | None:
        """Return the open connection to which a broker belongs, or None if this process has none."""

    def last_seen_s(self, broker: BrokerKey) -> float | None:
        """Return the age of a broker's last message to this process in s, or None if there was no message."""

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it exceeds ``after``, or at the deadline.

        It also returns once the table has another epoch, because ``after`` means nothing in another epoch.
        """

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever a topic's route may have changed, or another table replaces the table.

        The call happens while a change is applied, so ``changed`` may only schedule work. A topic has at most
        one follower.
        """

    def unfollow(self, topic: str) -> None:
        """Stop the calls for a topic that :meth:`follow` began."""

    @property
    def changes(self) -> ChangeLog:
        """The log of the table's last changes, for followers. It stores nothing before the first follower."""

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        """Return once a list of this kind has changed after revision ``after``, or at the deadline.

        It also returns once the table has another epoch, because ``after`` means nothing in another epoch.
        """

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command; return its result once this process has applied it.

        Raises:
            NoQuorum: If the command was certainly not applied.
            OutcomeUnknown: If the deadline passed before the outcome was known.
            CommandTooLarge: If the command is larger than the log allows.
            CommandFormatError: If the command cannot be read back, which is a defect of this program.
        """

    def status(self) -> ConsistencyStatus:
        """Return the state of this mode. Uses only local data and never waits."""

    async def close(self) -> None:
        """Stop timers and release resources. Requests in flight get their answers first."""
