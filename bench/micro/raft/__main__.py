"""RouteKeeper's raft mode against ZooKeeper 3.8 and etcd 3.4, three members each, in one interleaved run.

    python -m bench.micro.raft [--rounds 3] [--parts ack,writes,...] [--only NAMES] [--json FILE]
    python -m bench.micro.raft --parts failover --only routekeeper-fsync --kills 30
    python -m bench.micro.raft --only routekeeper-fsync --hold 20 [--python 'PROFILER {index}']
    python -m bench.micro.raft --elections 20
    python -m bench.micro.raft --against TREE --rounds 16 [--parts ack,writes]

README.md in the folder above says what is measured and how, and has the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.micro.raft.figures import percentile
from bench.micro.raft.load import HEARTBEAT_S, Plan
from bench.micro.raft.remoting_wire import RemotingWire
from bench.micro.raft.report import OTHER, OURS, tables, targets
from bench.micro.raft.systems import FACTORIES, MEMBERS, Missing, RouteKeeper, System, Unhealthy, fdatasync_ms
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.transport.blocking import BlockingClient

PARTS: Final = ("ack", "writes", "visible", "ack-large", "writes-large", "reads", "failover", "idle")
#: What is asked of another tree beside this one.
AGAINST: Final = ("ack", "writes", "visible", "ack-large", "writes-large")
CONNECTIONS: Final = 64
VALUE_SIZES: Final = {"small": 200, "large": 20_000}
TOPICS_SMALL: Final = 10
BROKERS_IDLE: Final = 300
#: Kills of each leader in a run of everything; 30 of ours are for a run of their own.
KILLS: Final = 5
#: A JVM compiles what it runs often: it gets its time before it is measured first.
WARM_FIRST_S: Final = {"zookeeper": 15.0}
#: What a load has left behind (brokers gone, sessions closed) is over by then.
SETTLE_S: Final = 0.5


class Bench:
    """Started systems and what was measured of them."""

    def __init__(self, arguments: argparse.Namespace, root: Path) -> None:
        self.arguments = arguments
        self.root = root
        self.samples: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.order = random.Random(arguments.seed)
        self.topics_large = _topics_for(VALUE_SIZES["large"])

    def make(self, name: str, label: str = "") -> System:
        folder = self.root / (name + label)
        if self.arguments.against is not None:
            tree = self.arguments.against if name == OTHER else Path(__file__).parents[3]
            system = RouteKeeper(folder, durability="fsync", interpreter=_interpreter_of(tree))
            system.name = name
            return system
        if name.startswith("routekeeper-"):
            return RouteKeeper(
                folder, durability=name.removeprefix("routekeeper-"), interpreter=self.arguments.python
            )
        return FACTORIES[name](folder)

    def load(self, system: System, **plan: Any) -> dict[str, Any]:
        """Run one load process; return its figures.

        Raises:
            Unhealthy: If it failed, or if the cluster is not whole when it starts.
        """
        system.wait_healthy()
        figures = _figures(system, _run(_plan(system, **plan)))
        time.sleep(SETTLE_S)
        return figures

    def record(self, part: str, system: System, round_: int, figures: dict[str, Any]) -> None:
        sample = {"part": part, "system": system.name, "round": round_, "load": os.getloadavg()[0], **figures}
        self.samples.append(sample)
        self.save()
        shown = " ".join(f"{k}={v:.4g}" for k, v in figures.items() if isinstance(v, float))
        print(f"{part} {system.name} round {round_ + 1}: {shown}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Write what there is so far, so that a run that is broken off is not lost."""
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
                # One in flight, by a connection to each member in turn: a leader and a follower differ.
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
            case "reads":
                figures = self._reads(system)
                if not figures:
                    return
            case _:
                raise AssertionError(part)
        self.record(part, system, round_, figures)

    def _reads(self, system: System) -> dict[str, Any]:
        """Read at all members, stale and linearizable, half a measure each, in random order."""
        found: dict[str, Any] = {}
        if system.kind == "jute":
            return found  # its reads are stale; sync and read is another operation
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
                linearizable=linearizable,
            )
            found |= {f"{word}_{key}": value for key, value in figures.items()}
        if isinstance(system, RouteKeeper):
            _set_freshness(system, "stale")
        return found

    def kill_leader(self, system: System, round_: int) -> None:
        """Kill the leader under load, note when the next write was acknowledged, bring it back."""
        system.wait_healthy()
        leader = system.leader()
        assert leader is not None, "a healthy cluster has a leader"
        survivors = [addr for index, addr in enumerate(system.clients) if index != leader]
        plan = _plan(system, job="failover", connections=1, warm_s=0.5, measure_s=0.0)
        plan.members, plan.victim, plan.pids = survivors, system.pid(leader), []
        output = _run(plan)
        system.reap(leader)
        self.record("failover", system, round_, _figures(system, output))
        system.launch(leader)
        system.wait_healthy()

    def idle(self, system: RouteKeeper) -> None:
        """Measure what 300 brokers of 10 topics cost that only send their heartbeats."""
        plan = _plan(
            system,
            job="heartbeats",
            connections=BROKERS_IDLE,
            warm_s=5.0,
            measure_s=self.arguments.idle_seconds,
        )
        with _process(plan) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"steady":
                raise Unhealthy(f"{system.name}: the brokers could not register")
            counts = [(time.monotonic(), raft_bytes(system))]
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            counts.append((time.monotonic(), raft_bytes(system)))
            process.stdin.write(b"\n")
            figures = _figures(system, process.communicate()[0])
        (began, before), (ended, after) = counts
        seconds = ended - began
        per_member: list[float | None] = [None] * MEMBERS
        if before is not None and after is not None:
            per_member = [(b - a) / seconds / 1e3 for a, b in zip(before, after, strict=True)]
        figures |= {
            "brokers": BROKERS_IDLE,
            "roles": [system.status(index).get("role") for index in range(MEMBERS)],
            "cpu_share": [used / figures["seconds"] for used in figures["server_cpu_s"]],
            "raft_kb_per_s": per_member,
        }
        self.record("idle", system, 0, figures)

    def elections(self, system: RouteKeeper, *, minutes: float, busy: bool) -> None:
        """Count new terms and changes of leader over some minutes, idle or with both cores busy."""
        load = "64 writers and 64 readers" if busy else "idle"
        loads: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as stack:
            if busy:
                for job in ("writes", "reads"):
                    plan = _plan(
                        system, job=job, connections=CONNECTIONS, warm_s=1.0, measure_s=60.0, report=60.0
                    )
                    process = stack.enter_context(_process(plan))
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
        """Keep writes in flight and say every second what they do; until time is up, or Ctrl-C."""
        print(f"{system.name}: members " + ", ".join(f"{i}: pid {pid}" for i, pid in enumerate(system.pids)))
        print(f"clients {', '.join(system.clients)}; leader {system.leader()}", flush=True)
        count = self.arguments.in_flight
        plan = _plan(system, job="writes", connections=count, warm_s=1.0, measure_s=1.0, report=1.0)
        with _process(plan) as process, contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            try:
                process.wait(seconds or None)
            finally:
                process.kill()

    # -- the whole -----------------------------------------------------------------------------------

    def against(self, parts: list[str]) -> None:
        """Measure this tree's group and another tree's, both started anew for each round: where a process has
        its memory makes a difference of some percent.
        """
        for round_ in range(self.arguments.rounds):
            with contextlib.ExitStack() as stack:
                systems = [self.make(name, f"-{round_}") for name in (OURS, OTHER)]
                for system in systems:
                    stack.callback(system.stop)
                    system.start()
                self.rounds(systems, parts, range(round_, round_ + 1))

    def rounds(self, systems: list[System], parts: list[str], numbers: range) -> None:
        """Measure each part of each system in turn, in another order each round."""
        if set(parts) & {"ack", "writes", "visible", "ack-large", "writes-large"}:
            for system in list(systems):
                warm_s = WARM_FIRST_S.get(system.name, 2.0) * self.arguments.warm
                with self.failing(system, systems, "warm-up"):
                    self.load(system, job="writes", connections=CONNECTIONS, warm_s=warm_s, measure_s=0.1)
        for round_ in numbers:
            for part in parts:
                for system in self.order.sample(systems, len(systems)):
                    with self.failing(system, systems, part):
                        self.measure(part, system, round_)

    def kills(self, systems: list[System]) -> None:
        """Kill the leader of each system in turn, as often as asked."""
        for round_ in range(self.arguments.kills):
            for system in self.order.sample(systems, len(systems)):
                with self.failing(system, systems, "failover"):
                    self.kill_leader(system, round_)

    @contextlib.contextmanager
    def failing(self, system: System, systems: list[System], part: str) -> Iterator[None]:
        """Say and count a failure, and go on; a system that does not get whole again is left out."""
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


