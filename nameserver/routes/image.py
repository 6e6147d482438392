"""The snapshot of the route table's whole state, as a value and as bytes.

The bytes are one msgpack array that starts with its format version. Equal queue data and queue sets are
written only once.

The values of topics are written as columns, because one call of a C function then reads or writes a whole
column. During such a call, no other thread of the process can run, not even the event loop. Therefore columns
are split into slices of some thousand topics.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

import msgspec
from msgspec.structs import astuple

from routekeeper.nameserver.commands import BaseKind, QueueMapping
from routekeeper.nameserver.types import BrokerKey, BrokerName, KvEntry
from routekeeper.remoting.lenient import UNREADABLE
from routekeeper.remoting.route import DataVersion, QueueData

from .entries import (
    MASK,
    NO_MAPPINGS,
    SLICE,
    NameEntry,
    QueueSet,
    Record,
    Share,
    TopicEntry,
    made_of,
)

IMAGE_VERSION: Final = 2
"""Format of the snapshots that this program writes and reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A copy of all replicated state at one revision. The copy and the table share immutable values.

    Attributes:
        floor: Revision up to which removals may have been forgotten (see :class:`.tombstones.Tombstones`).
        limited: True if a command with limits was ever applied (see :class:`.store.RouteStore`).
        digest: Digest of the state that clients see.
    """

    revision: int = 0
    floor: int = 0
    digest: str = "0" * 32
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    names: Mapping[BrokerName, NameEntry] = field(default_factory=dict)
    records: Mapping[BrokerKey, Record] = field(default_factory=dict)
    kv: Mapping[str, Mapping[str, KvEntry]] = field(default_factory=dict)
    tombstones: Mapping[BaseKind, Mapping[Hashable, int]] = field(default_factory=dict)
    limited: bool = False


NOTHING: Final = Image()
"""The snapshot of a new table, which is empty."""


class ImageError(Exception):
    """The bytes are not a snapshot that this program understands."""


class _Slice(msgspec.Struct, array_like=True):
    """Some topics, written as columns.

    Attributes:
        sets: For each topic, the position of its queue set in ``queue_sets`` of :class:`_ImageBody`.
        hosts: For each topic, the position of its host in ``hosts`` of :class:`_ImageBody`.
    """

    topics: list[str]
    revisions: list[int]
    sets: list[int]
    hosts: list[int] = []


class _ImageBody(msgspec.Struct, array_like=True):
    """Layout of a snapshot's bytes.

    Attributes:
        queue_datas: Members of :class:`QueueData`, in order.
        queue_sets: Each set as positions in ``queue_datas``.
        slices: The topics. Each slice is an encoded :class:`_Slice`.
        mappings: Mapping infos by topic, each as broker name, epoch and info. Topics without mapping infos
            do not appear.
        names: For each broker name: the name, followed by the members of :class:`NameEntry` without
            ``perms_set`` and ``host``. Each record key in ``addrs`` is written as two texts.
        records: For each record: the members of :class:`Record` without ``host``. ``broker`` is written as
            two texts, and ``data_version`` as a tuple.
        kv_seen: True if a namespace was ever created. Namespaces are never removed.
        gone_topics, gone_topic_revisions: Columns of removed topics and the revisions of their removals. The
            removals of other kinds are in ``tombstones``.
        perms_set: Broker names whose :class:`NameEntry` has this flag. Snapshots of older programs lack this
            member.
        hosts: Hosts whose limits count at least one entry. Snapshots of older programs lack ``hosts`` and the
            positions in it.
        host_of_name, host_of_record: Positions in ``hosts``, in the order of ``names`` and ``records``.
    """

    version: int
    revision: int
    floor: int
    kv_seen: bool
    digest: str
    queue_datas: list[tuple[str, int, int, int, int]]
    queue_sets: list[tuple[int, ...]]
    slices: list[bytes]
    mappings: dict[str, list[tuple[str, int, str]]]
    names: list[tuple[str, str, tuple[str, ...], list[tuple[int, str, str]], bool, str | None, int, int]]
    records: list[tuple[str, str, str, int, str, tuple[int, int, int], bool, int, tuple[str, ...], int]]
    kv: Mapping[str, Mapping[str, KvEntry]]
    gone_topics: list[str]
    gone_topic_revisions: list[int]
    tombstones: list[tuple[str, tuple[str, ...], int]]
    perms_set: tuple[str, ...] = ()
    hosts: list[str] = []
    host_of_name: list[int] = []
    host_of_record: list[int] = []
    limited: bool = False


_PARTS_OF_KEYS: Final = {"record": 2, "key": 2, "name": 1}
"""Number of parts of a key in ``tombstones``, by kind.

