"""The wire: connections, dispatch, and what a mode does to connections.

Route queries go by the route cache, other reads are decided at once on the view, and what may change
something is handed to the mode. The dispatch knows the modes only as :class:`Consistency`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from routekeeper.nameserver.handlers import DONE, READS, SERVED, decide, must_wait
from routekeeper.nameserver.modes.interface import (
    NO_QUORUM_TAG,
    Consistency,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId
from routekeeper.remoting.addresses import charged_host
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import SUCCESS, RemotingCommand
from routekeeper.remoting.transport.port_context import PortFiles, watched_port
from routekeeper.remoting.transport.secured import PortContext
from routekeeper.remoting.transport.server import Connection, DeferredReply, RemotingServer, ServerLimits
from routekeeper.remoting.watched_files import WatchedFiles

from .audit_log import AuditLog
from .notices import Notices
from .route_cache import RouteCache

log = logging.getLogger(__name__)

#: Longest time in seconds from a request's arrival to its answer. Source: docs/raft-rules.md, rule 2.
ANSWER_WITHIN_S: Final = 2.5


class NameServer:
    """Serves RocketMQ's protocol from a mode; implements the mode's :class:`Effects`.

    Made before the mode, because the mode needs its effects; :meth:`start` brings both together.

    Args:
        group: Owns the tasks of requests that wait for the mode.

    Attributes:
        reloads: Files that are read again while this process runs.
        tls_files: Those of TLS on the wire; None if it is plain.
        certificates: Certificates of the wire and of HTTP; ``left_s`` says how long each lasts.

    Raises:
        TlsSettingError: If those cannot be used.
    """

    def __init__(self, *, settings: LiveSettings, group: asyncio.TaskGroup) -> None:
        self._settings = settings
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._mode: Consistency  # connections exist only after start
        self._settings_seen: NamesrvSettings | None = None
        self._freshness = Freshness.DEFAULT
        # While what waited for a barrier is looked at: the view that it may read, or why it is refused.
        self._barrier_view: RouteView | None = None
        self._view_seen: RouteView | None = None
        self._refused: NoQuorum | None = None
        self._passed = self._barrier_passed  # one object: the mode compares
        self._notices = Notices(group)
        self.notify_min_broker = self._notices.send
        self._notifies = settings.current.notify_min_broker_id_changed  # not changed at run time
        self.audit = AuditLog()
        self.cache = RouteCache(
            view=self._readable_view, settings=lambda: settings.current, gate=self._barrier_to_wait_for
        )
        current = settings.current
        limits = ServerLimits(frame_size_max=current.frame_size_max, idle_s=float(current.idle_timeout_s))
        if current.connections_max:
            limits = replace(limits, connections_max=current.connections_max)
        self.reloads: list[WatchedFiles[Any]] = []
        self.certificates: list[PortFiles] = []
        self.tls_files = watched_port(current.tls, self._take_tls)
        if self.tls_files is not None:
            self.add_certificate(self.tls_files)
        self.wire = RemotingServer(
            handlers={code: self._read if code in READS else self._execute for code in SERVED}
            | {RequestCode.REGISTER_BROKER: self._register},
            group=group,
            limits=limits,
            closed=self._closed,
            fast_path=self.cache.reader,
            backlog=current.socket_backlog,
            tls=self.tls_files.value if self.tls_files is not None else None,
        )

    @property
    def uptime_s(self) -> float:
        """Seconds since this process began to serve."""
        return self._loop.time() - self._started_at

    def add_certificate(self, files: PortFiles) -> None:
        """Take the files of a port's certificate into :attr:`certificates` and :attr:`reloads`."""
        self.certificates.append(files)
        self.reloads.append(files.files)

    async def start(self, consistency: Consistency) -> str:
        """Bind and serve; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        self._mode = consistency
        host, port = self._settings.current.listen
        if self.tls_files is not None:
            self.tls_files.watch()
        return await self.wire.start(host, port)

    async def close(self, *, drain_s: float) -> None:
        """Stop accepting, answer what is in flight for at most ``drain_s`` seconds, close the rest."""
        if self.tls_files is not None:
            self.tls_files.close()
        await self.wire.close(drain_s=drain_s)
        await self._notices.close()
        self.audit.close()

    # -- effects of a mode ---------------------------------------------------------------------------

    def close_connection(self, origin: ConnectionId) -> None:
        """Close a connection over which an evicted broker registered, after what is in flight on it."""
        connection = self.wire.connections.get(origin)
        if connection is None:
            return
        log.info("connection of evicted broker closed connection=%s peer=%s", origin, connection.peer)
        if connection.unanswered:
            connection.close_after_answers()
        else:
            connection.close()

    # -- connections ---------------------------------------------------------------------------------

    def _take_tls(self, context: PortContext) -> None:
        self.wire.tls.current = context  # connections that are there go on

    def _closed(self, connection: Connection, *, by_us: bool) -> None:
        log.debug("connection closed connection=%s peer=%s by_us=%s", connection.id, connection.peer, by_us)
        self._notices.closed(ConnectionId(connection.id))
        self._mode.closed(ConnectionId(connection.id), by_us=by_us)

    # -- requests ------------------------------------------------------------------------------------

    def _readable_view(self) -> RouteView | None:
        """Return the view with the freshness in force; None if a read must wait or be refused."""
        settings = self._settings.current
        if settings is not self._settings_seen:
            self._settings_seen = settings
            self._freshness = Freshness(settings.route_freshness)
            self.cache.clear()
        if settings.need_wait_for_service and must_wait(settings, self.uptime_s):
            return None
        view = self._barrier_view
        if self._freshness is not Freshness.LINEARIZABLE:
            try:
                view = self._mode.view(self._freshness)
            except (NoQuorum, FreshnessNotOffered):
                return None
        if view is not self._view_seen and view is not None:
            self._view_seen = view  # another table's: revisions, by which answers are known, may go back
            self.cache.clear()
        return view

    def _barrier_to_wait_for(self) -> int:
        """Return the number of the barrier that a route query arriving now joins; 0 if it joins none.

        Everything that arrives before the barrier is sent, on any connection, joins the same one.
        """
        if (
            self._freshness is not Freshness.LINEARIZABLE
            or self._barrier_view is not None
            or self._refused is not None
            or must_wait(self._settings.current, self.uptime_s)
        ):
            return 0
        return self._mode.join_barrier(self._passed)

    def _barrier_passed(self, number: int, error: NoQuorum | None) -> None:
        """Answer, or refuse, what waited for a barrier. Nothing that arrived later is looked at."""
        try:
            if error is None:
                self._barrier_view = self._mode.view(Freshness.STALE)
            else:
                self._refused = error
            self.wire.unpark(number)
        finally:
            self._barrier_view = self._refused = None

    def _read(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        view = self._readable_view()
        if view is None:
            if self._refused is not None:
                answer = self._mode.refuse_read(self._refused)
                self._send_away(connection, command, answer)
                return _reply(command, answer)
            return self._execute(connection, command)
        decision = decide(view, command, self._settings.current, uptime_s=self.uptime_s)
        assert isinstance(decision, Answer), "a read changes nothing"
        return _reply(command, decision)

    async def _execute(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        deadline = self._loop.time() + ANSWER_WITHIN_S
        answer = await self._mode.execute(
            command,
            ConnectionId(connection.id),
            deadline=deadline,
            host=charged_host(connection.host),
        )
        self.audit.request(connection.peer, command, answer)
        self._send_away(connection, command, answer)
        return _reply(command, answer)

    def _register(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand] | DeferredReply:
        if connection.unanswered >= self.wire.limits.unanswered_max:
            return self._execute(connection, command)  # is refused unseen
        if self._notifies:
            addr = command.ext_fields.get("brokerAddr", "")
            self._notices.registered(ConnectionId(connection.id), connection.host, addr)
        later = DeferredReply(connection, command)
        answer = self._mode.register(
            command,
            ConnectionId(connection.id),
            deadline=self._loop.time() + ANSWER_WITHIN_S,
            answered=lambda answer: later.send(None if answer is DONE else _reply(command, answer)),
            host=charged_host(connection.host),
        )
        if answer is None:
            return later
        return SUCCESS if answer is DONE else _reply(command, answer)

    def _send_away(self, connection: Connection, command: RemotingCommand, answer: Answer) -> None:
        """Have a connection closed after a refused route query, so that its client turns to another
        nameserver; a broker's connection is its lease and stays.
        """
        if (
            command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            and answer.code == ResponseCode.SYSTEM_ERROR
            and (answer.remark or "").startswith(NO_QUORUM_TAG)
            and not self._mode.carries_broker(ConnectionId(connection.id))
        ):
            connection.close_after_answers()


def _reply(command: RemotingCommand, answer: Answer) -> RemotingCommand:
    return command.reply(answer.code, remark=answer.remark, ext_fields=answer.ext_fields, body=answer.body)
