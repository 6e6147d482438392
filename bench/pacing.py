"""When each operation of an open-loop load is due (pure)."""

from typing import Final

NS_PER_S: Final = 1_000_000_000


class OpenLoop:
    """Hands out due times at a fixed rate, whoever asks and however late.

    Operation ``i`` is due at ``start_ns + i / rate``: a stalled system does not slow the schedule down, so
    its queueing shows as latency. Shared by all users of one kind in a process.
    """

    def __init__(self, *, start_ns: int, rate_per_s: float, end_ns: int) -> None:
        """Begin at ``start_ns``; nothing is due at or after ``end_ns``. A rate of 0 is never due."""
        if rate_per_s < 0:
            raise ValueError(f"rate_per_s={rate_per_s} must not be negative")
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._rate_per_s = rate_per_s
        self._taken = 0

    def take(self) -> tuple[int, int] | None:
        """Return (number from 0, due instant in ns) of the next operation; None when the schedule is over."""
        if self._rate_per_s == 0:
            return None
        number = self._taken
        due_ns = self._start_ns + round(number * NS_PER_S / self._rate_per_s)
        if due_ns >= self._end_ns:
            return None
        self._taken += 1
        return number, due_ns
