"""Arguments of the requests with which operators inspect and manage brokers.

The module :mod:`.fields` explains how these classes are read and written.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from routekeeper.remoting.bounds import NAME_MAX, TOPIC_NAME_MAX
from routekeeper.remoting.fields import ClientId, Fields, Int32, Int64, Name, TopicName

_StatsKey = Annotated[str, Meta(max_length=NAME_MAX + TOPIC_NAME_MAX + 1)]


class ResetGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 222, INVOKE_BROKER_TO_RESET_OFFSET.

    A timestamp of -1 means the end of each queue. RocketMQ 5.x can also name one queue, and an offset to use
    instead of the timestamp.
    """

    topic: TopicName
    group: Name
    timestamp: Int64 = -1
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 = -1


class ConsumerStatusFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 223, INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

    On the wire, the client id is called ``clientAddr``, but it is no address.
    """

    topic: TopicName
    group: Name
    client_id: ClientId | None = field(name="clientAddr", default=None)


class TopicGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of the requests 303, QUERY_CONSUME_TIME_SPAN, and 345, QUERY_SUBSCRIPTION_BY_CONSUMER."""

    topic: TopicName
    group: Name


class GroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of the requests 343, QUERY_TOPICS_BY_CONSUMER, and 352, GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: Name


class CorrectionOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 308, QUERY_CORRECTION_OFFSET.

    ``filterGroups`` are the groups to exclude, separated by commas.
    """

    topic: TopicName
    compare_group: Name
    filter_groups: str | None = None


class CloneGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 314, CLONE_GROUP_OFFSET."""

    src_group: Name
    dest_group: Name
    topic: TopicName | None = None
    offline: bool = False


class BrokerStatsFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 315, VIEW_BROKER_STATS_DATA."""

    stats_name: Name
    stats_key: _StatsKey


class BrokerConsumeStatsFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 317, GET_BROKER_CONSUME_STATS."""

    is_order: bool = False


class QueryConsumeQueueFields(Fields, frozen=True, kw_only=True):
    """Arguments of request 321, QUERY_CONSUME_QUEUE."""

    topic: TopicName
    queue_id: Int32
    index: Int64 = 0
    count: Int32
    consumer_group: Name | None = None
