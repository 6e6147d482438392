"""The lane: a queue for long HTTP work on the table.

The tasks run one after another, in short slices. Other work of the event loop runs between two slices. Hosts
take turns: a host with many requests delays another host's request by about one task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.remoting.addresses import network_of
from routekeeper.remoting.steps import Steps

from .problems import ASK_AGAIN, Problem

WAITING_MAX: Final = 1_024
"""Largest number of unfinished tasks, including tasks whose connections have closed."""

_T = TypeVar("_T")


class Lane:
    """A queue of one HTTP server's long tasks: listing, encoding, compressing. It runs them in short slices.

    Attributes:
        waiting: Number of unfinished tasks.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._line = Line(
            clock=time.monotonic,
            call_soon=lambda call: asyncio.get_running_loop().call_soon(call),
        )

    async def serve(self, steps: Steps[_T], request: web.Request) -> _T:
        """Run a task for a request, in the turn of the client's host; see :meth:`run`."""
        return await self.run(
            steps,
            is_wanted=lambda: request.transport is not None,
            sender=request.protocol,
            host=network_of(request.remote or ""),
        )

    async def run(
        self,
        steps: Steps[_T],
        *,
        is_wanted: Callable[[], bool],
        sender: Hashable = None,
        host: Hashable = None,
    ) -> _T:
        """Run a task in its turn; return its result.

        Args:
            is_wanted: Function called before the task begins. It returns False if no client waits for the
                result any more; the task then does not run.
            sender: The connection that waits for the result; None for this process's own work.
            host: Host of the sender. Hosts take turns, and in a host's turn its senders take turns.

        Raises:
            Problem: With status 503 if too many tasks wait already.
            ConnectionError: If ``is_wanted`` returned False.
        """
        if self.waiting >= WAITING_MAX:
            steps.close()
            raise Problem(503, f"{WAITING_MAX} lists are being made, ask again later", headers=ASK_AGAIN)
        ended: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        done: Any = partial(self._settle, ended)
        self.waiting += 1
        result = self._line.run(_guarded(steps, is_wanted), done, sender=sender, host=host)
        if result is not None:
            done(result)
        return await ended

    def _settle(self, ended: asyncio.Future[_T], result: tuple[_T, Exception | None]) -> None:
        value, error = result
        self.waiting -= 1
        resolve(ended, value if error is None else error)


def _guarded(steps: Steps[_T], is_wanted: Callable[[], bool]) -> Steps[tuple[_T | None, Exception | None]]:
    """Run a task's steps. Return an exception as part of the result, so that the waiting caller raises it."""
    try:
        if not is_wanted():
            raise ConnectionResetError("nobody waits for this answer any more")
        return (yield from steps), None
    except Exception as error:
        return None, error
