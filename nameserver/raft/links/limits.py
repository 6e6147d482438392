"""How much of the loop connections may take that have proved nothing. Pure."""

from __future__ import annotations

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
