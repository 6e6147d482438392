"""Compares RouteKeeper's raft mode with ZooKeeper 3.9: three members each, measured in turn in one run.

    python -m routekeeper.bench.micro.raft [--rounds 3] [--parts ack,writes,...] [--only NAMES] [--json FILE]
    python -m routekeeper.bench.micro.raft --parts failover,failover-stop [--timers equal] [--kills 30]
    python -m routekeeper.bench.micro.raft --parts idle [--timers equal] [--idle-seconds 60]
    python -m routekeeper.bench.micro.raft --only routekeeper-fsync --hold 20 [--python 'PROFILER {index}']
    python -m routekeeper.bench.micro.raft --elections 20
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
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from routekeeper.bench import interpreter
from routekeeper.bench.figures import percentile
from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.micro.raft.counters import Connection, moved, payloads
from routekeeper.bench.micro.raft.loading import figures_of, load_process, plan_for, run
from routekeeper.bench.micro.raft.report import OTHER, OURS, tables, targets
from routekeeper.bench.micro.raft.systems import FACTORIES, MEMBERS, RouteKeeper, System, fdatasync_ms
from routekeeper.bench.micro.raft.timers import SERIES
from routekeeper.bench.micro.trees import THIS, nameserver_of
from routekeeper.bench.wires.remoting_wire import RemotingWire
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

PARTS: Final = (
    *("ack", "writes", "visible", "watch", "watch-many", "poll", "ack-large", "writes-large", "reads"),
    *("failover", "failover-stop", "idle"),
)
#: Maps each part of a run that kills or stops the leader to the signal that it sends to the leader.
ENDS: Final = {"failover": signal.SIGKILL, "failover-stop": signal.SIGSTOP}
#: Parts of a run that also work with ``--against``, the comparison with another checkout.
AGAINST: Final = ("ack", "writes", "visible", "ack-large", "writes-large")
CONNECTIONS: Final = 64
VALUE_SIZES: Final = {"small": 200, "large": 20_000}
TOPICS_SMALL: Final = 10
BROKERS_IDLE: Final = 300
#: Maps a part of a run to the number of clients at each member that watch, or poll in the part ``poll``.
WATCHERS: Final = {"watch": 1, "watch-many": 100, "poll": 100}
#: Default of ``--kills``: number of times that each signal ends each system's leader. In a run that measures
#: only failovers, set ``--kills 30``.
KILLS: Final = 5
#: Pause in s before idle costs are measured, because a JVM still compiles code for some time after its start.
IDLE_SETTLE_S: Final = 20.0
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
        self.topics_large = _topics_for(VALUE_SIZES["large"])
        self.timers = SERIES[arguments.timers]

    def make(self, name: str, label: str = "") -> System:
        folder = self.root / (name + label)
        if self.arguments.against is not None:
            tree, python = THIS, ""
            if name == OTHER:
                tree, python = self.arguments.against, self.arguments.python
            interpreter = _interpreter_of(tree, python or shlex.quote(sys.executable))
            program = nameserver_of(tree)
            system = RouteKeeper(
                folder, self.timers, durability="fsync", interpreter=interpreter, program=program
            )
            system.name = name
            return system
        if name.startswith("routekeeper-"):
            return RouteKeeper(
                folder,
                self.timers,
                durability=name.removeprefix("routekeeper-"),
                interpreter=self.arguments.python,
            )
        return FACTORIES[name](folder, self.timers)

    def start(self, system: System, stack: contextlib.ExitStack) -> None:
        """Start the system, and print its version and timers; closing ``stack`` stops the system."""
        stack.callback(system.stop)
        system.start()
        version, borne = system.version(), self.timers.borne_ms(system.name)
        self.samples.append({"part": "version", "system": system.name, "version": version, "borne_ms": borne})
        print(
            f"{system.name} {version}: a leader's silence is borne for {borne[0]} to {borne[1]} ms",
            flush=True,
        )

    def load(self, system: System, **plan: Any) -> dict[str, Any]:
        """Run one load process; return the values that it has measured.

        Raises:
            Unhealthy: If the load failed, or if the cluster is not healthy before the load.
        """
        system.wait_healthy()
        figures = figures_of(system, run(plan_for(system, **plan)))
        time.sleep(SETTLE_S)
        return figures

    def record(self, part: str, system: System, round_: int, figures: dict[str, Any]) -> None:
        sample = {
            "part": part,
            "system": system.name,
            "round": round_,
            "timers": self.timers.series,
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
        size = "large" if part.endswith("-large") else "small"
        sizes = {
            "value_size": VALUE_SIZES[size],
            "topics": self.topics_large if size == "large" else TOPICS_SMALL,
        }
        seconds = self.arguments.seconds
        match part:
            case "ack" | "ack-large":
                # Send requests to the members in turn, with one request in flight: a leader and a follower
                # need different times.
                figures = self.load(
                    system, job="one", connections=MEMBERS, warm_s=0.4, measure_s=seconds, **sizes
                )
            case "writes" | "writes-large":
                figures = self.load(
                    system, job="writes", connections=CONNECTIONS, warm_s=0.7, measure_s=seconds, **sizes
                )
            case "visible":
                figures = self.load(
                    system, job="visible", connections=1, warm_s=0.4, measure_s=seconds, **sizes
                )
            case "watch" | "watch-many":
                figures = self.load(
                    system,
                    job="watch",
                    connections=1,
                    warm_s=0.6,
                    measure_s=seconds,
                    watched=system.watched,
                    watchers=WATCHERS[part],
                    **sizes,
                )
            case "poll":
                if system.name != OURS or round_:
                    return  # measure once: the result depends on the polling period alone
                figures = self.load(
                    system,
                    job="poll",
                    connections=1,
                    warm_s=0.5,
                    measure_s=0.0,
                    watchers=WATCHERS[part],
                    **sizes,
                )
            case "reads":
                figures = self._reads(system)
                if not figures:
                    return
            case _:
                raise AssertionError(part)
        self.record(part, system, round_, figures)

    def _reads(self, system: System) -> dict[str, Any]:
        """Measure stale and linearizable reads at all members, one kind after the other, in random order."""
        found: dict[str, Any] = {}
        if system.kind == "jute":
            # Omit ZooKeeper: its plain reads are stale, and its linearizable read needs two operations.
            return found
        for linearizable in self.order.sample((False, True), 2):
            word = "linearizable" if linearizable else "stale"
            if isinstance(system, RouteKeeper) and not _set_freshness(system, word):
                print(f"{system.name}: skipped: this build refuses routeFreshness={word}")
                continue
            figures = self.load(
                system,
                job="reads",
                connections=CONNECTIONS,
                warm_s=0.4,
                measure_s=self.arguments.seconds / 2,
            )
            found |= {f"{word}_{key}": value for key, value in figures.items()}
        if isinstance(system, RouteKeeper):
            _set_freshness(system, "stale")
        return found

    def end_leader(self, part: str, system: System, round_: int) -> None:
        """Kill or stop the leader, measure the time to the next acknowledged write, restart the leader."""
        system.wait_healthy()
        leader = system.leader()
        assert leader is not None, "a healthy cluster has a leader"
        survivors = [addr for index, addr in enumerate(system.clients) if index != leader]
        plan = plan_for(system, job="failover", connections=1, warm_s=0.5, measure_s=0.0)
        plan.members, plan.victim, plan.pids, plan.by = survivors, system.pid(leader), [], ENDS[part]
        output = run(plan)
        system.bring_back(leader, stopped=plan.by == signal.SIGSTOP)
        self.record(part, system, round_, figures_of(system, output))
        system.wait_healthy()

    def idle(self, system: System) -> None:
        """Measure the cost of 300 brokers with 10 topics each, which only send heartbeats."""
        before_mb = system.resident_mb()
        plan = plan_for(
            system,
            job="heartbeats",
            connections=BROKERS_IDLE,
            warm_s=IDLE_SETTLE_S,
            measure_s=self.arguments.idle_seconds,
            lease_s=self.timers.lease_s,
        )
        with load_process(plan) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            first = process.stdout.readline()
            if first.strip() != b"steady":
                figures_of(system, first)
                raise Unhealthy(f"{system.name}: the brokers could not be listed")
            leader = system.leader()
            counts = [(time.monotonic(), _payloads())]
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            counts.append((time.monotonic(), _payloads()))
            resident_mb = system.resident_mb()
            process.stdin.write(b"\n")
            figures = figures_of(system, process.communicate()[0])
        (began, payloads_before), (ended, payloads_after) = counts
        seconds = ended - began
        figures |= {
            "brokers": BROKERS_IDLE,
            "leader_changed": system.leader() != leader,
            "lease_s": self.timers.lease_s,
            "roles": ["leader" if index == leader else "follower" for index in range(MEMBERS)],
            "cpu_share": [used / figures["seconds"] for used in figures["server_cpu_s"]],
            "resident_mb": resident_mb,
            "resident_mb_before": before_mb,
        }
        if payloads_before is not None and payloads_after is not None:
            both = moved(
                payloads_before,
                payloads_after,
                pids=system.pids,
                member_ports=_ports(system.peers),
                client_ports=_ports(system.clients),
            )
            for side, counted in both.items():
                figures[f"{side}_kb_per_s"] = [count / seconds / 1e3 for count in counted]
        self.record("idle", system, 0, figures)

    def elections(self, system: RouteKeeper, *, minutes: float, busy: bool) -> None:
        """Count the new terms and the changes of leader during some minutes.

        Args:
            busy: True to run 64 writers and 64 readers in this time; False to leave the members idle.
        """
        load = "64 writers and 64 readers" if busy else "idle"
        loads: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            if busy:
                for job in ("writes", "reads"):
                    plan = plan_for(
                        system, job=job, connections=CONNECTIONS, warm_s=1.0, measure_s=60.0, report=60.0
                    )
                    process = stack.enter_context(load_process(plan))
                    stack.callback(process.kill)
                    loads.append(process)
            before = [system.status(index) for index in range(MEMBERS)]
            leader, changes = system.leader(), 0
            deadline = time.monotonic() + minutes * 60
            while time.monotonic() < deadline:
                time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
                found = system.leader()
                if found is not None and found != leader:
                    leader, changes = found, changes + 1
                for process in loads:
                    if process.poll() is not None:
                        raise Unhealthy(f"{system.name}: {process.communicate()[0].decode()}")
            after = [system.status(index) for index in range(MEMBERS)]
        terms = max(one["term"] for one in after) - max(one["term"] for one in before)
        figures = {"load": load, "minutes": minutes, "terms": terms, "leaders": changes}
        self.record("elections", system, 0, figures)

    def hold(self, system: System, seconds: float) -> None:
        """Keep writes in flight and print their rate every second, for ``seconds`` or until Ctrl-C."""
        print(f"{system.name}: members " + ", ".join(f"{i}: pid {pid}" for i, pid in enumerate(system.pids)))
        print(f"clients {', '.join(system.clients)}; leader {system.leader()}", flush=True)
        count = self.arguments.in_flight
        plan = plan_for(system, job="writes", connections=count, warm_s=1.0, measure_s=1.0, report=1.0)
        with load_process(plan) as process, contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            try:
                process.wait(seconds or None)
            finally:
                process.kill()

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
        if set(parts) <= {"reads", "poll", "idle"}:
            return
        for system in list(systems):
            warm_s = WARM_FIRST_S.get(system.name, 2.0) * self.arguments.warm
            with self.failing(system, systems, "warm-up"):
                self.load(system, job="writes", connections=CONNECTIONS, warm_s=warm_s, measure_s=0.5)

    def rounds(self, systems: list[System], parts: list[str], numbers: range) -> None:
        """In each round, measure each part in each system once; the order of systems is random."""
        for round_ in numbers:
            for part in parts:
                for system in self.order.sample(systems, len(systems)):
                    with self.failing(system, systems, part):
                        self.measure(part, system, round_)

    def ends(self, part: str, systems: list[System]) -> None:
        """Kill or stop the leader of each system ``--kills`` times; the order of systems is random."""
        for round_ in range(self.arguments.kills):
            for system in self.order.sample(systems, len(systems)):
                with self.failing(system, systems, part):
                    self.end_leader(part, system, round_)

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


def _payloads() -> dict[Connection, int] | None:
    """Return the bytes that each TCP connection has transferred since it was opened.

    Return None if the program ``ss`` of iproute2 is missing.
    """
    if shutil.which("ss") is None:
        return None
    lines = subprocess.run(["ss", "-tinpOH"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return payloads(lines.splitlines())


def _ports(addresses: Collection[str]) -> set[str]:
    return {addr.rpartition(":")[2] for addr in addresses}


def _topics_for(size: int) -> int:
    """Return the smallest number of topics that makes a registration's body at least ``size`` bytes long."""
    small, big = (RemotingWire(key=0, topics=topics, timestamp_ms=10**12).body_size for topics in (10, 110))
    return 10 + -(-(size - small) * 100 // (big - small))


def _set_freshness(system: RouteKeeper, freshness: str) -> bool:
    """Set ``routeFreshness`` on all members by request 318; return False if a member refuses."""
    body = f"routeFreshness={freshness}\n".encode()
    with BlockingClient() as client:
        answers = [
            client.invoke(
                addr, RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body), timeout_s=5
            )
            for addr in system.clients
        ]
    return not any(answer.code for answer in answers)


