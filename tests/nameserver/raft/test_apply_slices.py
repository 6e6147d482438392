"""Tests of large log entries, which a member applies in time slices.

Between two slices, the member receives and answers messages, and it runs its timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.effects import Committed

STEPS, STEP_S, SLICE_S = 40, 0.001, 0.005


@pytest.mark.parametrize("entries", [1, 4])
def test_applying_ends_after_five_milliseconds_and_goes_on_when_the_loop_has_come_round(
    world: Callable[..., Any], entries: int
) -> None:
    w = world(members=1)
    member, engine = w["a"], w.engine("a")
    rounds: list[float] = []
    applied: list[int] = []

    def apply(payload: bytes, *, index: int, term: int, live: bool) -> Iterator[None]:
        for _ in range(STEPS // entries):
            w.clock.skip(STEP_S)  # each step takes STEP_S
            yield
        applied.append(index)

    def apply_some(entries: Sequence[Committed]) -> int:
        began = w.now
        done: int = real(entries)
        rounds.append(w.now - began)
        return done

    real, member.applier.apply = member.applier.apply, apply_some
    member.machine.apply = apply
    last = [w.submit("a") for _ in range(entries)][-1]
    assert w.run(5.0, lambda: engine.applied_index == last)
    assert len(applied) == entries
    assert max(rounds) <= SLICE_S + STEP_S + 1e-9  # 1e-9 s allows for rounding errors
    assert sum(took > 0 for took in rounds) >= STEPS * STEP_S / (SLICE_S + STEP_S)
