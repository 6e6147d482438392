"""The same over HTTP: reads for people, scripts and dashboards, metrics, administration, and a small page.

Answers are JSON; errors are problem details (RFC 9457). Every read of the table carries mode, index (revision
of what was read), whether a leader is known, and the age of the contact with the group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Final, cast

import msgspec
import orjson
from aiohttp import web

from nameserver.modes.explain import Explanation
from nameserver.modes.history import in_words
from nameserver.modes.interface import (
    Consistency,
    ConsistencyStatus,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from nameserver.routes.view import RouteView
from nameserver.settings.changes import LiveSettings
from nameserver.wire.server import NameServer
from remoting.route import RouteDialect, encode_route

from .admin import RaftAdmin
from .metrics import Samples, add_raft_figures, names_of
from .problems import HEADERS, JSON, Problem, check_query, json_answer

log = logging.getLogger(__name__)

#: Longest ``wait`` of a blocking query, in seconds.
WAIT_MAX_S: Final = 60.0
#: HTTP connections held at once; further ones are closed at once.
CONNECTIONS_MAX: Final = 2048
#: Silence after which an HTTP connection is closed; longer than any wait.
IDLE_S: Final = 120.0
#: Longest time in seconds that a read waits for its freshness; a default one gives up earlier.
READ_WITHIN_S: Final = 2.45
_WAIT: Final = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)s?")
_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/openapi.json": ("openapi.json", JSON),
}


class HttpServer:
    """Serves HTTP from a mode and the wire's counters."""

    def __init__(
        self,
        *,
        consistency: Consistency,
        server: NameServer,
        settings: LiveSettings,
        version: str,
        token: str | None = None,
    ) -> None:
        """Make a server that is not bound.

        Args:
            token: Content of ``--http-token-file``; None leaves changes of the group off.
        """
        self._consistency = consistency
        self._server = server
        self._settings = settings
        self._version = version
        self._admin = RaftAdmin(consistency, token=token)
        self._started_at_s = time.time()
        self._requests: dict[tuple[str, int], int] = {}
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._connections: set[_Guard] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._full = False

    async def start(self, host: str, port: int) -> str:
        """Bind and serve; return the bound ``host:port``.

        Raises:
            OSError: If the address cannot be bound.
        """
        self._runner = web.AppRunner(
            self.application(), access_log=None, logger=_protocol_log(), keepalive_timeout=75.0
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, host, port, backlog=1024)
        self._sweep_idle(loop)
        name = self._listener.sockets[0].getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def close(self) -> None:
        """Stop accepting and close; requests in flight get a moment to end."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            assert self._runner.server is not None
            await self._runner.server.shutdown(1.0)
            await self._runner.cleanup()

    def application(self) -> web.Application:
        """Return the routes and what wraps them."""
        application = web.Application(middlewares=[self._wrap], client_max_size=4096)
        application.add_routes(
            [
                web.get("/v1/topics", self._topics),
                web.get("/v1/topics/{topic}/route", self._route),
                web.get("/v1/topics/{topic}/explain", self._explain),
                web.get("/v1/brokers", self._brokers),
                web.get("/v1/clusters", self._clusters),
                web.get("/v1/kv/{namespace}", self._kv),
                web.get("/v1/status", self._status),
                web.get("/v1/digest", self._digest),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                *self._admin.routes(),
                *(web.get(path, self._file) for path in _PAGE),
            ]
        )
        return application

    # -- connections ---------------------------------------------------------------------------------

    def _accept(self) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            if not self._full:  # one line per episode
                log.warning("http connections refused open=%s", len(self._connections))
            self._full = True
            return _Refusal()
        self._full = False
        return _Guard(cast(asyncio.Protocol, self._runner.server()), self._connections)

    def _sweep_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._connections):
            connection.close_if_silent(now - IDLE_S)
        self._sweep = loop.call_later(IDLE_S / 24, self._sweep_idle, loop)

    # -- around every request ------------------------------------------------------------------------

    @web.middleware
    async def _wrap(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = await handler(request)
        except Problem as problem:
            response = problem.response(request.path)
        except web.HTTPException as error:
            response = Problem(error.status, error.reason, _detail(error, request)).response(request.path)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        except Exception:  # the boundary of one request
            log.exception("http request failed path=%s", request.path)
            response = Problem(500, "Internal Server Error", "see the nameserver's log").response(
                request.path
            )
        resource_ = request.match_info.route.resource
        path = resource_.canonical if resource_ is not None else "other"
        key = (path, response.status)
        self._requests[key] = self._requests.get(key, 0) + 1
        return response

    # -- reads of the table --------------------------------------------------------------------------

    async def _view(self, request: web.Request) -> RouteView:
        """Return the view with the freshness asked for, waiting if that needs contact or a barrier."""
        check_query(request, {"consistency", "index", "wait"})
        word = request.query.get("consistency", Freshness.DEFAULT.value)
        try:
            freshness = Freshness(word)
        except ValueError:
            raise Problem(
                400, "Bad Request", f"consistency={word[:40]} is none of stale, default, linearizable"
            ) from None
        deadline = asyncio.get_running_loop().time() + READ_WITHIN_S
        try:
            return await self._consistency.await_view(freshness, deadline=deadline)
        except FreshnessNotOffered as error:
            raise Problem(400, "Bad Request", str(error)) from None
        except NoQuorum as error:
            raise Problem(
                503,
                "Service Unavailable",
                f"a read with consistency={word} cannot be answered now: {error}",
                retry_after_s=1,
            ) from None

    def _meta(self, index: int) -> dict[str, Any]:
        status = self._consistency.status()
        meta: dict[str, Any] = {
            "mode": status.mode,
            "index": index,
            "leader_known": status.role == "independent" or status.leader is not None,
            "last_contact_ms": status.last_contact_ms,
        }
        if status.role == "independent":
            meta["boot_id"] = status.boot_id  # indexes of two lives of a process must not be compared
        return meta

    async def _topics(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        return json_answer({**self._meta(view.revision), "topics": view.topics()})

    async def _route(self, request: web.Request) -> web.Response:
        topic = request.match_info["topic"]
        after, wait_s = _blocking(request)
        view = await self._view(request)
        if after is not None and view.topic_revision(topic) <= after:
            deadline = asyncio.get_running_loop().time() + wait_s
            await self._consistency.changed(topic, after, deadline=deadline)
            view = await self._view(request)
        settings = self._settings.current
        route = view.route(
            topic, acting_master=settings.support_acting_master, order_conf=settings.order_message_enable
        )
        if route is None:
            explanation = self._consistency.explain(topic)
            raise Problem(
                404,
                "Not Found",
                f"no route for topic {topic}: {explanation.summary}",
                index=view.topic_revision(topic),
                events=_events(explanation),
                likely_causes=list(explanation.likely_causes),
            )
        body = orjson.Fragment(encode_route(route, RouteDialect.QUOTED))
        return json_answer({**self._meta(view.topic_revision(topic)), "topic": topic, "route": body})

    async def _explain(self, request: web.Request) -> web.Response:
        topic = request.match_info["topic"]
        view = await self._view(request)
        explanation = self._consistency.explain(topic)
        return json_answer(
            {
                **self._meta(view.topic_revision(topic)),
                "topic": topic,
                "listed": explanation.listed,
                "summary": explanation.summary,
                "events": _events(explanation),
                "likely_causes": list(explanation.likely_causes),
            }
        )

    async def _brokers(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        brokers = [
            {
                "cluster": record.broker.cluster_name,
                "broker_name": record.broker_name,
                "broker_id": record.broker_id,
                "broker_addr": record.broker.broker_addr,
                "ha_server_addr": record.ha_server_addr,
                "data_version": record.data_version.to_json(),
                "complete": record.complete,
                "lease_ms": record.lease_ms,
                "topics": len(view.topics_of_name(record.broker_name)),
                "index": record.revision,
            }
            for record in sorted(view.records(), key=lambda record: record.broker)
        ]
        return json_answer({**self._meta(view.revision), "brokers": brokers})

    async def _clusters(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        info = view.cluster_info()
        clusters = [
            {
                "cluster": cluster,
                "brokers": [
                    {
                        "broker_name": name,
                        "addresses": {
                            str(i): addr
                            for i, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
                        },
                    }
                    for name in names
                ],
            }
            for cluster, names in info.cluster_addr_table.items()
        ]
        return json_answer({**self._meta(view.revision), "clusters": clusters})

    async def _kv(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        view = await self._view(request)
        table = view.kv(namespace)
        if table is None:
            raise Problem(404, "Not Found", f"no KV namespace {namespace}")
        return json_answer({**self._meta(view.revision), "namespace": namespace, "table": dict(table)})

    # -- about this process --------------------------------------------------------------------------

    async def _status(self, request: web.Request) -> web.Response:
        check_query(request, set())
        status, operations = self._consistency.status(), self._consistency.operations
        return json_answer(
            {
                "mode": status.mode,
                "role": status.role,
                "term": status.term,
                "commit_index": status.commit_index,
                "applied_index": status.applied_index,
                "leader": status.leader,
                "last_contact_ms": status.last_contact_ms,
                "members": list(status.members),
                "linked": list(names_of(msgspec.to_builtins(operations.raft_status()), "linked"))
                if operations
                else [],
                "version": self._version,
                "boot_id": status.boot_id,
                "revision": status.revision,
                "durability": status.durability,
                "reads_ready": status.reads_ready,
                "writes_ready": status.writes_ready,
                "waiting_for": status.waiting_for,
                "uptime_ms": round(self._server.uptime_s * 1000),
                "connections": len(self._server.wire.connections),
            }
        )

    async def _digest(self, request: web.Request) -> web.Response:
        check_query(request, set())
        status = self._consistency.status()
        return json_answer(
            {
                "digest": status.digest,
                "state_digest": status.state_digest,
                "revision": status.revision,
                "index": status.applied_index,
            }
        )

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n", headers=HEADERS)

    async def _readyz(self, request: web.Request) -> web.Response:
        status = self._consistency.status()
        if status.reads_ready and status.writes_ready:
            return web.Response(text="ready\n", headers=HEADERS)
        what = "reads and writes" if not status.reads_ready else "writes"
        raise Problem(
            503,
            "Service Unavailable",
            f"{what} cannot be served: {(why := status.waiting_for or 'no leader')}{self._hindrances(why)}",
            retry_after_s=1,
        )

    def _hindrances(self, why: str) -> str:
        """Return what else an operator should look at when nothing is served, beyond what ``why`` says."""
        operations = self._consistency.operations
        if operations is None:
            return ""
        status = msgspec.to_builtins(operations.raft_status())
        words = "; this member's disk does not take its journal" if status.get("storage_stalled") else ""
        linked = {status.get("me"), *names_of(status, "linked")}
        away = [name for name in names_of(status, "members") if name not in linked and name not in why]
        return f"{words}; no link to {', '.join(away)}" if away else words

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics_text(self._consistency.status()).encode(),
            headers={**HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _file(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE[request.path]
        body = resources.files("nameserver.http").joinpath("web", name).read_bytes()
        charset = None if content_type == JSON else "utf-8"
        return web.Response(body=body, content_type=content_type, charset=charset, headers=HEADERS)

    def _metrics_text(self, status: ConsistencyStatus) -> str:
        view = self._consistency.view(Freshness.STALE)
        wire, cache = self._server.wire, self._server.cache
        usage = resource.getrusage(resource.RUSAGE_SELF)
        samples = Samples()
        counter, gauge = "counter", "gauge"
        samples.add("process_cpu_seconds_total", counter, "CPU time used.", usage.ru_utime + usage.ru_stime)
        samples.add("process_resident_memory_bytes", gauge, "Memory in use.", _resident_bytes())
        samples.add("process_open_fds", gauge, "Open file descriptors.", len(os.listdir("/proc/self/fd")))
        samples.add("process_max_fds", gauge, "Allowed file descriptors.", _descriptors_max())
        samples.add("process_start_time_seconds", gauge, "Unix time of the start.", self._started_at_s)
        samples.add(
            "mqnamesrv_info",
            gauge,
            "Constant 1.",
            1,
            mode=status.mode,
            role=status.role,
            version=self._version,
        )
        requests = dict(wire.stats.requests)
        requests[105] = requests.get(105, 0) + cache.hits
        for code, count in sorted(requests.items()):
            samples.add("mqnamesrv_requests_total", counter, "Requests by code.", count, code=str(code))
        samples.add("mqnamesrv_route_cache_hits_total", counter, "Routes served encoded.", cache.hits)
        samples.add("mqnamesrv_route_cache_entries", gauge, "Requests known.", cache.entries)
        samples.add("mqnamesrv_route_cache_bytes", gauge, "Answers and requests held.", cache.held_bytes)
        samples.add("mqnamesrv_connections", gauge, "Open connections.", len(wire.connections))
        samples.add(
            "mqnamesrv_connections_accepted_total", counter, "Accepted.", wire.stats.connections_accepted
        )
        samples.add(
            "mqnamesrv_connections_refused_total", counter, "Refused: full.", wire.stats.connections_refused
        )
        samples.add("mqnamesrv_bad_frames_total", counter, "Connections broken off.", wire.stats.bad_frames)
        samples.add("mqnamesrv_topics", gauge, "Topics listed.", view.topic_count)
        samples.add("mqnamesrv_broker_names", gauge, "Broker names listed.", view.name_count)
        samples.add("mqnamesrv_brokers", gauge, "Brokers listed.", len(view.records()))
        samples.add("mqnamesrv_table_revision", gauge, "Changes applied to the table.", view.revision)
        samples.add("mqnamesrv_reads_ready", gauge, "Default reads are served.", int(status.reads_ready))
        samples.add("mqnamesrv_writes_ready", gauge, "Writes are served.", int(status.writes_ready))
        operations = self._consistency.operations
        if operations is not None:
            add_raft_figures(samples, msgspec.to_builtins(operations.raft_status()))
        for (path, code), count in sorted(self._requests.items()):
            samples.add(
                "mqnamesrv_http_requests_total", counter, "HTTP requests.", count, path=path, code=str(code)
            )
        return samples.text()


class _Guard(asyncio.Protocol):
    """Stands between the loop and one HTTP connection; ends it when nothing arrives any more."""

    def __init__(self, inner: asyncio.Protocol, open_connections: set[_Guard]) -> None:
        self._inner = inner
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._moved_at = self._loop.time()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)
        self._inner.connection_lost(error)

    def close_if_silent(self, since: float) -> None:
        if self._moved_at < since and self._transport is not None:
            self._transport.abort()


class _Refusal(asyncio.Protocol):
    """Closes a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class _OneLine(logging.Filter):
    """Turns aiohttp's report of unreadable input into one clear line without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = " ".join(str(error).split())[:200]
            record.msg, record.args = "bad http request error=%s", (f"{type(error).__name__}: {text}",)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return record.levelno >= logging.INFO


def _protocol_log() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.protocol")
    if not logger.filters:
        logger.addFilter(_OneLine())
        logger.setLevel(logging.DEBUG)  # aiohttp reports some garbage at this level only
    return logger


def _events(explanation: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "at_ms": event.at_ms,
            "reason": str(event.reason.value),
            "words": in_words(event.reason),
            "broker": None if event.broker is None else str(event.broker),
            "detail": event.detail,
        }
        for event in explanation.events
    ]


def _blocking(request: web.Request) -> tuple[int | None, float]:
    """Return the index to wait beyond, and for how many seconds at most."""
    index, wait = request.query.get("index"), request.query.get("wait")
    if index is None:
        if wait is not None:
            raise Problem(400, "Bad Request", "wait needs index")
        return None, 0.0
    if not (index.isascii() and index.isdigit() and len(index) <= 18):
        raise Problem(400, "Bad Request", f"index={index[:40]} is no whole number")
    match = _WAIT.fullmatch(wait if wait is not None else "30s")
    if match is None or not 0 <= float(match[1]) <= WAIT_MAX_S:
        raise Problem(
            400, "Bad Request", f"wait={str(wait)[:40]} is not 0s to {WAIT_MAX_S:.0f}s, such as 30s"
        )
    return int(index), float(match[1])


def _detail(error: web.HTTPException, request: web.Request) -> str:
    if isinstance(error, web.HTTPNotFound):
        return f"nothing is served at {request.path[:200]}; see /openapi.json"
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return f"{error.method} is not offered at {request.path[:200]}, only {allowed}"
    return error.text or error.reason


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def _descriptors_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
