"""Results of commands in the route table, with details for the answer, the log and waiting requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from routekeeper.nameserver.types import BrokerKey, BrokerName, KvEntry, LeaveReason, MinBrokerChange


class RegisterReply(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the answer to a registration.

    Attributes:
        master_addr, ha_server_addr: Addresses of the master, for a slave whose master is registered.
        order_topics: Content of the KV namespace ``ORDER_TOPIC_CONFIG``; None if it does not exist.
        revision: Revision of the broker's record after the registration. None if the broker has no record,
            because another broker holds its id.
    """

    master_addr: str | None = None
    ha_server_addr: str | None = None
    order_topics: Mapping[str, KvEntry] | None = None
    revision: int | None = None


class CountReply(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command that is one number.

    It is the number of a broker name's topics (requests 205 and 327), or the number of imported KV keys.
    """

    count: int


Reply: TypeAlias = RegisterReply | CountReply | None


class BrokerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A broker whose record was removed by a change."""

    broker: BrokerKey
    broker_name: BrokerName
    reason: LeaveReason


class TopicsLost(msgspec.Struct, frozen=True, kw_only=True):
    """Topics whose queue data at one or more broker names were removed."""

    topics: tuple[str, ...]
    reason: LeaveReason
    broker_name: BrokerName | None
    broker: BrokerKey | None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict: the command changed the table.

    Attributes:
        topics: Topics whose own entry was changed, added or removed.
        names: Broker names for which the change affects the routes of all their topics.
        joined: The broker that this change added; None if it added none.
        kv_changed: True if the KV configuration changed.
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
    """Effects of one change, gathered while the change is made."""

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
    """Verdict: the command changes nothing, because the table already has the requested state."""

    revision: int
    reply: Reply = None


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict: an item that the command depends on has changed since the command was computed.

    The command has no effect, and the request must be decided again.
    """

    revision: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict: the command is refused. The request is not decided again.

    Attributes:
        in_force: True if the change is in force, but the disk refused to store it. In all other cases the
            command changes nothing.
    """

    code: int
    remark: str
    in_force: bool = False


Verdict: TypeAlias = Applied | NoChange | Moved | Rejected
