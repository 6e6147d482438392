"""Threads that wait for the disk, so that the event loop does not have to wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DiskThreads(Executor):
    """Threads for one kind of disk work; if ``count`` is 1, the work runs in the order of its submission.

    A hung disk may never answer. Therefore each kind of disk work has its own threads: work that hangs delays
    only work of the same kind. The threads are daemons: the process can end while the threads still wait for
    the disk. The threads of Python's usual executors would keep the process from ending.

    Args:
        count: Maximum number of threads. Each task starts one more thread until this number is reached.
    """

    def __init__(self, name: str, *, count: int = 1) -> None:
        self.name = name
        self._count = count
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._made = 0

    def submit(
        self, work: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Queue ``work`` for the threads, and return its future. All calls must come from the same thread.

        Raises:
            RuntimeError: If there is no thread, and the system cannot start one now; nothing was queued.
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
                name = f"{self.name} {self._made + 1}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._made += 1
            except RuntimeError:
                if not self._made:
                    raise  # without any thread, nothing would ever do this work
        self._work.put(run)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Tell the threads to end after all submitted work, and return without waiting for them."""
        for _ in range(self._made):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
