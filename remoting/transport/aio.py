"""Client of RocketMQ's protocol on asyncio: one connection for each address, opened when it is needed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self, cast

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost, RemotingError, RequestTimeout, TooManyRequests
from routekeeper.remoting.frame import FRAME_SIZE_MAX
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.session import OUTSTANDING_MAX, ClientSession, PeerRequest, Response
from routekeeper.remoting.transport import Hooks, RPCHook, check_holds, split_address
from routekeeper.remoting.transport.lookups import look_up

if TYPE_CHECKING:
    from routekeeper.remoting.transport.tls import Tls  # imported at run time only by programs that use TLS

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
#: Largest number of oneway requests that wait for a peer that does not read. Java allows 256 per process.
ONEWAY_MAX: Final = 256
#: Largest number of open connections of one client. Above this number, the connection that has been unused
#: for longest is closed.
CONNECTIONS_MAX: Final = 4096
#: Largest number of frames of one peer that are handled in one iteration of the event loop. Answers to this
#: client's waiting requests are not counted. uvloop may read twice in one iteration, so the number can
#: double.
UNASKED_MAX: Final = 64
#: Largest number of a peer's requests that are being served and not yet answered. At this number, this client
#: reads nothing more from the peer.
SERVED_MAX: Final = 64
#: Number of unread bytes of answers above which a peer's connection is closed.
UNREAD_MAX: Final = 1024 * 1024
#: Number of unread bytes of answers above which a peer's further requests must wait.
_UNREAD_PAUSE: Final = 256 * 1024
#: Number of unread bytes of one peer above which the event loop calls :meth:`_Connection.pause_writing`.
_UNREAD_REPORTED: Final = 64 * 1024

#: Handles a peer's request; the arguments are the address and the request. The answer to a oneway request is
#: ignored.
PeerHandler = Callable[[str, RemotingCommand], "RemotingCommand | Awaitable[RemotingCommand | None] | None"]


class RemotingClient:
    """Client for any number of addresses, with one connection to each, opened when it is needed.

    All tasks of one event loop may use it at the same time. Use it as ``async with RemotingClient() as
    client``, or call :meth:`close`.

    Args:
        connect_timeout_s: Longest time for opening a connection; the request's own timeout applies as well.
        idle_s: Seconds without traffic after which a connection is closed.
        frame_size_max: Bytes of the largest accepted answer, including its length word.
        tls: Selects the connections that use TLS, and their contexts; None if no connection uses TLS.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 3.0,
        outstanding_max: int = OUTSTANDING_MAX,
        idle_s: float = 120.0,
        frame_size_max: int = FRAME_SIZE_MAX,
        hooks: tuple[RPCHook, ...] = (),
        tls: Tls | None = None,
    ) -> None:
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._outstanding_max = outstanding_max
        self._idle_s = idle_s
        self._frame_size_max = frame_size_max
        self._hooks = Hooks(hooks, time.monotonic)
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Task[_Connection]] = {}
        self._handlers: dict[int, PeerHandler] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._next_opaque = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def on_request(self, code: int, handler: PeerHandler) -> None:
        """Handle a peer's requests of ``code``; requests of other codes are answered "not supported"."""
        self._handlers[code] = handler

    def connected(self, addr: str) -> bool:
        """Return True if a connection to the address is open."""
        return addr in self._connections

    async def invoke(
        self,
        addr: str,
        request: RemotingCommand,
        *,
        timeout_s: float = TIMEOUT_S,
        unless: Callable[[], bool] | None = None,
    ) -> RemotingCommand:
        """Send a request and return its answer, even if the answer's code is an error.

        Args:
            unless: Called after the connection is open; if it returns True, the request is not sent.

        Raises:
            Withdrawn: If ``unless`` returned True.
            ConnectionLost: If no connection could be opened (``sent`` is False), or if it was lost.
            RequestTimeout: If no answer came in time.
            TooManyRequests: If too many requests already wait on the connection.
            LocalProtocolError: If the request cannot be encoded.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = self._connections.get(addr) or await self._connect(addr, deadline)
        request = self._hooks.before_request(addr, request)
        check_holds(addr, unless)
        opaque, future = connection.begin(request, deadline)
        try:
            answer = await future
        except asyncio.CancelledError:
            connection.forget(opaque)
            raise
        self._hooks.after_response(addr, request, answer)
        return answer

    async def invoke_oneway(
        self,
        addr: str,
        request: RemotingCommand,
        *,
        timeout_s: float = TIMEOUT_S,
        unless: Callable[[], bool] | None = None,
    ) -> None:
        """Pass a oneway request to the connection; the caller cannot know whether the request arrives.

        Args:
            unless: As in :meth:`invoke`.

        Raises:
            Withdrawn: If ``unless`` returned True.
            ConnectionLost: If no connection could be opened.
            TooManyRequests: If the peer does not read, and too many oneway requests already wait.
            LocalProtocolError: If the request is not marked oneway or cannot be encoded.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = self._connections.get(addr) or await self._connect(addr, deadline)
        request = self._hooks.before_request(addr, request)
        check_holds(addr, unless)
        connection.oneway(request)

    def disconnect(self, addr: str) -> None:
        """Close the connection to an address, if any; its waiting requests fail with ConnectionLost."""
        connection = self._connections.get(addr)
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        """Close all connections; waiting requests fail with ConnectionLost."""
        self._closed = True
        pending = [*self._connecting.values(), *self._work]
        for task in pending:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        if pending:
            await asyncio.wait(pending)
        # Let the loop report the end of each connection: in its next iteration, or with TLS one iteration
        # later.
        await asyncio.sleep(0)
        if self._tls is not None:
            await asyncio.sleep(0)

    async def _connect(self, addr: str, deadline: float) -> _Connection:
        if self._closed:
            raise ConnectionLost("the client is closed", sent=False)
        attempt = self._connecting.get(addr)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._open(addr))
            self._connecting[addr] = attempt
            attempt.add_done_callback(lambda _task: self._connecting.pop(addr, None))
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(attempt)  # other callers may wait for the same attempt
        except TimeoutError:
            raise ConnectionLost(f"no connection to {addr} within the deadline", sent=False) from None
        except asyncio.CancelledError:
            if attempt.cancelled():
                raise ConnectionLost("the client is closed", sent=False) from None
            raise

    async def _open(self, addr: str) -> _Connection:
        host, port = split_address(addr)
        loop = asyncio.get_running_loop()
        session = ClientSession(
            outstanding_max=self._outstanding_max,
            frame_size_max=self._frame_size_max,
            first_opaque=self._next_opaque,
        )
        # Each connection numbers its requests in a separate range, so that a number in a log line identifies
        # one request.
        self._next_opaque = (self._next_opaque + 1_000_000) % 2_000_000_000
        tls = self._tls if self._tls is not None and self._tls.covers(addr) else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await _reach(
                    lambda: _Connection(self, addr, session, loop), host, port, tls, loop
                )
        except TimeoutError:
            message = f"no connection to {addr} within {self._connect_timeout_s} s"
            raise ConnectionLost(message, sent=False) from None
        except (OSError, ValueError) as error:  # ValueError: host is no valid name
            why = str(error) if tls is None else tls.reason(error)
            message = f"no connection to {shortened(addr)}: {shortened(why)}"
            raise ConnectionLost(message, sent=False) from None
        if connection.lost:
            raise ConnectionLost(f"{addr} closed the connection at once", sent=False)
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = min(self._connections.values(), key=lambda known: known.moved_at)
            oldest.abort()
        self._connections[addr] = connection
        return connection

    # Methods that connections call ----------------------------------------------------------------

    def _lost(self, connection: _Connection) -> None:
        if self._connections.get(connection.addr) is connection:
            del self._connections[connection.addr]

    def _serve(self, connection: _Connection, request: RemotingCommand) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            connection.answer(
                request,
                request.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {request.code} not supported",
                ),
            )
            return
        connection.moved_at = asyncio.get_running_loop().time()
        try:
            result = handler(connection.addr, request)
            if result is None or isinstance(result, RemotingCommand):
                connection.answer(request, result)
                return
        except Exception as error:  # a failed request must not close the connection
            connection.answer(request, _failed(request, error))
            return
        connection.served += 1
        task = asyncio.get_running_loop().create_task(self._serve_later(connection, request, result))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _serve_later(
        self, connection: _Connection, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            connection.answer(request, await result)
        except Exception as error:  # a failed request must not close the connection
            connection.answer(request, _failed(request, error))
        finally:
            connection.served -= 1
            connection.continue_soon()


async def _reach(
    make: Callable[[], _Connection],
    host: str,
    port: int,
    tls: Tls | None,
    loop: asyncio.AbstractEventLoop,
) -> _Connection:
    """Connect to the first address of a host that accepts the connection.

    This function does not use the event loop's own resolver. If no DNS server answers, that resolver blocks
    threads of the loop's executor. Other work needs these threads, and a closing loop waits for them.

    Raises:
        OSError: If the host has no address, or if none of its addresses accepted the connection.
        ValueError: If ``host`` is no valid name.
    """
    lookup = look_up(host)
    addresses = lookup.result() if lookup.done() else await asyncio.wrap_future(lookup)
    failure = OSError(f"{host} has no address")
    for address in addresses:
        try:
            _, connection = await loop.create_connection(
                make,
                address,
                port,
                ssl=None if tls is None else tls.context(),
                server_hostname=None if tls is None else host,
            )
        except OSError as error:
            failure = error
        else:
            return connection
    raise failure


class _Connection(asyncio.Protocol):
    """One connection: passes bytes between the event loop and the session.

    The peer may also send requests, and it may be hostile. Therefore the loop handles only a few of its
    requests in one iteration. While more of its requests wait, nothing is read from the connection.

    Attributes:
        moved_at: Loop time of the last traffic, from which ``idle_s`` counts. Traffic is a sent request, an
            answer to a waiting request, or a peer's request that has a handler.
        served: Number of the peer's requests whose answers come later.
    """

    def __init__(
        self, client: RemotingClient, addr: str, session: ClientSession, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.addr = addr
        self.moved_at = loop.time()
        self.served = 0
        self._client = client
        self._session = session
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._futures: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # due time of the timer; some timer handles of uvloop lack it
        self._idle: asyncio.TimerHandle | None = None
        self._paused = False
        self._oneways_waiting = 0
        self._requests: deque[RemotingCommand] = deque()  # requests of the peer that are not handled yet
        self._unread_answers = 0  # largest possible number of answer bytes that the peer has not read
        self._held_back = False  # True while reading is paused until all received bytes are handled
        self._turn: asyncio.Handle | None = None  # the scheduled call that will handle the remaining bytes

    @property
    def lost(self) -> bool:
        return self._transport is None

    # Methods that the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNREAD_REPORTED)
        self._idle = self._loop.call_later(self._client._idle_s, self._check_idle)

    def data_received(self, data: bytes) -> None:
        broken = None
        for event in self._session.receive(data, unasked_max=UNASKED_MAX):
            if isinstance(event, Response):
                self.moved_at = self._loop.time()
                future = self._futures.pop(event.opaque)
                if not future.done():
                    future.set_result(event.command)
            elif isinstance(event, PeerRequest):
                self._requests.append(event.command)
            else:
                broken = event.error
        self._serve()
        if broken is not None:
            log.warning("bad frame peer=%s reason=%s", self.addr, broken)
            self.abort()

    def _serve(self) -> None:
        """Handle the peer's requests up to the limits; pause reading until all received bytes are handled."""
        requests = self._requests
        while requests and self._may_serve():
            self._client._serve(self, requests.popleft())
        held_back = bool(requests) or self._session.more
        if held_back is not self._held_back:
            self._held_back = held_back
            transport = self._transport
            if transport is not None and not transport.is_closing():
                if held_back:
                    transport.pause_reading()
                else:
                    transport.resume_reading()
        if not self._paused or self._may_serve():
            self.continue_soon()

    def _may_serve(self) -> bool:
        transport = self._transport
        may_answer = transport is not None and not transport.is_closing()
        return may_answer and self.served < SERVED_MAX and self._unread() <= _UNREAD_PAUSE

    def _unread(self) -> int:
        """Return an upper bound of the bytes of answers that the peer has not read."""
        if self._unread_answers and self._transport is not None:
            # The write buffer may also contain this client's own requests, so it may be larger than the
            # unread answers.
            self._unread_answers = min(self._unread_answers, self._transport.get_write_buffer_size())
        return self._unread_answers

    def continue_soon(self) -> None:
        """Handle the remaining bytes, if there are any, in the next iteration of the event loop."""
        if self._held_back and self._turn is None and self.served < SERVED_MAX:
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        if self._transport is None or self._transport.is_closing():
            return
        if self._requests:
            self._serve()
        else:
            self.data_received(b"")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._oneways_waiting = 0
        self.continue_soon()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._requests.clear()
        for timer in (self._timer, self._idle, self._turn):
            if timer is not None:
                timer.cancel()
        self._client._lost(self)
        cause = f": {error}" if error is not None else ""
        for opaque in self._session.lost():
            future = self._futures.pop(opaque)
            if not future.done():
                future.set_exception(ConnectionLost(f"connection to {self.addr} was lost{cause}", sent=True))

    # Methods that the client calls

    def begin(self, request: RemotingCommand, deadline: float) -> tuple[int, asyncio.Future[RemotingCommand]]:
        """Send a request; return its opaque, for :meth:`forget`, and the future of its answer."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLost(f"connection to {self.addr} was lost", sent=False)
        now = self._loop.time()
        opaque, frame = self._session.start(request, now=now, timeout_s=deadline - now)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._futures[opaque] = future
        self.moved_at = now
        transport.write(frame)
        if deadline < self._timer_at:
            self._schedule()
        return opaque, future

    def forget(self, opaque: int) -> None:
        """Forget a request whose caller no longer waits for the answer."""
        self._session.forget(opaque)
        self._futures.pop(opaque, None)

    def oneway(self, request: RemotingCommand) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLost(f"connection to {self.addr} was lost", sent=False)
        if self._paused:
            if self._oneways_waiting >= ONEWAY_MAX:
                raise TooManyRequests(f"{self.addr} does not read, {self._oneways_waiting} requests wait")
            self._oneways_waiting += 1
        frame = self._session.oneway(request)
        self.moved_at = self._loop.time()
        transport.write(frame)

    def answer(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        transport = self._transport
        if answer is None or request.is_oneway or transport is None or transport.is_closing():
            return
        unread = self._unread()
        if unread > UNREAD_MAX:
            log.warning("peer does not read peer=%s unread=%s", self.addr, unread)
            self.abort()
            return
        frame = answer.encode()
        transport.write(frame)
        self._unread_answers += len(frame)

    def abort(self) -> None:
        # Remove this connection now. Otherwise the client could use it until the loop reports its end.
        self._client._lost(self)
        if self._transport is not None:
            self._transport.abort()

    # Timers

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        deadline = self._session.next_deadline()
        if deadline is not None:
            self._timer, self._timer_at = self._loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        expired = self._session.expire(self._loop.time())
        for opaque in expired:
            future = self._futures.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeout(f"{self.addr} gave no answer within the deadline"))
        if expired:
            self.abort()  # a peer without answers may be dead, so close its connection, as Java does
        else:
            self._schedule()

    def _check_idle(self) -> None:
        left = self.moved_at + self._client._idle_s - self._loop.time()
        if left <= 0 and not self._session.outstanding:
            log.debug("connection idle peer=%s", self.addr)
            self.abort()
        else:
            self._idle = self._loop.call_later(max(left, 1.0), self._check_idle)


def _failed(request: RemotingCommand, error: Exception) -> RemotingCommand:
    if not isinstance(error, RemotingError):
        log.error("handler of a peer's request failed code=%s", request.code, exc_info=error)
    return request.failed(error)
