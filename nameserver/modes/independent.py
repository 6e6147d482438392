"""``--mode independent``: each nameserver for itself, as RocketMQ documents it.

The same design as a group, with one member and no log: a command is applied in the step that decided it,
this process's own evidence is judged at once, and KV configuration is kept in RocketMQ's file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nameserver.commands import Command, DeleteKv, Evict, ImportKv, PutKv
from nameserver.handlers import (
    HeardOver,
    Renewal,
    SettingsChange,
    Unregister,
    answer_for,
    decide_registration,
)
from nameserver.liveness import CLOCK_PERIOD_S, Liveness
from nameserver.registration import decode_registration
from nameserver.routes.table import RouteTable
from nameserver.routes.view import RouteView
from nameserver.settings.changes import LiveSettings
from nameserver.settings.declared import FIRST_SCAN_S
from nameserver.settings.files import load_kv_file, save_kv_file
from nameserver.types import Answer, BrokerKey, ConnectionId, LeaveReason, Request, refusal
from nameserver.verdicts import Applied, NoChange, RegisterReply, Rejected, Verdict
from remoting.codes import RequestCode, ResponseCode

from .explain import Explanation, explain_route
from .history import History
from .interface import (
    NO_QUORUM_TAG,
    BarrierPassed,
    ConsistencyStatus,
    Effects,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from .kept_file import KeptFile
from .notes import note_change, note_late_unregister
from .serving import serve
from .settings_file import SettingsFile
from .waiters import TopicWaiters

logger = logging.getLogger(__name__)


class Independent:
    """One nameserver that agrees with nobody. Implements ``Consistency`` and ``Mode``.

    Nothing here waits but the writing of files, so :meth:`execute` mostly ends in its first step.
    """

    def __init__(
        self,
        settings: LiveSettings,
        effects: Effects,
        *,
        boot_id: int,
        kv: Mapping[str, Mapping[str, str | None]],
    ) -> None:
        """Make one with the KV configuration found at the start; see :meth:`open`.

        Args:
            boot_id: Random number of this process.
        """
        self._settings = settings
        self._effects = effects
        self._boot_id = boot_id
        self._table = RouteTable()
        self._liveness = Liveness()
        self._history = History()
        self._waiters = TopicWaiters(self._table)
        self._settings_file = SettingsFile(settings)
        self._kv_file = KeptFile("KV configuration", "kept", path=self._kv_path, write=self._write_kv)
        self._timer: asyncio.TimerHandle | None = None
        self._started_at: float | None = None
        self._scan_at: float | None = None
        if kv:
            self._table.apply(ImportKv(table={space: dict(keys) for space, keys in kv.items()}))

    @classmethod
    def open(cls, settings: LiveSettings, effects: Effects, *, boot_id: int) -> Independent:
        """Load the KV file and make one; call :meth:`start` on the loop.

        Raises:
            FileError: If the KV file and its ``.bak`` are both broken.
        """
        kv = load_kv_file(Path(settings.current.kv_path))
        return cls(settings, effects, boot_id=boot_id, kv=kv)

    def start(self) -> None:
        """Start the clock and the scan for silent brokers on the running loop."""
        loop = asyncio.get_running_loop()
        self.tick(loop.time())

        def again() -> None:
            self._timer = loop.call_later(CLOCK_PERIOD_S, again)  # whatever becomes of this tick
            self.tick(loop.time())

        self._timer = loop.call_later(CLOCK_PERIOD_S, again)

    def tick(self, now: float) -> None:
        """Advance the liveness clock to ``now`` (loop time, s) and scan when it is time."""
        self._liveness.advance(now)
        clock = self._liveness.clock
        interval_s = self._settings.current.scan_interval_ms / 1000
        if self._started_at is None or self._scan_at is None:
            self._started_at = now
            self._scan_at = clock + min(FIRST_SCAN_S, interval_s)
        # The interval can be changed at run time; a shorter one counts from now on.
        self._scan_at = min(self._scan_at, clock + interval_s)
        if clock >= self._scan_at:
            self._scan_at = clock + interval_s
            self._scan()

    # -- Consistency --------------------------------------------------------------------------------------

    @property
    def operations(self) -> None:
        """There is no group."""

    def explain(self, topic: str) -> Explanation:
        return explain_route(
            self._table.view,
            topic,
            self._history,
            started_ms_ago=int(self._liveness.clock * 1000),
            keeps_routes=False,
        )

    def view(self, freshness: Freshness) -> RouteView:
        if freshness is Freshness.LINEARIZABLE:
            raise FreshnessNotOffered("an independent nameserver knows nothing of the others")
        return self._table.view

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        return self.view(freshness)

    def join_barrier(self, passed: BarrierPassed) -> int:
        raise FreshnessNotOffered("an independent nameserver knows nothing of the others")

    def refuse_read(self, error: NoQuorum) -> Answer:
        return refusal(f"{NO_QUORUM_TAG} {error}")

    def register(
        self, request: Request, origin: ConnectionId, *, deadline: float, answered: Callable[[Answer], None]
    ) -> Answer:
        decoded = decode_registration(request)
        if isinstance(decoded, Answer):
            return decoded
        settings = self._settings.current
        self._liveness.registering(decoded.broker, origin, lease_s=decoded.lease_ms / 1000)
        decision = decide_registration(self._table.view, decoded, settings)
        if isinstance(decision, Renewal):
            self._registered(decision.broker, origin, revision=decision.revision)
            return decision.answer
        verdict = self._apply(decision)
        assert isinstance(verdict, Applied | NoChange), "it applies to the very table that it was decided on"
        assert isinstance(verdict.reply, RegisterReply), "what a registration is answered with"
        self._registered(decoded.broker, origin, revision=verdict.reply.revision)
        return answer_for(decision, verdict, request, settings)

    async def execute(self, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
        if request.code == RequestCode.REGISTER_BROKER:
            return self.register(request, origin, deadline=deadline, answered=_never)
        return await serve(self, request, origin, deadline=deadline)

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        for broker in self._liveness.closed(origin, by_us=by_us, revision_of=self._revision_of):
            self._evict(broker, LeaveReason.CONNECTION_CLOSED)

    def carries_broker(self, origin: ConnectionId) -> bool:
        return self._liveness.carries_broker(origin)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        return await self._waiters.changed(topic, after, deadline=deadline)

    def status(self) -> ConsistencyStatus:
        view = self._table.view
        return ConsistencyStatus(
            mode="independent",
            role="independent",
            commit_index=view.revision,
            applied_index=view.revision,
            boot_id=self._boot_id,
            revision=view.revision,
            digest=view.digest(),
            state_digest=view.state_digest(),
        )

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiters.end()
        async with asyncio.TaskGroup() as group:  # each waits for the disk for a while
            group.create_task(self._kv_file.close())
            group.create_task(self._settings_file.close())

    # -- Mode ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> LiveSettings:
        return self._settings

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        return self._table.view

    def heard_over(self, origin: ConnectionId) -> HeardOver:
        return HeardOver(self._liveness, origin)

    def _registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int | None) -> None:
        if revision is None:
            self._liveness.forget(broker)
        else:
            self._liveness.registered(broker, origin, revision=revision)

    async def renew(self, renewal: Renewal, origin: ConnectionId, *, deadline: float) -> Answer | Command:
        if renewal.registration:
            self._registered(renewal.broker, origin, revision=renewal.revision)
        else:
            self._liveness.heard(renewal.broker, origin)
        return renewal.answer

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        verdict = self._apply(command)
        if isinstance(command, PutKv | DeleteKv):
            if isinstance(verdict, Applied):
                self._kv_file.changed()
            # Also if nothing has changed: what is in force already may not be in the file yet.
            failure = await self._kv_file.keep()
            if failure is not None:
                return Rejected(code=ResponseCode.SYSTEM_ERROR, remark=failure)
        return verdict

    def _kv_path(self) -> Path:
        return Path(self._settings.current.kv_path)

    def _write_kv(self) -> Callable[[], None]:
        return partial(save_kv_file, self._kv_path(), self._table.view.kv_table())

    async def unregister(self, unregister: Unregister, origin: ConnectionId, *, deadline: float) -> Answer:
        broker = unregister.broker
        if unregister.late:
            note_late_unregister(unregister, origin)
            return unregister.answer
        self._liveness.withdrawn(broker, origin, revision=self._revision_of(broker))
        self._evict(broker, LeaveReason.UNREGISTERED)
        return unregister.answer

    async def change_settings(self, change: SettingsChange) -> Answer:
        return await self._settings_file.change(change)

    # -- inside -------------------------------------------------------------------------------------------

    def _revision_of(self, broker: BrokerKey) -> int | None:
        record = self._table.view.record(broker)
        return None if record is None else record.revision

    def _scan(self) -> None:
        for broker in self._liveness.silent():
            self._evict(broker, LeaveReason.LEASE_EXPIRED)

    def _evict(self, broker: BrokerKey, reason: LeaveReason) -> None:
        """Remove a broker judged gone, and close what it registered over when its lease ran out."""
        revision = self._revision_of(broker)
        origins: tuple[ConnectionId, ...] = ()
        if revision is not None:
            if reason is LeaveReason.LEASE_EXPIRED:
                origins = self._liveness.connections_of(broker, up_to_revision=revision)
            self._apply(
                Evict(
                    cluster_name=broker.cluster_name,
                    broker_addr=broker.broker_addr,
                    revision=revision,
                    reason=reason,
                )
            )
        self._liveness.forget(broker)
        for origin in origins:
            self._effects.close_connection(origin)

    def _apply(self, command: Command) -> Verdict:
        verdict = self._table.apply(command)
        if isinstance(verdict, Applied):
            self._follow(command, verdict)
        return verdict

    def _follow(self, command: Command, applied: Applied) -> None:
        """Do what an applied change asks for outside the table."""
        view = self._table.view
        note_change(self._history, command, applied)
        for gone in applied.left:
            if view.record(gone.broker) is None:
                self._liveness.forget(gone.broker)
        if self._settings.current.notify_min_broker_id_changed:
            for change in applied.min_changes:
                self._effects.notify_min_broker(change)
        self._waiters.follow(applied)


def _never(answer: Answer) -> None:
    raise AssertionError("nothing waits in this mode")
