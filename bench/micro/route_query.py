"""Measures route queries per second, and per second of server CPU time, for several servers.

    python -m routekeeper.bench.micro.route_query [--rounds 3] [--seconds 3] [--unlike] [--json FILE]

The servers are our nameserver, Apache's nameserver and echo servers. All run at the same time, but only one
of them gets requests at a time. Each round queries all servers one after the other, in random order. The load
is a closed loop over 16 connections, with 1 and 16 requests in flight on each. Metrics are on. In raft mode,
the benchmark queries the leader of three members and a follower. There are two workloads:

- 100 topics, each on 10 brokers;
- 1,000 topics on 10 brokers, queried at random in three dialects, each on a third of the connections: quoted
  keys, unquoted keys, and quoted keys with binary headers.

There are two reference servers. ``echo`` answers each frame with the same frame. ``echo-route`` answers with
the bytes of a route, so that it sends as many bytes as a nameserver. README.md in this folder has the
figures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from routekeeper.bench import interpreter
from routekeeper.bench.arms.apache import JARS, RELEASE
from routekeeper.bench.arms.servers import java, java_missing, status_of
from routekeeper.bench.micro.load import Plan
from routekeeper.bench.ports import free_ports
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.transport.blocking import BlockingClient

BROKERS: Final = 10
CONNECTIONS: Final = 16
DEPTHS: Final = (1, 16)
START_S: Final = 60.0
NAMESRV_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
JVM_FLAGS: Final = (
    "-server",
    "-Xms512m",
    "-Xmx512m",
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The topics that queries ask for, and the forms of the queries.

    Attributes:
        mixed: True if the connections use different forms, see :class:`routekeeper.bench.micro.load.Plan`.
    """

    name: str
    topics: tuple[str, ...]
    mixed: bool
    fresh: bool = False


WORKLOADS: Final = (
    Workload(name="100 topics", topics=tuple(f"hot-{i:04d}" for i in range(100)), mixed=False),
    Workload(name="1000 topics, 3 dialects", topics=tuple(f"wide-{i:04d}" for i in range(1000)), mixed=True),
)


@dataclass(kw_only=True)
class Target:
    """One measured server."""

    name: str
    addr: str
    pid: int
    check: bool = True
    samples: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)


