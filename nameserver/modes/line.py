"""A process's work on its table: one task after the other, in slices over turns of the event loop."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, TypeVar

from routekeeper.remoting.steps import Steps

logger = logging.getLogger(__name__)

_T = TypeVar("_T", bound=object)
_Piece: TypeAlias = tuple[Steps[Any], Callable[[Any], None]]

SLICE_S: Final = 0.003
"""Length of a slice in seconds: then the event loop's other work has its turn."""
UNCHECKED_S: Final = 0.000_5
"""Seconds of tasks that ended at once after which the next turn of the loop is noted by a callback. A
callback for each shorter task would cost too much: every lone registration would need one.
"""


class Line:
    """Runs tasks: in order for each sender, and senders in turn.

    So a sender of many large registrations does not delay all others until these are done. A task ends before
    the next one begins. A task that comes while no other is under way begins at once, and mostly ends at
    once. In each turn of the loop this works for :data:`SLICE_S`, and then until the present step ends.

    Args:
        clock: Seconds.
        call_soon: Calls a function in the next turn of the loop.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._until = 0.0
        # seconds spent on tasks that ended at once, at least since this turn of the loop began
        self._worked_s = 0.0
        self._called = False
        #: Tasks by sender, in the order of their turns. Other modules may read it. The first task of the
        #: first sender may be under way.
        self.waiting: dict[Hashable, deque[_Piece]] = {}

    def __len__(self) -> int:
        """Return how many senders have unfinished tasks."""
        return len(self.waiting)

    def run(self, steps: Steps[_T], done: Callable[[_T], None], *, sender: Hashable = None) -> _T | None:
        """Add a task; return its result if it ends at once.

        Args:
            steps: The task; its result must not be None.
            done: Called with the result if the task ends later.
            sender: Origin of the task, such as a connection.
        """
        if not self.waiting:
            clock = self._clock
            now = clock()
            if not self._called:
                self._until = now + SLICE_S - self._worked_s
            if now < self._until:
                result = self._work(steps)
                if result is not None:
                    self._worked_s += clock() - now
                    if self._worked_s >= UNCHECKED_S:
                        self._come_round()
                    return result
        self.waiting.setdefault(sender, deque()).append((steps, done))
        self._come_round()
        return None

    def clear(self) -> None:
        """Drop all unfinished tasks."""
        self.waiting.clear()

    def _come_round(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._go_on)

    def _work(self, steps: Steps[_T]) -> _T | None:
        """Run steps until the slice is over; return the result if the task ended."""
        try:
            while True:
                next(steps)
                if self._clock() >= self._until:
                    return None
        except StopIteration as end:
            result: _T = end.value
            return result

    def _go_on(self) -> None:
        self._called = False
        self._worked_s = 0.0
        if not self.waiting:
            return
        self._come_round()
        self._until = self._clock() + SLICE_S
        while self.waiting:
            sender, pieces = next(iter(self.waiting.items()))
            steps, done = pieces[0]
            try:
                result = self._work(steps)
            except Exception:  # This is the boundary of one task: the next one goes on.
                logger.exception("a piece of work failed")
                self._next_turn(sender, pieces)
            else:
                if result is None:
                    return
                self._next_turn(sender, pieces)
                done(result)
            if self._clock() >= self._until:
                return

    def _next_turn(self, sender: Hashable, pieces: deque[_Piece]) -> None:
        """Remove the finished task; its sender's next task waits until each other sender had a turn."""
        pieces.popleft()
        del self.waiting[sender]
        if pieces:
            self.waiting[sender] = pieces
