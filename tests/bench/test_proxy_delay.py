"""The proxy delays the bytes of a connection by the planned time, and keeps their order.

The tests also check the limits of the delay and of the number of delayed bytes. Another test checks the bytes
that are under way when the proxy cuts a link.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.links import Link, both_ways
from routekeeper.bench.network import ProxyNetwork
from tests.bench.test_proxy import WAIT_S, Dialler, Echo, passes, proxied
from tests.ports import free_addresses

pytestmark = pytest.mark.faults

TIMES: Final = 40
#: Greatest delay in ms that the proxy may add by itself. The proxy needs time for its two sockets, and to
#: wake a thread for each delayed block of bytes.
PASSING_MS: Final = 0.6
BOTH: Final = both_ways(["broker-0"], ["nameserver-0"])


@dataclass(frozen=True, kw_only=True)
class Delayed:
    """An echo server behind the proxy. The proxy delays the bytes of every connection."""

    proxy: ProxyNetwork
    addr: str
    dial: Dialler

    def connection(self) -> socket.socket:
        made = self.dial.when_open(self.addr)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(WAIT_S)
        return made


@pytest.fixture
def delayed(tmp_path: Path) -> Iterator[Delayed]:
    to, listen = free_addresses(2)
    links = [Link(dialler="broker-0", acceptor="nameserver-0", listen=listen, to=to)]
    dialler = Dialler()
    with contextlib.closing(Echo(to)), dialler.made, proxied(links, tmp_path) as proxy:
        yield Delayed(proxy=proxy, addr=listen, dial=dialler)


def round_trip_ms(connection: socket.socket) -> float:
    began = time.perf_counter()
    assert passes(connection, b"x")
    return (time.perf_counter() - began) * 1e3


@pytest.mark.alone
@pytest.mark.parametrize("delay_ms", [1.0, 5.0, 20.0])
def test_round_trip_takes_the_given_time(delayed: Delayed, delay_ms: float) -> None:
    connection = delayed.connection()
    bare = statistics.median(round_trip_ms(connection) for _ in range(TIMES))
    delayed.proxy.delay(BOTH, delay_ms / 2)
    found = sorted(round_trip_ms(connection) for _ in range(TIMES))
    print(f"{delay_ms:g} ms: least {found[0]:.2f}, median {statistics.median(found):.2f}, bare {bare:.2f}")
    assert found[0] >= delay_ms
    # On a slow machine, the event loop's timers are late by up to 2 % of the delay.
    assert found[0] < 1.02 * delay_ms + bare + PASSING_MS


@pytest.mark.alone
@pytest.mark.parametrize("delay_ms", [1.0, 5.0, 20.0])
def test_first_answer_of_a_new_connection_comes_after_two_round_trips(
    delayed: Delayed, delay_ms: float
) -> None:
    delayed.connection()
    delayed.proxy.delay(BOTH, delay_ms / 2)
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        assert passes(delayed.connection(), b"x")
        found.append((time.perf_counter() - began) * 1e3)
    print(f"{delay_ms:g} ms: least {min(found):.2f}, median {statistics.median(found):.2f}")
    assert min(found) >= 2 * delay_ms
    assert min(found) < 2 * delay_ms + 4 * PASSING_MS


def test_each_direction_has_a_delay_of_its_own(delayed: Delayed) -> None:
    connection = delayed.connection()
    delayed.proxy.delay([("nameserver-0", "broker-0")], 150)
    assert round_trip_ms(connection) >= 150
    delayed.proxy.delay([("broker-0", "nameserver-0")], 150)
    assert round_trip_ms(connection) >= 300
    delayed.proxy.delay(BOTH, 0)
    assert min(round_trip_ms(connection) for _ in range(TIMES)) < 150


def test_bytes_keep_their_order_when_the_delay_ends_before_they_have_arrived(delayed: Delayed) -> None:
    connection = delayed.connection()
    delayed.proxy.delay([("broker-0", "nameserver-0")], 300)
    began = time.monotonic()
    connection.sendall(b"early ")
    # Wait until the proxy has read b"early ". Between two calls of ``look``, it reads all waiting bytes.
    for _ in range(3):
        delayed.proxy.look()
    delayed.proxy.delay([("broker-0", "nameserver-0")], 0)
    connection.sendall(b"late")
    found = b""
    while len(found) < len(b"early late"):
        found += connection.recv(64)
    assert found == b"early late"
    assert time.monotonic() - began >= 0.3


def test_sender_waits_once_too_many_bytes_are_under_way(delayed: Delayed) -> None:
    connection = delayed.connection()
    delayed.proxy.delay([("broker-0", "nameserver-0")], 10_000)
    connection.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 * 2**20:
            sent += connection.send(bytes(2**16))
    print(f"{sent / 2**20:.1f} MiB, most of them in the kernel's buffers")
    assert 2**20 <= sent < 32 * 2**20


def test_bytes_under_way_at_a_cut_arrive_when_it_ends(delayed: Delayed) -> None:
    connection = delayed.connection()
    delayed.proxy.delay(BOTH, 100)
    connection.sendall(b"under way")
    delayed.proxy.cut(BOTH)
    connection.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.recv(64)
    delayed.proxy.heal()
    connection.settimeout(WAIT_S)
    assert connection.recv(64) == b"under way"


def test_end_of_a_connection_comes_after_the_bytes_before_it(tmp_path: Path) -> None:
    to, listen = free_addresses(2)
    host, _, port = to.rpartition(":")
    links = [Link(dialler="side-a", acceptor="broker-0", listen=listen, to=to)]
    dialler = Dialler()
    with (
        socket.create_server((host, int(port))) as server,
        dialler.made,
        proxied(links, tmp_path) as proxy,
    ):
        server.settimeout(WAIT_S)
        client = dialler.when_open(listen)
        client.settimeout(WAIT_S)
        accepted, _ = server.accept()
        proxy.delay([("broker-0", "side-a")], 200)
        began = time.monotonic()
        accepted.sendall(b"answer")
        for _ in range(3):
            proxy.look()
        # delay nothing from here on: the end of the connection must still come after the delayed bytes
        proxy.delay([("broker-0", "side-a")], 0)
        accepted.close()
        assert client.recv(64) == b"answer"
        assert client.recv(64) == b""
        assert time.monotonic() - began >= 0.2
