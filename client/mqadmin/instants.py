"""Options whose value is a time."""

from __future__ import annotations

from datetime import datetime

from routekeeper.remoting.lenient import INT64_MAX

from .options import Arguments, UsageError


def instant(args: Arguments, short: str) -> int:
    """Return the time that an option names, in Unix ms; 0 if the option is absent.

    Raises:
        UsageError: If the text is neither a number of ms nor a local time from 1970 (UTC) on.
    """
    text = args.get(short)
    if text is None:
        return 0
    try:
        if text.isdecimal():
            wall_ms = int(text)
        else:
            moment, _, ms = text.rpartition(":")
            wall_ms = int(datetime.strptime(moment, "%Y-%m-%d#%H:%M:%S").timestamp()) * 1000 + int(ms)
        if wall_ms > INT64_MAX:
            raise ValueError
    except ValueError:  # Python also raises ValueError for a number of more than 4,300 digits
        raise UsageError(f"-{short} {text!r}, allowed currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS") from None
    if wall_ms < 0:
        # Brokers treat a negative time as the end of the queue.
        raise UsageError(f"-{short} {text!r} is before 1970-01-01 00:00 UTC; 0 is the beginning")
    return wall_ms
