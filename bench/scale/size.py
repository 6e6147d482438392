"""Measurements with many brokers, topics or clients.

- Storms: many brokers with many topics register or return at the same time.
- Herds: many clients must learn of one change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from routekeeper.bench.group import Unhealthy, log_tails
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.scale.groups import ScaleGroup
from routekeeper.bench.scale.others import counting_others
from routekeeper.bench.scale.points import PERIOD_S, Point
from routekeeper.bench.scale.probes import FIRST_KEY
from routekeeper.bench.storm import brokers
from routekeeper.bench.storm.life import Life
from routekeeper.bench.wires.job import Plan

Record = Callable[[dict[str, Any]], None]
HERD_MEASURE_S: Final = 3.0
HERD_WARM_S: Final = 0.6
#: Figures of a storm that the row of a point keeps. In the row, the figure's name begins with the phase of
#: the storm, for example ``restart_right_s``.
_KEPT: Final = (
    *("right_s", "first_right_s", "wait_ms_longest", "wait_ms_longest_own", "queries_failed", "failures"),
    *("cpu_s", "memory_mb", "heap_kept_mb", "took_s", "other_programs_cores"),
)


def measure_storm(group: ScaleGroup, point: Point, record: Record) -> dict[str, float]:
    """Measure three storms: all brokers register, all servers restart, and one broker changes all its topics.

    Memory is measured after the first storm, because restarted servers would use less memory.
    """
    found: dict[str, float] = {}

    def keep(phase: str, figures: dict[str, Any]) -> None:
        found.update({f"{phase}_{key}": float(figures[key]) for key in _KEPT if figures.get(key) is not None})

    with life_of(group, point, record) as life:
        keep("register", life.register())
        keep("restart", life.restart())
        if point.spread:
            keep("spread", life.restart(spread_s=PERIOD_S))
        keep("change", life.change())
    return found


def measure_herd(group: ScaleGroup, point: Point, record: Record) -> dict[str, float]:
    """Change a topic, and measure when many clients know the change.

    First measure clients that watch, if the design allows watching. Then measure clients that ask every 30 s,
    if the point has ``polling`` set.
    """
    found: dict[str, float] = {}
    with life_of(group, point, record) as life:
        life.register()
        if group.name != "apache":  # clients of RocketMQ's nameserver cannot watch
            with counting_others(found, "watch"):
                watching = herd(group, point, "watch", record)
            found["watch_ms_last"] = watching["ms_p50"]
            found["watch_ms_half"] = watching["half_ms_p50"]
            found["watch_cpu_ms_a_change"] = 1e3 * watching["server_cpu_s"] / watching["writes"]
        if point.polling:
            with counting_others(found, "poll"):
                polling = herd(group, point, "poll", record)
            found["poll_ms_last"] = polling["ms_max"]
            found["poll_ms_half"] = polling["ms_p50"]
            found["poll_cpu_s_a_minute"] = polling["server_cpu_s"] * 60 / polling["seconds"]
    return found


def life_of(group: ScaleGroup, point: Point, record: Record) -> Life:
    plan = brokers.Plan(kind=group.kind, servers=group.clients, brokers=point.brokers, topics=point.topics)
    return Life(group, plan=plan, record=record)


def herd(group: ScaleGroup, point: Point, job: str, record: Record) -> dict[str, Any]:
    """Run many clients in a process of their own; record its rows, and return the figures that it measures.

    Raises:
        ClusterError: If the clients' process ended early.
        Unhealthy: If the servers failed the clients; the message says how.
    """
    servers = len(group.clients)
    plan = Plan(
        job="watch" if job == "watch" else "poll",
        kind=group.kind,
        members=group.clients,
        watched=group.watched,
        watchers=max(1, round(point.clients / servers)),
        connections=1,
        warm_s=HERD_WARM_S,
        measure_s=HERD_MEASURE_S,
        pids=group.pids,
        first_key=FIRST_KEY,
        everywhere=group.kind == "remoting",
    )
    done = subprocess.run(
        [sys.executable, "-m", "routekeeper.bench.scale.herd"],
        input=msgspec.json.encode(plan) + b"\n",
        capture_output=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines[:-1]:
        record(json.loads(line))
    if done.returncode or not lines:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ClusterError(f"the clients' process ended with {done.returncode}: {last[-500:]}")
    figures: dict[str, Any] = json.loads(lines[-1])
    if "failure" in figures:
        raise Unhealthy(f"{figures['failure']}\n{done.stderr.decode()[-500:]}\n{log_tails(group)}")
    return figures
