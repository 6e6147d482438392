"""Functions that wait for a condition until a deadline, in threads and on event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

#: Default time limit in seconds. It is long, so that no test fails only because the machine is busy.
WITHIN_S: Final = 60.0

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], what: str, *, within_s: float = WITHIN_S, every_s: float = 0.05
) -> _T:
    """Check a condition until its value is true, and return this value.

    The pauses between the checks become longer and longer, because each check takes processor time from other
    tests that run in parallel.

    Args:
        every_s: Longest pause between two checks in seconds; the first pause is 5 ms.

    Raises:
        AssertionError: The condition is not true within ``within_s`` seconds; the text contains ``what``.
    """
    deadline = time.monotonic() + within_s
    pause_s = min(0.005, every_s)
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, every_s)
    return value


async def until(
    condition: Callable[[], object], what: str = "the condition", *, within_s: float = WITHIN_S
) -> None:
    """Wait until a condition is true, while the event loop continues to run.

    Raises:
        AssertionError: The condition is not true within ``within_s`` seconds; the text contains ``what``.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.001)


def in_thread(call: Callable[[], _T]) -> Future[_T]:
    """Run a function in a thread; return its future. The test can end even if the function never ends."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome
