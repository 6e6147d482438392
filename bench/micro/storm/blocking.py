"""ZooKeeper asked over a blocking socket: the topics' lasting nodes, and whether answers are right."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from routekeeper.bench.micro.raft.wire import Answer, WireError
from routekeeper.bench.micro.storm.sessions import Session, encode_nodes, lasting_nodes, slices


class BlockingSession:
    """A session on a blocking socket, one request at a time."""

    def __init__(self, addr: str, *, timeout_s: float) -> None:
        host, _, port = addr.rpartition(":")
        self.wire = Session()
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        try:
            self._socket.sendall(self.wire.hello())
            while not self.wire.ready:
                self._receive()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> Answer:
        """Send a request that ``wire`` has just made; return its answer.

        Raises:
            OSError: If the connection is lost, or no answer came in time.
            WireError: If the answer is none of ZooKeeper's.
        """
        self._deadline = time.monotonic() + self._timeout_s
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


def make_lasting_nodes(addr: str, keys: Iterable[int], topics: Iterable[str]) -> None:
    session = BlockingSession(addr, timeout_s=30.0)
    try:
        for part in slices(lasting_nodes(keys, topics)):
            answer = session.ask(session.wire.create_all(encode_nodes(part, ephemeral=False)))
            if answer.error:
                raise WireError(f"lasting nodes: {answer.error}")
        session.ask(session.wire.close())
    finally:
        session.close()
