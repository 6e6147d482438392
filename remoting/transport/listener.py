"""Server of RocketMQ's protocol, which admits connections and has the state that they share."""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from routekeeper.remoting.addresses import host_port, network_of
from routekeeper.remoting.line_limit import LineLimit
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.transport.accepting import stop_accepting
from routekeeper.remoting.transport.connection import Connection, Handler
from routekeeper.remoting.transport.descriptors import fit_descriptors
from routekeeper.remoting.transport.holdings import Holdings
from routekeeper.remoting.transport.inbox import FastPath
from routekeeper.remoting.transport.intake import Intake
from routekeeper.remoting.transport.limits import ServerLimits, ServerStats
from routekeeper.remoting.transport.lookups import hosts_to_listen_on
from routekeeper.remoting.transport.secured import Entrance, PortContext, Secured, TlsPort
from routekeeper.remoting.transport.turns import TURN_S, Turns

log = logging.getLogger(__name__)

#: Number of checks for idle connections within the idle time. So a connection is closed at most one check
#: interval too late.
_IDLE_TICKS: Final = 24
#: Interval in seconds between measurements of the event loop's lateness.
LATENESS_PERIOD_S: Final = 0.1
#: Seconds for sending the last answers after the time for finishing requests is over.
FLUSH_S: Final = 1.0


