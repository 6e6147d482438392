"""Invented measurements that follow from known unit costs.

Tests compute unit costs from these measurements and compare the results with the known costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from routekeeper.bench.costs.fit import HELD_OUT, counts_of, design_costs, held_out
from routekeeper.bench.costs.plan import QUICK, Plan, Step, steps
from routekeeper.bench.costs.units import DESIGNS, Costs, Design, DesignCosts, Row
from routekeeper.bench.runfolder import Machine

#: CPU time in s that an invented design uses:
#:
#: - "alone": all servers without load, per minute.
#: - "broker", "topic", "polling" and "watching": one idle broker, one topic, or one idle client that polls or
#:   watches, per minute.
#: - All other keys: one event of this kind.
CPU_S: Mapping[str, float] = {
    "alone": 0.5,
    "broker": 0.00212345678,
    "topic": 0.0003,
    "polling": 0.0004,
    "watching": 0.0001,
    "registration": 0.00005,
    "change": 0.003,
    "newcomer": 0.002,
    "lookup": 0.0002,
}


def row(step: Step, *, design: Design = "raft", minutes: float = 1.0, **values: Any) -> Row:
    """Return the measurements of one time window (a row). Its CPU time follows from :data:`CPU_S`.

    Three servers share this CPU time.
    """
    happened: dict[str, Any] = {
        "registrations": step.brokers * step.topics if step.comes_back else 0,
        "changes": round(step.changes * minutes * 60),
        "newcomers": round(step.newcomers * minutes * 60),
        "lookups": round(step.lookups * minutes * 60),
    }
    made = Row(
        design=design,
        life="one",
        series=step.series,
        seconds=minutes * 60,
        brokers=step.brokers,
        pairs=step.brokers * step.topics,
        topics=step.topics,
        polling=step.polling,
        watching=step.watching,
        **happened,
        cpu_s=[0.0, 0.0, 0.0],
        members_bytes=[0, 0, 0],
        clients_bytes=[0, 0, 0],
        disk_bytes=[0, 0, 0],
        syncs=[0, 0, 0],
        memory_bytes=[50_000_000 + 1000 * step.polling, 50_000_000, 50_000_000],
        resident_bytes=[60_000_000] * 3,
        others_cores=0.1,
        generator_cores=0.1,
    )
    cpu_s = CPU_S["alone"] * minutes
    for unit, number in counts_of(made).items():
        if step.comes_back and unit == "topic":
            continue  # brokers that come back send no heartbeat before the window ends
        cpu_s += number * CPU_S[unit] * minutes
    fields: dict[str, Any] = {name: getattr(made, name) for name in made.__struct_fields__}
    return Row(**fields | {"cpu_s": [cpu_s / 2, cpu_s / 4, cpu_s / 4]} | values)


def all_rows(plan: Plan = QUICK, design: Design = "raft") -> list[Row]:
    """Return one row of measurements for each time window in each run of a plan."""
    return [row(step, design=design) for life in plan.lives for step in steps(plan, life)]


def invented(*, mixture_times: float = 1.0) -> Costs:
    """Return the costs of all three designs, computed from invented measurements.

    Args:
        mixture_times: Factor for the CPU time of a mixture (brokers, topics, clients and events together).
            With 1.0, a mixture costs as much as the sum of its parts.
    """

    def costs_of(design: Design) -> DesignCosts:
        rows = all_rows(design=design)
        found = design_costs(design, rows)
        mixtures = [
            msgspec.structs.replace(row, cpu_s=[used * mixture_times for used in row.cpu_s])
            for row in rows
            if row.series in HELD_OUT
        ]
        return msgspec.structs.replace(found, held_out=[held_out(found, row) for row in mixtures])

    return Costs(
        date="2026-11-26 20:00 UTC",
        commit="abc",
        command=["mqbench", "costs"],
        quick=False,
        machine=Machine(cpu="Invented", cores=2, memory_bytes=1, system="Linux"),
        versions={},
        held_out_counts=[counts_of(row) for row in all_rows() if row.series in HELD_OUT],
        brokers_in_an_answer=12,
        changes_a_minute_max=max(each.count("change") for each in all_rows()),
        designs={design: costs_of(design) for design in DESIGNS},
    )
