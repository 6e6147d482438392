"""Functions for tests of whole runs of a cluster: the number of a turn, and the rows of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

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
    event_files,
)
from routekeeper.bench.plan import Plan
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.schedule import SessionPlan

E = TypeVar("E", Delivery, DiskSample, Fault, LinkSample, Operation, ProcessSample, Truth, View)


def a_turn(out: Path, plan: Plan, arm: Arm, *, profile: str, seed: int, block: int = 1) -> SessionPlan:
    """Return the first attempt of an arm in a block of a plan's first series."""
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
    """Return a run's events of a kind, in the order of their files."""
    return [
        msgspec.json.decode(line, type=kind)
        for path in event_files(folder, kind)
        for line in path.read_bytes().splitlines()
    ]
