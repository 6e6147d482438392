"""Histogram of durations that is cheap enough to be updated for every request.

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

#: Upper bounds in seconds. The shortest bounds suit the look-up of a route. The longest bounds suit a change
#: that waits for other members.
BOUNDS_S: Final = (
    *(0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
_LABELS: Final = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Histogram:
    """Number of durations up to each bound, and the sum of all durations.

    Only one thread may call :meth:`observe`, because two threads could lose each other's additions. Other
    threads may read the histogram at any time; they miss at most the last duration.
    """

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add a duration ``count`` times."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum += seconds * count

    def plus(self, other: Histogram) -> Histogram:
        """Return a new histogram with the durations of this histogram and of ``other``."""
        both = Histogram()
        both.sum = self.sum + other.sum
        both._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        return both

    @property
    def count(self) -> int:
        """Number of all durations in this histogram."""
        return sum(self._counts)

    def samples(self, labels: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the samples for Prometheus, each as name suffix, labels and value."""
        total = 0
        for bound, count in zip(_LABELS, list(self._counts), strict=True):
            total += count
            yield "_bucket", {**labels, "le": bound}, total
        yield "_sum", dict(labels), self.sum
        yield "_count", dict(labels), total
