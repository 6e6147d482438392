"""A process's work on its table: one task after the other, in slices over turns of the event loop."""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from routekeeper.remoting.steps import Steps

logger = logging.getLogger(__name__)

_T = TypeVar("_T", bound=object)

SLICE_S: Final = 0.003
"""Length of a slice in seconds: then the event loop's other work has its turn."""
UNCHECKED_S: Final = 0.000_5
"""Seconds of tasks that ended at once after which the next turn of the loop is noted by a callback. A
callback for each shorter task would cost too much: every lone registration would need one.
"""


class _Task(Generic[_T]):
    """A task that waits or is under way.

    Attributes:
        steps: None once it needs no work any more.
        otherwise: Its result if it is dropped before it begins; None if it must run.
    """

    __slots__ = ("begun", "done", "otherwise", "steps")

    def __init__(
        self, steps: Steps[_T], done: Callable[[_T], None], otherwise: _T | None, *, begun: bool
    ) -> None:
        self.steps: Steps[_T] | None = steps
        self.done = done
        self.otherwise = otherwise
        self.begun = begun

    @property
    def may_be_dropped(self) -> bool:
        return self.otherwise is not None and not self.begun and self.steps is not None

    def end(self, result: _T | None) -> None:
        """Pass on the result, None if there is none, and forget everything that the task refers to."""
        done, self.steps = self.done, None
        del self.done
        if result is not None:
            done(result)


class Line:
    """Runs tasks: in order for each sender; hosts take turns, and within a host its senders do.

    So a sender of many large registrations does not delay all others until these are done, and a host with
    many connections does not delay other hosts. A task ends before the next one begins. A task that comes
    while no other is under way begins at once, and mostly ends at once. In each turn of the loop this works
    for :data:`SLICE_S`, and then until the present step ends.

    A task with another result for that case is dropped if its sender leaves, or its time is over, before it
    begins. So nothing waits here for a closed connection.

    Args:
        clock: Seconds.
        call_soon: Calls a function in the next turn of the loop.

    Attributes:
        waiting: Tasks by host and sender, in the order of their turns. Other modules may read it. The first
            task of the first sender of the first host may be under way.
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
        self.waiting: dict[Hashable, dict[Hashable, deque[_Task[Any]]]] = {}
        self._host_of: dict[Hashable, Hashable] = {}  # of senders with unfinished tasks
        self._dropped: deque[_Task[Any]] = deque()  # their results are not passed on yet
        # A heap of the times at which tasks are dropped. The numbers only make entries comparable.
        self._ends: list[tuple[float, int, _Task[Any]]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many senders have unfinished tasks."""
        return len(self._host_of)

    def run(
        self,
        steps: Steps[_T],
        done: Callable[[_T], None],
        *,
        sender: Hashable = None,
        host: Hashable = None,
        otherwise: _T | None = None,
        until: float = math.inf,
    ) -> _T | None:
        """Add a task; return its result if it ends at once.

        Args:
            steps: The task; its result must not be None.
            done: Called with the result if the task ends later, or is dropped.
            sender: Origin of the task, such as a connection.
            host: Host of the sender; None for this process's own work. All unfinished tasks of a sender
                count for the host of the first one.
            otherwise: Result of the task if it is dropped before it begins. Without it the task must run.
            until: Time at which the task is dropped if it has not begun.
        """
        begun = False
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
                begun = True
        task = _Task(steps, done, otherwise, begun=begun)
        host = self._host_of.setdefault(sender, host)
        self.waiting.setdefault(host, {}).setdefault(sender, deque()).append(task)
        if until != math.inf and task.may_be_dropped:
            self._count += 1
            heapq.heappush(self._ends, (until, self._count, task))
        self._come_round()
        return None

    def leave(self, sender: Hashable) -> None:
        """Drop the tasks of a sender that have not begun and may be dropped, because it is gone.

        Their results are passed on in the next turns of the loop.
        """
        host = self._host_of.get(sender)
        senders = self.waiting.get(host)
        if senders is None or sender not in senders:
            return
        tasks = senders[sender]
        for _ in range(len(tasks)):
            task = tasks.popleft()
            if task.may_be_dropped:
                self._drop(task)
            elif task.steps is not None:
                tasks.append(task)
        if not tasks:
            self._forget(host, sender)

    def clear(self) -> None:
        """Drop all unfinished tasks."""
        self.waiting.clear()
        self._host_of.clear()
        self._dropped.clear()
        self._ends.clear()

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
        if not self.waiting and not self._dropped:
            self._ends.clear()
            return
        self._come_round()
        now = self._clock()
        self._until = now + SLICE_S
        while self._ends and self._ends[0][0] <= now:
            task = heapq.heappop(self._ends)[2]
            if task.may_be_dropped:
                self._drop(task)
        # These come first: each takes far less time than its request took to arrive.
        while self._dropped:
            task = self._dropped.popleft()
            task.end(task.otherwise)
            if self._clock() >= self._until:
                return
        while self.waiting:
            host, senders = next(iter(self.waiting.items()))
            sender, tasks = next(iter(senders.items()))
            task, result = tasks[0], None
            if task.steps is None:  # it was dropped: the next one of its sender has its turn
                tasks.popleft()
                if not tasks:
                    self._forget(host, sender)
                continue
            task.begun = True
            try:
                result = self._work(task.steps)
            except Exception:  # This is the boundary of one task: the next one goes on.
                logger.exception("a piece of work failed")
            else:
                if result is None:
                    return
            self._next_turn(host, sender, tasks)
            task.end(result)
            if self._clock() >= self._until:
                return

    def _drop(self, task: _Task[Any]) -> None:
        task.steps = None
        self._dropped.append(task)
        self._come_round()

    def _next_turn(self, host: Hashable, sender: Hashable, tasks: deque[_Task[Any]]) -> None:
        """Remove the finished task. Its sender's next one waits until each other sender of the host had a
        turn, and its host until each other host had one.
        """
        tasks.popleft()
        senders = self.waiting.pop(host)
        del senders[sender]
        if tasks:
            senders[sender] = tasks
        else:
            del self._host_of[sender]
        if senders:
            self.waiting[host] = senders

    def _forget(self, host: Hashable, sender: Hashable) -> None:
        """Forget a sender that has no tasks any more."""
        senders = self.waiting[host]
        del senders[sender], self._host_of[sender]
        if not senders:
            del self.waiting[host]
