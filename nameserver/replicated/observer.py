"""Hooks for the simulator, which watches the members of a group. A real nameserver's hooks do nothing."""

from __future__ import annotations

from routekeeper.nameserver.commands import Command, Evict
from routekeeper.nameserver.types import Answer, BrokerKey
from routekeeper.nameserver.verdicts import Verdict

from .peer_messages import Report


class Observer:
    """Methods that a member calls, on the loop, at the time of each event; here they do nothing.

    A derived class may read all state, but must not change it: a simulated member must act like a real one.
    """

    def applying(self, command: Command) -> None:
        """Observe that the table is about to apply a command."""

    def applied(self, command: Command, verdict: Verdict) -> None:
        """Observe that the table has applied a command; no request is answered yet."""

    def settled(self, verdict: Verdict) -> None:
        """Observe the outcome of a change that this process proposed.

        The request that asked for the change is answered after the whole entry is applied.
        """

    def renewed(self, answer: Answer) -> None:
        """Observe that a registration that changes nothing is answered without the log."""

    def heard(self, broker: BrokerKey, *, registers: bool) -> None:
        """Observe that a broker registers or sends a heartbeat over a connection to this member."""

    def withdrawn(self, broker: BrokerKey) -> None:
        """Observe that a broker unregisters over a connection to this member."""

    def reporting(self, report: Report) -> None:
        """Observe that this member sends a report to the leader."""

    def evicting(self, eviction: Evict, sequence: int) -> None:
        """Observe that this leader proposes an eviction; ``sequence`` is the proposal's number."""
