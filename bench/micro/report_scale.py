"""Measures how long ``mqbench report`` takes for a given number of rows.

    python -m routekeeper.bench.micro.report_scale [--rows 5000000] [--out out/scale] [--keep]

The benchmark writes run folders with this number of rows: invented operations, changes and routes. Then it
makes their report as ``mqbench report`` does. The number of runs is always the same: six rounds of three
designs, with five scenarios of one minute each. So more rows only mean more operations in each run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from routekeeper.bench.machine import commit, this_machine, versions
from routekeeper.bench.runfolder import Arm, Manifest, run_folder, write_manifest

ARMS: Final[tuple[Arm, ...]] = ("independent", "raft", "zookeeper")
BLOCKS: Final = 6
SCENARIOS: Final = ("quiet", "broker-dies", "nameserver-restarts", "leader-fails", "partition")
RUNS: Final = BLOCKS * len(ARMS) * len(SCENARIOS)
ROWS_MAX: Final = 1_000_000_000
SECOND: Final = 10**9
MEASURED_S: Final = 60
FAULT_S: Final = (20, 40)
OUTAGE_S: Final = {"independent": 0.4, "raft": 0.8, "zookeeper": 1.6}
#: Number of route changes per hundred rows. Each change makes two rows of the kind ``truth``, and for each
#: observer one row of the kind ``views``.
CHANGES_PERCENT: Final = 1
OBSERVERS: Final = (
    ("nameserver", 0),
    ("nameserver", 1),
    ("nameserver", 2),
    ("client", 0),
    ("client", 1),
)
TOPICS: Final = 20
BEGIN_NS: Final = 5_000 * SECOND
ROWS_AT_A_TIME: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run for which a folder with invented rows is to be written."""

    out: Path
    scenario: str
    block: int
    arm: Arm
    rows: int


def parts(out: Path, rows: int) -> list[Part]:
    """Divide the rows evenly among the runs; the last run also gets the remainder of the division."""
    each = rows // RUNS
    found = [
        Part(out=out, scenario=scenario, block=block, arm=arm, rows=each)
        for block in range(1, BLOCKS + 1)
        for arm in ARMS
        for scenario in SCENARIOS
    ]
    last = found.pop()
    rest = rows - each * len(found)
    return [
        *found,
        Part(out=out, scenario=last.scenario, block=last.block, arm=last.arm, rows=rest),
    ]


def write_run(part: Part) -> int:
    """Write the folder of one run; return the number of rows that were written."""
    folder = run_folder(part.out, series="equal", scenario=part.scenario, block=part.block, arm=part.arm)
    folder.mkdir(parents=True)
    chance = random.Random(f"{part.scenario}/{part.block}/{part.arm}")
    changes = part.rows * CHANGES_PERCENT // 100
    rows = 0
    kinds: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
        ("faults", lambda: _faults(part)),
        ("truth", lambda: _truth(changes)),
        ("views", lambda: _views(changes)),
    )
    for kind, lines in kinds:
        rows += _write(folder / f"{kind}-invented.jsonl", lines())
    rows += _write(folder / "ops-invented.jsonl", _operations(part, part.rows - rows, changes, chance))
    _write_manifest(folder, part)
    return rows


def _write(path: Path, lines: Iterator[str]) -> int:
    rows = 0
    waiting: list[str] = []
    with path.open("w", encoding="ascii") as file:
        for line in lines:
            waiting.append(line)
            rows += 1
            if len(waiting) == ROWS_AT_A_TIME:
                file.write("".join(waiting))
                waiting.clear()
        file.write("".join(waiting))
    if not rows:
        path.unlink()
    return rows


def _faults(part: Part) -> Iterator[str]:
    if part.scenario == "quiet":
        return
    begin, until = (BEGIN_NS + at * SECOND for at in FAULT_S)
    broker = part.scenario == "broker-dies"
    yield (
        f'{{"n":0,"kind":"kill","case":"kill","targets":["{"broker-1" if broker else "nameserver-0"}"],'
        f'"from_ns":{begin - 2 * SECOND},"begin_ns":{begin},"until_ns":{until}}}\n'
    )


def _changed_at(number: int, changes: int) -> int:
    return BEGIN_NS + (number + 1) * MEASURED_S * SECOND // (changes + 1)


def _truth(changes: int) -> Iterator[str]:
    for number in range(changes):
        at = _changed_at(number, changes)
        common = (
            f'"subject":"topic","broker":100,"topic":"t{number % TOPICS}","version":{number // TOPICS + 1}'
        )
        yield f'{{{common},"what":"changing","t_ns":{at}}}\n'
        yield f'{{{common},"what":"changed","t_ns":{at + 2_000_000}}}\n'


def _views(changes: int) -> Iterator[str]:
    for number in range(changes):
        at = _changed_at(number, changes)
        topic, version = f"t{number % TOPICS}", number // TOPICS + 1
        for observer, index in OBSERVERS:
            seen = at + (10 + 7 * index if observer == "nameserver" else 250 + 80 * index) * 1_000_000
            yield (
                f'{{"observer":"{observer}","index":{index},"topic":"{topic}","state":"routed",'
                f'"brokers":[0,1,2],"version":{version},"unseen_ns":{seen - 20_000_000},"seen_ns":{seen}}}\n'
            )


