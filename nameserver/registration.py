"""Decoding of request 103 (register broker): a broker's properties and its topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from routekeeper.nameserver.commands import QueueMapping, TopicQueues
from routekeeper.nameserver.types import (
    Answer,
    BrokerAddr,
    BrokerKey,
    BrokerName,
    ClusterName,
    Request,
    refusal,
)
from routekeeper.remoting.bounds import LEASE_MS, LEASE_MS_MAX
from routekeeper.remoting.errors import FieldError, RemoteProtocolError
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.lenient import canonical
from routekeeper.remoting.registration import (
    MAPPING_INFO_BYTES_MAX,
    TopicNumbers,
    body_crc32,
    read_plain_json,
    reading_registration,
    summing_crc32,
)
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import Steps, finish, in_chunks

SHORT_BYTES: Final = 16 * 1024
"""Largest size in bytes of a body that is decoded in one step. Decoding it takes less than 0.1 ms."""

_MAPPING_STEP_BYTES: Final = 64 * 1024


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request 103.

    A request may be decided more than once. Every decision then uses the same decoded form.

    Attributes:
        lease_ms: Milliseconds for which the broker may be silent; the default if the request has no positive
            value.
        enable_acting_master, filter_servers, mappings: As in :class:`RegisterBroker`.
        table: Topics of the body by name, in the body's order.
    """

    broker: BrokerKey
    broker_name: BrokerName
    broker_id: int
    ha_server_addr: str
    lease_ms: int
    enable_acting_master: bool | None
    zone_name: str | None
    data_version: DataVersion
    table: Mapping[str, TopicNumbers]
    filter_servers: tuple[str, ...] | None
    mappings: tuple[QueueMapping, ...]

    def topics(self) -> Steps[tuple[TopicQueues, ...]]:
        """Return the topics in the form that commands use."""
        made: list[TopicQueues] = []
        for topics, said in zip(in_chunks(self.table), in_chunks(self.table.values()), strict=True):
            if made:
                yield
            made += [
                TopicQueues(topic, of.read_queue_nums, of.write_queue_nums, of.perm, of.topic_sys_flag)
                for topic, of in zip(topics, said, strict=True)
            ]
        return tuple(made)


def decode_registration(request: Request) -> Registration | Answer:
    """Decode a request 103 in one step; see :func:`decoding_registration`."""
    return finish(decoding_registration(request))


def decoding_registration(request: Request) -> Steps[Registration | Answer]:
    """Decode a request 103; return a refusal if the request cannot be used.

    The request may be decided more than once. Every decision can use the same result.
    """
    try:
        fields = RegisterBrokerFields.parse(request.ext_fields)
    except FieldError as error:
        return refusal(str(error))
    if not (fields.broker_name and fields.broker_addr and fields.cluster_name):
        required = "brokerName", "brokerAddr", "clusterName"
        return refusal(f"{next(name for name in required if not request.ext_fields[name])} is empty")
    if fields.broker_id < 0:
        return refusal(f"brokerId {fields.broker_id} is negative")
    lease_ms = fields.heartbeat_timeout_ms
    if lease_ms is not None and lease_ms > LEASE_MS_MAX:
        return refusal(
            f"argument heartbeatTimeoutMillis is {lease_ms}, allowed: at most {LEASE_MS_MAX} (a day)"
        )
    data, body = request.body, None
    is_short = len(data) <= SHORT_BYTES
    if fields.body_crc32:
        crc32 = body_crc32(data) if is_short else (yield from summing_crc32(data))
        if crc32 != fields.body_crc32:
            return refusal("crc32 not match")
    try:
        if is_short and not fields.compressed:  # fast path for most requests, which need only one step
            body = read_plain_json(data)
        if body is None:
            body = yield from reading_registration(
                data, compressed=fields.compressed, version=request.version
            )
        mappings = (yield from _mappings(body.mapping_infos)) if body.mapping_infos else ()
    except RemoteProtocolError as error:
        return refusal(f"Failed to decode RegisterBrokerBody: {error}")
    return Registration(
        broker=broker_key(fields.cluster_name, fields.broker_addr),
        broker_name=BrokerName(fields.broker_name),
        broker_id=fields.broker_id,
        ha_server_addr=fields.ha_server_addr,
        lease_ms=LEASE_MS if lease_ms is None or lease_ms <= 0 else lease_ms,
        enable_acting_master=fields.enable_acting_master,
        zone_name=fields.zone_name,
        data_version=body.data_version,
        table=body.topics,
        filter_servers=body.filter_servers,
        mappings=mappings,
    )


def _mappings(infos: Mapping[str, Any]) -> Steps[tuple[QueueMapping, ...]]:
    """Return mapping infos in the form that commands use."""
    made: list[QueueMapping] = []
    size = 0  # bytes of mapping infos encoded since the last yield
    for topic, info in infos.items():
        if size > _MAPPING_STEP_BYTES:
            size = 0
            yield
        made.append(_mapping(topic, info))
        size += len(made[-1].info)
    return tuple(made)


def _mapping(topic: str, info: Any) -> QueueMapping:
    epoch = info.get("epoch", 0) if isinstance(info, dict) else 0
    if type(epoch) is not int or not -(2**63) <= epoch < 2**63:
        raise RemoteProtocolError(f"mapping info of {topic} has epoch {epoch!r}, not a 64-bit integer")
    text = canonical(info)
    size = len(text.encode())
    if size > MAPPING_INFO_BYTES_MAX:
        raise RemoteProtocolError(
            f"mapping info of {topic} has {size} bytes, allowed: at most {MAPPING_INFO_BYTES_MAX}"
        )
    return QueueMapping(topic=topic, epoch=epoch, info=text)


def broker_key(cluster_name: str, broker_addr: str) -> BrokerKey:
    return BrokerKey(ClusterName(cluster_name), BrokerAddr(broker_addr))
