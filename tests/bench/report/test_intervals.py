"""The bootstrap draws runs, not operations, and its intervals cover what they claim to cover."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.report.intervals import (
    RUNS_MIN,
    Estimate,
    mean_of_runs,
    percentile_difference,
    percentile_of_merged,
    sample,
    tail,
    weighted_percentile,
)

values_with_counts = st.dictionaries(st.integers(0, 10**9), st.integers(1, 50), min_size=1, max_size=30)


@given(values_with_counts, st.floats(0, 1))
def test_weighted_percentile_is_numpys_of_the_repeated_values(rows: dict[int, int], quantile: float) -> None:
    values = np.array(sorted(rows), dtype=np.float64)
    weights = np.array([[rows[int(value)] for value in values]])
    expected = np.quantile(np.repeat(values, weights[0]), quantile)
    assert weighted_percentile(values, weights, quantile)[0] == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_weighted_percentile_of_nothing_is_nan() -> None:
    assert np.isnan(weighted_percentile(np.array([]), np.zeros((2, 0), dtype=np.int64), 0.5)).all()
    assert np.isnan(weighted_percentile(np.array([1.0]), np.array([[0]]), 0.5)[0])


def test_weighted_percentile_above_an_infinite_value_is_infinite_and_below_is_not() -> None:
    values, weights = np.array([1.0, 2.0, math.inf]), np.array([[50, 49, 1]])
    assert weighted_percentile(values, weights, 0.5)[0] == pytest.approx(1.5)
    assert weighted_percentile(values, weights, 1.0)[0] == math.inf


def test_too_few_runs_give_a_value_without_an_interval() -> None:
    for count in range(1, RUNS_MIN):
        estimate = mean_of_runs([1.0] * count)
        assert estimate == Estimate(value=1.0, low=None, high=None, runs=count)
        assert not estimate.excludes_zero()
    assert mean_of_runs([1.0] * RUNS_MIN).low == 1.0


def test_a_mean_of_no_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        mean_of_runs([])


def test_equal_differences_exclude_zero_and_equal_values_do_not() -> None:
    assert mean_of_runs([0.1] * 5).excludes_zero()
    assert not mean_of_runs([0.0] * 5).excludes_zero()


@given(st.lists(st.floats(-1e6, 1e6), min_size=RUNS_MIN, max_size=12))
def test_an_interval_holds_its_value_and_stays_within_the_runs(values: list[float]) -> None:
    found = mean_of_runs(values)
    assert found.low is not None
    assert found.high is not None
    slack = 1e-6 * (1 + max(map(abs, values)))
    assert min(values) - slack <= found.low <= found.value <= found.high <= max(values) + slack


def test_the_same_runs_give_the_same_interval() -> None:
    assert mean_of_runs([1.0, 2.0, 4.0, 8.0, 16.0]) == mean_of_runs([1.0, 2.0, 4.0, 8.0, 16.0])


def test_tails_are_wider_with_few_runs_and_ordinary_with_many() -> None:
    assert tail(4) < tail(5) < tail(10) < tail(21) < tail(1000)
    assert tail(1000) == pytest.approx(0.025, abs=0.001)


@pytest.mark.parametrize("runs", [5, 8])
def test_intervals_of_few_runs_cover_the_true_mean_about_as_often_as_they_say(runs: int) -> None:
    rng = np.random.default_rng(11)
    drawn = [mean_of_runs(list(rng.normal(3.0, 1.0, runs))) for _ in range(400)]
    covered = sum(
        each.low is not None and each.high is not None and each.low <= 3 <= each.high for each in drawn
    )
    assert covered / 400 > 0.90  # the plain percentile interval reaches 0.83 with 5 runs


def test_an_endless_run_gives_no_difference() -> None:
    found = mean_of_runs([math.inf, 1.0, 1.0, 1.0, 1.0])
    assert not found.excludes_zero()
    assert found.endless == (0, 1)
    assert mean_of_runs([math.inf, -math.inf, -math.inf, 1.0, 1.0]).endless == (2, 1)


def test_a_percentile_is_read_from_all_runs_together_and_not_averaged() -> None:
    data = sample([(0, 1.0, 990), (1, 1.0, 990), (2, 1.0, 990), (3, 1.0, 990), (3, 100.0, 40)], runs=4)
    found = percentile_of_merged(data, 0.99)
    assert found.value == pytest.approx(np.quantile(np.repeat([1.0, 100.0], [3960, 40]), 0.99))
    assert found.low == 1.0
    assert found.high == 100.0


def test_one_odd_run_does_not_make_a_difference_however_many_operations_it_has() -> None:
    rows = [(run, 1.0, 1000) for run in range(5)]
    odd = [*rows[:4], (4, 9.0, 1_000_000)]
    found = percentile_difference(sample(rows, runs=5), sample(odd, runs=5), 0.5)
    assert found.value == 8.0
    assert not found.excludes_zero()


def test_a_shift_in_every_pair_is_a_difference_and_its_sign_follows_the_order() -> None:
    rng = np.random.default_rng(3)
    rows = [(run, float(value), 1) for run in range(5) for value in rng.normal(10, 1, 200)]
    later = [(run, value + 5, n) for run, value, n in rows]
    there = percentile_difference(sample(rows, runs=5), sample(later, runs=5), 0.9)
    back = percentile_difference(sample(later, runs=5), sample(rows, runs=5), 0.9)
    assert there.value == pytest.approx(5)
    assert there.excludes_zero()
    assert back.value == pytest.approx(-5)
    assert back.excludes_zero()


def test_a_percentile_that_is_endless_on_both_sides_shows_no_difference() -> None:
    endless = sample([(run, math.inf, 1) for run in range(5)], runs=5)
    assert not percentile_difference(endless, endless, 0.5).excludes_zero()


def test_a_percentile_that_only_one_side_reaches_is_a_difference() -> None:
    reached = sample([(run, 1.0, 1) for run in range(5)], runs=5)
    endless = sample([(run, math.inf, 1) for run in range(5)], runs=5)
    found = percentile_difference(reached, endless, 0.5)
    assert found.value == math.inf
    assert found.excludes_zero()
    assert found.endless == (0, 5)


def test_it_is_counted_in_how_many_pairs_something_never_came() -> None:
    reached = [(run, 1.0, 10) for run in range(5)]
    seldom = sample([*reached, (3, math.inf, 1)], runs=5)
    assert percentile_of_merged(seldom, 0.5).endless == (0, 1)
    assert percentile_difference(seldom, sample(reached, runs=5), 0.99).endless == (1, 0)


def test_samples_of_unequal_numbers_of_runs_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="4 against 5"):
        percentile_difference(
            sample([(run, 1.0, 1) for run in range(4)], runs=4),
            sample([(run, 1.0, 1) for run in range(5)], runs=5),
            0.5,
        )
