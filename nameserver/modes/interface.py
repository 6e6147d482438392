"""The interface between the servers and a mode; freshness of reads; errors of a mode."""

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
"""Start of the remark of an answer to a change that was not applied."""
OUTCOME_UNKNOWN_TAG = "[OUTCOME_UNKNOWN]"
"""Start of the remark of an answer to a change that may still be applied."""


class Freshness(Enum):
    """The allowed age of a read; the value is the word in settings and URLs."""

    STALE = "stale"
    """Local, always."""
    DEFAULT = "default"
    """Contains all changes acknowledged more than one minimum election timeout before the request arrived."""
    LINEARIZABLE = "linearizable"
    """Contains all changes acknowledged before the request arrived; needs a read barrier first."""


DEFAULT: Final = Freshness.DEFAULT
LINEARIZABLE: Final = Freshness.LINEARIZABLE
"""Module constants for two members, used by the read path: Python 3.11 takes 0.2 us to find a member in its
class.
"""


class ConsistencyError(Exception):
    """Root of the errors that a mode raises on purpose; the message is a remark without its tag."""


class NoQuorum(ConsistencyError):
    """Not applied, or not readable with the requested freshness: no leader is known or in contact."""


class OutcomeUnknown(ConsistencyError):
    """The deadline passed before the outcome was known. The change may still be applied."""


class NoRoom(ConsistencyError):
    """Not applied: the table would grow beyond its bounds."""


class FreshnessNotOffered(ConsistencyError):
    """This mode never offers the requested freshness (independent: linearizable).

    The client made the mistake: 400.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyStatus:
    """Status of a mode for operators.

    Attributes:
        role: leader, follower, candidate, learner, or independent.
        term, commit_index, applied_index: Figures of the log; independent mode has term 0 and its revision as
            both indexes.
        leader: Identity of the leader if one is known.
        last_contact_ms: Age of the contact with a majority (rule 8); 0 in independent mode, None if never.
        members: Identities of the configured members; empty in independent mode.
        boot_id: Number of this process, so that counts before and after a restart are not compared.
        revision: Revision of the route table as applied here.
        digest: Digest of the state that clients can read, 32 hex digits.
        state_digest: Digest of all replicated state, 32 hex digits.
        reads_ready, writes_ready: A default read, or a write, could be served now.
        waiting_for: In words, why reads or writes are not ready; empty if both are.
        unwritten_files: Number of files that lack changes because the disk refused the last write.
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
    """Actions of an applied change outside the table. The server implements them; never called in replay."""

    def close_connection(self, origin: ConnectionId) -> None:
        """Close a connection over which an evicted broker registered; unknown ones are ignored.

        A connection with a request of that broker in flight is closed once that is answered.
        """

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Send request 905, oneway, to the addresses that the change names."""


BarrierPassed = Callable[[int, NoQuorum | None], None]
"""Called on the loop with the number of a barrier, and with None or the reason to refuse its reads. Barriers
end in the order of their numbers. The view is valid until the function returns.
"""


class Consistency(Protocol):
    """Orders changes of routes, bounds the age of reads, tracks which brokers live; the same for every mode.

    Everything runs on one event loop. Deadlines are loop times in seconds.
    """

    @property
    def operations(self) -> Operations | None:
        """Operations on the group; None in a mode without a group."""

    def explain(self, topic: str) -> Explanation:
        """Explain why a topic has a route here or none; local and without waiting."""

    def view(self, freshness: Freshness) -> RouteView:
        """Return a read-only view of the live table, valid until the caller next awaits.

        Synchronous, for the read path. It never returns a linearizable view: that needs a barrier that begins
        after the read arrived, see :meth:`await_view` and :meth:`join_barrier`.

        Raises:
            NoQuorum: If the freshness cannot be given now.
            FreshnessNotOffered: If this method never gives it.
        """

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        """Return the view with this freshness; wait for contact or for a barrier if necessary.

        Raises:
            NoQuorum: If the freshness could not be given by the deadline, or the mode gave up earlier.
            FreshnessNotOffered: If this mode never gives this freshness.
        """

    def join_barrier(self, passed: BarrierPassed) -> int:
        """Have ``passed`` called once ``view(STALE)`` contains all that was acknowledged before this call.

        The read path uses it, because it makes no object for each read. All calls before a barrier is sent
        share that barrier.

        Returns:
            The barrier's number, from 1 and rising; :data:`BarrierPassed` gets the same.

        Raises:
            FreshnessNotOffered: In independent mode.
        """

    def refuse_read(self, error: NoQuorum) -> Answer:
        """Return the answer to a read whose barrier did not pass, and count it."""

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
        """Decide a registration (103), as :meth:`execute` does for other requests, but without a task.

        Args:
            turn_of: Host whose turn the work takes, because hosts take turns; empty for ``host``. It tells
                apart addresses of loopback, which share one charge.

        Returns:
            The answer, or None if ``answered`` is called with it later, once, on the loop.
        """

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        """Decide a request on the view; answer, or propose and decide again while it has moved.

        It raises no errors of its own: NoQuorum and OutcomeUnknown become answers of code 1 whose remarks
        start with their tags. Serves reads too, with the freshness that ``routeFreshness`` sets.

        Args:
            host: Host of the connection: entries that the request adds to the table count against its bounds.
        """

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Note that a connection ended: evidence that its brokers are gone, unless we closed it ourselves."""

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return whether a broker registered over this connection (a refused read must not close it then)."""

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return the relation of a connection to a broker."""

    @property
    def departures(self) -> Mapping[LeaveReason, int]:
        """Brokers that left the table since the start of this process, by reason."""

    @property
    def timeline(self) -> Timeline:
        """The last events of this process, for people."""

    def connection_of(self, broker: BrokerKey) -> ConnectionId | None:
        """Return the open connection that a broker belongs to; None if there is none here."""

    def last_seen_s(self, broker: BrokerKey) -> float | None:
        """Return the age of a broker's last message to this process; None if there was none."""

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it is above ``after``, or its revision at the deadline.

        It also returns once the table has another epoch, because ``after`` has no meaning in it.
        """

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever a topic's route may have changed, or the table is another one.

        It is called while a change is applied, so it may only schedule. A topic has at most one follower.
        """

    def unfollow(self, topic: str) -> None:
        """End :meth:`follow`."""

    @property
    def changes(self) -> ChangeLog:
        """The last changes of the table, for followers. The log begins with its first follower."""

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        """Return once something of a kind has changed above ``after``, or at the deadline.

        It also returns once the table has another epoch, because ``after`` has no meaning in it.
        """

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command; return its verdict once it is applied here.

        Raises:
            NoQuorum: If it was certainly not applied.
            OutcomeUnknown: If the deadline passed first.
            CommandTooLarge: If it is above the limit of the log.
            CommandFormatError: If its log form cannot be read back: a defect of this program.
        """

    def status(self) -> ConsistencyStatus:
        """Return the state of this mode, local and without waiting."""

    async def close(self) -> None:
        """Stop timers and release resources; requests in flight get their answers first."""
