"""Invented results of a comparison of three arms (designs) in six scenarios, two of them without faults."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.bench.report import job, pipeline
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.runfolder import Arm, Line, Series
from tests.bench.report.planted import PlantedRun

ARMS: Final[tuple[Arm, ...]] = ("independent", "raft", "zookeeper")
LINES: Final = [
    Line(
        name="A dead broker is left out by all clients",
        scenario="broker-dies",
        case="kill",
        measure="left_by_clients_s",
        arms=("zookeeper", "independent"),
        unit="s",
        margin=0.5,
    ),
    Line(
        name="Registrations work again after the leader was killed",
        scenario="leader-fails",
        case="kill",
        measure="announce_again_s",
        arms=("raft", "independent"),
        unit="s",
        margin=0.25,
    ),
    Line(
        name="Nameservers disagree in a partition",
        scenario="partition",
        case="1-2",
        measure="disagree_s",
        arms=("raft", "independent"),
        unit="s",
        margin=0.5,
    ),
    Line(
        name="Processor time when nobody asks",
        series="rest",
        scenario="idle-300",
        measure="cpu_s_per_min",
        arms=("zookeeper", "independent"),
        unit="s/min",
        margin=2.0,
    ),
]

ELECTION_S: Final = {"independent": 0.0, "raft": 0.7, "zookeeper": 1.6}
CLIENTS_S: Final = {"independent": 3.1, "raft": 3.0, "zookeeper": 2.2}
CPU: Final = {"independent": 0.02, "raft": 0.05, "zookeeper": 0.11}
MIB: Final = {"independent": 45, "raft": 48, "zookeeper": 190}
KNOWN_S: Final = {"independent": 0.3, "raft": 0.31, "zookeeper": 0.02}
NETWORK: Final = {"independent": 30, "raft": 42, "zookeeper": 5}


def invented_comparison(
    out: Path, *, blocks: int = 6, series: Series = "equal", divisor: float = 10.0, seed: int = 3
) -> None:
    """Write the results of ``blocks`` rounds of three arms (designs) below the folder ``out``.

    ``divisor`` shortens the invented leases, but not the invented elections.
    """
    for block in range(1, blocks + 1):
        for arm in ARMS:
            chance = random.Random(f"{seed}/{block}/{arm}")
            _broker_dies(out, arm, series, block, divisor, chance)
            _leader_fails(out, arm, series, block, divisor, chance)
            _restart(out, arm, series, block, divisor, chance)
            _partition(out, arm, series, block, divisor, chance)
            _quiet(out, arm, series, block, divisor, chance)
            _rest(out, arm, block, chance)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The results of an invented comparison, the folder of their report, and the report's tables."""

    root: Path
    out: Path
    gold: Gold


def compared(root: Path, out: Path) -> Compared:
    """Write the results of six rounds, and make their report in the present Spark session."""
    invented_comparison(root)
    found: list[Gold] = []

    def compute(*given: Any, **named: Any) -> Gold:
        found.append(pipeline.compute(*given, **named))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "compute", compute)
        job.build_report([str(root)], str(out), progress=print)
    return Compared(root=root, out=out, gold=found[0])


def _took(chance: random.Random) -> float:
    return chance.lognormvariate(0, 0.5) * (0.02 if chance.random() < 0.02 else 0.001)


def _load(run: PlantedRun, chance: random.Random, ends: float, **outages: tuple[float, float, str]) -> None:
    """Add operations at fixed rates to a run.

    Args:
        outages: Outage of each kind of operation: its start and end in s, and its effect. With the effect
            ``wait``, operations wait until the outage ends. Any other effect is the outcome of the
            operations.
    """
    rates = {"lookup": 20, "newcomer": 6, "announce": 4, "send": 10, "send_once": 10}
    for op, rate in rates.items():
        begin, end, how = outages.get(op, (0.0, 0.0, "ok"))
        for number in range(int(ends * rate)):
            due = number / rate
            late = chance.uniform(0, 0.001)
            struck = begin <= due < end
            took = late + _took(chance) + (end - due if struck and how == "wait" else 0)
            outcome = how if struck and how != "wait" else "ok"
            fields = {"target": number % 3, "user": number}
            run.op(op, due, took, outcome, late=late, **fields)


def _broker_dies(
    out: Path, arm: Arm, series: Series, block: int, divisor: float, chance: random.Random
) -> None:
    gone = CLIENTS_S[arm] * chance.uniform(0.85, 1.15) * (10 / divisor)
    with _run(out, arm, series, block, divisor, "broker-dies", 12 + gone) as run:
        run.broker(1, "down", 4.0)
        run.fault(4.0, 11.0 + gone, case="kill", targets=["broker-1"], role="broker")
        for index in range(3):
            run.view(0.0, index=index)
            at = 4.0 + 0.05 * (index + 1)
            run.view(at, index=index, unseen=at - 0.02, brokers=[0, 2])
            run.view(11.9 + gone, "end", index=index)
        for index in range(2):
            run.view(0.0, index=index, observer="client")
            run.view(4 + gone, index=index, observer="client", unseen=4 + gone, brokers=[0, 2])
            run.view(11.9 + gone, "end", index=index, observer="client")
        _load(run, chance, 11 + gone, send_once=(4.0, 4.0 + gone, "error"), send=(4.0, 4.2, "wait"))


