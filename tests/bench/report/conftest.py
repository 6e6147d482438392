"""Synthetic run folders, clearly named so, and one Spark session for all tests of the report.

The numbers are invented: they show whether the report says what its input says, nothing about RouteKeeper.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.manifest import Machine, Manifest, run_folder, write_manifest
from bench.samples import Change, EventLog, Fault, Operation, Outcome, ProcessSample, Visibility

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000_000
BEGIN = 5_000 * SECOND  # CLOCK_MONOTONIC does not start at 0
KILL_ONE, BACK_ONE, KILL_ALL, BACK_ALL = 8.0, 11.0, 18.0, 19.0

Writer = Callable[..., list[Path]]


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One small session: a C1-only JVM, one shuffle partition."""
    from pyspark.sql import SparkSession

    from bench.jre import ensure_java

    ensure_java()
    session = (
        SparkSession.builder.appName("tests")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.default.parallelism", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def write_synthetic_runs() -> Writer:
    """The function of the same name, see there."""
    return synthetic_runs


def synthetic_runs(
    out: Path,
    *,
    pairs: int = 5,
    seconds: float = 30.0,
    rate: float = 1.0,
    register_ms: tuple[float, float] = (1.1, 6.0),
    cold_s: tuple[float, float] = (3.0, 0.6),
    generator_cores: float = 0.4,
    seed: int = 7,
) -> list[Path]:
    """Write ``pairs`` pairs of invented runs below ``out`` and return their folders.

    Args:
        rate: Multiplies all request rates.
        register_ms: Median time of a registration, (independent, raft).
        cold_s: How long answers stay wrong or refused after all nameservers are back, (independent, raft).
    """
    folders = []
    for pair in range(1, pairs + 1):
        for side in range(2):
            rng = random.Random(f"{seed}/{pair}/{side}")
            folders.append(
                _one_run(
                    out,
                    rng,
                    raft=side == 1,
                    pair=pair,
                    seconds=seconds,
                    rate=rate,
                    register_ms=register_ms[side] * rng.uniform(0.9, 1.1),
                    cold_s=cold_s[side] * rng.uniform(0.9, 1.1),
                    generator_cores=generator_cores * rng.uniform(0.95, 1.05),
                    seed=seed,
                )
            )
    return folders


def _one_run(
    out: Path,
    rng: random.Random,
    *,
    raft: bool,
    pair: int,
    seconds: float,
    rate: float,
    register_ms: float,
    cold_s: float,
    generator_cores: float,
    seed: int,
) -> Path:
    folder = run_folder(out, mode="raft" if raft else "independent", scenario="synthetic", rep=pair)
    folder.mkdir(parents=True)
    leader = rng.randrange(3)
    failover_s = rng.uniform(0.5, 0.9)

    def spread(median_ms: float, sigma: float = 0.4) -> float:
        slow = 8.0 if rng.random() < 0.01 else 1.0
        return rng.lognormvariate(0, sigma) * median_ms * slow / 1e3

    def fate(op: str, target: int, at: float) -> tuple[Outcome, str | None, int | None]:
        one, all_of_them = KILL_ONE <= at < BACK_ONE, KILL_ALL <= at < BACK_ALL
        if op == "send":
            return ("unknown", "no reply within 3000 ms", None) if rng.random() < 2e-4 else ("ok", None, 0)
        if all_of_them or (one and target == leader):
            return "error", f"connection refused: 127.0.0.1:{40000 + target}", None
        if raft and KILL_ONE <= at < KILL_ONE + failover_s and op == "register":
            return "refused", "[NO_QUORUM] name server not ready: no leader", 1
        if BACK_ALL <= at < BACK_ALL + cold_s:
            if raft:
                return "refused", "[NO_QUORUM] name server not ready: no leader", 1
            if op != "register":
                return "wrong", "No topic route info in name server for the topic: bench-17", 17
        return "ok", None, 0

    with EventLog(folder, "synthetic") as log:
        medians = {"route_wire": 0.34, "route_http": 0.9, "send": 1.4, "register": register_ms}
        rates = {"route_wire": 120.0, "route_http": 40.0, "send": 50.0, "register": 3.0}
        for op, per_second in rates.items():
            per_second *= rate if op != "register" else 1
            for number in range(int(seconds * per_second)):
                at = number / per_second
                targets = range(3) if op == "register" else [number % (2 if op == "send" else 3)]
                for target in targets:
                    late = rng.uniform(0.0001, 0.0012)
                    took = spread(medians[op] * (1.15 if raft and op == "route_http" else 1.0))
                    outcome, remark, code = fate(op, target, at)
                    if outcome == "unknown":
                        took = 3.0
                    log.record(
                        Operation(
                            op=op,  # type: ignore[arg-type] # a key of the table above
                            worker=number % 16,
                            target=target,
                            due_ns=BEGIN + round(at * SECOND),
                            sent_ns=BEGIN + round((at + late) * SECOND),
                            done_ns=BEGIN + round((at + late + took) * SECOND),
                            outcome=outcome,
                            code=code,
                            remark=remark,
                            topic=f"bench-{number % 20}",
                            change=number if op == "register" else None,
                        )
                    )
        for number in range(int(seconds * 3)):
            at = number / 3
            down = KILL_ONE - 0.05 <= at < BACK_ONE or KILL_ALL - 0.05 <= at < BACK_ALL + cold_s
            begun = BEGIN + round(at * SECOND)
            reached = [spread(register_ms * 1.1) for _ in range(3)]
            log.record(
                Change(
                    change=number,
                    broker=number % 2,
                    topic=f"new-{number}",
                    begun_ns=begun,
                    acked_ns=[None if down else begun + round(ack * SECOND) for ack in reached],
                    outcomes=["error" if down else "ok"] * 3,
                    version=number + 1,
                )
            )
            for nameserver in range(3):
                poll = rng.uniform(0, 0.004)
                seen = begun + round((reached[nameserver] + poll + (2.0 if down else 0.0)) * SECOND)
                log.record(
                    Visibility(
                        change=number,
                        nameserver=nameserver,
                        seen_ns=seen,
                        unseen_ns=max(begun, seen - 5_000_000),
                    )
                )
        for kind, targets, begin, end, role in (
            ("kill_one", [leader], KILL_ONE, BACK_ONE, "leader" if raft else "independent"),
            ("kill_all", [0, 1, 2], KILL_ALL, BACK_ALL, None),
        ):
            log.record(
                Fault(
                    kind=kind,  # type: ignore[arg-type] # one of the two above
                    targets=targets,
                    begin_ns=BEGIN + round(begin * SECOND),
                    end_ns=BEGIN + round(end * SECOND),
                    role=role,
                )
            )
        for tick in range(int(seconds * 2) + 1):
            at = tick / 2
            for index in range(3):
                down = KILL_ALL <= at < BACK_ALL or (index == leader and KILL_ONE <= at < BACK_ONE)
                if not down:
                    cores = (0.09 + 0.03 * (index == leader) if raft else 0.06) * rng.uniform(0.98, 1.02)
                    life = (at >= BACK_ONE and index == leader) + (at >= BACK_ALL)
                    log.record(_used("nameserver", index, 100 + index + 10 * life, at, cores, 62 + 9 * raft))
            for index in range(2):
                log.record(_used("broker", index, 200 + index, at, 0.07, 55))
            log.record(_used("generator", 0, 300, at, generator_cores, 90))
    write_manifest(
        folder,
        Manifest(
            mode="raft" if raft else "independent",
            scenario="synthetic",
            rep=pair,
            pair=pair,
            order_in_pair=(pair + raft) % 2,
            profile="synthetic, invented numbers",
            seed=seed,
            durability="journal" if raft else None,
            nameservers=3,
            brokers=2,
            timer_divisor=10.0,
            timers_ms={"registerNameServerPeriod": 3000, "scanNotActiveBrokerInterval": 1000},
            workload={"route_wire_per_s": 120, "route_http_per_s": 40, "send_per_s": 50, "register_per_s": 3},
            machine=Machine(cpu="synthetic processor", cores=2, memory_bytes=24 << 30, system="synthetic"),
            versions={"routekeeper": "0.1.0", "python": "3.11.2", "pysyncobj": "0.3.17", "locust": "2.47.0"},
            commit="0000000",
            command=["mqbench", "compare", "--out", "synthetic"],
            started_at=f"2026-01-01T00:{pair:02}:{30 * raft:02}Z",
            started_ns=BEGIN - 3 * SECOND,
            measure_begin_ns=BEGIN,
            measure_end_ns=BEGIN + round(seconds * SECOND),
            settle_ms=4000,
            ended_ns=BEGIN + round((seconds + 2) * SECOND),
        ),
    )
    return folder


def _used(role: str, index: int, pid: int, at: float, cores: float, mib: int) -> ProcessSample:
    return ProcessSample(
        role=role,  # type: ignore[arg-type] # literal at each call
        index=index,
        pid=pid,
        t_ns=BEGIN + round(at * SECOND),
        cpu_ns=round(at * cores * SECOND),
        rss_bytes=(mib << 20) + round(at * 2**14),
        threads=3,
    )
