"""Content of the route table: immutable values, and *marks*, the hashes that values add to digests.

Most topics have equal queue data at the same brokers, so they share one :class:`QueueSet`. The garbage
collector does not track the most numerous classes (``gc=False``), because their objects cannot be part of a
cycle. So a garbage collection does not visit the whole table.
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
"""Number of topics that one call into C handles while a thread works on a snapshot.

During such a call, no other thread of the process can run.
"""

MASK: Final = (1 << 128) - 1
"""Bit mask that reduces a sum modulo 2**128. All digests are such sums."""

_encode_parts: Final = msgspec.msgpack.Encoder().encode


def mark_of(*parts: Any) -> int:
    """Return the mark of a value in the table: a hash of 128 bits that is the same in every process."""
    return int.from_bytes(blake2b(_encode_parts(parts), digest_size=16).digest(), "big")


def mark_of_topic(topic: str) -> int:
    """Return the mark of a topic: a hash of 128 bits that is part of a digest.

    The topic is hashed as plain text. All other values are hashed as msgpack arrays, so no other value has
    the same mark.
    """
    return int.from_bytes(blake2b(topic.encode(), digest_size=16).digest(), "big")


def sum_of_products(left: list[int], right: list[int]) -> int:
    """Multiply the lists' elements in pairs, and return the sum of the products.

    The work is done in slices, so that other threads can run between two slices (see :data:`SLICE`).
    """
    total = 0
    for start in range(0, len(left), SLICE):
        end = start + SLICE
        total += sum(map(mul, left[start:end], right[start:end]))
    return total


def made_of(kind: type[_Struct], *members: Any) -> _Struct:
    """Make a struct from its fields' values, in the order of the fields. This reverses :func:`astuple`."""
    return kind(**dict(zip(kind.__struct_fields__, members, strict=True)))


def host_mark(host: str) -> int:
    """Return the hash of an entry's ``host`` for digests, or 0 if ``host`` is empty.

    The entry counts towards the limits of this host (see :class:`.room.Ledger`).
    """
    return mark_of("h", host) if host else 0


class Share(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Queue data of one broker name that some topics share.

    A table keeps only one object for equal values.

    Attributes:
        mark: Hash of the data, as a number that is added to digests.
    """

    data: QueueData
    mark: int

    @classmethod
    def of(cls, data: QueueData) -> Share:
        return cls(data, mark_of("q", *astuple(data)))


class QueueSet(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Queue data of some topics at all their brokers.

    A table keeps only one object for equal values.

    Attributes:
        by_name: Queue data by broker name. The mapping never changes. It is empty only in :data:`NO_QUEUES`.
        mark: Sum of the hashes (marks) of this set's :class:`Share` objects, modulo 2**128.
    """

    by_name: Mapping[str, QueueData]
    mark: int


NO_QUEUES: Final = QueueSet({}, 0)
"""The queue set of a topic that does not exist."""


class TopicEntry(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A topic in the table.

    An entry and its mappings are never changed, only replaced, so copies of the table may share them. Topics
    that one command sets to the same values share one entry, too.

    Attributes:
        queue_set: Queue data by broker name.
        mappings: Mapping infos of a static topic, by broker name. Each of these names also has queue data.
        revision: Revision of the last change of the entry itself (see
            :meth:`.view.RouteView.topic_revision`).
        host: Host whose limits count this topic (see :class:`.room.Ledger`).
    """

    queue_set: QueueSet
    mappings: Mapping[str, QueueMapping]
    revision: int
    host: str = ""

    @property
    def queues(self) -> Mapping[str, QueueData]:
        """Queue data by broker name. It is never empty."""
        return self.queue_set.by_name


class NameEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A broker name: a master and its slaves. The defaults are the values before the first registration.

    Attributes:
        cluster: Cluster of the first registration. It stays as long as the name exists, as in RocketMQ.
        clusters: All clusters under which the name registered, in alphabetical order. Requests 106 and 224
            list the name in each of them.
        addrs: Keys of the brokers' records, by broker id. In a table, it is never empty.
        revision: Revision of the last change of addresses, ids or permissions.
        route_revision: Revision of the last change that shows in the routes of all topics of the name.
        perms_set: True if an operator changed permissions (requests 205, 327), and no full registration with
            a new data version has arrived since. While this is True, a registration with an equal data
            version does not change the permissions of its topics.
        host: Host whose limits count the queue data of this name (see :class:`.room.Ledger`).
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
        complete: False if the last registration was incremental. The next registration then counts as
            different from this record, even if it has the record's data version.
        filter_servers: Addresses of the broker's filter servers; empty without filter servers.
        revision: Revision of the last change, or of the last :class:`Touch`.
        host: Host whose limits count this broker (see :class:`.room.Ledger`).
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
