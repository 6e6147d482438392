"""How much of the loop, and of the log, connections may take that have proved nothing. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

#: Under TLS, where each costs a handshake on the loop that serves: from such an address in one second.
STRANGERS_PER_SECOND: Final = 20


class Strangers:
    """How many connections came from each host in this second."""

    _REMEMBERED_MAX: Final = 1024

    def __init__(self) -> None:
        self._second = -1
        self._counts: Counter[str] = Counter()

    def allow(self, host: str, now: float) -> bool:
        """Whether one more may begin; hosts beyond those that are remembered wait for the next second."""
        if int(now) != self._second:
            self._second = int(now)
            self._counts.clear()
        if len(self._counts) >= self._REMEMBERED_MAX and host not in self._counts:
            return False
        self._counts[host] += 1
        return self._counts[host] <= STRANGERS_PER_SECOND


class ReportLimit:
    """At most a few log lines a second, the same one again after a while, and how many were left out."""

    _PER_SECOND: Final = 5
    _AGAIN_S: Final = 30.0
    _REMEMBERED_MAX: Final = 64

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._second = -1
        self._count = 0
        self._suppressed = 0

    def allow(self, what: str, now: float) -> int | None:
        """How many lines were left out before this one; None if it is left out, too.

        Args:
            what: What this line says again and again, empty if it does not.
        """
        if what and now - self._said.get(what, -math.inf) < self._AGAIN_S:
            self._suppressed += 1
            return None
        if int(now) != self._second:
            self._second, self._count = int(now), 0
        self._count += 1
        if self._count > self._PER_SECOND:
            self._suppressed += 1
            return None
        if what:
            if len(self._said) >= self._REMEMBERED_MAX:
                self._said.clear()
            self._said[what] = now
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
