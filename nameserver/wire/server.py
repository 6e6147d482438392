"""The server of RocketMQ's protocol: it serves connections and sends each request to its handler.

On request of the mode, it also closes connections and sends notices.

The route cache answers route queries. Other reads are answered at once from the view. Requests that may
change something go to the mode. This module uses a mode only through the interface :class:`Consistency`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from routekeeper.nameserver.handlers import (
    DONE,
    LISTS,
    READS,
    SERVED,
    broker_of_farewell,
    decide,
    deciding_list,
    must_wait,
    route_answer,
)
from routekeeper.nameserver.liveness import Ownership
from routekeeper.nameserver.modes.interface import (
    DEFAULT,
    LINEARIZABLE,
    NO_QUORUM_TAG,
    Consistency,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.modes.serving import refusal_of_failure
from routekeeper.nameserver.modes.timeline import EventKind
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.nameserver.production.kept import MARK
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import ConfigError, NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, refusal
from routekeeper.remoting import wall_clock
from routekeeper.remoting.acl.accounts import Accounts, AclFileError
from routekeeper.remoting.acl.loading import shared_with_others
from routekeeper.remoting.addresses import charged_host
from routekeeper.remoting.audit_log import AuditLog as Refusals
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import SUCCESS, RemotingCommand
from routekeeper.remoting.errors import FieldError
from routekeeper.remoting.fields import GetRouteFields
from routekeeper.remoting.transport.connection import Handler
from routekeeper.remoting.transport.port_context import PortFiles, watched_port
from routekeeper.remoting.transport.secured import PortContext
from routekeeper.remoting.transport.server import Connection, DeferredReply, RemotingServer, ServerLimits
from routekeeper.remoting.transport.server_hooks import HookError, ServerHooks, load_hooks
from routekeeper.remoting.watched_files import WatchedFiles

from . import audit_log
from .access import AccessControl
from .audit_log import AuditLog
from .kv_print import KvPrint
from .notices import Notices
from .route_cache import RouteCache

if TYPE_CHECKING:
    from routekeeper.nameserver.production.asking import Production

log = logging.getLogger(__name__)

#: Largest size in bytes of all large registrations that a member of a group reads at the same time. Further
#: large registrations wait unread, because a few of them already keep all members busy. Without this limit,
#: the member would read registrations that it cannot answer within :data:`ANSWER_WITHIN_S`, and would have to
#: refuse them.
RAFT_LARGE_FRAMES_MAX: Final = 8 * 1024 * 1024
#: Longest time in seconds from a request's arrival to its answer. Source: docs/raft-rules.md, rule 2.
ANSWER_WITHIN_S: Final = 2.5


#: Group of each request code. The response times of all requests of a group are counted together.
GROUPS: Final[Mapping[int, str]] = {
    **dict.fromkeys(SERVED, "admin"),
    **dict.fromkeys(READS, "list"),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "route",
    RequestCode.REGISTER_BROKER: "register",
    RequestCode.QUERY_DATA_VERSION: "register",
    RequestCode.BROKER_HEARTBEAT: "register",
    RequestCode.UNREGISTER_BROKER: "unregister",
}


class NameServer:
    """The server of RocketMQ's protocol, for clients and brokers.

    A mode (independent or raft) keeps the route table, and the server passes all changes to the mode. The
    server is made before the mode, because the mode sends messages through the server (its
    :class:`Effects`). Later, :meth:`start` gives the mode to the server.

    Args:
        group: Task group for requests that wait for the mode, and for questions to other nameservers.

    Attributes:
        reloads: Files that are read again while this process runs.
        tls_files: The TLS files of this port; None without TLS.
        lists: The :class:`Line` (a queue of tasks) in which long lists of topics are made.

    Raises:
        TlsSettingError: The files of TLS cannot be used.
        ConfigError: A setting of hooks or of ``clusterTest`` cannot be used.
    """

    def __init__(self, *, settings: LiveSettings, group: asyncio.TaskGroup) -> None:
        self._settings = settings
        self.group = group
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._mode: Consistency  # set in start(), before the first connection
        self._kv_print: KvPrint | None = None
        self._settings_seen: NamesrvSettings | None = None
        self._freshness = DEFAULT
        # _barrier_view and _refused are set only while requests that waited for a read barrier get their
        # answers: the view for the answers, or the error with which the requests are refused.
        self._barrier_view: RouteView | None = None
        self._view_seen: RouteView | None = None
        self._refused: NoQuorum | None = None
        # Always pass this object to the mode. The mode compares callbacks by identity, and each access to the
        # method would make a new object.
        self._passed = self._barrier_passed
        # Long lists have a separate queue, so that a registration need not wait until a list is complete.
        self.lists = Line(clock=time.monotonic, call_soon=self._loop.call_soon)
        self._notices = Notices(group)
        self.notify_min_broker = self._notices.send
        self._notifies = settings.current.notify_min_broker_id_changed  # to change it, restart the process
        self.audit = AuditLog()
        self.production: Production | None = None
        if settings.current.cluster_test:
            # Import this only if needed: it loads aiohttp, which takes 0.15 s.
            from routekeeper.nameserver.production.asking import Production

            self.production = Production(settings, group)
        #: For each port (raft, wire, http): a function that returns the seconds until the port's certificate
        #: expires.
        self.expirations: dict[str, Callable[[], float]] = {}
        current = settings.current
        self._access = AccessControl(current)
        # Refusals have their own log with its own limit of lines. Otherwise any client could cause so many
        # refusals that changes are no longer logged.
        self._refusals = Refusals(audit_log.log)
        #: Files that are read again when they change.
        self.reloads: list[WatchedFiles[Any]] = []
        self.cache = RouteCache(
            view=self._readable_view,
            settings=lambda: settings.current,
            gate=self._barrier_to_wait_for,
            clock=time.perf_counter,
            admits=self._access.is_signed if self._access.guards_reads else None,
            knows_misses=self.production is None,
        )
        self._access_files = None if self._access.file is None else self._watch_accounts(self._access.file)
        if self._access_files is not None:
            self.reloads.append(self._access_files)
        limits = ServerLimits(frame_size_max=current.frame_size_max, idle_s=float(current.idle_timeout_s))
        if current.connections_max:
            limits = replace(limits, connections_max=current.connections_max)
        if current.mode == "raft":
            limits = replace(limits, large_frames_max=RAFT_LARGE_FRAMES_MAX)
        self.tls_files = watched_port(current.tls, self._take_tls)
        if self.tls_files is not None:
            self.add_certificate("wire", self.tls_files)
        handlers: dict[int, Handler] = {
            code: self._read if code in READS else self._execute for code in SERVED
        } | {RequestCode.REGISTER_BROKER: self._register}
        try:
            hooks = load_hooks(current.rpc_hooks)
        except HookError as error:
            raise ConfigError(f"--rpc-hook {error}") from error
        self.hooks = ServerHooks(hooks, time.perf_counter)
        self._hooked = bool(hooks)
        handlers = self.hooks.wrap(handlers)
        if self._access.is_needed:  # before the hooks, which must not get refused requests
            handlers = {code: partial(self._checked, handler) for code, handler in handlers.items()}
        self.wire = RemotingServer(
            handlers=handlers,
            group=group,
            limits=limits,
            closed=self._closed,
            fast_path=None if hooks else self.cache.reader,  # the hooks must get route queries, too
            backlog=current.socket_backlog,
            tls=self.tls_files.value if self.tls_files is not None else None,
            groups=GROUPS,
        )

    @property
    def uptime_s(self) -> float:
        """Seconds since this server was made."""
        return self._loop.time() - self._started_at

    def add_certificate(self, port: str, files: PortFiles) -> None:
        """Add a port's certificate to :attr:`expirations`, and its files to :attr:`reloads`."""
        self.expirations[port] = lambda: files.left_s
        self.reloads.append(files.files)

    async def start(self, consistency: Consistency) -> str:
        """Bind the port and serve; return the bound ``host:port``.

        Raises:
            OSError: The address cannot be bound.
        """
        self._mode = consistency
        self.audit.timeline = consistency.timeline
        if self._access_files is not None:
            self._access_files.watch()
        self._kv_print = KvPrint(lambda: consistency.view(Freshness.STALE), self._loop.call_later)
        host, port = self._settings.current.listen
        if self.tls_files is not None:
            self.tls_files.watch()
        return await self.wire.start(host, port)

    async def close(self, *, drain_s: float) -> None:
        """Stop accepting, answer requests in flight for at most ``drain_s`` seconds, then close."""
        if self.tls_files is not None:
            self.tls_files.close()
        await self.wire.close(drain_s=drain_s)
        if self._kv_print is not None:
            self._kv_print.close()
        await self._notices.close()
        if self._access_files is not None:
            self._access_files.close()
        if self.production is not None:
            await self.production.close()
        self.audit.close()
        self._refusals.close()

    # -- effects of a mode ---------------------------------------------------------------------------

    def close_connection(self, origin: ConnectionId) -> None:
        """Close the connection of an evicted broker, after its requests in flight are answered."""
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
        self.wire.tls.current = context  # only new connections use the new context

    def _closed(self, connection: Connection, *, by_us: bool) -> None:
        log.debug("connection closed connection=%s peer=%s by_us=%s", connection.id, connection.peer, by_us)
        self._notices.closed(ConnectionId(connection.id))
        self.lists.leave(connection.id)
        self._mode.closed(ConnectionId(connection.id), by_us=by_us)

    # -- accounts and networks that may send requests ----------------------------------------------------

    def _watch_accounts(self, file: Path) -> WatchedFiles[Accounts]:
        """Read the access file, and read it again when it changes.

        Raises:
            ConfigError: The file cannot be used.
        """
        try:
            files = WatchedFiles("access file", [file], self._access.read, self._take_accounts)
        except AclFileError as error:
            raise ConfigError(f"--acl-file {error}") from None
        for warning in shared_with_others([file]):
            log.warning("access file warning=%s", warning)
        self._access.accounts = files.value
        return files

    def _take_accounts(self, accounts: Accounts) -> None:
        self._access.accounts = accounts
        self.cache.clear()  # the cached signatures may be invalid now

    def _checked(
        self, handler: Handler, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | DeferredReply | None:
        """Serve a request if accounts and networks allow it; otherwise refuse and log it."""
        is_stranger = command.code != RequestCode.UNREGISTER_BROKER or self._is_stranger(connection, command)
        denied = self._access.denied(command, connection.host, is_stranger=is_stranger)
        if denied is None:
            return handler(connection, command)
        self._refusals.refusal(connection.peer, command.code, denied)
        self._mode.timeline.note(
            EventKind.REFUSED,
            at_ms=wall_clock.now_ms(),
            subject=f"request {command.code}",
            detail=denied.remark,
            by=connection.host,
        )
        return command.reply(denied.code, remark=denied.remark)

    def _is_stranger(self, connection: Connection, command: RemotingCommand) -> bool:
        """Return True if a broker unregisters over a connection over which it never registered."""
        try:
            broker = broker_of_farewell(command)
        except FieldError:
            return True
        return self._mode.ownership(broker, ConnectionId(connection.id)) is Ownership.STRANGER

    # -- requests ------------------------------------------------------------------------------------

    def _readable_view(self) -> RouteView | None:
        """Return a view that is as fresh as the settings require; None if a read must wait or be refused."""
        settings = self._settings.current
        if settings is not self._settings_seen:
            self._settings_seen = settings
            self._freshness = Freshness(settings.route_freshness)
            self.cache.clear()
        if settings.need_wait_for_service and must_wait(settings, self.uptime_s):
            return None
        view = self._barrier_view
        if self._freshness is not LINEARIZABLE:
            try:
                view = self._mode.view(self._freshness)
            except (NoQuorum, FreshnessNotOffered):
                return None
        if view is not self._view_seen and view is not None:
            # This view belongs to another table. The cache identifies answers by revisions, and the revisions
            # of two tables cannot be compared.
            self._view_seen = view
            self.cache.clear()
        return view

    def _barrier_to_wait_for(self) -> int:
        """Return the number of the read barrier that a route query joins when it arrives now; 0 for none.

        All queries that arrive before the barrier is sent, on any connection, join the same barrier.
        """
        settings = self._settings.current
        if (
            self._freshness is not LINEARIZABLE
            or self._barrier_view is not None
            or self._refused is not None
            or (settings.need_wait_for_service and must_wait(settings, self.uptime_s))
        ):
            return 0
        return self._mode.join_barrier(self._passed)

    def _barrier_passed(self, number: int, error: NoQuorum | None) -> None:
        """Answer or refuse the requests that waited for this barrier, but no later requests."""
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
        if command.code in LISTS:
            if connection.unanswered >= self.wire.limits.unanswered_max:
                # Begin no work, because the connection has too many unanswered requests. It discards this
                # coroutine, and refuses the request.
                return self._execute(connection, command)
            return self._list(connection, command, view)
        decision = decide(view, command, self._settings.current, uptime_s=self.uptime_s)
        assert isinstance(decision, Answer), "a read changes nothing"
        if self.production is not None and _may_be_asked(command, decision):
            deadline = self._loop.time() + ANSWER_WITHIN_S
            return self._ask_production(connection, command, decision, deadline=deadline)
        return _reply(command, decision)

    async def _ask_production(
        self, connection: Connection, command: RemotingCommand, unknown: Answer, *, deadline: float
    ) -> RemotingCommand:
        """Answer a query for a topic that is unknown here. Ask the production nameservers for the route.

        The production nameservers are the nameservers that the setting ``clusterTest`` uses. If they do not
        know the topic either, return the answer ``unknown``.
        """
        assert self.production is not None
        fields = GetRouteFields.parse(command.ext_fields)
        topic = fields.topic or ""
        kept = self.production.kept(topic)
        if kept is not None:
            route = kept.route
        else:
            host = charged_host(connection.host)
            route = await self.production.ask(topic, host=host, deadline=deadline)
        return _reply(command, unknown if route is None else route_answer(route, command, fields))

    def _list(
        self, connection: Connection, command: RemotingCommand, view: RouteView
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Answer a request for a list of topics. A long list is made in steps, with other work in between."""
        ended: asyncio.Future[Answer] = self._loop.create_future()
        answer = self.lists.run(
            deciding_list(view, command, self._settings.current),
            partial(resolve, ended),
            sender=connection.id,
            host=charged_host(connection.host) or connection.host,
            otherwise=DONE,  # used only after the connection has closed, so it is never sent
            failed=refusal_of_failure,
        )
        return self._list_later(command, ended) if answer is None else _reply(command, answer)

    async def _list_later(self, command: RemotingCommand, ended: asyncio.Future[Answer]) -> RemotingCommand:
        return _reply(command, await ended)

    async def _list_when_readable(
        self, connection: Connection, command: RemotingCommand, *, deadline: float
    ) -> RemotingCommand:
        try:
            view = await self._mode.await_view(self._freshness, deadline=deadline)
        except NoQuorum as error:
            return _reply(command, refusal(f"{NO_QUORUM_TAG} {error}"))
        reply = self._list(connection, command, view)
        return reply if isinstance(reply, RemotingCommand) else await reply

    async def _execute(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        deadline = self._loop.time() + ANSWER_WITHIN_S
        if command.code in LISTS:
            return await self._list_when_readable(connection, command, deadline=deadline)
        answer = await self._mode.execute(
            command,
            ConnectionId(connection.id),
            deadline=deadline,
            host=charged_host(connection.host),
        )
        self.audit.request(connection.peer, command, answer)
        if self.production is not None and _may_be_asked(command, answer):
            return await self._ask_production(connection, command, answer, deadline=deadline)
        self._send_away(connection, command, answer)
        return _reply(command, answer)

    def _register(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand] | DeferredReply:
        if connection.unanswered >= self.wire.limits.unanswered_max:
            # Begin no work, because the connection has too many unanswered requests. It discards this
            # coroutine, and refuses the request.
            return self._execute(connection, command)
        if self._notifies:
            addr = command.ext_fields.get("brokerAddr", "")
            self._notices.registered(ConnectionId(connection.id), connection.host, addr)
        # With hooks, every answer goes through a DeferredReply, which shows the answer to the hooks. Without
        # hooks, only an answer that comes later needs a DeferredReply.
        later = DeferredReply(connection, command) if self._hooked else None
        host = charged_host(connection.host)
        answer = self._mode.register(
            command,
            ConnectionId(connection.id),
            deadline=self._loop.time() + ANSWER_WITHIN_S,
            answered=partial(_send_later, later or connection, command, connection.begun),
            host=host,
            turn_of=host or connection.host,
        )
        if answer is None:
            return later or DeferredReply(connection, command)
        return SUCCESS if answer is DONE else _reply(command, answer)

    def _send_away(self, connection: Connection, command: RemotingCommand, answer: Answer) -> None:
        """Close a connection after a refused route query, so that its client turns to another nameserver.

        A broker's connection stays open, because the broker's registration depends on it.
        """
        if (
            command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            and answer.code == ResponseCode.SYSTEM_ERROR
            and (answer.remark or "").startswith(NO_QUORUM_TAG)
            and not self._mode.carries_broker(ConnectionId(connection.id))
        ):
            connection.close_after_answers()


def _send_later(
    way: Connection | DeferredReply, command: RemotingCommand, begun: float, answer: Answer
) -> None:
    reply = None if answer is DONE else _reply(command, answer)
    if isinstance(way, DeferredReply):
        way.send(reply)
    else:
        way.send_deferred(command, reply, begun=begun)


def _may_be_asked(command: RemotingCommand, answer: Answer) -> bool:
    """Return True if this nameserver may ask the production nameservers about a query.

    The query must ask for the route of a topic that this nameserver does not know. It must come from a
    client: a nameserver's own question to another nameserver has the argument :data:`MARK`.
    """
    return (
        command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        and answer.code == ResponseCode.TOPIC_NOT_EXIST
        and MARK not in command.ext_fields
        and bool(command.ext_fields.get("topic"))
    )


def _reply(command: RemotingCommand, answer: Answer) -> RemotingCommand:
    return command.reply(answer.code, remark=answer.remark, ext_fields=answer.ext_fields, body=answer.body)
