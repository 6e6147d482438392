"""A registration on its way through the log, without a task of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nameserver.commands import Command, CommandFormatError, CommandTooLarge, RegisterBroker, Touch, Update
from nameserver.handlers import (
    Renewal,
    answer_for,
    decide_registration,
)
from nameserver.modes.interface import ConsistencyError, Freshness
from nameserver.modes.serving import refusal, refusal_of
from nameserver.registration import Registration
from nameserver.routes.view import RouteView
from nameserver.types import Answer, BrokerKey, ConnectionId, Request
from nameserver.verdicts import Moved, Verdict

if TYPE_CHECKING:
    from nameserver.settings.changes import LiveSettings

logger = logging.getLogger(__name__)


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
            NoQuorum, CommandTooLarge, CommandFormatError: Nothing was proposed.
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
        except (ConsistencyError, CommandTooLarge, CommandFormatError) as error:
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
