"""HTTP clients that send incomplete requests or read no answers do not harm a nameserver or a broker.

Incomplete requests block no other client. Answers that nobody reads use a limited amount of memory.
"""

from __future__ import annotations

import http.client
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration

from .servers import memory, server

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


def status_of(addr: str, path: str) -> int:
    connection = http.client.HTTPConnection(addr, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_half_requests_keep_nobody_from_a_brokers_health(tmp_path: Path) -> None:
    with server("broker", tmp_path, http=True) as running, ExitStack() as held:
        addr = running.http
        for _ in range(80):
            half = held.enter_context(socket.create_connection(split_address(addr), timeout=WAIT_S))
            half.sendall(HALF)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert status_of(addr, path) == 200


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_answers_that_nobody_reads_are_bounded_and_others_are_answered(tmp_path: Path) -> None:
    with (
        server("nameserver", tmp_path, http=True) as running,
        BlockingClient() as client,
        ExitStack() as held,
    ):
        pid, addr = running.pid, running.http
        for begin in range(0, len(NAMES), 2000):
            names = NAMES[begin : begin + 2000]
            request = registration(f"b{begin}", f"127.0.0.1:{begin + 1}", names, counter=1)
            assert client.invoke(running.listen, request, timeout_s=WAIT_S).code == 0
        assert status_of(addr, "/v1/topics") == 200
        before = memory(pid)
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
            peak = max(peak, memory(pid))
            if asked in text:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert peak - before < GROWTH_MIB << 20
        for path in ("/healthz", "/readyz", "/metrics", "/v1/topics"):
            assert status_of(addr, path) == 200, path
