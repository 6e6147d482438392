"""Registrations: what brokers send again and again, answered without the log where that is allowed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from routekeeper.nameserver.commands import (
    UPDATE_FORMAT,
    Command,
    CommandFormatError,
    CommandTooLarge,
    RegisterBroker,
    Update,
)
from routekeeper.nameserver.handlers import Renewal, answer_for
from routekeeper.nameserver.modes.interface import ConsistencyError
from routekeeper.nameserver.modes.serving import decide_received, refusal_of
from routekeeper.nameserver.registration import Registration, decoding_registration
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request, refusal
from routekeeper.nameserver.verdicts import Moved, Verdict
from routekeeper.remoting.steps import STEP, Steps

from .proposals import WRITE_DEADLINE_S, Sender
from .reports import Reports
from .surroundings import Part, Surroundings
from .writes import Writes

logger = logging.getLogger(__name__)

REPEAT_BYTES_MAX: Final = 64 * 1024
REPEATS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bodies of registrations that changed nothing are kept up to this size, and this much of them in all."""


PROPOSED: Final = Answer()
"""In place of an answer that comes later."""


class _Repeat(NamedTuple):
    """A registration that changed nothing, and how it was decided.

    The decision on one that states the record's data version depends on the request, the table and the
    settings alone. So the same bytes on a table of the same revision need not be decoded, checked and
    compared with the record once more; what depends on this process is asked anew each time. A late copy is
    not kept: when it comes again, it may show that the broker went back.
    """

    decided_on: tuple[int, NamesrvSettings, int, Mapping[str, str], bytes]
    lease_ms: int
    renewal: Renewal


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
        self._repeats: dict[ConnectionId, _Repeat] = {}
        self._repeats_bytes = 0

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
        repeat = self._repeats.get(origin)
        if repeat is not None and repeat.decided_on == self._decides_on(request):
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
        on.broker = decoded.broker
        self._reports.hear(decoded.broker, on.origin, lease_ms=decoded.lease_ms)
        answer = yield from self._decide(on, decoded)
        if answer is PROPOSED:
            self._in_flight[decoded.broker, on.origin] += 1
        elif on.renewal is not None and on.renewal.is_current:
            self._remember(on.request, on.renewal, on.origin, lease_ms=decoded.lease_ms)
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

    def forget_repeat(self, origin: ConnectionId) -> None:
        """Forget what a connection sent that changed nothing."""
        repeat = self._repeats.pop(origin, None)
        if repeat is not None:
            self._repeats_bytes -= len(repeat.decided_on[-1])

    def forget_repeats(self) -> None:
        """Forget it of all connections: another table may have the same revision."""
        self._repeats.clear()
        self._repeats_bytes = 0

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

    def _remember(self, request: Request, renewal: Renewal, origin: ConnectionId, *, lease_ms: int) -> None:
        """Keep a registration that changed nothing: the next one over this connection will be the same."""
        self.forget_repeat(origin)
        size = len(request.body)
        if size <= REPEAT_BYTES_MAX and self._repeats_bytes + size <= REPEATS_BYTES_MAX:
            self._repeats_bytes += size
            self._repeats[origin] = _Repeat(self._decides_on(request), lease_ms, renewal)

    def _decides_on(self, request: Request) -> tuple[int, NamesrvSettings, int, Mapping[str, str], bytes]:
        settings = self._settings.current
        return self._table.revision, settings, request.version, request.ext_fields, request.body
