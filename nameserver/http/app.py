"""The nameserver's HTTP server: reads, metrics, administration, and the web page of the console.

Answers are JSON. The body of an error answer is a problem details object (RFC 9457). Every answer with data
from the route table also contains:

- the mode, independent or raft;
- the index: the table's revision that last changed the requested data;
- the epoch, within which indexes may be compared;
- whether a leader is known;
- how long ago this nameserver was last in contact with a majority of its raft group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Final

import msgspec
from aiohttp import web

from routekeeper.nameserver.modes.interface import Consistency, Freshness
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.addresses import host_port, is_loopback
from routekeeper.remoting.http.gate import Gate
from routekeeper.remoting.http.hosts import AllowedHosts
from routekeeper.remoting.http.listener import RESERVE, HttpConnection, HttpConnections, protocol_log
from routekeeper.remoting.steps import finish
from routekeeper.remoting.transport.descriptors import http_connections
from routekeeper.remoting.transport.port_context import watched_http

from . import answers
from .admin import RaftAdmin
from .coding import GZIP_STEP, compressing_answer, is_to_compress
from .console.resources import Console
from .kv import KvChanges
from .lane import Lane
from .metrics import Metrics
from .openapi import TEXT, Answer, Serves, document, routes
from .problems import ASK_AGAIN, HEADERS, JSON, Problem, check_query, encodable
from .reads import Reads
from .token import Token
from .watchers import Watchers

log = logging.getLogger(__name__)

#: Seconds that requests in flight may take to end when the server stops.
DRAIN_S: Final = 1.0
#: Paths that the server answers even when all connections are in use.
ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
#: Paths that the server answers under any host name. Their answers contain no secrets, and load balancers
#: call them by IP address.
UNDER_ANY_NAME: Final = frozenset({"/healthz", "/readyz"})
#: Status in the metrics for a request whose client closed the connection before the answer. The server never
#: sends this status.
GONE: Final = 499
#: Content types of the page's files, by file ending.
_CONTENT_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(kw_only=True, eq=False)
class HttpServer:
    """The HTTP server of one nameserver; :meth:`start` binds its port.

    Args:
        token: Content of ``--http-token-file``; None refuses all changes over HTTP.
    """

    consistency: Consistency
    server: NameServer
    settings: LiveSettings
    version: str
    token: str | None = None

    def __post_init__(self) -> None:
        self.consistency.changes.begin(self.consistency.view(Freshness.STALE))
        self.lane = Lane()
        # Health checks have their own queue, so that load balancers need not wait behind other clients.
        self._gate, self._health_gate, self._short_gate = Gate(), Gate(), Gate()
        self._metrics = Metrics(self.consistency, self.server, version=self.version)
        # The loop time at which the server began to make the last text of /metrics, and this text.
        self._exposition = 0.0, b""
        self.reads = Reads(self.consistency, self.settings, self.lane, answered=self._metrics.answered)
        token = Token(self.token)
        self._admin = RaftAdmin(self.consistency, token=token)
        self._kv = KvChanges(self.consistency, self.settings, self.reads, token=token)
        self.console = Console(self.consistency, self.server, self.settings, self.lane, version=self.version)
        self._watchers = Watchers(
            self.consistency, self.reads, self.lane, self.console, went_on=self._went_on
        )
        self._page = page_files()
        self._runner = web.AppRunner(self.application())
        # This number depends on the limit of open files, which the RocketMQ listener has already raised.
        places = http_connections()
        reserve = min(RESERVE, places // 4)
        self._connections = HttpConnections(
            self._runner,
            protocol_log(f"{__name__}.protocol"),
            connections_max=places - reserve,
            reserve=reserve,
            shortcut=self.reads.waiting,
        )
        self.tls_files = watched_http(self.settings.current.http_tls(), self._connections.take_tls)
        if self.tls_files is not None:
            self._connections.tls = self.tls_files.value
            self.server.add_certificate("http", self.tls_files)
        self._hosts = AllowedHosts(loopback=False, named=())

    async def start(self, host: str, port: int) -> str:
        """Bind and serve; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        await self._runner.setup()
        if self.tls_files is not None:
            self.tls_files.watch()
        bound = await self._connections.listen(host, port)
        named = self.settings.current.http_allowed_hosts.split(",")
        self._hosts = AllowedHosts(loopback=is_loopback(bound[0]), named=named)
        return host_port(bound)

    async def close(self) -> None:
        """Stop accepting requests and close.

        Blocking queries get an answer. Other requests in flight get :data:`DRAIN_S` seconds to end.
        """
        if self.tls_files is not None:
            self.tls_files.close()
        await self._connections.close()
        self.reads.end()
        await self.console.close()
        if self._runner.server is not None:
            await self._runner.server.shutdown(DRAIN_S)
            await self._runner.cleanup()

    def application(self) -> web.Application:
        """Return the aiohttp application: all paths with their handlers, and the middleware."""
        application = web.Application(middlewares=[self._wrap], client_max_size=4096)
        for part in (self.reads, self._watchers, self.console, self._kv, self._admin, self):
            application.add_routes(routes(part))
        application.add_routes([web.get(path, self._file) for path in self._page])
        return application

    # -- middleware ----------------------------------------------------------------------------------

    @web.middleware
    async def _wrap(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[Answer]]
    ) -> web.StreamResponse:
        response: web.StreamResponse
        begun = time.perf_counter()
        peer = _peer(request)  # Read the address now: after a disconnect it is not available.
        try:
            has_place = self._connections.serve(request.protocol)
            is_health = request.path in UNDER_ANY_NAME
            await self._connections.begin(request.protocol, self._health_gate if is_health else self._gate)
            if not has_place and request.path not in ALWAYS:
                raise Problem(503, "all connections are taken", headers={**ASK_AGAIN, "Connection": "close"})
            host = request.headers.get("Host")
            if request.path not in UNDER_ANY_NAME and not self._hosts.allow(host):
                raise Problem(
                    421,
                    f"HTTP does not answer under the name {str(host)[:200]}; httpAllowedHosts can allow it",
                )
            if not _is_text(request.raw_path):
                raise Problem(400, "path and query must be UTF-8")
            answer = await handler(request)
            if isinstance(answer, msgspec.Struct):
                body = msgspec.json.encode(answer)
                answer = web.Response(body=body, content_type=JSON, headers=HEADERS)
            response = await self._coded(request, answer)
        except Problem as problem:
            response = problem.response(request.path)
        except web.HTTPException as error:
            response = _problem(error, request).response(request.path)
        except ConnectionError:  # The client has closed its connection, so this answer cannot be sent.
            response = web.Response(status=GONE, headers=HEADERS)
        except Exception:  # An error in one request must not end the server, so catch all errors here.
            log.exception("http request failed path=%s", request.path)
            response = Problem(500, "see the nameserver's log").response(request.path)
        finally:
            self._connections.served(request.protocol)
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        self._metrics.answered(path, response.status, time.perf_counter() - begun)
        if request.method not in ("GET", "HEAD"):
            result = "done" if response.status < 400 else f"refused({response.status})"
            result = {500: "unknown", 504: "unknown", GONE: "unknown", 507: "not-kept(507)"}.get(
                response.status, result
            )
            # The console shows these values as JSON, so they must be valid Unicode text.
            arguments = {name: encodable(value) for name, value in request.match_info.items()}
            self.server.audit.note(peer, f"{request.method} {path}", result, arguments)
        if not has_place:
            response.force_close()
        return response

    def _went_on(self, request: web.Request) -> None:
        self._connections.went_on(request.protocol)

    async def _coded(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Compress an answer above the size limit if the client accepts gzip.

        A short answer does not wait for the lane, where many lists may wait. Many blocking queries may end
        together, so their short answers pass a gate.
        """
        if not isinstance(answer, web.Response) or not is_to_compress(request, answer):
            return answer
        if isinstance(answer.body, bytes) and len(answer.body) <= GZIP_STEP:
            if request.path not in ALWAYS:
                await self._connections.begin(request.protocol, self._short_gate)
            return finish(compressing_answer(answer))
        try:
            return await self.lane.serve(compressing_answer(answer), request)
        except Problem:  # The lane is full, so send the answer without compression.
            return answer

    # -- about this process --------------------------------------------------------------------------

    @Serves("GET", "/v1/status", "The state.")
    async def get_status(self, request: web.Request) -> answers.Status:
        """Return the state of this nameserver in its group."""
        check_query(request, set())
        status, operations = self.consistency.status(), self.consistency.operations
        as_it_says = [name for name in answers.Status.__struct_fields__ if hasattr(status, name)]
        return answers.Status(
            **{name: getattr(status, name) for name in as_it_says},
            linked=(operations.raft_status().linked or ()) if operations else (),
            version=self.version,
            uptime_ms=round(self.server.uptime_s * 1000),
            connections=len(self.server.wire.connections),
        )

    @Serves("GET", "/v1/digest", "The digests.")
    async def get_digest(self, request: web.Request) -> answers.Digests:
        """Return digests of the table, to compare nameservers."""
        check_query(request, set())
        return msgspec.convert(self.consistency.status(), answers.Digests, from_attributes=True)

    @Serves("GET", "/healthz", "The process runs.", {}, answer=TEXT)
    async def get_health(self, request: web.Request) -> web.Response:
        """Answer ok while the process runs."""
        return web.Response(text="ok\n", headers=HEADERS)

    @Serves(
        "GET",
        "/readyz",
        "This nameserver can serve reads and writes.",
        {503: "This nameserver is not ready; detail says why."},
        answer=TEXT,
    )
    async def get_readiness(self, request: web.Request) -> web.Response:
        """Answer ready if this nameserver can serve reads and writes, otherwise status 503."""
        status = self.consistency.status()
        if status.reads_ready and status.writes_ready:
            return web.Response(text="ready\n", headers=HEADERS)
        kinds = (("reads", status.reads_ready), ("writes", status.writes_ready))
        what = " and ".join(kind for kind, is_ready in kinds if not is_ready)
        why = status.waiting_for or "no leader"
        detail = f"{what} cannot be served: {why}{self._hindrances(why)}"
        raise Problem(503, detail, headers=ASK_AGAIN)

    def _hindrances(self, why: str) -> str:
        """Return further reasons why reads or writes are not served, as text to append to ``why``."""
        operations = self.consistency.operations
        if operations is None:
            return ""
        status = operations.raft_status()
        words = "; this member's disk does not accept its journal" if status.storage_stalled else ""
        linked = {status.me, *(status.linked or ())}
        away = [name for name in status.members or () if name not in linked and name not in why]
        return f"{words}; no link to {', '.join(away)}" if away else words

    @Serves("GET", "/metrics", "The metrics in Prometheus's text format 0.0.4.", {}, answer=TEXT)
    async def get_metrics(self, request: web.Request) -> web.Response:
        """Return the metrics for Prometheus."""
        # A request may get the last text if that text was begun after the request arrived. So requests that
        # wait at the same time share one text.
        connection, (made_at, text) = request.protocol, self._exposition
        if not isinstance(connection, HttpConnection) or connection.since >= made_at:
            now, text = asyncio.get_running_loop().time(), self._metrics.exposition()
            self._exposition = now, text
        return web.Response(
            body=text,
            headers={**HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _file(self, request: web.Request) -> web.Response:
        body, content_type = self._page[request.path]
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    @Serves("GET", "/openapi.json", "The document.", {}, answer={JSON: {"schema": {"type": "object"}}})
    async def get_open_api(self, request: web.Request) -> web.Response:
        """Return this OpenAPI document."""
        return web.Response(body=document(), content_type=JSON, headers=HEADERS)


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and the content type of each file of the page, by path."""
    found: dict[str, tuple[bytes, str]] = {}

    def take(folder: Traversable, path: str) -> None:
        for file in folder.iterdir():
            if file.is_dir():
                take(file, f"{path}{file.name}/")
            elif (kind := _CONTENT_TYPES.get(PurePath(file.name).suffix)) is not None:
                found["/" if file.name == "index.html" else path + file.name] = file.read_bytes(), kind

    take(resources.files("routekeeper.nameserver.http").joinpath("web"), "/")
    return found


def _is_text(target: str) -> bool:
    """Return True if a request's target is valid UTF-8.

    aiohttp represents invalid bytes as lone surrogates. A handler might store such a text, and no later
    answer with this text could be encoded.
    """
    try:
        target.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem(error: web.HTTPException, request: web.Request) -> Problem:
    path = request.path[:200]
    if isinstance(error, web.HTTPNotFound):
        return Problem(404, f"nothing is served at {path}; see /openapi.json")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"{error.method} is not offered at {path}, only {allowed}"
        return Problem(405, detail, headers={"Allow": allowed})
    return Problem(error.status, error.text or error.reason)


def _peer(request: web.Request) -> str:
    """Return ``host:port`` of the connection's other side, which is the client or a proxy."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return host_port(name) if name else "unknown"
