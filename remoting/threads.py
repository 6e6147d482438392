"""Calls of functions in a thread, for programs that continue if the system cannot start a thread."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


#: Number of threads that uvloop's library starts when a server binds its first port, unless the environment
#: variable UV_THREADPOOL_SIZE gives another number. If the library cannot start one of them, it aborts the
#: process without a message.
_LOOP_THREADS: Final = 4

#: Exit code of a server that could not start its threads. Source: EX_TEMPFAIL, sysexits.h. A service manager
#: may start the server again.
TRY_AGAIN: Final = 75
LIMITS_HINT: Final = (
    "the limits of this user and of this container (ulimit -u, pids.max) must allow more threads"
)


class NoFreeThread(RuntimeError):
    """No thread can be started, because the process has too many threads or is ending."""


def in_full(error: NoFreeThread) -> str:
    """Return the error's text for an operator, with the limits that must be raised."""
    text = str(error)
    return text if LIMITS_HINT in text else f"{text}; {LIMITS_HINT}"


def check_threads(own: int, pool_size: str = "") -> None:
    """Check that the system can start the threads that a server needs at its start.

    Args:
        own: Number of threads that the server starts itself before it is ready.
        pool_size: Value of the environment variable UV_THREADPOOL_SIZE.

    Raises:
        NoFreeThread: If a thread cannot be started; the text says which limits must be raised.
    """
    count = own + (int(pool_size) if re.fullmatch(r"[0-9]{1,4}", pool_size) else _LOOP_THREADS)
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        raise NoFreeThread(f"{error} ({count} are needed); {LIMITS_HINT}") from error
    finally:
        done.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


async def in_thread(
    call: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a function in a thread, as :func:`asyncio.to_thread` does, and return its result.

    ``asyncio.to_thread`` keeps a function that it could not start, and calls it when the process has a thread
    again. The present function never makes such a late call.

    Raises:
        NoFreeThread: If no thread can be started; the function is not called, now or later.
        RuntimeError: If the function raised StopIteration.
    """
    context = contextvars.copy_context()
    outcome: Future[_Result] = Future()

    def run() -> _Result:
        if not outcome.set_running_or_notify_cancel():
            raise NoFreeThread("the process could start no thread in time")
        try:
            result = context.run(call, *args, **kwargs)
        except BaseException as error:
            outcome.set_exception(error)
            if isinstance(error, StopIteration):  # a future of asyncio never passes on a StopIteration
                raise RuntimeError("the function raised StopIteration") from error
            raise
        outcome.set_result(result)
        return result

    try:
        running = asyncio.get_running_loop().run_in_executor(None, run)
    except RuntimeError as error:
        # The executor still has the function, and one of its threads may already run it. Without this
        # cancellation, the executor could call the function later.
        if outcome.cancel():
            raise NoFreeThread(str(error)) from error
        running = asyncio.wrap_future(outcome)
    return await running
