"""What an applied change asks for outside the table, and who waits for a topic to change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nameserver.commands import Command, Evict, RegisterBroker, Update
from nameserver.config import LiveSettings
from nameserver.consistency import Effects
from nameserver.explain import History
from nameserver.handlers import note_applied
from nameserver.liveness import Liveness
from nameserver.raft import RaftMember
from nameserver.route_table import RouteTable
from nameserver.verdicts import Applied

from .contact import wake
from .registrations import Registrations
from .reports import Reports

logger = logging.getLogger(__name__)


class Changes:
    """Follows each applied change with what is of this process alone.

    Args:
        kv_changed: Called when the KV configuration may differ.
    """

    def __init__(
        self,
        member: RaftMember,
        table: RouteTable,
        liveness: Liveness,
        reports: Reports,
        registrations: Registrations,
        settings: LiveSettings,
        history: History,
        effects: Effects,
        *,
        kv_changed: Callable[[], None],
    ) -> None:
        self._member = member
        self._table = table
        self._liveness = liveness
        self._reports = reports
        self._registrations = registrations
        self._settings = settings
        self._history = history
        self._effects = effects
        self._kv_changed = kv_changed
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}  # by topic
        self._closed = False

    def follow(self, command: Command, applied: Applied, *, live: bool) -> None:
        """Do what an applied change asks for outside the table; effects only for entries applied live."""
        if not self._waiters and (
            type(command) is Update or (isinstance(command, RegisterBroker) and applied.of_topics_alone)
        ):
            return  # nearly always: topics alone, which nobody waits for
        if applied.kv_changed:
            self._kv_changed()
        for gone in applied.left:
            self._reports.removed(gone.broker)
        if applied.joined is not None:
            self._reports.listed(applied.joined)
        for topic in list(self._table.view.affected(applied, self._waiters.keys())):
            wake(self._waiters[topic])
        if not live:
            return
        note_applied(self._history, command, applied, at_ms=time.time_ns() // 1_000_000)
        if applied.joined is not None:
            logger.info("broker registered broker=%s revision=%d", applied.joined, applied.revision)
        for gone in applied.left:
            logger.info(
                "broker left broker=%s name=%s reason=%s revision=%d",
                gone.broker,
                gone.broker_name,
                gone.reason,
                applied.revision,
            )
        if isinstance(command, Evict):
            for origin in self._liveness.connections_of(command.broker, up_to_revision=command.revision):
                if not self._registrations.is_answering(command.broker, origin):
                    self._effects.close_connection(origin)
        if self._member.leads and self._settings.current.notify_min_broker_id_changed:
            for change in applied.min_changes:
                self._effects.notify_min_broker(change)

    def replaced(self) -> None:
        """Another table has taken the place of the one here: anything may have changed."""
        self._registrations.forget_repeats()
        self._kv_changed()
        self.wake_all()

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        """Return the topic's revision once it is above ``after``, or what it is at the deadline."""
        view = self._table.view
        try:
            async with asyncio.timeout_at(deadline):
                while view.topic_revision(topic) <= after and not self._closed:
                    await self._next(topic)
        except TimeoutError:
            pass
        return view.topic_revision(topic)

    def wake_all(self) -> None:
        """Have everybody look who waits for a topic."""
        for waiters in list(self._waiters.values()):
            wake(waiters)

    def stop(self) -> None:
        """Begin to close: whoever is woken from now on waits no more."""
        self._closed = True

    async def _next(self, topic: str) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._waiters.setdefault(topic, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(topic, None)
