"""Threads for the asynchronous sends of a blocking client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from .errors import ClientClosed, OutcomeUnknown
from .operation import Operation

T = TypeVar("T")
#: Seconds after which an idle thread ends, so that a client that was never closed keeps no threads.
_IDLE_S: Final = 10.0
_Task = tuple[Future[Any], Operation[Any]]


class SendThreads:
    """A bounded number of threads that run operations.

    The threads are daemon threads, so Python does not wait for them at exit. This is necessary, because a
    hook or the system's resolver may block a thread for ever. ThreadPoolExecutor has no daemon threads.
    """

    def __init__(self, perform: Callable[[Operation[Any]], Any], *, threads_max: int) -> None:
        self._perform = perform
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._running: set[Future[Any]] = set()
        self._threads = self._idle = 0
        self._ended = False

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Run an operation as soon as a thread is free. The returned future gets the outcome.

        Raises:
            ClientClosed: If the threads have ended; the operation did not start.
            RuntimeError: If there is no thread, and the system cannot start one now.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise ClientClosed("the client is closed")
            if self._idle > self._waiting.qsize() or self._threads == self._threads_max:
                self._waiting.put((future, operation))
                return future
            thread = threading.Thread(
                target=self._work, args=((future, operation),), name=f"client-{self._threads}", daemon=True
            )
            self._threads += 1
            try:
                thread.start()
            except BaseException as error:
                self._threads -= 1
                if not isinstance(error, RuntimeError) or not self._threads:
                    raise
                self._waiting.put((future, operation))  # one of the running threads performs it
        return future

    def end(self) -> None:
        """Set an exception in every unfinished future, and end each thread when it is idle."""
        with self._lock:
            self._ended = True
            left = tuple(self._running)
            waiting: list[_Task] = []
            while not self._waiting.empty():
                task = self._waiting.get()
                if task is not None:
                    waiting.append(task)
            for _ in range(self._threads):
                self._waiting.put(None)
        for future, operation in waiting:
            operation.close()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClientClosed("the client was closed before the message was sent"))
        for future in left:
            try:
                future.set_exception(OutcomeUnknown("the client was closed, and the send had not ended"))
            except InvalidStateError:
                pass  # the thread has set the future's result meanwhile

    def _work(self, first: _Task) -> None:
        task: _Task | None = first
        del first
        while task is not None:
            self._run(*task)
            task = None  # free the memory of the last message: the next task may come much later
            task = self._next()

    def _next(self) -> _Task | None:
        """Return the next task, or None if this thread must end."""
        with self._lock:
            self._idle += 1
        task: _Task | None = None
        try:
            task = self._waiting.get(timeout=_IDLE_S)
            is_late = False
        except queue.Empty:
            is_late = True
        with self._lock:
            self._idle -= 1
            if is_late and not self._waiting.empty():
                task = self._waiting.get()  # the task arrived after the timeout: do not lose it
            if task is None:
                self._threads -= 1
        return task

    def _run(self, future: Future[Any], operation: Operation[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            operation.close()
            return
        with self._lock:
            self._running.add(future)
        try:
            result, failure = self._perform(operation), None
        except BaseException as error:  # the owner of the future gets the exception
            result, failure = None, error
        finally:
            with self._lock:
                self._running.discard(future)
        try:
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)
        except InvalidStateError:
            pass  # end() has set the future meanwhile
