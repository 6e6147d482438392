"""The work that HTTP does on the table, one piece after the other, in slices over rounds of the loop."""

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
"""Pieces that wait for their turn, those of connections that are gone included."""

_T = TypeVar("_T")


class Lane:
    """Runs what one HTTP server has to list, encode and compress; never longer than a slice at a time.

    Attributes:
        waiting: Pieces that are not done.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._line = Line(
            clock=time.monotonic,
            call_soon=lambda call: asyncio.get_running_loop().call_soon(call),
        )

    async def run(self, steps: Steps[_T], *, is_wanted: Callable[[], bool]) -> _T:
        """Return the result of a piece of work, which is done when its turn has come.

        Args:
            is_wanted: Asked before it begins: one that nobody waits for any more is not done.

        Raises:
            Problem: 503, if too many wait already.
            ConnectionError: If it was not wanted any more.
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
    """Make the steps; a failure becomes the result, which its waiter raises."""
    try:
        if not is_wanted():
            raise ConnectionResetError("nobody waits for this answer any more")
        return (yield from steps), None
    except Exception as error:
        return None, error