def _interpreter_of(tree: Path, python: str) -> str:
    """Return the command of a Python that imports modules from another checkout."""
    return f"env {shlex.quote(f'PYTHONPATH={tree.resolve()}')} {python}"


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
    parser.add_argument(
        "--only",
        help=f"comma-separated systems: {','.join(FACTORIES)} (default all; {OURS} for --hold, --elections)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=KILLS,
        help=f"number of times that each signal ends each leader (default {KILLS})",
    )
    parser.add_argument(
        "--idle-seconds", type=float, default=30.0, help="length of the part idle in s (default 30)"
    )
    parser.add_argument(
        "--timers",
        choices=tuple(SERIES),
        default="defaults",
        help="timers: each system's own, or equal election timeouts, heartbeats and leases"
        " (default %(default)s)",
    )
    parser.add_argument(
        "--warm",
        type=float,
        default=1.0,
        help="factor for the first warm-up, which takes 2 s, or 15 s for a JVM",
    )
    parser.add_argument(
        "--hold",
        type=float,
        nargs="?",
        const=0.0,
        metavar="SECONDS",
        help="only keep writes in flight on each system of --only; without a number until Ctrl-C",
    )
    parser.add_argument(
        "--in-flight",
        type=int,
        default=CONNECTIONS,
        help=f"number of writes in flight with --hold (default {CONNECTIONS})",
    )
    parser.add_argument(
        "--elections",
        type=float,
        metavar="MINUTES",
        help="only count elections, for this time with and without load",
    )
    parser.add_argument(
        "--load",
        choices=("idle", "busy", "both"),
        default="both",
        help="load for --elections (default %(default)s)",
    )
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
        help=f"compare {OURS} of this tree and of TREE, a checkout of another commit; parts ack, writes, "
        "visible, ack-large and writes-large; groups start again in each round",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the raw samples to this file")
    arguments = parser.parse_args()
    alone = arguments.hold is not None or arguments.elections is not None
    names = arguments.only.split(",") if arguments.only else [OURS] if alone else list(FACTORIES)
    if arguments.against is not None:
        if not (arguments.against / "nameserver" / "__main__.py").is_file():
            parser.error(f"{arguments.against} is no checkout: it has no nameserver/__main__.py")
        if alone or arguments.only:
            parser.error("--against goes with none of --only, --hold, --elections")
    parts = (arguments.parts or ",".join(PARTS if arguments.against is None else AGAINST)).split(",")
    signal.signal(signal.SIGTERM, _terminated)
    known_parts = PARTS if arguments.against is None else AGAINST
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
        names = [system.name for system in systems]
        if arguments.elections is None and arguments.hold is None and set(parts) == {"idle"}:
            systems = []
        for system in systems:
            bench.start(system, stack)
        if arguments.hold is not None:
            for system in systems:
                bench.hold(system, arguments.hold)
            return
        if arguments.elections is not None:
            for system in systems:
                if isinstance(system, RouteKeeper):
                    for busy in {"idle": (False,), "busy": (True,), "both": (False, True)}[arguments.load]:
                        bench.elections(system, minutes=arguments.elections, busy=busy)
            return
        bench.warm_up(systems, parts)
        rounds = [part for part in parts if part not in (*ENDS, "idle")]
        bench.rounds(systems, rounds, range(arguments.rounds))
        for part in ENDS:
            if part in parts:
                bench.ends(part, systems)
    for name in names if "idle" in parts else ():
        # Start new processes, and measure no other part at the same time: this part needs 900 connections,
        # and other work would disturb the result.
        with contextlib.ExitStack() as stack:
            system = bench.make(name, "-idle")
            try:
                bench.start(system, stack)
                bench.idle(system)
            except Unhealthy as error:
                bench.failures.append(f"idle, {error}")
                print(f"FAILED idle, {error}", flush=True)


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
