"""The long work of HTTP on the table: one task after the other, in slices over turns of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.remoting.steps import Steps

from .problems import ASK_AGAIN, Problem

WAITING_MAX: Final = 1_024
"""Bound of the tasks that wait for their turn, including those whose connections have closed."""

_T = TypeVar("_T")


class Lane:
    """Runs one HTTP server's work of listing, encoding and compressing; each slice of it is short.

    Attributes:
        waiting: Number of tasks that are not done.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._line = Line(
            clock=time.monotonic,
            call_soon=lambda call: asyncio.get_running_loop().call_soon(call),
        )

    async def run(self, steps: Steps[_T], *, is_wanted: Callable[[], bool]) -> _T:
        """Run a task when its turn comes; return its result.

        Args:
            is_wanted: Called before the task begins: a task for which no client waits any more is not run.

        Raises:
            Problem: 503, if too many wait already.
            ConnectionError: If the task was not wanted any more.
        """
        if self.waiting >= WAITING_MAX:
            steps.close()
            raise Problem(503, f"{WAITING_MAX} lists are being made, ask again later", headers=ASK_AGAIN)
        ended: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        done: Any = partial(self._settle, ended)
        self.waiting += 1
        result = self._line.run(_guarded(steps, is_wanted), done)
        if result is not None:
            done(result)
        return await ended

    def _settle(self, ended: asyncio.Future[_T], result: tuple[_T, Exception | None]) -> None:
        value, error = result
        self.waiting -= 1
        resolve(ended, value if error is None else error)


def _guarded(steps: Steps[_T], is_wanted: Callable[[], bool]) -> Steps[tuple[_T | None, Exception | None]]:
    """Run the steps; store an exception as the result, so that the waiting caller raises it."""
    try:
        if not is_wanted():
            raise ConnectionResetError("nobody waits for this answer any more")
        return (yield from steps), None
    except Exception as error:
        return None, error
