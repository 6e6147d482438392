"""What the route table keeps, as immutable values, and the image of all of it as bytes.

Image: one msgpack array that starts with its format version. Queue data are listed once and topics point to
them, because most topics of a broker have equal ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from nameserver.commands import BaseKind, QueueMapping
from nameserver.types import BrokerAddr, BrokerKey, BrokerName, ClusterName
from remoting.route import DataVersion, QueueData

IMAGE_VERSION: Final = 1
"""Format of the state image that this program writes."""


class TopicEntry(NamedTuple):
    """A topic. Its maps are replaced, never changed, so copies may share them.

    Attributes:
        queues: Broker name to queue data; never empty.
        mappings: Broker name to mapping info of a static topic; only names that are in ``queues``.
        revision: Of the last change of the entry itself; see :meth:`RouteView.topic_revision`.
    """

    queues: Mapping[str, QueueData]
    mappings: Mapping[str, QueueMapping]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NameEntry:
    """A broker name: a master and its slaves.

    Attributes:
        cluster: Of the first registration; kept while the name exists, as documented.
        clusters: All clusters under which it registered, in order of text; 106 and 224 list it in each.
        addrs: Broker id to record key; never empty.
        revision: Of the last change of addresses, ids or permissions.
        route_revision: Of the last change that all its topics' routes show.
    """

    cluster: ClusterName
    clusters: tuple[ClusterName, ...]
    addrs: Mapping[int, BrokerKey]
    enable_acting_master: bool
    zone_name: str | None
    revision: int
    route_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One registered broker process.

    Attributes:
        complete: False after an incremental registration: it then equals no data version.
        filter_servers: Empty if it has none.
        revision: Of the last change, or of the last :class:`Touch`.
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


class KvEntry(NamedTuple):
    """One value of the KV configuration."""

    value: str | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A copy of all replicated state at one revision; its values are shared with the table and immutable."""

    revision: int
    floor: int
    kv_seen: bool
    digest: int
    topics: Mapping[str, TopicEntry]
    names: Mapping[BrokerName, NameEntry]
    records: Mapping[BrokerKey, Record]
    kv: Mapping[str, Mapping[str, KvEntry]]
    tombstones: Mapping[tuple[BaseKind, Hashable], int]


class ImageError(Exception):
    """Bytes that are no state image this program understands."""


class _ImageBody(msgspec.Struct, array_like=True):
    """Layout of an image. Queue data are listed once; topics point to them by position."""

    version: int
    revision: int
    floor: int
    kv_seen: bool
    digest: str
    queue_datas: list[tuple[str, int, int, int, int]]
    topics: list[tuple[str, int, list[int], list[tuple[str, int, str]]]]
    names: list[tuple[str, str, list[str], list[tuple[int, str, str]], bool, str | None, int, int]]
    records: list[tuple[str, str, str, int, str, tuple[int, int, int], bool, int, tuple[str, ...], int]]
    kv: dict[str, dict[str, tuple[str | None, int]]]
    tombstones: list[tuple[str, tuple[str, ...], int]]


_image_decoder: Final = msgspec.msgpack.Decoder(_ImageBody)


