"""The instants at which the operations of an open-loop load are due, in ascending order.

This module does no I/O and reads no clock.
"""

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

NS_PER_S: Final = 1_000_000_000
T = TypeVar("T")


class Arrivals(Generic[T]):
    """A schedule of operations at a fixed rate, which a slow system does not delay.

    Operation ``i`` is due at ``start_ns + (i + phase) / rate``. If the measured system stalls, operations
    wait, and their waiting time counts as latency. The values for operation ``i`` are drawn at random, and
    they are the same in every compared design. All users of one kind in a process share the schedule.
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
        """Begin at ``start_ns``. Draw ``phase`` if it is None. With a rate of 0, no operation is ever due."""
        if rate_per_s < 0:
            raise ValueError(f"rate_per_s={rate_per_s} must not be negative")
        self._start_ns = start_ns
        self._end_ns: int | None = None
        self._rate_per_s = rate_per_s
        self._choices = choices
        self._chance = chance
        # Draw the phase (offset within a period) at random, so that streams of the same rate do not coincide.
        self._phase = chance.random() if phase is None else phase
        self._taken = 0

    def end(self, end_ns: int) -> None:
        """End the schedule at ``end_ns``, which the harness knows only shortly before the end."""
        self._end_ns = end_ns

    def is_over(self, due_ns: int) -> bool:
        """Return True if the schedule ends at ``due_ns`` or earlier."""
        return self._end_ns is not None and due_ns >= self._end_ns

    def take(self) -> tuple[int, int, T] | None:
        """Return the next operation: number from 0, due instant in ns, drawn values. None after the end."""
        if self._rate_per_s == 0:
            return None
        number = self._taken
        due_ns = self._start_ns + round((number + self._phase) * NS_PER_S / self._rate_per_s)
        if self.is_over(due_ns):
            return None
        self._taken += 1
        return number, due_ns, self._chance.choice(self._choices)
