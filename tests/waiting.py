"""Waiting for a condition, with a deadline: in threads and on event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

#: Long, because a busy machine is no failure.
WITHIN_S: Final = 60.0

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], what: str, *, within_s: float = WITHIN_S, every_s: float = 0.05
) -> _T:
    """Return the first true value of a condition, which is looked at less and less often.

    Many conditions ask a server, and several tests share a processor.

    Args:
        every_s: Longest pause between two looks; the first one is 5 ms.

    Raises:
        AssertionError: After ``within_s``; the text names what was waited for.
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
    """Return once a condition holds; the loop goes on meanwhile.

    Raises:
        AssertionError: After ``within_s``; the text names what was waited for.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.001)