def _leader_fails(
    out: Path, arm: Arm, series: Series, block: int, divisor: float, chance: random.Random
) -> None:
    election = ELECTION_S[arm] * chance.uniform(0.8, 1.3)
    with _run(out, arm, series, block, divisor, "leader-fails", 12) as run:
        run.fault(4.0, 11.0, case="kill", healed=6.0, role="leader")
        _watched(run)
        wait = (4.0, 4.0 + election, "wait")
        _load(run, chance, 12, announce=wait, lookup=wait if arm != "independent" else (4.0, 4.0, "ok"))


def _restart(out: Path, arm: Arm, series: Series, block: int, divisor: float, chance: random.Random) -> None:
    empty = {"independent": 1.4 * 10 / divisor, "raft": 0.3, "zookeeper": 0.5}[arm] * chance.uniform(0.8, 1.2)
    how = "absent" if arm == "independent" else "refused"
    with _run(out, arm, series, block, divisor, "nameserver-restarts", 14 + empty) as run:
        run.fault(4.0, 12.0 + empty, case="one-empty", healed=4.5)
        _watched(run)
        _load(run, chance, 12 + empty, newcomer=(4.0, 4.5 + empty, how))


def _partition(
    out: Path, arm: Arm, series: Series, block: int, divisor: float, chance: random.Random
) -> None:
    with _run(out, arm, series, block, divisor, "partition", 14) as run:
        run.fault(4.0, 13.0, case="1-2", healed=9.0, targets=["nameserver-2"])
        for index in range(3):
            run.view(0.0, index=index, version=1)
        for index in range(3):
            cut_off = index == 2
            at = (9.0 if cut_off and arm == "independent" else 4.2) + chance.uniform(0.02, 0.3)
            if cut_off and arm == "independent":
                run.view(4.4, index=index, unseen=4.38, brokers=[2], version=1)
            if cut_off and arm != "independent":
                run.view(4.4, "refused", index=index, unseen=4.38)
                at = 9.5
            run.view(at, index=index, unseen=at - 0.02, version=2)
            run.view(13.9, "end", index=index)
        for due in (4 + 0.1 * number for number in range(90)):
            away = arm != "independent" and due < 9.0
            run.op("lookup", due, _took(chance), "refused" if away else "ok", client_side="side-b")
            run.op("lookup", due + 0.05, _took(chance), client_side="side-a")
        _load(run, chance, 14)


def _quiet(out: Path, arm: Arm, series: Series, block: int, divisor: float, chance: random.Random) -> None:
    with _run(out, arm, series, block, divisor, "quiet", 20) as run:
        _load(run, chance, 20)
        for index in range(3):
            run.view(0.0, index=index, version=0)
        for index in range(2):
            run.view(0.0, observer="client", index=index, version=0)
        for version in range(1, 40):
            at = 0.5 * version
            run.change("t", version, at, at + 0.003)
            for index in range(3):
                run.view(at + 0.015, index=index, unseen=at, version=version)
            for index in range(2):
                known = at + KNOWN_S[arm] * (1 + 0.2 * index)
                run.view(known, observer="client", index=index, unseen=known, version=version)
        for index in range(3):
            run.view(21.0, "end", index=index)
            for at in (0.0, 20.0):
                cpu = at * CPU[arm] * chance.uniform(0.9, 1.1)
                run.used("nameserver", index, at, cpu, rss_bytes=MIB[arm] << 20)
                syncs = 0 if arm == "independent" else round(10 * at)
                run.disk(index, at, written_bytes=500 * syncs, syncs=syncs)
        run.used("generator", 0, 0.0, 0.0)
        run.used("generator", 0, 20.0, 4.0)
        run.link("broker-0", "nameserver-0", 0.0, 0, 0)
        run.link("broker-0", "nameserver-0", 20.0, round(1e6 * chance.uniform(0.9, 1.1)), 200_000)


def _rest(out: Path, arm: Arm, block: int, chance: random.Random) -> None:
    with _run(out, arm, "rest", block, 1.0, "idle-300", 2) as run:
        for at in (0.0, 2.0):
            for index in range(3):
                cpu = at * CPU[arm] * chance.uniform(0.3, 0.4)
                run.used("nameserver", index, at, cpu, rss_bytes=MIB[arm] << 20)
            run.link("broker-0", "nameserver-0", at, round(at * NETWORK[arm] * chance.uniform(900, 1100)), 0)


def _watched(run: PlantedRun) -> None:
    for index in range(3):
        run.view(0.0, index=index)
        run.view(11.9, "end", index=index)


def _run(
    out: Path, arm: Arm, series: Series, block: int, divisor: float, scenario: str, seconds: float
) -> PlantedRun:
    return PlantedRun(
        out,
        scenario=scenario,
        arm=arm,
        series=series,
        block=block,
        seconds=seconds,
        divisor=divisor,
        lines=LINES,
    )
