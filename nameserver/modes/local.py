"""The common part of independent mode and raft mode: answers from this process's own table and settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from routekeeper.nameserver.handlers import DONE, SettingsChange, must_wait
from routekeeper.nameserver.liveness import NEVER, Liveness, Ownership
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.files import save_settings_file
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, LeaveReason, refusal
from routekeeper.remoting.logs import apply_log_level

from .changes import ChangeLog, Kind
from .explain import Explanation, explain_route
from .history import History
from .interface import NO_QUORUM_TAG, Effects, NoQuorum
from .kept_file import KeptFile
from .timeline import Timeline
from .waiters import TableWaiters

logger = logging.getLogger(__name__)


class Local:
    """One nameserver's table, history and settings: the common part of both modes.

    Args:
        boot_id: Random number of this process, which tells a restarted process from the former process.
        keeps_routes: True if the table survives a restart.
    """

    def __init__(self, settings: LiveSettings, effects: Effects, *, boot_id: int, keeps_routes: bool) -> None:
        self.settings = settings
        self._effects = effects
        self._boot_id = boot_id
        self._keeps_routes = keeps_routes
        self._table = RouteTable()
        self._table.strict = not keeps_routes
        self._liveness = Liveness()
        self._history = History()
        self._waiters = TableWaiters(self._table)
        self._settings_path = Path(settings.current.store_path)
        self._settings_file = KeptFile(
            "settings", "kept", path=self._settings_path, write=self._write_settings
        )
        self._kept_files = [self._settings_file]

    @property
    def liveness(self) -> Liveness:
        """Facts about brokers from this process's own connections."""
        return self._liveness

    def carries_broker(self, origin: ConnectionId) -> bool:
        return self._liveness.carries_broker(origin)

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        return self._liveness.ownership(broker, origin)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        return await self._waiters.changed(topic, after, deadline=deadline)

    def follow(self, topic: str, changed: Callable[[], None]) -> None:
        self._waiters.follow(topic, changed)

    def unfollow(self, topic: str) -> None:
        self._waiters.unfollow(topic)

    @property
    def changes(self) -> ChangeLog:
        """The log of the table's last changes."""
        return self._waiters.log

    async def list_changed(self, kind: Kind, after: int, *, deadline: float) -> None:
        await self._waiters.list_changed(kind, after, deadline=deadline)

    def explain(self, topic: str) -> Explanation:
        return explain_route(
            self._table.view,
            topic,
            self._history,
            started_ms_ago=int(self._liveness.clock * 1000),
            keeps_routes=self._keeps_routes,
        )

    @property
    def departures(self) -> Mapping[LeaveReason, int]:
        """Number of brokers that left the table since the start, by reason."""
        return self._history.departures

    @property
    def timeline(self) -> Timeline:
        """The last events of this process."""
        return self._history.timeline

    def connection_of(self, broker: BrokerKey) -> ConnectionId | None:
        """Return the open connection to which a broker belongs, or None if this process has none."""
        contact = self._liveness.contact(broker)
        return contact.owner if contact is not None and contact.connected else None

    def last_seen_s(self, broker: BrokerKey) -> float | None:
        """Return the seconds since a broker's last message to this process, or None without a message."""
        contact = self._liveness.contact(broker)
        if contact is None or contact.heard_at == NEVER:
            return None
        return self._liveness.clock - contact.heard_at

    def refuse_read(self, error: NoQuorum) -> Answer:
        return refusal(f"{NO_QUORUM_TAG} {error}")

    def _first_reports(self) -> str:
        """Return the reason why route queries are refused after the start, or "" if they are answered."""
        settings, uptime_s = self.settings.current, self.uptime_s
        if not must_wait(settings, uptime_s):
            return ""
        left_s = math.ceil(settings.wait_seconds_for_service - uptime_s)
        return f"the first reports of brokers, {left_s} s more (needWaitForService)"

    def _unwritten_files(self) -> int:
        return sum(file.is_failing for file in self._kept_files)

    @property
    def uptime_s(self) -> float:
        return self._liveness.clock

    async def change_settings(self, change: SettingsChange) -> Answer:
        """Apply changed settings on this nameserver only, and write them to its file."""
        self.settings.change(change.after, change.changes)
        if "logLevel" in change.changes:
            apply_log_level(change.after.log_level)
        for key, value in change.changes.items():
            logger.info("setting changed key=%s value=%s", key, value)
        self._settings_file.changed()
        failure = await self._settings_file.keep()
        return DONE if failure is None else refusal(failure)

    def _write_settings(self) -> Callable[[], None]:
        return partial(save_settings_file, self._settings_path, dict(self.settings.stored))
