"""A server keeps working with too few file descriptors and during floods of unfinished frames."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.blocking import BlockingClient

pytestmark = pytest.mark.faults

MEMORY_MAX = 400 * 1024 * 1024


@contextlib.contextmanager
def nameserver(tmp_path: Path, *, descriptors: int | None = None) -> Iterator[tuple[int, str, str, Path]]:
    """Start a nameserver; yield its process id, its wire and HTTP addresses, and its log file."""
    log = tmp_path / "stderr.txt"

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))

    command = [
        sys.executable,
        "-m",
        "routekeeper.nameserver",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=limit,
        )
        assert process.stdout is not None
        try:
            match = re.search(r"listen=(\S+) http=(\S+)", process.stdout.readline())
            assert match, log.read_text()
            yield process.pid, match[1], match[2], log
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def answers(addr: str) -> bool:
    with BlockingClient() as client:
        return client.invoke(addr, RemotingCommand.request(206), timeout_s=10).code == 0


def connect(addr: str, count: int, held: contextlib.ExitStack) -> list[socket.socket]:
    target = split_address(addr)
    return [held.enter_context(socket.create_connection(target, timeout=20)) for _ in range(count)]


def test_shortage_of_descriptors_is_named_and_survived(tmp_path: Path) -> None:
    with nameserver(tmp_path, descriptors=1024) as (_, wire, http, log), contextlib.ExitStack() as held:
        connections = connect(wire, 1200, held)
        connections[0].sendall(RemotingCommand.request(206).encode())
        assert connections[0].recv(10)
        with socket.create_connection(split_address(http), timeout=10) as web:
            web.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in web.recv(4096)
        deadline = time.monotonic() + 10
        while "connections refused" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert log.read_text().count("connections refused") == 1
        assert "descriptor limit is short" in log.read_text()
        held.close()
        assert answers(wire)


def test_unfinished_frames_and_garbage_leave_memory_bounded(tmp_path: Path) -> None:
    chooser = random.Random(3)
    with nameserver(tmp_path) as (pid, wire, http, log), contextlib.ExitStack() as held:
        part = (16_000_000).to_bytes(4, "big") + bytes(8_000_000)

        def send_part(connection: socket.socket) -> None:
            connection.setblocking(True)
            with contextlib.suppress(ConnectionError):
                connection.sendall(part)

        # Use one thread for each connection, because the server reads only some of the connections at a time.
        with ThreadPoolExecutor(60) as pool:
            list(pool.map(send_part, connect(wire, 60, held)))
        for addr in (wire, http):
            for connection in connect(addr, 200, held):
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"\xf0" + chooser.randbytes(chooser.randrange(2000)))
        assert answers(wire)
        assert resident_bytes(pid) < MEMORY_MAX + 300 * 1024 * 1024
        text = log.read_text()
        assert "bytes received and not answered on all connections" in text
        assert "Traceback" not in text
        held.close()
        assert answers(wire)
