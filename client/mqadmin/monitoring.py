"""Subcommand startMonitoring, which reports each group's lag, and members that consume nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from routekeeper.remoting import wall_clock
from routekeeper.remoting.bodies import ConsumeOffset, ConsumerConnection, MessageQueue
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.interrupt import interruptible_sleep
from routekeeper.remoting.lenient import ANSWER, INT64_MAX, as_object, get_bool, get_int, get_list, loads

from ..config import ConsumerConfig
from ..errors import describe
from ..operation import Operation
from ..queue_reader import ReceivedMessage, TopicReader
from . import java
from .context import Context
from .message import TOOLS_CONSUMER
from .options import Arguments, Command, Option
from .targets import ask_together, call_within, document, first_online, masters_of_group

#: Name of the consumer group of this subcommand, and name of the topic to which brokers send events. Source:
#: MixAll.MONITOR_CONSUMER_GROUP and TopicValidator.RMQ_SYS_OFFSET_MOVED_EVENT.
_GROUP: Final = "__MONITOR_CONSUMER"
_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
#: Seconds from the start of one report on all groups to the start of the next report. Source:
#: MonitorConfig.roundInterval.
_ROUND_S: Final = 60
_WITHIN_S: Final = 30.0
#: Smallest version number of clients that are asked for their state. Source: MQVersion.V3_1_8_SNAPSHOT.
_VERSION_MIN: Final = 62
#: The members' subscriptions are compared only if one of the members has run for more than this number of ms:
#: the member whose client id is the first in text order. Source: ConsumerRunningInfo.
_STARTED_MS: Final = 2 * 60 * 1000
#: Milliseconds without a consumed message after which a queue is reported. Source: ConsumerRunningInfo.
_SILENT_MS: Final = 60 * 1000
_PREFIX: Final = "[MONITOR] "
_NOTIFY: Final = f"{_PREFIX} [NOTIFY] "
_LINE: Final = "=" * 41

Info = Mapping[str, Any]


def _start_monitoring(context: Context, args: Arguments) -> None:
    round_s = args.number("roundInterval", "roundInterval", _ROUND_S, low=1, high=86_400)
    context.run(context.client.admin.topic_list())  # fail now if the nameserver's address is wrong
    listener = context.client.push_consumer(
        ConsumerConfig(group=_GROUP), {_MOVED_TOPIC: "*"}, lambda batch: _moved(context, batch)
    )
    listener.start()
    while True:
        begin = time.monotonic()
        context.line(f"{_PREFIX}{_LINE}beginRound")
        try:
            for group in _groups(context):
                _report(context, group)
        except RemotingError as error:
            context.fail(error)
        context.line(f"{_PREFIX}{_LINE}endRound")
        interruptible_sleep(max(begin + round_s - time.monotonic(), 0))


def _groups(context: Context) -> list[str]:
    topics = context.run(context.client.admin.topic_list()).topics
    return sorted(topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))


def _moved(context: Context, messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        try:
            text = moved_text(message.body)
        except RemotingError as error:
            context.fail(f"{message.message_id}: {error}")
            continue
        event = f"DeleteMsgsEvent [offsetMovedEvent={text}, eventTimestamp={message.store_ms}]"
        context.line(f"{_PREFIX}reportDeleteMsgsEvent: {event}")


def moved_text(body: bytes) -> str:
    """Return the text of a broker's event "offset moved".

    A broker sends this event after it moved a consumer's offset, because the messages at the old offset were
    deleted.

    Source: OffsetMovedEvent.toString.

    Raises:
        RemoteProtocolError: If the event cannot be decoded.
    """
    members = as_object(loads(body, ANSWER), "event")
    queue = MessageQueue.from_json(as_object(members.get("messageQueue"), "messageQueue"))
    return (
        f"OffsetMovedEvent [consumerGroup={java.text(members.get('consumerGroup'))},"
        f" messageQueue={java.queue_text(queue)},"
        f" offsetRequest={get_int(members, 'offsetRequest', limit=INT64_MAX)},"
        f" offsetNew={get_int(members, 'offsetNew', limit=INT64_MAX)}]"
    )


def _report(context: Context, group: str) -> None:
    """Print the state of one group, but nothing for a group without members, as RocketMQ's tool does."""
    try:
        addrs = masters_of_group(context, group)
        online = first_online(context, addrs, group)
    except RemotingError as error:
        context.fail(f"group {group}: {describe(error)}")
        return
    if online is None:
        return
    _report_undone(context, group, addrs)
    _report_members(context, group, addrs, online)


