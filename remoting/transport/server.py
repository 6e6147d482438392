"""Server side of the wire: frames in, handlers, batched answers out, on one event loop.

The way of a request is synchronous from :meth:`ServerProtocol.data_received` on: scan the frame, parse the
header, call the handler, append its answer to the batch; one ``transport.write`` per batch. Only a handler
that returns an awaitable gets a task. A server may install a *fast path*, which answers received bytes
without parsing them (the nameserver's encoded-route cache).

Everything a peer can make us hold is bounded: connections, bytes of unfinished frames over all connections,
unanswered requests and unread answers per connection, idle time.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from remoting.command import RemotingCommand, encode_done, read_command
from remoting.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from remoting.frame import FRAME_SIZE_MAX

log = logging.getLogger(__name__)

#: Descriptors kept for other use than connections: listeners, files, the loop's own, HTTP, peers.
DESCRIPTORS_RESERVED: Final = 256
#: Answers collected before they are handed to the socket although more frames wait.
BATCH_PIECES: Final = 192
_BATCH_BYTES: Final = 256 * 1024
#: Bytes of one connection that wait, above which no more are read from it.
_PARKED_MAX: Final = 64 * 1024
_LENGTH: Final = struct.Struct(">I")
_HEADER_AT: Final = 8  # in a frame, behind two words

Handler = Callable[
    ["Connection", RemotingCommand],
    "RemotingCommand | Awaitable[RemotingCommand | None] | Later | None",
]


class FastPath(Protocol):
    """Answers what it knows of one connection's bytes.

    Attributes:
        starts: What the headers of all frames begin with that it may know; it is not asked about others.
    """

    @property
    def starts(self) -> tuple[bytes, ...]: ...

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to all of ``data``, or None if it is not made of known frames only.

        A number instead, not 0, if its first frame has to wait for that.
        """

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> int:
        """Append the answers to leading frames from ``position`` on; return the position after them.

        It stops at a frame that it does not know, and at :data:`BATCH_PIECES`.
        """

    def waits_now(self) -> int:
        """Return the number that a frame waits for which arrives now and has to wait; 0: none has to."""

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of what the frame at ``position`` waits for; 0: it is to be dispatched.

        What waits is looked at again, with all that follows it, at :meth:`RemotingServer.unpark`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What peers may make a server hold.

    Attributes:
        connections_max: Open connections; further ones are closed at once.
        frame_size_max: Bytes of one frame, length word included.
        unfinished_max: Bytes of unfinished frames, over all connections.
        unanswered_max: Requests of one connection whose answers are still being worked on.
        unread_max: Bytes of answers that one peer may leave unread before its connection is closed.
        idle_s: Seconds without a byte in either direction after which a connection is closed.
    """

    connections_max: int = 16_384
    frame_size_max: int = FRAME_SIZE_MAX
    unfinished_max: int = 256 * 1024 * 1024
    unanswered_max: int = 4096
    unread_max: int = 64 * 1024 * 1024
    idle_s: float = 120.0


class ServerStats:
    """Counters of one server, for its metrics."""

    __slots__ = ("bad_frames", "connections_accepted", "connections_refused", "requests", "tasks_abandoned")

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.bad_frames = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.tasks_abandoned = 0


class Later:
    """An answer that its handler gives later, by one call of :meth:`give`, and without a task.

    A handler that returns one must not have given it yet, and must give it, also when the connection is gone
    by then: a server that closes waits for it. A handler looks first whether its connection has
    :attr:`ServerLimits.unanswered_max` requests unanswered.
    """

    __slots__ = ("connection", "request")

    def __init__(self, connection: Connection, request: RemotingCommand) -> None:
        self.connection = connection
        self.request = request

    def give(self, answer: RemotingCommand | None) -> None:
        """Send the answer; dropped if the connection is gone, or the request wanted none.

        Args:
            answer: None: success and nothing else.
        """
        self.connection.give(self.request, answer)


class ServerProtocol(asyncio.Protocol):
    """One accepted connection.

    Handlers get it as :data:`Connection`. A subclass may override :meth:`connected` and :meth:`closed`.

    Attributes:
        id: Grows with each accepted connection of the process, never reused.
        peer: ``host:port`` of the other side.
    """

    __slots__ = (
        "_behind",
        "_behind_bytes",
        "_buffer",
        "_closing_by_us",
        "_fast_path",
        "_fast_starts",
        "_finishing",
        "_held",
        "_is_asked",
        "_missing",
        "_parked",
        "_parked_for",
        "_parked_much",
        "_paused",
        "_pending",
        "_transport",
        "active",
        "id",
        "idle_ticks",
        "peer",
        "server",
        "unanswered",
    )

    def __init__(self, server: RemotingServer) -> None:
        self.server = server
        self.id = 0
        self.peer = "?"
        self.unanswered = 0
        self.active = True
        self.idle_ticks = 0
        self._fast_path = server.fast_path() if server.fast_path is not None else None
        self._fast_starts = () if self._fast_path is None else self._fast_path.starts
        # Whether the fast path is asked about received bytes as a whole: not after something else came. Who
        # registers queries no routes.
        self._is_asked = self._fast_path is not None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()  # an unfinished frame
        self._missing = 0  # bytes until it is worth looking at the buffer again
        # Whole frames not looked at yet, because the peer does not read its answers; only while paused.
        self._held = b""
        # Bytes not looked at yet, because what came first of them waits, for this number; what came behind
        # them waits for numbers of its own, that are not smaller.
        self._parked_for = 0
        self._parked = b""
        self._behind: deque[tuple[int, bytes]] = deque()
        self._behind_bytes = 0
        self._parked_much = False
        self._paused = False
        self._closing_by_us = False
        self._finishing = False
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}

    # Called by the loop -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        name = transport.get_extra_info("peername")
        self.peer = _host_port(name)
        if not self.server.admit(self):
            self._transport.abort()
            self._transport = None
            return
        self._transport.set_write_buffer_limits(high=_BATCH_BYTES)
        self.connected()

    def data_received(self, data: bytes) -> None:
        self.active = True
        if self._parked_for:
            self._park_behind(data)
            return
        if self._is_asked and not self._buffer and not self._paused:
            # The way of nearly every request of a nameserver; what it leaves takes the way below.
            assert self._fast_path is not None
            answers = self._fast_path.whole(data)
            if answers is not None:
                if isinstance(answers, int):
                    self._park(answers, data)
                else:
                    self._transport.write(answers)  # type: ignore[union-attr]  # it is there while data comes
                return
        elif len(data) > _HEADER_AT and not (self._buffer or self._held):
            # One whole frame of something else: the way of nearly every registration.
            (size,) = _LENGTH.unpack_from(data)
            if size + 4 == len(data) <= self.server.limits.frame_size_max and not data.startswith(
                self._fast_starts, _HEADER_AT
            ):
                try:
                    answer = self._dispatch(data, 0, size)
                except RemoteProtocolError as error:
                    self._break(str(error))
                    return
                if answer is not None:
                    self.send_bytes(answer)
                if self._finishing:
                    self._finish()
                return
        if self._held:
            self._held += data  # reading is paused; only what was already on its way arrives here
            return
        if self._buffer:
            self._buffer += data
            self.server.unfinished += len(data)
            if len(self._buffer) < self._missing:
                if self.server.unfinished > self.server.limits.unfinished_max:
                    self._break(
                        f"unfinished frames of all connections hold {self.server.unfinished} bytes,"
                        f" allowed are {self.server.limits.unfinished_max}"
                    )
                return
            data = bytes(self._buffer)
            self.server.unfinished -= len(data)
            self._buffer.clear()
        self._process(data)

    def eof_received(self) -> bool:
        return False  # close; requests in flight from a peer that stopped listening have no reader

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        held, self._held = self._held, b""
        if held:
            self._process(held)
        self._read_on()

    def _read_on(self) -> None:
        may_read = not self._paused and not self._parked_much
        if may_read and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return  # it was never admitted
        self._transport = None
        self._held = b""
        self._parked = b""
        self._behind.clear()
        self.server.unfinished -= len(self._buffer)
        self._buffer.clear()
        self.server.release(self)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"connection with {self.peer} was lost", sent=True))
        self._pending.clear()
        self.closed(by_us=self._closing_by_us)

    # For subclasses -----------------------------------------------------------------------------

    def connected(self) -> None:
        """Called once the connection is admitted."""
        self.server.connected(self)

    def closed(self, *, by_us: bool) -> None:
        """Called when the connection is gone.

        Args:
            by_us: True if we began it without the peer's doing: shutdown, shedding, a handler's wish. False
                for a close by the peer, an error, bad bytes or an idle connection.
        """
        self.server.closed(self, by_us=by_us)

    # For handlers -------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def writable(self) -> bool:
        """False while the peer does not read what it was sent, or is gone."""
        return self.open and not self._paused

    def give(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """Send an answer that was put off, see :class:`Later`; None: success and nothing else."""
        self.unanswered -= 1
        server = self.server
        server.put_off -= 1
        if server.all_given is not None:
            server.given()
        if answer is not None:
            frame = self._encode(request, answer)
            if frame is not None:
                self.send_bytes(frame)
        elif not request.flag & FLAG_ONEWAY:
            self.send_bytes(encode_done(request))
        if self._finishing:
            self._finish()

    def send(self, command: RemotingCommand) -> None:
        """Send a command; dropped if the connection is gone.

        Raises:
            LocalProtocolError: If it cannot be encoded.
        """
        self.send_bytes(command.encode())

    def send_bytes(self, frames: bytes) -> None:
        """Send encoded frames; dropped if the connection is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.active = True
        transport.write(frames)
        if self._paused and transport.get_write_buffer_size() > self.server.limits.unread_max:
            unread = transport.get_write_buffer_size()
            log.warning("peer does not read connection=%s peer=%s unread=%s", self.id, self.peer, unread)
            self._closing_by_us = True
            transport.abort()

    def notify(self, request: RemotingCommand) -> bool:
        """Send a oneway request to the peer; return False, sending nothing, while it does not read."""
        if not self.writable:
            return False
        self.send(request.with_opaque(self.server.take_opaque()))
        return True

    async def invoke(self, request: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Send a request to the peer and wait for its answer.

        Raises:
            ConnectionLost: If the connection is or gets lost.
            RequestTimeout: If no answer came in time.
            TooManyRequests: If too many requests wait already, or the peer does not read.
        """
        if not self.open:
            raise ConnectionLost(f"connection with {self.peer} is closed", sent=False)
        if self._paused or len(self._pending) >= self.server.limits.unanswered_max:
            raise TooManyRequests(f"{len(self._pending)} requests wait on the connection with {self.peer}")
        opaque = self.server.take_opaque()
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = future
        try:
            self.send(request.with_opaque(opaque))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(f"{self.peer} gave no answer within {timeout_s} s") from None
        finally:
            self._pending.pop(opaque, None)

    def close(self) -> None:
        """Close once everything sent so far is flushed."""
        if self._transport is not None and not self._transport.is_closing():
            self._closing_by_us = True
            self._transport.close()

    def close_after_answers(self) -> None:
        """Close once the request at hand, and those being worked on, are answered and flushed."""
        self._finishing = True

    def abort(self) -> None:
        """Close at once; unflushed answers are dropped."""
        if self._transport is not None:
            self._closing_by_us = True
            self._transport.abort()

    def close_idle(self) -> None:
        """Close because nothing moved for the idle time: the peer counts as gone."""
        log.info("connection idle connection=%s peer=%s", self.id, self.peer)
        if self._transport is not None:
            self._transport.abort()

    # The way of a request -----------------------------------------------------------------------

    def _process(self, data: bytes) -> None:
        """Answer the whole frames in ``data``, keep an unfinished one; never raises for a peer's fault."""
        position, end = 0, len(data)
        answers: list[bytes] = []
        frame_size_max = self.server.limits.frame_size_max
        fast_path, fast_starts = self._fast_path, self._fast_starts
        slow_bytes = 0
        try:
            while position < end:
                if fast_path is None or not data.startswith(fast_starts, position + _HEADER_AT):
                    self._is_asked = False
                else:
                    self._is_asked = True
                    position = fast_path.leading(data, position, answers)
                    if position >= end:
                        break
                    if len(answers) >= BATCH_PIECES and not self._flush(answers):
                        self._held = data[position:]
                        break
                    number = fast_path.waits(data, position)
                    if number:
                        self._park(number, data[position:])
                        break
                if end - position < 4:
                    self._keep(data, position, 8)
                    break
                (size,) = _LENGTH.unpack_from(data, position)
                if size + 4 > frame_size_max:
                    raise RemoteProtocolError(
                        f"frame of {size + 4} bytes is above the limit of {frame_size_max}"
                    )
                if end - position - 4 < size:
                    self._keep(data, position, size + 4)
                    break
                answer = self._dispatch(data, position, size)
                position += 4 + size
                if answer is not None:
                    answers.append(answer)
                    slow_bytes += len(answer)
                if slow_bytes >= _BATCH_BYTES:
                    slow_bytes = 0
                    if not self._flush(answers) and position < end:
                        self._held = data[position:]
                        break
                if position < end and (self._finishing or not self.open):
                    break  # what follows has no reader any more
        except RemoteProtocolError as error:
            if answers:
                self.send_bytes(b"".join(answers))
            self._break(str(error))
            return
        if answers:
            self.send_bytes(answers[0] if len(answers) == 1 else b"".join(answers))
        if self._finishing:
            self._finish()

    def _park(self, number: int, data: bytes) -> None:
        """Keep what waits for ``number``, and what follows it, until :meth:`unpark`."""
        self._parked_for = number
        self._parked = data
        server = self.server
        if number == server.parking:
            server.parked.append(self)
        else:
            server.park(self, number)
        if len(data) > _PARKED_MAX:
            self._read_no_more()

    def _park_behind(self, data: bytes) -> None:
        """Keep what arrives behind something that waits, in order.

        It waits for what a request that arrives now would wait for, whatever it is: it may be one.
        """
        assert self._fast_path is not None
        number = self._fast_path.waits_now()
        last = self._behind[-1][0] if self._behind else self._parked_for
        if number > last:
            self._behind.append((number, data))
            self.server.park(self, number)
        elif self._behind:
            self._behind.append((last, self._behind.pop()[1] + data))
        else:
            self._parked += data
        self._behind_bytes += len(data)
        if self._behind_bytes > _PARKED_MAX:
            self._read_no_more()

    def _read_no_more(self) -> None:
        if self._transport is not None:
            self._parked_much = True
            self._transport.pause_reading()

    def unpark(self, number: int) -> None:
        """Look again at what waited for ``number`` or an earlier one."""
        transport = self._transport
        if (
            0 < self._parked_for <= number
            and not self._behind_bytes
            and not self._paused
            and not self._parked_much
            and not self._finishing
            and transport is not None
        ):  # nearly always: requests that came together, and nothing behind them
            assert self._fast_path is not None
            data, self._parked, self._parked_for = self._parked, b"", 0
            answers = self._fast_path.whole(data)
            if answers is None or isinstance(answers, int):
                self.data_received(data)
            else:
                transport.write(answers)
            return
        while 0 < self._parked_for <= number:
            data, self._parked, self._parked_for = self._parked, b"", 0
            if self._transport is not None and not self._finishing:
                self.data_received(data)
            if not self._behind:
                break
            if self._parked_for:  # it waits anew, for something later, and all that came behind it as well
                self._parked += b"".join(data for _, data in self._behind)
                self._behind.clear()
            else:
                self._parked_for, self._parked = self._behind.popleft()
        if not self._parked_for:
            self._behind_bytes = 0
            if self._parked_much:
                self._parked_much = False
                self._read_on()

    def _flush(self, answers: list[bytes]) -> bool:
        """Send a part of a long batch; return False if the peer must read it before it gets more."""
        self.send_bytes(b"".join(answers))
        answers.clear()
        return not self._paused

    def _finish(self) -> None:
        if self.unanswered == 0:
            self.close()

    def _keep(self, data: bytes, position: int, missing: int) -> None:
        self._buffer += data[position:]
        self._missing = missing
        self.server.unfinished += len(self._buffer)

    def _break(self, reason: str) -> None:
        self.server.stats.bad_frames += 1
        log.warning("bad frame connection=%s peer=%s reason=%s", self.id, self.peer, reason)
        if self._transport is not None:
            self._transport.close()

    def _dispatch(self, data: bytes, position: int, size: int) -> bytes | None:
        request = read_command(data, position, size)
        if request.flag & FLAG_RESPONSE:
            future = self._pending.get(request.opaque)
            if future is not None and not future.done():
                future.set_result(request)
            return None
        server = self.server
        server.stats.requests[request.code] += 1
        handler = server.handlers.get(request.code)
        answer: RemotingCommand | None
        if handler is None:
            answer = request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        else:
            try:
                result = handler(self, request)
            except Exception as error:  # the boundary of one request; the connection lives on
                answer = _failure(request, error)
            else:
                if isinstance(result, Later):
                    self.unanswered += 1
                    server.put_off += 1
                    return None
                if result is None or isinstance(result, RemotingCommand):
                    answer = result
                elif self.unanswered >= server.limits.unanswered_max:
                    _discard(result)
                    answer = request.reply(
                        ResponseCode.SYSTEM_BUSY,
                        remark="[OVERLOAD]system busy, start flow control for a while",
                    )
                else:
                    self.unanswered += 1
                    server.spawn(self._answer_later(request, result))
                    return None
        return self._encode(request, answer)

    async def _answer_later(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            answer = await result
        except Exception as error:  # the boundary of one request; the connection lives on
            answer = _failure(request, error)
        finally:
            self.unanswered -= 1
        frame = self._encode(request, answer)
        if frame is not None:
            self.send_bytes(frame)
        if self._finishing:
            self._finish()

    def _encode(self, request: RemotingCommand, answer: RemotingCommand | None) -> bytes | None:
        if answer is None or request.flag & FLAG_ONEWAY:
            return None
        try:
            return answer.encode()
        except LocalProtocolError as error:
            log.error("answer cannot be sent code=%s peer=%s error=%s", request.code, self.peer, error)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)).encode()