The two parts of a record's key are the fields of its :class:`BrokerKey`.
"""


class _ImageVersion(msgspec.Struct, array_like=True):
    version: int


def encode_image(image: Image) -> bytes:
    """Encode a snapshot. This takes some 0.1 s for 100,000 topics, so run it in a thread."""
    entries = image.topics.values()
    sets = {queue_set: place for place, queue_set in enumerate(dict.fromkeys([e.queue_set for e in entries]))}
    hosts: dict[str, int] = {}

    def place_of(host: str) -> int:
        return hosts.setdefault(host, len(hosts))

    datas: dict[int, tuple[int, QueueData]] = {}
    # Use tuples instead of lists. The garbage collector stops tracking tuples of numbers, so it runs faster.
    places = [
        tuple([datas.setdefault(id(data), (len(datas), data))[0] for _, data in sorted(kept.by_name.items())])
        for kept in sets
    ]
    slices = []
    topics_left, entries_left = iter(image.topics), iter(entries)
    while topics := list(islice(topics_left, SLICE)):
        some = list(islice(entries_left, SLICE))
        columns = _Slice(
            topics,
            [entry.revision for entry in some],
            [sets[entry.queue_set] for entry in some],
            [place_of(entry.host) for entry in some],
        )
        slices.append(msgspec.msgpack.encode(columns))
    gone_topics = image.tombstones.get("topic", {})
    body = _ImageBody(
        version=IMAGE_VERSION,
        revision=image.revision,
        floor=image.floor,
        kv_seen=bool(image.kv),
        digest=image.digest,
        queue_datas=[astuple(data) for _, data in datas.values()],
        queue_sets=places,
        slices=slices,
        mappings={
            topic: [(name, mapping.epoch, mapping.info) for name, mapping in entry.mappings.items()]
            for topic, entry in image.topics.items()
            if entry.mappings
        },
        names=[_name_row(name, entry) for name, entry in image.names.items()],
        records=[_record_row(record) for record in image.records.values()],
        kv=image.kv,
        gone_topics=[str(topic) for topic in gone_topics],
        gone_topic_revisions=list(gone_topics.values()),
        tombstones=[
            (kind, tuple(key) if isinstance(key, tuple) else (str(key),), removed_at)
            for kind, removals in image.tombstones.items()
            if kind != "topic"
            for key, removed_at in removals.items()
        ],
        perms_set=tuple([name for name, entry in image.names.items() if entry.perms_set]),
        host_of_name=[place_of(entry.host) for entry in image.names.values()],
        host_of_record=[place_of(record.host) for record in image.records.values()],
        hosts=list(hosts),
        limited=image.limited,
    )
    return msgspec.msgpack.encode(body)


def _name_row(name: str, entry: NameEntry) -> Any:
    members = astuple(entry)
    return name, *members[:2], [(broker_id, *key) for broker_id, key in entry.addrs.items()], *members[3:-2]


def _record_row(record: Record) -> Any:
    members = astuple(record)
    return *record.broker, *members[1:4], astuple(record.data_version), *members[5:-1]


def decode_image(data: bytes) -> Image:
    """Decode a snapshot.

    Raises:
        ImageError: The bytes are damaged or have an unknown format.
    """
    try:
        version = msgspec.msgpack.decode(data, type=_ImageVersion).version
        if version != IMAGE_VERSION:
            raise ImageError(f"image is of format {version}, this program reads {IMAGE_VERSION}")
        return _image_from(msgspec.msgpack.decode(data, type=_ImageBody))
    except (*UNREADABLE, LookupError, ValueError) as error:
        raise ImageError(f"image of {len(data)} bytes is damaged: {error}") from None


def _image_from(body: _ImageBody) -> Image:
    datas = [made_of(QueueData, *row) for row in body.queue_datas]
    marks = [Share.of(data).mark for data in datas]
    sets = [
        QueueSet(
            {datas[place].broker_name: datas[place] for place in places},
            sum(marks[place] for place in places) & MASK,
        )
        for places in body.queue_sets
    ]
    topics = {}
    entries: dict[tuple[int, int, str], TopicEntry] = {}
    for data in body.slices:
        columns = msgspec.msgpack.decode(data, type=_Slice)
        hosts = [body.hosts[place] for place in columns.hosts] or [""] * len(columns.topics)
        for topic, revision, place, host in zip(
            columns.topics, columns.revisions, columns.sets, hosts, strict=True
        ):
            alike = place, revision, host
            entry = entries.get(alike)
            if entry is None:
                entry = entries[alike] = TopicEntry(sets[place], NO_MAPPINGS, revision, host)
            topics[topic] = entry
    for topic, infos in body.mappings.items():
        mappings = {name: QueueMapping(topic=topic, epoch=epoch, info=info) for name, epoch, info in infos}
        topics[topic] = msgspec.structs.replace(topics[topic], mappings=mappings)
    names = {}
    perms_set = frozenset(body.perms_set)
    hosts = [body.hosts[place] for place in body.host_of_name] or [""] * len(body.names)
    for row, host in zip(body.names, hosts, strict=True):
        addrs = {broker_id: BrokerKey._make(key) for broker_id, *key in row[3]}
        names[BrokerName(row[0])] = made_of(NameEntry, *row[1:3], addrs, *row[4:], row[0] in perms_set, host)
    records = {}
    hosts = [body.hosts[place] for place in body.host_of_record] or [""] * len(body.records)
    for line, host in zip(body.records, hosts, strict=True):
        broker = BrokerKey._make(line[:2])
        version = made_of(DataVersion, *line[5])
        records[broker] = made_of(Record, broker, *line[2:5], version, *line[6:], host)
    tombstones: dict[BaseKind, dict[Hashable, int]] = {}
    if body.gone_topics:
        tombstones["topic"] = dict(zip(body.gone_topics, body.gone_topic_revisions, strict=True))
    for kind, key, removed_at in body.tombstones:
        if _PARTS_OF_KEYS.get(kind) != len(key):
            raise ImageError(f"image remembers the removal of a {kind} with {len(key)} parts")
        removals = tombstones.setdefault(cast(BaseKind, kind), {})
        removals[key[0] if kind == "name" else key] = removed_at
    return Image(
        revision=body.revision,
        floor=body.floor,
        digest=body.digest,
        topics=topics,
        names=names,
        records=records,
        kv=body.kv,
        tombstones=tombstones,
        limited=body.limited,
    )
