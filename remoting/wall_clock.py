"""The wall clock, also beyond the year 2262, where Python's own functions raise OverflowError."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial


def now_ms() -> int:
    """Return Unix ms."""
    return int(time.clock_gettime(time.CLOCK_REALTIME) * 1000)


def bear_far_clocks() -> None:
    """Replace :func:`time.time`, which logging and libraries call, by one that works beyond 2262.

    It counts ns in 64 bits. Programs call this first: already to import logging calls it.
    """
    setattr(time, "time", partial(time.clock_gettime, time.CLOCK_REALTIME))  # noqa: B010 - mypy allows no other way


def calendar(seconds: float) -> datetime:
    """Return an instant in UTC, the last one that the calendar has for those beyond it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def local_text(wall_ms: int) -> str:
    """Return local time as ``2026-11-21 12:01:10``; the number of ms itself beyond the calendar."""
    try:
        return f"{datetime.fromtimestamp(wall_ms // 1000):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)
