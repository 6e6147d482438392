"""Virtual time: one heap of events for all processes, and an asyncio loop for each simulated process.

A run spends most of its CPU time in this module, so the module does as little work per event as possible.

A turn is one pass of a process's event loop. The loop of a paused process does not run, and the loop of a
killed process never runs again. Arriving messages wait in the loop until its next turn, like bytes in a
socket buffer. As with asyncio, a process that wakes late first reads waiting messages, and then runs due
timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import math
import random
from array import array
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine, Sized
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
_Arrival: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and its arguments. A process calls the function when a message arrives."""

TURN_LEAST_S = 2e-5
TURN_SPREAD_S = 1.8e-4
"""Largest random part of the time for one pass of a process's loop, in seconds.

The fixed part of this time is ``TURN_LEAST_S``.
"""
AT_ONCE = 0.8
"""Probability that callbacks which became ready in a pass of the loop run before all other events."""
RESOLUTION_S = 1e-9
"""Seconds by which a timer may run before its time, because sums of floats are rounded."""


class Clock:
    """Virtual time in seconds, all scheduled events, and the only source of randomness."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._events = 0
        self._played = array("d")  # time and number of each event that is not in the trace yet
        self._trace = hashlib.blake2b(digest_size=8)

    @property
    def events(self) -> int:
        """Return the number of events so far."""
        return self._events + len(self._played) // 2

    def at(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function ``delay`` seconds from now."""
        self._count = number = self._count + 1
        heappush(self._heap, (self.now + delay if delay > 0.0 else self.now, number, call, arguments))

    def at_instant(self, instant: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function at exactly this instant. The instant must not be in the past."""
        self._count = number = self._count + 1
        heappush(self._heap, (instant, number, call, arguments))

    def run(self, seconds: float, until: Callable[[], bool] | None = None, stop: Sized = ()) -> bool:
        """Let at most ``seconds`` pass. Stop and return True as soon as ``until`` returns True.

        Args:
            stop: A list. Time also stops as soon as it is not empty.
        """
        end = self.now + seconds
        heap, note = self._heap, self._played.append
        while heap and heap[0][0] <= end:
            at, number, call, arguments = heappop(heap)
            self.now = at
            note(at)
            note(number)
            call(*arguments)
            if stop or (until is not None and until()):
                break
        else:
            self.now = end
        self._trace_played()
        return until is not None and until()

    def skip(self, seconds: float) -> None:
        """Let time pass without events. All events that are due in this time happen at its end."""
        self.now += seconds
        self._heap[:] = [(max(at, self.now), number, call, given) for at, number, call, given in self._heap]
        heapify(self._heap)

    def note(self, text: str) -> None:
        """Add a value to the trace. Two runs with different values differ in :meth:`trace`."""
        self._trace_played()
        self._trace.update(text.encode())

    def trace(self) -> str:
        """Return a digest of all events and notes, in order.

        Two runs of the same seed have the same digest.
        """
        self._trace_played()
        return self._trace.hexdigest()

    def _trace_played(self) -> None:
        self._trace.update(self._played)
        self._events += len(self._played) // 2
        del self._played[:]


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number and not its memory address.

    So a set of futures has the same order in every run of a seed.
    """

    _numbers = itertools.count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(self._numbers)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number and not its memory address.

    So a set of tasks has the same order in every run of a seed.
    """

    _numbers = itertools.count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def restart_numbers() -> None:
    """Reset the numbers of futures and tasks before a run, so that a process can repeat a run exactly."""
    _Future._numbers = itertools.count()
    _Task._numbers = itertools.count()


class _Handle(events.Handle):
    """A handle like asyncio's, but without a context, because contexts take time and are not needed here."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Loop) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class Loop(base_events.BaseEventLoop):
    """One process's event loop on virtual time.

    Args:
        offset: Seconds by which this process's monotonic clock differs from the virtual time.
        failed: Function that is called with the text of each uncaught exception.
    """

    def __init__(self, clock: Clock, *, offset: float, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._clock = clock
        self.offset = offset
        self.paused_until = 0.0
        self.dead = False
        self._selector = None
        self._ready: deque[events.Handle | _Arrival] = deque()
        """Work of the next turn: callbacks of the process itself, and messages that have arrived."""
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._timer_number = 0
        self._turn_at = math.inf
        self._turn_number = 0
        self._alarm_at = math.inf
        self._busy_until = 0.0
        self._failed = failed
        self._left: list[asyncio.Task[Any]] = []
        self.set_task_factory(lambda loop, coroutine, **options: _Task(coroutine, loop=loop, **options))

    # -- calls from outside the process

    def deliver(self, call: Callable[..., object], *arguments: Any) -> None:
        """Let the next turn of the process call a function, which receives an arriving message."""
        if not self.dead:
            self._ready.append((call, arguments))
            if self._turn_at == math.inf:
                self._arm()

    def pause(self, seconds: float) -> None:
        """Pause the process, like SIGSTOP and a later SIGCONT."""
        self.paused_until = max(self.paused_until, self._clock.now + seconds)

    def go_on(self) -> None:
        """End a pause of the process."""
        self.paused_until = min(self.paused_until, self._clock.now)
        self._arm()

    @property
    def paused(self) -> bool:
        return self._clock.now < self.paused_until

    def run_inside(self, call: Callable[[], _T]) -> _T:
        """Call a function as code of this process."""
        before = self._enter()
        try:
            return call()
        finally:
            self._leave(before)

    def _enter(self) -> asyncio.AbstractEventLoop | None:
        """Make this event loop the running loop; return the loop that was running before."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        return before

    def _leave(self, before: asyncio.AbstractEventLoop | None) -> None:
        events._set_running_loop(before)

    def die(self) -> None:
        """Kill the process, like SIGKILL: none of its code ever runs again."""
        self.dead = True
        self._left = sorted(asyncio.all_tasks(self), key=hash)
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def bury(self) -> None:
        """Release the pending work of a killed process at the end of a run."""
        for task in self._left:
            coroutine = task.get_coro()
            if coroutine is not None:
                # A task group without tasks raises a BaseExceptionGroup, which is no Exception.
                with contextlib.suppress(Exception, BaseExceptionGroup):
                    self.run_inside(coroutine.close)
        self._left.clear()
        self._timers.clear()
        self.close()

    # -- turns of the event loop

    def _arm(self) -> None:
        """Schedule a turn for the earliest time at which the process can run."""
        at = max(self._clock.now, self._busy_until, self.paused_until)
        if at < self._turn_at:
            self._turn_at = at
            self._turn_number += 1
            self._clock.at_instant(at, self._turn, self._turn_number)

    def _turn(self, number: int) -> None:
        if self.dead or number != self._turn_number:
            return
        self._turn_at = math.inf
        if self._clock.now < self.paused_until:
            self._arm()
        else:
            self._take_turn()

    def _take_turn(self) -> None:
        """Run a turn, and usually also the callbacks that become ready in this turn.

        With the probability 1 - :data:`AT_ONCE`, these callbacks run later, after other events.
        """
        clock = self._clock
        chance = clock.rng.random
        self._busy_until = clock.now + TURN_LEAST_S + chance() * TURN_SPREAD_S
        before = self._enter()
        try:
            self._run_once()
            while self._ready and not self.dead and chance() < AT_ONCE:
                self._run_once()
            if self.dead:
                return
            self.after_turn()
        finally:
            self._leave(before)
        if self._ready:
            self._arm()
        else:
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Set the wake-up for the first timer, unless an earlier wake-up is set already.

        Code usually replaces a timer by a later timer before the earlier timer is due. The wake-up then stays
        unchanged, because each change would cost an event.
        """
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if timers:
            at = max(timers[0][0] - self.offset, self._clock.now)
            if at < self._alarm_at:
                self._alarm_at = at
                self._clock.at_instant(at, self._alarm, at)

    def _alarm(self, at: float) -> None:
        if self.dead or at != self._alarm_at:
            return
        self._alarm_at = math.inf
        now, timers = self._clock.now, self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers or self._turn_at < math.inf:
            return
        if timers[0][0] - self.offset > now:
            self._set_alarm()
        elif now < self._busy_until or now < self.paused_until:
            self._arm()
        else:
            self._take_turn()

    def _run_once(self) -> None:
        """Run one turn like asyncio: first ready callbacks and arrived messages, then due timers."""
        ready, timers = self._ready, self._timers
        due = self._clock.now + self.offset + RESOLUTION_S
        while timers and timers[0][0] < due:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            item = ready.popleft()
            try:
                if isinstance(item, tuple):
                    call, arguments = item
                    call(*arguments)
                elif not item._cancelled:
                    item._callback(*item._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._failed(f"exception in a callback: {error!r}")

    def after_turn(self) -> None:
        """Do nothing. A subclass checks the process here after each turn."""

    # -- methods that asyncio calls

    def time(self) -> float:
        return self._clock.now + self.offset

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> events.Handle:
        handle = _Handle(callback, args, self)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self)
        self._timer_number = number = self._timer_number + 1
        heappush(self._timers, (when, number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Leave a cancelled timer in the heap until it is the first timer of the heap."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> events.Handle:
        handle = _Handle(callback, args, self)
        if not self.dead:
            self._ready.append(handle)
            if self._turn_at == math.inf:
                self._arm()
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Simulate a thread that calls ``func`` and starts and ends after random delays.

        The call itself takes no virtual time.
        """
        future: asyncio.Future[_T] = self.create_future()
        rng = self._clock.rng
        begin, rest = 0.02 * rng.random(), 0.02 * rng.random()

        def work() -> None:
            if self.dead:
                return
            wait = self._thread_waits()
            if wait > 0.0:
                self._clock.at(wait, work)
                return
            try:
                result = self.run_inside(lambda: func(*args))
            except Exception as error:
                self._clock.at(rest, self.deliver, _settle, future, None, error)
            except BaseException:
                if not self.dead:  # an error is expected if the call killed the process
                    raise
            else:
                self._clock.at(rest, self.deliver, _settle, future, result, None)

        self._clock.at(begin, work)
        return future

    def _thread_waits(self) -> float:
        """Return the seconds for which a thread is still paused.

        The result is 0 or less if the thread is not paused.
        """
        return self.paused_until - self._clock.now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(f"{context.get('message')}: {error!r}")


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
