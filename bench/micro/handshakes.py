"""Measures the cost of TLS at a nameserver: CPU time of queries, and delays of clients during handshakes.

    python -m routekeeper.bench.micro.handshakes [--turns 60] [--seconds 10] [--storm 64]

The first part sends route queries (request 105) over 16 connections, with 1 and 16 queries in flight on each.
It alternates between three cases: TLS off; TLS mode ``permissive`` with a plain client; the same mode with
TLS 1.3. It prints the CPU time of the server's main thread for one request: the median and the quartiles of
all turns (a turn is some ms of queries), and the ratio to TLS off.

The second part makes many handshakes at a time ("storm"): a given number of clients make handshakes as fast
as they can. Each client connects, sends a hello, reads the server's answer and disconnects; it computes no
keys itself. In a second storm, the clients leave their handshakes unfinished and open.

Meanwhile two other clients ("bystanders") ask for a route twenty times a second: one over a plain connection,
one over TLS. The benchmark prints the times that they wait for answers, first without a storm. The
certificate has an elliptic-curve key (P-256); with an RSA key of 2,048 bits, a handshake costs 2 to 3 times
as much.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from routekeeper.bench import interpreter
from routekeeper.bench.micro.beside import Asked, route_requests
from routekeeper.bench.micro.route_query import CONNECTIONS, DEPTHS, WORKLOADS, Stack, Target, register
from routekeeper.remoting.transport.blocking import BlockingClient

#: Number of requests per second that each bystander sends; a bystander measures waiting times.
_ASKS_PER_S: Final = 20
_LENGTH_SIZE: Final = 4


def make_certificate(folder: Path, *, key: str = "ec") -> tuple[Path, Path]:
    """Make a self-signed certificate; return the path of the certificate and the path of its key."""
    cert, its_key = folder / "cert.pem", folder / "key.pem"
    kind = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256") if key == "ec" else (key,)
    command = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "7", "-subj", "/CN=bench"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", its_key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, its_key


def start(stack: Stack, folder: Path, name: str, *flags: str) -> Target:
    folder.mkdir()
    command = [sys.executable, "-m", stack.program, "--listen", "127.0.0.1:0", "--http", "off"]
    process = stack.start([*command, "--data", "data", *flags], folder)
    assert process.stdout is not None
    ready = process.stdout.readline()
    if "listen=" not in ready:
        raise SystemExit(f"{name} did not start: {(folder / 'stderr.txt').read_text()}")
    return Target(name=name, addr=ready.partition("listen=")[2].split()[0], pid=process.pid)


class Secured(Asked):
    """A server that the benchmark queries over TLS connections, and the CPU time that it uses."""

    def __init__(self, target: Target, context: ssl.SSLContext) -> None:
        super().__init__(target)
        self._connections = [
            context.wrap_socket(connection, server_hostname="127.0.0.1") for connection in self._connections
        ]


def route_queries(asked: dict[str, Asked], *, turns: int) -> Iterator[str]:
    """Measure the CPU time of route queries with and without TLS.

    The yielded lines are the output of the benchmark's first part.
    """
    order = random.Random(1)
    requests = route_requests(WORKLOADS[0], 1)
    yield f"route queries, {CONNECTIONS} connections: us of CPU a request (median, quartiles)"
    for depth in DEPTHS:
        found: dict[str, list[float]] = {name: [] for name in asked}
        for turn in range(turns + 3):
            for name in order.sample(list(asked), len(asked)):
                figure = asked[name].turn(requests, depth, order)
                if turn >= 3:
                    found[name].append(figure)
        for name, figures in found.items():
            low, middle, high = statistics.quantiles(figures, n=4)
            ratio = middle / statistics.median(found["TLS off"])
            yield f"  {depth:>2} in flight  {name:<24} {middle:6.2f}  {low:6.2f}..{high:6.2f}  x {ratio:.2f}"


class Bystander:
    """A client that measures how long a route query takes while other clients make handshakes."""

    def __init__(self, target: Target, context: ssl.SSLContext | None) -> None:
        host, _, port = target.addr.rpartition(":")
        self._link = socket.create_connection((host, int(port)), timeout=30)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._link = context.wrap_socket(self._link, server_hostname="127.0.0.1")
        self._question = route_requests(WORKLOADS[0], 1)[0]

    def wait_s(self) -> float:
        """Send one request; return the time in s until the answer is complete."""
        began = time.perf_counter()
        self._link.sendall(self._question)
        data = b""
        while len(data) < _LENGTH_SIZE or len(data) < _LENGTH_SIZE + int.from_bytes(data[:_LENGTH_SIZE]):
            received = self._link.recv(1 << 20)
            if not received:
                raise SystemExit("a server closed a bystander's connection")
            data += received
        return time.perf_counter() - began

    def close(self) -> None:
        self._link.close()


def waits(bystanders: dict[str, Bystander], seconds: float) -> Iterator[str]:
    """Ask for routes for ``seconds``; yield a line with the waiting times of each client."""
    found: dict[str, list[float]] = {name: [] for name in bystanders}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, bystander in bystanders.items():
            found[name].append(bystander.wait_s())
        time.sleep(1 / _ASKS_PER_S)
    for name, values in found.items():
        ordered = sorted(value * 1e3 for value in values)
        p99 = ordered[int(len(ordered) * 0.99)]
        middle = statistics.median(ordered)
        yield f"    {name:<6} p50 {middle:7.2f}  p99 {p99:7.2f}  max {ordered[-1]:7.2f} ms"


def hello() -> bytes:
    """Return the bytes with which a client begins a TLS 1.3 handshake (ClientHello)."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def storm(addr: str, *, seconds: float, at_a_time: int, stays: bool) -> int:
    """Begin TLS handshakes for ``seconds``; return the number of handshakes that the server has answered.

    Args:
        stays: True to leave handshakes unfinished and open. At more than 4,096 open connections, the oldest
            connection is aborted.
    """
    host, _, port = addr.rpartition(":")
    first, until = hello(), time.monotonic() + seconds
    answered = 0
    held: list[asyncio.StreamWriter] = []

    async def begin_again_and_again() -> None:
        nonlocal answered
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(first)
                data = await reader.read(1 << 16)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            answered += bool(data)
            if stays:
                held.append(writer)
                if len(held) > 4 * 1024:
                    held.pop(0).transport.abort()
            else:
                writer.transport.abort()

    await asyncio.gather(*(begin_again_and_again() for _ in range(at_a_time)))
    for writer in held:
        writer.transport.abort()
    return answered


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=60, help="turns of the first part (default 60)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each storm in s (default 10)")
    parser.add_argument("--storm", type=int, default=64, help="handshakes at the same time (default 64)")
    parser.add_argument("--key", default="ec", help="key of the certificate: ec, rsa:2048, ... (default ec)")
    parser.add_argument("--be-storm", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--stays", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_storm:
        work = storm(
            arguments.be_storm,
            seconds=arguments.seconds,
            at_a_time=arguments.storm,
            stays=arguments.stays,
        )
        print(asyncio.run(work))
        return
    with Stack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cert, key = make_certificate(root, key=arguments.key)
        context = ssl.create_default_context(cafile=cert)
        pair = ("--tls-cert", str(cert), "--tls-key", str(key))
        off = start(stack, root / "off", "TLS off")
        permissive = start(stack, root / "permissive", "permissive", *pair)
        # Keep this client open to the end: a nameserver drops brokers when the connection of their
        # registration closes.
        client = stack.enter_context(BlockingClient())
        register(client, [off.addr, permissive.addr], unlike=False)
        print(f"{interpreter.said()}, {ssl.OPENSSL_VERSION}, key {arguments.key}")
        with Asked(off) as plain, Asked(permissive) as other, Secured(permissive, context) as secured:
            asked = {"TLS off": plain, "permissive, plain": other, "permissive, TLS 1.3": secured}
            for line in route_queries(asked, turns=arguments.turns):
                print(line)
        bystanders = {"plain": Bystander(permissive, None), "TLS": Bystander(permissive, context)}
        print(f"bystanders during {arguments.storm} handshakes at the same time")
        print("  no handshakes", *waits(bystanders, arguments.seconds), sep="\n")
        for stays in (False, True):
            command = [sys.executable, "-m", "routekeeper.bench.micro.handshakes", "--be-storm"]
            command += [permissive.addr, "--seconds", str(arguments.seconds + 1)]
            command += ["--storm", str(arguments.storm), *(["--stays"] if stays else [])]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            time.sleep(1.0)
            lines = list(waits(bystanders, arguments.seconds - 1))
            answered = int(process.communicate(timeout=60)[0])
            what = "handshakes left open" if stays else "handshakes broken off"
            rate = answered / (arguments.seconds + 1)
            print(f"  {what}: {rate:,.0f} answered a second", *lines, sep="\n")
        for bystander in bystanders.values():
            bystander.close()


if __name__ == "__main__":
    main()
