"""Conditions for valid results: few other programs, requests that are sent on time, and free CPU cores.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from routekeeper.bench.report import words
from routekeeper.bench.report.answers import Setting
from routekeeper.bench.report.blocks import percentile
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.measures import OTHERS_CORES, others_cores

LATE_MS: Final = 20.0
"""Limit of the 95th percentile of sending delays in ms. Above it, requests were not sent as planned."""

LATE_QUANTILE: Final = 0.95
BUSY_SHARE: Final = 0.25
"""Largest share of disturbed runs with which the report draws conclusions. If more runs are disturbed, one
disturbance may have affected several rounds, so the rounds are not independent observations."""

FULL_SHARE: Final = 0.9
"""Largest average share of the machine's cores in use during a run. Above it, requests wait for a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Disturbances of the runs that the report uses. Each field maps a run to one figure."""

    others_cores: dict[str, float]
    """Number of cores that programs outside the run used."""
    late_ms: dict[str, float]
    """95th percentile of the time in ms from an operation's due instant until it was sent."""
    used_share: dict[str, float] = field(default_factory=dict)
    """Average share of the machine's cores that servers, load and harness used together."""

    @property
    def disturbances(self) -> list[str]:
        """Return the reasons why the report draws no conclusions from the runs, if there are any.

        Runs of a design that used nearly all CPU cores are not considered. In these runs the design itself
        delayed the load, and the report does not compare such a design with other designs.
        """
        found = []
        crowded = self.crowded
        others, late = (
            [value for run, value in values.items() if _setting(run) not in crowded]
            for values in (self.others_cores, self.late_ms)
        )
        if _too_many(others, OTHERS_CORES):
            found.append(
                f"programs that do not belong to this comparison used {max(others):.1f} cores in the worst "
                f"run and {median(others):.1f} in the median one"
            )
        if _too_many(late, LATE_MS):
            found.append(
                f"the load generator sent one operation in {round(1 / (1 - LATE_QUANTILE))} "
                f"{words.quantity(max(late), 'ms')} or more after it was due in the worst run, "
                f"{words.quantity(median(late), 'ms')} in the median one"
            )
        return found

    def of_run(self, run: str) -> str:
        """Return the disturbances of a single run as text, which is empty if there are none."""
        found = []
        if (cores := self.others_cores.get(run, 0.0)) > OTHERS_CORES:
            found.append(f"other programs used {cores:.1f} cores")
        if (late_ms := self.late_ms.get(run, 0.0)) > LATE_MS:
            every = round(1 / (1 - LATE_QUANTILE))
            found.append(f"one operation in {every} was sent {words.quantity(late_ms, 'ms')} late")
        return "; ".join(found)

    @property
    def crowded(self) -> dict[Setting, tuple[int, int]]:
        """Return the designs that used nearly all CPU cores in more than ``BUSY_SHARE`` of their runs.

        The result maps each design (in one series and scenario) to two numbers: the number of such runs, and
        the number of all its runs.
        """
        shares: dict[Setting, list[float]] = defaultdict(list)
        for run, share in self.used_share.items():
            shares[_setting(run)].append(share)
        return {
            setting: (sum(share > FULL_SHARE for share in found), len(found))
            for setting, found in shares.items()
            if _too_many(found, FULL_SHARE)
        }


def _setting(run: str) -> Setting:
    _, series, scenario, _, arm = run.split("/")
    return series, scenario, arm


def _too_many(values: list[float], limit: float) -> bool:
    return sum(value > limit for value in values) > BUSY_SHARE * len(values)


def conditions(gold: Gold) -> Conditions:
    """Return the figures that show whether each used run was disturbed."""
    used = {source.run: source.manifest for source in gold.sources if source.left_out is None}
    of_machine = {
        row.run: row for row in gold.costs if row.role == "machine" and row.run in used and row.covered_ns
    }
    others = {run: cores for run, cores in others_cores(gold).items() if run in used}
    shares = {
        run: row.cpu_ns / row.covered_ns / manifest.machine.cores
        for run, row in of_machine.items()
        # skip runs with links "none", because their servers run on other machines
        if (manifest := used[run]) is not None and manifest.links != "none"
    }
    spread: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each in gold.lateness:
        if each.run in used:
            spread[each.run].append((each.value_ns / 1e6, each.n))
    late = {run: percentile(rows, LATE_QUANTILE) for run, rows in spread.items()}
    return Conditions(
        others_cores=others,
        late_ms={run: value for run, value in late.items() if value is not None},
        used_share=shares,
    )
