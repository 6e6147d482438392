"""Interface of every arm (compared design): sessions of brokers and clients, look-ups, a producer's client.

The servers of an arm, which faults may stop, are in ``arms/servers.py``. The network links that faults may
cut are in ``bench/cuts.py``. These links are the same for every arm.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

import msgspec

from routekeeper.bench.events import SIMULATED_FROM, Outcome
from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.remoting.route import TopicRouteData
from routekeeper.remoting.transport import RPCHook

CLUSTER: Final = "Bench"
_BROKER: Final = re.compile(r"broker-(\d{1,2})|sim-(\d{1,6})")
#: Brokers whose names the benchmark did not choose have numbers from this number on. The number of such a
#: broker is this value plus a checksum of its name.
FOREIGN_FROM: Final = 1_000_000
FOREIGN_COUNT: Final = 1_000_000_000

ArmKind = Literal["remoting", "zookeeper"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One group of clients and brokers, with the addresses to which the group connects.

    A fault may cut the links between the group and these addresses.
    """

    name: str
    servers: list[str]
    """Addresses of the nameservers or of ZooKeeper's servers, by index."""
    brokers: dict[str, str] = {}
    """Maps the address that a broker announces to the address to which this side connects."""


class ArmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that clients and brokers need to know about the measured design (arm)."""

    kind: ArmKind
    sides: list[Side]
    lease_ms: int
    """Time in ms for which a silent broker stays listed: its lease, or ZooKeeper's session time-out."""
    refresh_ms: int
    heartbeat_ms: int
    divisor: float
    timeout_s: float
    watches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The announcement of one simulated broker.

    Attributes:
        topics: Number of queues by topic.
        version: Number of changes that the broker has made so far. All changes are changes of one topic. Each
            change sets the number of queues of this topic to ``version``.
    """

    index: int
    addr: str
    topics: Mapping[str, int]
    version: int
    stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One server's answer to an announcement."""

    target: int | None
    outcome: Outcome
    sent_ns: int
    done_ns: int
    remark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The result of a look-up: the topic's brokers, or the error."""

    outcome: Outcome
    target: int | None = None
    code: int | None = None
    remark: str | None = None
    brokers: list[int] | None = None
    version: int | None = None
    attempts: int = 1


class BrokerSession(Protocol):
    """The session of one simulated broker.

    The design's servers list the broker until the session is closed.
    """

    def announce(self, listing: Listing) -> list[Told]:
        """Announce a change. Return the answers when every server has answered or failed."""

    def heartbeat(self, listing: Listing) -> list[Told]:
        """Repeat the last announcement, if the design's servers would otherwise drop the broker."""

    def withdraw(self) -> None:
        """Unregister the broker."""

    def close(self) -> None:
        """Close the connections without unregistering, as a broker's crash does."""


class ClientSession(Protocol):
    """One client's connections to the servers of a design. The session does not cache routes."""

    def look_up(self, topic: str) -> Looked:
        """Ask for a topic's route. If a server does not answer, ask the next server."""

    def close(self) -> None: ...


class Arm(Protocol):
    """The part of one design that simulated brokers and clients use."""

    config: ArmConfig

    def broker(self, side: Side) -> BrokerSession: ...

    def client(self, side: Side, user: int) -> ClientSession: ...

    def starting_client(self, side: Side, first: int) -> ClientSession:
        """Return a client whose first request goes to the server at index ``first``.

        By default a client begins with a random server.
        """

    def newcomer(self, side: Side, target: int, topic: str) -> Looked:
        """Connect to one server as a new client, ask for one topic's route, and disconnect."""

    def producer_client(self, side: Side, user: int, *, seed: int, hooks: tuple[RPCHook, ...]) -> Client:
        """Return RouteKeeper's own client, which reads and refreshes routes at this design's servers."""


def broker_name(index: int) -> str:
    return f"sim-{index}" if index >= SIMULATED_FROM else f"broker-{index}"


def broker_index(name: str) -> int | None:
    """Return the number in a broker's name, or :data:`FOREIGN_FROM` plus a checksum of any other name.

    Return None for an empty name.
    """
    found = _BROKER.fullmatch(name)
    if found:
        return int(found[1] or found[2])
    return FOREIGN_FROM + zlib.crc32(name.encode()) % FOREIGN_COUNT if name else None


def broker_indexes(names: Iterable[str]) -> list[int]:
    return sorted(index for name in names if (index := broker_index(name)) is not None)


def looked_at(route: TopicRouteData, *, target: int | None, attempts: int = 1) -> Looked:
    """Return the route's brokers that have queues and an address, and the highest number of their queues.

    Args:
        target: Index of the server that answered, or None if it is unknown.
        attempts: Number of requests until the answer.
    """
    with_addr = {data.broker_name for data in route.broker_datas if data.broker_addrs}
    queues = [data for data in route.queue_datas if data.broker_name in with_addr]
    return Looked(
        outcome="ok",
        target=target,
        brokers=broker_indexes(data.broker_name for data in queues),
        version=max((data.read_queue_nums for data in queues), default=None),
        attempts=attempts,
    )


def as_dialled(route: TopicRouteData, addrs: Mapping[str, str]) -> TopicRouteData:
    """Return a copy of ``route`` with the addresses that clients must dial.

    Args:
        addrs: Maps an announced address to the address that replaces it. Other addresses stay.
    """
    return replace(
        route,
        broker_datas=tuple(
            replace(
                data,
                broker_addrs={number: addrs.get(addr, addr) for number, addr in data.broker_addrs.items()},
            )
            for data in route.broker_datas
        ),
    )


def client_config(config: ArmConfig, servers: Iterable[str]) -> ClientConfig:
    settings = ClientConfig(nameservers=tuple(servers), call_timeout_s=config.timeout_s)
    return divide_periods(settings, config.divisor)
