"""Brokers that do nothing but stay listed, in the three protocols (pure).

Ours registers all its topics with every nameserver, and says it again every 30 s. ZooKeeper's holds a session
with ephemeral nodes, laid out as MetaQ laid them (:mod:`routekeeper.bench.arms.layout`), and pings. etcd's
holds a lease with keys of the same names and values, and keeps it alive by a stream.
"""

from __future__ import annotations

from typing import Final

from routekeeper.bench.arms.layout import nodes_of
from routekeeper.bench.micro.raft.grpc import (
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    PUT,
    GrpcConnection,
    field,
    fields_of,
    message,
    number_field,
)
from routekeeper.bench.micro.raft.jute import JuteSession
from routekeeper.bench.micro.raft.remoting_wire import RemotingWire, broker_addr, topic_name
from routekeeper.bench.micro.raft.wire import WireError

#: RocketMQ's registerNameServerPeriod. Sessions are pinged and leases kept alive every third of their length,
#: as ZooKeeper's and etcd's clients do.
REGISTER_S: Final = 30.0
_THIRDS: Final = 3
_QUEUES: Final = 4


def period_s(kind: str, lease_s: float) -> float:
    """Return the seconds between two heartbeats of a broker."""
    return REGISTER_S if kind == "remoting" else lease_s / _THIRDS


def nodes(key: int, topics: int) -> dict[str, bytes]:
    """Return path and data of all that lists a broker."""
    names = {topic_name(key, topic): _QUEUES for topic in range(topics)}
    return dict(nodes_of(key, broker_addr(key), names))


def ancestors(paths: list[str]) -> list[str]:
    """Return each node above one of these once, after its own parent."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            found["/" + "/".join(names[:depth])] = None
    return list(found)


class RemotingBroker(RemotingWire):
    """See :class:`routekeeper.bench.micro.raft.wire.BrokerWire`: a broker's connection to one nameserver."""

    def steps(self) -> list[list[bytes]]:
        return [[self.prepare()]]


class JuteBroker(JuteSession):
    """See :class:`routekeeper.bench.micro.raft.wire.BrokerWire`: one session with one server."""

    def __init__(self, *, key: int, topics: int, lease_s: int) -> None:
        super().__init__(lease_s * 1000)
        self._nodes = nodes(key, topics)

    def steps(self) -> list[list[bytes]]:
        """All in one: a server does what a session asks in order."""
        if self.timeout_ms != self._asked_ms:
            raise WireError(f"a session of {self.timeout_ms} ms was granted, {self._asked_ms} were asked for")
        above = [self.create(path.encode(), b"", may_exist=True) for path in ancestors(list(self._nodes))]
        own = [self.create(path.encode(), data, ephemeral=True) for path, data in self._nodes.items()]
        return [above + own]

    def heartbeat(self) -> bytes:
        return self.ping()


class GrpcBroker(GrpcConnection):
    """See :class:`routekeeper.bench.micro.raft.wire.BrokerWire`: one lease, kept alive at one member."""

    def __init__(self, *, key: int, topics: int, lease_s: int) -> None:
        super().__init__()
        self._lease = key + 1  # 0 would let the server choose
        self._grant = number_field(1, lease_s) + number_field(2, self._lease)
        self._nodes = nodes(key, topics)
        self._keep_alive = message(number_field(1, self._lease))
        self._stream = 0

    def steps(self) -> list[list[bytes]]:
        granted = self.call(LEASE_GRANT, message(self._grant))
        puts = [
            self.call(PUT, message(field(1, path.encode()) + field(2, data) + number_field(3, self._lease)))
            for path, data in self._nodes.items()
        ]
        first = self.begin(LEASE_KEEP_ALIVE, self._keep_alive)
        self._stream = self.tag
        return [[granted], puts, [first]]

    def heartbeat(self) -> bytes:
        return self.more(self._stream, self._keep_alive)

    def judge(self, body: bytes) -> str | None:
        """An answer without a time to live says that there is no such lease."""
        return None if fields_of(body).get(3) else "the lease is gone"
