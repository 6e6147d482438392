"""Pulls that wait for a message. A pull is parked until a message arrives or its deadline passes.

This module does no I/O and reads no clock. Callers pass times, in seconds of the event loop's clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: Bounds of the waiting pulls of all hosts: largest number of pulls, and largest memory in bytes.
PULLS_MAX: Final = 100_000
PULL_BYTES_MAX: Final = 256 * 1024 * 1024
#: Percentage of :data:`PULLS_MAX` and of :data:`PULL_BYTES_MAX` that the pulls of one host may use. Loopback
#: may use 100 per cent. If a pull would exceed this percentage, the broker answers the pull at once, without
#: a message. The client then sends the pull again at once.
HOST_PERCENT: Final = 50

P = TypeVar("P", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Parked(Generic[P]):
    pull: P
    owner: int
    queue: tuple[str, int]
    deadline: float
    size: int
    host: str
    number: int
    gone: bool = False


@dataclass(slots=True)
class _Filled:
    """Number and memory in bytes of the pulls of one host."""

    count: int = 0
    size: int = 0


class ParkedPulls(Generic[P]):
    """Waiting pulls, by queue.

    Each pull is removed exactly once: when a message wakes it, when its deadline passes, or when its
    connection closes. The number of pulls and their bytes are bounded, in total and for each host. If a pull
    would exceed a bound, :meth:`park` returns False, and the caller answers the pull at once.

    Args:
        host_percent: Percentage of :data:`PULLS_MAX` and :data:`PULL_BYTES_MAX` for the pulls of one host.

    Attributes:
        parked: Number of pulls parked since the start.
    """

    def __init__(
        self, *, limit: int = PULLS_MAX, bytes_max: int = PULL_BYTES_MAX, host_percent: int = HOST_PERCENT
    ) -> None:
        self.parked = 0
        self._limit = limit
        self._bytes_max = bytes_max
        self._host_limit = limit * host_percent // 100
        self._host_bytes_max = bytes_max * host_percent // 100
        self._by_host: dict[str, _Filled] = {}
        self._held = 0
        # Use dicts with the value None as ordered sets. They keep the order in which pulls were parked, and
        # the removal of any pull takes constant time.
        self._by_queue: dict[tuple[str, int], dict[_Parked[P], None]] = {}
        self._by_owner: dict[int, set[_Parked[P]]] = {}
        self._deadlines: list[tuple[float, int, _Parked[P]]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def park(
        self,
        pull: P,
        *,
        owner: int,
        topic: str,
        queue_id: int,
        deadline: float,
        size: int = 0,
        host: str = "",
    ) -> bool:
        """Park a pull of connection ``owner`` that takes ``size`` bytes. Return False if a bound is reached.

        Args:
            host: Host whose quota the pull uses, or empty for loopback, which has no quota of its own.
        """
        if self._size >= self._limit or self._held + size > self._bytes_max:
            return False
        filled = self._by_host.get(host) or _Filled()
        if host and (filled.count >= self._host_limit or filled.size + size > self._host_bytes_max):
            return False
        self.parked += 1
        entry = _Parked(pull, owner, (topic, queue_id), deadline, size, host, self.parked)
        self._held += size
        filled.count += 1
        filled.size += size
        self._by_host[host] = filled
        self._by_queue.setdefault(entry.queue, {})[entry] = None
        self._by_owner.setdefault(owner, set()).add(entry)
        heapq.heappush(self._deadlines, (deadline, entry.number, entry))
        self._size += 1
        return True

    def wake(self, topic: str, queue_id: int, *, up_to: int, most: int) -> Iterator[tuple[P, float]]:
        """Remove and yield pulls of a queue, each with its deadline. The caller tries to answer them again.

        If the caller stops the iteration early, the remaining pulls stay parked.

        Args:
            up_to: Value of :attr:`parked` that the caller read earlier. Pulls that were parked after that
                reading are not yielded.
            most: Largest number of pulls to yield. The pulls that have waited longest come first.
        """
        entries = [
            entry
            for entry in itertools.islice(self._by_queue.get((topic, queue_id), ()), most)
            if entry.number <= up_to
        ]
        for entry in entries:
            if not entry.gone:
                self._leave_queue(entry)
                self._forget(entry)
                yield entry.pull, entry.deadline

    def expire(self, now: float) -> Iterator[P]:
        """Remove and yield the pulls whose deadline has passed, the earliest deadline first.

        If the caller stops the iteration early, the remaining pulls stay parked.
        """
        while self._deadlines and (self._deadlines[0][2].gone or self._deadlines[0][0] <= now):
            entry = heapq.heappop(self._deadlines)[2]
            if not entry.gone:
                self._leave_queue(entry)
                self._forget(entry)
                yield entry.pull

    def queues_of(self, topics: Collection[str]) -> set[tuple[str, int]]:
        """Return the queues that belong to these topics and have waiting pulls.

        This method searches all queues with waiting pulls, and not all queues of the topics, because a topic
        may have many queues without waiting pulls.
        """
        return {queue for queue in self._by_queue if queue[0] in topics}

    def next_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def drop(self, owner: int) -> int:
        """Remove the pulls of a closed connection, and return their number."""
        entries = list(self._by_owner.get(owner, ()))
        for entry in entries:
            self._leave_queue(entry)
            self._forget(entry)
        return len(entries)

    def _leave_queue(self, entry: _Parked[P]) -> None:
        waiting = self._by_queue[entry.queue]
        del waiting[entry]
        if not waiting:
            del self._by_queue[entry.queue]

    def _forget(self, entry: _Parked[P]) -> None:
        entry.gone = True
        self._size -= 1
        self._held -= entry.size
        filled = self._by_host[entry.host]
        filled.count -= 1
        filled.size -= entry.size
        if not filled.count:
            del self._by_host[entry.host]
        owned = self._by_owner[entry.owner]
        owned.discard(entry)
        if not owned:
            del self._by_owner[entry.owner]
        # A woken pull stays in the heap until its deadline and takes memory. Rebuild the heap without woken
        # pulls when they far outnumber the waiting pulls.
        if len(self._deadlines) > 64 + 4 * self._size:
            self._deadlines = [item for item in self._deadlines if not item[2].gone]
            heapq.heapify(self._deadlines)
