"""Checks for programs whose threads the system may be unable to start."""

from __future__ import annotations

import re
import threading
from typing import Final

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
