"""Registrations: what brokers send again and again, answered without the log where that is allowed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    UPDATE_FORMAT,
    Command,
    CommandFormatError,
    CommandTooLarge,
    RegisterBroker,
    Update,
)
from routekeeper.nameserver.handlers import Renewal, answer_for, deciding_registration, table_limits
from routekeeper.nameserver.modes.interface import ConsistencyError
from routekeeper.nameserver.modes.repeats import Repeats
from routekeeper.nameserver.modes.serving import decide_received, refusal_of
from routekeeper.nameserver.registration import Registration, decoding_registration
from routekeeper.nameserver.routes.registrations import excess_of_registration
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request, refusal
from routekeeper.nameserver.verdicts import Moved, Verdict
from routekeeper.remoting.steps import STEP, Steps

from .proposals import WRITE_DEADLINE_S, Sender
from .proposer import Writes
from .reports import Reports
from .surroundings import Part, Surroundings

logger = logging.getLogger(__name__)


PROPOSED: Final = Answer()
"""In place of an answer that comes later."""


@dataclass(slots=True)
class Registering:
    """A registration on its way: decided, proposed, and decided again while it has moved. It has no task.

    Attributes:
        answered: Called once with the answer, unless that was known at once.
        renewal: What it was answered by without the log.
        host: Where it comes from.
        broker: Of which it speaks, once that is decoded.
    """

    request: Request
    origin: ConnectionId
    deadline: float
    answered: Callable[[Answer], None]
    renewal: Renewal | None = None
    host: str = ""
    broker: BrokerKey | None = None

    def decided(self, answer: Answer) -> None:
        """Answer, unless the answer comes later."""
        if answer is not PROPOSED:
            self.answered(answer)


class Registrations(Part):
    """Answers registrations, and renews what they and other requests renew."""

    def __init__(self, given: Surroundings, reports: Reports, writes: Writes) -> None:
        super().__init__(given)
        self._settings = given.settings
        self._writes = writes
        self._reporter = reports.reporter
        self._reports = reports
        self._in_flight: Counter[Sender] = Counter()
        self._repeats = Repeats()
        self.forget_repeat = self._repeats.forget
        self.forget_repeats = self._repeats.clear

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str = "",
    ) -> Answer | None:
        """Answer a registration, see :meth:`Consistency.register`."""
        repeat = self._repeats.find(request, origin, self._table, self._settings.current)
        if repeat is not None:
            self._reports.hear(repeat.renewal.record.broker, origin, lease_ms=repeat.lease_ms)
            renewed = self.renew(repeat.renewal, origin, registration=True)
            if isinstance(renewed, Answer):
                return renewed
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        on = Registering(request, origin, deadline, answered, host=host)
        outcome = self._line.run(self._begin(on), on.decided)
        return None if outcome is PROPOSED else outcome

    def _begin(self, on: Registering) -> Steps[Answer]:
        """Decode and decide; :data:`PROPOSED` if the answer comes later."""
        decoded = yield from decoding_registration(on.request)
        if isinstance(decoded, Answer):
            return decoded
        answer = yield from self._no_room(decoded, on.host)
        if answer is not None:
            return answer
        on.broker = decoded.broker
        self._reports.hear(decoded.broker, on.origin, lease_ms=decoded.lease_ms)
        answer = yield from self._decide(on, decoded)
        if answer is PROPOSED:
            self._in_flight[decoded.broker, on.origin] += 1
        elif on.renewal is not None:
            settings = self._settings.current
            self._repeats.remember(on.request, decoded, on.renewal, on.origin, self._table, settings)
        return answer

    def renew(
        self, renewal: Renewal, origin: ConnectionId, *, registration: bool = False
    ) -> Answer | Command:
        """Answer what changes nothing, if this process may vouch for the record (rule 3).

        Args:
            registration: It is one, not a heartbeat or a question.
        """
        broker, lease_s = renewal.record.broker, renewal.record.lease_ms / 1000
        in_contact = self._member.in_contact()
        if renewal.is_current:
            self._liveness.note_current(broker)
        if not registration:
            self._reports.heard(broker, origin, lease_s=lease_s)
        if not self._reporter.may_vouch(broker, origin, in_contact=in_contact, lease_s=lease_s):
            return renewal.otherwise
        if registration:
            self._reports.registered(broker, origin, revision=renewal.record.revision)
            self._observer.renewed(renewal.answer)
        return renewal.answer

    def is_answering(self, broker: BrokerKey, origin: ConnectionId) -> bool:
        """Whether a registration of this broker over this connection has no answer yet."""
        return (broker, origin) in self._in_flight

    def _decide(self, on: Registering, decoded: Registration) -> Steps[Answer]:
        """Decide on the table as it is; :data:`PROPOSED` if that is proposed and the answer comes later."""
        settings = self._settings.current
        try:
            # As stale as it may be: it is decided again if that was too stale. Nearly all are differences,
            # once every member knows those.
            decision = yield from decide_received(
                self._table,
                self._liveness,
                decoded,
                on.origin,
                settings,
                differences=self._reporter.understood >= UPDATE_FORMAT,
                host=on.host,
            )
            command: Command | Answer
            if isinstance(decision, Renewal):
                command = self.renew(decision, on.origin, registration=True)
                if isinstance(command, Answer):
                    on.renewal = decision
                    return command
            else:
                command = decision
            kept = command
            if isinstance(command, RegisterBroker | Update) and len(command.topics) > STEP:
                kept = replace(command, topics=())  # an answer does not need them
            told, who = partial(self._told, on, kept), (decoded.broker, on.origin)
            yield from self._writes.entering(command, deadline=on.deadline, told=told, registration=who)
        except (ConsistencyError, CommandTooLarge, CommandFormatError) as error:
            return refusal_of(on.request, error)
        return PROPOSED

    def _no_room(self, decoded: Registration, host: str) -> Steps[Answer | None]:
        """Refuse a broker that is not listed and for which the table has no room, as far as it goes here.

        Such a broker is not heard and not proposed: there is no end of names that a stranger can register,
        and members remember for minutes whom they heard.
        """
        settings = self._settings.current
        limits = table_limits(settings, host)
        if self._table.present("record", decoded.broker) is not None:
            return None
        if self._table.has_ample_room(decoded, limits):
            return None
        command = yield from deciding_registration(self._table.view, decoded, settings, limits=limits)
        assert isinstance(command, RegisterBroker), "no record is there that it could renew"
        rejected = yield from excess_of_registration(self._table, command)
        return None if rejected is None else answer_for(command, rejected, settings)

    def _told(self, on: Registering, command: Command, outcome: Verdict | ConsistencyError) -> None:
        if isinstance(outcome, Moved):
            done = partial(self._decided, on)
            answer = self._line.run(self._decide_again(on), done)
            if answer is not None:
                done(answer)
            return
        try:
            if isinstance(outcome, ConsistencyError):
                answer = refusal_of(on.request, outcome)
            else:
                answer = answer_for(command, outcome, self._settings.current)
        except Exception as error:  # the boundary of one request
            answer = self._failed(on, error)
        self._decided(on, answer)

    def _decide_again(self, on: Registering) -> Steps[Answer]:
        try:
            # Decoded anew: a hundred large ones that wait for their verdicts are not kept decoded.
            decoded = yield from decoding_registration(on.request)
            assert isinstance(decoded, Registration), "it was decoded before"
            return (yield from self._decide(on, decoded))
        except Exception as error:  # the boundary of one request
            return self._failed(on, error)

    def _failed(self, on: Registering, error: Exception) -> Answer:
        logger.exception("registration failed broker=%s", on.broker)
        return refusal(f"{type(error).__name__}: {error}")

    def _decided(self, on: Registering, answer: Answer) -> None:
        if answer is PROPOSED:
            return
        assert on.broker is not None, "it was decoded"
        who = on.broker, on.origin
        self._in_flight[who] -= 1
        if not self._in_flight[who]:
            del self._in_flight[who]
        on.answered(answer)
