"""Tests of the limits on HTTP connections, over real sockets.

The tests check which connections the server closes, and which it continues to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from routekeeper.remoting.http.listener import HttpConnections
from tests.nameserver.http.test_admin import TOKEN, node
from tests.nameserver.http.test_server_http import running
from tests.ports import free_addresses
from tests.waiting import until

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-More: "
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Web:
    """The HTTP server of a running nameserver, with limits that differ from the defaults."""

    def __init__(self, ns: Any, connections: HttpConnections) -> None:
        self.ns = ns
        self.connections = connections
        self.opened: list[asyncio.StreamWriter] = []

    async def open(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.ns.http.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        self.opened.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def limited(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> AsyncIterator[Web]:
    made: list[HttpConnections] = []

    def connections(*of: Any, **fitting: int) -> HttpConnections:
        made.append(HttpConnections(*of, **(fitting | limits)))
        return made[-1]

    monkeypatch.setattr("routekeeper.nameserver.http.app.HttpConnections", connections)
    async with running(tmp_path) as ns:
        web = Web(ns, made[0])
        try:
            yield web
        finally:
            for writer in web.opened:
                writer.close()


def served(connections: HttpConnections) -> int:
    """Return the number of requests that handlers are working on."""
    return len(connections.open) - len(connections.begun) - len(connections.kept)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side closes the connection; return the bytes."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        return await reader.readuntil(b"\r\n\r\n")


@pytest.mark.slow
async def test_half_a_header_has_seconds_and_a_served_or_kept_connection_has_more(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, header_s=0.3) as web:
        await web.ns.register("b", "T")
        half, _ = await web.open(HALF)
        silent, _ = await web.open()
        kept, kept_writer = await web.open(HEALTH)
        assert b" 200 " in await answer(kept)
        _, route = await web.ns.get("/v1/topics/T/route")
        query = asyncio.create_task(web.ns.get(f"/v1/topics/T/route?index={route['index']}&wait=1.5s"))
        assert await ended(half) == b""
        assert await ended(silent) == b""
        assert (await query)[0] == 200
        kept_writer.write(HEALTH)
        assert b" 200 " in await answer(kept)


@pytest.mark.slow
async def test_header_that_dribbles_gets_no_more_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, header_s=0.4) as web:
        reader, writer = await web.open(HALF)
        begun = asyncio.get_running_loop().time()
        over = asyncio.create_task(ended(reader))
        while not over.done():
            writer.write(b"x")
            await asyncio.wait({over}, timeout=0.05)
        assert await over == b""
        assert asyncio.get_running_loop().time() - begun < 10


async def test_when_all_places_are_taken_the_oldest_half_request_goes_and_health_is_answered(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, connections_max=4, header_s=60.0) as web:
        first, _ = await web.open(HALF)
        others = [await web.open(HALF) for _ in range(3)]
        reader, _ = await web.open(HEALTH)
        assert b" 200 " in await answer(reader)
        assert await ended(first) == b""
        assert len(web.connections.open) == 4
        assert not any(other.at_eof() for other, _ in others)


@pytest.mark.slow
async def test_while_every_place_is_served_health_is_answered_from_the_reserve_and_nothing_else(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, connections_max=2, reserve=1) as web:
        await web.ns.register("b", "T")
        _, route = await web.ns.get("/v1/topics/T/route")
        await web.ns.web.close()
        path = f"/v1/topics/T/route?index={route['index']}&wait=5s"
        query = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        waiting = [await web.open(query) for _ in range(2)]
        await until(lambda: served(web.connections) == 2)
        health, _ = await web.open(HEALTH)
        assert b" 200 " in await answer(health)
        # Health checks may use connections above the limit (the reserve), which end after one answer.
        await ended(health)
        other, _ = await web.open(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 503 " in await answer(other)
        await ended(other)
        for reader, _ in waiting:
            assert b" 200 " in await answer(reader)


async def test_connection_above_every_limit_is_closed_at_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, connections_max=0, reserve=0) as web:
        reader, _ = await web.open(HEALTH)
        assert await ended(reader) == b""


@pytest.mark.slow
async def test_silence_ends_a_connection_whatever_its_state(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, idle_s=1.0) as web:
        reader, _ = await web.open(HEALTH)
        assert b" 200 " in await answer(reader)
        await ended(reader)


async def test_stop_answers_a_blocking_query(tmp_path: Any) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        _, route = await ns.get("/v1/topics/T/route")
        query = asyncio.create_task(ns.get(f"/v1/topics/T/route?index={route['index']}&wait=50s"))
        await until(lambda: len(ns.web_server.reads.waits) == 1)
        await ns.web_server.close()
        status, same = await query
        assert (status, same["index"]) == (200, route["index"])


async def test_page_of_another_site_gets_nothing_and_is_told_why(tmp_path: Any) -> None:
    async with running(tmp_path) as ns:
        url = f"http://{ns.http}/v1/topics"
        async with ns.web.get(url, headers={"Host": "evil.example:9880"}) as answered:
            assert answered.status == 421
            assert "evil.example" in (await answered.json(content_type=None))["detail"]
        async with ns.web.get(f"http://{ns.http}/healthz", headers={"Host": "balancer"}) as answered:
            assert answered.status == 200
        async with ns.web.get(url, headers={"Host": "localhost:1"}) as answered:
            assert answered.status == 200
            assert answered.headers["Server"] == "mqnamesrv"
    async with (
        running(tmp_path, http_allowed_hosts="ns.example") as ns,
        ns.web.get(f"http://{ns.http}/v1/topics", headers={"Host": "ns.example"}) as answered,
    ):
        assert answered.status == 200


@pytest.mark.slow
def test_a_peer_that_takes_a_long_answer_is_not_silent() -> None:
    """The server does not close the connection of a client that is still reading a long answer.

    Such a client sends nothing. Its connection ends only when it stops reading.
    """

    class Transport(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

        def close(self) -> None:
            pass

        def get_write_buffer_size(self) -> int:
            return 100_000

    async def main() -> bool:
        """Return True if the server aborted the connection while the client was still reading.

        The test fails if the server did this although no turn of the event loop lasted more than 0.5 s.
        """
        loop = asyncio.get_running_loop()
        runner, transport = web.AppRunner(web.Application()), Transport()
        await runner.setup()
        connections = HttpConnections(runner, logging.getLogger(), idle_s=1.0)
        connection = connections.accept()
        assert isinstance(connection, web.RequestHandler)
        connection.connection_made(transport)
        connection.data_received(b"G")
        connections.serve(connection)
        connections.start()
        now = loop.time()
        end, longest_s = now + 2.0, 0.0
        while now < end and not transport.aborted:
            connection.pause_writing()
            connection.resume_writing()
            await asyncio.sleep(0.02)  # the client reads something every 20 ms
            longest_s, now = max(longest_s, loop.time() - now), loop.time()
        too_soon = transport.aborted
        await until(lambda: transport.aborted)
        await connections.close()
        await runner.cleanup()
        assert not too_soon or longest_s > 0.5, "the machine did not hold it up"
        return too_soon

    # One good run of five is enough, because a busy machine may delay the simulated client.
    assert not all(asyncio.run(main()) for _ in range(5))


def test_bytes_that_are_no_text_are_refused_and_leave_no_traceback(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are not UTF-8 are refused and cause no traceback.

    aiohttp decodes such bytes to lone surrogates. The answer must escape lone surrogates, because UTF-8
    cannot encode them.
    """

    async def main() -> None:
        async with limited(tmp_path, monkeypatch) as web:
            reader, _ = await web.open(
                b"GET /v1/topics HTTP/1.1\r\nHost: \xae.example\r\nConnection: close\r\n\r\n"
            )
            head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 421 ")
            assert "\\udcae.example" in json.loads(body)["detail"]

    asyncio.run(main())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "parser"),
    [
        (b"\xff", HttpRequestParser),
        (b"%ED%A0%80", HttpRequestParser),
        (b"\xed\xa0\x80", HttpRequestParserPy),
        (b"%FF", HttpRequestParserPy),
    ],
    ids=["byte, default", "surrogate as text, default", "surrogate, python", "byte as text, python"],
)
def test_no_route_fails_on_bytes_that_are_no_text(
    text: bytes,
    parser: type,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No HTTP resource fails on a path with bytes that are not UTF-8.

    aiohttp's C parser refuses such bytes, so no handler gets them. Its Python parser, which is used if the C
    parser is not installed, passes them on. The test uses both parsers.
    """
    monkeypatch.setattr("aiohttp.web_protocol.HttpRequestParser", parser)

    def targets(described: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
        for path, operations in described["paths"].items():
            plain, hostile = re.sub(r"{.*?}", "x", path).encode(), re.sub(rb"{.*?}", text, path.encode())
            for method, operation in operations.items():
                yield method.upper(), hostile
                yield method.upper(), plain + b"?" + text + b"=1"
                for parameter in operation.get("parameters", ()):
                    if "$ref" in parameter:
                        name = parameter["$ref"].rpartition("/")[2].encode()
                        yield method.upper(), plain + b"?" + name + b"=" + text
        yield "GET", b"/" + text

    async def main() -> None:
        async with limited(tmp_path, monkeypatch) as web:

            async def head(method: str, target: bytes, more: bytes = b"") -> bytes:
                reader, writer = await web.open(
                    b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n%s\r\n"
                    % (method.encode(), target, more)
                )
                answer = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                return answer

            async def status(method: str, target: bytes, more: bytes = b"") -> int:
                return int((await head(method, target, more)).split()[1])

            _, described = await web.ns.get("/openapi.json")
            asked = list(targets(described))
            failed = [(method, target) for method, target in asked if await status(method, target) >= 500]
            assert not failed
            if b"%" not in text:
                hostile = [(method, target) for method, target in asked if text in target]
                assert {await status(method, target) for method, target in hostile} == {400}
            for name in (b"Accept", b"Accept-Encoding", b"Authorization", b"If-None-Match", b"Last-Event-ID"):
                for target in (b"/v1/topics", b"/v1/watch?topics=x", b"/"):
                    assert await status("GET", target, name + b": " + text + b"\r\n") < 500, (name, target)

    asyncio.run(main())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
def test_client_that_leaves_while_it_sends_a_snapshot_is_no_failed_request(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if "POST /v1/raft/restore" in r.getMessage()]

    async def main() -> None:
        (raft,) = free_addresses(1)
        async with node(tmp_path, raft, (raft,)) as one:
            host, port = one.addr.rsplit(":", 1)
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/raft/restore HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
                b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\nthe beginning"
            )
            await until(lambda: served(one.http._connections) == 1)
            writer.close()
            await until(lambda: bool(told()))
            again = await one.ask("POST", "/v1/raft/restore", data=b"")
            assert again.status == 400  # not 409, because the first restore has ended
            assert "empty" in again.body["detail"]

    asyncio.run(main())
    assert "result=refused(400)" in told()[0]
    assert "peer=127.0.0.1:" in told()[0]  # the line names the client, although its connection is closed
    assert not [record for record in caplog.records if record.exc_info]
