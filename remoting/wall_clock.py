"""Wall clock functions that also work after the year 2262, when Python's functions raise OverflowError."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial


def now_ms() -> int:
    """Return the present Unix time in ms."""
    return int(time.clock_gettime(time.CLOCK_REALTIME) * 1000)


def bear_far_clocks() -> None:
    """Replace :func:`time.time`, which logging and libraries call, by a function that works after 2262.

    Python's function counts nanoseconds in 64 bits, and this counter overflows in 2262. Programs must call
    this before all other imports, because importing logging already calls :func:`time.time`.
    """
    setattr(time, "time", partial(time.clock_gettime, time.CLOCK_REALTIME))  # noqa: B010 - mypy allows no other way


def calendar(seconds: float) -> datetime:
    """Return Unix time ``seconds`` as a date in UTC; the latest possible date if the time is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def local_text(wall_ms: int) -> str:
    """Return local time as ``2026-11-21 12:01:10``; for dates out of range, ``wall_ms`` as text."""
    try:
        return f"{datetime.fromtimestamp(wall_ms // 1000):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)
