"""Load processes, and the values that they measure."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec

from routekeeper.bench.group import Unhealthy, log_tails
from routekeeper.bench.micro.raft.systems import System
from routekeeper.bench.wires.job import Plan


def load(system: System, **plan: Any) -> dict[str, Any]:
    """Run one load process; return the values that it has measured.

    Raises:
        Unhealthy: If the load failed.
    """
    made = Plan(kind=system.kind, members=system.clients, pids=system.pids, **plan)
    command = [sys.executable, "-m", "routekeeper.bench.micro.raft.load"]
    data = msgspec.json.encode(made)
    output = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=False).stdout
    figures: dict[str, Any] = json.loads(output) if output else {"failure": "the load process died"}
    if "failure" in figures:
        raise Unhealthy(f"{system.name}: {figures['failure']}\n{log_tails(system)}")
    return figures
