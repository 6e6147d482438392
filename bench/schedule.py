"""The runs of a comparison, their order, and their expected duration.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from routekeeper.bench.chance import stream
from routekeeper.bench.given import Given
from routekeeper.bench.plan import (
    Plan,
    SeriesPlan,
    drawn_in_round,
    drawn_order,
    quiet_seconds,
    run_seconds,
    scenarios_of,
)
from routekeeper.bench.runfolder import Arm, Series, run_folder

#: Expected time in s for all starts and restarts of programs in a run, as long as no run is over. Six rounds
#: of the plan "compare" gave 9 s with each of our modes, and 21 s with ZooKeeper.
OVERHEAD_S: Final = 14.0
#: Expected time in s for all starts and restarts in a run with RocketMQ's own programs, which start slower.
#: The values are from six rounds of the plan "real".
OVERHEADS_S: Final[dict[Arm, float]] = {"independent-real": 37.0, "raft-real": 43.0}
#: Expected seconds for making the report.
REPORT_S: Final = 45.0
ATTEMPTS_MAX: Final = 3


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a comparison, stored as a file in its folder, so that the comparison can be resumed."""

    profile: str
    plan: Plan
    seed: int
    command: list[str]
    given: Given | None = None
    """The running cluster that the comparison measures, or null if the harness starts the clusters."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one design in one round, on one cluster ("arm" and "block" in the code)."""

    series: Series
    block: int
    arm: Arm
    order: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """The settings and folders of one turn: the runs of one design in one round, on one cluster."""

    out: Path
    plan: Plan
    series: SeriesPlan
    arm: Arm
    block: int
    order_in_block: int
    attempt: int
    profile: str
    seed: int
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.series.name}-{self.block}-{self.arm}-{self.attempt}"

    @property
    def work(self) -> Path:
        """Folder for the data and logs of the cluster's processes, which is not a run folder."""
        return self.out / "work" / self.name

    @property
    def spool(self) -> Path:
        """Folder for the events of all processes, until the events are sorted into run folders."""
        return self.work / "events"

    def folder(self, scenario: str) -> Path:
        """Return the run folder of a scenario."""
        return run_folder(
            self.out, series=self.series.name, scenario=scenario, block=self.block, arm=self.arm
        )


def block_seed(seed: int, series: str, block: int) -> int:
    """Return a round's seed, from which every design of the round draws its load and faults."""
    return stream(seed, f"{series} {block}").randrange(2**31)


def turns_of_block(plan: Plan, series: SeriesPlan, block: int, seed: int) -> list[Turn]:
    """Return the turns of a round in random order.

    If the harness fails during a run, the run does not count. It is made again at its place in this order.
    """
    own = block_seed(seed, series.name, block)
    order = drawn_order(series.arms or plan.arms, stream(own, "order of arms"))
    return [
        Turn(series=series.name, block=block, arm=arm, order=place, seed=own)
        for place, arm in enumerate(order)
    ]


def blocks_of(plan: Plan, seed: int) -> list[list[Turn]]:
    """Return the turns of every round of every series, in the order in which they are run."""
    return [
        turns_of_block(plan, series, block, seed)
        for series in plan.series
        for block in range(1, series.blocks + 1)
    ]


def expected_s(plan: Plan, turns: Sequence[Turn], *, done_s: Sequence[tuple[Turn, float]]) -> float:
    """Return the expected duration of these turns in seconds, computed from finished turns.

    A design's overhead (the time of its starts and restarts) is the mean of its finished turns. A design
    without a finished turn gets its usual overhead, plus the mean difference between the measured and the
    usual overhead of the other designs.

    Args:
        done_s: Finished turns, each with its duration in seconds.
    """
    by_name = {series.name: series for series in plan.series}
    known: dict[Arm, list[float]] = defaultdict(list)
    for turn, seconds in done_s:
        known[turn.arm].append(seconds - load_seconds(plan, by_name[turn.series], turn.block))
    slower = [each - usual_overhead_s(arm) for arm, found in known.items() for each in found]
    slower_s = fmean(slower) if slower else 0.0

    def overhead_s(arm: Arm) -> float:
        return fmean(known[arm]) if arm in known else usual_overhead_s(arm) + slower_s

    return sum(load_seconds(plan, by_name[turn.series], turn.block) + overhead_s(turn.arm) for turn in turns)


def usual_overhead_s(arm: Arm) -> float:
    """Return a design's expected time for all starts and restarts in a run, in s, if no run has ended yet."""
    return OVERHEADS_S.get(arm, OVERHEAD_S)


def load_seconds(plan: Plan, series: SeriesPlan, block: int) -> float:
    """Return the expected duration of the load of one run of a round ("block") in s.

    In a later round, faults come later, and so the load lasts longer (see :func:`drawn_in_round`).
    """
    drawn = drawn_in_round(0.5, block=block, blocks=series.blocks)
    faults = [fault for scenario in scenarios_of(plan, series) for fault in scenario.faults]
    later_s = sum(quiet_seconds(fault, series, drawn) - quiet_seconds(fault, series, 0.5) for fault in faults)
    return run_seconds(plan, series) + later_s
