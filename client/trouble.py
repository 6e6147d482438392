"""Log lines about failures that go on: one when they start, one a minute, and one when they are over.

Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

#: Seconds between two lines about the same trouble.
LINE_PERIOD_S: Final = 60.0


class TroubleLog:
    """Logs one kind of failure; omitted lines are logged at DEBUG.

    A failure is over when every part that failed works again. If it comes and goes, it gets one pair of lines
    in a period.

    Args:
        over: The line that says that it is over, with its values.
        quiet_s: Seconds without a failure after which it is over; for parts that work only now and then.
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
        """Log a failure, or count it.

        Args:
            source: The part that failed; :meth:`worked` must name the same part.
            error: Its traceback follows the line.
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
        """Log that the failure is over, if this was the last failed part."""
        if not self._failing or now_s - self._last_s < self._quiet_s:
            return
        self.forget(source)
        if self._told and not self._failing:
            self._logger.warning(self._over + " failures=%d", *self._values, self._failures)
            self._told, self._failures, self._untold = False, 0, 0

    def forget(self, source: Hashable) -> None:
        """Stop waiting for a part to work again, because it is not used any more."""
        self._failing.discard(source)
