"""The scenarios of one run of a cluster: their times, and the reasons why its arm has lost some (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from routekeeper.bench.plan import scenarios_of
from routekeeper.bench.processes import ArmLost
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.split import Slot


class Chronicle:
    """The scenarios of a run so far.

    Attributes:
        scenario: The scenario under way; the warm-up belongs to the first one.
        slots: Times of finished scenarios, in order; a lost one has a slot, too.
        lost: Scenario to the reason why its arm has lost it.
    """

    def __init__(self, given: SessionPlan) -> None:
        self._given = given
        self.scenarios = [scenario.name for scenario in scenarios_of(given.plan, given.series)]
        self.scenario = self.scenarios[0]
        self.slots: list[Slot] = []
        self.lost: dict[str, str] = {}

    def begins(self, scenario: str) -> None:
        """Note that another scenario has begun."""
        self.scenario = scenario

    def ends(self, begin_ns: int, end_ns: int) -> None:
        """Note that the present scenario is over."""
        self._add(self.scenario, begin_ns, end_ns)

    def loses(self, reason: str) -> None:
        """Note that the arm has lost the present scenario; the first reason counts."""
        self.lost.setdefault(self.scenario, reason)

    def loses_rest(self, begin_ns: int, now_ns: int, reason: str) -> None:
        """Note that the arm has lost the scenario that began at an instant, and all later ones."""
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
        """Return the reason for which the arm has lost, if one of its servers stopped the harness.

        Args:
            error: Why the harness cannot go on.
            ends: How servers ended that were not stopped.
        """
        if isinstance(error, ArmLost):
            return reason_of(error)
        ended = list(ends)  # look at all of them, because each look records an end
        return self.lost.get(self.scenario) or (ended[0] if ended else None)


def reason_of(error: BaseException) -> str:
    """Return an error in one line."""
    return str(error).partition("\n")[0] or type(error).__name__