def _report_undone(context: Context, group: str, addrs: Sequence[str]) -> None:
    offsets: dict[MessageQueue, ConsumeOffset] = {}
    for addr in addrs:
        try:
            offsets.update(context.run(context.client.admin.consume_stats(addr, group)).offsets)
        except RemotingError as error:
            context.fail(f"group {group}: broker {addr}: {describe(error)}")
    consumer = TopicReader(context.client.core, TOOLS_CONSUMER)
    for topic in sorted({queue.topic for queue in offsets}):
        rows = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        delay = max((_delay_ms(context, consumer, *row) for row in rows.items()), default=0)
        behind = [max(row.broker_offset - row.consumer_offset, 0) for row in rows.values()]
        context.line(
            f"{_PREFIX}reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic},"
            f" undoneMsgsTotal={sum(behind)}, undoneMsgsSingleMQ={max(behind)},"
            f" undoneMsgsDelayTimeMills={max(delay, 0)}]"
        )


def _delay_ms(context: Context, consumer: TopicReader, queue: MessageQueue, offset: ConsumeOffset) -> int:
    """Return a queue's delay in ms.

    The delay is the store time of the queue's last message minus the store time of the last consumed message.
    """
    if offset.last_timestamp <= 0 or offset.broker_offset <= 0:
        return 0
    try:
        last = context.run(consumer.pull(queue, offset.broker_offset - 1, count=1))
    except RemotingError as error:
        context.fail(f"{java.queue_text(queue)}: {describe(error)}")
        return 0
    return max((message.store_ms - offset.last_timestamp for message in last.messages), default=0)


def _report_members(context: Context, group: str, addrs: Sequence[str], online: ConsumerConnection) -> None:
    names = sorted(found.client_id for found in online.connections if found.version >= _VERSION_MIN)

    def ask(client_id: str, left_s: float) -> Operation[Info]:
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return document((yield from call_within(context, addrs[0], code, ext, left_s)))

    infos, failures = ask_together(context, names, ask, within_s=_WITHIN_S)
    for client_id, error in failures.items():
        context.fail(f"group {group}: client {client_id}: {describe(error)}")
    now_ms = wall_clock.now_ms()
    try:
        lines = list(member_lines(infos, now_ms=now_ms))
    except RemotingError as error:
        context.fail(f"group {group}: {error}")
        return
    for line in lines:
        context.line(f"{_NOTIFY}reportConsumerRunningInfo: ConsumerGroup: {group}, {line}")


def member_lines(infos: Mapping[str, Info], *, now_ms: int) -> Iterable[str]:
    """Yield a line for each fault in the states that a group's members reported.

    Raises:
        RemoteProtocolError: If a report has an unexpected form.

    Source: ConsumerRunningInfo.analyzeSubscription and analyzeProcessQueue, 5.3.
    """
    ordered = [infos[client_id] for client_id in sorted(infos)]
    wanted = [_subscriptions(info) for info in ordered]
    if ordered and _pushed(ordered[0]) and any(one != wanted[0] for one in wanted):
        started_ms = get_int(_properties(ordered[0]), "PROP_CONSUMER_START_TIMESTAMP", limit=INT64_MAX)
        if now_ms - started_ms > _STARTED_MS:
            yield "Subscription different"
    for client_id, info in sorted(infos.items()):
        if not _pushed(info):
            continue
        ordered_by_locks = get_bool(_properties(info), "PROP_CONSUMEORDERLY")
        for key, value in as_object(info.get("mqTable") or {}, "mqTable").items():
            queue = MessageQueue.from_json(as_object(loads(key, ANSWER), "queue"))
            text = _stuck(as_object(value, "queue"), ordered=ordered_by_locks, now_ms=now_ms)
            if text:
                yield f"ClientId: {client_id}, {client_id} {java.queue_text(queue)} {text}"


def _stuck(queue: Info, *, ordered: bool, now_ms: int) -> str:
    if ordered and not get_bool(queue, "locked"):
        waited_ms = now_ms - get_int(queue, "lastLockTimestamp", limit=INT64_MAX)
        return f"can't lock for a while, {waited_ms}ms"
    if ordered:
        tries = get_int(queue, "tryUnlockTimes", limit=INT64_MAX)
        dropped = get_bool(queue, "droped") and tries > 0
        return f"unlock {tries} times, still failed" if dropped else ""
    silent_ms = now_ms - get_int(queue, "lastConsumeTimestamp", limit=INT64_MAX)
    if silent_ms > _SILENT_MS and get_int(queue, "cachedMsgCount") > 0:
        return f"can't consume for a while, maybe blocked, {silent_ms}ms"
    return ""


def _properties(info: Info) -> dict[str, Any]:
    return as_object(info.get("properties") or {}, "properties")


def _pushed(info: Info) -> bool:
    return _properties(info).get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


def _subscriptions(info: Info) -> list[tuple[str, str]]:
    members = (as_object(one, "subscription") for one in get_list(info, "subscriptionSet"))
    return sorted((str(one.get("topic")), str(one.get("subString"))) for one in members)


COMMANDS: Final = (
    Command(
        name="startMonitoring",
        description="Start Monitoring.",
        options=(
            Option(
                short="",
                long="roundInterval",
                description="seconds from one round to the next, 60 by default",
                own=True,
            ),
        ),
        run=_start_monitoring,
        only_reads=True,
    ),
)
