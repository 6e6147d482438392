"""Threads that wait for the disk in place of the event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DiskThreads(Executor):
    """Threads for one kind of work with the disk; a single thread runs all work in order.

    A hung disk may never answer. So no other work waits for these threads, and neither does a process that
    ends; it would wait for the threads of usual executors.

    Args:
        count: Bound of the threads; each of the first tasks starts one.
    """

    def __init__(self, name: str, *, count: int = 1) -> None:
        self.name = name
        self._count = count
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._made = 0

    def submit(
        self, work: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Submit work as to any executor; call it from one thread only."""
        future: Future[_Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = work(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._work.put(run)
        if self._made < self._count:
            self._made += 1
            threading.Thread(target=self._run, name=f"{self.name} {self._made}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Have the threads end after all submitted work; return at once."""
        for _ in range(self._made):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
