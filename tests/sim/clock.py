"""Virtual time: one heap of events for everything, and an asyncio loop for each simulated process.

A process lives in its own loop, so pausing it is not running its loop, and killing it is never running it
again. What arrives from outside waits in the loop's inbox, as bytes do in a socket buffer: a process that
wakes late reads first what waited for it, and then finds its timers due, as asyncio does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import math
import random
import struct
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

_T = TypeVar("_T")
_INSTANT = struct.Struct("<dq")

TURN_LEAST_S = 2e-5
TURN_SPREAD_S = 1.8e-4
"""What one turn of a process's loop takes."""
AT_ONCE = 0.8
"""How often what a turn makes ready runs before anything else can arrive."""


class Clock:
    """Virtual time in seconds, the one source of chance, and what is due when."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._trace = hashlib.blake2b(digest_size=8)

    def at(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after ``delay`` seconds."""
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), next(self._count), call, arguments))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as ``until`` holds."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            at, number, call, arguments = heapq.heappop(self._heap)
            self.now = at
            self.events += 1
            self._trace.update(_INSTANT.pack(at, number))
            call(*arguments)
            if until is not None and until():
                return True
        self.now = end
        return until is not None and until()

    def note(self, text: str) -> None:
        """Mix something into the trace, so that two runs that differ in it differ in :meth:`trace`."""
        self._trace.update(text.encode())

    def trace(self) -> str:
        """Digest of everything that happened, in order: equal for two runs of one seed."""
        return self._trace.hexdigest()


class _Future(asyncio.Future[Any]):
    """Hashed by number, not by address: sets of waiters keep one order in every process."""

    _numbers = itertools.count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(self._numbers)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Task(asyncio.Task[Any]):
    """As :class:`_Future`."""

    _numbers = itertools.count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def restart_numbers() -> None:
    """Begin a run: hashes start anew, so that a seed gives the same run again in one process."""
    _Future._numbers = itertools.count()
    _Task._numbers = itertools.count()


class _Inbox:
    """Stands where a loop has its selector: what has arrived, in order."""

    def __init__(self) -> None:
        self.waiting: deque[events.Handle] = deque()

    def select(self, _timeout: float | None) -> list[events.Handle]:
        found = list(self.waiting)
        self.waiting.clear()
        return found


class Loop(base_events.BaseEventLoop):
    """One process's event loop on virtual time.

    Args:
        offset: This process's monotonic clock reads so much more than the virtual time.
        failed: Told about exceptions that nobody caught.
    """

    def __init__(self, clock: Clock, *, offset: float, failed: Callable[[str], None]) -> None:
        super().__init__()
        self._clock = clock
        self.offset = offset
        self.paused_until = 0.0
        self.dead = False
        self._selector = self.inbox = _Inbox()
        self._clock_resolution = 1e-9
        self._turn_at = math.inf
        self._turn_number = 0
        self._busy_until = 0.0
        self._failed = failed
        self._left: list[asyncio.Task[Any]] = []
        self.set_task_factory(lambda loop, coroutine, **options: _Task(coroutine, loop=loop, **options))

    # -- from outside

    def deliver(self, call: Callable[..., object], *arguments: Any) -> None:
        """Something arrived for this process: it is called in the process's next turn."""
        if not self.dead:
            self.inbox.waiting.append(events.Handle(call, arguments, self))
            self._arm(self._clock.now)

    def pause(self, seconds: float) -> None:
        """As SIGSTOP and SIGCONT."""
        self.paused_until = max(self.paused_until, self._clock.now + seconds)

    @property
    def paused(self) -> bool:
        return self._clock.now < self.paused_until

    def run_inside(self, call: Callable[[], _T]) -> _T:
        """Look at something as the process would see it."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return call()
        finally:
            events._set_running_loop(before)

    def die(self) -> None:
        """As SIGKILL: nothing of it ever runs again."""
        self.dead = True
        self.inbox.waiting.clear()
        self._left = sorted(asyncio.all_tasks(self), key=hash)
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def bury(self) -> None:
        """At the end of a run: let go of what the dead process was about to do."""
        for task in self._left:
            coroutine = task.get_coro()
            if coroutine is not None:
                with contextlib.suppress(Exception):
                    self.run_inside(coroutine.close)
        self._left.clear()
        self.close()

    # -- turns

    def _arm(self, at: float) -> None:
        at = max(at, self._busy_until, self.paused_until, self._clock.now)
        if at < self._turn_at:
            self._turn_at = at
            self._turn_number += 1
            self._clock.at(at - self._clock.now, self._turn, self._turn_number)

    def _turn(self, number: int) -> None:
        if self.dead or number != self._turn_number:
            return
        self._turn_at = math.inf
        if self._clock.now < self.paused_until:
            self._arm(self.paused_until)
            return
        self._busy_until = self._clock.now + TURN_LEAST_S + self._clock.rng.random() * TURN_SPREAD_S
        self.run_inside(self._turns)
        if self.dead:
            return
        if self._ready or self.inbox.waiting:  # type: ignore[attr-defined]
            self._arm(self._clock.now)
        elif self._scheduled:  # type: ignore[attr-defined]
            self._arm(self._scheduled[0]._when - self.offset)  # type: ignore[attr-defined]

    def _turns(self) -> None:
        """Mostly what a turn makes ready runs at once, in turns of its own; or something may come between."""
        chance = self._clock.rng.random
        self._run_once()  # type: ignore[attr-defined]
        while self._ready and not self.dead and chance() < AT_ONCE:  # type: ignore[attr-defined]
            self._run_once()  # type: ignore[attr-defined]
        if not self.dead:
            self.after_turn()

    def after_turn(self) -> None:
        """For who watches this process."""

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self._clock.now + self.offset

    def _process_events(self, event_list: list[events.Handle]) -> None:
        self._ready.extend(event_list)  # type: ignore[attr-defined]

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        if not self.dead:
            self.inbox.waiting.append(handle)
            self._arm(self._clock.now)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """A thread that begins, or ends, some time later; its work itself is one instant."""
        future: asyncio.Future[_T] = self.create_future()
        rng = self._clock.rng
        begin, rest = rng.uniform(0.0, 0.02), rng.uniform(0.0, 0.02)

        def work() -> None:
            if self.dead:
                return
            if self.paused:
                self._clock.at(self.paused_until - self._clock.now, work)
                return
            try:
                result = self.run_inside(lambda: func(*args))
            except Exception as error:
                self._clock.at(rest, self.deliver, _settle, future, None, error)
            else:
                self._clock.at(rest, self.deliver, _settle, future, result, None)

        self._clock.at(begin, work)
        return future

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
