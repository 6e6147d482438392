"""Simulated brokers that only stay registered, in RocketMQ's and ZooKeeper's protocols.

A RocketMQ broker registers all its topics with every nameserver, and repeats the registration every 30 s.
A ZooKeeper broker holds a session with ephemeral nodes and sends pings. The paths and contents of the nodes
are the same as in MetaQ, RocketMQ's predecessor (:mod:`routekeeper.bench.arms.layout`).

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import Final

from routekeeper.bench.arms.layout import nodes_of
from routekeeper.bench.wires.jute import JuteSession
from routekeeper.bench.wires.remoting_wire import RemotingWire, broker_addr, topic_name
from routekeeper.bench.wires.wire import WireError

#: RocketMQ's registerNameServerPeriod, in seconds.
REGISTER_S: Final = 30.0
_THIRDS: Final = 3
_QUEUES: Final = 4


def period_s(kind: str, lease_s: float) -> float:
    """Return the seconds between two heartbeats of a broker."""
    return REGISTER_S if kind == "remoting" else lease_s / _THIRDS


def nodes(key: int, topics: int) -> dict[str, bytes]:
    """Return the path and the data of every ZooKeeper node that lists a broker."""
    names = {topic_name(key, topic): _QUEUES for topic in range(topics)}
    return dict(nodes_of(key, broker_addr(key), names))


def ancestors(paths: list[str]) -> list[str]:
    """Return every ancestor of the given ZooKeeper paths once, each parent before its children."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            found["/" + "/".join(names[:depth])] = None
    return list(found)


class RemotingBroker(RemotingWire):
    """A broker's connection to one nameserver (see :class:`routekeeper.bench.wires.wire.BrokerWire`)."""

    def steps(self) -> list[list[bytes]]:
        return [[self.prepare()]]


class JuteBroker(JuteSession):
    """A broker's session with one ZooKeeper server (see :class:`routekeeper.bench.wires.wire.BrokerWire`)."""

    def __init__(self, *, key: int, topics: int, lease_s: int) -> None:
        super().__init__(lease_s * 1000)
        self._nodes = nodes(key, topics)

    def steps(self) -> list[list[bytes]]:
        """Return all requests as one step, because ZooKeeper handles a session's requests in order."""
        if self.timeout_ms != self._asked_ms:
            raise WireError(f"a session of {self.timeout_ms} ms was granted, {self._asked_ms} were asked for")
        above = [self.create(path, b"", may_exist=True) for path in ancestors(list(self._nodes))]
        own = [self.create(path, data, ephemeral=True) for path, data in self._nodes.items()]
        return [above + own]

    def heartbeat(self) -> bytes:
        return self.ping()
