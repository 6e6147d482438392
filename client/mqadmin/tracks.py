"""Message tracks: the outcome of a message in each consumer group of the message's topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routekeeper.remoting.bodies import ConsumerConnection, MessageQueue
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import RemotingError, ResponseError

from ..errors import NotApplied, describe
from ..queue_reader import ReceivedMessage
from .context import Context
from .targets import first_online, found_at, masters_of_group, masters_of_topic

_EVERY_TAG: Final = "*"


@dataclass(frozen=True, slots=True)
class Track:
    """The outcome of a message in one group.

    Attributes:
        kind: RocketMQ's name of the outcome. Source: TrackType.
        reason: Reason why the outcome is unknown, or None.
    """

    group: str
    kind: str
    reason: str | None = None

    def __str__(self) -> str:
        """Return the track as RocketMQ's tool prints it. Source: MessageTrack.toString."""
        reason = "null" if self.reason is None else self.reason
        return f"MessageTrack [consumerGroup={self.group}, trackType={self.kind}, exceptionDesc={reason}]"

    def to_json(self) -> dict[str, str | None]:
        return {"consumerGroup": self.group, "trackType": self.kind, "exceptionDesc": self.reason}


def kind_of(members: ConsumerConnection, message: ReceivedMessage, *, passed: bool) -> str:
    """Return RocketMQ's name for the outcome of a message in a group that has members.

    Args:
        passed: True if the group's offset in the message's queue is beyond the message. This argument is
            ignored for a broadcasting group, because the broker stores no offsets of such a group.
    """
    if members.message_model == "BROADCASTING":
        return "CONSUME_BROADCASTING"
    if members.consume_type == "CONSUME_ACTIVELY":
        return "PULL"
    if not passed:
        return "NOT_CONSUME_YET"
    wanted = members.subscriptions.get(message.topic)
    tags = () if wanted is None else wanted.tags
    if not tags or _EVERY_TAG in tags or message.tags in tags:
        return "CONSUMED"
    return "CONSUMED_BUT_FILTERED"


def tracks_of(context: Context, message: ReceivedMessage) -> list[Track]:
    """Return the outcome of a message in each consumer group of its topic.

    Raises:
        RemotingError: If the topic's groups cannot be read. If only one group's outcome cannot be read, the
            track of that group contains the reason instead.
    """
    admin = context.client.admin
    brokers = masters_of_topic(context, message.topic)
    groups = dict.fromkeys(
        group
        for addr in brokers.values()
        for group in context.run(admin.consumer_groups_of(addr, message.topic))
    )
    return [_track_in(context, group, brokers, message) for group in groups]


def _track_in(context: Context, group: str, brokers: dict[str, str], message: ReceivedMessage) -> Track:
    try:
        members = first_online(context, masters_of_group(context, group), group)
        if members is None:
            return Track(group, "NOT_ONLINE", "no member is online")
        return Track(group, kind_of(members, message, passed=_passed(context, group, brokers, message)))
    except RemotingError as error:
        # A broker creates the retry topic when the group's first member connects. If the retry topic is
        # missing, the group may never have had a member. Or a nameserver has just started and does not know
        # the topic yet.
        never = isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST
        reason = "no route of its retry topic: perhaps it never had a member" if never else describe(error)
        return Track(group, "UNKNOWN", " ".join(reason.split()))


def _passed(context: Context, group: str, brokers: dict[str, str], message: ReceivedMessage) -> bool:
    holders = found_at(brokers, message.store_host)
    name = holders[0] if holders else message.queue.broker_name
    if name not in brokers:
        raise NotApplied(f"{message.store_host}, which has the message, is not a master of the topic")
    stats = context.run(context.client.admin.consume_stats(brokers[name], group))
    queue = MessageQueue(topic=message.topic, broker_name=name, queue_id=message.queue.queue_id)
    offset = stats.offsets.get(queue)
    return offset is not None and offset.consumer_offset > message.queue_offset
