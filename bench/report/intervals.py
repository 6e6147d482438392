"""Bootstrap intervals where the run is the unit (pure; numpy).

Operations of one run share its processes, its caches and its bad luck, so they are not independent; runs are.
What is drawn with replacement is therefore whole runs, and for a difference whole pairs of runs.

With few runs the plain percentile interval is too narrow: 5 runs give about 83 % instead of 95 %. Its tails
are widened as Hesterberg proposes ("What Teachers Should Know about the Bootstrap", 2015, expanded percentile
interval), which for 5 pairs comes close to the range of the observed values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

RUNS_MIN: Final = 4
"""Fewer runs or pairs give no interval: nothing that could be drawn from 3 values deserves the name."""

DRAWS: Final = 4000
CONFIDENCE: Final = 0.95

_T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""0.975 quantile of Student's t for 1 to 20 degrees of freedom; beyond, 1.96 + 2.5 / df is within 0.01."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its interval.

    ``value``, ``low`` and ``high`` may be infinite: a change that never became visible. ``low`` and ``high``
    are None with fewer than ``RUNS_MIN`` runs.
    """

    value: float
    low: float | None
    high: float | None
    runs: int
    endless: tuple[int, int] = (0, 0)
    """In how many runs there is a value without end, below and above; of pairs, on the left and on the
    right side."""

    def excludes_zero(self) -> bool:
        """Whether there is an interval and 0 is outside of it."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values counted per run: what a percentile is read from.

    ``values``: ascending, shape (V,). ``counts``: how often each run saw each value, shape (runs, V).
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]


def sample(rows: Sequence[tuple[int, float, int]], *, runs: int) -> Sample:
    """Build a sample from (run index, value, count) rows in any order."""
    values, places = np.unique(np.array([row[1] for row in rows], dtype=np.float64), return_inverse=True)
    counts = np.zeros((runs, len(values)), dtype=np.int64)
    np.add.at(counts, (np.array([row[0] for row in rows], dtype=np.intp), places), [row[2] for row in rows])
    return Sample(values=values, counts=counts)


def tail(runs: int) -> float:
    """Return the share of draws to leave out at each end, widened for few runs."""
    freedom = runs - 1
    t = _T_975[freedom - 1] if freedom <= len(_T_975) else NormalDist().inv_cdf(0.975) + 2.5 / freedom
    return NormalDist().cdf(-t * math.sqrt(runs / freedom))


def run_weights(runs: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Draw ``runs`` runs with replacement, ``DRAWS`` times; shape (DRAWS, runs), how often each was drawn."""
    return np.random.default_rng(seed).multinomial(runs, np.full(runs, 1 / runs), size=DRAWS)


def interval(drawn: NDArray[np.float64], *, runs: int) -> tuple[float, float]:
    """Return the interval from a statistic of each draw. Never interpolates, so infinite values are
    welcome."""
    ends = np.quantile(drawn, [tail(runs), 1 - tail(runs)], method="inverted_cdf")
    return float(ends[0]), float(ends[1])


def mean_of_runs(values: Sequence[float]) -> Estimate:
    """Estimate the mean of one value per run (or of one difference per pair).

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("a mean needs at least one run")
    array = np.asarray(values, dtype=np.float64)
    runs = len(array)
    if runs < RUNS_MIN:
        return Estimate(value=float(array.mean()), low=None, high=None, runs=runs)
    if not np.isfinite(array).all():
        endless = (int((array == -math.inf).sum()), int((array == math.inf).sum()))
        with np.errstate(invalid="ignore"):  # inf - inf, if some differences have no end at either side
            value = float(array.mean())
        return Estimate(value=value, low=-math.inf, high=math.inf, runs=runs, endless=endless)
    low, high = interval((run_weights(runs) @ array) / runs, runs=runs)
    # A mean of equal values differs from them in the last bit; the interval must not miss its own value.
    value = float(array.mean())
    return Estimate(value=value, low=min(low, value), high=max(high, value), runs=runs)


def percentile_of_merged(data: Sample, quantile: float) -> Estimate:
    """Estimate a percentile of all runs' values together; runs are drawn, their counts add up."""
    runs = data.counts.shape[0]
    value = float(weighted_percentile(data.values, data.counts.sum(axis=0)[None, :], quantile)[0])
    if runs < RUNS_MIN:
        return Estimate(value=value, low=None, high=None, runs=runs)
    drawn = weighted_percentile(data.values, run_weights(runs) @ data.counts, quantile)
    low, high = interval(drawn[~np.isnan(drawn)], runs=runs)
    return Estimate(value=value, low=low, high=high, runs=runs, endless=(0, _endless(data)))


def percentile_difference(left: Sample, right: Sample, quantile: float) -> Estimate:
    """Estimate ``right`` minus ``left`` in a percentile; row i of both is pair i, and pairs are drawn.

    Raises:
        ValueError: If the samples differ in the number of runs.
    """
    pairs = left.counts.shape[0]
    if right.counts.shape[0] != pairs:
        raise ValueError(f"pairs need equal numbers of runs: {pairs} against {right.counts.shape[0]}")

    def difference(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        first = weighted_percentile(left.values, weights @ left.counts, quantile)
        second = weighted_percentile(right.values, weights @ right.counts, quantile)
        with np.errstate(invalid="ignore"):  # inf - inf: neither ever ended, no difference can be told
            return second - first

    value = float(difference(np.ones((1, pairs), dtype=np.int64))[0])
    if pairs < RUNS_MIN:
        return Estimate(value=value, low=None, high=None, runs=pairs)
    drawn = difference(run_weights(pairs))
    endless = (_endless(left), _endless(right))
    if np.isnan(drawn).any() or math.isnan(value):
        return Estimate(value=value, low=-math.inf, high=math.inf, runs=pairs, endless=endless)
    low, high = interval(drawn, runs=pairs)
    return Estimate(value=value, low=low, high=high, runs=pairs, endless=endless)


def _endless(data: Sample) -> int:
    """Return how many runs have a value without end."""
    return int((data.counts[:, np.isinf(data.values)].sum(axis=1) > 0).sum())


def weighted_percentile(
    values: NDArray[np.float64], weights: NDArray[np.int64], quantile: float
) -> NDArray[np.float64]:
    """Return the percentile for each row of ``weights``, as if each value stood there ``weight`` times.

    Linear between neighbours, as numpy's and Spark's exact percentile. A row without weight gives nan.
    """
    if not len(values):
        return np.full(weights.shape[0], np.nan)
    cumulative = np.cumsum(weights, axis=1)
    totals = cumulative[:, -1]
    position = quantile * np.maximum(totals - 1, 0)
    below = np.floor(position)
    low = values[np.minimum((cumulative <= below[:, None]).sum(axis=1), len(values) - 1)]
    high = values[np.minimum((cumulative <= np.ceil(position)[:, None]).sum(axis=1), len(values) - 1)]
    with np.errstate(invalid="ignore"):
        between = np.where(low == high, low, low + (high - low) * (position - below))
    return np.where(totals > 0, between, np.nan)
