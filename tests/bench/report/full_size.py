"""Invented results of a whole comparison: all rounds of all scenarios in a profile (a named plan)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import msgspec

from routekeeper.bench.plan import CASES, load_plan, seconds_of
from routekeeper.bench.report import measures
from routekeeper.bench.report.gold import (
    Bin,
    Cost,
    Disagreement,
    Fault,
    FaultCost,
    Gold,
    LeftOut,
    Observed,
    Outcomes,
    Reason,
    Recovery,
    VisibleBucket,
)
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import Arm, Timer
from tests.bench.report.test_misled import a_source

SECOND = 10**9
OPS = ("lookup", "newcomer", "registration", "announce", "send", "send_once", "first_send")
SLOWER = {"independent": 1.0, "independent-real": 1.5, "raft": 2.0, "raft-real": 3.0, "zookeeper": 5.0}


def full_size(root: Path, profile: str = "full", seed: int = 5) -> Gold:
    """Return invented results of all runs of a profile.

    Latencies change from each time bin to the next, so that each line in a chart has as many points as
    possible.
    """
    plan = load_plan(profile)
    series = plan.series[0]
    chance = random.Random(seed)
    pattern = a_source(root, "raft", 1)
    assert pattern.manifest is not None
    asking = Timer(used_ms=500, documented_ms=30_000, scaled=True)
    timers = {**pattern.manifest.timers, "pollNameServerInterval": asking}
    gold = Gold(sources=[])
    for scenario in plan.scenarios:
        for block in range(1, series.blocks + 1):
            for arm in plan.arms:
                run = f"b/equal/{scenario.name}/{block}/{arm}"
                manifest = msgspec.structs.replace(
                    pattern.manifest,
                    arm=arm,
                    block=block,
                    scenario=scenario.name,
                    lines=plan.lines,
                    timers=timers,
                )
                gold.sources.append(
                    Source(
                        **{
                            **{name: getattr(pattern, name) for name in ("uri", "base", "batch", "series")},
                            "run": run,
                            "scenario": scenario.name,
                            "block": block,
                            "arm": arm,
                            "manifest": manifest,
                        }
                    )
                )
                gold.costs.append(
                    Cost(
                        run=run,
                        role="nameserver",
                        covered_ns=10 * SECOND,
                        cpu_ns=round(SLOWER[arm] * chance.uniform(0.9, 1.1) * SECOND),
                        rss_bytes=round(SLOWER[arm] * 50 * 2**20),
                        pids=3,
                        processes=3,
                        busiest=0.2,
                        died=0,
                    )
                )
                gold.observed.append(Observed(run=run, observer="nameserver"))
                known_ns = round(SLOWER[arm] * chance.uniform(300, 500) * 1e6)
                gold.visible.append(
                    VisibleBucket(
                        run=run,
                        observer="client",
                        phase="steady",
                        fault=None,
                        measure="visible",
                        value_ns=known_ns,
                        n=99,
                    )
                )
                for n, fault in enumerate(scenario.faults):
                    seconds = seconds_of(scenario.name, fault, series)
                    _fault(gold, run, arm, n, scenario.name, fault.case, seconds, chance)
    return gold


def widest(gold: Gold) -> Gold:
    """Return the results with the longest texts that the cells of the report's tables can contain."""
    rows = [
        replace(row, recovered_ns=None if number % 11 == 0 else 1_234_567_890_123, slowest_ns=987_654_321_987)
        for number, row in enumerate(gold.recoveries)
    ]
    costs = [
        replace(row, rss_bytes=row.rss_bytes * 123_457, cpu_ns=row.cpu_ns * 98_765) for row in gold.costs
    ]
    reasons = [
        *gold.reasons,
        *(replace(row, remark="x" * 190) for row in gold.reasons[:1]),
    ]
    return replace(gold, recoveries=rows, costs=costs, reasons=reasons)


def longest_page(gold: Gold, folder: Path) -> Path:
    """Write the report page with the longest text in each table cell, and return its file."""
    long = widest(gold)
    file = folder / "page.html"
    file.write_text(page(long, measures.values(long)))
    return file


def _fault(
    gold: Gold,
    run: str,
    arm: Arm,
    n: int,
    scenario: str,
    case: str,
    seconds: float,
    chance: random.Random,
) -> None:
    gold.faults.append(
        Fault(
            run=run,
            fault=n,
            kind=CASES[scenario][case],
            case=case,
            role=None,
            targets=["nameserver-0"],
            from_ns=0,
            begin_ns=2 * SECOND,
            healed_ns=4 * SECOND,
            end_ns=5 * SECOND,
            until_ns=round((2 + seconds) * SECOND),
        )
    )
    if scenario == "broker-dies":
        for observer in ("nameserver", "client"):
            gone_ns = round(SLOWER[arm] * chance.uniform(0.3, 0.6) * SECOND)
            gold.left_out.append(LeftOut(run=run, fault=n, observer=observer, index=0, left_out_ns=gone_ns))
    if scenario == "partition":
        apart_ns = round(chance.uniform(3.0, 3.3) * SECOND) if arm == "independent" else 0
        gold.disagreements.append(
            Disagreement(
                run=run, fault=n, about="brokers", disagree_ns=apart_ns, topics=3, agree_ns=apart_ns // 9
            )
        )
    gold.fault_costs.append(FaultCost(run=run, fault=n, role="nameserver", cpu_ns=SECOND, started=1))
    for op in OPS:
        for place in range(-20, round(10 * seconds)):
            slow = round(chance.lognormvariate(15, 2))
            bad = int(chance.random() < 0.2)
            gold.timelines.append(
                Bin(run=run, fault=n, op=op, bin=place, n=4, right=4 - bad, failed=bad, slowest_ns=slow)
            )
        for scope in ("all", "struck", "others", "side-a", "side-b"):
            recovered = round(SLOWER[arm] * chance.uniform(0.5, 1.5) * SECOND)
            numbers = {
                name: chance.randrange(50) for name in ("stale", "missing", "ghost", "refused", "failed")
            }
            gold.recoveries.append(
                Recovery(
                    run=run,
                    fault=n,
                    op=op,
                    scope=scope,
                    n=500,
                    right=300,
                    waited=9,
                    late=3,
                    queued=0,
                    behind_ns=recovered,
                    first_ns=0,
                    recovered_ns=recovered,
                    slowest_ns=recovered,
                    lateness_ns=1_000_000,
                    gap_ns=25_000_000,
                    **numbers,
                )
            )
        for side in ("side-a", "side-b"):
            for stage in ("before", "during", "after"):
                counted = dict.fromkeys(("wrong", "stale", "returning", "refused", "failed"), 7)
                gold.outcomes.append(
                    Outcomes(run=run, fault=n, stage=stage, op=op, side=side, n=100, right=65, **counted)
                )
    gold.reasons.append(
        Reason(
            run=run, phase="fault", op="lookup", outcome="error", code=None, remark=f"{case} {'x' * 150}", n=9
        )
    )
