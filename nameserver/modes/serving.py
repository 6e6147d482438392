"""The loop that all modes share: decide a request, propose a command, decide again if the result is *moved*.

The result of a command is *moved* if table entries from which it was computed have changed meanwhile.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    Command,
    CommandFormatError,
    CommandTooLarge,
    RegisterBroker,
    RegisterTopic,
    TableLimits,
    UnregisterBroker,
    Update,
)
from routekeeper.nameserver.handlers import (
    DONE,
    Renewal,
    SettingsChange,
    answer_for,
    decide,
    deciding_registration,
    renewal_of,
    table_limits,
)
from routekeeper.nameserver.liveness import Liveness, Ownership
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.updates import shorten_few, shortened
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request, refusal
from routekeeper.nameserver.verdicts import Moved, Verdict
from routekeeper.remoting.steps import STEP, Steps

from .interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG, ConsistencyError, NoQuorum, OutcomeUnknown
from .notes import note_late_unregister


class Mode(Protocol):
    """Interface of a mode for :func:`serve`, the loop that all modes share."""

    settings: LiveSettings
    """The settings in force."""

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        """Return a view that is fresh enough to decide this request.

        Raises:
            NoQuorum: If the mode cannot give this freshness in time.
        """

    @property
    def uptime_s(self) -> float:
        """Seconds since this process started to serve."""

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return whether a connection is the broker's youngest, an older one, or belongs to a stranger."""

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        """Renew a broker's lease. Return the answer, or a command to propose if only the log can renew it."""

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        """Propose a command, and return its result once this process has applied the command.

        Raises:
            NoQuorum: If the command was certainly not applied.
            OutcomeUnknown: If the deadline passed before the outcome was known.
            CommandTooLarge: If the command is larger than the log allows.
            CommandFormatError: If the command cannot be read back, which is a defect of this program.
        """

    async def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Record that a broker unregistered over its connection, which shows that the broker is gone."""

    async def change_settings(self, change: SettingsChange) -> Answer:
        """Apply changed settings and write them to a file."""


async def serve(
    mode: Mode, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
) -> Answer:
    """Answer a request: decide from a view, propose a command, and decide again if the result is *moved*.

    Every mode's :meth:`Consistency.execute` calls this function. Registrations are answered by
    :meth:`Consistency.register`, because a registration need not wait for a view.
    """
    try:
        while True:
            view = await mode.readable(request, deadline=deadline)
            settings = mode.settings.current
            decision = decide(view, request, settings, uptime_s=mode.uptime_s)
            if isinstance(decision, Renewal):
                decision = mode.renew(decision, origin)
            if isinstance(decision, Answer):
                return decision
            if isinstance(decision, UnregisterBroker):
                match mode.ownership(decision.broker, origin):
                    case Ownership.OWNER:  # The request shows that the broker is gone.
                        await mode.withdrawn(decision.broker, origin)
                        return DONE
                    case Ownership.OLDER:  # Ignore the request, because the broker's former process sent it.
                        note_late_unregister(decision.broker, origin)
                        return DONE
            if isinstance(decision, SettingsChange):
                return await mode.change_settings(decision)
            if isinstance(decision, RegisterTopic):
                decision = replace(decision, limits=table_limits(settings, host))
            verdict = await mode.propose(decision, deadline=deadline)
            if not isinstance(verdict, Moved):
                return answer_for(decision, verdict, settings)
    except (ConsistencyError, CommandTooLarge, CommandFormatError) as error:
        return refusal_of(request, error)


def decide_received(
    table: RouteTable,
    liveness: Liveness,
    decoded: Registration,
    origin: ConnectionId,
    settings: NamesrvSettings,
    *,
    differences: bool,
    host: str = "",
) -> Steps[Renewal | RegisterBroker | Update]:
    """Decide a registration from the present table and this process's knowledge of its connection.

    If the broker's state changes between two steps, this function decides again. The decision is the same in
    all modes. If the result of the proposed command is *moved*, the caller calls this function again, because
    the registration may have become a late copy.

    Args:
        origin: The connection over which the registration came. ``liveness`` must know this connection.
        differences: True allows the shorter command Update, which contains only differences from the table.
        host: Host of the sender (see :func:`.handlers.table_limits`).
    """
    broker, version = decoded.broker, decoded.data_version

    def limits() -> TableLimits:
        return table_limits(settings, host)

    while True:
        view, revision, brokers = table.view, table.revision, table.brokers
        record, name = brokers.records.get(broker), brokers.names.get(decoded.broker_name)
        if record is not None and liveness.is_late(
            broker, origin, version=version, listed=record.data_version
        ):
            return renewal_of(view, record, settings)
        difference = None
        if differences:
            delete_absent = settings.delete_topic_with_broker_registration
            if len(decoded.table) <= STEP:
                difference = shorten_few(table, decoded, delete_absent=delete_absent, limits=limits)
            else:
                difference = yield from shortened(table, decoded, delete_absent=delete_absent, limits=limits)
        decision = difference or (yield from deciding_registration(view, decoded, settings, limits=limits()))
        if table.view is view and (
            table.revision == revision
            or (view.record(broker) is record and view.name(decoded.broker_name) is name)
        ):
            return decision


def refusal_of_failure(error: Exception) -> Answer:
    """Return the answer to a request whose handling raised an unexpected error."""
    return refusal(f"{type(error).__name__}: {error}")


def refusal_of(request: Request, error: ConsistencyError | CommandTooLarge | CommandFormatError) -> Answer:
    """Return the answer to a request that was not applied, or whose outcome is unknown."""
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