def _operations(part: Part, rows: int, changes: int, chance: random.Random) -> Iterator[str]:
    struck_ns = BEGIN_NS + FAULT_S[0] * SECOND
    over_ns = struck_ns + (0 if part.scenario == "quiet" else round(OUTAGE_S[part.arm] * SECOND))
    span = MEASURED_S * SECOND
    draw = chance.random
    for number in range(rows):
        due = BEGIN_NS + number * span // rows
        sent = due + int(800_000 * draw())
        took = int(400_000 + 3_000_000 * draw() ** 6)
        done = max(sent, over_ns if struck_ns <= due < over_ns else 0) + took
        kind = number % 10
        times = f'"user":{number % 97},"due_ns":{due},"sent_ns":{sent},"done_ns":{done},"outcome":"ok"'
        if kind < 6:
            topic = number % TOPICS
            version = max((number * changes // rows - topic) // TOPICS, 0)
            yield (
                f'{{"op":"lookup",{times},"target":{number % 3},"topic":"t{topic}","brokers":[0,1,2],'
                f'"version":{version}}}\n'
            )
        elif kind < 8:
            yield f'{{"op":"send",{times},"target":{number % 3},"message":{number}}}\n'
        else:
            yield f'{{"op":"announce",{times},"target":{number % 3},"change":{number}}}\n'


def _write_manifest(folder: Path, part: Part) -> None:
    manifest = Manifest(
        arm=part.arm,
        series="equal",
        scenario=part.scenario,
        block=part.block,
        order_in_block=0,
        session=part.scenario,
        profile="generated, invented numbers",
        seed=part.block,
        durability=None if part.arm == "independent" else "fsync",
        servers=3,
        brokers=3,
        sim_brokers=1,
        clients=2,
        divisor=60.0,
        timers={},
        workload={},
        machine=this_machine(),
        versions=versions(),
        commit=commit(),
        command=["python", "-m", "routekeeper.bench.micro.report_scale"],
        started_at="2026-01-01T00:00:00Z",
        started_ns=BEGIN_NS - SECOND,
        measure_begin_ns=BEGIN_NS,
        measure_end_ns=BEGIN_NS + MEASURED_S * SECOND,
        ended_ns=BEGIN_NS + (MEASURED_S + 1) * SECOND,
    )
    write_manifest(folder, manifest)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one report; sizes are in MiB."""

    seconds: float
    cpu_s: float
    resident: float
    heap: int
    """Largest use of the JVM's heap just before a garbage collection, in MiB."""
    heap_max: int
    """Largest size of the JVM's heap, in MiB."""


_CLEARED: Final = re.compile(r"\b([0-9]+)M->[0-9]+M\(([0-9]+)M\)")


def heap_of(log: str) -> tuple[int, int]:
    """Return two figures in MiB from a JVM's log.

    They are the largest heap use before a garbage collection, and the largest heap size.
    """
    found = [(int(before), int(size)) for before, size in _CLEARED.findall(log)]
    return max((before for before, _ in found), default=0), max((size for _, size in found), default=0)


def make_report(runs: Path, out: Path) -> Cost:
    """Make the report in a process of its own; return its cost."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as logs:
        # Write one log per process (%p): Spark's launcher is a JVM, too, and would overwrite the log of the
        # report's JVM.
        options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Xlog:gc:file={logs}/%p.log"
        environment = {**os.environ, "JDK_JAVA_OPTIONS": options}
        command = [sys.executable, "-m", "routekeeper.bench.report", str(runs), "--out", str(out)]
        child = subprocess.Popen(command, env=environment)
        cpu_s, most = 0.0, 0
        while child.poll() is None:
            for process in psutil.Process(child.pid).children(recursive=True):
                try:
                    if process.name() == "java":
                        times = process.cpu_times()
                        cpu_s = max(cpu_s, times.user + times.system)
                        most = max(most, process.memory_info().rss)
                except psutil.Error:
                    continue  # the process ended before its file was read
            time.sleep(0.2)
        seconds = time.monotonic() - begun
        if child.returncode:
            raise SystemExit(f"the report ended with {child.returncode}")
        heaps = [heap_of(path.read_text()) for path in Path(logs).glob("*.log")]
    return Cost(
        seconds=seconds,
        cpu_s=cpu_s,
        resident=most / 2**20,
        heap=max((heap for heap, _ in heaps), default=0),
        heap_max=max((size for _, size in heaps), default=0),
    )


def rows_wanted(text: str) -> int:
    """Return the number of rows in the text of a command-line argument.

    Raises:
        argparse.ArgumentTypeError: If the number is out of range.
    """
    rows = int(text.replace("_", ""))
    if not RUNS * 100 <= rows <= ROWS_MAX:
        raise argparse.ArgumentTypeError(f"{rows} is out of range, allowed are {RUNS * 100} to {ROWS_MAX}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m routekeeper.bench.micro.report_scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=rows_wanted, default=5_000_000, help="number of rows (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/scale"), help="folder (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="do not delete the rows and the report")
    options = parser.parse_args()
    out: Path = options.out / str(options.rows)
    if out.exists():
        parser.error(f"{out} exists already; delete it, or name another folder with --out")
    begun = time.monotonic()
    with ProcessPoolExecutor() as pool:
        rows = sum(pool.map(write_run, parts(out, options.rows)))
    size = sum(path.stat().st_size for path in out.rglob("*.jsonl"))
    print(f"{rows:,} rows, {size / 2**20:,.0f} MiB, written in {time.monotonic() - begun:.0f} s", flush=True)
    try:
        cost = make_report(out, out / "report")
        print(
            f"{rows:,} rows: report in {cost.seconds:.0f} s, {1e6 * cost.seconds / rows:.1f} us a row; "
            f"the JVM used {cost.cpu_s:.0f} s of CPU, {cost.heap:,} MiB of a heap of {cost.heap_max:,} MiB, "
            f"and {cost.resident:,.0f} MiB in all"
        )
    finally:
        if not options.keep:
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
