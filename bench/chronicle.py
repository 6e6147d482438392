"""The times of one run's scenarios, and the reasons why scenarios ended early.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from routekeeper.bench.plan import scenarios_of
from routekeeper.bench.processes import ArmLost
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.split import Slot


class Chronicle:
    """The scenarios of a run so far. If the design's servers fail during a scenario, this scenario is lost.

    Attributes:
        scenario: Name of the present scenario. The warm-up belongs to the first scenario.
        slots: Times of the scenarios that have ended, in order. A lost scenario has an entry, too.
        lost: Reason for each lost scenario, by the scenario's name.
    """

    def __init__(self, given: SessionPlan) -> None:
        self._given = given
        self.scenarios = [scenario.name for scenario in scenarios_of(given.plan, given.series)]
        self.scenario = self.scenarios[0]
        self.slots: list[Slot] = []
        self.lost: dict[str, str] = {}

    def ends(self, begin_ns: int, end_ns: int) -> None:
        """Note that the present scenario is over."""
        self._add(self.scenario, begin_ns, end_ns)

    def loses(self, reason: str) -> None:
        """Note that the servers failed during the present scenario. Keep only the first reason."""
        self.lost.setdefault(self.scenario, reason)

    def loses_rest(self, begin_ns: int, now_ns: int, reason: str) -> None:
        """Note that the servers failed during the scenario that began at ``begin_ns``.

        All later scenarios are lost, too, with the same reason.
        """
        over = {slot.scenario for slot in self.slots}
        for scenario in self.scenarios:
            if scenario in over:
                continue
            end_ns = now_ns if scenario == self.scenario else begin_ns
            self.lost.setdefault(scenario, reason)
            self._add(scenario, begin_ns, end_ns)
            begin_ns = end_ns

    def _add(self, scenario: str, begin_ns: int, end_ns: int) -> None:
        folder = self._given.folder(scenario)
        self.slots.append(Slot(scenario=scenario, folder=folder, begin_ns=begin_ns, end_ns=end_ns))

    def loss(self, error: Exception, ends: Iterable[str]) -> str | None:
        """Return the reason if a failure of measured servers stopped the harness, else None.

        Args:
            error: The error that stopped the harness.
            ends: For each server that ended by itself, a text on how the server ended.
        """
        if isinstance(error, ArmLost):
            return reason_of(error)
        ended = list(ends)  # read all items, because reading an item also records the end of one server
        return self.lost.get(self.scenario) or (ended[0] if ended else None)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class if it has no text."""
    return str(error).partition("\n")[0] or type(error).__name__
