"""The line: a queue of tasks that read or change a process's table.

The tasks run one after another, in short slices. Other work of the event loop runs between two slices.
"""

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
"""Length of a slice in seconds. After a slice, the event loop does its other work."""
UNCHECKED_S: Final = 0.000_5
"""After this number of seconds of work by tasks that end at once, the line schedules a callback on the loop.

The callback runs in the next iteration of the loop. It shows the line that a new iteration has begun, and the
work is counted from 0 again. A callback after each task would take too much time, because nearly every
registration is a task that ends at once.
"""


class _Task(Generic[_T]):
    """A task that waits or runs.

    Attributes:
        steps: The task's work; None after the task has ended or was dropped.
        otherwise: Result of the task if it is dropped before it begins; None if it must run.
        failed: Function that returns the result of a task that raised an error; None if no caller waits for
            the result.
    """

    __slots__ = ("begun", "done", "failed", "otherwise", "steps")

    def __init__(
        self,
        steps: Steps[_T],
        done: Callable[[_T], None],
        otherwise: _T | None,
        failed: Callable[[Exception], _T] | None,
        *,
        begun: bool,
    ) -> None:
        self.steps: Steps[_T] | None = steps
        self.done = done
        self.otherwise = otherwise
        self.failed = failed
        self.begun = begun

    @property
    def may_be_dropped(self) -> bool:
        return self.otherwise is not None and not self.begun and self.steps is not None

    def end(self, result: _T | None) -> None:
        """Call ``done`` with the result, unless the result is None. Release all objects of the task."""
        done, self.steps, self.failed = self.done, None, None
        del self.done
        if result is not None:
            done(result)


class Line:
    """A queue of tasks that runs its tasks one after another.

    A sender's tasks run in order. Hosts take turns, and in a host's turn its senders take turns. Therefore a
    sender with many large registrations delays other senders only a little, and a host with many connections
    delays other hosts only a little.

    A task ends before the next task begins. If no task waits or runs, a new task begins at once, and mostly
    ends at once. In each iteration of the event loop, the line works for :data:`SLICE_S` seconds and then
    finishes the current step.

    A task that has not begun may be dropped if :meth:`run` got a result for this case, in ``otherwise``. The
    task is dropped when its sender leaves or its time is over, so that requests of closed connections do not
    fill the line.

    Args:
        clock: Function that returns a time in seconds.
        call_soon: Function that calls its argument in the next iteration of the event loop.

    Attributes:
        waiting: Unfinished tasks by host and sender, in the order of their turns. Other modules may read this
            attribute. The first task of the first sender of the first host may have begun already.
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
        # Seconds that tasks took which ended at once, since the last call of _go_on.
        self._worked_s = 0.0
        self._called = False
        self.waiting: dict[Hashable, dict[Hashable, deque[_Task[Any]]]] = {}
        self._host_of: dict[Hashable, Hashable] = {}  # host of each sender that has unfinished tasks
        self._dropped: deque[_Task[Any]] = deque()  # dropped tasks whose ``done`` was not called yet
        # Heap of the times at which tasks are dropped. The numbers put entries with equal times in order.
        self._ends: list[tuple[float, int, _Task[Any]]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return the number of senders that have unfinished tasks."""
        return len(self._host_of)

    def run(
        self,
        steps: Steps[_T],
        done: Callable[[_T], None],
        *,
        sender: Hashable = None,
        host: Hashable = None,
        otherwise: _T | None = None,
        failed: Callable[[Exception], _T] | None = None,
        until: float = math.inf,
    ) -> _T | None:
        """Add a task. Return its result if it ends at once, else None.

        If the task raises an error during this call, the caller gets this error.

        Args:
            steps: The task's work. Its result must not be None, because None means here that the task has not
                ended.
            done: Function called with the result if the task ends later or is dropped.
            sender: Origin of the task, such as a connection.
            host: Host of the sender; None for this process's own work. As long as a sender has unfinished
                tasks, its new tasks count for the host of its first task.
            otherwise: Result of the task if it is dropped before it begins. With None, the task is never
                dropped.
            failed: Function that returns the result of a task that raises an error later. With None, ``done``
                is not called after such an error.
            until: Time of ``clock`` at which the task is dropped if it has not begun.
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
        task = _Task(steps, done, otherwise, failed, begun=begun)
        host = self._host_of.setdefault(sender, host)
        self.waiting.setdefault(host, {}).setdefault(sender, deque()).append(task)
        if until != math.inf and task.may_be_dropped:
            self._count += 1
            heapq.heappush(self._ends, (until, self._count, task))
        self._come_round()
        return None

    def leave(self, sender: Hashable) -> None:
        """Drop the tasks of a sender that has left, if they have not begun and may be dropped.

        In the next iterations of the loop, their ``done`` functions get the results in ``otherwise``.
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
        """Discard all unfinished tasks without calling their ``done`` functions."""
        self.waiting.clear()
        self._host_of.clear()
        self._dropped.clear()
        self._ends.clear()

    def _come_round(self) -> None:
        if not self._called:
            self._called = True
            self._call_soon(self._go_on)

    def _work(self, steps: Steps[_T]) -> _T | None:
        """Run a task's steps for a limited time. Return its result, or None if the task has not ended."""
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
        # End dropped tasks first. This delays other tasks only a little, because it takes far less time to
        # end a dropped task than to receive its request.
        while self._dropped:
            task = self._dropped.popleft()
            task.end(task.otherwise)
            if self._clock() >= self._until:
                return
        while self.waiting:
            host, senders = next(iter(self.waiting.items()))
            sender, tasks = next(iter(senders.items()))
            task, result = tasks[0], None
            if task.steps is None:  # This task was dropped, so the sender's next task takes the turn.
                tasks.popleft()
                if not tasks:
                    self._forget(host, sender)
                continue
            task.begun = True
            try:
                result = self._work(task.steps)
            except Exception as error:  # An error in one task must not stop the other tasks.
                logger.exception("a piece of work failed")
                if task.failed is not None:
                    result = task.failed(error)
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
        """Remove the finished task. Move its sender and its host to the end of the queues.

        The sender's next task waits until every other sender of the host had a turn. The host waits until
        every other host had a turn.
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
        """Remove a sender without tasks, and its host if the host has no other sender."""
        senders = self.waiting[host]
        del senders[sender], self._host_of[sender]
        if not senders:
            del self.waiting[host]
