"""Requests that wait for a topic to change; the same in every mode."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakValueDictionary

from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.verdicts import Applied

_T = TypeVar("_T")


class TopicWaiters:
    """Requests that wait for a topic of a table to change."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        # By topic, for as long as a request waits for it; each is set for an instant at a change.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._ended = False

    def __len__(self) -> int:
        """Return how many topics are waited for."""
        return len(self._changes)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision, see :meth:`Consistency.changed`; once this has ended, at once."""
        view = self._table.view
        epoch = view.epoch
        change = self._changes.setdefault(topic, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while view.topic_revision(topic) <= after and view.epoch == epoch and not self._ended:
                    await change.wait()
        return view.topic_revision(topic)

    def wake_affected(self, applied: Applied) -> None:
        """Wake the requests that wait for a topic which a change affects."""
        if self._changes:
            self._look(self._table.view.affected(applied, self._changes))

    def wake_all(self) -> None:
        """Wake all requests: each looks at its topic again."""
        self._look(self._changes)

    def end(self) -> None:
        """Answer all requests: from here on none waits."""
        self._ended = True
        self.wake_all()

    def _look(self, topics: Iterable[str]) -> None:
        for topic in list(topics):
            if change := self._changes.get(topic):
                change.set()
                change.clear()


def wake(waiters: set[asyncio.Future[None]]) -> None:
    """Resolve all waiters."""
    for waiter in waiters:
        resolve(waiter, None)


def resolve(waiter: asyncio.Future[_T], outcome: _T | Exception) -> None:
    """Resolve a waiter with an outcome, unless it has one or was cancelled."""
    if waiter.done():
        return
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
