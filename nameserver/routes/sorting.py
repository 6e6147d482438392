"""Sorting of names in steps. This module does no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from routekeeper.remoting.steps import STEP, Steps, in_chunks

MERGE_MAX: Final = 32 * STEP
"""Largest number of names that one step merges. This is one call into C, which takes about 2 ms."""


def sorting(names: Iterable[str]) -> Steps[list[str]]:
    """Sort names in steps, so that the event loop can do other work between two steps."""
    runs = []
    for chunk in in_chunks(names):
        chunk.sort()
        runs.append(chunk)
        yield
    while len(runs) > 1:
        merged = []
        for first in range(0, len(runs) - 1, 2):
            merged.append((yield from _merging(runs[first], runs[first + 1])))
        runs = merged + (runs[-1:] if len(runs) % 2 else [])
    return runs[0] if runs else []


def _merging(one: list[str], other: list[str]) -> Steps[list[str]]:
    """Merge two sorted lists. Split large lists, so that no step merges more than MERGE_MAX names."""
    if len(one) < len(other):
        one, other = other, one
    if not other or len(one) + len(other) <= MERGE_MAX:
        merged = one + other
        merged.sort()  # This is fast, because sort() only merges the two sorted parts of the list.
        yield
        return merged
    half = len(one) // 2
    cut = bisect_left(other, one[half])
    below = yield from _merging(one[:half], other[:cut])
    above = yield from _merging(one[half:], other[cut:])
    return below + above