Connection = ServerProtocol


class RemotingServer:
    """Listens, admits connections, sweeps idle ones, and owns what they share.

    Args:
        handlers: Request code to handler; looked up per request, so it may be changed while serving.
        group: Owns the tasks of handlers that return awaitables.
        connected, closed: Called for each admitted connection.
        fast_path: Makes the fast path of a connection.
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
        protocol: type[ServerProtocol] = ServerProtocol,
        backlog: int = 1024,
    ) -> None:
        self.handlers = handlers
        self.limits = limits or ServerLimits()
        self.fast_path = fast_path
        self.stats = ServerStats()
        self.unfinished = 0
        self._parked: dict[int, list[Connection]] = {}
        self.parking = 0  # what was waited for last
        self.parked: list[Connection] = []  # who waits for it
        self.connections: dict[int, Connection] = {}
        self._group = group
        self._connected = connected
        self._closed = closed
        self._protocol = protocol
        self._backlog = backlog
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._next_id = 1
        self._next_opaque = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.put_off = 0  # answers that come later without a task
        self.all_given: asyncio.Event | None = None
        self._refusing = False
        self._stopping = False
        self._emptied: asyncio.Event | None = None
        self._unparked: asyncio.Event | None = None

    async def start(self, host: str, port: int) -> str:
        """Bind and accept; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        self.limits = fit_descriptors(self.limits)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._protocol(self), host, port, backlog=self._backlog, reuse_address=True
        )
        self._schedule_sweep(loop)
        return _host_port(self._server.sockets[0].getsockname())

    async def close(self, *, drain_s: float = 5.0) -> None:
        """Stop accepting, answer what is being worked on for at most ``drain_s`` seconds, close the rest."""
        self._stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        if self._parked:
            self._unparked = asyncio.Event()
            try:
                async with asyncio.timeout(drain_s):
                    await self._unparked.wait()
            except TimeoutError:
                log.warning("reads abandoned connections=%s", sum(map(len, self._parked.values())))
        until = asyncio.get_running_loop().time() + drain_s
        if self._tasks:
            _done, late = await asyncio.wait(self._tasks, timeout=drain_s)
            for task in late:
                task.cancel()
            self.stats.tasks_abandoned += len(late)
            if late:
                log.warning("requests abandoned count=%s", len(late))
        if self.put_off:
            self.all_given = asyncio.Event()
            try:
                async with asyncio.timeout_at(until):
                    await self.all_given.wait()
            except TimeoutError:
                self.stats.tasks_abandoned += self.put_off
                log.warning("requests abandoned count=%s", self.put_off)
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout(drain_s):
                    await self._emptied.wait()
            except TimeoutError:
                log.warning("connections cut off count=%s", len(self.connections))
        for connection in list(self.connections.values()):
            connection.abort()

    # For connections ----------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, unless the server is full or stopping."""
        if self._stopping or len(self.connections) >= self.limits.connections_max:
            self.stats.connections_refused += 1
            if not self._refusing:  # one line per episode, not one per connection
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
        self.stats.connections_accepted += 1
        return True

    def release(self, connection: Connection) -> None:
        self.connections.pop(connection.id, None)
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def connected(self, connection: Connection) -> None:
        if self._connected is not None:
            self._connected(connection)

    def closed(self, connection: Connection, *, by_us: bool) -> None:
        if self._closed is not None:
            self._closed(connection, by_us=by_us)

    def park(self, connection: Connection, number: int) -> None:
        """Note who is to be looked at when ``number`` has passed."""
        self.parking = number
        self.parked = self._parked.setdefault(number, [])
        self.parked.append(connection)

    def unpark(self, number: int) -> None:
        """Let the fast path, or the handlers, look at what waited for ``number``, and write the answers."""
        if number == self.parking:
            self.parking = 0
        for connection in self._parked.pop(number, ()):
            connection.unpark(number)
        if self._unparked is not None and not self._parked:
            self._unparked.set()

    def take_opaque(self) -> int:
        """Return the next correlation id for requests to peers."""
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque

    def given(self) -> None:
        """Look whether all answers that were put off are given."""
        if self.all_given is not None and not self.put_off:
            self.all_given.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(self.limits.idle_s / _IDLE_TICKS, self._sweep_idle, loop)

    def _sweep_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        self._schedule_sweep(loop)
        for connection in list(self.connections.values()):
            if connection.active:
                connection.active = False
                connection.idle_ticks = 0
            else:
                connection.idle_ticks += 1
                if connection.idle_ticks >= _IDLE_TICKS:
                    connection.close_idle()


