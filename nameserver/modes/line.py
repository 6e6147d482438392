"""A process's work on its table, one piece after the other, in slices over rounds of the loop."""

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
"""Seconds after which work makes room for the rest of the loop's work."""
UNCHECKED_S: Final = 0.000_5
"""Seconds of work that ended at once after which it is noticed when the loop comes round. For less a callback
would cost too much: lone registrations would each pay for one."""


class Line:
    """Runs pieces of work: in order for each sender, and senders in turn.

    So one who sends many large registrations at once does not hold up all others until they are done. Each
    piece is all done before the next one begins. One that comes while nothing is under way is begun at once,
    and mostly ends at once. In each round of the loop this works for :data:`SLICE_S`, and then until the end
    of the present step.

    Args:
        clock: Seconds.
        call_soon: Calls what it is given when the loop has come round.
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
        self._worked_s = 0.0  # since the loop came round, or longer, in pieces that ended at once
        self._called = False
        #: By sender, in the order of their turns, for readers. The first piece of the first may be under way.
        self.waiting: dict[Hashable, deque[_Piece]] = {}

    def __len__(self) -> int:
        """Return how many senders have pieces that are not done."""
        return len(self.waiting)

    def run(self, steps: Steps[_T], done: Callable[[_T], None], *, sender: Hashable = None) -> _T | None:
        """Add a piece of work; return its result if it ends at once.

        Args:
            steps: Must not come to None.
            done: Called with what it came to if it ends later.
            sender: For whom this is done: a connection, say.
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
        """Give up all that is not done."""
        self.waiting.clear()

    def _come_round(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._go_on)

    def _work(self, steps: Steps[_T]) -> _T | None:
        """Make steps until the slice is over; return the result if the work ended."""
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
            except Exception:  # the boundary of one piece: the next one goes on
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
        """Take out the piece that is done; its sender's next one waits behind one of every other sender."""
        pieces.popleft()
        del self.waiting[sender]
        if pieces:
            self.waiting[sender] = pieces
