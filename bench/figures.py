"""From raw latencies to the lines of the result; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed; ``ordered`` ascends."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, smallest and largest in brackets, each written by the format ``form``."""
    if not values:
        return "-"
    if len(values) == 1:
        return format(values[0], form)
    return f"{format(middle(values), form)} ({format(min(values), form)}..{format(max(values), form)})"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the median of the ratios round by round, because influences on a whole round cancel."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    return statistics.median(pairs) if pairs else None


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics between which the median lies with 95 %, for 6 values and more."""
    ordered = sorted(values)
    apart = int(0.98 * len(ordered) ** 0.5) + 1
    half = len(ordered) // 2
    return ordered[max(half - apart, 0)], ordered[min(half + apart, len(ordered) - 1)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: first column left, the others right."""
    widths = [max(len(line[column]) for line in (heads, *rows)) for column in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (heads, *rows)
    ]
