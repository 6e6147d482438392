"""HTTP connections of one port, with limits on their number, on their time, and on their unread answers.

A connection is in one of three states:

- *Begun*: no byte of a request has arrived, or only a part of its header. A connection that this module
  closes is in this state, too, until its peer has read all bytes.
- *Served*: a handler works on a request. A blocking query takes up to a minute.
- *Kept*: the last request is answered, and no byte of the next request has arrived.

The number of connections is limited. If a new connection would exceed the limit, this module makes room in
this order:

- It closes the connection that has been *begun* for longest.
- If no connection is *begun*, it closes the connection that has been *kept* for longest.
- If all connections are *served*, it accepts a few more connections, called the reserve. On these
  connections, it answers only requests for health and metrics.

A header must be complete within :data:`HEADER_S` seconds. It has at most :data:`HEADER_MAX` bytes. While a
request is served, aiohttp parses no further request of the connection. This module holds the bytes of further
requests. The number of these bytes is limited for each connection and in total.

If many requests arrive at once, their handlers begin in the order of arrival. In each iteration of the event
loop, only a few of them begin (:mod:`routekeeper.remoting.http.gate`).

Answers that peers have not read yet are limited, for each connection and in total. If the total limit is
exceeded, this module chooses the host with most unread bytes. Of this host's connections, it closes the
connection whose peer has read nothing for the longest time. A connection is also closed if its peer reads
nothing of its answer for :data:`STALLED_S` seconds.

With TLS, the time for the first header includes the handshake. Handshakes run in short time slices
(:mod:`routekeeper.remoting.transport.turns`), so that many handshakes at once delay other work only a little.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections import Counter
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol, cast

from aiohttp import HttpVersion11, StreamReader, web

from routekeeper.remoting.addresses import network_of
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.transport.accepting import stop_accepting
from routekeeper.remoting.transport.lookups import hosts_to_listen_on
from routekeeper.remoting.transport.secured import PortContext, Secured, TlsPort

from .gate import Gate

log = logging.getLogger(__name__)

#: Maximum number of connections.
CONNECTIONS_MAX: Final = 2_048
#: Maximum number of further connections that are accepted while all connections are being served.
RESERVE: Final = 64
#: Longest time in seconds from the first byte of a request, or from the start of the connection, to the end
#: of the request's header. A client whose header is refused has as long to read the answers.
HEADER_S: Final = 5.0
#: Largest header of a request in bytes, with the request line. A longer header is answered with status 431.
#: Node.js has the same limit. Browsers and proxies mostly send less than 2 KiB.
HEADER_MAX: Final = 16 * 1024
#: Number of bytes of further requests that a connection may send while its request is served. Above this
#: number, this process reads nothing more from the connection until the request is answered.
AHEAD_MAX: Final = 16 * 1024
#: Largest number of bytes of further requests that wait on all connections together.
AHEAD_ALL_MAX: Final = 32 << 20
#: Largest number of requests of one connection that aiohttp has parsed and not answered. One packet that ends
#: a request's body may contain several further requests; aiohttp parses them together.
PARSED_MAX: Final = 8
#: End of a request's header. aiohttp also accepts lines that end without a carriage return.
_HEADER_END: Final = re.compile(rb"\n\r?\n")
_TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
#: Seconds after which a connection is closed if no further request arrives on it.
KEPT_S: Final = 75.0
#: Seconds without traffic after which a connection is closed in any state; longer than any blocking query.
IDLE_S: Final = 120.0
#: Limits of unread answers in bytes: of one connection, and of all connections together.
UNREAD_MAX: Final = 64 << 20
UNREAD_ALL_MAX: Final = 128 << 20
#: Seconds after which a connection is closed if its peer reads nothing of its answer.
STALLED_S: Final = 10.0
#: Time of aiohttp's own timer for kept connections, in seconds. The value is so large that the timer never
#: fires. Otherwise the timer would close connections in use, because aiohttp does not see the requests that a
#: :class:`Shortcut` answers.
_NEVER_S: Final = 365 * 24 * 3600.0
#: Largest number of bytes of an unread answer that the kernel holds. This process holds further bytes, up to
#: :data:`UNREAD_MAX`.
_KERNEL_BUFFER: Final = 64 << 10
#: Size in bytes of the largest request that is stored for a :class:`Shortcut`. Real requests have a few
#: hundred bytes.
REQUEST_MAX: Final = 2_048
#: Names of request headers. After a request that has such a header, the following bytes may be something
#: other than the next request. So the following bytes are not passed to a :class:`Shortcut`.
_NOT_PLAIN: Final = frozenset({"Content-Length", "Transfer-Encoding", "Upgrade", "Expect"})


class Shortcut(Protocol):
    """Server of requests whose bytes it recognizes, so that aiohttp does not have to parse them."""

    def take(self, connection: HttpConnection, data: bytes) -> Held | None:
        """Serve the request in ``data`` if this server recognizes it; return None if aiohttp must serve it.

        The caller guarantees that no other request is in progress on the connection, and that its peer has
        read all earlier answers.
        """


class Held(Protocol):
    """A request that a :class:`Shortcut` has accepted but not yet answered."""

    waits_until: float
    """Loop time in seconds until which the request may wait for its answer."""

    def release(self) -> bytes:
        """Forget the request and return its bytes.

        This method is called if aiohttp must serve the request, or if the connection is closed.
        """


@dataclass(eq=False)
class HttpConnections:
    """Acceptor of one port's connections; it also enforces their limits. All code runs on one event loop.

    Args:
        runner: Runner of the application; it must be set up before :meth:`accept`.
        logger: Logger for input that cannot be read.
        tls: Certificates; None if the port has no TLS.
        shortcut: Serves some requests without aiohttp. It is not used on reserve connections, which are
            accepted while all other connections are being served.
    """

    runner: web.AppRunner
    logger: logging.Logger
    _: KW_ONLY
    connections_max: int = CONNECTIONS_MAX
    reserve: int = RESERVE
    header_s: float = HEADER_S
    kept_s: float = KEPT_S
    idle_s: float = IDLE_S
    unread_max: int = UNREAD_MAX
    unread_all_max: int = UNREAD_ALL_MAX
    ahead_all_max: int = AHEAD_ALL_MAX
    stalled_s: float = STALLED_S
    tls: PortContext | None = None
    shortcut: Shortcut | None = None

    def __post_init__(self) -> None:
        self.open: set[HttpConnection] = set()
        # Connections in the states *begun* and *kept*; a connection in neither dict is being served. The
        # first connection in a dict has been in this state for longest.
        self.begun: dict[HttpConnection, None] = {}
        self.kept: dict[HttpConnection, None] = {}
        # Unread bytes of each connection. The first entry is the connection that has not read for longest.
        self._unread: dict[HttpConnection, int] = {}
        self.ahead_bytes = 0  # bytes that wait, on all connections, behind requests in progress
        self._listener: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._full = False
        self._tls_port: TlsPort | None = None
        self._lines = LimitedLog(log, time.monotonic)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind the port and begin to accept connections; return the bound host and port.

        Raises:
            OSError: If the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        if self.tls is not None:
            self._tls_port = TlsPort(self.tls, say=self._tls_failed, handshake_s=self.header_s)
        self._listener = await loop.create_server(
            self.accept, await hosts_to_listen_on(host), port, backlog=1024
        )
        self.start()
        bound, bound_port, *_ = self._listener.sockets[0].getsockname()
        return bound, bound_port

    def take_tls(self, context: PortContext) -> None:
        """Use newer certificates for all connections that are accepted from now on."""
        if self._tls_port is not None:
            self._tls_port.current = context

    def _tls_failed(self, connection: Secured, reason: str) -> None:
        self._lines.write(
            logging.WARNING,
            network_of(connection.host),
            "http tls failed peer=%s reason=%s",
            connection.peer,
            reason,
        )

    def start(self) -> None:
        """Close connections that have exceeded their time; repeat this at an interval until :meth:`close`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.begun and (oldest := next(iter(self.begun))).since <= now - self.header_s:
            oldest.end()
        while self.kept and (oldest := next(iter(self.kept))).since <= now - self.kept_s:
            # The peer still reads the answer. The checks below close the connection if the peer reads too
            # slowly.
            if oldest.unread_bytes():
                oldest.enter(self.kept)
            else:
                oldest.leave()
        for connection in [one for one in self.open if one.moved_at < now - self.idle_s]:
            connection.end()
        self._recount()
        for connection in [one for one in self._unread if one.read_at < now - self.stalled_s]:
            self._cut(connection, f"it has read nothing of its answer for {self.stalled_s:g} s")
        self._sweep = loop.call_later(min(self.header_s, self.idle_s, self.stalled_s) / 4, self.start)

    async def close(self) -> None:
        """Stop accepting connections, and stop the checks of limits."""
        if self._listener is not None:
            await stop_accepting(self._listener)
        if self._sweep is not None:
            self._sweep.cancel()

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of a connection that was just accepted."""
        reserved = False
        if len(self.open) < self.connections_max:
            self._full = False
        else:
            if not self._full:  # log only the first of several connections above the limit
                log.warning("http connections are all taken open=%d", len(self.open))
            self._full = True
            longest = next(iter(self.begun or self.kept), None)
            if longest is not None:
                longest.end()
            elif len(self.open) < self.connections_max + self.reserve:
                reserved = True
            else:
                return _Refusal()
        assert self.runner.server is not None
        connection = HttpConnection(self.runner.server, self, reserved=reserved)
        return connection if self._tls_port is None else Secured(self._tls_port, connection)

    def unread(self, connection: HttpConnection) -> None:
        """Record that a peer has not read the bytes that were just written, and enforce the limits."""
        connection.read_at = asyncio.get_running_loop().time()
        size = self._unread[connection] = connection.unread_bytes()
        if size > self.unread_max:
            self._cut(connection, f"{size} bytes of its answer are unread, allowed are {self.unread_max}")
        if sum(self._unread.values()) <= self.unread_all_max:
            return
        self._recount()
        while (total := sum(self._unread.values())) > self.unread_all_max:
            by_host: Counter[str] = Counter()
            for one, held in self._unread.items():
                by_host[network_of(one.host)] += held
            (most, _), *_ = by_host.most_common(1)
            slowest = next(one for one in self._unread if network_of(one.host) == most)
            self._cut(slowest, f"{total} bytes of answers are unread, allowed are {self.unread_all_max}")

    def read(self, connection: HttpConnection) -> None:
        """Record that a peer has read its whole answer, or that its connection is closed."""
        self._unread.pop(connection, None)

    def _recount(self) -> None:
        """Update the unread bytes of each peer that has read a part of its answer since the last call."""
        now = asyncio.get_running_loop().time()
        for connection, size in list(self._unread.items()):
            left = connection.unread_bytes()
            if left < size:
                connection.read_at = now
                del self._unread[connection]
                self._unread[connection] = left

    def _cut(self, connection: HttpConnection, reason: str) -> None:
        log.warning("http connection cut off host=%s reason=%s", connection.host, reason)
        connection.end()

    def came_ahead(self, connection: HttpConnection, parsed: int) -> None:
        """Check the limits of requests that arrived before earlier requests were answered.

        Args:
            parsed: Number of requests of the connection that aiohttp has parsed and not answered.
        """
        if parsed > PARSED_MAX:
            self._cut(connection, f"it has sent {parsed} requests without answers, allowed are {PARSED_MAX}")
        elif self.ahead_bytes > self.ahead_all_max:
            held = self.ahead_bytes
            self._cut(connection, f"{held} bytes of requests wait, allowed are {self.ahead_all_max}")

    def refuse_header(self, connection: HttpConnection) -> None:
        """Answer that a header is too long, and close the connection."""
        self._lines.write(
            logging.WARNING,
            network_of(connection.host),
            "http request refused host=%s reason=%s",
            connection.host,
            f"its header has no end within {HEADER_MAX} bytes",
        )
        if connection.transport is not None:
            connection.transport.write(_TOO_LONG)
        connection.leave()

    async def begin(self, connection: web.RequestHandler, gate: Gate) -> None:
        """Wait until the handler of a connection's request may begin.

        Raises:
            ConnectionResetError: If the connection was lost while the request waited.
        """
        place = gate.enter()
        if place is None:
            return
        try:
            if isinstance(connection, HttpConnection):
                if connection.transport is None:
                    raise ConnectionResetError("the client has closed its connection")
                connection.place = place
            await place
        finally:
            gate.leave(place)
            if isinstance(connection, HttpConnection):
                connection.place = None

    def serve(self, connection: web.RequestHandler) -> bool:
        """Record that a handler begins to work on a connection's request.

        Returns:
            False if the connection was accepted above the limit of connections. Then the handler may answer
            only requests for health and metrics.
        """
        # The connection may have been lost since aiohttp read the request. Then nobody gets an answer, and no
        # limit applies.
        if not isinstance(connection, HttpConnection) or connection not in self.open:
            return True
        connection.enter(None)
        connection.more_came, connection.more_behind = connection.more_behind, False
        return not connection.reserved

    def went_on(self, connection: web.RequestHandler) -> None:
        """Record that the peer reads a long answer, so that its connection does not count as idle."""
        if isinstance(connection, HttpConnection) and not connection.unread_bytes():
            connection.moved_at = asyncio.get_running_loop().time()

    def served(self, connection: web.RequestHandler) -> None:
        """Record that a connection's request was answered."""
        if isinstance(connection, HttpConnection) and connection in self.open:
            connection.enter(self.begun if connection.more_came else self.kept)


