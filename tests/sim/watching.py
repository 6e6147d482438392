"""Parts of a member that show the truth what they do, at that very moment; they change nothing.

In the simulator they take the place of the parts that they derive from, see :mod:`seams`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nameserver.commands import Command, Evict
from nameserver.handlers import Renewal
from nameserver.replicated.leadership import Leadership
from nameserver.replicated.peer_messages import Report
from nameserver.replicated.registrations import Registrations
from nameserver.replicated.reporter import Reporter
from nameserver.replicated.reports import Reports
from nameserver.replicated.writes import Writes
from nameserver.routes.table import RouteTable
from nameserver.types import Answer, BrokerKey, ConnectionId
from nameserver.verdicts import Applied, NoChange, Verdict
from remoting.codes import ResponseCode

if TYPE_CHECKING:
    from .members import Watched


class WatchedPart:
    """A part of a watched member.

    Attributes:
        mode: The member; set before it starts.
    """

    mode: Watched


class WatchedTable(WatchedPart, RouteTable):
    def apply(self, command: Command) -> Verdict:
        mode = self.mode
        first = mode.index not in mode.truth.log
        before = mode.truth.before(command, self.view) if first else None
        verdict = super().apply(command)
        mode.verdicts.append((command, verdict))
        if first:
            mode.truth.after(command, verdict, self.view, before, mode.index)
        return verdict


class WatchedWrites(WatchedPart, Writes):
    def settle(self, sequence: int, verdict: Verdict) -> None:
        told = len(self._to_tell)
        super().settle(sequence, verdict)
        if len(self._to_tell) > told and isinstance(verdict, Applied | NoChange):
            self.mode.truth.acknowledged(self.mode.index)


class WatchedRegistrations(WatchedPart, Registrations):
    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        renewed = super().renew(renewal, origin)
        answered = renewal.registration and isinstance(renewed, Answer)
        if answered and renewal.answer.code == ResponseCode.SUCCESS:
            self.mode.truth.count["answered without the log"] += 1
            self.mode.truth.check_promise(self.mode, "an answer without the log")
        return renewed


class WatchedReports(WatchedPart, Reports):
    def hear(self, broker: BrokerKey, origin: ConnectionId, *, lease_ms: int) -> None:
        super().hear(broker, origin, lease_ms=lease_ms)
        self.mode.note_heard(broker)
        self.mode.note(broker)

    def heard(self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float | None = None) -> None:
        super().heard(broker, origin, lease_s=lease_s)
        self.mode.note_heard(broker)

    def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        super().withdrawn(broker, origin)
        self.mode.note_all()


class WatchedReporter(WatchedPart, Reporter):
    def reports(self, *arguments: Any) -> tuple[Report, ...]:
        reports = super().reports(*arguments)
        for line in [line for report in reports for line in report.contacts]:
            if line.closed_at is not None:
                self.mode.truth.reported(line.broker, line.closed_revision)
        return reports


class WatchedLeadership(WatchedPart, Leadership):
    def evict(self, eviction: Evict) -> int:
        sequence = super().evict(eviction)
        self.mode.truth.judged(self.mode, eviction, (self.mode.boot_id, sequence))
        return sequence
