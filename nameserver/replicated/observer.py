"""What a member of the group tells whoever watches it: the simulator. One that serves has nobody who does."""

from __future__ import annotations

from routekeeper.nameserver.commands import Command, Evict
from routekeeper.nameserver.types import Answer, BrokerKey
from routekeeper.nameserver.verdicts import Verdict

from .peer_messages import Report


class Observer:
    """Told at that very moment, on the loop; this one does nothing.

    Whoever derives from it may look at everything, and changes nothing.
    """

    def applying(self, command: Command) -> None:
        """The table is about to take a command of the entry that is applied."""

    def applied(self, command: Command, verdict: Verdict) -> None:
        """The table has taken it; nobody was told yet."""

    def settled(self, verdict: Verdict) -> None:
        """Whoever waits here for the verdict on a change is told it, once the entry is applied."""

    def renewed(self, answer: Answer) -> None:
        """A registration that changes nothing is answered without the log."""

    def heard(self, broker: BrokerKey, *, registers: bool) -> None:
        """A broker was heard over a connection to here."""

    def withdrawn(self, broker: BrokerKey) -> None:
        """A broker said goodbye over a connection to here."""

    def reporting(self, report: Report) -> None:
        """The leader is told what was heard here."""

    def evicting(self, eviction: Evict, sequence: int) -> None:
        """This leader proposes an eviction, under this sequence of its process."""
