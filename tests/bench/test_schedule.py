"""A comparison runs all designs in each round, in random order, and estimates when it will end."""

from __future__ import annotations

import msgspec

from routekeeper.bench.plan import Plan, load_plan, run_seconds
from routekeeper.bench.schedule import OVERHEAD_S, blocks_of, expected_s


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
    # The order within a round must not depend on the number of rounds.
    assert blocks_of(a_plan(10), 7)[:6] == blocks_of(a_plan(6), 7)


def test_estimate_learns_from_what_is_over() -> None:
    plan = a_plan(1)
    (turns,) = blocks_of(plan, 7)
    load_s = run_seconds(plan, plan.series[0])
    assert expected_s(plan, turns, done_s=[]) == 3 * (load_s + OVERHEAD_S)
    assert expected_s(plan, turns[1:], done_s=[(turns[0], load_s + 30)]) == 2 * (load_s + 30)
