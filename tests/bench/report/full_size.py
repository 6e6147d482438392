"""What a comparison leaves for the page, invented: every block of everything that its profile plans."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from bench.plan import CASES, load_plan, seconds_of
from bench.report.gold import Bin, Cost, Fault, FaultCost, Gold, Outcomes, Reason, Recovery
from bench.report.silver import Source
from bench.runfolder import Arm
from tests.bench.report.test_misled import a_source

SECOND = 10**9
OPS = ("lookup", "newcomer", "registration", "announce", "send", "send_once", "first_send")
SLOWER = {"independent": 1.0, "independent-real": 1.5, "raft": 2.0, "raft-real": 3.0, "zookeeper": 5.0}


def full_size(root: Path, profile: str = "full", seed: int = 5) -> Gold:
    """Return it; latencies jump from bin to bin, so that no line of a picture is short."""
    plan = load_plan(profile)
    series = plan.series[0]
    chance = random.Random(seed)
    pattern = a_source(root, "raft", 1)
    assert pattern.manifest is not None
    gold = Gold(sources=[])
    for scenario in plan.scenarios:
        for block in range(1, series.blocks + 1):
            for arm in plan.arms:
                run = f"b/equal/{scenario.name}/{block}/{arm}"
                manifest = msgspec.structs.replace(
                    pattern.manifest, arm=arm, block=block, scenario=scenario.name, lines=plan.lines
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
                        written_bytes=None,
                        pids=3,
                        processes=3,
                        busiest=0.2,
                        died=0,
                    )
                )
                for n, fault in enumerate(scenario.faults):
                    seconds = seconds_of(scenario.name, fault, series)
                    _fault(gold, run, arm, n, scenario.name, fault.case, seconds, chance)
    return gold


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
                    unknown=0,
                    waited=9,
                    late=3,
                    queued=0,
                    behind_ns=recovered,
                    first_ns=0,
                    recovered_ns=recovered,
                    slowest_ns=recovered,
                    stuck_ns=recovered,
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
