"""A record of times in which the machine ran no process, or let a process wait for a processor.

Tests do not count these times when they measure a server.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from tests.waiting import wait_until


class _Standstill:
    """A thread that measures how late it wakes, and how long watched processes wait for a processor.

    Linux counts the time that a process's first thread waits. A server's event loop runs in this thread.
    """

    _SLEEP_S: Final = 0.01
    #: Shortest delay in seconds that is recorded, because schedulers cause shorter delays all the time.
    _NOTED_S: Final = 0.05

    def __init__(self) -> None:
        self._standstills: list[tuple[float, float]] = []
        #: For each process id: monotonic times, and the seconds for which the process had waited in total at
        #: each of these times.
        self._waits: dict[int, tuple[list[float], list[float]]] = {}
        self.watch(os.getpid())
        threading.Thread(target=self._run, name="standstill", daemon=True).start()

    def _run(self) -> None:
        while True:
            due = time.monotonic() + self._SLEEP_S
            time.sleep(self._SLEEP_S)
            now = time.monotonic()
            if now - due > self._NOTED_S:
                self._standstills.append((due, now))
            for pid in list(self._waits):
                self._note(pid)

    def watch(self, pid: int) -> None:
        self._waits[pid] = ([], [])
        self._note(pid)

    def forget(self, pid: int) -> None:
        """Stop watching a process that has ended, but keep its waiting times."""
        if (known := self._waits.pop(pid, None)) is not None:
            self._waits[-pid] = known

    def _note(self, pid: int) -> None:
        known = self._waits.get(pid)
        if known is None or pid < 0:
            return
        try:
            waited_s = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):  # the process has ended, or the system has no such file
            return
        instants, waited = known
        if not waited or waited_s > waited[-1]:
            instants.append(time.monotonic())
            waited.append(waited_s)

    def within(self, start: float, end: float) -> float:
        """Return for how many seconds the machine ran no process, or a watched process waited."""
        everybody = sum(
            max(0.0, min(end, till) - max(start, since)) for since, till in self._standstills[-10_000:]
        )
        return max([everybody, *(self._waited(pid, start, end) for pid in list(self._waits))])

    def _waited(self, pid: int, start: float, end: float) -> float:
        instants, waited = self._waits[pid]
        count = len(waited)  # another thread appends to ``instants`` first, so that list may be one longer
        first = bisect.bisect_right(instants, start, 0, count) - 1
        last = bisect.bisect_right(instants, end, 0, count) - 1
        return waited[last] - waited[max(first, 0)] if last >= 0 else 0.0


@cache
def _standstill() -> _Standstill:
    return _Standstill()


def begin() -> None:
    """Start to record the times in which the machine runs no process."""
    _standstill()


def watch(pid: int) -> None:
    """Start to record the times in which a process waits for a processor."""
    _standstill().watch(pid)


def forget(pid: int) -> None:
    """Stop watching a process that has ended."""
    _standstill().forget(pid)


def elapsed(start: float, end: float | None = None) -> float:
    """Return the seconds of an interval, without the times in which the machine delayed its processes.

    These are times in which the machine ran no process, or a watched process waited for a processor. The
    module records them after a call of :func:`begin`.

    Args:
        start: Start of the interval, as a monotonic time.
        end: End of the interval, as a monotonic time. None stands for now.
    """
    end = time.monotonic() if end is None else end
    return end - start - _standstill().within(start, end)


def wait_soon(condition: Callable[[], object], what: str, *, within_s: float) -> None:
    """Wait for a condition; fail if this took ``within_s`` seconds or more, as :func:`elapsed` counts."""
    begin()
    begun = time.monotonic()
    wait_until(condition, what)
    took_s = elapsed(begun)
    assert took_s < within_s, f"after {took_s:.1f} s, at most {within_s:g} s are allowed: {what}"
