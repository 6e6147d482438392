"""HTTP clients that send incomplete requests or read no answers do not harm a nameserver or a broker.

Incomplete requests block no other client. Answers that nobody reads use a limited amount of memory.
"""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration

pytestmark = [pytest.mark.faults, pytest.mark.slow]

WAIT_S = 40.0
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-More: "
TOPICS = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: Names of topics. An answer with all names has a size of 2 MB.
NAMES = tuple(f"{number:0200d}" for number in range(10_000))
READERS = 300
#: Limit for the growth of the server's memory in MiB. Unread answers may use 128 MiB in the transport and 128
#: MiB in the HTTP server. The rest is memory that the allocator does not give back.
GROWTH_MIB = 360


@contextmanager
def serving(tmp_path: Path, *command: str) -> Iterator[tuple[int, str, str]]:
    """Run a server; yield its process id, its address for RocketMQ's protocol, and its address for HTTP."""
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        wire, http_addr = (line.split(f"{name}=")[1].split()[0] for name in ("listen", "http"))
        yield process.pid, wire, http_addr
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def status_of(addr: str, path: str) -> int:
    connection = http.client.HTTPConnection(addr, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_half_requests_keep_nobody_from_a_brokers_health(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "routekeeper.broker", "--store", str(tmp_path / "store")) as (_, _, addr),
        ExitStack() as held,
    ):
        for _ in range(80):
            half = held.enter_context(socket.create_connection(split_address(addr), timeout=WAIT_S))
            half.sendall(HALF)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert status_of(addr, path) == 200


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_answers_that_nobody_reads_are_bounded_and_others_are_answered(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "routekeeper.nameserver", "--data", str(tmp_path / "data")) as (pid, wire, addr),
        BlockingClient() as client,
        ExitStack() as held,
    ):
        for begin in range(0, len(NAMES), 2000):
            names = NAMES[begin : begin + 2000]
            request = registration(f"b{begin}", f"127.0.0.1:{begin + 1}", names, counter=1)
            assert client.invoke(wire, request, timeout_s=WAIT_S).code == 0
        assert status_of(addr, "/v1/topics") == 200
        before = resident_mib(pid)
        peak = before
        for _ in range(READERS):
            reader = held.enter_context(socket.create_connection(split_address(addr), timeout=WAIT_S))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(TOPICS)
        deadline = time.monotonic() + WAIT_S
        asked = f'mqnamesrv_http_requests_total{{code="200",path="/v1/topics"}} {READERS + 1}.0'
        # Repeat until the server has answered all readers, and record the peak of the memory.
        while True:
            connection = http.client.HTTPConnection(addr, timeout=WAIT_S)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
            peak = max(peak, resident_mib(pid))
            if asked in text:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert peak - before < GROWTH_MIB
        for path in ("/healthz", "/readyz", "/metrics", "/v1/topics"):
            assert status_of(addr, path) == 200, path
