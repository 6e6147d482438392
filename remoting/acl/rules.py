"""Permissions that each request code requires, at a broker and at a nameserver.

Source: PlainAccessValidator.parse and Permission.ADMIN_CODE, RocketMQ 4.9. These rules are stricter than
those of RocketMQ 4.9 in three points. Each stricter rule is also in later releases of RocketMQ, or 4.9 lacks
it by mistake:

- request 320 needs the same permissions as 310, and request 361 the same as 11;
- a send to a retry topic needs the permission for that topic's group. The group in the sender's own arguments
  does not count;
- every request that is written to the audit log, or that concerns accounts, needs an admin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from routekeeper.remoting.acl.accounts import Permission, group_resource
from routekeeper.remoting.bodies import HeartbeatData
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode
from routekeeper.remoting.command import RemotingCommand

Need = tuple[str, Permission]
"""The resource name of a topic or a group, and the permission that a request needs for it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirements of one request code at a broker.

    Attributes:
        says: The requirements in words, for the documentation.
        admin: True if only an account with ``admin: true`` may send the request.
        needs: Returns the required permissions for topics and groups. Raises the errors of decoding if the
            request cannot be decoded.
    """

    says: str
    admin: bool = False
    needs: Callable[[RemotingCommand], Iterable[Need]] | None = None


def _send(letter: str) -> Callable[[RemotingCommand], Iterable[Need]]:
    def needs(request: RemotingCommand) -> Iterable[Need]:
        topic = request.ext_fields.get(letter)
        if topic is not None:
            yield topic, Permission.SUB if topic.startswith(RETRY_PREFIX) else Permission.PUB

    return needs


def _arguments(*, topic: str = "", group: str = "") -> Callable[[RemotingCommand], Iterable[Need]]:
    def needs(request: RemotingCommand) -> Iterable[Need]:
        found = request.ext_fields.get(topic)
        if found is not None:
            yield found, Permission.SUB
        found = request.ext_fields.get(group)
        if found is not None:
            yield group_resource(found), Permission.SUB

    return needs


def _heartbeat(request: RemotingCommand) -> Iterable[Need]:
    for consumer in HeartbeatData.decode(request.body).consumers:
        yield group_resource(consumer.group_name), Permission.SUB
        for subscription in consumer.subscriptions:
            yield subscription.topic, Permission.SUB


LITE_PULL_MESSAGE: Final = 361

_ACCOUNT: Final = Rule("an account")
_ADMIN: Final = Rule("an admin", admin=True)
_PUB: Final = "PUB on the topic; of a retry topic SUB on its group"
_SUB: Final = "SUB on topic and group"
_PULL: Final = Rule(_SUB, needs=_arguments(topic="topic", group="consumerGroup"))
_OF_GROUP: Final = Rule("SUB on the group", needs=_arguments(group="consumerGroup"))

BROKER_RULES: Final[Mapping[int, Rule]] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: Rule(_PUB, needs=_send("topic")),
        RequestCode.SEND_MESSAGE_V2: Rule(_PUB, needs=_send("b")),
        RequestCode.SEND_BATCH_MESSAGE: Rule(_PUB, needs=_send("b")),
        RequestCode.CONSUMER_SEND_MSG_BACK: Rule("SUB on the group", needs=_arguments(group="group")),
        RequestCode.PULL_MESSAGE: _PULL,
        LITE_PULL_MESSAGE: _PULL,
        RequestCode.QUERY_MESSAGE: Rule("SUB on the topic", needs=_arguments(topic="topic")),
        RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
        RequestCode.HEART_BEAT: Rule("SUB on each consumer's topics and group", needs=_heartbeat),
        RequestCode.UNREGISTER_CLIENT: _OF_GROUP,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _OF_GROUP,
        **dict.fromkeys(
            (
                RequestCode.QUERY_CONSUMER_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                RequestCode.GET_MAX_OFFSET,
                RequestCode.GET_MIN_OFFSET,
                RequestCode.GET_EARLIEST_MSG_STORETIME,
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                RequestCode.GET_ALL_DELAY_OFFSET,
                RequestCode.LOCK_BATCH_MQ,
                RequestCode.UNLOCK_BATCH_MQ,
                RequestCode.CHECK_CLIENT_CONFIG,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                RequestCode.GET_ALL_TOPIC_CONFIG,
                RequestCode.GET_TOPIC_CONFIG,
                RequestCode.GET_TOPIC_STATS_INFO,
                RequestCode.GET_CONSUME_STATS,
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                RequestCode.QUERY_CONSUME_TIME_SPAN,
                RequestCode.QUERY_CORRECTION_OFFSET,
                RequestCode.GET_BROKER_CONSUME_STATS,
                RequestCode.QUERY_TOPICS_BY_CONSUMER,
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                RequestCode.VIEW_BROKER_STATS_DATA,
                RequestCode.QUERY_CONSUME_QUEUE,
                RequestCode.GET_ALL_PRODUCER_INFO,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
                RequestCode.VIEW_MESSAGE_BY_ID,
                RequestCode.GET_BROKER_CONFIG,
                RequestCode.GET_BROKER_RUNTIME_INFO,
                RequestCode.GET_BROKER_HA_STATUS,
            ),
            _ACCOUNT,
        ),
        **dict.fromkeys(
            (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                RequestCode.UPDATE_BROKER_CONFIG,
                RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
                RequestCode.DELETE_ACL_CONFIG,
                RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
                RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
                RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
                RequestCode.CLONE_GROUP_OFFSET,
                RequestCode.CLEAN_UNUSED_TOPIC,
                RequestCode.DELETE_EXPIRED_COMMITLOG,
            ),
            _ADMIN,
        ),
    }
)
"""Requirements of each request code, at a broker that checks access."""


def broker_rule(code: int) -> Rule:
    """Return the requirements of a request code at a broker; a code without a rule needs an admin."""
    return BROKER_RULES.get(code, _ADMIN)


class Kind(Enum):
    """The kinds of requests at a nameserver; the values are their names in texts for people."""

    READ = "read"
    BROKER = "of brokers"
    UNREGISTRATION = "unregistration of a broker"
    CHANGE = "change"


NAMESRV_KINDS: Final[Mapping[int, Kind]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                RequestCode.GET_KV_CONFIG,
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                RequestCode.GET_KVLIST_BY_NAMESPACE,
                RequestCode.GET_TOPICS_BY_CLUSTER,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                RequestCode.GET_UNIT_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
                RequestCode.GET_NAMESRV_CONFIG,
                RequestCode.GET_BROKER_MEMBER_GROUP,
            ),
            Kind.READ,
        ),
        **dict.fromkeys(
            (RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT),
            Kind.BROKER,
        ),
        RequestCode.UNREGISTER_BROKER: Kind.UNREGISTRATION,
        **dict.fromkeys(
            (
                RequestCode.PUT_KV_CONFIG,
                RequestCode.DELETE_KV_CONFIG,
                RequestCode.WIPE_WRITE_PERM_OF_BROKER,
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                RequestCode.UPDATE_NAMESRV_CONFIG,
                RequestCode.ADD_WRITE_PERM_OF_BROKER,
            ),
            Kind.CHANGE,
        ),
    }
)
"""Kind of each request code at a nameserver. A code that is not listed counts as a change."""

MODES: Final = ("off", "admin", "all")
"""Values of the setting that says which requests a nameserver checks: none, only changes, or all requests."""


class Asks(Enum):
    """The account that a request needs; the value describes the account in words."""

    NOTHING = "nothing"
    ACCOUNT = "an account"
    ADMIN = "an admin"


def namesrv_asks(code: int, mode: str, *, is_stranger: bool = True) -> Asks:
    """Return the account that a request needs at a nameserver. A code without a kind counts as a change.

    Args:
        is_stranger: True if the request's broker never registered over this connection. This matters only for
            request 104 (unregistration).
    """
    kind = NAMESRV_KINDS.get(code, Kind.CHANGE)
    if mode == "off":
        return Asks.NOTHING
    if kind is Kind.CHANGE or (kind is Kind.UNREGISTRATION and is_stranger):
        return Asks.ADMIN
    if mode == "admin":
        return Asks.NOTHING
    return Asks.ACCOUNT if kind is Kind.READ else Asks.ADMIN


def is_change(code: int, *, is_stranger: bool = True) -> bool:
    """Return True if a nameserver accepts a request only from the networks of ``--admin-networks``.

    Args:
        is_stranger: See :func:`namesrv_asks`.
    """
    kind = NAMESRV_KINDS.get(code, Kind.CHANGE)
    return kind is Kind.CHANGE or (kind is Kind.UNREGISTRATION and is_stranger)
