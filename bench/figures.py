"""Statistics of raw latencies, and lines of text for the results.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile: the smallest value v such that at least ``share`` of all values are <= v.

    Args:
        ordered: All values, ascending.
        share: Number from 0 to 1, such as 0.99 for the 99th percentile.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], form: str) -> str:
    """Return a text such as ``5.0 (3.1..9.2)``: the median, then the smallest and the largest value.

    Args:
        form: Format of every value, for example ``.2f``.
    """
    if not values:
        return "-"
    if len(values) == 1:
        return format(values[0], form)
    return f"{format(middle(values), form)} ({format(min(values), form)}..{format(max(values), form)})"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the median of ``ours / theirs`` over all rounds, or None if there are no rounds.

    If a disturbance lasts for a whole round, it changes both values in the same proportion. So their ratio
    stays the same.
    """
    pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    return statistics.median(pairs) if pairs else None


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median. Both ends are elements of ``values``.

    The result is valid only for 6 or more values.
    """
    ordered = sorted(values)
    apart = int(0.98 * len(ordered) ** 0.5) + 1
    half = len(ordered) // 2
    return ordered[max(half - apart, 0)], ordered[min(half + apart, len(ordered) - 1)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. The first column is aligned left, all other columns right."""
    widths = [max(len(line[column]) for line in (heads, *rows)) for column in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (heads, *rows)
    ]
