"""The one interface between the handlers' world and a mode, its freshness and its errors."""

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
"""Start of the remark of an answer to something that was not applied."""
OUTCOME_UNKNOWN_TAG = "[OUTCOME_UNKNOWN]"
"""Start of the remark of an answer to something that may apply yet."""


class Freshness(Enum):
    """The allowed age of a read; the value is the word in settings and URLs."""

    STALE = "stale"
    """Local, always."""
    DEFAULT = "default"
    """Misses no change acknowledged more than one minimum election timeout before the request arrived."""
    LINEARIZABLE = "linearizable"
    """Misses no change acknowledged before the request arrived; needs a barrier first."""


DEFAULT: Final = Freshness.DEFAULT
LINEARIZABLE: Final = Freshness.LINEARIZABLE
"""By names of their own for each read: Python 3.11 takes 0.2 us to find a member in its class."""


class ConsistencyError(Exception):
    """Root of the errors that a mode raises on purpose; the message is a remark without its tag."""


class NoQuorum(ConsistencyError):
    """Not applied, or not readable with the requested freshness: no leader, or no contact with it."""


class OutcomeUnknown(ConsistencyError):
    """The deadline passed before a verdict. The change may still apply, while nothing has moved."""


class NoRoom(ConsistencyError):
    """Not applied: the table would hold more than it may."""


class FreshnessNotOffered(ConsistencyError):
    """This mode never offers the freshness asked (independent: linearizable); the asker's mistake, 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyStatus:
    """Status of a mode for operators.

    Attributes:
        role: leader, follower, candidate, learner, or independent.
        term, commit_index, applied_index: Of the log; independent mode has term 0 and counts its revisions.
        leader: Identity of the leader if one is known.
        last_contact_ms: Age of the contact with a majority (rule 8); 0 in independent mode, None if never.
        members: Identities of the configured members; empty in independent mode.
        boot_id: Number of this process, so that counts of two lives are not compared.
        revision: Of the route table as applied here.
        digest: Of what clients can read, 32 hex digits.
        state_digest: Of all replicated state, 32 hex digits.
        reads_ready, writes_ready: A default read, or a write, could be served now.
        waiting_for: Why not, in words; empty if ready.
        unwritten_files: How many files lack changes because the disk refused the last write.
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
"""Called on the loop with the number of a barrier, and None or the reason to refuse the reads that joined it.

Barriers end in the order of their numbers, and the view holds until the function returns.
"""


class Consistency(Protocol):
    """Orders route changes, dates reads, carries liveness; the same for every mode.

    Everything runs on one event loop. Deadlines are loop times in seconds.
    """

    @property
    def operations(self) -> Operations | None:
        """Operations on the group; None in a mode that has none."""

    def explain(self, topic: str) -> Explanation:
        """Say why a topic has a route here or none; local and without waiting."""

    def view(self, freshness: Freshness) -> RouteView:
        """Return a read-only face of the live table, valid until the caller next awaits.

        Synchronous, for the read path. A linearizable view is never to be had at once: it needs a barrier
        that begins after the read arrived, see :meth:`await_view` and :meth:`join_barrier`.

        Raises:
            NoQuorum: If the freshness cannot be given now.
            FreshnessNotOffered: If it never can, at once.
        """

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        """Return the view with this freshness, waiting if need be: for contact, or for a barrier.

        Raises:
            NoQuorum: If it could not be had by the deadline, or earlier if the mode says so.
            FreshnessNotOffered: If this mode never can.
        """

    def join_barrier(self, passed: BarrierPassed) -> int:
        """Have ``passed`` called once ``view(STALE)`` misses nothing acknowledged before this call.

        For the read path: nothing is made per read. Calls before a barrier is sent share it.

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
    ) -> Answer | None:
        """Decide a registration (103), as :meth:`execute` does for other requests, but without a task.

        Returns:
            The answer, or None if ``answered`` is called with it later, once, on the loop.
        """

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        """Decide a request on the view; answer, or propose and decide again while it has moved.

        Never raises on its own account: NoQuorum and OutcomeUnknown become answers of code 1 whose remarks
        start with their tags. Serves reads too, with the freshness that ``routeFreshness`` sets.

        Args:
            host: Where the connection comes from: it is charged for what the request adds to the table.
        """

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Note the end of a connection; evidence against its brokers unless we closed it ourselves."""

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return whether a broker registered over this connection (a refused read must not close it then)."""

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Say what a connection is to a broker."""

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
        """Return the topic's revision once it is above ``after``, or what it is at the deadline.

        Also once the table is of another epoch: then ``after`` says nothing any more.
        """

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever a topic's route may have changed, or the table is another one.

        It is called while a change is applied, so it may only schedule. A topic has at most one follower.
        """

    def unfollow(self, topic: str) -> None:
        """End :meth:`follow`."""

    @property
    def changes(self) -> ChangeLog:
        """The last changes of the table, for followers; the first follower begins the log."""

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        """Return once something of a kind has changed above ``after``, or at the deadline.

        Also once the table is of another epoch: then ``after`` says nothing any more.
        """

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Have a command applied; return its verdict once it is applied here.

        Raises:
            NoQuorum: If it was certainly not applied.
            OutcomeUnknown: If the deadline passed first.
            CommandTooLarge: If it is above the limit of the log.
            CommandFormatError: If it could not be read again.
        """

    def status(self) -> ConsistencyStatus:
        """Return the state of this mode, local and without waiting."""

    async def close(self) -> None:
        """Stop timers and give back resources; requests in flight get their answer first."""
