"""Statistics of a difference over rounds: the median of their differences and its order statistics (pure).

A round ("block" in the code) has one run of every arm, in random order. Operations of one run share its
processes and disturbances; rounds share only the machine, so the round is the unit. Order statistics suppose
no distribution: the range of ``n`` independent differences misses their median only if all lie on one side
of it, which happens once in ``2 ** (n - 1)``. Six rounds contain it with 96.9 %, ten with 99.8 %, for any
distribution.

A difference is always the first arm's value minus the second's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

VERDICT_BLOCKS_MIN: Final = 10
"""With fewer blocks, differences are described, and no design is called better."""

CONFIDENCE: Final = 1 - 2 / 2**VERDICT_BLOCKS_MIN
"""Probability that one verdict is right: 99.8 %. So :data:`PRIMARY_MAX` verdicts are all right with 98 %."""

PRIMARY_MAX: Final = 8
ABOVE_MIN: Final = 10
"""Observations that must lie above a percentile; with fewer, it depends on single requests."""

_Block = TypeVar("_Block", int, tuple[str, int])

Verdict = Literal["better", "worse", "equivalent", "inconclusive", "all blocks", "mixed", "no block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median of the blocks' differences and the interval that their order statistics give.

    ``low`` and ``high`` may be infinite, if an arm never recovered. If neither arm recovered in a round,
    their difference is unknown, and the interval extends to both sides.
    """

    value: float
    low: float
    high: float
    confidence: float
    """Probability that the interval holds the median; 0 for one block."""
    blocks: int
    below: int
    """Blocks in which the first arm's value is the smaller one."""
    above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measure, one pair of arms, one series, with the margin that was named before anything ran.

    ``margin``: the smallest difference that would change a decision, in the measure's unit; None for a line
    that is described only.
    """

    measure: str
    arms: tuple[str, str]
    series: str
    margin: float | None = None
    lower_is_better: bool = True


def differences(first: Mapping[_Block, float], second: Mapping[_Block, float]) -> list[float]:
    """Return first minus second of every block that has both, in the blocks' order.

    A round that lost one of its runs is left out for this pair of arms only; no run of another round replaces
    it. Two infinite values give nan.
    """
    return [_minus(first[block], second[block]) for block in sorted(first.keys() & second.keys())]


def _minus(first: float, second: float) -> float:
    return math.nan if math.isinf(first) and first == second else first - second


def estimate(found: Sequence[float]) -> Estimate | None:
    """Return median and interval of the blocks' differences; None without any."""
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
        confidence=coverage(n, rank),
        blocks=n,
        below=sum(each < 0 for each in known),
        above=sum(each > 0 for each in known),
    )


def _median(ordered: Sequence[float]) -> float:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2


def coverage(n: int, rank: int) -> float:
    """Return the probability that the median lies between the order statistics ``rank`` from both ends."""
    missed: float = sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    return max(1 - 2 * missed, 0.0)


def order_statistic(n: int) -> int:
    """Return the rank from each end, counted from 0, that still holds the median with ``CONFIDENCE``."""
    rank = 0
    while 2 * (rank + 1) < n and coverage(n, rank + 1) >= CONFIDENCE:
        rank += 1
    return rank


def judge(found: Estimate | None, line: Line) -> Verdict:
    """Return the result for a measure's first arm.

    ``better`` and ``worse`` need the whole interval beyond the margin, ``equivalent`` needs the whole
    interval within it. So two experiments can find ``better`` and ``equivalent`` only if the interval of one
    of them does not hold the true value. In all other cases the line is inconclusive. With fewer than
    ``VERDICT_BLOCKS_MIN`` blocks the result only says whether all blocks agree.
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
    """Return whether at least ``ABOVE_MIN`` of ``n`` observations lie above the percentile."""
    return n * (1 - quantile) >= ABOVE_MIN - 1e-9


def percentile(rows: Sequence[tuple[float, int]], quantile: float) -> float | None:
    """Return a percentile of (value, count) rows of merged histograms or raw values; None if too few.

    It is the smallest value that at least the share ``quantile`` of the observations does not exceed. It is
    never interpolated, so values may be infinite.
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

    ``low`` and ``high`` are bounds of the whole time with RocketMQ's own timers. From measurements at two
    divisors both parts follow, and the bounds are equal. From one divisor only bounds follow: at ``low``
    nothing scales, at ``high`` everything does.
    """

    fixed: float | None
    scaled: float | None
    """The scaled part at divisor 1."""
    low: float
    high: float


def split(measured: Mapping[float, float], kept: float = 0.0) -> Split | None:
    """Split a recovery by its values at one or more divisors; None without values or if one is infinite.

    At divisor ``d`` a recovery is ``fixed + scaled / d``. Of more than two divisors the smallest and the
    largest are used, because they lie farthest apart. No part can be negative: if chance makes a part
    negative, it counts as 0, and the other part is fitted to both values by least squares.

    Args:
        kept: Time for which the experimenter kept servers down, which does not scale.
    """
    if not measured or any(not math.isfinite(value) for value in measured.values()):
        return None
    small, large = min(measured), max(measured)
    if small == large:
        value = measured[small]
        # A recovery that ended while the servers were still down did not wait for their start.
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
