"""Due instants of an open-loop load's operations, and their distribution to callers (pure)."""

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

NS_PER_S: Final = 1_000_000_000
T = TypeVar("T")


class Arrivals(Generic[T]):
    """Hands out due instants at a fixed rate, each with its drawn values; a late caller gets them, too.

    Operation ``i`` is due at ``start_ns + (i + phase) / rate``: a stalled system does not slow the schedule
    down, so its queueing shows as latency. The ``i``-th operation draws the same in every arm. Shared by all
    users of one kind in a process.
    """

    def __init__(
        self,
        *,
        start_ns: int,
        rate_per_s: float,
        choices: list[T],
        chance: "Random",
        phase: float | None = None,
    ) -> None:
        """Begin at ``start_ns``. A rate of 0 is never due; ``phase`` is drawn unless it is given."""
        if rate_per_s < 0:
            raise ValueError(f"rate_per_s={rate_per_s} must not be negative")
        self._start_ns = start_ns
        self._end_ns: int | None = None
        self._rate_per_s = rate_per_s
        self._choices = choices
        self._chance = chance
        # So that streams of one rate do not coincide.
        self._phase = chance.random() if phase is None else phase
        self._taken = 0

    def end(self, end_ns: int) -> None:
        """End the schedule at an instant, which becomes known only shortly before."""
        self._end_ns = end_ns

    def is_over(self, due_ns: int) -> bool:
        """Return whether an operation that was due at an instant is cancelled by the end."""
        return self._end_ns is not None and due_ns >= self._end_ns

    def take(self) -> tuple[int, int, T] | None:
        """Return (number from 0, due instant in ns, what was drawn); None when the schedule is over."""
        if self._rate_per_s == 0:
            return None
        number = self._taken
        due_ns = self._start_ns + round((number + self._phase) * NS_PER_S / self._rate_per_s)
        if self.is_over(due_ns):
            return None
        self._taken += 1
        return number, due_ns, self._chance.choice(self._choices)
