"""The kernel delays packets between two namespaces as planned, and drops the planned share of them."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from routekeeper.bench import kernel
from routekeeper.bench.kernel import KernelNetwork
from routekeeper.bench.links import both_ways

pytestmark = [pytest.mark.bench, pytest.mark.one_core]

ENDS: Final = ["nameserver-0", "nameserver-1"]
BOTH: Final = both_ways(ENDS[:1], ENDS[1:])
PORT: Final = 9
#: Call that enlarges the receive buffer, so that no datagram is lost while a program waits for the CPU. The
#: default buffer holds only 200 datagrams.
ROOM: Final = "setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE, 1 << 22)"
#: Program that returns every datagram, and all data of every connection, to its sender.
ECHO: Final = f"""
import selectors, socket
socket.SO_RCVBUFFORCE = 33  # of Linux, for root
tcp = socket.create_server(("0.0.0.0", {PORT}))
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.{ROOM}
udp.bind(("0.0.0.0", {PORT}))
print("ready", flush=True)
chosen = selectors.SelectSelector()
chosen.register(tcp, selectors.EVENT_READ)
chosen.register(udp, selectors.EVENT_READ)
while True:
    for key, _ in chosen.select():
        if key.fileobj is udp:
            udp.sendto(*udp.recvfrom(64))
        elif key.fileobj is tcp:
            chosen.register(tcp.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(64):
            key.fileobj.sendall(data)
        else:
            chosen.unregister(key.fileobj)
            key.fileobj.close()
"""
ROUND_TRIPS: Final = """
import socket, sys, time
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(40):
    began = time.perf_counter()
    one.sendall(b"x")
    assert one.recv(64) == b"x"
    print((time.perf_counter() - began) * 1e3)
"""
DATAGRAMS: Final = f"""
import select, socket, sys, time
socket.SO_RCVBUFFORCE = 33
one = socket.socket(type=socket.SOCK_DGRAM)
one.{ROOM}
one.connect((sys.argv[1], int(sys.argv[2])))
found = set()
for number in range(300):
    one.send(b"%d" % number)
    while select.select([one], [], [], 0.002)[0]:
        found.add(one.recv(64))
# On a busy machine the other program may be late, so wait 4 s before silence counts as the end.
while len(found) < 300 and select.select([one], [], [], 4)[0]:
    found.add(one.recv(64))
print(len(found))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[KernelNetwork]:
    lacking = kernel.missing_for_delays()
    if lacking is not None:
        pytest.skip(f"delays by the kernel need {lacking}")
    made = KernelNetwork(ENDS)
    command = made.command(ENDS[1], [sys.executable, "-c", ECHO])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "ready\n"
            yield made
        finally:
            echo.kill()
            made.close()


def numbers(network: KernelNetwork, code: str) -> list[float]:
    """Run a program in the first namespace, and return the numbers that it prints.

    The program sends to the program ECHO in the second namespace.
    """
    host = network.host(ENDS[1])
    command = network.command(ENDS[0], [sys.executable, "-c", code, host, str(PORT)])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.alone
@pytest.mark.parametrize("delay_ms", [1.0, 5.0, 20.0])
def test_round_trip_takes_the_given_time(network: KernelNetwork, delay_ms: float) -> None:
    network.delay(BOTH, 0)
    bare = statistics.median(numbers(network, ROUND_TRIPS))
    network.delay(BOTH, delay_ms / 2)
    found = sorted(numbers(network, ROUND_TRIPS))
    print(f"{delay_ms:g} ms: least {found[0]:.2f}, median {statistics.median(found):.2f}, bare {bare:.2f}")
    assert found[0] >= delay_ms
    assert found[0] < delay_ms + bare + 1.0


def test_share_of_packets_is_lost_until_it_is_taken_back(network: KernelNetwork) -> None:
    network.delay(BOTH, 1, loss=0.1)
    (found,) = numbers(network, DATAGRAMS)
    print(f"{found:g} of 300 came back, 243 expected")
    assert 200 < found < 285
    network.delay([], 0)
    assert numbers(network, DATAGRAMS) == [300]


def test_cut_holds_for_delayed_packets_too(network: KernelNetwork) -> None:
    network.delay(BOTH, 1)
    network.cut(BOTH)
    assert numbers(network, DATAGRAMS) == [0]
    network.heal()
    assert numbers(network, DATAGRAMS) == [300]
