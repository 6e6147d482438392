"""Lines about trouble that goes on: one when it starts, one a minute, and one when it is over. Pure."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

#: Seconds between two lines about the same trouble.
LINE_PERIOD_S: Final = 60.0


class TroubleLog:
    """Writes lines about one kind of trouble; those left out are written at DEBUG.

    Trouble is over when everything that failed works again. If it comes and goes, it gets one pair of lines
    in a period.

    Args:
        over: The line that says that it is over, with its values.
        quiet_s: It is over only after so many seconds without a failure, for what works now and then.
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
        """Tell of a failure, or count it.

        Args:
            source: The part that failed: :meth:`worked` is to name it, too.
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
        """Tell that the trouble is over, if this was the last part that failed."""
        if not self._failing or now_s - self._last_s < self._quiet_s:
            return
        self.forget(source)
        if self._told and not self._failing:
            self._logger.warning(self._over + " failures=%d", *self._values, self._failures)
            self._told, self._failures, self._untold = False, 0, 0

    def forget(self, source: Hashable) -> None:
        """Wait no more for a part to work: it is not used any longer."""
        self._failing.discard(source)
