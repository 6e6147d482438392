"""Whether the machine was quiet enough for a verdict: who else computed, and how late the load was (pure)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.report import words
from bench.report.blocks import percentile
from bench.report.gold import Gold

OTHERS_CORES: Final = 0.25
"""Above it other programs had a part in a run's figures."""

LATE_MS: Final = 20.0
"""Where one operation in twenty left later than that, a run's load was not the one that was asked for."""

LATE_QUANTILE: Final = 0.95
BUSY_SHARE: Final = 0.25
"""Of all runs: with more of them disturbed, blocks no longer share nothing but the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the runs that are used had to share the machine with; run to figure."""

    others_cores: dict[str, float]
    """Cores that programs used which had nothing to do with the run."""
    late_ms: dict[str, float]
    """By how much the latest twentieth of a run's operations left after it was due."""

    @property
    def disturbances(self) -> list[str]:
        """Say why nothing may be concluded from the runs; empty if it may."""
        found = []
        others, late = list(self.others_cores.values()), list(self.late_ms.values())
        if _too_many(others, OTHERS_CORES):
            found.append(
                f"programs that do not belong to this comparison used {max(others):.1f} cores in the worst "
                f"run and {median(others):.1f} in the middle one"
            )
        if _too_many(late, LATE_MS):
            found.append(
                f"one operation in {round(1 / (1 - LATE_QUANTILE))} left the load generator "
                f"{words.quantity(max(late), 'ms')} or more after it was due in the worst run, "
                f"{words.quantity(median(late), 'ms')} in the middle one"
            )
        return found


def _too_many(values: list[float], limit: float) -> bool:
    return sum(value > limit for value in values) > BUSY_SHARE * len(values)


def conditions(gold: Gold) -> Conditions:
    """Return what the runs that are used had to share the machine with."""
    used = {source.run for source in gold.sources if source.left_out is None}
    ours: dict[str, int] = defaultdict(int)
    for row in gold.costs:
        if row.role != "machine":
            ours[row.run] += row.cpu_ns
    others = {
        row.run: max(row.cpu_ns - ours[row.run], 0) / row.covered_ns
        for row in gold.costs
        if row.role == "machine" and row.run in used and row.covered_ns
    }
    spread: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for each in gold.latency:
        if each.measure == "lateness" and each.run in used:
            spread[each.run].append((each.value_ns / 1e6, each.n))
    late = {run: percentile(rows, LATE_QUANTILE) for run, rows in spread.items()}
    return Conditions(
        others_cores=others, late_ms={run: value for run, value in late.items() if value is not None}
    )
