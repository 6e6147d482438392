"""Bounds of the log lines that strangers may cause: for each peer, for each event, and in all; pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

LINES_PER_PEER: Final = 10
"""Lines about one peer that a :class:`LimitedLog` writes in a window."""
LINES_OVERALL: Final = 60
"""Lines about all peers in a window."""
WINDOW_S: Final = 10.0
EVENT_LINES: Final = 400
"""Lines of one event in a window of an :class:`EventLimit`: more brokers than this rarely start at once."""
EVENT_LINES_PER_SUBJECT: Final = 40
"""Bound of those lines that begin with the same value, such as one broker's."""
EVENT_WINDOW_S: Final = 60.0
EVENTS_MAX: Final = 1_000
"""Bound of the events with a limit of their own; all others share one limit."""


class LineLimit:
    """Lets some lines about each peer through in a window of time, and counts the others.

    Args:
        per_peer: Lines about one peer in a window.
        overall: Lines about all peers in a window; also the bound on peers remembered.
        window_s: Seconds of a window.
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
        """Return whether one more line about a peer may be written in this window."""
        if self._let_through >= self._overall or self._lines[peer] >= self._per_peer:
            self._suppressed += 1
            return False
        self._let_through += 1
        self._lines[peer] += 1
        return True

    def turn(self, now: float) -> int:
        """Begin a new window if the last one is over; return how many lines the last one left out.

        Call it before :meth:`allow`, and also from time to time, so that the count is logged.

        Args:
            now: Seconds.
        """
        if now < self._until:
            return 0
        self._until = now + self._window_s
        suppressed, self._suppressed = self._suppressed, 0
        self._let_through = 0
        self._lines.clear()
        return suppressed


class LimitedLog:
    """Writes lines that peers cause, within a limit, and logs how many it left out.

    Args:
        clock: Returns seconds.
        limit: None means :data:`LINES_PER_PEER` and :data:`LINES_OVERALL` in :data:`WINDOW_S`.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float], limit: LineLimit | None = None
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._limit = limit or LineLimit(per_peer=LINES_PER_PEER, overall=LINES_OVERALL, window_s=WINDOW_S)

    def write(self, level: int, peer: str, message: str, *values: object) -> None:
        """Write a line about a peer, or count it."""
        self.tell_suppressed()
        if self._limit.allow(peer):
            self._logger.log(level, message, *values)

    def tell_suppressed(self) -> None:
        """Log how many lines the last window left out, if any. Call it from time to time."""
        if suppressed := self._limit.turn(self._clock()):
            self._logger.warning("lines about peers not written count=%d", suppressed)


class EventLimit:
    """Lets some lines of each event through in a window of time, and counts the others.

    An event is the text of a line without its values, so that one event hides no other.
    """

    def __init__(self) -> None:
        self._limits: dict[str, LineLimit] = {}

    def allow(self, event: str, subject: str, now: float) -> bool:
        """Return whether one more line of an event may be written in this window.

        Args:
            subject: The line's first value.
            now: Seconds.
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
        """Begin new windows where the last one is over; return events with the number of omitted lines.

        Args:
            now: Seconds; ``math.inf`` ends all windows.
        """
        counts = [(event, limit.turn(now)) for event, limit in self._limits.items()]
        return [(event, count) for event, count in counts if count]
