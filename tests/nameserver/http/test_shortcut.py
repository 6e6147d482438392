"""Tests of HTTP queries that wait for a change of a topic, over real sockets.

The server recognises a repeated query by its bytes and answers it without aiohttp, which saves time. The
answer must equal the answer of the handler that aiohttp calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from routekeeper.nameserver.http.app import DRAIN_S
from tests.nameserver.http.test_listener import limited
from tests.nameserver.http.test_server_http import Running, running
from tests.waiting import until


class Got(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> bytes:
        return zlib.decompress(self.body, 31) if "content-encoding" in self.headers else self.body

    @property
    def revision(self) -> int:
        index: int = json.loads(self.text)["index"]
        return index


class Watcher:
    """A client that waits for changes of a topic by queries over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self._host = reader, writer, host

    def ask(self, index: int, more: str = "&wait=20s", *, topic: str = "T", headers: str = "") -> bytes:
        request = self.request(index, more, topic=topic, headers=headers)
        self.writer.write(request)
        return request

    def request(self, index: int, more: str = "&wait=20s", *, topic: str = "T", headers: str = "") -> bytes:
        path = f"/v1/topics/{topic}/route?index={index}{more}"
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n{headers}\r\n".encode()

    async def answer(self) -> Got:
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Got(int(lines[0].split()[1]), headers, body)

    async def known(self, more: str = "&wait=20s", *, topic: str = "T", headers: str = "") -> Got:
        """Send a first query; return its answer.

        Afterwards, the server recognises queries that differ from the first query only in their index.
        """
        self.ask(0, more, topic=topic, headers=headers)
        return await self.answer()


@contextlib.asynccontextmanager
async def watching(ns: Running) -> AsyncIterator[Watcher]:
    host, port = ns.http.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Watcher(reader, writer, ns.http)
    finally:
        writer.close()


def waiting(ns: Running) -> int:
    """Return the number of queries that wait for a change and have no running handler."""
    return len(ns.web_server.reads.waiting)


def requests(ns: Running) -> float:
    """Return the number of requests that aiohttp has read."""
    server = ns.web_server._runner.server
    assert server is not None
    return server.requests_count


@pytest.mark.parametrize("headers", ["", "Accept-Encoding: gzip\r\n"])
async def test_known_query_gets_the_answer_of_a_new_one_with_the_same_headers(
    tmp_path: Path, headers: str
) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher, watching(ns) as new:
        brokers = [f"broker-with-a-name-of-some-length-{number}" for number in range(12)]
        for broker in brokers:
            await ns.register(broker, "T")
        first = await watcher.known(headers=headers)
        read_before = requests(ns)
        watcher.ask(first.revision, headers=headers)
        await until(lambda: waiting(ns) == 1)
        await ns.register("another", "T")
        told = await watcher.answer()
        assert requests(ns) == read_before, "aiohttp read a query that is known"
        same = await new.known(headers=headers)
        assert told.status == 200
        assert told.revision > first.revision
        assert told.headers.keys() == same.headers.keys()
        different = {name for name in told.headers if told.headers[name] != same.headers[name]}
        assert different <= {"date", "content-length"}
        # The texts are equal, because in independent mode "last contact" is always 0.
        assert told.text == same.text


