"""Time in which the machine let a process not run although it could: no fault of that process."""

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
    """A thread that notes by how much it woke too late, and how long others waited for a processor.

    Linux counts that for the first thread of a process, in which its event loop runs.
    """

    _SLEEP_S: Final = 0.01
    #: Less is every scheduler's business.
    _NOTED_S: Final = 0.05

    def __init__(self) -> None:
        self._standstills: list[tuple[float, float]] = []
        #: By process: instants (s, monotonic), and how long it had waited until each of them (s).
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
        """Look no longer at a process, which has ended; what is known of it stays."""
        if (known := self._waits.pop(pid, None)) is not None:
            self._waits[-pid] = known

    def _note(self, pid: int) -> None:
        known = self._waits.get(pid)
        if known is None or pid < 0:
            return
        try:
            waited_s = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):  # it has ended, or this system does not count
            return
        instants, waited = known
        if not waited or waited_s > waited[-1]:
            instants.append(time.monotonic())
            waited.append(waited_s)

    def within(self, start: float, end: float) -> float:
        """Return how much of an interval (s, monotonic) the machine stood still, or one process waited."""
        everybody = sum(
            max(0.0, min(end, till) - max(start, since)) for since, till in self._standstills[-10_000:]
        )
        return max([everybody, *(self._waited(pid, start, end) for pid in list(self._waits))])

    def _waited(self, pid: int, start: float, end: float) -> float:
        instants, waited = self._waits[pid]
        count = len(waited)  # the other thread may append meanwhile
        first = bisect.bisect_right(instants, start, 0, count) - 1
        last = bisect.bisect_right(instants, end, 0, count) - 1
        return waited[last] - waited[max(first, 0)] if last >= 0 else 0.0


@cache
def _standstill() -> _Standstill:
    return _Standstill()


def begin() -> None:
    """Note from now on when the machine lets nobody run."""
    _standstill()


def watch(pid: int) -> None:
    """Note as well how long a process waits for a processor."""
    _standstill().watch(pid)


def forget(pid: int) -> None:
    """Look no longer at a process that has ended."""
    _standstill().forget(pid)


def elapsed(start: float, end: float | None = None) -> float:
    """Return how many seconds of an interval (s, monotonic) this machine ran; until now, without an end.

    That it let nobody run for a while, or a watched process that was ready to, is no server's fault. Known
    since :func:`begin`.
    """
    end = time.monotonic() if end is None else end
    return end - start - _standstill().within(start, end)


def wait_soon(condition: Callable[[], object], what: str, *, within_s: float) -> None:
    """Wait for a condition, which must have come true within so many seconds in which this machine ran."""
    begin()
    begun = time.monotonic()
    wait_until(condition, what)
    took_s = elapsed(begun)
    assert took_s < within_s, f"after {took_s:.1f} s, at most {within_s:g} s are allowed: {what}"
