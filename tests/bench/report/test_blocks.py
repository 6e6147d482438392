"""The report's statistics give exact results in small cases, and keep their promised error rates.

The error rates are checked on difficult distributions: skewed, with heavy tails, with two humps, and without
a mean.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from routekeeper.bench.report.blocks import (
    Line,
    coverage,
    differences,
    estimate,
    judge,
    order_statistic,
    percentile,
    percentile_may_be_told,
    split,
)

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

LINE = Line(measure="recovery", arms=("raft", "independent"), series="equal", margin=1.0)


def test_range_of_six_and_of_ten_blocks_is_the_interval() -> None:
    six = estimate([5.0, 1.0, 3.0, 2.0, 9.0, 4.0])
    assert six is not None
    assert (six.value, six.low, six.high, six.blocks) == (3.5, 1.0, 9.0, 6)
    assert coverage(6, 0) == pytest.approx(0.96875)
    ten = estimate([float(value) for value in range(10)])
    assert ten is not None
    assert (ten.value, ten.low, ten.high) == (4.5, 0.0, 9.0)
    assert coverage(10, 0) == pytest.approx(0.998, abs=1e-4)


@pytest.mark.parametrize(
    ("n", "rank"), [(1, 0), (6, 0), (10, 0), (11, 0), (12, 0), (13, 0), (14, 1), (20, 2), (40, 9)], ids=str
)
def test_more_blocks_leave_out_extremes_as_far_as_the_confidence_allows(n: int, rank: int) -> None:
    assert order_statistic(n) == rank
    if rank:
        assert coverage(n, rank) >= 0.998
        assert coverage(n, rank + 1) < 0.998


def test_one_block_has_a_value_and_no_confidence() -> None:
    one = estimate([2.0])
    assert one is not None
    assert (one.value, one.low, one.high, coverage(1, 0)) == (2.0, 2.0, 2.0, 0.0)
    assert estimate([]) is None


def test_void_run_leaves_its_block_out_and_shifts_nothing() -> None:
    raft = {1: 11.0, 2: 22.0, 4: 44.0}
    independent = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert differences(raft, independent) == [10.0, 20.0, 40.0]


def test_arm_without_end_is_worse_and_two_of_them_say_nothing() -> None:
    found = estimate(differences({1: math.inf, 2: math.inf, 3: 5.0}, {1: 1.0, 2: math.inf, 3: 1.0}))
    assert found is not None
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert (found.below, found.above, found.blocks) == (0, 2, 3)
    assert found.value == math.inf


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.5] * 10, "worse"),
        ([-1.5] * 10, "better"),
        ([0.9] * 10, "equivalent"),
        ([-1.0, *[0.0] * 8, 1.0], "equivalent"),
        ([0.5, *[1.5] * 9], "inconclusive"),
        ([math.inf] * 10, "worse"),
        ([math.nan, *[5.0] * 9], "inconclusive"),
        ([1.5] * 9, "all blocks"),
        ([1.5] * 8 + [-0.1], "mixed"),
        ([0.0] * 6, "mixed"),
        ([], "no block"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdict(values: list[float], verdict: str) -> None:
    assert judge(estimate(values), LINE) == verdict


def test_difference_that_is_shown_but_within_the_margin_is_no_recommendation() -> None:
    memory = Line(measure="rss", arms=("raft", "independent"), series="equal", margin=8.0)
    assert judge(estimate([0.19, 0.2, 0.21, 0.2, 0.18, 0.2, 0.22, 0.2, 0.2, 0.2]), memory) == "equivalent"


def test_line_without_margin_is_described_only() -> None:
    line = Line(measure="recovery", arms=("raft", "independent"), series="defaults")
    assert judge(estimate([5.0] * 10), line) == "all blocks"


def test_higher_is_better_turns_the_verdict() -> None:
    line = Line(measure="n", arms=("raft", "zookeeper"), series="equal", margin=1.0, lower_is_better=False)
    assert judge(estimate([2.0] * 10), line) == "better"
    assert judge(estimate([-2.0] * 10), line) == "worse"


@pytest.mark.parametrize(
    ("n", "quantile", "told"), [(48, 0.99, False), (999, 0.99, False), (1000, 0.99, True), (20, 0.5, True)]
)
def test_percentile_needs_ten_observations_above(n: int, quantile: float, told: bool) -> None:
    assert percentile_may_be_told(n, quantile) is told
    assert (percentile([(float(value), 1) for value in range(n)], quantile) is not None) is told


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=20), st.sampled_from((0.5, 0.9)))
def test_percentile_of_counts_is_that_of_the_raw_values(rows: list[tuple[int, int]], quantile: float) -> None:
    raw = [float(value) for value, count in rows for _ in range(count)]
    found = percentile([(float(value), count) for value, count in rows], quantile)
    if found is None:
        assert len(raw) * (1 - quantile) < 10
    else:
        assert found == np.quantile(raw, quantile, method="inverted_cdf")


def test_recovery_is_taken_apart_by_two_divisors() -> None:
    found = split({10.0: 0.8, 1.0: 5.3})
    assert found is not None
    assert found.fixed == pytest.approx(0.3)
    assert found.scaled == pytest.approx(5.0)
    assert found.low == found.high == pytest.approx(5.3)


@pytest.mark.parametrize(
    ("measured", "fixed", "scaled"),
    [
        # With divisor 10 the timers are longer than with divisor 60, but the recovery is faster. So no part
        # of the recovery time depends on the timers.
        ({60.0: 0.3, 10.0: 0.1}, 0.2, 0.0),
        # The recovery time grows more than the timers, so no part of the time is independent of the timers.
        ({60.0: 0.1, 10.0: 1.2}, 0.0, (0.1 / 60 + 1.2 / 10) / (1 / 3600 + 1 / 100)),
        ({60.0: 0.5, 10.0: 0.5}, 0.5, 0.0),
    ],
)
def test_no_part_of_a_recovery_takes_less_than_no_time(
    measured: dict[float, float], fixed: float, scaled: float
) -> None:
    """Check that neither part of a recovery time is negative, and that their sum is the predicted time.

    One part does not depend on the timers, and the second part is proportional to the timers.
    """
    found = split(measured)
    assert found is not None
    assert (found.fixed, found.scaled) == pytest.approx((fixed, scaled))
    assert found.low == found.high == pytest.approx(fixed + scaled)


def test_recovery_at_one_divisor_gives_only_bounds_for_the_defaults() -> None:
    found = split({10.0: 0.8})
    assert found is not None
    assert (found.fixed, found.scaled, found.low, found.high) == (None, None, 0.8, 8.0)
    assert split({10.0: math.inf}) is None
    assert split({}) is None


DISTRIBUTIONS: dict[str, Draw] = {
    "skewed": lambda rng, shape: rng.lognormal(0, 1.2, shape),
    "heavy tail": lambda rng, shape: rng.pareto(1.1, shape),
    "two humps": lambda rng, shape: rng.normal(0, 1, shape) + 20 * (rng.random(shape) < 0.1),
    "no mean": lambda rng, shape: np.abs(rng.standard_cauchy(shape)),
}
REQUESTS = 100


def experiments(draw: Draw, blocks: int, lines: int, *, times: int, effect: float) -> NDArray[np.float64]:
    """Simulate experiments, and return the difference between two arms in each round.

    The result has the shape (times, lines, blocks). In each round, each arm runs once. The value of a run is
    the median of its requests, plus two random disturbances. Both runs of a round share the disturbance of
    the machine, and each run has another disturbance of its own. Disturbances and requests come from the same
    distribution.

    Args:
        blocks: Number of rounds in an experiment.
        lines: Number of headline measures.
        times: Number of experiments.
        effect: True difference between the two arms.
    """
    rng = np.random.default_rng(11)
    shape = (times, lines, blocks)
    machine = draw(rng, shape)
    values = []
    for added in (effect, 0.0):
        run = draw(rng, shape)
        requests = draw(rng, (*shape, REQUESTS))
        values.append(added + machine + run + np.quantile(requests, 0.5, axis=-1, method="inverted_cdf"))
    return values[0] - values[1]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("blocks", "promised"), [(6, 0.96875), (10, 1 - 2 / 1024)], ids=["six", "ten"])
def test_interval_holds_the_truth_as_often_as_promised(name: str, blocks: int, promised: float) -> None:
    # The runs of both arms have the same distribution, except for the added effect. So the median of the
    # differences is this effect.
    found = experiments(DISTRIBUTIONS[name], blocks, 1, times=3000, effect=3.0)[:, 0, :]
    intervals = [estimate(list(each)) for each in found]
    held = sum(each is not None and each.low <= 3.0 <= each.high for each in intervals) / len(intervals)
    slack = 3 * math.sqrt(promised * (1 - promised) / len(intervals))
    assert promised - slack <= held <= min(promised + slack, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_same_arm_twice_gets_a_false_verdict_in_at_most_three_of_a_hundred_reports(name: str) -> None:
    found = experiments(DISTRIBUTIONS[name], 10, 8, times=1000, effect=0.0)
    # With margin 0.0, even the smallest difference between the arms counts as a difference.
    strict = Line(measure="any", arms=("raft", "raft"), series="equal", margin=0.0)
    false = sum(
        any(judge(estimate(list(line)), strict) in ("better", "worse") for line in report) for report in found
    )
    # The share must be above 0, because a procedure that never reports a difference would be useless.
    assert 0 < false / len(found) <= 0.03


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_two_experiments_never_say_better_and_equivalent_of_one_truth(name: str) -> None:
    """Check that the verdicts of two experiments on the same arms do not contradict each other.

    The true difference between the arms equals the margin. This is the hardest case, because the verdicts
    then differ by chance.
    """
    found = experiments(DISTRIBUTIONS[name], 10, 2, times=1500, effect=1.0)
    contradictions = 0
    for first, second in found:
        verdicts = {judge(estimate(list(first)), LINE), judge(estimate(list(second)), LINE)}
        contradictions += len(verdicts & {"better", "worse", "equivalent"}) > 1
    assert contradictions / len(found) <= 0.01


def test_real_difference_is_found() -> None:
    found = experiments(DISTRIBUTIONS["skewed"], 10, 1, times=300, effect=60.0)[:, 0, :]
    assert sum(judge(estimate(list(each)), LINE) == "worse" for each in found) / len(found) > 0.95