class RemotingServer:
    """Server that admits connections, closes idle connections, and has the state that they share.

    Args:
        handlers: Handler of each request code. It is looked up for each request, so the mapping may change
            while the server runs.
        group: Runs the tasks of handlers that return awaitables.
        connected, closed: Called for each admitted connection after it is opened and closed.
        fast_path: Makes the fast path of a connection.
        turn_s: Seconds for which requests may occupy the event loop before other connections are served.
        tls: Certificates and mode of TLS; None for a port without TLS. While the server runs,
            :attr:`TlsPort.current` of the attribute ``tls`` may be replaced.
        groups: Group of each request code whose requests are timed, see :class:`ServerStats`.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[int, Handler],
        group: asyncio.TaskGroup,
        limits: ServerLimits | None = None,
        connected: Callable[[Connection], None] | None = None,
        closed: Callable[..., None] | None = None,
        fast_path: Callable[[], FastPath] | None = None,
        backlog: int = 1024,
        turn_s: float = TURN_S,
        tls: PortContext | None = None,
        groups: Mapping[int, str] | None = None,
    ) -> None:
        self.handlers = handlers
        self.limits = limits or ServerLimits()
        self.fast_path = fast_path
        self.stats = ServerStats(groups)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.turns = Turns(
            clock=time.perf_counter, call_soon=loop.call_soon, idle=self._all_looked_at, turn_s=turn_s
        )
        self.tls = TlsPort(tls or PortContext(), say=self._tls_failed, turns=self.turns)
        host = operator.attrgetter("host")
        #: Bytes that were received and are not answered, and bytes that were sent and are not read by the
        #: peer.
        self.received: Holdings[Connection] = Holdings(bytes_max=self.limits.received_max, host=host)
        self.unread: Holdings[Connection] = Holdings(bytes_max=self.limits.unread_all_max, host=host)
        self._intake: Intake[Connection] = Intake(bytes_max=self.limits.large_frames_max, host=host)
        self._intake_look: asyncio.TimerHandle | None = None  # set while a large frame must wait
        self._lines = LineLimit()
        #: Connections whose received requests wait for a read barrier, by the barrier's number. The server
        #: may answer these requests only after the barrier has passed.
        self.parked: dict[int, list[Connection]] = {}
        self._parking = 0  # number of the read barrier for which a connection began to wait most recently
        self._parked_last: list[Connection] = []  # connections that wait for the read barrier ``_parking``
        self.connections: dict[int, Connection] = {}
        self._group = group
        self._connected = connected
        self._closed = closed
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._lateness: asyncio.TimerHandle | None = None
        self._next_id = 1
        self._next_opaque = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.deferred = 0  # number of answers that handlers still have to send, see :class:`DeferredReply`
        self.all_sent: asyncio.Event | None = None
        self._refusing = False
        self._stopping = False
        self._emptied: asyncio.Event | None = None
        self._unparked: asyncio.Event | None = None
        self._looked_at: asyncio.Event | None = None

    async def start(self, host: str, port: int) -> str:
        """Bind the address and accept connections; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        listen = await self.bind(host, port)
        await self.accept()
        return listen

    async def bind(self, host: str, port: int) -> str:
        """Bind the address, but accept no connection before :meth:`accept`; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        self.limits = fit_descriptors(self.limits)
        self._server = await self._loop.create_server(
            self._accepted,
            await hosts_to_listen_on(host),
            port,
            backlog=self._backlog,
            reuse_address=True,
            start_serving=False,
        )
        return host_port(self._server.sockets[0].getsockname())

    async def accept(self) -> None:
        """Accept connections from now on.

        Raises:
            OSError: If another process has begun to listen on the address since it was bound.
        """
        assert self._server is not None
        await self._server.start_serving()
        self._schedule_sweep(self._loop)
        self._look_how_late(self._loop.time())

    async def close(self, *, drain_s: float = 5.0, before_end: Callable[[], None] | None = None) -> None:
        """Stop accepting, finish requests for at most ``drain_s`` seconds, then close all connections.

        Answers that are sent at the end of this time have :data:`FLUSH_S` seconds to reach their peers.

        Args:
            before_end: Called right before the connections are closed. Messages that it sends still reach the
                peers.
        """
        self._stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._lateness is not None:
            self._lateness.cancel()
        if self._intake_look is not None:
            self._intake_look.cancel()
        if self._server is not None:
            await stop_accepting(self._server)
        until = self._loop.time() + drain_s
        if self.parked:
            self._unparked = asyncio.Event()
            try:
                async with asyncio.timeout_at(until):
                    await self._unparked.wait()
            except TimeoutError:
                log.warning("reads abandoned connections=%s", sum(map(len, self.parked.values())))
        if self.turns.waiting:
            self._looked_at = asyncio.Event()
            try:
                async with asyncio.timeout_at(until):
                    await self._looked_at.wait()
            except TimeoutError:
                log.warning("requests not looked at connections=%s", self.turns.waiting)
        if self._tasks:
            _done, late = await asyncio.wait(self._tasks, timeout=max(0.0, until - self._loop.time()))
            for task in late:
                task.cancel()
            self.stats.tasks_abandoned += len(late)
            if late:
                log.warning("requests abandoned count=%s", len(late))
        if self.deferred:
            self.all_sent = asyncio.Event()
            try:
                async with asyncio.timeout_at(until):
                    await self.all_sent.wait()
            except TimeoutError:
                self.stats.tasks_abandoned += self.deferred
                log.warning("requests abandoned count=%s", self.deferred)
        if before_end is not None:
            before_end()
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout_at(max(until, self._loop.time() + min(FLUSH_S, drain_s))):
                    await self._emptied.wait()
            except TimeoutError:
                log.warning("connections cut off count=%s", len(self.connections))
        for connection in list(self.connections.values()):
            connection.abort()
        await asyncio.sleep(0)  # the loop closes the aborted connections in this iteration

    def _accepted(self) -> asyncio.BaseProtocol:
        connection = Connection(self)
        return connection if self.tls.current.context is None else Entrance(self.tls, connection)

    # Methods that connections call ----------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection and return True; return False if the server is full or shuts down."""
        if self._stopping or len(self.connections) >= self.limits.connections_max:
            self.stats.connections_refused += 1
            if not self._refusing:  # log one line for a series of refusals, and not one for each
                self._refusing = True
                log.warning(
                    "connections refused open=%s allowed=%s",
                    len(self.connections),
                    self.limits.connections_max,
                )
            return False
        self._refusing = False
        connection.id = self._next_id
        self._next_id += 1
        self.connections[connection.id] = connection
        self.turns.came(connection)
        self.stats.connections_accepted += 1
        return True

    def release(self, connection: Connection) -> None:
        self.connections.pop(connection.id, None)
        self.turns.left(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def connected(self, connection: Connection) -> None:
        if self._connected is not None:
            self._connected(connection)

    def closed(self, connection: Connection, *, by_us: bool) -> None:
        if self._closed is not None:
            self._closed(connection, by_us=by_us)

    def park(self, connection: Connection, number: int) -> None:
        """Store a connection with bytes that wait for the read barrier ``number``."""
        if number != self._parking:
            self._parking = number
            self._parked_last = self.parked.setdefault(number, [])
        self._parked_last.append(connection)

    def unpark(self, number: int) -> None:
        """Handle the bytes that waited for the read barrier ``number``, and write the answers.

        The fast path or the handlers answer these bytes. An error at one connection closes that connection;
        the others still get their answers.
        """
        if number == self._parking:
            self._parking = 0
        self.turns.renew()
        for connection in self.parked.pop(number, ()):
            try:
                connection.unpark(number)
            except Exception as error:  # no later event would answer the other connections of this barrier
                self.say(
                    connection,
                    "parked requests were not answered connection=%s peer=%s",
                    connection.id,
                    connection.peer,
                    level=logging.ERROR,
                    error=error,
                )
                connection.abort()
        if self._unparked is not None and not self.parked:
            self._unparked.set()

    def begin_large(self, connection: Connection, size: int) -> bool:
        """Return True if a connection may read a frame of ``size`` bytes now.

        If the result is False, the connection must wait. When it may read the frame, the server calls its
        ``hold_back(held_back=False)``.
        """
        may_read = self._intake.enter(connection, size)
        if not may_read and self._intake_look is None and not self._stopping:
            self._intake_look = self._loop.call_later(self.limits.large_frame_s, self._look_at_intake)
        return may_read

    def end_large(self, connection: Connection) -> None:
        """Record that a connection no longer reads a large frame, and let waiting connections read."""
        self._intake.leave(connection)
        self._read_large()

    def _read_large(self) -> None:
        for connection in self._intake.next():
            connection.hold_back(held_back=False)

    def _look_at_intake(self) -> None:
        self._intake_look = None
        slow, silent = self._intake.look(operator.attrgetter("waits_for_peer"), operator.attrgetter("size"))
        for connection in slow:
            connection.hold_back(held_back=True)
        for connection in silent:
            connection.lose_place()
        self._read_large()
        if self._intake.waiting:
            self._intake_look = self._loop.call_later(self.limits.large_frame_s, self._look_at_intake)

    def take_opaque(self) -> int:
        """Return the next correlation id for requests to peers."""
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque

    def deferred_sent(self) -> None:
        """Set the event ``all_sent`` if no deferred answer is left to send."""
        if self.all_sent is not None and not self.deferred:
            self.all_sent.set()

    def spawn(self, connection: Connection, work: Coroutine[Any, Any, None], body_bytes: int) -> None:
        """Run the remaining part of a handler as a task, and measure for how long its first step runs.

        The loop runs its callbacks in order. Therefore one callback before the task's first step and one
        callback after it can measure this step.
        """
        turns = self.turns
        turns.task(body_bytes)
        self._loop.call_soon(turns.task_begins)
        task = self._group.create_task(work)
        self._loop.call_soon(turns.task_ends, connection)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tls_failed(self, connection: Secured, reason: str) -> None:
        self.say(connection, "tls failed peer=%s reason=%s", connection.peer, shortened(reason))

    def say(
        self,
        connection: Connection | Secured,
        message: str,
        *values: object,
        level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:
        """Log a line that a peer has caused, unless there were already too many lines about peers."""
        self._tell_suppressed()
        if self._lines.allow(network_of(connection.host)):
            log.log(level, message, *values, exc_info=error)
        else:
            self.stats.lines_suppressed += 1

    def _tell_suppressed(self) -> None:
        suppressed = self._lines.turn(self._loop.time())
        if suppressed:
            log.warning("lines about peers not written count=%s", suppressed)

    def shed_received(self) -> None:
        """Close the connections with most unanswered bytes, because the total exceeds the limit."""
        self._shed(self.received, "received and not answered", self.limits.received_max)

    def shed_unread(self) -> None:
        """Close the connections with most unread answers, because the total exceeds the limit."""
        for connection in self.unread.holders():
            connection.recount_unread()
        self._shed(self.unread, "sent and not read", self.limits.unread_all_max)

    def _shed(self, holdings: Holdings[Connection], what: str, allowed: int) -> None:
        total = holdings.total
        for connection in holdings.largest():
            connection.shed(
                f"{total} bytes {what} on all connections, allowed are {allowed}:"
                f" this connection has {holdings.size(connection)}, the most of the address with the most"
            )

    def _all_looked_at(self) -> None:
        if self._looked_at is not None:
            self._looked_at.set()

    def _look_how_late(self, due: float) -> None:
        """Measure the lateness of the event loop in seconds, and schedule the next measurement."""
        now = self._loop.time()
        self.stats.late.observe(max(0.0, now - due))
        due = now + LATENESS_PERIOD_S
        self._lateness = self._loop.call_at(due, self._look_how_late, due)

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(self.limits.idle_s / _IDLE_TICKS, self._sweep_idle, loop)

    def _sweep_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        self._schedule_sweep(loop)
        self._tell_suppressed()
        for connection in list(self.connections.values()):
            if connection.active or self._intake.waits(connection):
                connection.active = False
                connection.idle_ticks = 0
            else:
                connection.idle_ticks += 1
                if connection.idle_ticks >= _IDLE_TICKS:
                    connection.close_idle()
