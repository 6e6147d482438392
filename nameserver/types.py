"""Types that several parts of the nameserver use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, TypeAlias

import msgspec

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand

if TYPE_CHECKING:
    BrokerName = NewType("BrokerName", str)
    """Name that a master and its slaves share."""
    BrokerAddr = NewType("BrokerAddr", str)
    """Address at which a broker serves clients: ``host:port``, or ``[v6]:port`` for IPv6."""
    ClusterName = NewType("ClusterName", str)
    ConnectionId = NewType("ConnectionId", int)
    """Number of an accepted connection in this process; a younger connection has a greater number."""
else:
    # At run time, use the plain types, because a call of a NewType takes four times as long as str(). A
    # registration makes five values of these types.
    BrokerName = BrokerAddr = ClusterName = str
    ConnectionId = int


class BrokerKey(NamedTuple):
    """Identity of one broker process, as in RocketMQ 5.x. RocketMQ 4.9 uses the address alone."""

    cluster_name: ClusterName
    broker_addr: BrokerAddr

    def __str__(self) -> str:
        return f"{self.cluster_name}/{self.broker_addr}"


class LeaveReason(StrEnum):
    """Reason why a broker, or a topic at a broker, was removed from the table.

    The raft log contains the values, so they must not change.
    """

    CONNECTION_CLOSED = "closed"
    LEASE_EXPIRED = "expired"
    UNREGISTERED = "unregistered"
    DISPLACED = "displaced"
    """Another address took the broker's id."""
    MOVED = "moved"
    """The broker registered under another broker name or broker id."""
    FENCED = "fenced"
    """Another address holds the same broker id with a greater state version."""
    DELETED = "deleted"
    """An admin request deleted the topic."""
    ABSENT = "absent"
    """The broker's newest registration does not contain the topic."""


Request: TypeAlias = RemotingCommand
"""One received request. Only its code, arguments, body and version decide the answer to it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request.

    The server adds the fields opaque, flag and version, and chooses the header codec.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""


REMARK_MAX: Final = 1024
"""Largest length of a refusal's remark in characters. The remark may repeat parts of a request."""


def refusal(remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> Answer:
    """Return an answer which says that a request was not applied, or that its outcome is unknown."""
    return Answer(code=code, remark=remark[:REMARK_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class MinBrokerChange:
    """A change of the smallest broker id of a broker name. Request 905 may notify brokers of this change.

    Attributes:
        min_broker_addr: Address of the broker with the smallest id; None when no broker is left.
        offline_addr: Address of the broker that was removed; None if none was removed.
        ha_addr: Replication address of the broker with the new smallest id.
        tell: Addresses of the brokers to notify; the nameserver connects to each address.

    Source: RouteInfoManager.notifyMinBrokerIdChanged, RocketMQ 5.3.
    """

    min_broker_id: int
    min_broker_addr: BrokerAddr
    offline_addr: BrokerAddr | None
    ha_addr: str | None
    tell: tuple[BrokerAddr, ...]


class KvEntry(NamedTuple):
    """One value of the KV configuration."""

    value: str | None
    revision: int
