"""Seeded runs of the real engine on the real library: virtual time, faults, and what must hold throughout."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.sim

SEEDS = int(os.environ.get("RAFT_SIM_SEEDS", "12"))
FIRST = int(os.environ.get("RAFT_SIM_FIRST", "1"))
FAULTS = ("part", "oneway", "kill", "killall", "pause", "flap", "slow", "disk", "wipe")


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_acknowledged_is_lost_whatever_happens(
    world: Callable[..., Any], run_faults: Callable[..., None], seed: int, members: int
) -> None:
    made = world(seed, started=False, members=members, compact_bytes=4000, kill_after_image=0.1)
    run_faults(made, 12, FAULTS)
    assert made.stat["contact checks"] > 100
    assert made.acknowledged


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS // 2))
def test_members_without_a_disk_lose_nothing_while_one_at_a_time_restarts(
    world: Callable[..., Any], run_faults: Callable[..., None], seed: int
) -> None:
    made = world(seed, started=False, members=3 + 2 * (seed % 2), volatile=True, compact_bytes=4000)
    run_faults(made, 10, ("wipe", "wipe", "part", "pause", "flap", "slow", "oneway"))
    assert made.acknowledged


def test_a_seed_repeats_exactly(world: Callable[..., Any], run_faults: Callable[..., None]) -> None:
    seen = []
    for _ in range(2):
        made = world(7, started=False, compact_bytes=4000)
        run_faults(made, 4, FAULTS)
        seen.append((dict(made.stat), made.acknowledged, made.leaders))
    assert seen[0] == seen[1]
