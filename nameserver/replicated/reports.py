"""Evidence about brokers at one member, recorded from its connections and reported to the leader.

Evidence means last-seen times and connections of brokers.

The modules :mod:`routekeeper.nameserver.liveness` and :mod:`.reporter` make the decisions; they do no I/O.
All evidence passes through this module, so that the leader gets all of it.
"""

from __future__ import annotations

from functools import partial

from routekeeper.nameserver.types import BrokerKey, ConnectionId

from .leader import Leader
from .peer_messages import Acknowledgement
from .reporter import PRUNE_PERIOD_S, Reporter
from .surroundings import Component, Surroundings


class Reports(Component):
    """This member's evidence about brokers: it is recorded here, and reported to the leader.

    The leader must learn of a connection before it gets a command that came over the connection. So no
    proposal leaves this process while a report is due.

    Attributes:
        reporter: Makes the reports, and remembers which evidence the leader has acknowledged.
    """

    def __init__(self, given: Surroundings, *, reporter: Reporter, leader: Leader) -> None:
        super().__init__(given)
        self.reporter = reporter
        self._leader = leader
        self._prune_at = 0.0

    # -- evidence -----------------------------------------------------------------------------------------

    def note_registration(self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float) -> None:
        """Record that a registration came over a connection; called before the registration is decided."""
        self._advance()
        before = self._liveness.contact(broker)
        self._liveness.registering(broker, origin, lease_s=lease_s)
        if before is None or before.owner != origin or not before.connected:
            self.report_soon()
        self._observer.heard(broker, registers=True)

    def note_heartbeat(
        self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float | None = None
    ) -> None:
        """Record that a broker sent a heartbeat or another request that is not a registration."""
        self._advance()
        self._liveness.heard(broker, origin, lease_s=lease_s)
        self._observer.heard(broker, registers=False)

    def note_registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int) -> None:
        """Record that a registration over this connection confirmed a broker's record at this revision."""
        before = self._liveness.version
        self._liveness.registered(broker, origin, revision=revision)
        if self._liveness.version != before:
            self.report_soon()

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        """Record the end of a connection.

        Args:
            by_us: True if this process closed the connection. Then its end is no evidence against a broker.
        """
        before = self._liveness.version
        revision_of = partial(self._table.present, "record")
        self._liveness.closed(origin, by_us=by_us, revision_of=revision_of)
        if self._liveness.version != before:
            self.report_soon()

    def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Record a broker's unregistration over its own connection. It counts like a closed connection."""
        self._liveness.withdrawn(broker, origin, revision=self._table.present("record", broker))
        self.report_soon()
        self._observer.withdrawn(broker)

    def removed(self, broker: BrokerKey) -> None:
        """Forget a broker whose record was removed: old evidence must not count for a new record."""
        self._liveness.removed(broker)
        self.reporter.removed(broker)

    # -- reports ------------------------------------------------------------------------------------------

    def report_soon(self) -> None:
        """Send a report after all callbacks of this loop iteration."""
        self.reporter.is_due = True
        self._work_soon()

    def tick(self) -> None:
        """Advance the liveness clock. At intervals, also forget old brokers, and make a report due."""
        liveness = self._liveness
        self._advance()
        if liveness.clock >= self._prune_at:
            self._prune_at = liveness.clock + PRUNE_PERIOD_S
            liveness.prune()
            self.reporter.prune(self._is_listed)
        if self._member.leader is not None and self.reporter.period_is_over():
            self.reporter.is_due = True

    def leader_changed(self, *, linked_anew: bool) -> None:
        """Make a report due if the leader is new, or if the link to the leader is new."""
        if self._member.leader is not None and (self.reporter.lead_by(self._member.term) or linked_anew):
            self.reporter.is_due = True

    def send_due(self) -> bool:
        """Send to the leader what this member has newly received from brokers, if a report is due.

        A leader reports to itself.

        Returns:
            True if no report is due any more.
        """
        if not self.reporter.is_due:
            return True
        leader = self._member.leader
        if leader is None or (leader != self._me and leader not in self._links):
            return False
        self.reporter.lead_by(self._member.term)
        for report in self.reporter.reports():
            self._observer.reporting(report)
            if leader == self._me:
                self._leader.take_report(self._me, report)
            elif not self._send(leader, report):
                return False
        self.reporter.is_due = False
        return True

    def take_acknowledgement(self, member: str, answer: Acknowledgement) -> None:
        """Handle a leader's answer to a report."""
        if member == self._member.leader and self.reporter.acknowledged(answer):
            self.report_soon()

    def _advance(self) -> None:
        """Move the liveness clock forward to the present time.

        After a pause of the process, messages may be read before the timer moves the clock. The messages
        must not get the clock's old reading as their time.
        """
        self._liveness.advance(self._loop.time())

    def _is_listed(self, broker: BrokerKey) -> bool:
        return self._table.view.record(broker) is not None
