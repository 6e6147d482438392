"""HTTP for machines that look after a broker: ``/metrics``, ``/healthz`` and ``/readyz``, read-only.

Connections are few and short: each answers what came within seconds and is closed then, so that who holds
them open, or sends half a request, holds up nobody for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aiohttp import web

from routekeeper.remoting.addresses import is_loopback, join_address

logger = logging.getLogger(__name__)

#: Connections at a time; more are closed at once.
CONNECTIONS_MAX: Final = 64
#: Longest life of a connection in seconds.
LIFE_S: Final = 10.0


class HttpServer:
    """Serves one port.

    Args:
        metrics: Makes the text of ``/metrics``.
        refusing: Returns why the disk does not take messages or tables now; None if it does.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], Awaitable[bytes]],
        refusing: Callable[[], str | None],
        connections_max: int = CONNECTIONS_MAX,
        life_s: float = LIFE_S,
    ) -> None:
        self._metrics = metrics
        self._refusing = refusing
        self.connections_max = connections_max
        self.life_s = life_s
        self.connections: set[_Connection] = set()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._on_loopback = False
        self._gathering = asyncio.Lock()

    async def start(self, host: str, port: int) -> str:
        """Bind and serve; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        application = web.Application(middlewares=[self._wrap], client_max_size=1024)
        application.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = runner = web.AppRunner(application, access_log=None, logger=_quiet_log())
        await runner.setup()
        assert runner.server is not None
        make = runner.server
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Connection(self, make()), host, port)
        bound, bound_port, *_ = self._listener.sockets[0].getsockname()
        self._on_loopback = is_loopback(bound)
        return join_address(bound, bound_port)

    async def close(self) -> None:
        """Close all at once: nothing here is worth waiting for."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self.connections):
            connection.end()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _wrap(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # A page whose name its owner points at 127.0.0.1 sends that name: it must not read a loopback port.
        host = request.headers.get("Host")
        if self._on_loopback and host is not None and not _names_loopback(host):
            response: web.StreamResponse = web.Response(status=421, text="not served under this name\n")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        response.headers["Server"] = "mqbroker"
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        async with self._gathering:  # one at a time, however many ask
            body = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._refusing()
        if reason is None:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"not ready: {reason}\n")


class _Connection(asyncio.Protocol):
    """Stands before aiohttp's protocol and ends the connection in time."""

    def __init__(self, server: HttpServer, inner: asyncio.Protocol) -> None:
        self._server = server
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._life: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if len(self._server.connections) >= self._server.connections_max:
            self._transport.abort()
            return
        self._server.connections.add(self)
        self._life = asyncio.get_running_loop().call_later(self._server.life_s, self.end)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._life is not None:
            self._life.cancel()
        self._inner.connection_lost(error)


def _names_loopback(host: str) -> bool:
    """Say whether a ``Host`` (name, name:port, [v6]:port) is written as loopback; nothing is resolved."""
    name, _, port = host.rpartition(":")
    name = (name if name and port.isdecimal() else host).strip("[]").lower().rstrip(".")
    return is_loopback(name)


class _OneLine(logging.Filter):
    """Turns aiohttp's report of unreadable input into one line without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            text = " ".join(str(record.exc_info[1]).split())[:200]
            record.msg, record.args = "bad http request error=%s", (text,)
            record.exc_info = record.exc_text = None
        return record.levelno >= logging.INFO


def _quiet_log() -> logging.Logger:
    log = logging.getLogger(f"{__name__}.protocol")
    if not log.filters:
        log.addFilter(_OneLine())
    return log
