"""The clock of a member."""

from __future__ import annotations

import functools
import time
from typing import Final

#: Seconds that count pauses and suspends in full (rule 8). A partial, as each batch of reads asks.
boot_clock: Final = functools.partial(
    time.clock_gettime, time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
)
