"""Connections over blocking sockets, and a function that creates persistent nodes in ZooKeeper."""

from __future__ import annotations

import socket
import time
from typing import Generic

from routekeeper.bench.storm.sessions import Session, encode_nodes, slices
from routekeeper.bench.wires.client import W
from routekeeper.bench.wires.wire import Answer, WireError


class Blocking(Generic[W]):
    """A connection to one server over a blocking socket, with one request at a time."""

    def __init__(self, addr: str, wire: W, *, timeout_s: float) -> None:
        host, _, port = addr.rpartition(":")
        self.wire = wire
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(self.wire.hello())
            while not self.wire.ready:
                self._receive()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> Answer:
        """Send ``request`` and return its answer. It must be the last request that ``self.wire`` has made.

        Answers to earlier requests are discarded.

        Raises:
            OSError: If the connection is lost, or if no answer came in time.
            WireError: If the answer does not follow the protocol.
        """
        self._deadline = time.monotonic() + self.timeout_s
        self._socket.sendall(request)
        while True:
            for answer in self._receive():
                if answer.tag == self.wire.tag:
                    return answer

    def _receive(self) -> list[Answer]:
        self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        return self.wire.feed(data)


def make_nodes(addr: str, nodes: list[tuple[str, bytes]]) -> None:
    """Create persistent nodes. A node must come after its parent in the list, and must not exist yet."""
    session = Blocking(addr, Session(), timeout_s=30.0)
    try:
        for part in slices(nodes):
            answer = session.ask(session.wire.create_all(encode_nodes(part, ephemeral=False)))
            if answer.error:
                raise WireError(f"persistent nodes were not created: {answer.error}")
        session.ask(session.wire.close())
    finally:
        session.close()