#: One sweep over all connections per this part of the idle time: a close is at most one part late.
_IDLE_TICKS: Final = 24


def fit_descriptors(limits: ServerLimits) -> ServerLimits:
    """Raise the limit on open descriptors to the hard one; lower ``connections_max`` to what fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:  # some systems name a hard limit they do not grant
            log.warning("descriptor limit stays soft=%s hard=%s error=%s", soft, hard, error)
    if soft == resource.RLIM_INFINITY:
        return limits
    fitting = max(1, soft - DESCRIPTORS_RESERVED if soft > 2 * DESCRIPTORS_RESERVED else soft // 2)
    if fitting >= limits.connections_max:
        return limits
    log.warning(
        "descriptor limit is short allowed=%s wanted=%s connections_max=%s",
        soft,
        limits.connections_max + DESCRIPTORS_RESERVED,
        fitting,
    )
    return replace(limits, connections_max=fitting)


def _failure(request: RemotingCommand, error: Exception) -> RemotingCommand:
    if isinstance(error, RemotingError):
        log.debug("request refused code=%s reason=%s", request.code, error)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    log.error("handler failed code=%s", request.code, exc_info=error)
    return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def _discard(result: Awaitable[RemotingCommand | None]) -> None:
    """Drop an answer that will not be awaited, without the warning about a coroutine never awaited."""
    if asyncio.iscoroutine(result):
        result.close()
    elif isinstance(result, asyncio.Future):
        result.cancel()


def _host_port(name: object) -> str:
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "?"


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a listener bound to ``host``."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(str(info[4][0]).startswith("127.") or info[4][0] == "::1" for info in infos)
