"""Tests of very many HTTP requests at once.

A nameserver limits the number of handlers that begin in one turn of the event loop. It also limits the bytes
of requests that wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import zlib
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from routekeeper.nameserver.http.metrics import Metrics
from routekeeper.remoting.http.gate import BEGIN_MAX, Gate
from routekeeper.remoting.http.listener import (
    AHEAD_MAX,
    HEADER_MAX,
    PARSED_MAX,
    HttpConnection,
    HttpConnections,
)
from tests.nameserver.http.test_listener import HALF, HEALTH, answer, ended, limited, served
from tests.turns import Turns
from tests.waiting import until

#: Maximum number of bytes that an event loop reads from a socket at once.
READ_MAX = 256 * 1024


def get(path: str, *, more: bytes = b"") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + more + b"\r\n"


async def statuses(reader: asyncio.StreamReader, count: int) -> list[int]:
    """Read ``count`` answers; return their statuses.

    Each answer must have a Content-Length or no body.
    """
    found = []
    for _ in range(count):
        head = await answer(reader)
        found.append(int(head.split()[1]))
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.split()[1]))
    return found


async def test_of_many_requests_a_few_begin_in_each_turn_of_the_loop(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        mode, turns, begun = web_.ns.mode, Turns(), Counter[int]()
        explain = mode.explain

        def counting(topic: str) -> Any:
            begun[turns.number] += 1
            return explain(topic)

        monkeypatch.setattr(mode, "explain", counting)
        opened = [await web_.open() for _ in range(100)]
        await until(lambda: len(web_.connections.open) == 100)
        for _, writer in opened:
            writer.write(get("/v1/topics/none/route"))
        for reader, _ in opened:
            assert b" 404 " in await answer(reader)
        turns.end()
        assert begun.total() == 100
        assert max(begun.values()) <= 2 * BEGIN_MAX  # the code that begins handlers may run twice in a turn


async def test_requests_for_metrics_that_arrive_together_share_one_text(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    exposition = Metrics.exposition

    def counting(self: Metrics) -> bytes:
        made.append(1)
        return exposition(self)

    async with limited(tmp_path, monkeypatch) as web_:
        monkeypatch.setattr(Metrics, "exposition", counting)
        opened = [await web_.open() for _ in range(60)]
        await until(lambda: len(web_.connections.open) == 60)
        for _, writer in opened:
            writer.write(get("/metrics"))
        assert [await statuses(reader, 1) for reader, _ in opened] == [[200]] * 60
        assert len(made) < 20
        before = len(made)
        await web_.ns.get("/metrics")
        await web_.ns.get("/metrics")
        assert len(made) == before + 2, "a later request sees later figures"


async def test_health_does_not_wait_behind_other_requests(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        explained: list[str] = []
        explain = web_.ns.mode.explain

        def counting(topic: str) -> Any:
            explained.append(topic)
            return explain(topic)

        monkeypatch.setattr(web_.ns.mode, "explain", counting)
        opened = [await web_.open() for _ in range(200)]
        health, health_writer = await web_.open()
        await until(lambda: len(web_.connections.open) == 201)
        for _, writer in opened:
            writer.write(get("/v1/topics/none/route"))
        health_writer.write(HEALTH)
        assert b" 200 " in await answer(health)
        assert len(explained) < 150
        for reader, _ in opened:
            assert b" 404 " in await answer(reader)


class Silent(asyncio.Transport):
    """A transport without a socket, which ignores all calls."""

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


async def test_lost_and_cancelled_requests_leave_the_gate_at_once() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    connections, gate = HttpConnections(runner, logging.getLogger()), Gate()
    made = []
    for _ in range(BEGIN_MAX + 2):
        connection = connections.accept()
        assert isinstance(connection, HttpConnection)
        connection.connection_made(Silent())
        made.append(connection)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[str]] = []

        async def waiting(connection: HttpConnection) -> str:
            try:
                await connections.begin(connection, gate)
            except ConnectionResetError:
                return "lost"
            return "begun"

        def look() -> None:
            """End the two waiting requests: close the first request's connection, and cancel the second."""
            assert len(gate.waiting) == 2
            made[-2].connection_lost(None)
            tasks[-1].cancel()

        tasks += [group.create_task(waiting(connection)) for connection in made]
        asyncio.get_running_loop().call_soon(look)
    assert [task.result() for task in tasks[:-1]] == ["begun"] * BEGIN_MAX + ["lost"]
    assert tasks[-1].cancelled()
    assert not gate.waiting
    for connection in made:
        connection.connection_lost(None)
    await runner.cleanup()


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "in parts"])
async def test_header_above_its_limit_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, pause: bool
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        line = b"X-More: %s\r\n" % (b"x" * 990)
        lines_max = HEADER_MAX // len(line)
        reader, writer = await web_.open(get("/healthz", more=line * (lines_max - 1)))
        assert await statuses(reader, 1) == [200]
        request = get("/healthz", more=line * (lines_max + 1))
        for start in range(0, len(request), 1500):
            writer.write(request[start : start + 1500])
            if pause:
                await asyncio.sleep(0.002)
        assert b"HTTP/1.1 431 " in await ended(reader)


