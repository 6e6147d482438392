"""Measure the processor time of a function, without the time of other programs that run meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

#: Number of tries. Other processes and threads can slow down some tries, but hardly all of them.
TRIES: Final = 5


def least_cpu_s(make: Callable[[], Callable[[], object]], *, below: float) -> float:
    """Return the least processor time in s of up to :data:`TRIES` tries; stop after a try below a limit.

    If the function is really too expensive, every try takes too long. A single try may be slow for other
    reasons: caches that other programs have emptied, or the garbage of another test.

    Args:
        make: Prepares one try; returns the function to measure. The preparation is not measured.
        below: The limit in s.
    """
    least = float("inf")
    for _ in range(TRIES):
        work = make()
        gc.disable()
        try:
            begun = time.thread_time()
            work()
            least = min(least, time.thread_time() - begun)
        finally:
            gc.enable()
        if least < below:
            break
    return least
