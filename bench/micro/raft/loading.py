"""A load process that gets a plan, and the values that this process measures."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from routekeeper.bench.group import Unhealthy
from routekeeper.bench.micro.raft.systems import MEMBERS, System
from routekeeper.bench.wires.job import Plan


def plan_for(system: System, **plan: Any) -> Plan:
    return Plan(kind=system.kind, members=system.clients, pids=system.pids, **plan)


@contextlib.contextmanager
def load_process(plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "routekeeper.bench.micro.raft.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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


def run(plan: Plan) -> bytes:
    with load_process(plan) as process:
        return process.communicate()[0]


def figures_of(system: System, output: bytes) -> dict[str, Any]:
    lines = output.splitlines()
    figures: dict[str, Any] = json.loads(lines[-1]) if lines else {"failure": "the load process died"}
    if "failure" in figures:
        tails = "\n".join(system.log_tail(index) for index in range(MEMBERS))
        raise Unhealthy(f"{system.name}: {figures['failure']}\n{tails}")
    return figures