async def test_more_watchers_than_one_turn_answers_are_all_told(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, contextlib.AsyncExitStack() as stack:
        await ns.register("b", "T", "U")
        watchers = [await stack.enter_async_context(watching(ns)) for _ in range(150)]
        other = await stack.enter_async_context(watching(ns))
        firsts = [await watcher.known() for watcher in watchers]
        of_other = await other.known(topic="U")
        for watcher, first in zip(watchers, firsts, strict=True):
            watcher.ask(first.revision)
        other.ask(of_other.revision, topic="U")
        await until(lambda: waiting(ns) == 151)
        await ns.register("c", "T")
        told = [await watcher.answer() for watcher in watchers]
        assert {got.status for got in told} == {200}
        assert all(b'"c"' in got.body for got in told)
        assert waiting(ns) == 1, "a query for another topic was answered"
        await ns.register("c", "U")
        assert b'"c"' in (await other.answer()).body


async def test_known_query_for_a_topic_that_goes_gets_404(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T")
        first = await watcher.known()
        watcher.ask(first.revision)
        await until(lambda: waiting(ns) == 1)
        await ns.client.close()  # this closes the connection, so the nameserver removes the broker
        gone = await watcher.answer()
        assert gone.status == 404
        assert gone.revision > first.revision


async def test_known_query_without_contact_to_a_leader_gets_503(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as waits, watching(ns) as asks:
        await ns.register("b", "T")
        first = await waits.known()
        await asks.known()
        waits.ask(first.revision)
        await until(lambda: waiting(ns) == 1)
        ns.mode.lost = True
        asks.ask(first.revision)
        assert (await asks.answer()).status == 503
        ns.web_server.reads.waiting.end()
        assert (await waits.answer()).status == 503


async def test_query_that_has_waited_does_not_wait_again_if_its_answer_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T")
        first = await watcher.known("&wait=60s")
        monkeypatch.setattr("routekeeper.nameserver.http.shortcut.BODY_MAX", 10)
        watcher.ask(first.revision, "&wait=60s")
        await until(lambda: waiting(ns) == 1)
        ns.web_server.reads.waiting.end()
        same = await watcher.answer()
        assert (same.status, same.revision) == (200, first.revision)


async def test_two_requests_at_once_are_answered_in_their_order(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T", "U")
        first = await watcher.known()
        watcher.ask(first.revision)
        await until(lambda: waiting(ns) == 1)
        watcher.ask(0, topic="U")
        await until(lambda: waiting(ns) == 0)
        await ns.register("c", "T")
        told, other = await watcher.answer(), await watcher.answer()
        assert json.loads(told.body)["topic"] == "T"
        assert b'"c"' in told.body
        assert json.loads(other.body)["topic"] == "U"


async def test_query_that_differs_in_more_than_its_index_is_read_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T")
        first = await watcher.known()
        foreign = watcher.request(first.revision).replace(b"Host: 127.0.0.1", b"Host: evil.example")
        for request, status in (
            (foreign, 421),
            (watcher.request(first.revision, "&wait=99s"), 400),
            (watcher.request(first.revision).replace(b"index=", b"index=x"), 400),
            (watcher.request(first.revision).replace(b"index=", b"index=" + b"9" * 18), 400),
        ):
            watcher.writer.write(request)
            assert (await watcher.answer()).status == status


async def test_body_of_a_request_is_never_taken_for_a_known_query(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T")
        first = await watcher.known()
        body = watcher.request(first.revision)
        head = f"GET /v1/topics HTTP/1.1\r\nHost: {ns.http}\r\nContent-Length: {len(body)}\r\n\r\n"
        watcher.writer.write(head.encode())
        listed = await watcher.answer()
        watcher.writer.write(body)
        await ns.get("/v1/status")  # after this answer, the server has also read the body
        assert waiting(ns) == 0, "the body waits as a query"
        watcher.ask(0)
        after = await watcher.answer()
        assert (listed.status, after.status) == (200, 200)


async def test_client_that_leaves_is_forgotten_and_closing_answers_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as stays, watching(ns) as leaves:
        await ns.register("b", "T")
        for watcher in (stays, leaves):
            watcher.ask((await watcher.known("&wait=60s")).revision, "&wait=60s")
        await until(lambda: waiting(ns) == 2)
        leaves.writer.close()
        await until(lambda: waiting(ns) == 1)
        begun = asyncio.get_running_loop().time()
        await ns.web_server.close()
        took_s = asyncio.get_running_loop().time() - begun
        assert (await stays.answer()).status == 200
        assert await stays.reader.read() == b"", "its client asks another server at once"
        assert waiting(ns) == 0
        assert took_s < DRAIN_S, "the stop waited for connections without a request"


async def test_known_queries_are_counted_like_others(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns) as watcher:
        await ns.register("b", "T")
        watcher.ask((await watcher.known()).revision)
        await until(lambda: waiting(ns) == 1)
        await ns.register("c", "T")
        await watcher.answer()
        _, text = await ns.get("/metrics")
        counted = re.findall(r"^mqnamesrv_http_requests_total\{.*/route\"\} (\S+)$", text, re.MULTILINE)
        assert counted == ["2.0"]


@pytest.mark.slow
async def test_connection_is_closed_when_it_is_kept_for_too_long_but_not_while_its_query_waits(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        limited(tmp_path, monkeypatch, header_s=0.4, kept_s=0.4) as web,
        watching(web.ns) as watcher,
    ):
        await web.ns.register("b", "T")
        loop = asyncio.get_running_loop()
        first = await watcher.known("&wait=1s")
        begun = loop.time()
        watcher.ask(first.revision, "&wait=1s")
        again = await watcher.answer()
        assert loop.time() - begun >= 1.0
        assert (again.status, again.revision) == (200, first.revision)
        async with asyncio.timeout(20):
            assert await watcher.reader.read() == b""


@pytest.mark.slow
async def test_a_client_that_reads_its_answer_slowly_is_held_to_its_limits_when_it_was_kept_for_long(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes the connection of a client that does not read its answer, even an old connection.

    In an earlier version, the limit on the time without reading did not apply to old connections.
    """
    async with limited(tmp_path, monkeypatch, header_s=0.4, kept_s=0.4, stalled_s=3.0, idle_s=60.0) as web:
        await web.ns.register("b", *(f"{number:0200d}" for number in range(2_000)))
        host, port = web.ns.http.rsplit(":", 1)
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(opened, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=opened, limit=4096)
        writer.write(f"GET /v1/topics?limit=1000 HTTP/1.1\r\nHost: {web.ns.http}\r\n\r\n".encode())
        connections = web.connections
        await until(lambda: any(one.unread_bytes() for one in connections.open), "its answer is unread")
        since = loop.time()
        await until(lambda: not connections.open, "it is cut off")
        assert loop.time() - since > 2.0, "the limit for peers that read nothing holds"
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
        writer.close()


@pytest.mark.slow
async def test_half_a_request_behind_one_that_waits_has_the_time_of_a_header(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        limited(tmp_path, monkeypatch, header_s=0.4, kept_s=60.0) as web,
        watching(web.ns) as watcher,
    ):
        await web.ns.register("b", "T")
        first = await watcher.known("&wait=1s")
        watcher.ask(first.revision, "&wait=1s")
        await until(lambda: waiting(web.ns) == 1)
        watcher.writer.write(b"G")
        assert (await watcher.answer()).status == 200
        async with asyncio.timeout(20):
            assert await watcher.reader.read() == b""
