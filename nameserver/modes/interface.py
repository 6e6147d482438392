"""The one interface between the handlers' world and a mode, its freshness and its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from nameserver.commands import Command, CommandTooLarge, RegisterBroker, Touch, Update
from nameserver.handlers import (
    Farewell,
    Heard,
    Registration,
    Renewal,
    SettingsChange,
    answer_for,
    decide,
    decide_registration,
)
from nameserver.routes.view import RouteView
from nameserver.types import Answer, BrokerKey, ConnectionId, MinBrokerChange, Request
from nameserver.verdicts import Moved, Verdict
from remoting.codes import ResponseCode

if TYPE_CHECKING:
    from nameserver.raft import SnapshotInfo
    from nameserver.settings.changes import LiveSettings

    from .explain import Explanation, History

logger = logging.getLogger(__name__)

NO_QUORUM_TAG = "[NO_QUORUM]"
"""Start of the remark of an answer to something that was not applied."""
OUTCOME_UNKNOWN_TAG = "[OUTCOME_UNKNOWN]"
"""Start of the remark of an answer to something that may apply yet."""


class Freshness(Enum):
    """How old a read may be; the value is the word in settings and URLs."""

    STALE = "stale"
    """Local, always."""
    DEFAULT = "default"
    """Misses no change acknowledged more than one minimum election timeout before the request arrived."""
    LINEARIZABLE = "linearizable"
    """Misses no change acknowledged before the request arrived; needs a barrier first."""


class ConsistencyError(Exception):
    """Root of what a mode raises on purpose; the message is a remark without its tag."""


class NoQuorum(ConsistencyError):
    """Not applied, or not readable with the freshness asked: no leader, or no contact with it."""


class OutcomeUnknown(ConsistencyError):
    """The deadline passed before a verdict. The change may still apply, while nothing has moved."""


class FreshnessNotOffered(ConsistencyError):
    """This mode never offers the freshness asked (independent: linearizable); the asker's mistake, 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyStatus:
    """What an operator sees of a mode.

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


class Effects(Protocol):
    """What an applied change does outside the table. The server implements it; never called in replay."""

    def close_connection(self, origin: ConnectionId) -> None:
        """Close a connection over which an evicted broker registered; unknown ones are ignored.

        A connection with a request of that broker in flight is closed once that is answered.
        """

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Send request 905, oneway, to the addresses that the change names."""


BarrierPassed = Callable[[int, NoQuorum | None], None]
"""Told the number of a barrier, and None, or why reads that joined it are refused; called on the loop.

Barriers end in the order of their numbers, and the view holds until the function returns.
"""


class Operations(Protocol):
    """What operators do to the group behind a mode: who belongs to it, who leads it, its snapshots.

    Each coroutine is done by the leader alone; its deadline is a loop time in seconds.

    Raises (each coroutine; the classes are those of :mod:`nameserver.raft`):
        NotLeader: This member does not lead; nothing was done. ``leader`` is the leader's raft address if
            one is known.
        ChangeRefused: Nothing was done; the text says why, in words for operators.
        ChangeUnknown: The deadline passed first; it may take effect yet.
    """

    def raft_status(self) -> dict[str, object]:
        """Return figures of this member for people and metrics; local and without waiting."""

    async def add_member(self, address: str, *, deadline: float) -> None:
        """Let a new member in, as a learner first; returns once it votes.

        Args:
            address: Its raft ``HOST:PORT``, which is its identity.
        """

    async def remove_member(self, address: str, *, deadline: float) -> None:
        """Take a member out; a leader hands over before its own removal, and then answers NotLeader."""

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        """Hand leadership to ``to``, or to the best follower; returns the new leader's raft address."""

    async def save_snapshot(self, *, deadline: float) -> SnapshotInfo:
        """Write the state as it is now to a file that can be copied and restored."""

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        """Replace log and state by a saved file's content; only in a group of one member."""


