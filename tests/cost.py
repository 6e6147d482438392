"""A measurement of a function's processor time, on a machine on which other programs may run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

#: Number of tries. Other programs may slow down some tries, but hardly all of them.
TRIES: Final = 5


def least_cpu_s(make: Callable[[], Callable[[], object]], *, below: float) -> float:
    """Return the least processor time in s of up to :data:`TRIES` tries; stop after a try below the limit.

    If the function is too expensive, every try takes too long. A single try may also take too long for other
    reasons, such as a processor cache that another program has filled, or garbage of another test.

    Args:
        make: Function that prepares one try and returns the function to measure.
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
