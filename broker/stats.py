"""Counters of one broker and their rates (pure). Instants are loop times in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: Windows of the rates that request 28 answers, in seconds.
WINDOWS_S: Final = (10.0, 60.0, 600.0)
#: How often :meth:`Rate.sample` is to be called, in seconds.
SAMPLE_INTERVAL_S: Final = 5.0


class Rate:
    """A growing total, and how fast it grew lately."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        self._samples.append((now, self.total))
        while self._samples and now - self._samples[0][0] > WINDOWS_S[-1] + SAMPLE_INTERVAL_S:
            self._samples.popleft()

    def per_second(self, window_s: float, now: float) -> float:
        """Return the mean growth per second since the oldest sample within the window."""
        for at, total in self._samples:
            if now - at <= window_s and now > at:
                return (self.total - total) / (now - at)
        return 0.0

    def spell(self, now: float) -> str:
        """Return the rates of all windows as request 28 answers them: three numbers with blanks between."""
        return " ".join(str(self.per_second(window, now)) for window in WINDOWS_S)


@dataclass(slots=True)
class Stats:
    """What this broker did since its start."""

    started_ms: int = 0
    put: Rate = field(default_factory=Rate)
    got: Rate = field(default_factory=Rate)
    get_found: Rate = field(default_factory=Rate)
    get_missed: Rate = field(default_factory=Rate)

    def sample(self, now: float) -> None:
        for rate in (self.put, self.got, self.get_found, self.get_missed):
            rate.sample(now)
