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
    """Arguments of INVOKE_BROKER_TO_RESET_OFFSET 222.

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
    """Arguments of INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223; ``clientAddr`` is a client id."""

    topic: TopicName
    group: Name
    client_id: ClientId | None = field(name="clientAddr", default=None)


class TopicGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of QUERY_CONSUME_TIME_SPAN 303 and QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    topic: TopicName
    group: Name


class GroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of QUERY_TOPICS_BY_CONSUMER 343 and GET_SUBSCRIPTIONGROUP_CONFIG 352."""

    group: Name


class CorrectionOffsetFields(Fields, frozen=True, kw_only=True):
    """Arguments of QUERY_CORRECTION_OFFSET 308.

    ``filterGroups`` are the groups to exclude, separated by commas.
    """

    topic: TopicName
    compare_group: Name
    filter_groups: str | None = None


class CloneGroupFields(Fields, frozen=True, kw_only=True):
    """Arguments of CLONE_GROUP_OFFSET 314."""

    src_group: Name
    dest_group: Name
    topic: TopicName | None = None
    offline: bool = False


class BrokerStatsFields(Fields, frozen=True, kw_only=True):
    """Arguments of VIEW_BROKER_STATS_DATA 315."""

    stats_name: Name
    stats_key: _StatsKey


class BrokerConsumeStatsFields(Fields, frozen=True, kw_only=True):
    """Arguments of GET_BROKER_CONSUME_STATS 317."""

    is_order: bool = False


class QueryConsumeQueueFields(Fields, frozen=True, kw_only=True):
    """Arguments of QUERY_CONSUME_QUEUE 321."""

    topic: TopicName
    queue_id: Int32
    index: Int64 = 0
    count: Int32
    consumer_group: Name | None = None
