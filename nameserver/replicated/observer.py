"""Hooks for the simulator, which watches the members of a group. A serving member's hooks do nothing."""

from __future__ import annotations

from routekeeper.nameserver.commands import Command, Evict
from routekeeper.nameserver.types import Answer, BrokerKey
from routekeeper.nameserver.verdicts import Verdict

from .peer_messages import Report


class Observer:
    """Called on the loop at the time of each event; this class does nothing.

    A derived class may read everything, and must change nothing.
    """

    def applying(self, command: Command) -> None:
        """Notice that the table is about to apply a command."""

    def applied(self, command: Command, verdict: Verdict) -> None:
        """Notice that the table has applied a command; no request is answered yet."""

    def settled(self, verdict: Verdict) -> None:
        """Notice the outcome of a change of this process, which is passed on once the entry is applied."""

    def renewed(self, answer: Answer) -> None:
        """Notice that a registration without changes is answered without the log."""

    def heard(self, broker: BrokerKey, *, registers: bool) -> None:
        """Notice that a broker registered or sent a heartbeat over a connection to this member."""

    def withdrawn(self, broker: BrokerKey) -> None:
        """Notice that a broker unregistered over a connection to this member."""

    def reporting(self, report: Report) -> None:
        """Notice a report of this member to the leader."""

    def evicting(self, eviction: Evict, sequence: int) -> None:
        """Notice that this leader proposes an eviction, under this sequence of its process."""
