"""The report marks times that grow with the length of a partition, because the plan sets this length."""

from __future__ import annotations

from typing import Final

import pytest

from routekeeper.bench.plan import SWEEPS, down_seconds, load_plan, scenarios_of
from routekeeper.bench.report import measures, words
from routekeeper.bench.report.measures import Place, Values
from tests.bench.report.test_misled import values_of

LENGTHS: Final = {"half": 1.0, "twice": 4.0, "four": 8.0}


@pytest.mark.parametrize(("growth", "planned"), [(1.0, True), (0.9, True), (0.5, False), (0.0, False)])
def test_t4_time_that_grows_with_the_cut_is_set_by_the_plan(growth: float, planned: bool) -> None:
    """Check that only times that grow about as fast as the partition's length are marked.

    The times are 0.5 s, plus `growth` seconds for each second that the partition lasts.
    """
    values: Values = {}
    lengths = {}
    for case, (_, length) in SWEEPS.items():
        place = Place("equal-lengths", "partition", case, "announce_again_side_a_s")
        values |= values_of(place, raft=[0.5 + growth * LENGTHS[length]] * 3)
        of_round = {("b", block): (LENGTHS[length],) for block in range(1, 4)}
        lengths[place.series, place.scenario, place.case, "raft"] = of_round
    pooled = Place("equal", "partition", "1-2", "announce_again_side_a_s")
    values |= values_of(pooled, raft=[3.4] * 6)
    found = measures.grown_with_the_cut(values, lengths)
    assert ((place, "raft") in found) == planned
    assert ((pooled, "raft") in found) == planned


def test_t4_full_profile_sweeps_lengths_with_leader_and_follower_as_cases_of_their_own() -> None:
    plan = load_plan("full")
    series = {each.name: each for each in plan.series}
    session_s = series["equal-lengths"].timers.session_ms() / 1000
    (partition,) = scenarios_of(plan, series["equal-lengths"])
    found = {
        SWEEPS[fault.case]: down_seconds("partition", fault, series["equal-lengths"]) / session_s
        for fault in partition.faults
    }
    assert found == {
        (who, length): times
        for who in ("leader", "follower")
        for length, times in (("half", 0.5), ("twice", 2.0), ("four", 4.0))
    }
    main = {scenario.name: scenario for scenario in scenarios_of(plan, series["equal"])}
    assert {fault.case for fault in main["partition"].faults}.isdisjoint(SWEEPS)


def test_t4_quick_comparison_has_one_length_and_says_so() -> None:
    (partition,) = [each for each in load_plan("compare").scenarios if each.name == "partition"]
    assert [fault.case for fault in partition.faults] == ["1-2"]
    assert "these cuts one length" in words.CASE_NOTES["partition/1-2"]
