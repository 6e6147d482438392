"""A comparison runs all designs in each round, in random order, and estimates when it will end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.plan import FOLDER, Plan, load_plan, run_seconds
from routekeeper.bench.runfolder import REAL
from routekeeper.bench.schedule import (
    OVERHEAD_S,
    Comparison,
    Turn,
    blocks_of,
    expected_s,
    load_seconds,
    usual_overhead_s,
)
from tests.bench.expected import expected_minutes

GUIDE = Path(__file__).parents[2] / "docs" / "benchmark-guide.md"


def a_plan(blocks: int = 6) -> Plan:
    plan = load_plan("compare")
    return msgspec.structs.replace(
        plan, series=[msgspec.structs.replace(one, blocks=blocks) for one in plan.series]
    )


def test_block_holds_every_arm_once_with_one_seed_and_orders_differ() -> None:
    blocks = blocks_of(a_plan(40), 7)
    assert len(blocks) == 40
    for block in blocks:
        assert sorted(turn.arm for turn in block) == ["independent", "raft", "zookeeper"]
        assert [turn.order for turn in block] == [0, 1, 2]
        assert len({turn.seed for turn in block}) == 1
    assert len({block[0].seed for block in blocks}) == 40
    assert len({tuple(turn.arm for turn in block) for block in blocks}) == 6


def test_order_and_seeds_follow_from_the_comparisons_seed() -> None:
    assert blocks_of(a_plan(), 7) == blocks_of(a_plan(), 7)
    assert blocks_of(a_plan(), 7) != blocks_of(a_plan(), 8)
    # The first six of ten rounds must have the same order of runs as a comparison of only six rounds.
    assert blocks_of(a_plan(10), 7)[:6] == blocks_of(a_plan(6), 7)


def test_estimate_learns_from_what_is_over() -> None:
    plan = a_plan(1)
    (turns,) = blocks_of(plan, 7)
    load_s = run_seconds(plan, plan.series[0])
    assert expected_s(plan, turns, done_s=[]) == 3 * (load_s + OVERHEAD_S)
    assert expected_s(plan, turns[1:], done_s=[(turns[0], load_s + 30)]) == 2 * (load_s + 30)


def real_turns(plan: Plan) -> list[Turn]:
    return [turn for block in blocks_of(plan, 7) for turn in block]


def test_estimate_of_a_design_learns_from_its_own_runs_first() -> None:
    """An estimate adds the extra time of the design's own finished runs, or else the mean of other designs.

    In this test, finished runs of two designs took 5 s and 10 s longer than usual.
    """
    plan = load_plan("real")
    (series,) = plan.series
    turns = real_turns(plan)
    ours = next(turn for turn in turns if turn.arm == "independent")
    real = next(turn for turn in turns if turn.arm == "independent-real")

    def took_s(turn: Turn, more_s: float) -> float:
        return load_seconds(plan, series, turn.block) + usual_overhead_s(turn.arm) + more_s

    one, both = [(ours, took_s(ours, 5.0))], [(ours, took_s(ours, 5.0)), (real, took_s(real, 10.0))]
    usual = expected_s(plan, turns, done_s=[])
    assert expected_s(plan, turns, done_s=one) == pytest.approx(usual + 24 * 5.0)
    # Of 24 runs, 6 belong to each of the two designs with a finished run. The other 12 runs get the mean
    # difference.
    assert expected_s(plan, turns, done_s=both) == pytest.approx(usual + 6 * 5.0 + 6 * 10.0 + 12 * 7.5)


def test_designs_with_rocketmqs_own_programs_take_longer_to_start() -> None:
    plan = load_plan("real")
    assert all(usual_overhead_s(arm) > 1.5 * OVERHEAD_S for arm in REAL)
    every = len(real_turns(plan)) * OVERHEAD_S
    slower = sum(usual_overhead_s(turn.arm) - OVERHEAD_S for turn in real_turns(plan))
    load_s = 24 * run_seconds(plan, plan.series[0])
    assert expected_s(plan, real_turns(plan), done_s=[]) == pytest.approx(load_s + every + slower)


def test_later_rounds_take_longer_because_their_faults_come_later() -> None:
    plan = load_plan("real")
    (series,) = plan.series
    by_block = [load_seconds(plan, series, block) for block in range(1, series.blocks + 1)]
    assert by_block == sorted(set(by_block))
    assert sum(by_block) == pytest.approx(series.blocks * run_seconds(plan, series))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (FOLDER / "real.toml", "It takes about {} minutes"),
        (GUIDE, "`mqbench compare --profile real` takes about {} minutes"),
    ],
    ids=["plan", "guide"],
)
def test_profile_real_is_said_to_take_the_announced_time(path: Path, said: str) -> None:
    asked = Comparison(profile="real", plan=load_plan("real"), seed=1, command=[])
    text = " ".join(path.read_text().replace("#", " ").split())
    assert said.format(f"{expected_minutes(asked):.0f}") in text
