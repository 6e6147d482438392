"""Bytes of messages that the broker copies because consumers send them back (request 36), by host.

This module does no I/O and reads no clock. Callers pass instants, in seconds of the event loop's clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

#: Largest number of bytes that the broker copies for one host in one second. A request of 250 bytes can copy
#: a message of 4 MiB. Without this bound, such requests could fill the disk, and other requests would wait.
#: Consumers whose messages all fail stay below the bound, because the broker cannot copy 16,384 messages of
#: 4 KiB in one second.
COPIED_MAX: Final = 64 * 1024 * 1024


class CopiedBytes:
    """Bytes of messages that the broker has copied in the present second, by host."""

    def __init__(self) -> None:
        self._second = 0
        self._by_host: Counter[str] = Counter()

    def has_room(self, host: str, *, now: float) -> bool:
        """Return True if the broker may copy one more message of any size for a host in this second."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._by_host.clear()
        return self._by_host[host] < COPIED_MAX

    def add(self, host: str, size: int) -> None:
        """Record that the broker copies a message of this size in bytes for a host."""
        self._by_host[host] += size
