"""Values that several parts of the nameserver use."""

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
    """``host:port`` (``[v6]:port``) under which a broker serves clients."""
    ClusterName = NewType("ClusterName", str)
    ConnectionId = NewType("ConnectionId", int)
    """Number of an accepted connection in this process; a younger connection has a greater one."""
else:  # a NewType's call takes four times as long, and each registration would make five of these calls
    BrokerName = BrokerAddr = ClusterName = str
    ConnectionId = int


class BrokerKey(NamedTuple):
    """Identity of one broker process, as in 5.x. 4.9 uses the address alone."""

    cluster_name: ClusterName
    broker_addr: BrokerAddr

    def __str__(self) -> str:
        return f"{self.cluster_name}/{self.broker_addr}"


class LeaveReason(StrEnum):
    """Why a broker, or a topic at a broker, left the table; the values stand in logs of commands."""

    CONNECTION_CLOSED = "closed"
    LEASE_EXPIRED = "expired"
    UNREGISTERED = "unregistered"
    DISPLACED = "displaced"
    """Another address took its broker id."""
    MOVED = "moved"
    """It registered under another name or id."""
    FENCED = "fenced"
    """The holder of its broker id has a greater state version."""
    DELETED = "deleted"
    """An admin request dropped the topic."""
    ABSENT = "absent"
    """The broker's registration no longer had the topic."""


Request: TypeAlias = RemotingCommand
"""One received request. Only its code, arguments, body and version decide its answer."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the sender. The server adds opaque, flag, version and header codec."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext_fields: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""


REMARK_MAX: Final = 1024
"""Longest remark of a refusal in characters: it may repeat parts of a request."""


def refusal(remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> Answer:
    """Return the answer that a request was not applied, or that its outcome is unknown."""
    return Answer(code=code, remark=remark[:REMARK_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class MinBrokerChange:
    """The smallest broker id behind a name changed; the brokers may be notified by request 905.

    Attributes:
        min_broker_addr: None when no broker is left.
        offline_addr: The address that left, if one did.
        ha_addr: Replication address of the broker with the new smallest id.
        tell: Addresses of the brokers to notify; the nameserver connects to each.
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