class Stack(contextlib.ExitStack):
    """A context that starts processes, and ends these processes when the context closes.

    Attributes:
        env: Additional environment variables.
        program: Module of the nameserver to start. A checkout of another commit may have another module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.env: dict[str, str] = {}
        self.program = "routekeeper.nameserver"

    def start(self, command: list[str], folder: Path) -> subprocess.Popen[str]:
        log = self.enter_context((folder / "stderr.txt").open("wb"))
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**os.environ, **self.env},
        )
        self.callback(_stop, process)
        return process


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        match = re.search(pattern, line)
        if match:
            return match
    raise SystemExit(f"{process.args!r} ended with {process.wait()} before it was ready")


def start_echo(stack: Stack, folder: Path, name: str, *arguments: str) -> Target:
    process = stack.start([sys.executable, "-m", "routekeeper.bench.micro.echo", *arguments], folder)
    return Target(name=name, addr=_line(process, r"listen=(\S+)")[1], pid=process.pid, check=False)


def start_independent(stack: Stack, folder: Path, *flags: str) -> Target:
    command = [sys.executable, "-m", stack.program, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = stack.start([*command, "--data", "data", *flags], folder)
    return Target(name="independent", addr=_line(process, r"listen=(\S+)")[1], pid=process.pid)


def start_raft(stack: Stack, folder: Path) -> tuple[list[Target], list[str]]:
    """Start three members; return the leader and a follower, and the addresses of all three members."""
    ports = free_ports(3)
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    members = []
    for port in ports:
        home = folder / str(port)
        home.mkdir()
        command = [
            sys.executable,
            "-m",
            stack.program,
            "--mode",
            "raft",
            "--raft",
            f"127.0.0.1:{port}",
        ]
        command += ["--peers", peers, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", "data"]
        members.append(stack.start(command, home))
    ready = [(member.pid, _line(member, r"listen=(\S+) http=(\S+)")) for member in members]
    deadline = time.monotonic() + START_S
    while True:
        roles = [status_of(match[2]).get("role") for _, match in ready]
        if "leader" in roles and "follower" in roles:
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"raft members have no leader after {START_S:.0f} s: {roles}")
        time.sleep(0.1)
    chosen = []
    for role in ("leader", "follower"):
        pid, match = ready[roles.index(role)]
        chosen.append(Target(name=f"raft {role}", addr=match[1], pid=pid))
    return chosen, [found[1] for _, found in ready]


def start_apache(stack: Stack, folder: Path) -> Target:
    (port,) = free_ports(1)
    (folder / "namesrv.properties").write_text(f"listenPort={port}\n")
    command = [java(), *JVM_FLAGS, f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}"]
    command += ["-cp", JARS.class_path(), NAMESRV_MAIN, "-c", str(folder / "namesrv.properties")]
    process = stack.start(command, folder)
    _line(process, "boot success")
    return Target(name=f"Apache {RELEASE}", addr=f"127.0.0.1:{port}", pid=process.pid)


def register(client: BlockingClient, addrs: list[str], *, unlike: bool) -> None:
    """Register all brokers with all topics over the client's connections, as brokers of RocketMQ 5.3.3 do.

    Args:
        unlike: True to give each topic different numbers of queues, so that all routes have different bytes.
    """
    topics = [topic for workload in WORKLOADS for topic in workload.topics]
    queues = [(10 + n // 40, 10 + n % 40) if unlike else (8, 8) for n in range(len(topics))]
    configs = tuple(
        TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write)
        for topic, (read, write) in zip(topics, queues, strict=True)
    )
    version = DataVersion(timestamp=1_700_000_000_000, counter=1)
    body = encode_register_body(
        RegisterBody(data_version=version, topic_configs=configs, filter_servers=()),
        compressed=False,
        version=479,
    )
    for addr, number in itertools.product(addrs, range(BROKERS)):
        fields = RegisterBrokerFields(
            broker_name=f"broker-{number}",
            broker_addr=f"10.0.0.{number + 1}:10911",
            cluster_name="DefaultCluster",
            ha_server_addr=f"10.0.0.{number + 1}:10912",
            broker_id=0,
            body_crc32=body_crc32(body),
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body)
        answer = client.invoke(addr, request, timeout_s=10)
        if answer.code:
            raise SystemExit(f"{addr} refused a registration: {answer.code} {answer.remark}")


def load(
    target: Target, workload: Workload, depth: int, *, warm_s: float, measure_s: float, seed: int
) -> dict[str, Any]:
    host, _, port = target.addr.rpartition(":")
    plan = Plan(
        host=host,
        port=int(port),
        connections=CONNECTIONS,
        depth=depth,
        topics=list(workload.topics),
        mixed=workload.mixed,
        fresh=workload.fresh,
        pid=target.pid,
        check=target.check,
        warm_s=warm_s,
        measure_s=measure_s,
        seed=seed,
    )
    result = subprocess.run(
        [sys.executable, "-m", "routekeeper.bench.micro.load"],
        input=msgspec.json.encode(plan),
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, Any] = json.loads(result.stdout)
    if figures["failure"]:
        raise SystemExit(f"{target.name}: {figures['failure']}")
    return figures


def rate(sample: dict[str, Any]) -> float:
    return float(sample["answered"]) / float(sample["seconds"])


def per_cpu(sample: dict[str, Any]) -> float:
    return float(sample["answered"]) / float(sample["server_cpu_s"])


def table(targets: list[Target]) -> Iterator[str]:
    """Yield the lines of the result; a cell has the median of the rounds (smallest, largest)."""
    by_name = {target.name: target for target in targets}
    for workload, depth in itertools.product(WORKLOADS, DEPTHS):
        key = (workload.name, depth)
        yield f"\n{workload.name}, {depth} in flight on each of {CONNECTIONS} connections"
        yield (
            f"{'server':<15}{'req/s':>10}{'req per server CPU s':>36}{'x echo':>9}{'x echo-route':>14}"
            f"{'x Apache':>10}{'generator CPU':>15}"
        )
        middle = {
            name: statistics.median(map(per_cpu, target.samples[key]))
            for name, target in by_name.items()
            if key in target.samples
        }
        for name, value in middle.items():
            samples = by_name[name].samples[key]
            spread = sorted(map(per_cpu, samples))
            share = statistics.median(s["generator_cpu_s"] / s["seconds"] for s in samples)
            ratios = [
                f"{value / middle[other]:.2f}" if other in middle and other != name else "-"
                for other in ("echo", "echo-route", f"Apache {RELEASE}")
            ]
            yield (
                f"{name:<15}{statistics.median(map(rate, samples)):>10,.0f}"
                f"{f'{value:,.0f} ({spread[0]:,.0f}..{spread[-1]:,.0f})':>36}"
                f"{ratios[0]:>9}{ratios[1]:>14}{ratios[2]:>10}{share:>15.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all servers (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured time of each case in s (default 3)"
    )
    parser.add_argument("--only", help="names of servers to query, separated by commas")
    parser.add_argument("--unlike", action="store_true", help="give no two topics the same route bytes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the servers' random order (default 1)")
    parser.add_argument("--json", type=Path, help="write the raw samples to this file")
    arguments = parser.parse_args()
    order = random.Random(arguments.seed)
    with Stack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folders = {name: root / name for name in ("echo", "echo-route", "independent", "raft", "apache")}
        for folder in folders.values():
            folder.mkdir()
        independent = start_independent(stack, folders["independent"])
        raft, members = start_raft(stack, folders["raft"])
        targets = [start_echo(stack, folders["echo"], "echo"), independent, *raft]
        addrs = [independent.addr, *members]
        if missing := JARS.missing() or java_missing():
            print(f"Apache's nameserver is skipped: it needs {missing}")
        else:
            apache = start_apache(stack, folders["apache"])
            targets.append(apache)
            addrs.append(apache.addr)
        client = stack.enter_context(BlockingClient())
        register(client, addrs, unlike=arguments.unlike)
        question = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": WORKLOADS[0].topics[0]}
        )
        sample = client.invoke(independent.addr, question)
        (folders["echo-route"] / "answer").write_bytes(sample.with_opaque(100_000_000).encode())
        targets.insert(
            1,
            start_echo(
                stack, folders["echo-route"], "echo-route", "--answer", str(folders["echo-route"] / "answer")
            ),
        )
        if arguments.only:
            targets = [target for target in targets if target.name in arguments.only.split(",")]
        print(
            f"{platform.platform()}, {os.cpu_count()} cores, {interpreter.said()}\n"
            f"routes of {len(sample.body)} bytes"
        )
        cases = list(itertools.product(WORKLOADS, DEPTHS))
        for number in range(arguments.rounds):
            for workload, depth in cases:
                for target in order.sample(targets, len(targets)):
                    # Warm up longer before a server's first measurement, because a JVM needs this time to
                    # compile its code.
                    warm_s = 0.4 if number else 12.0 if target.name.startswith("Apache") else 1.0
                    figures = load(
                        target, workload, depth, warm_s=warm_s, measure_s=arguments.seconds, seed=number
                    )
                    target.samples.setdefault((workload.name, depth), []).append(figures)
                    # Register again as a heartbeat, so that no broker's lease expires during the rounds.
                    register(client, addrs, unlike=arguments.unlike)
        for line in table(targets):
            print(line)
        if arguments.json is not None:
            raw = [
                {"server": t.name, "workload": w, "depth": d, "samples": s}
                for t in targets
                for (w, d), s in t.samples.items()
            ]
            arguments.json.write_text(json.dumps(raw, indent=1))


if __name__ == "__main__":
    main()
