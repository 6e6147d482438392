"""Measurements with delays between servers: times of changes, differences between servers, and failover."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from routekeeper.bench.group import Unhealthy
from routekeeper.bench.scale.groups import ScaleGroup
from routekeeper.bench.scale.others import counting_others
from routekeeper.bench.scale.points import FAILOVER_S, Point
from routekeeper.bench.scale.probes import FIRST_KEY, TRY_S, Probe, Shown, first_change_s, spread_of
from routekeeper.bench.scale.size import life_of
from routekeeper.bench.slow_disk import SlowDisks

Record = Callable[[dict[str, Any]], None]
TIMES: Final = 15
#: Number of changes before the first measured change. A JVM compiles only code that has run often.
WARM_TIMES: Final = 30
#: Pause in seconds between two changes, so that they do not overlap.
PAUSE_S: Final = 0.02


@contextmanager
def probes(group: ScaleGroup, *, shared: bool, first: int = FIRST_KEY) -> Iterator[list[Probe]]:
    """Yield a prepared probe for each server, and close the probes at the end.

    A probe is a broker that changes one topic at one server.

    Args:
        shared: True if all probes are the same broker, which registers with every server. Otherwise each
            probe is a broker of its own.
    """
    made = [
        Probe(group.kind, addr, first + (0 if shared else index)) for index, addr in enumerate(group.clients)
    ]
    try:
        for index, probe in enumerate(made):
            # In ZooKeeper, probes of the same broker share their nodes, so only the first probe creates them.
            if not (shared and group.kind == "jute" and index):
                probe.prepare()
        yield made
    finally:
        for probe in made:
            probe.close()


def warm(chosen: list[Probe]) -> None:
    """Make ``WARM_TIMES`` changes with each of these probes, without measuring them."""
    for probe in chosen:
        for number in range(1, WARM_TIMES + 1):
            probe.change(number)


def lone_changes_ms(probe: Probe, *, first: int = WARM_TIMES + 1) -> list[float]:
    """Make ``TIMES`` changes, one after the other; return the duration of each change in ms."""
    found = []
    for number in range(first, first + TIMES):
        found.append(probe.change(number) * 1e3)
        time.sleep(PAUSE_S)
    return found


def measure_distance(group: ScaleGroup, point: Point, record: Record) -> dict[str, float]:
    """Delay the links between servers, then measure changes, a failover, and a restart of all servers.

    The leader fails before any server restarts, because a JVM that has just started would be slow to lead.
    """
    found: dict[str, float] = {}
    group_leader = group.leader
    with life_of(group, point, record) as life:
        life.register()
        group.delay(point.round_trip_ms, loss=point.loss)
        life.register()  # sends the first messages over the delayed links, which are not measured
        with counting_others(found, "change"):
            found |= changes(group, record)
        leader = group_leader()
        lost = 0 if leader is None else leader
        survivors = [index for index in range(len(group.clients)) if index != lost]
        with counting_others(found, "failover"):
            with probes(group, shared=False, first=FIRST_KEY + 100) as at:
                for index in survivors:
                    at[index].change(1)
                    at[index].wait_at_most(TRY_S + 4 * point.round_trip_ms / 1e3)
                group.kill([lost])
                took = first_change_s([at[index] for index in survivors], 1, within_s=FAILOVER_S)
                record({"kind": "failover", "lost": lost, "was_leader": leader is not None, "took_s": took})
                if took is not None:
                    found["failover_s"] = took
            group.launch([lost])
            group.wait_healthy()
        life.settle()
        with counting_others(found, "restart"):
            found["restart_right_s"] = life.restart()["right_s"]
    return found


def changes(group: ScaleGroup, record: Record) -> dict[str, float]:
    """Return median times of changes at the leader, at a follower, and on all servers, in ms.

    For a change on all servers, there are two times. One is the time until every server shows the change. The
    other is the time from the first to the last server that shows the change. A RocketMQ broker sends such a
    change to every server. A ZooKeeper broker sends it to the leader only. It could not send it to all
    servers, because it has a session with one server.
    """
    found: dict[str, float] = {}
    leader = group.leader()
    with probes(group, shared=False) as at:
        warm(at)
        leading = 0 if leader is None else leader
        for role, index in (("leader", leading), ("follower", (leading + 1) % len(at))):
            took = lone_changes_ms(at[index])
            record({"kind": "changes", "role": role if leader is not None else "server", "took_ms": took})
            found[f"change_{role}_ms"] = statistics.median(took)
    check_leader(group, leader)
    shown: list[Shown] = []
    first = FIRST_KEY + 50
    with probes(group, shared=True, first=first) as writers:
        readers = [Probe(group.kind, addr, first) for addr in group.clients]
        try:
            for number in range(1, TIMES + 1):
                one = spread_of(writers if group.kind != "jute" else [writers[leading]], readers, number)
                record({"kind": "spread", "acked_s": one.acked, "seen_s": one.seen})
                shown.append(one)
                time.sleep(PAUSE_S)
        finally:
            for reader in readers:
                reader.close()
    return found | spread_figures(shown, servers=len(group.clients))


def spread_figures(shown: Sequence[Shown], *, servers: int) -> dict[str, float]:
    """Return the figures of changes on all servers, in ms.

    A change that some server did not show in time counts as longer than all others. A figure
    that is not finite for this reason is absent.
    """
    seen = [[one.seen.get(server, math.inf) * 1e3 for server in range(servers)] for one in shown]
    differ = [max(of_one) - min(of_one) if math.isfinite(max(of_one)) else math.inf for of_one in seen]
    found = {
        "everywhere_ms": statistics.median(map(max, seen)),
        "old_ms": statistics.median(differ),
        "old_ms_longest": max(differ),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def check_leader(group: ScaleGroup, leader: int | None) -> None:
    """Check that ``leader``, which led at the beginning of a measurement, still leads.

    Raises:
        Unhealthy: If another server leads now, or if no server leads.
    """
    if (now := group.leader()) != leader:
        raise Unhealthy(f"another server led before the end: {leader} at first, then {now}")


def measure_slow_disk(group: ScaleGroup, point: Point, record: Record, disks: SlowDisks) -> dict[str, float]:
    """Measure changes of topics in three cases: no disk, the leader's disk, or a follower's disk is slow."""
    found: dict[str, float] = {}
    with life_of(group, point, record) as life, probes(group, shared=False) as at:
        life.register()
        warm(at)
        leader = group.leader()
        if leader is None:
            raise Unhealthy("nobody leads")
        follower = (leader + 1) % len(at)
        for case, slow in (("none", None), ("leader", leader), ("follower", follower)):
            if slow is not None:
                disks.slow(slow)
            first = WARM_TIMES + 1 + TIMES * ("none", "leader", "follower").index(case)
            with counting_others(found, f"slow_{case}"):
                for role, index in (("leader", leader), ("follower", follower)):
                    took = lone_changes_ms(at[index], first=first)
                    record({"kind": "changes", "slow": case, "role": role, "took_ms": took})
                    found[f"slow_{case}_change_{role}_ms"] = statistics.median(took)
            check_leader(group, leader)
            if slow is not None:
                disks.quick(slow)
    return found
