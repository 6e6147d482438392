"""Content of the route table, as immutable values, and the marks that stand for them in digests.

Most topics have equal queue data at the same brokers: one :class:`QueueSet` serves all of them. The garbage
collector does not track the most numerous values, which cannot be part of a cycle. So a collection does not
visit a whole large table.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from operator import mul
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import astuple

from routekeeper.nameserver.commands import QueueMapping
from routekeeper.nameserver.types import BrokerKey, BrokerName, ClusterName
from routekeeper.remoting.route import DataVersion, QueueData

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

NO_MAPPINGS: Final[Mapping[str, QueueMapping]] = {}

SLICE: Final = 5_000
"""Number of topics that one call into C handles while a thread works on a snapshot."""

MASK: Final = (1 << 128) - 1
"""Digests are sums modulo 2**128."""

_encode_parts: Final = msgspec.msgpack.Encoder().encode


def mark_of(*parts: Any) -> int:
    """Return 128 bits that stand for a fact in a digest; equal in every process."""
    return int.from_bytes(blake2b(_encode_parts(parts), digest_size=16).digest(), "big")


def mark_of_topic(topic: str) -> int:
    """Return 128 bits that stand for a topic.

    No other fact is encoded as a bare text, so it cannot have the same bits.
    """
    return int.from_bytes(blake2b(topic.encode(), digest_size=16).digest(), "big")


def sum_of_products(left: list[int], right: list[int]) -> int:
    """Return the sum of each number times its neighbour, in slices: see :data:`SLICE`."""
    total = 0
    for start in range(0, len(left), SLICE):
        end = start + SLICE
        total += sum(map(mul, left[start:end], right[start:end]))
    return total


def made_of(kind: type[_Struct], *members: Any) -> _Struct:
    """Make a struct from its members' values in order: the reverse of :func:`astuple`."""
    return kind(**dict(zip(kind.__struct_fields__, members, strict=True)))


def host_mark(host: str) -> int:
    """Return the bits that stand for a charged host in digests; 0 for none, as in older tables."""
    return mark_of("h", host) if host else 0


class Share(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Queue data of one broker name for some topics.

    A table keeps one object of each value, so identity means equality.

    Attributes:
        mark: Stands for the data in digests.
    """

    data: QueueData
    mark: int

    @classmethod
    def of(cls, data: QueueData) -> Share:
        return cls(data, mark_of("q", *astuple(data)))


class QueueSet(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Queue data of some topics at all their brokers.

    A table keeps one object of each value, so identity means equality.

    Attributes:
        by_name: Broker name to queue data; never changed, and empty in :data:`NO_QUEUES` only.
        mark: Sum of the shares' marks, modulo 2**128.
    """

    by_name: Mapping[str, QueueData]
    mark: int


NO_QUEUES: Final = QueueSet({}, 0)
"""The queue set of a topic that does not exist."""


class TopicEntry(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A topic in the table. Entries and their maps are replaced, never changed, so copies may share them.

    Topics that one change set to the same values share one entry.

    Attributes:
        queue_set: Queue data by broker name.
        mappings: Broker name to mapping info of a static topic; only names that are in ``queues``.
        revision: Revision of the last change of the entry itself; see :meth:`RouteView.topic_revision`.
        host: Host that is charged for it, see :class:`.room.Ledger`.
    """

    queue_set: QueueSet
    mappings: Mapping[str, QueueMapping]
    revision: int
    host: str = ""

    @property
    def queues(self) -> Mapping[str, QueueData]:
        """Broker name to queue data; never empty."""
        return self.queue_set.by_name


class NameEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A broker name: a master and its slaves. The defaults are the values before the first registration.

    Attributes:
        cluster: Cluster of the first registration; it stays while the name exists, as RocketMQ documents.
        clusters: All clusters under which it registered, in order of text; 106 and 224 list it in each.
        addrs: Broker id to record key; never empty in a table.
        revision: Revision of the last change of addresses, ids or permissions.
        route_revision: Revision of the last change that shows in the routes of all its topics.
        perms_set: Whether an operator changed permissions (205, 327) after the last full registration of
            another version. If True, a registration of an equal version does not change the listed
            permissions.
        host: Host that is charged for its queue data, see :class:`.room.Ledger`.
    """

    cluster: ClusterName
    clusters: tuple[ClusterName, ...] = ()
    addrs: Mapping[int, BrokerKey] = {}
    enable_acting_master: bool = False
    zone_name: str | None = None
    revision: int = 0
    route_revision: int = 0
    perms_set: bool = False
    host: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One registered broker process.

    Attributes:
        complete: False after an incremental registration: it then equals no data version.
        filter_servers: Empty if it has none.
        revision: Revision of the last change, or of the last :class:`Touch`.
        host: Host that is charged for it, see :class:`.room.Ledger`.
    """

    broker: BrokerKey
    broker_name: BrokerName
    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    complete: bool
    lease_ms: int
    filter_servers: tuple[str, ...]
    revision: int
    host: str = ""