async def test_bytes_behind_a_blocking_query_are_bounded_and_served_afterwards(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        query = get("/v1/topics/T/route?index=999999999999&wait=60s")
        large = get("/healthz", more=b"X-More: %s\r\n" % (b"x" * 7000))
        reader, writer = await web_.open(query)
        await until(lambda: served(web_.connections) == 1)
        count = 2000  # requests of 7 kB: together more than the buffers of both sides can hold
        writer.write(large * count)
        await until(lambda: web_.connections.ahead_bytes > AHEAD_MAX)
        sizes = [-1]  # bytes that the client could not send yet
        while sizes[-1] != writer.transport.get_write_buffer_size():
            sizes.append(writer.transport.get_write_buffer_size())
            await asyncio.sleep(0.1)
        assert sizes[-1] > 0, "the nameserver reads no more"
        assert web_.connections.ahead_bytes <= AHEAD_MAX + READ_MAX
        web_.ns.web_server.reads.end()
        assert await statuses(reader, 1 + count) == [404] + [200] * count
        assert web_.connections.ahead_bytes == 0


async def test_bytes_behind_served_requests_are_bounded_in_total(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(tmp_path, monkeypatch, ahead_all_max=50_000) as web_:
        query = get("/v1/topics/T/route?index=999999999999&wait=60s")
        opened = [await web_.open(query) for _ in range(6)]
        await until(lambda: served(web_.connections) == 6)
        for _, writer in opened:
            writer.write(HALF + b"x" * 14_000)
            await asyncio.sleep(0.02)
        await until(lambda: len(web_.connections.open) == 3)
        assert 0 < web_.connections.ahead_bytes <= 50_000
        for reader, _ in opened[3:]:
            assert await ended(reader) == b""
        web_.ns.web_server.reads.end()
        for reader, _ in opened[:3]:
            assert await statuses(reader, 1) == [404]
    assert "bytes of requests wait, allowed are 50000" in caplog.text


async def test_pipelined_requests_are_answered_in_order(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        requests = [get("/healthz"), get("/v1/topics/none/route"), get("/readyz"), get("/nothing")] * 50
        body = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
        reader, writer = await web_.open(b"".join(requests) + body + get("/healthz"))
        expected = [200, 404, 200, 404] * 50 + [405, 200]
        assert await statuses(reader, len(expected)) == expected
        # Write 7 bytes at a time, because TCP may split a request anywhere.
        for start in range(0, len(body + HEALTH), 7):
            writer.write((body + HEALTH)[start : start + 7])
            await asyncio.sleep(0)
        assert await statuses(reader, 2) == [405, 200]
        for end in (
            b"\r\n\r\n",
            b"\r\nX: y\r\n\r\n",
        ):  # the rest of a header; its beginning is sent directly after the body of another request
            writer.write(body + b"GET /healthz HTTP/1.1\r\nHost: localhost")
            assert await statuses(reader, 1) == [405]
            writer.write(end)
            assert await statuses(reader, 1) == [200]


@pytest.mark.parametrize("encoding", [b"", b"Content-Encoding: deflate\r\n"], ids=["plain", "deflated"])
async def test_body_that_no_handler_reads_does_not_hide_the_next_request(
    encoding: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        # More bytes than aiohttp buffers while no handler reads them.
        body = random.Random(1).randbytes(2_000_000)
        body = zlib.compress(body) if encoding else body
        head = b"PUT /v1/kv/n/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
        reader, _ = await web_.open(head + encoding + b"\r\n" + body + get("/healthz") * 3)
        assert await statuses(reader, 4) == [403, 200, 200, 200]
        assert web_.connections.ahead_bytes == 0


async def test_one_packet_that_ends_a_body_cannot_add_many_parsed_requests(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        query = get("/v1/topics/T/route?index=999999999999&wait=60s", more=b"Content-Length: 5\r\n")
        reader, writer = await web_.open(query)
        await until(lambda: served(web_.connections) == 1)
        writer.write(b"hello" + get("/healthz") * 30)
        assert await ended(reader) == b""
    assert f"requests without answers, allowed are {PARSED_MAX}" in caplog.text


@pytest.mark.parametrize("need", ["time", "place"])
async def test_refused_header_frees_its_descriptor_although_the_client_reads_nothing(
    need: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks for answers, reads none of them, and then sends a header that is too long.

    The server closes its socket when its time is over, or earlier if a new client needs the place.
    """
    # A short ``stalled_s`` only makes the checks of all limits more frequent.
    limits = {"stalled_s": 0.4} if need == "time" else {"connections_max": 1}
    async with limited(tmp_path, monkeypatch, header_s=600.0, **limits) as web_:
        host, _, port = web_.ns.http.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            await until(lambda: len(web_.connections.open) == 1)
            (connection,) = web_.connections.open
            assert connection.transport is not None
            opened = connection.transport.get_extra_info("socket")
            # Ask again and again until the client's buffer and the kernel's are full.
            while not connection.unread_bytes():
                before = connection.since
                await loop.sock_sendall(client, get("/metrics"))
                await until(lambda before=before: connection.since > before)  # type: ignore[misc]
                await until(lambda: connection in web_.connections.kept)
            assert connection.unread_bytes() <= 64 * 1024, "the limit of stalled answers does not apply"
            line = b"X-More: %s\r\n" % (b"x" * 6000)
            await loop.sock_sendall(client, get("/healthz", more=line * 3))
            await until(lambda: connection.transport is None, "the header is refused")
            assert opened.fileno() >= 0
            if need == "time":
                web_.connections.header_s = 0.05
            else:
                reader, _ = await web_.open(HEALTH)
                assert b" 200 " in await answer(reader)
            await until(lambda: opened.fileno() < 0, "the socket is closed", within_s=5.0)
            await until(lambda: connection not in web_.connections.open)
