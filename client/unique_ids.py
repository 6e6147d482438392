"""Unique ids of the messages that one client sends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from routekeeper.remoting.message import unique_message_id

#: Hexadecimal digits at the end of an id: 8 for the millisecond of the month, 4 for the counter.
_ID_TAIL_DIGITS: Final = 12


class UniqueIds:
    """A generator of unique ids for one client's messages."""

    def __init__(self, *, ip: str, pid: int, source_hash: int) -> None:
        """Store this client's identity: IP address, process id, and 32 bits that differ between clients."""
        identity = unique_message_id(ip=ip, pid=pid, source_hash=source_hash, ms_of_month=0, counter=0)
        self._prefix = identity[:-_ID_TAIL_DIGITS]
        self._counter = 0
        self._month_ms = range(0)  # the current month in Unix ms, computed for the first id

    def next(self, wall_ms: int) -> str:
        """Return a new id. Up to 65,536 ids in the same millisecond are all different."""
        if wall_ms not in self._month_ms:
            self._month_ms = _month_of(wall_ms)
        self._counter = counter = self._counter + 1 & 0xFFFF
        return f"{self._prefix}{wall_ms - self._month_ms.start & 0xFFFFFFFF:08X}{counter:04X}"


def _month_of(wall_ms: int) -> range:
    instant = datetime.fromtimestamp(wall_ms // 1000, UTC)
    year, month = instant.year, instant.month
    first = datetime(year, month, 1, tzinfo=UTC)
    following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return range(int(first.timestamp()) * 1000, int(following.timestamp()) * 1000)
