"""The processor time of a piece of work, without the share of everything else that runs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

#: Other processes, threads and tests make work dearer, never cheaper; not each of so many times.
TRIES: Final = 5


def least_cpu_s(make: Callable[[], Callable[[], object]], *, below: float) -> float:
    """Return the least processor time of some tries in s; the first one below a bound is the last.

    Work that is itself too dear is so each time. Caches that others empty are not its own cost, nor is
    another test's garbage.

    Args:
        make: Prepares one try; returns its work, which alone is measured.
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
