"""Statistics of a difference over rounds: the median of the rounds' differences, and its interval.

This module does no I/O and reads no clock. A difference is always the first design's value minus the second
design's value.

A round ("block" in the code) has one run of every design, in random order. Operations of one run are not
independent, because they share processes and disturbances. Rounds share only the machine. So the statistics
count each round as one observation.

The ends of the interval are differences of rounds (order statistics), so no distribution has to be assumed.
The range of ``n`` independent differences misses the true median only if all differences lie on one side of
the median. The probability of this is ``1 / 2 ** (n - 1)``. So the range of six rounds contains the true
median with a probability of 96.9 %, and the range of ten rounds with 99.8 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

VERDICT_BLOCKS_MIN: Final = 10
"""Least number of rounds for a verdict. With fewer rounds, the page only describes differences."""

CONFIDENCE: Final = 1 - 2 / 2**VERDICT_BLOCKS_MIN
"""Probability that one verdict is right: 99.8 %.

Eight verdicts together are right with a probability of 98 %.
"""

ABOVE_MIN: Final = 10
"""Least number of observations above a percentile. With fewer, single requests would decide its value."""

_Block = TypeVar("_Block", int, tuple[str, int])

Verdict = Literal["better", "worse", "equivalent", "inconclusive", "all blocks", "mixed", "no block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median of the rounds' differences, and an interval around it.

    The ends of the interval (``low``, ``high``) may be infinite if a design never recovered. If neither
    design recovered in a round, the difference of this round is unknown. It counts as -infinity for ``low``,
    and as +infinity for ``high``.
    """

    value: float
    low: float
    high: float
    blocks: int
    below: int
    """Number of rounds in which the first design's value is smaller than the second design's value."""
    above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A comparison of two designs by one measure in one series, with a margin that was set before any run.

    ``margin``: the smallest difference that would change a decision, in the measure's unit. None if the page
    only shows the measure, and draws no conclusion.
    """

    measure: str
    arms: tuple[str, str]
    series: str
    margin: float | None = None
    lower_is_better: bool = True


def differences(first: Mapping[_Block, float], second: Mapping[_Block, float]) -> list[float]:
    """Return first minus second for every round that has both values, in the order of the rounds.

    If one of the two designs has no valid run in a round, the round is left out. No run of another round
    replaces the missing run. The difference of two infinite values is nan.
    """
    return [_minus(first[block], second[block]) for block in sorted(first.keys() & second.keys())]


def _minus(first: float, second: float) -> float:
    return math.nan if math.isinf(first) and first == second else first - second


def estimate(found: Sequence[float]) -> Estimate | None:
    """Return the median and the interval of the rounds' differences, or None without differences."""
    if not found:
        return None
    n = len(found)
    lowest = sorted(-math.inf if math.isnan(each) else each for each in found)
    highest = sorted(math.inf if math.isnan(each) else each for each in found)
    known = sorted(each for each in found if not math.isnan(each))
    rank = order_statistic(n)
    return Estimate(
        value=_median(known) if known else math.nan,
        low=lowest[rank],
        high=highest[n - 1 - rank],
        blocks=n,
        below=sum(each < 0 for each in known),
        above=sum(each > 0 for each in known),
    )


def _median(ordered: Sequence[float]) -> float:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2


def coverage(n: int, rank: int) -> float:
    """Return the probability that the true median lies between two of ``n`` ordered values.

    One of the two values has ``rank`` values below it, and the other has ``rank`` values above it. With rank
    0, the two values are the lowest and the highest value.
    """
    missed: float = sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    return max(1 - 2 * missed, 0.0)


def order_statistic(n: int) -> int:
    """Return how many of ``n`` sorted values a confidence interval leaves out at each end.

    This number (rank) is the largest for which the interval has at least the probability ``CONFIDENCE``. If
    no rank gives this probability, return 0, which means the range of all values.
    """
    rank = 0
    while 2 * (rank + 1) < n and coverage(n, rank + 1) >= CONFIDENCE:
        rank += 1
    return rank


