"""Tests of a client that asks for TLS renegotiation again and again; each attempt is answered by an alert.

The TLS library sends these alerts even if the client sends no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.server import ServerLimits
from tests.remoting.servers import echo, serving
from tests.tls import port_context
from tests.tls12 import ALERT, APPLICATION_DATA, CLIENT_HELLO, HANDSHAKE, Records, Shake, kinds

CODE = 999
#: Number of bytes that a client tries to send. The buffers of both sockets hold fewer bytes, so the client
#: can send all of them only if the server keeps reading.
SENT_MAX = 8 * 1024 * 1024


class Peer:
    """A client with a finished TLS 1.2 handshake; it reads only when the test calls :meth:`read`."""

    def __init__(self, sock: socket.socket, records: Records) -> None:
        self._socket, self._records = sock, records

    @classmethod
    async def connect(cls, sock: socket.socket, listen: str, keylog: Path) -> Peer:
        # Small socket buffers, so that unread bytes soon block the sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, split_address(listen))
        shake = Shake(keylog)
        done, out = shake.go_on(b"")
        while not done:
            await loop.sock_sendall(sock, out)
            done, out = shake.go_on(await loop.sock_recv(sock, 1 << 16))
        await loop.sock_sendall(sock, out)
        return cls(sock, shake.records())

    async def send(self, *records: tuple[int, bytes]) -> int:
        """Send records of (kind, content); return their size in bytes."""
        sealed = b"".join(self._records.seal(kind, plain) for kind, plain in records)
        await asyncio.get_running_loop().sock_sendall(self._socket, sealed)
        return len(sealed)

    async def read(self) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        assert data, "closed"
        return data


Test = Callable[[socket.socket, str], Awaitable[None]]


def serve(test: Test, *, limits: ServerLimits | None = None) -> None:
    async def body() -> None:
        async with serving({CODE: echo}, tls=port_context(), limits=limits) as (_, listen):
            async with asyncio.timeout(60):
                with socket.socket() as sock:
                    await test(sock, listen)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())


def request(body: bytes) -> bytes:
    return RemotingCommand.request(CODE, {}, body=body).encode()


@pytest.mark.slow
def test_a_client_that_does_not_read_the_refusals_is_read_no_more(tmp_path: Path) -> None:
    async def test(sock: socket.socket, listen: str) -> None:
        peer = await Peer.connect(sock, listen, tmp_path / "keys")
        sent = await peer.send((APPLICATION_DATA, struct.pack(">I", 1024)))
        with contextlib.suppress(ConnectionError):
            while sent < SENT_MAX:
                sent += await peer.send(*[(HANDSHAKE, CLIENT_HELLO)] * 1000)
                # Each byte of the unfinished frame counts as traffic, so the connection becomes idle only if
                # the server stops reading.
                sent += await peer.send((APPLICATION_DATA, b"\0"))
        assert sent < SENT_MAX

    serve(test, limits=ServerLimits(idle_s=1.0))


@pytest.mark.slow
def test_a_client_that_reads_the_refusals_late_is_served_again(tmp_path: Path) -> None:
    async def test(sock: socket.socket, listen: str) -> None:
        peer = await Peer.connect(sock, listen, tmp_path / "keys")

        async def send() -> None:
            for _ in range(200):
                await peer.send(*[(HANDSHAKE, CLIENT_HELLO)] * 1000)
            await peer.send((APPLICATION_DATA, request(b"behind them")))

        sending = asyncio.create_task(send())
        await asyncio.wait([sending], timeout=1.0)
        received, refusals = bytearray(), 0
        while True:
            received += await peer.read()
            found = kinds(received)
            refusals += found.count(ALERT)
            if APPLICATION_DATA in found:
                break
        await sending
        assert refusals == 200_000

    serve(test)
