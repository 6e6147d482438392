"""The wall clock, which works even after the year 2262, where Python's own functions raise OverflowError."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial


def now_ms() -> int:
    """Return the Unix time in ms."""
    return int(time.clock_gettime(time.CLOCK_REALTIME) * 1000)


def bear_far_clocks() -> None:
    """Replace :func:`time.time`, which logging and libraries call, by one that works beyond 2262.

    Python's function counts ns in 64 bits. Programs call this first, because the import of logging already
    calls that function.
    """
    setattr(time, "time", partial(time.clock_gettime, time.CLOCK_REALTIME))  # noqa: B010 - mypy allows no other way


def calendar(seconds: float) -> datetime:
    """Return an instant in UTC; the calendar's last one for instants beyond it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def local_text(wall_ms: int) -> str:
    """Return local time as ``2026-11-21 12:01:10``; beyond the calendar, the number of ms."""
    try:
        return f"{datetime.fromtimestamp(wall_ms // 1000):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)
