"""Outcome of a command in the route table, and the facts for its sender and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from routekeeper.nameserver.types import BrokerKey, BrokerName, KvEntry, LeaveReason, MinBrokerChange


class RegisterReply(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the answer to a registration.

    Attributes:
        master_addr, ha_server_addr: Addresses of the master, for a slave whose master is registered.
        order_topics: KV namespace ``ORDER_TOPIC_CONFIG``, None if there is none.
        revision: Revision of the broker's record after the registration; None if the broker has no record,
            because another holds its id.
    """

    master_addr: str | None = None
    ha_server_addr: str | None = None
    order_topics: Mapping[str, KvEntry] | None = None
    revision: int | None = None


class CountReply(msgspec.Struct, frozen=True, kw_only=True):
    """The number of topics of a broker name (205, 327), or of imported keys."""

    count: int


Reply: TypeAlias = RegisterReply | CountReply | None


class BrokerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a change removed."""

    broker: BrokerKey
    broker_name: BrokerName
    reason: LeaveReason


class TopicsLost(msgspec.Struct, frozen=True, kw_only=True):
    """Topics that lost the queue data of some broker name."""

    topics: tuple[str, ...]
    reason: LeaveReason
    broker_name: BrokerName | None
    broker: BrokerKey | None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The command changed the table.

    Attributes:
        topics: Topics whose own entry was changed, added or removed.
        names: Broker names whose change shows in the routes of all their topics.
        joined: The broker that this change added.
        kv_changed: The KV configuration has changed.
    """

    revision: int
    reply: Reply = None
    topics: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    joined: BrokerKey | None = None
    left: tuple[BrokerLeft, ...] = ()
    lost: tuple[TopicsLost, ...] = ()
    min_changes: tuple[MinBrokerChange, ...] = ()
    kv_changed: bool = False


class Facts(msgspec.Struct):
    """Effects of one change, gathered while it is made."""

    topics: dict[str, object] = {}
    names: dict[str, None] = {}
    joined: BrokerKey | None = None
    left: list[BrokerLeft] = []
    lost: list[TopicsLost] = []
    min_changes: list[MinBrokerChange] = []

    def applied(self, revision: int, reply: Reply = None) -> Applied:
        return Applied(
            revision=revision,
            reply=reply,
            topics=tuple(self.topics),
            names=tuple(self.names),
            joined=self.joined,
            left=tuple(self.left),
            lost=tuple(self.lost),
            min_changes=tuple(self.min_changes),
        )


class NoChange(msgspec.Struct, frozen=True, kw_only=True):
    """The command changes nothing, because the table has this state already."""

    revision: int
    reply: Reply = None


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A thing has changed since the command was computed; the request must be decided again."""

    revision: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The command can never be applied."""

    code: int
    remark: str


Verdict: TypeAlias = Applied | NoChange | Moved | Rejected
