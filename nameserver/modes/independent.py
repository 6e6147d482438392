"""``--mode independent``: a nameserver without a group, like RocketMQ's nameserver.

It works like a raft group with one member and without a log, and applies a command right after the decision.
When its own connections show that a broker is gone, it evicts the broker at once. It stores the KV
configuration in RocketMQ's file.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from routekeeper.nameserver.commands import Command, DeleteKv, Evict, ImportKv, PutKv, Update
from routekeeper.nameserver.handlers import Renewal, answer_for
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.registration import decoding_registration
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import FIRST_SCAN_S
from routekeeper.nameserver.settings.files import load_kv_file, save_kv_file
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, LeaveReason, Request, refusal
from routekeeper.nameserver.verdicts import Applied, NoChange, RegisterReply, Rejected, Verdict
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.steps import Steps

from .interface import LINEARIZABLE, BarrierPassed, ConsistencyStatus, Effects, Freshness, FreshnessNotOffered
from .kept_file import KeptFile
from .line import Line
from .local import Local
from .notes import note_change
from .repeats import SECRET_SIZE, Repeats
from .serving import decide_received, refusal_of_failure, serve
from .waiters import resolve

_T = TypeVar("_T", bound=object)
_Done: TypeAlias = Applied | NoChange

GONE: Final = refusal("not applied: the connection has closed")
"""Answer to a registration whose connection closed before the registration was decided."""


class Independent(Local):
    """A nameserver that belongs to no group. The class implements ``Consistency`` and ``Mode``.

    A request waits only until files are written and earlier work on the table has ended. Most calls of
    :meth:`execute` end without waiting.
    """

    operations = None  # this mode has no group

    def __init__(
        self,
        settings: LiveSettings,
        effects: Effects,
        *,
        boot_id: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a nameserver, and load the KV configuration from its file.

        The caller must then call :meth:`start` on the event loop.

        Args:
            clock: Function that returns a time in seconds. It dates the brokers' messages, and measures the
                slices of work on the table.

        Raises:
            FileError: If the KV file cannot be used, or an operator must decide what to do with the file.
        """
        super().__init__(settings, effects, boot_id=boot_id, keeps_routes=False)
        self._kv_path = Path(settings.current.kv_path)
        self._kv_file = KeptFile("KV configuration", "kept", path=self._kv_path, write=self._write_kv)
        self._kept_files.append(self._kv_file)
        self._clock = clock
        self._repeats = Repeats(os.urandom(SECRET_SIZE))
        # This scheduler runs all changes of the table, one after another.
        self._line = Line(clock=clock, call_soon=lambda call: asyncio.get_running_loop().call_soon(call))
        self._timer: asyncio.TimerHandle | None = None
        self._scan_at: float = FIRST_SCAN_S
        if kv := load_kv_file(self._kv_path):
            self._table.apply(ImportKv(table=kv))

    def start(self) -> None:
        """Begin to call :meth:`tick` periodically on the running loop."""
        loop = asyncio.get_running_loop()
        # Schedule the next tick first, so that later ticks still run if this tick raises an error.
        self._timer = loop.call_later(CLOCK_PERIOD_S, self.start)
        self.tick(self._clock())

    def tick(self, now: float) -> None:
        """Advance the liveness clock to ``now``, in seconds. Scan for silent brokers at intervals."""
        self._liveness.advance(now)
        clock = self._liveness.clock
        interval_s = self.settings.current.scan_interval_ms / 1000
        # The setting can change at run time. A shorter interval must take effect at once.
        self._scan_at = min(self._scan_at, clock + interval_s)
        if clock >= self._scan_at:
            self._scan_at = clock + interval_s
            for broker in self._liveness.silent():
                self._line.run(self._expired(broker), _no_matter, sender=broker, host=broker)

    # -- Consistency --------------------------------------------------------------------------------------

    def view(self, freshness: Freshness) -> RouteView:
        if freshness is LINEARIZABLE:
            raise FreshnessNotOffered("an independent nameserver knows nothing of the others")
        return self._table.view

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        return self.view(freshness)

    def join_barrier(self, passed: BarrierPassed) -> int:
        raise FreshnessNotOffered("an independent nameserver knows nothing of the others")

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str = "",
        turn_of: str = "",
    ) -> Answer | None:
        # Use a stored decision only if no task waits in the line, because a task could change the record.
        if not self._line.waiting:
            repeat = self._repeats.find(request, origin, self._table, self.settings.current)
            if repeat is not None:
                broker = repeat.renewal.record.broker
                self._liveness.advance(self._clock())
                self._liveness.registering(broker, origin, lease_s=repeat.lease_ms / 1000)
                self._liveness.note_current(broker)
                self._liveness.registered(broker, origin, revision=repeat.renewal.record.revision)
                return repeat.renewal.answer
        return self._line.run(
            self._registering(request, origin, host=host),
            answered,
            sender=origin,
            host=turn_of or host,
            otherwise=GONE,
            failed=refusal_of_failure,
        )

    def _registering(self, request: Request, origin: ConnectionId, *, host: str) -> Steps[Answer]:
        settings, table = self.settings.current, self._table
        decoded = yield from decoding_registration(request)
        if isinstance(decoded, Answer):
            return decoded
        # Set the liveness clock to the time of this message. Otherwise the clock may be 0.25 s late, and the
        # broker could be evicted before its lease has run out.
        self._liveness.advance(self._clock())
        self._liveness.registering(decoded.broker, origin, lease_s=decoded.lease_ms / 1000)
        decision = yield from decide_received(
            table, self._liveness, decoded, origin, settings, differences=True, host=host
        )
        revision: int | None
        if isinstance(decision, Renewal):
            answer, revision = decision.answer, decision.record.revision
            self._repeats.remember(request, decoded, decision, origin, table, settings)
        else:
            verdict = table.apply_at_once(decision) or (yield from table.applying(decision))
            self._follow(decision, verdict)
            answer = answer_for(decision, verdict, settings)
            if isinstance(verdict, Rejected):  # An existing record of the broker stays, so renew its lease.
                revision = table.present("record", decoded.broker)
            else:
                assert isinstance(verdict, _Done), "the table has not changed since the decision"
                assert isinstance(verdict.reply, RegisterReply), "the content of the answer to a registration"
                revision = verdict.reply.revision
        if revision is None:
            self._liveness.forget(decoded.broker)
        else:
            self._liveness.registered(decoded.broker, origin, revision=revision)
        return answer

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        return await serve(self, request, origin, deadline=deadline, host=host)

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        self._line.leave(origin)
        # The line runs one task of a host, and then one task of the next host. Count each closed connection
        # as a separate host. If all closed connections counted as one host, each other host would run a task
        # between two of these connections. The last of them would then wait long.
        self._line.run(self._closing(origin, by_us=by_us), _no_matter, sender=origin, host=origin)

    def _closing(self, origin: ConnectionId, *, by_us: bool) -> Steps[bool]:
        # Forget the stored registration in this task, and not earlier in closed(). A registration over this
        # connection may have run between closed() and this task, and may have stored its decision.
        self._repeats.forget(origin)
        revision_of = partial(self._table.present, "record")
        for broker in self._liveness.closed(origin, by_us=by_us, revision_of=revision_of):
            yield from self._evicting(broker, LeaveReason.CONNECTION_CLOSED)
            yield  # let other work run before the next broker, because one connection may have many brokers
        return True

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
            reads_ready=not (first_reports := self._first_reports()),
            waiting_for=first_reports,
            unwritten_files=self._unwritten_files(),
        )

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiters.end()
        self._line.clear()
        # Close both files at the same time, because each close may wait for the disk.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kv_file.close())
            group.create_task(self._settings_file.close())

    # -- Mode ---------------------------------------------------------------------------------------------

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        return self._table.view

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer:
        self._liveness.advance(self._clock())
        self._liveness.heard(renewal.record.broker, origin)
        if renewal.is_current:
            self._liveness.note_current(renewal.record.broker)
        return renewal.answer

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        verdict = await self._in_line(self._applying(command))
        if isinstance(command, PutKv | DeleteKv):
            if isinstance(verdict, Applied):
                self._kv_file.changed()
            # Wait for the file even if this command changed nothing, because the file may lack earlier
            # changes after a failed write.
            failure = await self._kv_file.keep()
            if failure is not None:
                in_force = not isinstance(verdict, Rejected)
                return Rejected(code=ResponseCode.SYSTEM_ERROR, remark=failure, in_force=in_force)
        return verdict

    def _write_kv(self) -> Callable[[], None]:
        return partial(save_kv_file, self._kv_path, self._table.view.kv_table())

    async def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        await self._in_line(self._withdrawing(broker, origin), sender=origin)

    def _withdrawing(self, broker: BrokerKey, origin: ConnectionId) -> Steps[bool]:
        self._liveness.withdrawn(broker, origin, revision=self._table.present("record", broker))
        yield from self._evicting(broker, LeaveReason.UNREGISTERED)
        return True

    # -- inside -------------------------------------------------------------------------------------------

    async def _in_line(self, steps: Steps[_T], *, sender: ConnectionId | None = None) -> _T:
        """Run a task after the earlier tasks in the line, and return the task's result."""
        ended: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        outcome = partial(resolve, ended)
        result = self._line.run(steps, outcome, sender=sender, failed=_itself)
        return await ended if result is None else result

    def _expired(self, broker: BrokerKey) -> Steps[bool]:
        if broker in self._liveness.silent():  # Check again, because a message may have arrived meanwhile.
            yield from self._evicting(broker, LeaveReason.LEASE_EXPIRED)
        return True

    def _evicting(self, broker: BrokerKey, reason: LeaveReason) -> Steps[None]:
        """Evict a broker. If its lease ran out, also close the connections over which it registered."""
        revision = self._table.present("record", broker)
        origins: tuple[ConnectionId, ...] = ()
        if revision is not None:
            if reason is LeaveReason.LEASE_EXPIRED:
                origins = self._liveness.connections_of(broker, up_to_revision=revision)
            yield from self._applying(Evict(**broker._asdict(), revision=revision, reason=reason))
        self._liveness.forget(broker)
        for origin in origins:
            self._effects.close_connection(origin)

    def _applying(self, command: Command) -> Steps[Verdict]:
        verdict = yield from self._table.applying(command)
        self._follow(command, verdict)
        return verdict

    def _follow(self, command: Command, verdict: Verdict) -> None:
        """Do the work outside the table that an applied command makes necessary.

        Update the history and the liveness, notify brokers of new smallest ids, and wake waiting requests.
        """
        if not isinstance(verdict, Applied):
            return
        if not isinstance(command, Update):  # An Update adds and removes no broker.
            note_change(self._history, command, verdict)
            for gone in verdict.left:
                if self._table.view.record(gone.broker) is None:
                    self._liveness.forget(gone.broker)
            if self.settings.current.notify_min_broker_id_changed:
                for change in verdict.min_changes:
                    self._effects.notify_min_broker(change)
        self._waiters.wake_affected(verdict)


def _itself(error: Exception) -> Any:
    return error


def _no_matter(_: object) -> None:
    """Ignore the result of a task for which no caller waits."""
