"""The comparison of the broker entries at all nameservers: it finds missing, older and different entries.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from routekeeper.nameserver.http.answers import QueueData, Version
from routekeeper.nameserver.types import BrokerAddr, BrokerKey, ClusterName
from routekeeper.remoting.route import ClusterInfo
from routekeeper.remoting.steps import Steps

from .bodies import (
    Cell,
    NameserverPulse,
    Own,
    OwnBroker,
    OwnTopic,
    Picture,
    Pulse,
    Row,
    SeenNameserver,
    TopicAt,
    TopicEverywhere,
)
from .own import BROKERS_MAX

LATE_SHARE: Final = 0.5
"""Fraction of a broker's lease after which the console shows a silent broker as late.

A broker with a lease of 120 s is late after 60 s. In this time, it should have registered twice.
"""
#: Broker fields that the console compares, with their names on the page.
_FIELDS: Final[Mapping[str, str]] = {
    "data_version": "data version",
    "broker_name": "broker name",
    "broker_id": "broker id",
    "topics": "number of topics",
    "ha_server_addr": "HA address",
    "lease_ms": "lease",
}
#: The only compared fields that an answer to request 106 has. The console sends this request to nameservers
#: that it cannot ask over HTTP.
_LISTED_FIELDS: Final = ("broker_name", "broker_id")
_STEP: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One nameserver and its newest answer.

    Attributes:
        own: The nameserver's own data; None if the console asked over RocketMQ's protocol. That protocol
            gives only :attr:`listing`.
        listing: Brokers that the nameserver lists, with broker name and id.
        raft: The nameserver's raft address, or "" if it has none.
        at: Time of the answer on the loop's clock, in seconds; None if there was no answer.
    """

    name: str
    source: str
    state: str
    asked_at: str = ""
    reason: str = ""
    own: Own | None = None
    listing: Mapping[BrokerKey, tuple[str, int]] | None = None
    raft: str = ""
    named_by: int = 0
    at: float | None = None


def listing_of(info: ClusterInfo) -> dict[BrokerKey, tuple[str, int]]:
    """Return the brokers in an answer to request 106, with name and id; at most :data:`BROKERS_MAX`."""
    found: dict[BrokerKey, tuple[str, int]] = {}
    for name, data in info.broker_addr_table.items():
        for broker_id, addr in data.broker_addrs.items():
            if len(found) < BROKERS_MAX:
                found[BrokerKey(ClusterName(data.cluster), BrokerAddr(addr))] = name, broker_id
    return found


def making_picture(told: Sequence[Told], *, asked: str, note: str, happened: int) -> Steps[Picture]:
    """Compare the answers of nameservers, in steps. The first answer must be this nameserver's own.

    Args:
        asked: Source of the other nameservers' addresses (see :attr:`.asking.Peers.asked`).
        note: Reason why the console asks no nameserver; empty if it asks some.
        happened: Number that grows with every event that this nameserver knows.
    """
    here = told[0].own
    assert here is not None, "this nameserver knows itself"
    keys: dict[BrokerKey, None] = {}
    copies: list[dict[BrokerKey, OwnBroker]] = []
    for each in told:
        brokers = () if each.own is None else each.own.brokers
        found = {_key(broker): broker for broker in brokers}
        copies.append(found)
        keys.update(dict.fromkeys(found))
        keys.update(dict.fromkeys(each.listing or ()))
        yield
    rows, ordered = [], sorted(keys)[:BROKERS_MAX]
    for start in range(0, len(ordered), _STEP):
        rows += [_row(key, told, copies) for key in ordered[start : start + _STEP]]
        yield
    picture = Picture(
        mode=here.mode,
        tag="",
        asked=asked,
        note=note,
        happened=happened,
        differing=sum(row.differs for row in rows),
        more_brokers=here.brokers_in_all - len(here.brokers),
        nameservers=tuple(_columns(told)),
        rows=tuple(rows),
    )
    return msgspec.structs.replace(
        picture, tag=blake2b(msgspec.json.encode(picture), digest_size=8).hexdigest()
    )


def _key(broker: OwnBroker) -> BrokerKey:
    return BrokerKey(ClusterName(broker.cluster), BrokerAddr(broker.broker_addr))


def _age(version: Version) -> tuple[int, int, int]:
    """Return a sort key for versions of one broker's topics; the newest version sorts last.

    Source: DataVersion.compare, RocketMQ 5.3. This order is only for the page: nameservers do not sort
    versions.
    """
    return version.state_version, version.counter, version.timestamp


def _row(key: BrokerKey, told: Sequence[Told], copies: Sequence[Mapping[BrokerKey, OwnBroker]]) -> Row:
    newest = max(
        (found[key] for found in copies if key in found), key=lambda one: _age(one.data_version), default=None
    )
    name, broker_id = "", 0
    if newest is not None:
        name, broker_id = newest.broker_name, newest.broker_id
    else:
        name, broker_id = next(
            each.listing[key] for each in told if each.listing is not None and key in each.listing
        )
    cells = tuple(
        _cell(each, found.get(key), key, newest, name, broker_id)
        for each, found in zip(told, copies, strict=True)
    )
    return Row(
        cluster=key.cluster_name,
        broker_addr=key.broker_addr,
        broker_name=name,
        broker_id=broker_id,
        topics=None if newest is None else newest.topics,
        differs=any(cell.state in ("missing", "older", "differs") for cell in cells),
        cells=cells,
    )