class Consistency(Protocol):
    """Orders route changes, dates reads, carries liveness; the same for every mode.

    Everything runs on one event loop. Deadlines are loop times in seconds.
    """

    @property
    def history(self) -> History:
        """Why topics and brokers left; bounded, of this process only."""

    @property
    def operations(self) -> Operations | None:
        """What operators can do to the group; None in a mode that has none."""

    def explain(self, topic: str) -> Explanation:
        """Say why a topic has a route here or none; local and without waiting."""

    def view(self, freshness: Freshness) -> RouteView:
        """Return a read-only face of the live table, valid until the caller next awaits.

        Synchronous, for the read path. A linearizable view is never to be had at once: it needs a barrier
        that begins after the read arrived, see :meth:`await_view`, :meth:`barrier` and :meth:`join_barrier`.

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

    async def barrier(self, *, deadline: float) -> None:
        """Return once ``view(STALE)`` misses nothing that was acknowledged before this call.

        Raises:
            NoQuorum: If that was not reached by the deadline.
            FreshnessNotOffered: In independent mode.
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
        self, request: Request, origin: ConnectionId, *, deadline: float, answered: Callable[[Answer], None]
    ) -> Answer | None:
        """As :meth:`execute` for a registration (103), without a task.

        Returns:
            The answer, or None if ``answered`` is called with it later, once, on the loop.
        """

    async def execute(self, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
        """Decide a request on the view; answer, or propose and decide again while it has moved.

        Never raises on its own account: NoQuorum and OutcomeUnknown become answers of code 1 whose remarks
        start with their tags. Serves reads too, with the freshness that ``routeFreshness`` sets.
        """

    def heard(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Renew a broker's lease because something of it came over ``origin``."""

    def opened(self, origin: ConnectionId) -> None:
        """Note an accepted connection."""

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Note the end of a connection; evidence against its brokers unless we closed it ourselves."""

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Whether a broker registered over this connection (a refused read must not close it then)."""

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it is above ``after``, or what it is at the deadline."""

    def status(self) -> ConsistencyStatus:
        """Return the state of this mode, local and without waiting."""

    async def close(self) -> None:
        """Stop timers and give back resources; requests in flight get their answer first."""


class Mode(Protocol):
    """What a mode brings to :func:`serve`, the loop that all modes share."""

    @property
    def settings(self) -> LiveSettings:
        """The settings in force."""

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        """Return the view to decide a request on, with the freshness its code asks for.

        Raises:
            NoQuorum: If that cannot be had in time.
        """

    def heard_over(self, origin: ConnectionId) -> Heard:
        """Return what this process knows of the sender behind a connection."""

    async def renew(self, renewal: Renewal, origin: ConnectionId, *, deadline: float) -> Answer | Command:
        """Renew a lease; return the answer if this process may vouch for the record, else what to do."""

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Have a command applied and return its verdict as applied here.

        Raises:
            NoQuorum: If it was certainly not applied.
            OutcomeUnknown: If the deadline passed first.
            CommandTooLarge: If it is above the limit of the log.
        """

    async def part(self, farewell: Farewell, origin: ConnectionId, *, deadline: float) -> Answer:
        """Take a broker's goodbye over a connection of its own."""

    async def change_settings(self, change: SettingsChange) -> Answer:
        """Put settings in force and keep them."""


async def serve(mode: Mode, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
    """Answer a request: decide on the view, propose, and decide again while it has moved.

    The body of every mode's :meth:`Consistency.execute`, but for registrations: they do not wait for a view,
    and modes answer them by :meth:`Consistency.register`.
    """
    try:
        while True:
            view = await mode.readable(request, deadline=deadline)
            settings = mode.settings.current
            decision = decide(view, request, settings, mode.heard_over(origin))
            if isinstance(decision, Renewal):
                decision = await mode.renew(decision, origin, deadline=deadline)
            if isinstance(decision, Answer):
                return decision
            if isinstance(decision, Farewell):
                return await mode.part(decision, origin, deadline=deadline)
            if isinstance(decision, SettingsChange):
                return await mode.change_settings(decision)
            verdict = await mode.propose(decision, deadline=deadline)
            if not isinstance(verdict, Moved):
                return answer_for(decision, verdict, request, settings)
    except (ConsistencyError, CommandTooLarge) as error:
        return refusal_of(request, error)


def refusal_of(request: Request, error: ConsistencyError | CommandTooLarge) -> Answer:
    """Answer a request that was not done, or of which nobody knows."""
    if isinstance(error, NoQuorum):
        return refusal(f"{NO_QUORUM_TAG} {error}")
    if isinstance(error, OutcomeUnknown):
        return refusal(f"{OUTCOME_UNKNOWN_TAG} {error}")
    if isinstance(error, CommandTooLarge):
        return refusal(
            f"request of {len(request.body)} bytes takes {error.size} bytes in the log, "
            f"at most {error.limit} are possible"
        )
    return refusal(str(error))


Told = Callable[[Verdict | ConsistencyError], None]
"""Called once with what came of a proposal.

*Moved* also stands for a leader's advice to decide again; an error is NoQuorum or OutcomeUnknown. After Moved
and NoQuorum no copy of the proposal can be applied any more.
"""


class RegisterMode(Protocol):
    """What a mode with a log brings to :class:`Registering`."""

    @property
    def settings(self) -> LiveSettings:
        """The settings in force."""

    def view(self, freshness: Freshness) -> RouteView:
        """As :meth:`Consistency.view`."""

    def shortened(self, decoded: Registration) -> Update | None:
        """Return the difference that a registration makes to the table as it is.

        None if it is to be decided whole.
        """

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        """Renew a lease; return the answer if this process may vouch for the record, else what to do."""

    def enter(
        self,
        command: Command,
        *,
        deadline: float,
        told: Told,
        registration: tuple[BrokerKey, ConnectionId],
    ) -> int:
        """Propose a command; ``told`` is called once, later.

        Raises:
            NoQuorum, CommandTooLarge: Nothing was proposed.
        """

    def answered(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Note that a registration has its answer, whatever it is."""


class Registering:
    """A registration on its way: decided, proposed, and decided again while it has moved. It has no task.

    Args:
        answered: Called once with the answer, unless :meth:`decide` returned it.
    """

    __slots__ = (
        "_answered",
        "_command",
        "_deadline",
        "_decoded",
        "_mode",
        "_origin",
        "_request",
        "broker",
        "renewal",
    )

    def __init__(
        self,
        mode: RegisterMode,
        request: Request,
        decoded: Registration,
        origin: ConnectionId,
        deadline: float,
        answered: Callable[[Answer], None],
    ) -> None:
        self.broker = decoded.broker
        self._mode = mode
        self._request = request
        self._decoded = decoded
        self._origin = origin
        self._deadline = deadline
        self._answered = answered
        self._command: RegisterBroker | Update | Touch | None = None
        self.renewal: Renewal | None = None
        """What it was answered by without the log."""

    def decide(self) -> Answer | None:
        """Decide on the table as it is; None if that is proposed and the answer comes later."""
        mode = self._mode
        try:
            command: RegisterBroker | Update | Touch | None = mode.shortened(self._decoded)  # nearly all
            if command is None:
                view = mode.view(Freshness.STALE)
                decision = decide_registration(view, self._decoded, mode.settings.current)
                if isinstance(decision, Renewal):
                    renewed = mode.renew(decision, self._origin)
                    if isinstance(renewed, Answer):
                        self.renewal = decision
                        return renewed
                    assert isinstance(renewed, RegisterBroker | Touch), "a registration renews by one"
                    command = renewed
                else:
                    command = decision
            self._command = command
            registration = self.broker, self._origin
            mode.enter(command, deadline=self._deadline, told=self._told, registration=registration)
        except (ConsistencyError, CommandTooLarge) as error:
            return refusal_of(self._request, error)
        return None

    def _told(self, outcome: Verdict | ConsistencyError) -> None:
        try:
            answer = self._answer_to(outcome)
        except Exception as error:  # the boundary of one request
            logger.exception("registration failed broker=%s", self.broker)
            answer = refusal(f"{type(error).__name__}: {error}")
        if answer is not None:
            self._mode.answered(self.broker, self._origin)
            self._answered(answer)

    def _answer_to(self, outcome: Verdict | ConsistencyError) -> Answer | None:
        if isinstance(outcome, Moved):
            return self.decide()
        if isinstance(outcome, ConsistencyError):
            return refusal_of(self._request, outcome)
        assert self._command is not None, "told before it was decided"
        return answer_for(self._command, outcome, self._request, self._mode.settings.current)


def refusal(remark: str) -> Answer:
    """Answer code 1: nothing of the request was done, or nobody knows."""
    return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
