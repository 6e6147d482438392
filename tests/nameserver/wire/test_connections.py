"""Tests that a server continues to work while clients send many unfinished frames and garbage."""

from __future__ import annotations

import contextlib
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from routekeeper.remoting.transport import split_address
from tests.faults.servers import memory, server

pytestmark = pytest.mark.faults

MEMORY_MAX = 400 * 1024 * 1024


def connect(addr: str, count: int, held: contextlib.ExitStack) -> list[socket.socket]:
    target = split_address(addr)
    return [held.enter_context(socket.create_connection(target, timeout=20)) for _ in range(count)]


def test_unfinished_frames_and_garbage_leave_memory_bounded(tmp_path: Path) -> None:
    chooser = random.Random(3)
    with server("nameserver", tmp_path, http=True) as running, contextlib.ExitStack() as held:
        part = (16_000_000).to_bytes(4, "big") + bytes(8_000_000)

        def send_part(connection: socket.socket) -> None:
            connection.setblocking(True)
            with contextlib.suppress(ConnectionError):
                connection.sendall(part)

        # Use one thread for each connection, because the server reads only some of the connections at a time.
        with ThreadPoolExecutor(60) as pool:
            list(pool.map(send_part, connect(running.listen, 60, held)))
        for addr in (running.listen, running.http):
            for connection in connect(addr, 200, held):
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"\xf0" + chooser.randbytes(chooser.randrange(2000)))
        assert running.works()
        assert memory(running.pid) < MEMORY_MAX + 300 * 1024 * 1024
        assert "bytes received and not answered on all connections" in running.log.read_text()
        held.close()
        assert running.works()
