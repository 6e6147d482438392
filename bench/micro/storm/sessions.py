"""ZooKeeper's side of a storm: sessions that are resumed, nodes made by the hundred, children counted.

A broker holds one session with one server, and one ephemeral node below each topic: a client that wants a
route lists the topic's children. That is half of the nodes that MetaQ laid (see
:mod:`routekeeper.bench.arms.layout`), and the least with which ZooKeeper can tell who has a topic. The
topics' own nodes last, and are made before any clock starts. Source: zookeeper.jute, MultiOperationRecord and
MultiResponse of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from routekeeper.bench.arms.layout import IDS, encode_addr, master_path, topic_child, topic_path
from routekeeper.bench.micro.raft.brokers import ancestors
from routekeeper.bench.micro.raft.jute import JuteSession, text
from routekeeper.bench.micro.raft.remoting_wire import broker_addr
from routekeeper.bench.micro.raft.wire import Answer, WireError
from routekeeper.bench.micro.storm.frames import QUEUES

#: Nodes that one request makes: some hundred, as a client does that has many.
NODES_PER_MULTI: Final = 300
#: Such requests of one session that are under way at a time, so that every session hears of its own in time.
MULTIS_IN_FLIGHT: Final = 4
SESSION_S: Final = 30
#: Clients ping every third of their session.
PING_S: Final = 10.0
_CREATE: Final = 1
_GET_CHILDREN: Final = 8
_CLOSE: Final = -11
_MULTI: Final = 14
_ERROR: Final = -1
_NODE_EXISTS: Final = -110
_EPHEMERAL: Final = 1
_HEADER: Final = struct.Struct(">i?i")
_LAST: Final = _HEADER.pack(_ERROR, True, _ERROR)
_ACL: Final = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
#: protocol version, last zxid seen, timeout in ms, session id; the password follows
_CONNECT: Final = struct.Struct(">iqiq")
#: packet length, protocol version, timeout in ms (0: refused), session id, length of the password
_CONNECTED: Final = struct.Struct(">iiiqi")


class Session(JuteSession):
    """One session, new or resumed.

    Attributes:
        identity: Session id and password; with them a later connection goes on with the session.
        expired: Whether the server has forgotten the session.
    """

    def __init__(self, identity: tuple[int, bytes] = (0, bytes(16))) -> None:
        super().__init__(SESSION_S * 1000)
        self.identity = identity
        self.expired = False
        self._multis: set[int] = set()

    def hello(self) -> bytes:
        number, password = self.identity
        body = _CONNECT.pack(0, 0, self._asked_ms, number) + text(password) + b"\0"
        return text(body)  # a packet has the same form

    def _connected(self, data: bytes, position: int) -> None:
        _, _, timeout_ms, number, size = _CONNECTED.unpack_from(data, position)
        if timeout_ms <= 0:
            self.expired = True
            raise WireError("the session has expired")
        at = position + _CONNECTED.size
        self.identity = number, data[at : at + size]
        self.timeout_ms = timeout_ms
        self.ready = True

    def create_all(self, nodes: bytes) -> bytes:
        """Return one request that makes all nodes of :func:`encode_nodes`, or none."""
        data = self.request(_MULTI, nodes)
        self._multis.add(self.tag)
        return data

    def children(self, path: bytes) -> bytes:
        return self.request(_GET_CHILDREN, text(path) + b"\0")

    def close(self) -> bytes:
        return self.request(_CLOSE, b"")

    def feed(self, data: bytes) -> list[Answer]:
        return [self._judged(answer) for answer in super().feed(data)]

    def _judged(self, answer: Answer) -> Answer:
        """A request for many nodes that failed is answered with success and a list of errors."""
        if answer.tag not in self._multis:
            return answer
        self._multis.discard(answer.tag)
        if answer.error is None:
            error = next(filter(None, _errors(answer.body)), 0)  # those behind it were not tried
            # A node that is there already was made by an earlier try of this session, with all others.
            if error not in (0, _NODE_EXISTS):
                return Answer(answer.tag, f"error {error}", b"")
        return answer


def _errors(body: bytes) -> Iterator[int]:
    """Yield the error of each part of a failed request for many nodes; nothing for one that was done."""
    at = 0
    while len(body) - at >= _HEADER.size:
        kind, done, _ = _HEADER.unpack_from(body, at)
        if done or kind != _ERROR:
            return
        at += _HEADER.size
        yield int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4


def encode_nodes(nodes: Iterable[tuple[bytes, bytes]], *, ephemeral: bool) -> bytes:
    flags = struct.pack(">i", _EPHEMERAL if ephemeral else 0)
    head = _HEADER.pack(_CREATE, False, _ERROR)
    return b"".join(head + text(path) + text(value) + _ACL + flags for path, value in nodes) + _LAST


def nodes_of(key: int, topics: list[str]) -> list[tuple[bytes, bytes]]:
    """Return path and data of each ephemeral node of a broker."""
    queues = b"%d" % QUEUES
    child = topic_child(key)
    found = [(f"{topic_path(topic)}/{child}".encode(), queues) for topic in topics]
    return [*found, (master_path(key).encode(), encode_addr(broker_addr(key)))]


def lasting_nodes(keys: Iterable[int], topics: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Return the nodes below which brokers make theirs, parents first."""
    above = [*(f"{topic_path(topic)}/x" for topic in topics), *(f"{IDS}/{key}/x" for key in keys)]
    return [(path.encode(), b"") for path in ancestors(above)]


def slices(nodes: list[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    for start in range(0, len(nodes), NODES_PER_MULTI):
        yield nodes[start : start + NODES_PER_MULTI]
