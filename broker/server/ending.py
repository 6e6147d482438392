"""Signals that end the process. The first signal begins an orderly shutdown.

A second signal ends the process at once. A shutdown that takes too long is ended by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, NoReturn

from routekeeper.remoting.interrupt import Ending, Order, server_signals
from routekeeper.remoting.threads import NoFreeThread

logger = logging.getLogger(__name__)

#: Longest time in seconds from the signal to the end of the process, even if something hangs.
END_S: Final = 30.0
#: Exit code of a process that failed, or had no orderly shutdown. Source: EX_SOFTWARE, sysexits.h.
UNORDERLY: Final = 70


def end_at_signals(stop: asyncio.Event, reload: Callable[[], None]) -> Ending:
    """Set ``stop`` when a signal asks the process to end.

    If the process hangs, end the process by force after END_S seconds.

    A separate thread waits for signals, because the event loop notices no signal while it waits for the disk.
    Call this function in the loop's thread before any other thread starts.

    Args:
        reload: Callback that runs on the event loop at a signal to read settings and files again.

    Raises:
        NoFreeThread: If the thread cannot be started.

    Returns:
        An object that has the exit code as soon as ``stop`` is set.
    """
    end_at, reloading = server_signals()
    numbers = (*end_at, *reloading)
    # Block the signals first, because a signal that reaches the empty handler below would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        # The parent process may have set SIG_IGN. sigwait would never return an ignored signal.
        signal.signal(number, lambda *_: None)
    ending = Ending()
    waiting = threading.Thread(
        target=_wait,
        args=(numbers, reloading, asyncio.get_running_loop(), stop, reload, ending),
        name="signals",
        daemon=True,
    )
    try:
        waiting.start()
    except RuntimeError as error:
        raise NoFreeThread(str(error)) from error
    return ending


def _wait(
    numbers: Collection[int],
    reloading: Collection[int],
    loop: asyncio.AbstractEventLoop,
    stop: asyncio.Event,
    reload: Callable[[], None],
    ending: Ending,
) -> None:
    while (number := signal.sigwait(numbers)) in reloading:
        with contextlib.suppress(RuntimeError):  # the event loop has ended already
            loop.call_soon_threadsafe(reload)
    ending.take(number, time.monotonic())
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)
    # Wait in this thread for the next signal, and for the end of the time. A timer would need a further
    # thread, which the system may refuse to start.
    end_s = time.monotonic() + END_S
    while (left_s := end_s - time.monotonic()) > 0:
        found = signal.sigtimedwait(numbers, left_s)
        if found is None or found.si_signo in reloading:
            continue
        if ending.take(found.si_signo, time.monotonic()) is Order.AT_ONCE:
            _exit(128 + found.si_signo, f"second signal, exiting at once signal={found.si_signo}")
    _exit(UNORDERLY, f"not ended {END_S:g} s after the signal, exiting")


def _exit(code: int, reason: str) -> NoReturn:
    logger.critical(reason)
    logging.shutdown()
    os._exit(code)
