"""Compares the CPU time of a route query (request 105) in this tree's nameserver and in another tree's.

    python -m routekeeper.bench.micro.beside TREE [--mode raft] [--pairs 24] [--turns 60]

TREE is a checkout of another commit. If TREE is this tree's own path, the result shows the noise of the
method. Each nameserver runs in a process of its own. The benchmark queries the two nameservers in turn, some
ms each, so that other work of the machine disturbs both alike. It uses 16 connections, with 1 and 16 requests
in flight on each.

The result of one turn is the CPU time of the server's main thread for one request, by the kernel's clock. For
each pair of processes, the benchmark divides the median of the other tree by the median of this tree. The
memory addresses of a process change its time by some percent, so the benchmark repeats the measurement with
new pairs of processes. It prints the median of these ratios and its 95 % confidence interval (order
statistics).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import socket
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from routekeeper.bench import interpreter
from routekeeper.bench.figures import interval
from routekeeper.bench.micro.route_query import (
    CONNECTIONS,
    DEPTHS,
    WORKLOADS,
    Stack,
    Target,
    Workload,
    register,
    start_independent,
    start_raft,
)
from routekeeper.bench.micro.trees import THIS, nameserver_of
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import Frame, split_frame
from routekeeper.remoting.transport.blocking import BlockingClient

#: Number of rounds in one turn, by the number of requests in flight on each connection. In a round, requests
#: are sent over all connections. A turn is the unit of measurement and takes some ms of CPU time.
ROUNDS: Final = {1: 16, 16: 3}
#: First request number ("opaque"). All request numbers have nine digits, as in a client that runs for long.
FIRST_OPAQUE: Final = 100_000_000
_LENGTH_SIZE: Final = 4


class Asked:
    """One server, the connections to it, and the CPU time that its main thread has used."""

    def __init__(self, target: Target) -> None:
        host, _, port = target.addr.rpartition(":")
        self._task = Path(f"/proc/{target.pid}/task/{target.pid}")
        self._connections = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def turn(self, requests: list[bytes], depth: int, order: random.Random) -> float:
        """Send some of these requests, chosen at random; return the server's CPU time per request in µs.

        Args:
            depth: Number of requests in flight on each connection.
        """
        return self.turn_of(order.choices(requests, k=ROUNDS[depth] * CONNECTIONS * depth), depth)

    def turn_of(self, requests: list[bytes], depth: int) -> float:
        """Send these requests; return the server's CPU time per request in µs.

        Args:
            depth: Number of requests in flight on each connection.
        """
        rounds = iter([b"".join(requests[at : at + depth]) for at in range(0, len(requests), depth)])
        before = self._cpu_ns()
        for _ in range(ROUNDS[depth]):
            for connection in self._connections:
                connection.sendall(next(rounds))
            for connection in self._connections:
                last = _read(connection, depth)
        took_us = (self._cpu_ns() - before) / len(requests) / 1e3
        answer: RemotingCommand = decode_command(last)
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"a server answered {answer.code} {answer.remark}, expected a route")
        return took_us

    def _cpu_ns(self) -> int:
        while (self._task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
            # Wait until the server's thread sleeps: while a thread runs, the kernel's count is some ms
            # behind.
            pass
        return int((self._task / "schedstat").read_text().split()[0])


def _read(connection: socket.socket, answers: int) -> Frame:
    """Read ``answers`` answers from a connection; return the last answer."""
    data, position, last = b"", 0, 0
    while answers:
        received = connection.recv(1 << 20)
        if not received:
            raise SystemExit("a server closed a connection")
        data += received
        while len(data) - position >= _LENGTH_SIZE:
            end = position + _LENGTH_SIZE + int.from_bytes(data[position : position + _LENGTH_SIZE])
            if end > len(data):
                break
            last, position, answers = position, end, answers - 1
    return split_frame(data, last, position - last - _LENGTH_SIZE)


def route_requests(workload: Workload, seed: int) -> list[bytes]:
    """Return route queries whose request numbers have nine digits, as in a client that runs for long."""
    topics = random.Random(seed).choices(workload.topics, k=256)
    return [
        RemotingCommand(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=FIRST_OPAQUE + n, ext_fields={"topic": topic}
        ).encode()
        for n, topic in enumerate(topics)
    ]


def _pair(trees: tuple[Path, Path], mode: str, number: int) -> Iterator[tuple[str, tuple[Target, Target]]]:
    """Start servers of this tree and of the other tree; yield a name and one server of each tree.

    In raft mode there is one pair of servers for each member of the group.
    """
    with Stack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: dict[int, list[Target]] = {}
        addrs: list[str] = []
        for side in (0, 1) if number % 2 else (1, 0):
            folder = root / str(side)
            folder.mkdir()
            stack.env = {"PYTHONPATH": str(trees[side])}
            stack.program = nameserver_of(trees[side])
            if mode == "raft":
                started[side], members = start_raft(stack, folder)
                addrs += members
            else:
                started[side] = [start_independent(stack, folder)]
                addrs.append(started[side][0].addr)
        register(stack.enter_context(BlockingClient()), addrs, unlike=False)
        for this, other in zip(started[0], started[1], strict=True):
            yield this.name, (this, other)


def compare(other: Path, *, mode: str, pairs: int, turns: int) -> None:
    trees = THIS, other.resolve()
    took: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for number in range(pairs):
        for name, targets in _pair(trees, mode, number):
            with Asked(targets[0]) as this, Asked(targets[1]) as that:
                for workload, depth in itertools.product(WORKLOADS, DEPTHS):
                    requests, order = route_requests(workload, number), random.Random(number)
                    figures: tuple[list[float], list[float]] = [], []
                    for turn in range(-4, turns):
                        for side in (0, 1) if turn % 2 else (1, 0):
                            figure = (this, that)[side].turn(requests, depth, order)
                            if turn >= 0:  # turns below 0 only fill caches
                                figures[side].append(figure)
                    medians = statistics.median(figures[0]), statistics.median(figures[1])
                    took.setdefault((name, workload.name, depth), []).append(medians)
    print(f"{'':54} {'other us':>9} {'this us':>9}   other / this")
    for (name, workload_name, depth), of_pairs in took.items():
        ratios = [that_us / this_us for this_us, that_us in of_pairs]
        low, high = interval(ratios)
        this_us, that_us = (statistics.median(column) for column in zip(*of_pairs, strict=True))
        print(
            f"{f'{name}, {workload_name}, {depth} in flight':54} {that_us:9.2f} {this_us:9.2f}   "
            f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}), {len(ratios)} pairs"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m routekeeper.bench.micro.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tree", type=Path, help="checkout of another commit")
    parser.add_argument(
        "--mode", choices=("independent", "raft"), default="independent", help="mode (default %(default)s)"
    )
    parser.add_argument(
        "--pairs", type=int, default=24, help="pairs of processes, one after the other (default %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=60, help="turns of each process in each case (default %(default)s)"
    )
    arguments = parser.parse_args()
    if not (arguments.tree / "nameserver" / "__main__.py").is_file():
        parser.error(f"{arguments.tree} is no checkout: it has no nameserver/__main__.py")
    print(interpreter.said(), flush=True)
    compare(arguments.tree, mode=arguments.mode, pairs=arguments.pairs, turns=arguments.turns)


if __name__ == "__main__":
    main()
