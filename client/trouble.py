"""Log lines for long failures: one line at the start, one each minute, and one at the end.

This module does no I/O and reads no clock: the caller passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

#: Seconds between two log lines about the same failure.
LINE_PERIOD_S: Final = 60.0


class TroubleLog:
    """A logger for one kind of failure. It logs lines that would come too often at level DEBUG only.

    A failure has ended when every part that failed works again. If a failure comes and goes, only one start
    and one end are logged in each period of ``LINE_PERIOD_S`` seconds.

    Args:
        over: The log line at the failure's end, with its values.
        quiet_s: Seconds without a failure that must pass before a success ends the failure. Use this for
            parts that sometimes work while the failure lasts.
    """

    def __init__(self, logger: logging.Logger, over: str, *values: object, quiet_s: float = 0.0) -> None:
        self._logger = logger
        self._over = over
        self._values = values
        self._quiet_s = quiet_s
        self._failing: set[Hashable] = set()
        self._failures = 0
        self._untold = 0
        self._last_s = self._next_line_s = float("-inf")
        self._told = False

    def failed(
        self,
        now_s: float,
        line: str,
        *values: object,
        source: Hashable = None,
        level: int = logging.WARNING,
        error: BaseException | None = None,
    ) -> None:
        """Log a failure. If the last log line was less than a period ago, only count the failure.

        Args:
            source: The part that failed, such as a queue. A later call of :meth:`worked` must name the same
                part.
            error: Exception whose traceback follows the log line.
        """
        self._failing.add(source)
        self._failures += 1
        self._untold += 1
        self._last_s = now_s
        if now_s < self._next_line_s:
            self._logger.debug(line, *values)
            return
        if self._untold > 1:
            line, values = line + " failures=%d", (*values, self._untold)
        self._next_line_s = now_s + LINE_PERIOD_S
        self._told, self._untold = True, 0
        self._logger.log(level, line, *values, exc_info=error)

    def worked(self, now_s: float, *, source: Hashable = None) -> None:
        """Record that a part works. If all other parts work, too, log the end of the failure."""
        if not self._failing or now_s - self._last_s < self._quiet_s:
            return
        self.forget(source)
        if self._told and not self._failing:
            self._logger.warning(self._over + " failures=%d", *self._values, self._failures)
            self._told, self._failures, self._untold = False, 0, 0

    def forget(self, source: Hashable) -> None:
        """Do not count a part as failed any more, because it is no longer used."""
        self._failing.discard(source)
