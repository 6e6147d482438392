"""Compares RouteKeeper's raft mode with ZooKeeper 3.9: three members each, measured in turn in one run.

    python -m routekeeper.bench.micro.raft [--rounds 3] [--parts ack,writes,...] [--only NAMES] [--json FILE]
    python -m routekeeper.bench.micro.raft --only routekeeper-fsync --parts writes --python 'COMMAND {index}'
    python -m routekeeper.bench.micro.raft --against TREE --rounds 16 [--parts ack,writes] [--python OTHER]

README.md in the folder above describes the measurements, and has the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from routekeeper.bench import interpreter
from routekeeper.bench.figures import percentile
from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.micro.raft.loading import load
from routekeeper.bench.micro.raft.report import OTHER, OURS, tables, targets
from routekeeper.bench.micro.raft.systems import FACTORIES, MEMBERS, RouteKeeper, System, fdatasync_ms
from routekeeper.bench.micro.trees import THIS, program_of
from routekeeper.bench.wires.job import JobName
from routekeeper.bench.wires.remoting_wire import RemotingWire
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

#: Parts of a run that also work with ``--against``, the comparison with another checkout.
AGAINST: Final = ("ack", "writes", "visible", "ack-large", "writes-large")
PARTS: Final = (*AGAINST, "reads")
CONNECTIONS: Final = 64
VALUE_SIZE_SMALL: Final = 200
VALUE_SIZE_LARGE: Final = 20_000
TOPICS_SMALL: Final = 10
#: Maps each part that writes to the job of the load process, its connections, and its warm-up in s. ``ack``
#: sends requests to the members in turn, because a leader and a follower need different times.
JOBS: Final[dict[str, tuple[JobName, int, float]]] = {
    "ack": ("one", MEMBERS, 0.4),
    "writes": ("writes", CONNECTIONS, 0.7),
    "visible": ("visible", 1, 0.4),
}
#: Warm-up in s before a system's first measurement: a JVM needs this time to compile its code.
WARM_FIRST_S: Final = {"zookeeper": 15.0}
#: Pause in s after a load, until the servers have removed the load's brokers and closed its sessions.
SETTLE_S: Final = 0.5


class Bench:
    """All measurements of one run, and their results so far."""

    def __init__(self, arguments: argparse.Namespace, root: Path) -> None:
        self.arguments = arguments
        self.root = root
        self.samples: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.order = random.Random(arguments.seed)
        self.topics_large = _topics_for(VALUE_SIZE_LARGE)

    def make(self, name: str, label: str = "") -> System:
        folder = self.root / (name + label)
        if self.arguments.against is not None:
            tree, python = (self.arguments.against, self.arguments.python) if name == OTHER else (THIS, "")
            interpreter, program = program_of(tree, python)
            system = RouteKeeper(folder, durability="fsync", interpreter=interpreter, program=program)
            system.name = name
            return system
        return FACTORIES[name](folder, self.arguments.python)

    def start(self, system: System, stack: contextlib.ExitStack) -> None:
        """Start the system, and print its version; closing ``stack`` stops the system."""
        stack.callback(system.stop)
        system.start()
        version = system.version()
        self.samples.append({"part": "version", "system": system.name, "version": version})
        print(f"{system.name} {version}", flush=True)

    def load(self, system: System, **plan: Any) -> dict[str, Any]:
        """Run one load process; return the values that it has measured.

        Raises:
            Unhealthy: If the load failed, or if the cluster is not healthy before the load.
        """
        system.wait_healthy()
        figures = load(system, **plan)
        time.sleep(SETTLE_S)
        return figures

    def record(self, part: str, system: System, round_: int, figures: dict[str, Any]) -> None:
        sample = {
            "part": part,
            "system": system.name,
            "round": round_,
            "load": os.getloadavg()[0],
            **figures,
        }
        self.samples.append(sample)
        self.save()
        shown = " ".join(f"{k}={v:.4g}" for k, v in figures.items() if isinstance(v, float))
        print(f"{part} {system.name} round {round_ + 1}: {shown}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Write the results so far into the JSON file, so that an interrupted run is not lost."""
        if self.arguments.json is not None:
            failed = [{"part": "failed", "system": "", "why": failure} for failure in self.failures]
            self.arguments.json.write_text(json.dumps([*self.samples, *failed], indent=1))

    # -- parts ---------------------------------------------------------------------------------------

    def measure(self, part: str, system: System, round_: int) -> None:
        if part == "reads":
            if not isinstance(system, RouteKeeper):
                # Omit ZooKeeper: its plain reads are stale, and its linearizable read needs two operations.
                return
            figures = self._reads(system)
        else:
            kind, _, large = part.partition("-")
            job, connections, warm_s = JOBS[kind]
            figures = self.load(
                system,
                job=job,
                connections=connections,
                warm_s=warm_s,
                measure_s=self.arguments.seconds,
                value_size=VALUE_SIZE_LARGE if large else VALUE_SIZE_SMALL,
                topics=self.topics_large if large else TOPICS_SMALL,
            )
        self.record(part, system, round_, figures)

    def _reads(self, system: RouteKeeper) -> dict[str, Any]:
        """Measure stale and linearizable reads at all members, one kind after the other, in random order."""
        found: dict[str, Any] = {}
        for freshness in self.order.sample(("stale", "linearizable"), 2):
            _set_freshness(system, freshness)
            figures = self.load(
                system,
                job="reads",
                connections=CONNECTIONS,
                warm_s=0.4,
                measure_s=self.arguments.seconds / 2,
            )
            found |= {f"{freshness}_{key}": value for key, value in figures.items()}
        _set_freshness(system, "stale")
        return found

    # -- series of measurements ----------------------------------------------------------------------

    def against(self, parts: list[str]) -> None:
        """In each round, measure the raft groups of this checkout and of the other checkout.

        Start both groups again for each round, because the memory addresses of a process change its speed by
        some percent.
        """
        for round_ in range(self.arguments.rounds):
            with contextlib.ExitStack() as stack:
                systems = [self.make(name, f"-{round_}") for name in (OURS, OTHER)]
                for system in systems:
                    self.start(system, stack)
                self.warm_up(systems, parts)
                self.rounds(systems, parts, range(round_, round_ + 1))

    def warm_up(self, systems: list[System], parts: list[str]) -> None:
        """Send writes to each system for some seconds, if a part of the run measures writes."""
        if parts == ["reads"]:
            return
        for system in list(systems):
            warm_s = WARM_FIRST_S.get(system.name, 2.0)
            with self.failing(system, systems, "warm-up"):
                self.load(system, job="writes", connections=CONNECTIONS, warm_s=warm_s, measure_s=0.5)

    def rounds(self, systems: list[System], parts: list[str], numbers: range) -> None:
        """In each round, measure each part in each system once; the order of systems is random."""
        for round_ in numbers:
            for part in parts:
                for system in self.order.sample(systems, len(systems)):
                    with self.failing(system, systems, part):
                        self.measure(part, system, round_)

    @contextlib.contextmanager
    def failing(self, system: System, systems: list[System], part: str) -> Iterator[None]:
        """Print and record a failed measurement; from now on, leave out a system that does not recover."""
        try:
            yield
        except Unhealthy as error:
            self.failures.append(f"{part}, {error}")
            print(f"FAILED {part}, {error}", flush=True)
            try:
                system.wait_healthy()
            except Unhealthy as still:
                systems.remove(system)
                print(f"left out from now on: {still}", flush=True)


