"""Threads in which an asyncio client calls functions that may block, such as plain listeners."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias, TypeVar

from routekeeper.remoting.threads import NoFreeThread

T = TypeVar("T")

#: Seconds after which an idle thread ends, so that a client that was never closed keeps no threads.
IDLE_S: Final = 10.0
_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class CallThreads:
    """Daemon threads that call functions; as many as there are calls at once.

    asyncio's own threads are no replacement. They are few (six on two cores), and the loop's resolver and the
    user's program need them, too. And Python waits at its end for a thread that hangs in a listener.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The inbox of each idle thread. The last one gets the next call, so that unneeded threads can end.
        self._idle: list[_Inbox] = []
        self._ended = False

    @property
    def idle(self) -> int:
        """Number of idle threads."""
        return len(self._idle)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread, with the caller's context variables, and return its result.

        If the caller is cancelled, the function goes on, and its outcome is dropped.

        Raises:
            NoFreeThread: If no thread can be started; the function is not called.
            RuntimeError: If the function raised StopIteration.
        """
        context = contextvars.copy_context()
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = context.run(function, *arguments)
            except StopIteration as error:  # a future of asyncio refuses a StopIteration
                stopped = RuntimeError("the function raised StopIteration")
                stopped.__cause__ = error
                outcome.set_exception(stopped)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(run)
        else:
            inbox = queue.SimpleQueue()
            inbox.put(run)  # not as an argument of the thread, which keeps its arguments until it ends
            thread = threading.Thread(target=self._work, args=(inbox,), name="client-call", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise NoFreeThread(str(error)) from error
        return await asyncio.wrap_future(outcome)

    def end(self) -> None:
        """End the idle threads now, and each other thread after its call."""
        with self._lock:
            self._ended = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _work(self, inbox: _Inbox) -> None:
        run = inbox.get()
        while run is not None:
            run()
            run = None  # free the memory of the last call: the next one may come much later
            run = self._next(inbox)

    def _next(self, inbox: _Inbox) -> Callable[[], None] | None:
        """Return the next function for an idle thread, or None if the thread must end."""
        with self._lock:
            if self._ended:
                return None
            self._idle.append(inbox)
        try:
            return inbox.get(timeout=IDLE_S)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # a call or the end came after the timeout: do not lose it
