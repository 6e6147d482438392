"""Helpers for tests of whole benchmark runs: plans, recorded events, and brokers that a test stops."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from routekeeper.bench.events import (
    Delivery,
    DiskSample,
    Fault,
    LinkSample,
    Operation,
    ProcessSample,
    Truth,
    View,
    event_file,
    event_files,
)
from routekeeper.bench.plan import Plan
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.session import Session
from tests.waiting import wait_until

#: Time limit in s for the restart of a server on a busy machine.
RESTARTS_S: Final = 300.0
E = TypeVar("E", Delivery, DiskSample, Fault, LinkSample, Operation, ProcessSample, Truth, View)


def a_turn(out: Path, plan: Plan, arm: Arm, *, profile: str, seed: int, block: int = 1) -> SessionPlan:
    """Return the plan of one run, which is the first attempt of one arm (design) in the first series.

    Args:
        block: Number of the round.
    """
    return SessionPlan(
        out=out,
        plan=plan,
        series=plan.series[0],
        arm=arm,
        block=block,
        order_in_block=0,
        attempt=1,
        profile=profile,
        seed=seed,
        command=("pytest",),
    )


def rows(folder: Path, kind: type[E]) -> list[E]:
    """Return a run's events of one type, in the order of the event files."""
    return [
        msgspec.json.decode(line, type=kind)
        for path in event_files(folder, kind)
        for line in path.read_bytes().splitlines()
    ]


def written_so_far(session: Session, kind: type[E], process: str) -> list[E]:
    """Return the events of one type that a process of an unfinished run has written so far."""
    path = event_file(session.given.spool, kind, process)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"\n")]


def hold_brokers(session: Session, seen: Callable[[int, int], bool]) -> None:
    """Stop all brokers (SIGSTOP) until a server has restarted and an event shows that it lists no broker.

    If the brokers ran, they could register at the restarted server before any event shows its empty list.

    Args:
        seen: Function that gets a server's index and an instant in ns. It returns True if an event after that
            instant shows that the server lists no broker.
    """
    brokers, servers = session.cluster.brokers, session.cluster.server_processes
    pids = {server.index: server.child.pid for server in servers if server.child is not None}
    # Ignore older events, because they may show the server before it was killed.
    after_ns = time.monotonic_ns()
    for broker in brokers:
        broker.signal(signal.SIGSTOP)

    def killed() -> list[int]:
        """Return the indexes of the servers that were killed, including servers that have restarted."""
        return [
            server.index
            for server in servers
            if not server.alive or server.child is None or server.child.pid != pids[server.index]
        ]

    def resume() -> None:
        try:
            wait_until(killed, "a server is killed", within_s=RESTARTS_S, every_s=0.01)
            (struck,) = killed()
            wait_until(lambda: seen(struck, after_ns), "the server is seen empty", within_s=RESTARTS_S)
        finally:
            for broker in brokers:
                broker.signal(signal.SIGCONT)

    threading.Thread(target=resume, daemon=True).start()


def seen_empty(session: Session, index: int, after_ns: int, everybody: list[int]) -> bool:
    """Return True if a server answered after the instant `after_ns` without listing all brokers.

    A server that has restarted with an empty table answers so, until all brokers have registered again.

    Args:
        everybody: Numbers of all brokers.
    """
    return any(
        (row.index, row.topic) == (index, "bench-0")
        and row.seen_ns > after_ns
        and row.state in ("absent", "routed")
        and row.brokers != everybody
        for row in written_so_far(session, View, "observer")
    )
