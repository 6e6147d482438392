"""Requests that wait for a change of one topic or of one kind of list, for every mode."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar
from weakref import WeakValueDictionary

from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.verdicts import Applied

from .changes import ChangeLog, Kind

_T = TypeVar("_T")


class TableWaiters:
    """Requests that wait for a table to change.

    Attributes:
        log: The last changes of the table. It is empty until it has a follower.
    """

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self.log = ChangeLog()
        # Requests that wait for a list, by kind of list. They are sorted by the argument ``after`` of
        # list_changed(), so that a change touches only the requests that it wakes.
        self._lists: dict[Kind, list[tuple[int, int, asyncio.Future[None]]]] = {kind: [] for kind in Kind}
        self._numbers = count()
        # The event of each topic for which a request waits. A change sets the event, then clears it.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._followed: dict[str, Callable[[], None]] = {}
        # Number of requests that wait for a topic. Each change reads this number, and the length of
        # ``_changes``, a weak dictionary, would be slow to compute.
        self._waiting = 0
        self._ended = False

    def __len__(self) -> int:
        """Return the number of topics for which requests wait."""
        return len(self._changes)

    def __bool__(self) -> bool:
        """Return True if any request waits, the change log is in use, or a topic has a follower."""
        return self._waiting > 0 or self.log.begun or bool(self._followed)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it exceeds ``after``, or at the deadline.

        Also return when the table gets another epoch, because revisions of two epochs cannot be compared.
        After a call of :meth:`end`, return at once.
        """
        view = self._table.view
        epoch = view.epoch
        change = self._changes.setdefault(topic, asyncio.Event())
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    while view.topic_revision(topic) <= after and view.epoch == epoch and not self._ended:
                        await change.wait()
        finally:
            self._waiting -= 1
        return view.topic_revision(topic)

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        """Return when a list of this kind has changed after revision ``after``, or at the deadline.

        This method also returns when another table replaces the table. After a call of :meth:`end`, it
        returns at once.
        """
        if self.log.changed_at[kind] > after or self._ended:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting, place = self._lists[kind], (after, next(self._numbers), waiter)
        insort(waiting, place)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await waiter
        finally:
            found = bisect_left(waiting, place[:2], key=lambda one: one[:2])
            if waiting[found : found + 1] == [place]:
                del waiting[found]

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever a topic's route may have changed, or another table replaces the table.

        The call comes while a change is being applied, so ``changed`` may only schedule work.
        """
        assert topic not in self._followed, "a topic has one follower"
        self._followed[topic] = changed

    def unfollow(self, topic: str) -> None:
        """Stop the calls for a topic that :meth:`follow` began."""
        del self._followed[topic]

    def wake_affected(self, applied: Applied) -> None:
        """Wake the requests whose topic or list was changed by an applied command."""
        if self._waiting:
            self._look(self._table.view.affected(applied, self._changes))
        if self._followed:
            for topic in set(self._table.view.affected(applied, self._followed)):
                self._followed[topic]()
        if self.log.begun:
            for kind in self.log.note(applied):
                waiting = self._lists[kind]
                reached = bisect_left(waiting, applied.revision, key=lambda one: one[0])
                for _, _, waiter in waiting[:reached]:
                    resolve(waiter, None)
                del waiting[:reached]

    def wake_all(self) -> None:
        """Wake all requests. Each request then checks its own condition again."""
        if self.log.begun:
            self.log.restart(self._table.view)
        self._look(self._changes)
        for changed in self._followed.values():
            changed()
        for waiting in self._lists.values():
            for _, _, waiter in waiting:
                resolve(waiter, None)
            waiting.clear()

    def end(self) -> None:
        """Wake all requests, so that they get answers. Later requests do not wait."""
        self._ended = True
        self.wake_all()

    def _look(self, topics: Iterable[str]) -> None:
        for topic in list(topics):
            if change := self._changes.get(topic):
                change.set()
                change.clear()


def wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    """Wake all waiters by setting their results to None."""
    for waiter in waiters:
        resolve(waiter, None)


def resolve(waiter: asyncio.Future[_T], outcome: _T | Exception) -> None:
    """Set a waiter's result or exception. Do nothing if the waiter is done already or was cancelled."""
    if waiter.done():
        return
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
