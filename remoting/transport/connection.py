"""One accepted connection of a server: reads frames, calls handlers and writes the answers in batches.

A request is handled synchronously, beginning in :meth:`Connection.data_received`. The connection finds the
frame, parses its header, calls the handler and adds the answer to a batch. Each batch is one
``transport.write``. Only a handler that returns an awaitable gets a task.

A server may install a *fast path* (:class:`~routekeeper.remoting.transport.inbox.FastPath`), which answers
received bytes without parsing them. The nameserver uses it for its cache of encoded routes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, cast

from routekeeper.remoting.addresses import host_port, plain_host
from routekeeper.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from routekeeper.remoting.command import SUCCESS, RemotingCommand, encode_done
from routekeeper.remoting.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.transport.holdings import Holdings
from routekeeper.remoting.transport.inbox import KEPT_MAX, FastPath, Inbox, Stop
from routekeeper.remoting.transport.limits import ServerLimits, ServerStats
from routekeeper.remoting.transport.secured import Inner
from routekeeper.remoting.transport.turns import Turns

log = logging.getLogger(__name__)

#: Number of bytes of answers at which a batch is written, even if more requests must still be handled.
_BATCH_BYTES: Final = 256 * 1024
#: Number of unread bytes of one peer above which these bytes count in the total of all peers.
_UNREAD_COUNTED: Final = 64 * 1024
#: Number of unread bytes of one peer above which its further requests must wait.
_UNREAD_PAUSE: Final = 256 * 1024
#: Smallest number of bytes that count for a request whose answer comes later. It includes the Python objects
#: of the request and of its handler.
_REQUEST_BYTES: Final = 1024
#: Largest memory use of one character in bytes: four bytes in the string, and four in the UTF-8 form that
#: Python may cache.
_CHARACTER_BYTES_MAX: Final = 8
#: Step in bytes in which the total of all connections is updated. A connection's requests whose answers come
#: later count in this total only in whole steps. Most single registrations are smaller than one step and need
#: no update.
_STEP_BYTES: Final = 64 * 1024
#: Bytes may have to wait for a read barrier, an event before which they may not be answered. If more bytes
#: than this begin to wait, they count at once in the total of received bytes. Fewer bytes do not count at
#: once, because they mostly wait less than 1 ms.
_WORTH_COUNTING: Final = 4 * 1024

Handler = Callable[
    ["Connection", RemotingCommand],
    "RemotingCommand | Awaitable[RemotingCommand | None] | DeferredReply | None",
]


class Server(Protocol):
    """State and services that all connections of a server share.

    :class:`routekeeper.remoting.transport.listener.RemotingServer` implements this protocol.

    Attributes:
        handlers: Handler of each request code.
        fast_path: Makes the fast path of a connection.
        received: Bytes of all connections that were received and are not answered yet.
        unread: Bytes of all connections that were sent and that the peers have not read yet.
        deferred: Number of answers that come later without a task, see :class:`DeferredReply`.
        all_sent: Event that is set when ``deferred`` is 0; None while no code waits for this event.
    """

    handlers: Mapping[int, Handler]
    limits: ServerLimits
    stats: ServerStats
    turns: Turns
    fast_path: Callable[[], FastPath] | None
    received: Holdings[Connection]
    unread: Holdings[Connection]
    deferred: int
    all_sent: asyncio.Event | None

    def admit(self, connection: Connection) -> bool: ...

    def release(self, connection: Connection) -> None: ...

    def connected(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, *, by_us: bool) -> None:
        """Record that a connection is closed.

        Args:
            by_us: True if the server closed the connection at its shutdown, at a handler's request, or
                because of too many unread or unanswered bytes. In all other cases False. This includes a
                connection that the server closed after invalid bytes or idle time.
        """

    def park(self, connection: Connection, number: int) -> None: ...

    def begin_large(self, connection: Connection, size: int) -> bool: ...

    def end_large(self, connection: Connection) -> None: ...

    def spawn(self, connection: Connection, work: Coroutine[Any, Any, None], body_bytes: int) -> None: ...

    def take_opaque(self) -> int: ...

    def deferred_sent(self) -> None: ...

    def shed_received(self) -> None: ...

    def shed_unread(self) -> None: ...

    def say(
        self,
        connection: Connection,
        message: str,
        *values: object,
        level: int = ...,
        error: Exception | None = ...,
    ) -> None: ...


class DeferredReply:
    """Answer that a handler sends later, by one call of :meth:`send` and without a task.

    A handler that returns such an object must call :meth:`send` later, even if the connection is closed by
    then. A server that shuts down waits for this call. Before it returns the object, the handler must check
    that its connection has fewer than :attr:`ServerLimits.unanswered_max` unanswered requests. Without this
    check, one peer could make the server hold any number of requests.

    Attributes:
        request: Request to answer. It occupies memory until it is answered. A handler that no longer needs
            the request's body should pass a copy without the body.
        seen_by: Function that is called with the answer before the answer is sent; None if there is none.
    """

    __slots__ = ("_begun", "connection", "request", "seen_by")

    def __init__(self, connection: Connection, request: RemotingCommand) -> None:
        self.connection = connection
        self.request = request
        self.seen_by: Callable[[RemotingCommand | None], None] | None = None
        self._begun = connection.begun

    def send(self, answer: RemotingCommand | None) -> None:
        """Send the answer; drop it if the connection is closed or if the request was oneway.

        Args:
            answer: None for a success without any content.
        """
        if self.seen_by is not None:
            self.seen_by(answer)
        self.connection.send_deferred(self.request, answer, begun=self._begun)


class Connection(Inner):
    """One accepted connection of a server.

    Attributes:
        id: Number of the connection; it increases with each accepted connection and is never reused.
        peer: ``host:port`` of the other side.
        host: The peer's host. An IPv4 address has its usual form, even if the listener serves IPv4 and IPv6.
        cost_s: Seconds for which this connection's requests have occupied the event loop, see :class:`Turns`.
        begun: Time at which the present request arrived, or at which it began to wait for its turn.
    """

    __slots__ = (
        "_backed_up",
        "_closing_by_us",
        "_counted",
        "_crowded",
        "_cut",
        "_dispatched",
        "_finishing",
        "_full",
        "_held_back",
        "_inbox",
        "_large",
        "_large_unanswered",
        "_paused",
        "_pending",
        "_queued",
        "_straight",
        "_transport",
        "_under_way",
        "_under_way_counted",
        "_waits_since",
        "_whole",
        "active",
        "begun",
        "host",
        "id",
        "idle_ticks",
        "peer",
        "server",
        "unanswered",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = 0
        self.peer = self.host = "?"
        self.cost_s = 0.0
        self.unanswered = 0
        self.active = True
        self.idle_ticks = 0
        fast_path = server.fast_path() if server.fast_path is not None else None
        self._inbox = Inbox(
            frame_size_max=server.limits.frame_size_max,
            fast_path=fast_path,
            park=functools.partial(server.park, self),
        )
        self._whole = _nothing if fast_path is None else fast_path.whole
        # True if received bytes may go to the fast path unchanged. This needs two conditions: all earlier
        # bytes are answered, and the peer reads its answers.
        self._straight = self._inbox.straight
        self._counted = 0  # number of this connection's bytes that ``server.received`` counts
        self._under_way = self._under_way_counted = 0  # bytes of requests whose answers come later
        # True while no further request is handled, because the requests whose answers come later have too
        # many bytes.
        self._crowded = False
        self._cut = False  # True after the close: then its bytes no longer count in the server's totals
        self._transport: asyncio.Transport | None = None
        self._full = False  # True while reading is paused because the inbox has many bytes
        # Size of the large frame that this connection reads or asks permission to read; 0 if there is none.
        self._large = 0
        self._held_back = False  # True while reading is paused until the server permits the large frame
        self._large_unanswered = 0  # number of requests with large bodies whose answers come later
        self._queued = False  # True while this connection waits for its turn (time slice) in :class:`Turns`
        # Time at which this connection began to wait for its turn; 0 if it does not wait.
        self._waits_since = 0.0
        self.begun = 0.0
        self._dispatched = False  # True after a request was passed to a handler
        # True while the peer has left so many bytes unread that they count in the total of all peers.
        self._backed_up = False
        # True while the peer has left so many bytes unread that its further requests are not handled.
        self._paused = False
        self._closing_by_us = False
        self._finishing = False
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}

    # Methods that the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from asyncio's
        name = transport.get_extra_info("peername")
        self.peer = host_port(name)
        self.host = plain_host(self.peer.rpartition(":")[0])
        if not self.server.admit(self):
            self._transport.abort()
            self._transport = None
            return
        self._transport.set_write_buffer_limits(high=_UNREAD_COUNTED)
        self.server.connected(self)

    def take_over(self, transport: asyncio.Transport) -> None:
        """Use the socket's own transport from now on, because the peer does not speak TLS."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.active = True
        if self._straight:
            # Nearly every request to a nameserver takes this branch; all others take the code below.
            answers = self._whole(data)
            if answers is not None:
                if isinstance(answers, int):
                    self._wait(answers, data)
                else:
                    self._transport.write(answers)  # type: ignore[union-attr]  # the transport exists while data arrive
                return
        elif not self._paused and not self._crowded and self.server.turns.begin():
            try:
                request = self._inbox.single(data)
            except RemoteProtocolError as error:
                self._break(str(error))
                return
            if request is not None:
                self.begun = self.server.turns.began
                answer = self._dispatch(request)
                if answer is not None:
                    self.send_bytes(answer)
                self.server.turns.end(self)
                if self._finishing:
                    self._finish()
                return
        if self._inbox.receive(data):
            self._look()
        else:
            self._kept()

    def eof_received(self) -> bool:
        # Return False, so that asyncio closes the connection. A peer that has ended its sending probably
        # reads no answers either.
        return False

    def pause_writing(self) -> None:
        self._backed_up = True
        self._straight = False
        self._count_unread()

    def resume_writing(self) -> None:
        self._backed_up = False
        self.server.unread.set(self, 0)
        if self._paused:
            self._paused = False
            self._look()
            self._read_on()
        else:
            self._straight = self._inbox.straight and not self._crowded

    @property
    def size(self) -> int:
        """Return the number of received bytes that were not passed to a handler yet."""
        return self._inbox.size

    def go_on(self) -> None:
        """Handle the remaining bytes, because this connection's turn (time slice) has begun."""
        self._queued = False
        if self._transport is not None and not self._finishing:
            self._look()

    @property
    def waits_for_peer(self) -> bool:
        """Return True if this connection can continue only after its peer sends or reads bytes."""
        return not self._queued and not self._large_unanswered

    def hold_back(self, *, held_back: bool) -> None:
        """Pause the reading of a large frame, or continue it."""
        self._held_back = held_back
        if not held_back:
            self._read_on()
        elif self._transport is not None:
            self._transport.pause_reading()

    def lose_place(self) -> None:
        """Drop the permission to read a large frame; ask for it again when more of the frame arrives."""
        self._large = 0

    def _read_on(self) -> None:
        may_read = not self._paused and not self._full and not self._held_back
        if may_read and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return  # the server had refused this connection
        self._transport = None
        self._cut = True
        self._clear()
        if self._large:
            self._large = 0
            self.server.end_large(self)
        self.server.unread.set(self, 0)
        self.server.release(self)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"connection with {self.peer} was lost", sent=True))
        self._pending.clear()
        self.server.closed(self, by_us=self._closing_by_us)

    # Methods that handlers call -------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_asked(self) -> bool:
        """Return True if at least one request has arrived on this connection."""
        return self._dispatched or self._inbox.answered

    @property
    def writable(self) -> bool:
        """Return True if the connection is open and its peer has not left too many bytes unread."""
        return self.open and not self._paused

    def send_deferred(
        self, request: RemotingCommand, answer: RemotingCommand | None, *, begun: float
    ) -> None:
        """Send an answer that comes later, see :class:`DeferredReply`.

        Args:
            answer: None for a success without any content.
            begun: Value that :attr:`Connection.begun` had when the request was passed to its handler.
        """
        self.unanswered -= 1
        server = self.server
        server.deferred -= 1
        if len(request.body) > KEPT_MAX:
            self._large_unanswered -= 1
            self._place()
        self._let_go(_bytes_of(request))
        if server.all_sent is not None:
            server.deferred_sent()
        frame = self._encode(request, SUCCESS if answer is None else answer)
        if frame is not None:
            self.send_bytes(frame)
        server.stats.took(request.code, time.perf_counter() - begun)
        if self._finishing:
            self._finish()

    def send(self, command: RemotingCommand) -> None:
        """Send a command; drop it if the connection is closed.

        Raises:
            LocalProtocolError: If the command cannot be encoded.
        """
        self.send_bytes(command.encode())

    def send_bytes(self, frames: bytes) -> None:
        """Send encoded frames; drop them if the connection is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.active = True
        transport.write(frames)
        if self._backed_up:
            self._count_unread()

    def _count_unread(self) -> None:
        """Check the number of bytes that the peer has not read; above the limits, pause or close."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unread, server = transport.get_write_buffer_size(), self.server
        if unread > server.limits.unread_max:
            server.say(self, "peer does not read connection=%s peer=%s unread=%s", self.id, self.peer, unread)
            self.abort()
            return
        server.unread.set(self, unread)
        if unread > _UNREAD_PAUSE and not self._paused:
            self._paused = True
            transport.pause_reading()
        if server.unread.exceeded:
            server.shed_unread()

    def recount_unread(self) -> None:
        """Update this connection's unread bytes in the total of the server."""
        if self._transport is not None:
            self.server.unread.set(self, self._transport.get_write_buffer_size())

    def shed(self, what: str) -> None:
        """Close this connection at once, because all connections together hold too many bytes.

        The server chooses the connections with most bytes.

        Args:
            what: Reason for the log line.
        """
        self.server.stats.connections_shed += 1
        self.server.say(self, "connection cut off connection=%s peer=%s reason=%s", self.id, self.peer, what)
        self._cut = True
        self._clear()
        self.server.unread.set(self, 0)
        self.abort()

    def notify(self, request: RemotingCommand) -> bool:
        """Send a oneway request to the peer; return False, and send nothing, while the peer does not read."""
        if not self.writable:
            return False
        self.send(request.with_opaque(self.server.take_opaque()))
        return True

    async def invoke(self, request: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Send a request to the peer and wait for its answer.

        Raises:
            ConnectionLost: If the connection is closed or gets lost.
            RequestTimeout: If no answer came in time.
            TooManyRequests: If too many requests already wait, or if the peer does not read.
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
        """Close the connection after all sent bytes are flushed."""
        if self._transport is not None and not self._transport.is_closing():
            self._closing_by_us = True
            self._transport.close()

    def close_after_answers(self) -> None:
        """Close the connection after all its requests, even the present request, are answered and flushed."""
        self._finishing = True

    def abort(self) -> None:
        """Close the connection at once and drop answers that are not flushed."""
        if self._transport is not None:
            self._closing_by_us = True
            self._transport.abort()

    def close_idle(self) -> None:
        """Close the connection because it had no traffic for the idle time, as if the peer had closed it."""
        self.server.say(self, "connection idle connection=%s peer=%s", self.id, self.peer, level=logging.INFO)
        if self._transport is not None:
            self._transport.abort()

    # From received bytes to answers -------------------------------------------------------------

    def _look(self, *, anyway: bool = False) -> None:
        """Handle the requests in the inbox until the turn (time slice) is over.

        A fault of the peer closes the connection and raises no error.

        Args:
            anyway: True to handle at least one request, even if the turn is over.
        """
        inbox, turns = self._inbox, self.server.turns
        if self._paused or self._crowded or not inbox.more:
            self._kept()
            return
        if anyway:
            turns.begin_anyway()
        elif not turns.begin():
            self._wait_for_turn()
            return
        self.begun, self._waits_since = self._waits_since or turns.began, 0.0
        answers: list[bytes] = []
        dispatched_bytes = 0
        try:
            while (found := inbox.next(answers)) is not None:
                if isinstance(found, RemotingCommand):
                    answer = self._dispatch(found)
                    if answer is not None:
                        answers.append(answer)
                        dispatched_bytes += len(answer)
                elif found is Stop.WAITS:
                    break
                if not inbox.more:
                    break
                if found is Stop.FULL or dispatched_bytes >= _BATCH_BYTES:
                    dispatched_bytes = 0
                    if not self._flush(answers):
                        break
                if self._finishing or not self.open:
                    inbox.clear()  # the connection is closing, so later requests need no answer
                    break
                if self._crowded or turns.over():
                    break
        except RemoteProtocolError as error:
            if answers:
                self.send_bytes(b"".join(answers))
            self._break(str(error))
            return
        finally:
            turns.end(self)
        if answers:
            self.send_bytes(answers[0] if len(answers) == 1 else b"".join(answers))
        if inbox.more and not self._paused and not self._crowded:
            self._wait_for_turn()
        else:
            self._straight = inbox.straight and not self._backed_up and not self._crowded
            self._kept()
        if self._finishing:
            self._finish()

    def _wait_for_turn(self) -> None:
        self._straight = False
        if not self._queued:
            self._queued = True
            self._waits_since = time.perf_counter()
            self.server.turns.wait(self)
        self._kept()

    def _wait(self, number: int, data: bytes) -> None:
        self._straight = False
        self._inbox.wait(number, data)
        if len(data) > _WORTH_COUNTING:
            self._kept()

    def _kept(self) -> None:
        """Count the bytes that stay in the inbox; pause reading if they are many, resume if they are few."""
        inbox = self._inbox
        if inbox.full is not self._full:
            self._full = not self._full
            if not self._full:
                self._read_on()
            elif self._transport is not None:
                self._transport.pause_reading()
        if inbox.large != self._large:
            self._place()
        if inbox.size + self._under_way_counted != self._counted:
            self._account()
            if self.server.received.exceeded:
                self.server.shed_received()

    def _place(self) -> None:
        """Ask the server for permission to read a large frame, or give the permission back.

        The permission ends when the request in the frame is answered.
        """
        size = self._inbox.large
        if self._transport is None or (not size and (self._inbox.more or self._large_unanswered)):
            return
        if self._large != size:
            if self._large:
                self.server.end_large(self)
            self._large = size
            self.hold_back(held_back=size > 0 and not self.server.begin_large(self, size))

    def _clear(self) -> None:
        """Drop all received bytes that were not handled yet."""
        self._inbox.clear()
        self._account()

    def _hold(self, size: int) -> None:
        """Count a request of ``size`` bytes whose answer comes later."""
        self._under_way += size
        if self._under_way > self.server.limits.under_way_max:
            self._crowded = True
        if self._under_way >= self._under_way_counted + _STEP_BYTES:
            self._count_under_way()
            if self.server.received.exceeded:
                self.server.shed_received()

    def _let_go(self, size: int) -> None:
        """Count a request of ``size`` bytes as answered; handle further requests if these had to wait."""
        self._under_way -= size
        if self._under_way < self._under_way_counted:
            self._count_under_way()
        if self._crowded and self._under_way <= self.server.limits.under_way_max // 2:
            self._crowded = False
            if self._transport is not None and not self._finishing and not self._paused and self._inbox.more:
                self._wait_for_turn()

    def _count_under_way(self) -> None:
        self._under_way_counted = self._under_way - self._under_way % _STEP_BYTES
        self._account()

    def _account(self) -> None:
        size = 0 if self._cut else self._inbox.size + self._under_way_counted
        if size != self._counted:
            self._counted = size
            self.server.received.set(self, size)

    def unpark(self, number: int) -> None:
        """Handle bytes that waited for read barrier ``number`` or for an earlier barrier."""
        inbox = self._inbox
        while inbox.waits_for and (data := inbox.unpark(number)) is not None:
            transport = self._transport
            if transport is None or transport.is_closing() or self._finishing:
                continue
            # In the usual case, the fast path can answer all bytes that waited.
            if inbox.straight and not self._backed_up:
                answers = self._whole(data)
                if isinstance(answers, bytes):
                    transport.write(answers)
                    self._straight = not self._backed_up and not self._crowded
                    continue
            if inbox.resume(data):
                # Handle at least one of these requests, even if the turn (time slice) is over. The read
                # barrier for which they waited is valid only during this call. Requests that are not handled
                # now must wait for another barrier.
                self._look(anyway=True)
        if self._counted:
            self._kept()

    def _flush(self, answers: list[bytes]) -> bool:
        """Send these answers; return False if the peer must read them before it gets further answers."""
        self.send_bytes(b"".join(answers))
        answers.clear()
        return not self._paused

    def _finish(self) -> None:
        if self.unanswered == 0:
            self.close()

    def _break(self, reason: str) -> None:
        self.server.stats.bad_frames += 1
        self.server.say(
            self, "bad frame connection=%s peer=%s reason=%s", self.id, self.peer, shortened(reason)
        )
        self._clear()
        if self._transport is not None:
            self._transport.close()

    def _dispatch(self, request: RemotingCommand) -> bytes | None:
        if request.flag & FLAG_RESPONSE:
            future = self._pending.get(request.opaque)
            if future is not None and not future.done():
                future.set_result(request)
            return None
        server = self.server
        self._dispatched = True
        handler = server.handlers.get(request.code)
        answer: RemotingCommand | None
        if handler is None:
            server.stats.requests_unknown += 1
            answer = request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        else:
            server.stats.requests[request.code] += 1
            try:
                result = handler(self, request)
            except Exception as error:  # a failed request must not close the connection
                answer = self._failed(request, error)
            else:
                if isinstance(result, DeferredReply):
                    self.unanswered += 1
                    server.deferred += 1
                    if len(result.request.body) > KEPT_MAX:
                        self._large_unanswered += 1
                    self._hold(_bytes_of(result.request))
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
                    self._hold(_bytes_of(request))
                    later = self._answer_later(request, result, begun=self.begun)
                    server.spawn(self, later, len(request.body))
                    return None
        frame = self._encode(request, answer)
        if answer is not None:
            server.stats.took(request.code, time.perf_counter() - self.begun)
        return frame

    async def _answer_later(
        self, request: RemotingCommand, result: Awaitable[RemotingCommand | None], *, begun: float
    ) -> None:
        try:
            answer = await result
        except Exception as error:  # a failed request must not close the connection
            answer = self._failed(request, error)
        finally:
            self.unanswered -= 1
            self._let_go(_bytes_of(request))
        frame = self._encode(request, answer)
        if frame is not None:
            self.send_bytes(frame)
        self.server.stats.took(request.code, time.perf_counter() - begun)
        if self._finishing:
            self._finish()

    def _failed(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, RemotingError):
            log.debug("request refused code=%s reason=%s", request.code, error)
        else:
            self.server.say(
                self,
                "handler failed code=%s peer=%s",
                request.code,
                self.peer,
                level=logging.ERROR,
                error=error,
            )
        return request.failed(error)

    def _encode(self, request: RemotingCommand, answer: RemotingCommand | None) -> bytes | None:
        if answer is None or request.flag & FLAG_ONEWAY:
            return None
        self.server.stats.answered(answer.code)
        if answer is SUCCESS:
            return encode_done(request)
        try:
            return answer.encode()
        except LocalProtocolError as error:
            self.server.say(
                self, "answer cannot be sent code=%s peer=%s error=%s", request.code, self.peer, error
            )
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)).encode()


def _bytes_of(request: RemotingCommand) -> int:
    """Return the approximate number of bytes of memory that a request takes until it is answered."""
    texts = _text_bytes(request.remark or "")
    for name, value in request.ext_fields.items():
        texts += _text_bytes(name) + _text_bytes(value)
    return _REQUEST_BYTES + len(request.body) + texts


def _text_bytes(text: str) -> int:
    """Return the largest memory use of a text in bytes.

    The value stays the same while the request is in progress. The result of sys.getsizeof() would grow with
    the first use of the text's UTF-8 form.
    """
    return len(text) if text.isascii() else _CHARACTER_BYTES_MAX * len(text)


def _nothing(data: bytes) -> None:
    """Return None. This function takes the place of a fast path if a connection has none."""


def _discard(result: Awaitable[RemotingCommand | None]) -> None:
    """Drop an answer that no code will await.

    Close a coroutine, because Python warns about coroutines that were never awaited.
    """
    if asyncio.iscoroutine(result):
        result.close()
    elif isinstance(result, asyncio.Future):
        result.cancel()
