"""HTTP server for monitoring programs: ``/metrics``, ``/healthz`` and ``/readyz``, read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from routekeeper.remoting.addresses import is_loopback, join_address
from routekeeper.remoting.http.hosts import AllowedHosts
from routekeeper.remoting.http.listener import HttpConnections, protocol_log
from routekeeper.remoting.tls_settings import PLAIN, PortTls
from routekeeper.remoting.transport.port_context import watched_http

#: Largest number of connections. Only a few monitoring programs need connections.
CONNECTIONS_MAX: Final = 64
#: Time in seconds that requests in flight have to finish when the broker stops.
_DRAIN_S: Final = 1.0


class HttpServer:
    """HTTP server of one port.

    Args:
        metrics: Function that returns the text of ``/metrics``.
        refusing: Function that returns the reason why the broker cannot store messages or tables on the disk
            now, or None if it can.
        given_up: Function that returns the start and end offset of each lost part of the commit log.
        tls: TLS settings of this port. The constructor reads the files that the settings name.

    Attributes:
        tls_files: TLS files of this port, or None if the port has no TLS.

    Raises:
        TlsSettingError: If the TLS files cannot be used.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], Awaitable[bytes]],
        refusing: Callable[[], str | None],
        given_up: Callable[[], Sequence[tuple[int, int]]] = tuple,
        connections_max: int = CONNECTIONS_MAX,
        tls: PortTls = PLAIN,
    ) -> None:
        self._metrics = metrics
        self._refusing = refusing
        self._given_up = given_up
        application = web.Application(middlewares=[self._wrap], client_max_size=1024)
        application.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(application)
        self._connections = HttpConnections(
            self._runner, protocol_log(f"{__name__}.protocol"), connections_max=connections_max
        )
        self.tls_files = watched_http(tls, self._connections.take_tls)
        if self.tls_files is not None:
            self._connections.tls = self.tls_files.value
        self._hosts = AllowedHosts(loopback=False, named=())
        self._gathering = asyncio.Lock()

    async def start(self, host: str, port: int) -> str:
        """Bind the address, begin to serve, and return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        await self._runner.setup()
        if self.tls_files is not None:
            self.tls_files.watch()
        bound, bound_port = await self._connections.listen(host, port)
        self._hosts = AllowedHosts(loopback=is_loopback(bound), named=())
        return join_address(bound, bound_port)

    async def close(self) -> None:
        """Stop accepting connections. Close each open connection after its requests, or after one second."""
        if self.tls_files is not None:
            self.tls_files.close()
        await self._connections.close()
        if self._runner.server is not None:
            await self._runner.server.shutdown(_DRAIN_S)
            await self._runner.cleanup()

    @web.middleware
    async def _wrap(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        has_place = self._connections.serve(request.protocol)
        try:
            if self._hosts.allow(request.headers.get("Host")):
                response = await handler(request)
            else:
                response = web.Response(status=421, text="not served under this name\n")
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=f"{error.reason}\n")
        finally:
            self._connections.served(request.protocol)
        response.headers["Server"] = "mqbroker"
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if not has_place:
            response.force_close()
        return response

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        async with self._gathering:  # the lock limits the work if many clients ask at once
            body = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self._refusing()
        if reason is not None:
            return web.Response(status=503, text=f"not ready: {reason}\n")
        holes = ", ".join(f"{begin} to {end}" for begin, end in self._given_up())
        return web.Response(text=f"ready; given up in the log: offsets {holes}\n" if holes else "ready\n")