def _cell(
    told: Told, copy: OwnBroker | None, key: BrokerKey, newest: OwnBroker | None, name: str, broker_id: int
) -> Cell:
    if told.own is None:
        if told.listing is None:
            return Cell(state="unknown")
        if key not in told.listing:
            return Cell(state="missing")
        pairs = zip(_LISTED_FIELDS, told.listing[key], (name, broker_id), strict=True)
        differing = tuple(_FIELDS[field] for field, there, right in pairs if there != right)
        return Cell(state="differs", differs=differing) if differing else Cell()
    if copy is None:
        return Cell(state="missing")
    assert newest is not None, "this copy is one"
    differing = tuple(
        words for field, words in _FIELDS.items() if getattr(copy, field) != getattr(newest, field)
    )
    shown = msgspec.structs.replace(copy, last_seen_ms=None)
    if _age(copy.data_version) < _age(newest.data_version):
        return Cell(state="older", differs=differing, broker=shown)
    if differing:
        return Cell(state="differs", differs=differing, broker=shown)
    if copy.last_seen_ms is not None and copy.last_seen_ms > copy.lease_ms * LATE_SHARE:
        return Cell(state="late")
    return Cell()


def _columns(told: Sequence[Told]) -> Iterable[SeenNameserver]:
    here = told[0].own
    assert here is not None
    # Prefer the links of the leader, because the leader has links to all live members. If the leader has not
    # answered, use this member's links.
    leading = next((each.own for each in told if each.own is not None and each.own.role == "leader"), here)
    up = {leading.me, *leading.linked} & set(leading.voters)
    critical = members_to_keep(leading.voters, up) if here.mode == "raft" else frozenset()
    for each in told:
        own, raft = each.own, each.raft or (each.own.me if each.own is not None else "")
        seen = SeenNameserver(
            name=each.name,
            asked_at=each.asked_at,
            source=each.source,
            raft=raft,
            state=each.state,
            reason=each.reason,
            knows="all" if own is not None else "listing" if each.listing is not None else "nothing",
            named_by=each.named_by,
            brokers=None if each.listing is None else len(each.listing),
        )
        if own is not None:
            seen = msgspec.structs.replace(
                seen,
                role=own.role,
                term=own.term,
                leader=own.leader,
                ready=own.ready,
                waiting_for=own.waiting_for,
                version=own.version,
                topics=own.topics,
                brokers=own.brokers_in_all,
                same_table=own.digest == here.digest,
            )
        if here.mode == "raft" and raft:
            seen = msgspec.structs.replace(
                seen,
                votes=raft in leading.voters,
                linked=raft == leading.me or raft in leading.linked,
                stops_group=raft in critical,
            )
        yield seen


def members_to_keep(voters: Collection[str], up: Collection[str]) -> frozenset[str]:
    """Return the live members that the group cannot lose: if one of them fails, the group stops.

    If the live voters are exactly a majority, the result is all live voters. Otherwise it is empty.
    """
    majority = len(voters) // 2 + 1
    return frozenset(up) if len(up) == majority else frozenset()


def pulse_of(told: Sequence[Told], picture: Picture, *, now: float) -> Pulse:
    """Return the figures that change all the time, in the order of the picture's rows."""
    committed = max((each.own.commit_index for each in told if each.own is not None), default=0)
    found = []
    for each in told:
        own, seen = each.own, dict[tuple[str, str], int]()
        passed_s = 0.0 if each.at is None else now - each.at
        if own is not None:
            seen = {
                (broker.cluster, broker.broker_addr): round(broker.last_seen_ms / 1000 + passed_s)
                for broker in own.brokers
                if broker.last_seen_ms is not None
            }
        found.append(
            NameserverPulse(
                name=each.name,
                answered_ms=None if each.at is None else round(passed_s * 1000),
                last_contact_ms=None if own is None else own.last_contact_ms,
                lag=None if own is None or own.mode != "raft" else max(0, committed - own.applied_index),
                seen_s=tuple(seen.get((row.cluster, row.broker_addr), -1) for row in picture.rows),
            )
        )
    return Pulse(tag=picture.tag, nameservers=tuple(found))


def topic_everywhere(topic: str, found: Sequence[tuple[Told, OwnTopic | None]]) -> TopicEverywhere:
    """Compare a topic's routes at all nameservers with this nameserver's own route, which must come first."""
    here = _route(found[0][1])
    at = tuple(
        TopicAt(
            name=told.name,
            state=told.state,
            reason=told.reason,
            same=None if own is None else _route(own) == here,
            own=own,
        )
        for told, own in found
    )
    return TopicEverywhere(topic=topic, differs=any(each.same is False for each in at), nameservers=at)


def _route(own: OwnTopic | None) -> tuple[object, ...]:
    """Return the compared parts of a route: queues and addresses of each broker name."""
    if own is None or own.route is None:
        return ()
    queues: list[QueueData] = sorted(own.route.queue_datas, key=lambda data: data.broker_name)
    brokers = sorted(own.route.broker_datas, key=lambda data: data.broker_name)
    return (
        tuple((one.broker_name, one.perm, one.read_queue_nums, one.write_queue_nums) for one in queues),
        tuple((one.broker_name, tuple(sorted(one.broker_addrs.items()))) for one in brokers),
    )
