"""Limits of the log lines that peers can cause: for each peer, for each event, and in total.

This module does no I/O.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

LINES_PER_PEER: Final = 10
"""Largest number of lines about one peer that a :class:`LimitedLog` writes in :data:`WINDOW_S` seconds."""
LINES_OVERALL: Final = 60
"""Largest number of lines about all peers that a :class:`LimitedLog` writes in :data:`WINDOW_S` seconds."""
WINDOW_S: Final = 10.0
EVENT_LINES: Final = 400
"""Largest number of lines of one event that an :class:`EventLimit` allows in :data:`EVENT_WINDOW_S` seconds.

Each broker that starts may cause a line of the same event. More brokers than this number rarely start at the
same time.
"""
EVENT_LINES_PER_SUBJECT: Final = 40
"""Largest number of lines of one event, in :data:`EVENT_WINDOW_S` seconds, that have the same first value.

The first value is the subject of the line, such as a broker's name.
"""
EVENT_WINDOW_S: Final = 60.0
EVENTS_MAX: Final = 1_000
"""Largest number of events with their own limits; all further events share one limit."""


class LineLimit:
    """Limit of log lines in a time window, for each peer and in total; counts the lines above the limit.

    Args:
        per_peer: Largest number of lines about one peer in a window.
        overall: Largest number of lines about all peers in a window; also the largest number of stored peers.
        window_s: Length of a window in seconds.
    """

    def __init__(self, *, per_peer: int = 30, overall: int = 120, window_s: float = 60.0) -> None:
        self._per_peer = per_peer
        self._overall = overall
        self._window_s = window_s
        self._until = 0.0
        self._lines: Counter[str] = Counter()
        self._let_through = 0
        self._suppressed = 0

    def allow(self, peer: str) -> bool:
        """Return True if this window allows one more line about a peer; else count the line as suppressed."""
        if self._let_through >= self._overall or self._lines[peer] >= self._per_peer:
            self._suppressed += 1
            return False
        self._let_through += 1
        self._lines[peer] += 1
        return True

    def turn(self, now: float) -> int:
        """Begin a new window if the present window is over; return the number of lines that it suppressed.

        Call this before :meth:`allow`. Also call it from time to time, so that the caller can log the number
        even if no more lines come.

        Args:
            now: Present time in seconds.
        """
        if now < self._until:
            return 0
        self._until = now + self._window_s
        suppressed, self._suppressed = self._suppressed, 0
        self._let_through = 0
        self._lines.clear()
        return suppressed


class LimitedLog:
    """Log that limits the lines which peers cause, and logs the number of suppressed lines.

    Args:
        clock: Returns the present time in seconds.
        limit: None for :data:`LINES_PER_PEER` and :data:`LINES_OVERALL` lines in each :data:`WINDOW_S`.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float], limit: LineLimit | None = None
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._limit = limit or LineLimit(per_peer=LINES_PER_PEER, overall=LINES_OVERALL, window_s=WINDOW_S)

    def write(self, level: int, peer: str, message: str, *values: object) -> None:
        """Write a line about a peer if the limit allows it; otherwise count it as suppressed."""
        self.tell_suppressed()
        if self._limit.allow(peer):
            self._logger.log(level, message, *values)

    def tell_suppressed(self) -> None:
        """Log the number of lines that the last window suppressed, if any. Call this from time to time."""
        if suppressed := self._limit.turn(self._clock()):
            self._logger.warning("lines about peers not written count=%d", suppressed)


class EventLimit:
    """Limit of log lines in a time window for each event; counts the lines above the limit.

    An event is the text of a line without its values. Each event has its own limit, so that a frequent event
    does not suppress the lines of other events.
    """

    def __init__(self) -> None:
        self._limits: dict[str, LineLimit] = {}

    def allow(self, event: str, subject: str, now: float) -> bool:
        """Return True if one more line of an event may be written in this window.

        Args:
            subject: First value of the line, such as a broker's name. In addition to the limit of the event,
                each subject has a smaller limit.
            now: Present time in seconds.
        """
        if event not in self._limits and len(self._limits) >= EVENTS_MAX:
            event = "others"
        limit = self._limits.get(event)
        if limit is None:
            limit = self._limits[event] = LineLimit(
                per_peer=EVENT_LINES_PER_SUBJECT, overall=EVENT_LINES, window_s=EVENT_WINDOW_S
            )
            limit.turn(now)
        return limit.allow(subject)

    def turn(self, now: float) -> list[tuple[str, int]]:
        """Begin a new window for each event whose window is over; return the numbers of suppressed lines.

        Args:
            now: Present time in seconds; ``math.inf`` ends all windows.

        Returns:
            Each event that had suppressed lines, with their number.
        """
        counts = [(event, limit.turn(now)) for event, limit in self._limits.items()]
        return [(event, count) for event, count in counts if count]