def encode_image(image: Image) -> bytes:
    """Return an image as bytes; takes seconds for millions of queue data, so run it in a thread."""
    places: dict[int, int] = {}
    datas: list[tuple[str, int, int, int, int]] = []

    def place(data: QueueData) -> int:
        found = places.get(id(data))
        if found is None:
            found = places[id(data)] = len(datas)
            datas.append(
                (
                    data.broker_name,
                    data.read_queue_nums,
                    data.write_queue_nums,
                    data.perm,
                    data.topic_sys_flag,
                )
            )
        return found

    topics = [
        (
            topic,
            entry.revision,
            [place(data) for data in entry.queues.values()],
            [(name, mapping.epoch, mapping.info) for name, mapping in entry.mappings.items()],
        )
        for topic, entry in image.topics.items()
    ]
    body = _ImageBody(
        version=IMAGE_VERSION,
        revision=image.revision,
        floor=image.floor,
        kv_seen=image.kv_seen,
        digest=f"{image.digest:032x}",
        queue_datas=datas,
        topics=topics,
        names=[
            (
                name,
                entry.cluster,
                list(entry.clusters),
                [(i, key.cluster_name, key.broker_addr) for i, key in entry.addrs.items()],
                entry.enable_acting_master,
                entry.zone_name,
                entry.revision,
                entry.route_revision,
            )
            for name, entry in image.names.items()
        ],
        records=[
            (
                record.broker.cluster_name,
                record.broker.broker_addr,
                record.broker_name,
                record.broker_id,
                record.ha_server_addr,
                (
                    record.data_version.state_version,
                    record.data_version.timestamp,
                    record.data_version.counter,
                ),
                record.complete,
                record.lease_ms,
                record.filter_servers,
                record.revision,
            )
            for record in image.records.values()
        ],
        kv={
            namespace: {key: (entry.value, entry.revision) for key, entry in values.items()}
            for namespace, values in image.kv.items()
        },
        tombstones=[
            (kind, tuple(key) if isinstance(key, tuple) else (str(key),), removed_at)
            for (kind, key), removed_at in image.tombstones.items()
        ],
    )
    return msgspec.msgpack.encode(body)


def decode_image(data: bytes) -> Image:
    """Read an image.

    Raises:
        ImageError: If it is damaged or of an unknown format.
    """
    try:
        body = _image_decoder.decode(data)
        if body.version != IMAGE_VERSION:
            raise ImageError(f"image is of format {body.version}, this program reads {IMAGE_VERSION}")
        return _image_from(body)
    except (msgspec.DecodeError, IndexError, ValueError) as error:
        raise ImageError(f"image of {len(data)} bytes is damaged: {error}") from None


def _image_from(body: _ImageBody) -> Image:
    datas = [
        QueueData(
            broker_name=name, read_queue_nums=reads, write_queue_nums=writes, perm=perm, topic_sys_flag=flag
        )
        for name, reads, writes, perm, flag in body.queue_datas
    ]
    names = {
        BrokerName(name): NameEntry(
            cluster=ClusterName(cluster),
            clusters=tuple(ClusterName(text) for text in clusters),
            addrs={i: BrokerKey(ClusterName(c), BrokerAddr(a)) for i, c, a in addrs},
            enable_acting_master=acting,
            zone_name=zone,
            revision=revision,
            route_revision=route_revision,
        )
        for name, cluster, clusters, addrs, acting, zone, revision, route_revision in body.names
    }
    records = {}
    for cluster, addr, name, broker_id, ha_addr, version, complete, lease, filters, revision in body.records:
        broker = BrokerKey(ClusterName(cluster), BrokerAddr(addr))
        state_version, timestamp, counter = version
        records[broker] = Record(
            broker=broker,
            broker_name=BrokerName(name),
            broker_id=broker_id,
            ha_server_addr=ha_addr,
            data_version=DataVersion(state_version=state_version, timestamp=timestamp, counter=counter),
            complete=complete,
            lease_ms=lease,
            filter_servers=filters,
            revision=revision,
        )
    return Image(
        revision=body.revision,
        floor=body.floor,
        kv_seen=body.kv_seen,
        digest=int(body.digest, 16),
        topics={
            topic: TopicEntry(
                {datas[place].broker_name: datas[place] for place in places},
                {name: QueueMapping(topic=topic, epoch=e, info=info) for name, e, info in mappings},
                revision,
            )
            for topic, revision, places, mappings in body.topics
        },
        names=names,
        records=records,
        kv={
            namespace: {key: KvEntry(value, revision) for key, (value, revision) in values.items()}
            for namespace, values in body.kv.items()
        },
        tombstones={_mark(kind, key): removed_at for kind, key, removed_at in body.tombstones},
    )


def _mark(kind: str, key: tuple[str, ...]) -> tuple[BaseKind, Hashable]:
    match kind, key:
        case "record", (cluster, addr):
            return "record", BrokerKey(ClusterName(cluster), BrokerAddr(addr))
        case "key", (namespace, name):
            return "key", (namespace, name)
        case ("name" | "topic") as plain, (text,):
            return plain, text
    raise ImageError(f"image remembers the removal of a {kind} with {len(key)} parts")