def _topics_for(size: int) -> int:
    """Return the smallest number of topics that makes a registration's body at least ``size`` bytes long."""
    small, big = (RemotingWire(key=0, topics=topics, timestamp_ms=10**12).body_size for topics in (10, 110))
    return 10 + -(-(size - small) * 100 // (big - small))


def _set_freshness(system: RouteKeeper, freshness: str) -> None:
    """Set ``routeFreshness`` on all members by request 318.

    Raises:
        Unhealthy: If a member refuses.
    """
    body = f"routeFreshness={freshness}\n".encode()
    with BlockingClient() as client:
        answers = [
            client.invoke(
                addr, RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body), timeout_s=5
            )
            for addr in system.clients
        ]
    for answer in answers:
        if answer.code:
            raise Unhealthy(f"{system.name} refused routeFreshness={freshness}: {answer.remark}")


def _terminated(number: int, stack_frame: object) -> None:
    # Raise an exception in the signal handler, so that the members are stopped as at the normal end.
    raise SystemExit(f"ended by signal {number}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of measurements of each system (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of each measurement in s (default 2)"
    )
    parser.add_argument("--parts", help=f"comma-separated parts: {','.join(PARTS)} (default all)")
    parser.add_argument("--only", help=f"comma-separated systems: {','.join(FACTORIES)} (default all)")
    parser.add_argument(
        "--python",
        default="",
        metavar="COMMAND",
        help="run our members (of TREE with --against) by this command; {index} is the member",
    )
    parser.add_argument("--data", type=Path, help="folder on the disk to use (default: a temporary one)")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="TREE",
        help=f"compare {OURS} of this tree and of TREE, a checkout of another commit; all parts except "
        "reads; groups start again in each round",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the raw samples to this file")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(FACTORIES)
    if arguments.against is not None:
        if not (arguments.against / "nameserver" / "__main__.py").is_file():
            parser.error(f"{arguments.against} is no checkout: it has no nameserver/__main__.py")
        if arguments.only:
            parser.error("--against does not go with --only")
    known_parts = PARTS if arguments.against is None else AGAINST
    parts = arguments.parts.split(",") if arguments.parts else list(known_parts)
    signal.signal(signal.SIGTERM, _terminated)
    for word, known in [*((name, FACTORIES) for name in names), *((part, known_parts) for part in parts)]:
        if word not in known:
            parser.error(f"{word!r} is none of {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="raft-bench-", dir=arguments.data) as folder:
        bench = Bench(arguments, Path(folder))
        try:
            _measure(bench, names, parts)
        except Unhealthy as error:
            _print(bench)
            raise SystemExit(f"\nunhealthy, the rest is not measured: {error}") from None
        _print(bench)
        if bench.failures:
            raise SystemExit(
                "\nfailures\n" + "\n".join(failure.splitlines()[0] for failure in bench.failures)
            )


def _measure(bench: Bench, names: list[str], parts: list[str]) -> None:
    arguments = bench.arguments
    disk = fdatasync_ms(bench.root)
    load, p50, p99 = os.getloadavg()[0], percentile(disk, 0.5), percentile(disk, 0.99)
    sizes = {
        topics: RemotingWire(key=0, topics=topics, timestamp_ms=10**12).body_size
        for topics in (TOPICS_SMALL, bench.topics_large)
    }
    bench.samples.append(
        {
            "part": "conditions",
            "system": "",
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "python": interpreter.describe(interpreter.about()),
            "load": load,
            "fdatasync_ms_p50": p50,
            "fdatasync_ms_p99": p99,
            "registration_bytes": sizes,
        }
    )
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, {interpreter.said()}\nload {load:.1f};"
        f" 2 KB appended and fdatasync'ed in {p50:.2f} ms (p50), {p99:.2f} ms (p99); registrations of "
        + " and ".join(f"{size:,} bytes ({topics} topics)" for topics, size in sizes.items()),
        flush=True,
    )
    if arguments.against is not None:
        bench.against(parts)
        return
    with contextlib.ExitStack() as stack:
        systems: list[System] = []
        missing = []
        for name in names:
            try:
                systems.append(bench.make(name))
            except Missing as error:
                missing.append(str(error))
        if missing:
            print(f"skipped: {'; '.join(missing)}")
        for system in systems:
            bench.start(system, stack)
        bench.warm_up(systems, parts)
        bench.rounds(systems, parts, range(arguments.rounds))


def _print(bench: Bench) -> None:
    for line in tables(bench.samples):
        print(line)
    aims = list(targets(bench.samples))
    if aims:
        print("\ntargets")
        for line in aims:
            print(line)
    bench.save()


if __name__ == "__main__":
    main()
