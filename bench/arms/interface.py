"""The interface of every arm: sessions of brokers and clients, new clients' look-ups, a producer's client.

``servers.py`` has the servers behind it, which a fault may hit. ``bench/cuts.py`` has the links that a fault
may cut, the same in every arm.
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
#: First number of brokers whose names do not come from the harness.
FOREIGN_FROM: Final = 1_000_000
FOREIGN_COUNT: Final = 1_000_000_000

ArmKind = Literal["remoting", "zookeeper"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses to which one group of users connects; a fault may cut it off from some of them."""

    name: str
    servers: list[str]
    """Nameservers or ZooKeeper servers, by index."""
    http: list[str] = []
    brokers: dict[str, str] = {}
    """Address that a broker announces to the one that this side dials."""


class ArmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that users need about the arm under test."""

    kind: ArmKind
    sides: list[Side]
    lease_ms: int
    """How long a silent broker stays listed: lease, or session time-out."""
    refresh_ms: int
    heartbeat_ms: int
    divisor: float
    timeout_s: float
    watches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The announcement of one simulated broker.

    Attributes:
        topics: Topic to number of queues.
        version: Number of its changes; also the number of queues of its changing topic.
    """

    index: int
    addr: str
    topics: Mapping[str, int]
    version: int
    stamp: int = 0

    @property
    def name(self) -> str:
        return broker_name(self.index)


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
    """The result of a look-up."""

    outcome: Outcome
    target: int | None = None
    code: int | None = None
    remark: str | None = None
    brokers: list[int] | None = None
    version: int | None = None
    attempts: int = 1


class BrokerSession(Protocol):
    """The session of one simulated broker; its arm lists the broker until the session is closed."""

    def announce(self, listing: Listing) -> list[Told]:
        """Announce a change; return when every server has answered or failed."""

    def heartbeat(self, listing: Listing) -> list[Told]:
        """Repeat the last announcement, if the arm needs repeats."""

    def withdraw(self) -> None:
        """Unregister the broker."""

    def close(self) -> None:
        """Close the connections, as the death of a broker does."""


class ClientSession(Protocol):
    """One client's connections to its arm; routes are not cached here."""

    def look_up(self, topic: str) -> Looked:
        """Ask for a topic's route, one server after the other."""

    def close(self) -> None: ...


class Arm(Protocol):
    """The user's side of one arm."""

    config: ArmConfig

    def broker(self, side: Side) -> BrokerSession: ...

    def client(self, side: Side, user: int) -> ClientSession: ...

    def starting_client(self, side: Side, first: int) -> ClientSession:
        """Return a client that asks this server first, as one that starts may."""

    def newcomer(self, side: Side, target: int, topic: str) -> Looked:
        """Ask one server for one topic as a new client, and disconnect."""

    def producer_client(self, side: Side, user: int, *, seed: int, hooks: tuple[RPCHook, ...]) -> Client:
        """Return a client of the product with routes from this arm, which it refreshes."""


def broker_name(index: int) -> str:
    return f"sim-{index}" if index >= SIMULATED_FROM else f"broker-{index}"


def broker_index(name: str) -> int | None:
    """Return the number of a broker: the one in its name, else one computed from it; None for no name."""
    found = _BROKER.fullmatch(name)
    if found:
        return int(found[1] or found[2])
    return FOREIGN_FROM + zlib.crc32(name.encode()) % FOREIGN_COUNT if name else None


def broker_indexes(names: Iterable[str]) -> list[int]:
    return sorted(index for name in names if (index := broker_index(name)) is not None)


def looked_at(route: TopicRouteData, *, target: int | None, attempts: int = 1) -> Looked:
    """Return the brokers of a route with queues and an address, and the most queues of one of them."""
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
    """Return a route with the addresses for one side's connections in place of the announced ones."""
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
