"""Announcements of changed topics to nameservers. At most UNDER_WAY_MAX of them run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from routekeeper.broker.server.registrar import Announcer
from routekeeper.broker.server.registration import Trigger
from routekeeper.remoting.route import DataVersion, TopicConfig

#: Largest number of announcements that run at the same time. Several may run, because an announcement that
#: waits for a silent nameserver must not delay other announcements.
UNDER_WAY_MAX: Final = 16
#: Largest number of topics in an announcement of changed topics. If more topics have changed, the broker
#: announces all its topics.
SINGLE_MAX: Final = 100

Changes = Sequence[tuple[TopicConfig, DataVersion]]


class Announcements:
    """Announcements of the changes that requests make.

    Any client may send requests that change topics or permissions, and each change needs an announcement.
    While UNDER_WAY_MAX announcements run, further changes are collected for the next announcement.

    Args:
        spawn: Function that starts a task.
    """

    def __init__(
        self, announcer: Announcer, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._announcer = announcer
        self._spawn = spawn
        self._under_way = 0
        self._changes: list[tuple[TopicConfig, DataVersion]] = []
        self._of_all = False
        self._asked: asyncio.Future[None] | None = None  # done when the collected changes are announced

    def announce(self, changes: Changes, *, of_all: bool = False) -> asyncio.Future[None]:
        """Announce changed topics, or all topics if ``of_all``. The future is done after the announcement."""
        self._changes += changes
        self._of_all |= of_all or len(self._changes) > SINGLE_MAX
        if self._of_all:
            self._changes.clear()
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        asked = self._asked
        if self._under_way < UNDER_WAY_MAX:
            self._begin()
        return asked

    def _begin(self) -> None:
        asked, changes, of_all = self._asked, self._changes, self._of_all
        assert asked is not None
        self._asked, self._changes, self._of_all = None, [], False
        self._under_way += 1
        self._spawn(self._run(asked, changes, of_all=of_all))

    async def _run(self, asked: asyncio.Future[None], changes: Changes, *, of_all: bool) -> None:
        try:
            if of_all:
                await self._announcer.register_all(Trigger.PERMISSION)
            else:
                await self._announcer.register_topics(changes)
        finally:
            self._under_way -= 1
            if not asked.done():
                asked.set_result(None)
        if self._asked is not None:
            self._begin()
