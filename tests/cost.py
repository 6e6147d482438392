"""Measurement of a function's processor time, on a slow machine too, and beside other programs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

#: Number of tries. Other programs may slow down some tries, but hardly all of them.
TRIES: Final = 5

#: Number of additions by which :func:`on_this_machine` measures the machine's speed. On the usual machine,
#: for which the limits of the tests were chosen, they take ADDITIONS_S seconds of processor time.
ADDITIONS: Final = 600_000
ADDITIONS_S: Final = 0.03


def on_this_machine(limit_s: float) -> float:
    """Return a limit of processor time in s, multiplied if this machine is slower than the usual one.

    A virtual machine's speed may differ by a factor of four from one day to the next. The measurement takes
    some 30 ms, just before the test needs the limit.
    """
    begun = time.thread_time()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return limit_s * max(1.0, (time.thread_time() - begun) / ADDITIONS_S)


def least_cpu_s(make: Callable[[], Callable[[], object]], *, below: float) -> float:
    """Return the least processor time in s of up to :data:`TRIES` tries; stop after a try below the limit.

    If the function is too expensive, every try takes too long. A single try may also take too long for other
    reasons. For example, another program has filled the processor's cache.

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
