"""Who waits for a topic to change; the same in every mode."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from nameserver.routes.table import RouteTable
from nameserver.verdicts import Applied

_T = TypeVar("_T")


class TopicWaiters:
    """Requests that wait for a topic of a table to change."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}  # by topic
        self._ended = False

    def __len__(self) -> int:
        """Return how many topics are waited for."""
        return len(self._waiters)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision, see :meth:`Consistency.changed`; once this has ended, at once."""
        view = self._table.view
        epoch = view.epoch
        try:
            async with asyncio.timeout_at(deadline):
                while view.topic_revision(topic) <= after and view.epoch == epoch and not self._ended:
                    await self._next(topic)
        except TimeoutError:
            pass
        return view.topic_revision(topic)

    def follow(self, applied: Applied) -> None:
        """Have those look who wait for a topic that a change affects."""
        for topic in list(self._table.view.affected(applied, self._waiters.keys())):
            wake(self._waiters[topic])

    def wake_all(self) -> None:
        """Have everybody look."""
        for waiters in self._waiters.values():
            wake(waiters)

    def end(self) -> None:
        """Let everybody go: from here on nobody waits."""
        self._ended = True
        self.wake_all()

    async def _next(self, topic: str) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(topic, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(topic, None)


def wake(waiters: set[asyncio.Future[None]]) -> None:
    """Let everybody go on who waits."""
    for waiter in waiters:
        resolve(waiter, None)


def resolve(waiter: asyncio.Future[_T], outcome: _T | Exception) -> None:
    """Let one go on with what came of it, unless it has been told already or waits no more."""
    if waiter.done():
        return
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
