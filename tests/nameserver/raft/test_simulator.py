"""Seeded runs of the real engine on the real library: virtual time, faults, and what must hold throughout."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

SEEDS = int(os.environ.get("RAFT_SIM_SEEDS", "12"))
FIRST = int(os.environ.get("RAFT_SIM_FIRST", "1"))
FAULTS = ("part", "oneway", "kill", "killall", "pause", "flap", "slow", "disk", "wipe")


def _break_something(world: Any, faults: tuple[str, ...]) -> None:
    rng = world.rng
    up = [member for member in world.members.values() if member.up]
    down = len(world.names) - len(up)
    match rng.choice(faults):
        case "part":
            side = set(rng.sample(world.names, rng.randint(1, len(world.names) // 2)))
            if world.leader is not None and rng.random() < 0.5:
                side = {world.leader.name}
            world.block(*((a, b) for a in world.names for b in world.names if (a in side) != (b in side)))
            world.at(rng.uniform(0.2, 3.0), world.heal)
        case "oneway":
            pairs = [(a, b) for a in world.names for b in world.names if a != b and rng.random() < 0.3]
            world.block(*pairs)
            world.at(rng.uniform(0.2, 2.0), world.heal)
        case "kill":
            victim = (
                world.leader if world.leader is not None and rng.random() < 0.4 else rng.choice(up or [None])
            )
            if victim is not None:
                world.crash(victim)
        case "killall":
            for member in up:
                world.crash(member)
        case "pause":
            if up:
                rng.choice(up).paused_until = world.now + rng.uniform(0.1, 2.5)
        case "flap":
            for a in world.names:
                for b in world.names:
                    if a < b and rng.random() < 0.5:
                        world.cut(a, b)
        case "slow":
            world.slow = rng.choice((0.0, 0.01, 0.1))
        case "disk":
            if up:
                member = rng.choice(up)
                member.write_delay = float("inf")
                world.at(rng.uniform(0.1, 2.5), member.resume_disk)
        case "wipe":
            # An operator empties one disk while all others are up, caught up and full members.
            engines = [member.engine for member in up]
            if not down and all(e.may_vote for e in engines) and world.leader is not None:
                applied = {e.applied_index for e in engines}
                if max(applied) - min(applied) < 20:
                    world.crash(rng.choice(up), wipe=True)


def _run(world: Any, seconds: float, faults: tuple[str, ...]) -> None:
    world.start()
    end = world.now + seconds

    def load() -> None:
        if world.now < end:
            for _ in range(world.rng.choice((1, 1, 2, 10))):
                world.submit(world.rng.choice(world.names) if world.rng.random() < 0.2 else None, 40)
            world.at(world.rng.expovariate(40), load)

    def trouble() -> None:
        if world.now < end - 1:
            _break_something(world, faults)
            world.at(world.rng.uniform(0.05, 1.5), trouble)

    def restart() -> None:
        for name in world.names:
            if not world.members[name].up and world.rng.random() < 0.5:
                world.start(name)
        if world.now < end:
            world.at(world.rng.uniform(0.1, 1.0), restart)

    def contact() -> None:
        world.check_contact()
        if world.now < end:
            world.at(world.rng.uniform(0.005, 0.05), contact)

    world.run(3, lambda: world.leader is not None)
    load()
    world.at(0.3, trouble)
    world.at(0.3, restart)
    contact()
    world.run(seconds)
    world.heal()
    world.slow = world.kill_after_image = 0.0
    for member in world.members.values():
        member.paused_until = 0.0
        member.resume_disk()
    world.start()
    world.run(8, lambda: world.leader is not None)
    world.submit()
    world.settle(20)
    world.check_contact()
    world.check_end()


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_acknowledged_is_lost_whatever_happens(
    world: Callable[..., Any], seed: int, members: int
) -> None:
    made = world(seed, started=False, members=members, compact_bytes=4000, kill_after_image=0.1)
    _run(made, 12, FAULTS)
    assert made.stat["contact checks"] > 100
    assert made.acknowledged


def test_a_seed_repeats_exactly(world: Callable[..., Any]) -> None:
    seen = []
    for _ in range(2):
        made = world(7, started=False, compact_bytes=4000)
        _run(made, 4, FAULTS)
        seen.append((dict(made.stat), made.acknowledged, made.leaders))
    assert seen[0] == seen[1]
