"""The playground's HTTP service, which serves the page and the stream of changes, and accepts commands.

The commands come from a browser on this machine. Another website that is open in the same browser must not be
able to end processes. Therefore:

- ``Host`` must be an IP address or ``localhost``. A domain name is refused, because the owner of the domain
  could make it resolve to this machine.
- A POST must have a JSON body, which HTML forms cannot send. If a POST has an ``Origin``, this must be the
  page's own origin.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from routekeeper.bench.play.hub import Full
from routekeeper.bench.play.model import Order, Refusal
from routekeeper.bench.play.play import BadOrder, NotSaved, Playground, TooMany
from routekeeper.bench.play.replay import Replay
from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.errors import LocalProtocolError

BODY_MAX: Final = 4_096
#: Longest time in s that a page may take to read a message. After this time, the program closes the
#: connection to the page.
TAKES_S: Final = 10.0
#: Time in s without messages after which the program sends an empty comment, to keep the connection alive.
COMMENT_S: Final = 15.0

_ROOT: Final = Path(__file__).resolve().parents[2]
WEB: Final = Path(__file__).resolve().parent / "web"
DRAWINGS: Final = _ROOT / "nameserver" / "http" / "web" / "drawings"
PUBLISHED: Final = _ROOT / "docs" / "results" / "full"
_POLICY: Final = "default-src 'self'; img-src 'self' data:"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_own_host(host: str | None) -> bool:
    """Return True if a ``Host`` header names this machine by an IP address, or as ``localhost``."""
    if not host:
        return False
    try:
        name, _ = split_address(
            host if host.rpartition("]")[2].startswith(":") or ":" in host else f"{host}:80"
        )
    except LocalProtocolError:
        return False
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refusal_of(host: str | None, origin: str | None, kind: str | None, site: str | None) -> str | None:
    """Return the reason to refuse a POST because of its headers, or None if the POST is allowed.

    Args:
        host: Header ``Host``.
        origin: Header ``Origin``.
        kind: Header ``Content-Type``.
        site: Header ``Sec-Fetch-Site``.
    """
    if origin is not None and origin != f"http://{host}":
        return f"Origin {origin[:80]} differs from http://{host}: pages of other origins may not give orders"
    if site not in (None, "same-origin", "none"):
        return f"Sec-Fetch-Site is {site[:20]}: only the playground's own page may give orders"
    if (kind or "").partition(";")[0].strip().lower() != "application/json":
        return "Content-Type must be application/json"
    return None


def _json(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _refused(status: int, error: str) -> web.Response:
    return _json(Refusal(error=error), status)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = request.headers.get("Host")
    if not is_own_host(host):
        return _refused(403, f"Host {(host or '')[:80]!r} is neither an IP address nor localhost")
    if request.method not in ("GET", "HEAD"):
        headers = request.headers
        reason = refusal_of(
            host, headers.get("Origin"), headers.get("Content-Type"), headers.get("Sec-Fetch-Site")
        )
        if reason is not None:
            return _refused(403, reason)
    return await handler(request)


async def _say_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-cache"
    frames = "frame-ancestors 'none'"
    # Send a weaker content security policy for published pages, because they contain inline styles and
    # scripts, which _POLICY forbids.
    own = not request.path.startswith("/published/")
    response.headers["Content-Security-Policy"] = f"{_POLICY}; {frames}" if own else frames


class Pages:
    """The handlers of HTTP requests for one session."""

    def __init__(self, served: Playground | Replay) -> None:
        self._served = served

    def application(self) -> web.Application:
        """Return the application that aiohttp serves."""
        app = web.Application(client_max_size=BODY_MAX, middlewares=[_guard])
        app.on_response_prepare.append(_say_headers)
        app.router.add_get("/", self._page)
        app.router.add_get("/v1/state", self._state)
        app.router.add_get("/v1/log", self._log)
        app.router.add_get("/v1/events", self._events)
        app.router.add_post("/v1/actions", self._order)
        app.router.add_post("/v1/save", self._save)
        for path, folder in (("/web", WEB), ("/drawings", DRAWINGS), ("/published", PUBLISHED)):
            if folder.is_dir():
                app.router.add_static(path, folder)
        return app

    async def _page(self, request: web.Request) -> web.StreamResponse:
        page = WEB / "index.html"
        if not page.is_file():
            return _refused(404, "the page is not installed; /v1/state and /v1/events are there")
        return web.FileResponse(page)

    async def _state(self, request: web.Request) -> web.Response:
        return _json(self._served.state)

    async def _log(self, request: web.Request) -> web.Response:
        response = _json(self._served.log.log())
        response.enable_compression()
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        hub = self._served.hub
        try:
            watcher = hub.join(self._served.state, request.headers.get("Last-Event-ID"))
        except Full as error:
            return _refused(503, str(error))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            while True:
                try:
                    async with asyncio.timeout(
                        COMMENT_S
                    ):  # do not use wait_for(): in Python 3.11 it may lose a cancellation
                        message = await watcher.next()
                except TimeoutError:
                    message = b":\n\n"
                if message is None:
                    break
                async with asyncio.timeout(TAKES_S):
                    await response.write(message)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()  # an orderly close would wait until the page has read all data
        finally:
            hub.leave(watcher)
        return response

    async def _order(self, request: web.Request) -> web.Response:
        try:
            order = msgspec.json.decode(await request.read(), type=Order)
            return _json(await self._served.order(order))
        except (msgspec.MsgspecError, BadOrder) as error:
            return _refused(400, str(error))
        except TooMany as error:
            return _refused(429, str(error))

    async def _save(self, request: web.Request) -> web.Response:
        try:
            return _json(await self._served.save())
        except NotSaved as error:
            return _refused(409, str(error))