def raft_bytes(system: RouteKeeper) -> list[int] | None:
    """Return, by member, the payload that it has sent and received on its raft connections so far.

    The kernel counts them for each TCP connection (TCP_INFO: bytes_acked without retransmissions, and
    bytes_received); ``ss`` shows them. None if there is no ``ss``.
    """
    if shutil.which("ss") is None:
        return None
    ports = {addr.rpartition(":")[2] for addr in system.raft}
    lines = subprocess.run(
        ["ss", "-tinpOH"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    totals = dict.fromkeys(system.pids, 0)
    for line in lines:
        words = line.split()
        if len(words) < 5 or not {words[3].rpartition(":")[2], words[4].rpartition(":")[2]} & ports:
            continue
        owner = re.search(r"pid=(\d+)", line)
        if owner and int(owner[1]) in totals:
            counted = re.findall(r"\bbytes_(?:acked|received):(\d+)", line)
            totals[int(owner[1])] += sum(map(int, counted))
    return list(totals.values())


def _topics_for(size: int) -> int:
    """Return how many topics a broker needs for a registration body of at least ``size`` bytes."""
    small, big = (RemotingWire(key=0, topics=topics, timestamp_ms=10**12).body_size for topics in (10, 110))
    return 10 + -(-(size - small) * 100 // (big - small))


def _set_freshness(system: RouteKeeper, freshness: str) -> bool:
    """Set ``routeFreshness`` on all members by request 318; False if one refuses."""
    body = f"routeFreshness={freshness}\n".encode()
    with BlockingClient() as client:
        answers = [
            client.invoke(
                addr, RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body), timeout_s=5
            )
            for addr in system.clients
        ]
    return not any(answer.code for answer in answers)


def _plan(system: System, **plan: Any) -> Plan:
    return Plan(kind=system.kind, members=system.clients, pids=system.pids, **plan)


@contextlib.contextmanager
def _process(plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.micro.raft.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    with process:
        try:
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            process.stdin.flush()
            yield process
        except BaseException:
            process.kill()
            raise


def _run(plan: Plan) -> bytes:
    with _process(plan) as process:
        return process.communicate()[0]


def _figures(system: System, output: bytes) -> dict[str, Any]:
    lines = output.splitlines()
    figures: dict[str, Any] = json.loads(lines[-1]) if lines else {"failure": "the load process died"}
    if "failure" in figures:
        tails = "\n".join(system.log_tail(index) for index in range(MEMBERS))
        raise Unhealthy(f"{system.name}: {figures['failure']}\n{tails}")
    return figures


def _interpreter_of(tree: Path) -> str:
    """This Python, that imports from another checkout."""
    return f"env {shlex.quote(f'PYTHONPATH={tree.resolve()}')} {shlex.quote(sys.executable)}"


def _terminated(number: int, stack_frame: object) -> None:
    raise SystemExit(f"ended by signal {number}")  # by the way that stops the members


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="times that each system is measured (default 3)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each (default 2)")
    parser.add_argument("--parts", help=f"by comma, of {','.join(PARTS)} (default all)")
    parser.add_argument(
        "--only",
        help=f"systems by comma, of {','.join(FACTORIES)} (default all; {OURS} for --hold, --elections)",
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, help=f"leaders killed of each system (default {KILLS})"
    )
    parser.add_argument("--idle-seconds", type=float, default=HEARTBEAT_S, help="default 30")
    parser.add_argument(
        "--warm", type=float, default=1.0, help="factor on the first warm-up: 2 s, 15 s for a JVM"
    )
    parser.add_argument(
        "--hold",
        type=float,
        nargs="?",
        const=0.0,
        metavar="SECONDS",
        help="only keep writes in flight on each system of --only in turn; until Ctrl-C without a number",
    )
    parser.add_argument(
        "--in-flight",
        type=int,
        default=CONNECTIONS,
        help=f"writes of --hold in flight (default {CONNECTIONS})",
    )
    parser.add_argument(
        "--elections", type=float, metavar="MINUTES", help="only count elections, so long idle and busy"
    )
    parser.add_argument(
        "--load",
        choices=("idle", "busy", "both"),
        default="both",
        help="for --elections (default %(default)s)",
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="COMMAND",
        help="runs our members instead of this Python; {index}: member",
    )
    parser.add_argument(
        "--data", type=Path, help="folder on the disk to use (default: that of temporary files)"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="TREE",
        help=f"only {OURS} of this tree and of TREE, a checkout of another commit; parts ack, writes, "
        "visible, ack-large and writes-large, groups started anew each round",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write raw samples there")
    arguments = parser.parse_args()
    alone = arguments.hold is not None or arguments.elections is not None
    names = arguments.only.split(",") if arguments.only else [OURS] if alone else list(FACTORIES)
    if arguments.against is not None:
        if not (arguments.against / "nameserver" / "__main__.py").is_file():
            parser.error(f"{arguments.against} is no checkout: it has no nameserver/__main__.py")
        if alone or arguments.only or arguments.python:
            parser.error("--against goes with none of --only, --python, --hold, --elections")
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
            "python": platform.python_version(),
            "load": load,
            "fdatasync_ms_p50": p50,
            "fdatasync_ms_p99": p99,
            "registration_bytes": sizes,
        }
    )
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f};"
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
            print(f"skipped: {', '.join(missing)}: install the Debian packages zookeeper and etcd-server")
        if arguments.elections is None and arguments.hold is None and set(parts) == {"idle"}:
            systems = []
        for system in systems:
            stack.callback(system.stop)
            system.start()
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
        bench.rounds(
            systems, [part for part in parts if part not in ("failover", "idle")], range(arguments.rounds)
        )
        if "failover" in parts:
            bench.kills(systems)
    if "idle" in parts and OURS in names:
        # By itself and anew: 900 connections, and nothing else on the machine.
        system = bench.make(OURS, "-idle")
        assert isinstance(system, RouteKeeper)
        with contextlib.ExitStack() as stack:
            stack.callback(system.stop)
            system.start()
            bench.idle(system)


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
