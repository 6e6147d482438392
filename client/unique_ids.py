"""Unique ids of the messages that one client sends. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from routekeeper.remoting.message import unique_message_id

#: Format of a part of a unique id: the millisecond of the month, and the counter.
_ID_TAIL_DIGITS: Final = 12


class UniqueIds:
    """Source of the unique ids of one client's messages."""

    def __init__(self, *, ip: str, pid: int, source_hash: int) -> None:
        """Store this client's identity: address, process id, 32 bits for the client in the process."""
        identity = unique_message_id(ip=ip, pid=pid, source_hash=source_hash, ms_of_month=0, counter=0)
        self._prefix = identity[:-_ID_TAIL_DIGITS]
        self._counter = 0
        self._month_ms = range(0)  # the present month in Unix ms

    def next(self, wall_ms: int) -> str:
        """Return an id; no two within the same millisecond are equal (up to 65536 of them)."""
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