class HttpConnection(web.RequestHandler):
    """One connection: reads its requests, writes the answers, and keeps its state.

    Attributes:
        reserved: True if the connection was accepted above the limit of connections.
        since: Loop time in seconds at which the connection's present state began.
        moved_at: Loop time in seconds of the last traffic. Traffic means that bytes arrived, or that the peer
            has read enough of a long answer to make room for more.
        read_at: Loop time in seconds at which the peer last read a part of its answer. It is measured only
            while the write buffer is full.
        host: Address of the peer without its port.
        more_came: True if bytes arrived while its request was served.
        more_behind: True if more bytes arrived while a shortcut held a request. aiohttp then gets the request
            and the later bytes.
        request_bytes: The last request, if it came in one piece of at most :data:`REQUEST_MAX`; else empty.
        known: Data of the :class:`Shortcut`: this connection's last request that the shortcut can serve.
        waits_until: Loop time until which the present request may wait, if a shortcut held it before; else
            None.
        place: Future of the present request in a :class:`Gate`; None if the request does not wait there.
    """

    def __init__(self, server: web.Server, connections: HttpConnections, *, reserved: bool) -> None:
        loop, logger = asyncio.get_running_loop(), connections.logger
        super().__init__(server, loop=loop, keepalive_timeout=_NEVER_S, access_log=None, logger=logger)  # type: ignore[arg-type]  # None is off
        self._connections = connections
        self.reserved = reserved
        self.since = self.moved_at = self.read_at = self._loop.time()
        self.host = ""
        self.more_came = self.more_behind = False
        self.request_bytes = b""
        self.known: Any = None
        self.waits_until: float | None = None
        self._is_idle = True  # aiohttp has no unfinished request and no unfinished answer
        self._held: Held | None = None
        self.place: asyncio.Future[None] | None = None
        self._header = 0  # bytes of an incomplete header that aiohttp has
        # The transport until the connection is lost. aiohttp sets its own reference to None when it closes
        # the transport. But the socket stays open until the peer has read all bytes, so limits still apply.
        self._wire: asyncio.Transport | None = None
        self._answered = 0  # answered requests; aiohttp's ``_request_count`` counts parsed requests
        self._body: StreamReader | None = None  # body of the last parsed request
        # Bytes that must not be passed to aiohttp yet: further requests, or a body that its handler reads
        # slowly.
        self._ahead = b""

    def unread_bytes(self) -> int:
        """Return the number of written bytes that the peer has not read yet."""
        return 0 if self._wire is None else self._wire.get_write_buffer_size()

    def enter(self, others: dict[HttpConnection, None] | None) -> None:
        """Move the connection to another state.

        Args:
            others: The connections in the new state; None if the new state is *served*.
        """
        self._leave()
        self.since = self._loop.time()
        self.more_came = False
        if others is not None:
            others[self] = None

    def end(self) -> None:
        """Close the connection at once; bytes that are not sent yet are lost."""
        self._forget()
        if self._wire is not None:
            self._wire.abort()

    def leave(self) -> None:
        """Close the connection after its peer has read all written bytes; until then it counts as *begun*."""
        self.enter(self._connections.begun)
        self.force_close()

    def answer(self, answer: bytes) -> None:
        """Send the complete answer to the request that a shortcut holds."""
        self._held = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(answer)
            self.enter(self._connections.kept)

    def hand_over(self, data: bytes, *, waits_until: float) -> None:
        """Let aiohttp serve the request that a shortcut held."""
        self._held = None
        self.waits_until = waits_until
        self._read(data)

    def _read(self, data: bytes) -> None:
        self.request_bytes = data if self._is_idle and len(data) <= REQUEST_MAX else b""
        self._is_idle = False
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Pass bytes to aiohttp, but hold the bytes behind a request until that request is answered.

        aiohttp gets the bytes in pieces. A piece ends where a header ends, so that aiohttp does not parse the
        next request at the same time.
        """
        if self._ahead:
            self._connections.ahead_bytes -= len(self._ahead)
            data, self._ahead = self._ahead + data, b""
        while data and not self._force_close and self in self._connections.open:
            parsed = self._request_count
            in_body = self._body is not None and not self._body.is_eof()
            # aiohttp pauses the reading while a handler has much of a body unread. More bytes would then make
            # aiohttp's parser decompress the whole body into memory.
            if self._reading_paused or (parsed > self._answered and not in_body):
                self._hold(data)
                return
            end = None
            if in_body:
                size = AHEAD_MAX
            else:
                if not self._header and not (data := data.lstrip(b"\r\n")):
                    return
                size = HEADER_MAX - self._header
                if (end := _HEADER_END.search(data, 0, size)) is not None:
                    size = end.end()
            piece, data = data[:size], data[size:]
            super().data_received(piece)
            if self._request_count > parsed:
                # If the piece did not end where a header ends, aiohttp may have the beginning of the next
                # request's header, too.
                self._header, self._body = int(end is None), self._messages[-1][1]
                self._connections.came_ahead(self, self._request_count - self._answered)
            elif in_body:
                self._header = int(self._body is not None and self._body.is_eof())
            else:
                self._header += len(piece)
                if self._header >= HEADER_MAX:
                    self._connections.refuse_header(self)
                    return

    def _hold(self, data: bytes) -> None:
        self._ahead += data
        self._connections.ahead_bytes += len(data)
        if len(self._ahead) > AHEAD_MAX and self.transport is not None:
            with contextlib.suppress(RuntimeError):  # the transport is closing
                self.transport.pause_reading()
        self._connections.came_ahead(self, self._request_count - self._answered)

    def _go_on(self) -> None:
        """Pass to aiohttp as many of the held bytes as it may parse now."""
        held = len(self._ahead)
        self._feed(b"")
        resumes = len(self._ahead) <= AHEAD_MAX < held and not self._reading_paused
        if resumes and self.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.transport.resume_reading()

    def _leave(self) -> None:
        self._connections.begun.pop(self, None)
        self._connections.kept.pop(self, None)

    def _forget(self) -> None:
        self._leave()
        self._connections.read(self)
        self._connections.open.discard(self)
        self._connections.ahead_bytes -= len(self._ahead)
        self._ahead = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if name else ""
        if (opened := transport.get_extra_info("socket")) is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
        self._wire = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from asyncio's
        self._connections.open.add(self)
        self.enter(self._connections.begun)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp calls this method without data when it continues after a pause
            super().data_received(data)
            if self._ahead:
                self._go_on()
            return
        self.moved_at = self._loop.time()
        if self in self._connections.kept:
            self.enter(self._connections.begun)
        elif self not in self._connections.begun:
            self.more_came = True
        shortcut = self._connections.shortcut
        if self._held is not None:
            self.waits_until = self._held.waits_until
            data = self._held.release() + data
            self._held = None
            # ``data`` contains the held request and at least a part of the next request.
            self._is_idle, self.more_behind = False, True
        elif shortcut is not None and self._is_idle and not self.reserved and not self.unread_bytes():
            self._held = shortcut.take(self, data)
            if self._held is not None:
                self.enter(None)
                return
        self._read(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, then free its body; aiohttp would hold the body until the next request.

        Close the connection instead if the client has the beginning of another answer, for example the first
        events of a watch. The client would take a second answer for a part of the first answer.
        """
        if request.writer.output_size and not resp.prepared:
            self.end()
        sent, reset = await super().finish_response(request, resp, start_time)
        if isinstance(sent, web.Response):
            sent.body = None
        self.waits_until = None
        self._answered += 1
        if self._answered == self._request_count and self._body is not None and self._body.is_eof():
            self._body = None
        self._is_idle = not reset and _is_one_request(request, self.request_bytes)
        if self._ahead:
            self._go_on()
        return sent, reset

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.unread(self)

    def resume_writing(self) -> None:
        self.moved_at = self._loop.time()  # a slow download must not count as an idle connection
        self._connections.read(self)
        super().resume_writing()

    def connection_lost(self, error: BaseException | None) -> None:
        self._wire = None
        self._forget()
        if self._held is not None:
            self._held.release()
            self._held = None
        if self.place is not None and not self.place.done():
            self.place.set_exception(ConnectionResetError("the client has closed its connection"))
        super().connection_lost(error)


