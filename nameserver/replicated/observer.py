"""Hooks for the simulator, which watches the members of a group. A member that serves has an idle one."""

from __future__ import annotations

from routekeeper.nameserver.commands import Command, Evict
from routekeeper.nameserver.types import Answer, BrokerKey
from routekeeper.nameserver.verdicts import Verdict

from .peer_messages import Report


class Observer:
    """Called at that very moment, on the loop; this one does nothing.

    A derived class may look at everything, and changes nothing.
    """

    def applying(self, command: Command) -> None:
        """Note that the table is about to take a command of the entry that is applied."""

    def applied(self, command: Command, verdict: Verdict) -> None:
        """Note that the table has taken it; no request was answered yet."""

    def settled(self, verdict: Verdict) -> None:
        """Note the verdict on a change of this process; it is passed on once the entry is applied."""

    def renewed(self, answer: Answer) -> None:
        """Note that a registration which changes nothing is answered without the log."""

    def heard(self, broker: BrokerKey, *, registers: bool) -> None:
        """Note that a broker registered or sent a heartbeat over a connection to here."""

    def withdrawn(self, broker: BrokerKey) -> None:
        """Note that a broker said goodbye over a connection to here."""

    def reporting(self, report: Report) -> None:
        """Note a report of this member to the leader."""

    def evicting(self, eviction: Evict, sequence: int) -> None:
        """Note that this leader proposes an eviction, under this sequence of its process."""
