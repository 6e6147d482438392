"""Threads that wait for the disk, so that the event loop does not have to wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from routekeeper.remoting.threads import NoFreeThread

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DiskThreads(Executor):
    """Pool of threads for one kind of disk work.

    If ``count`` is 1, tasks run in the order of their submission.

    A hung disk may never answer. Therefore each kind of disk work has separate threads. Work that hangs then
    delays only work of the same kind. The threads are daemons, so the process can end while they wait for the
    disk. The threads of Python's own executors would keep the process from ending.

    Args:
        count: Maximum number of threads. Each task starts one more thread until this number is reached.
    """

    def __init__(self, name: str, *, count: int = 1) -> None:
        self.name = name
        self._count = count
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._made = 0

    def begin(self) -> None:
        """Start all threads now, so that no later call needs a new thread.

        Raises:
            NoFreeThread: If the system cannot start all threads.
        """
        while self._made < self._count:
            self._start()

    def submit(
        self, work: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Queue ``work`` for the threads, and return its future. All calls must come from the same thread.

        Raises:
            NoFreeThread: If there is no thread, and the system cannot start one now; nothing was queued.
        """
        future: Future[_Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = work(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        if self._made < self._count:
            try:
                self._start()
            except NoFreeThread:
                if not self._made:  # without any thread, the work would never be done
                    raise
        self._work.put(run)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Make the threads end after all submitted work; return at once, without waiting for them."""
        for _ in range(self._made):
            self._work.put(None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self.name} {self._made + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise NoFreeThread(str(error)) from error
        self._made += 1

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