def _is_one_request(request: web.BaseRequest, data: bytes) -> bool:
    """Return True if ``data`` was exactly one request without a body.

    In this case, aiohttp waits for the beginning of a new request.
    """
    return (
        data.endswith(b"\r\n\r\n")
        and data.count(b"\r\n\r\n") == 1
        # A second request whose line ends are not CRLF would pass the checks above.
        and data.count(b"HTTP/") == 1
        and request.version == HttpVersion11
        and request.keep_alive
        and not request.body_exists
        and not any(name in request.headers for name in _NOT_PLAIN)
    )


class _Refusal(asyncio.Protocol):
    """Protocol that closes a new connection at once, because the port has too many connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class _OneLine(logging.Filter):
    """Filter that turns aiohttp's report of unreadable input into one clear line without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = " ".join(str(error).split())[:200]
            record.msg, record.args = "bad http request error=%s", (f"{type(error).__name__}: {text}",)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return record.levelno >= logging.INFO


def protocol_log(name: str) -> logging.Logger:
    """Return a logger for aiohttp that writes one line for each unreadable input."""
    found = logging.getLogger(name)
    if not found.filters:
        found.addFilter(_OneLine())
        found.setLevel(logging.DEBUG)  # at higher levels, aiohttp omits some reports of unreadable input
    return found
