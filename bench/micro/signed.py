"""Measurement of the nameserver's CPU time for plain route queries, and for signed route queries.

    python -m routekeeper.bench.micro.signed [--pairs 12] [--turns 60]

One nameserver runs without accounts, and one runs with ``--acl all``. The benchmark queries the two processes
in turn, so that other work of the machine disturbs both alike. It uses 16 connections, with 1 and 16 requests
in flight on each. All requests are made before the clock starts. There are two kinds of requests:

- repeated requests: a client asks for its topics again and again with the same bytes;
- new requests: each has an argument that no other request has. Both servers have to parse the argument, and
  the server with accounts also has to check the signature.

The result of one turn (some ms of queries) is the CPU time of the server's main thread for one request, by
the kernel's clock. Each pair of processes yields one value for each kind of request, because the memory
addresses of a process change its speed by some percent. The benchmark prints the medians, their ratio, and
the ratio's 95 % confidence interval (order statistics).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from routekeeper.bench import interpreter
from routekeeper.bench.figures import interval
from routekeeper.bench.micro.beside import FIRST_OPAQUE, ROUNDS, Asked
from routekeeper.bench.micro.route_query import (
    CONNECTIONS,
    DEPTHS,
    WORKLOADS,
    Stack,
    Target,
    register,
    start_independent,
)
from routekeeper.client.acl import Credentials
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

KEYS: Final = Keys(access_key="readers", secret_key="12345678")
ADMIN: Final = Keys(access_key="brokers", secret_key="12345678")
ACCOUNTS: Final = """accounts:
- accessKey: readers
  secretKey: "12345678"
- accessKey: brokers
  secretKey: "12345678"
  admin: true
"""
#: Number of turns before the measured turns; they only fill caches. A turn, the unit of measurement, is some
#: ms of queries.
_WARM: Final = 4


class Requests:
    """Requests of one kind for one server, in the order in which the benchmark sends them."""

    def __init__(self, *, signed: bool, new: bool, seed: int) -> None:
        self._signed, self._new = signed, new
        self._topics = random.Random(seed)
        self._count = itertools.count()
        self._known = [self._encoded({"topic": topic}) for topic in WORKLOADS[0].topics]

    def take(self, count: int) -> list[bytes]:
        """Return the next ``count`` requests.

        Call this before the measured time, because it may encode requests.
        """
        if not self._new:
            return self._topics.choices(self._known, k=count)
        topics = self._topics.choices(WORKLOADS[0].topics, k=count)
        return [self._encoded({"topic": topic, "asked": f"{next(self._count):09d}"}) for topic in topics]

    def _encoded(self, fields: dict[str, str]) -> bytes:
        request = RemotingCommand(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=FIRST_OPAQUE, ext_fields=fields
        )
        return (KEYS.signed(request) if self._signed else request).encode()


def pair(number: int, turns: int) -> Iterator[tuple[str, int, float, float]]:
    """Measure one pair of processes: with accounts, and without. Yield the result of each case.

    A case is a kind of requests and a number of requests in flight. The result of a case is the CPU time of
    one plain request and the CPU time of one signed request, both in µs.
    """
    with Stack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (root / "plain_acl.yml").write_text(ACCOUNTS)
        accounts = ("--acl", "all", "--acl-file", str(root / "plain_acl.yml"))
        servers: dict[bool, Target] = {}
        for signed in (False, True) if number % 2 else (True, False):
            folder = root / str(signed)
            folder.mkdir()
            servers[signed] = start_independent(stack, folder, "--http", "off", *(accounts if signed else ()))
        hook = Credentials(access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)
        # Keep this client open to the end: a nameserver drops brokers when the connection of their
        # registration closes.
        client = stack.enter_context(BlockingClient(hooks=(hook,)))
        register(client, [server.addr for server in servers.values()], unlike=False)
        order = random.Random(number)
        with Asked(servers[False]) as plain, Asked(servers[True]) as checked:
            for new, depth in itertools.product((False, True), DEPTHS):
                found: dict[bool, list[float]] = {False: [], True: []}
                requests = {signed: Requests(signed=signed, new=new, seed=number) for signed in (False, True)}
                for turn in range(-_WARM, turns):
                    for signed in order.sample((False, True), 2):
                        batch = requests[signed].take(ROUNDS[depth] * CONNECTIONS * depth)
                        figure = (checked if signed else plain).turn_of(batch, depth)
                        if turn >= 0:
                            found[signed].append(figure)
                kind = "new" if new else "asked before"
                yield kind, depth, statistics.median(found[False]), statistics.median(found[True])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m routekeeper.bench.micro.signed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--pairs", type=int, default=12, help="pairs of processes, one after the other (default %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=60, help="turns of each process in each case (default %(default)s)"
    )
    arguments = parser.parse_args()
    print(interpreter.said(), flush=True)
    took: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(arguments.pairs):
        for kind, depth, plain_us, signed_us in pair(number, arguments.turns):
            took.setdefault((kind, depth), []).append((plain_us, signed_us))
    print(f"{'':32} {'plain us':>9} {'signed us':>10}   signed / plain")
    for (kind, depth), of_pairs in took.items():
        ratios = [signed_us / plain_us for plain_us, signed_us in of_pairs]
        low, high = interval(ratios)
        plain_us, signed_us = (statistics.median(column) for column in zip(*of_pairs, strict=True))
        print(
            f"{f'{kind}, {depth} in flight':32} {plain_us:9.2f} {signed_us:10.2f}   "
            f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}), {len(ratios)} pairs"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