def judge(found: Estimate | None, line: Line) -> Verdict:
    """Return the result for a measure's first design.

    - ``better`` and ``worse``: the whole interval lies beyond the margin.
    - ``equivalent``: the whole interval lies within the margin.
    - ``inconclusive``: all other cases.
    - ``all blocks`` and ``mixed``: there are fewer than ``VERDICT_BLOCKS_MIN`` rounds, or no margin. The
      result only says whether one design had the lower value in all rounds.

    Two experiments can disagree. If one finds ``better`` and the other ``equivalent``, at least one of the
    two intervals does not contain the true value.
    """
    if found is None:
        return "no block"
    if found.blocks < VERDICT_BLOCKS_MIN or line.margin is None:
        return "all blocks" if found.blocks in (found.below, found.above) else "mixed"
    if found.low > line.margin:
        return "worse" if line.lower_is_better else "better"
    if found.high < -line.margin:
        return "better" if line.lower_is_better else "worse"
    if -line.margin <= found.low and found.high <= line.margin:
        return "equivalent"
    return "inconclusive"


def percentile_may_be_told(n: int, quantile: float) -> bool:
    """Return True if at least ``ABOVE_MIN`` of ``n`` observations lie above the percentile."""
    return n * (1 - quantile) >= ABOVE_MIN - 1e-9


def percentile(rows: Sequence[tuple[float, int]], quantile: float) -> float | None:
    """Return a percentile of (value, count) rows, or None if too few observations lie above it.

    The rows are merged histograms or raw values. The percentile is the smallest value that the share
    ``quantile`` of the observations does not exceed. It is never interpolated, so it may be infinite.
    """
    n = sum(count for _, count in rows)
    if not percentile_may_be_told(n, quantile):
        return None
    wanted, seen = math.ceil(quantile * n - 1e-9), 0
    for value, count in sorted(rows):
        seen += count
        if seen >= max(wanted, 1):
            return value
    raise AssertionError("the counts add up to n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A recovery time, split into a fixed part and a part that the timers' divisor scales.

    ``low`` and ``high`` are bounds of the whole time with RocketMQ's own timers (divisor 1).

    - Measurements at two divisors determine both parts, and the two bounds are equal.
    - A measurement at one divisor determines only the bounds. ``low`` is the time if no part scales, and
      ``high`` is the time if the whole time scales.
    """

    fixed: float | None
    scaled: float | None
    """Seconds that the scaled part takes at divisor 1."""
    low: float
    high: float


def split(measured: Mapping[float, float], kept: float = 0.0) -> Split | None:
    """Split a recovery time into a fixed and a scaled part, by its values at one or more divisors.

    Return None without values, or if a value is infinite. At divisor ``d`` a recovery takes ``fixed + scaled
    / d``. If there are more than two divisors, only the smallest and the largest are used.

    No part can be negative. If chance makes a part negative, it counts as 0, and the remaining part is fitted
    to both values by least squares.

    Args:
        measured: Values by divisor.
        kept: Time in s for which the harness kept servers down. This time does not scale.
    """
    if not measured or any(not math.isfinite(value) for value in measured.values()):
        return None
    small, large = min(measured), max(measured)
    if small == large:
        value = measured[small]
        # If a recovery ended while the servers were still down, it did not wait for their start. So its time
        # does not contain the time for which the servers were down.
        known = kept if value >= kept else 0.0
        return Split(fixed=None, scaled=None, low=value, high=known + (value - known) * small)
    scaled = (measured[small] - measured[large]) / (1 / small - 1 / large)
    fixed = measured[small] - scaled / small
    if scaled < 0:
        fixed, scaled = (measured[small] + measured[large]) / 2, 0.0
    elif fixed < 0:
        weight = 1 / small**2 + 1 / large**2
        fixed, scaled = 0.0, (measured[small] / small + measured[large] / large) / weight
    return Split(fixed=fixed, scaled=scaled, low=fixed + scaled, high=fixed + scaled)
