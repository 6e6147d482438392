"""ZooKeeper sessions in a storm: they can be resumed, and can create hundreds of nodes with one request.

A broker has one session with one server, and one ephemeral node below the node of each topic. A client that
wants a route lists the children of the topic's node. ZooKeeper needs at least one node for each topic and
broker to show the brokers of a topic. MetaQ created twice as many nodes (see
:mod:`routekeeper.bench.arms.layout`).

The topics' own nodes are persistent, and are created before the measurement starts.

Source: zookeeper.jute, MultiOperationRecord and MultiResponse of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from kazoo.protocol.serialization import (
    Close,
    Connect,
    Create,
    GetChildren,
    SetData,
    Transaction,
)
from kazoo.security import OPEN_ACL_UNSAFE

from routekeeper.bench.arms.layout import IDS, encode_addr, master_path, topic_child, topic_path
from routekeeper.bench.storm.frames import QUEUES
from routekeeper.bench.wires.jute import JuteSession
from routekeeper.bench.wires.remoting_wire import broker_addr
from routekeeper.bench.wires.wire import Answer, WireError

#: Number of nodes that one request creates. A real client with many nodes would also create some hundred
#: nodes with each request.
NODES_PER_MULTI: Final = 300
#: Largest number of requests for many nodes that one session has in flight. With more requests, a session
#: could wait too long for an answer.
MULTIS_IN_FLIGHT: Final = 4
#: Interval between two pings in seconds. It is a third of the session time-out, as with real clients.
PING_S: Final = 10.0
_ERROR: Final = -1
_NODE_EXISTS: Final = -110
_EPHEMERAL: Final = 1
_HEADER: Final = struct.Struct(">i?i")


class Encoded:
    """A request that creates or changes many nodes. It is encoded before the measurement starts."""

    type: Final = Transaction.type

    def __init__(self, body: bytes) -> None:
        self._body = body

    def serialize(self) -> bytes:
        return self._body


class Session(JuteSession):
    """One ZooKeeper session, new or resumed.

    Attributes:
        identity: Session id and password. A later connection needs both to resume the session.
        expired: True if the server has ended the session.
    """

    def __init__(self, identity: tuple[int, bytes] = (0, bytes(16))) -> None:
        super().__init__()
        self.identity = identity
        self.expired = False
        self._multis: set[int] = set()

    def hello(self) -> bytes:
        return self._hello(*self.identity)

    def _connected(self, data: bytes, position: int) -> None:
        found, _ = Connect.deserialize(data, position + 4)
        if found.time_out <= 0:
            self.expired = True
            raise WireError("the session has expired")
        self.identity = found.session_id, found.passwd
        self.ready = True

    def create_all(self, nodes: Encoded) -> bytes:
        """Return a request that creates all these nodes, or none of them; see :func:`encode_nodes`."""
        data = self.request(nodes)
        self._multis.add(self.tag)
        return data

    def children(self, path: str) -> bytes:
        return self.request(GetChildren(path, None))

    def close(self) -> bytes:
        return self.request(Close())

    def feed(self, data: bytes) -> list[Answer]:
        return [self._judged(answer) for answer in super().feed(data)]

    def _judged(self, answer: Answer) -> Answer:
        """Return the answer; add the error if a request for many nodes failed.

        ZooKeeper answers such a failed request with success, and puts the errors into the body.
        """
        if answer.tag not in self._multis:
            return answer
        self._multis.discard(answer.tag)
        if answer.error is None:
            # Take the first error: ZooKeeper does not try the parts of a request that follow a failed part.
            error = next(filter(None, _errors(answer.body)), 0)
            # An existing node is no error: an earlier try of this session has created all nodes of the
            # request.
            if error not in (0, _NODE_EXISTS):
                return Answer(answer.tag, f"error {error}", b"")
        return answer


def _errors(body: bytes) -> Iterator[int]:
    """Yield the error of each part of a failed request for many nodes.

    Yield nothing if the request succeeded.
    """
    at = 0
    while len(body) - at >= _HEADER.size:
        kind, done, _ = _HEADER.unpack_from(body, at)
        if done or kind != _ERROR:
            return
        at += _HEADER.size
        yield int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4


def encode_nodes(nodes: Iterable[tuple[str, bytes]], *, ephemeral: bool) -> Encoded:
    flags = _EPHEMERAL if ephemeral else 0
    made = [Create(path, value, OPEN_ACL_UNSAFE, flags) for path, value in nodes]
    return Encoded(bytes(Transaction(made).serialize()))


def encode_changes(nodes: Iterable[tuple[str, bytes]]) -> Encoded:
    """Return one request that changes the data of all these nodes, or of none of them."""
    return Encoded(bytes(Transaction([SetData(path, value, -1) for path, value in nodes]).serialize()))


def nodes_of(key: int, topics: list[str], *, queues: int = QUEUES) -> list[tuple[str, bytes]]:
    """Return the path and the data of each ephemeral node of a broker."""
    data = b"%d" % queues
    child = topic_child(key)
    found = [(f"{topic_path(topic)}/{child}", data) for topic in topics]
    return [*found, (master_path(key), encode_addr(broker_addr(key)))]


def lasting_nodes(keys: Iterable[int], topics: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the persistent nodes below which brokers create their ephemeral nodes, parents first."""
    above = [*(f"{topic_path(topic)}/x" for topic in topics), *(f"{IDS}/{key}/x" for key in keys)]
    return [(path, b"") for path in ancestors(above)]


def ancestors(paths: list[str]) -> list[str]:
    """Return every ancestor of the given ZooKeeper paths once, each parent before its children."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            found["/" + "/".join(names[:depth])] = None
    return list(found)


def slices(nodes: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    for start in range(0, len(nodes), NODES_PER_MULTI):
        yield nodes[start : start + NODES_PER_MULTI]
