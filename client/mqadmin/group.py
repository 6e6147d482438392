"""Subcommands consumerProgress and consumerConnection."""

from __future__ import annotations

from typing import Any, Final

from routekeeper.remoting.bodies import ConsumeOffset, MessageQueue
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode
from routekeeper.remoting.errors import ResponseError
from routekeeper.remoting.lenient import ANSWER, as_object, loads

from ..errors import NotApplied
from .context import Context
from .options import OUTPUT, Arguments, Command, Option, UsageError
from .targets import (
    CLUSTER,
    document,
    first_online,
    masters_of_group,
    masters_of_topic,
    second_text,
    version_text,
)

_PROGRESS: Final = "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  "


def _consumer_progress(context: Context, args: Arguments) -> None:
    if "g" not in args:
        for short in "cst":
            if short in args:
                raise UsageError(f"-{short} is for one group only: give -g as well")
        _all_progress(context)
        return
    group, topic, cluster = args.text("g"), args.get("t"), args.get("c")
    with_ip = args.flag("s", "showClientIP")
    rows: dict[MessageQueue, ConsumeOffset] = {}
    tps = 0.0
    for addr in _asked_for_progress(context, group, topic, cluster):
        with context.reporting(f"broker {addr}"):
            stats = context.run(context.client.admin.consume_stats(addr, group, topic))
            rows.update(stats.offsets)
            tps += stats.consume_tps
    lag = sum(offset.broker_offset - offset.consumer_offset for offset in rows.values())
    inflight = sum(_inflight(offset) for offset in rows.values())
    members = _members_of_queues(context, group) if with_ip else {}
    queues = [
        _document(queue, rows[queue]) | ({"clientIp": members.get(queue)} if with_ip else {})
        for queue in sorted(rows)
    ]
    context.json(
        {"group": group, "consumeTps": tps, "diffTotal": lag, "inflightTotal": inflight, "queues": queues}
    )
    # Print no blank before the last word of this title line: RocketMQ's tool prints none there.
    title = _PROGRESS.format("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    title += f"{'#Client IP':<20} " if with_ip else ""
    context.line(f"{title}{'#Diff':<20} {'#Inflight':<20}#LastTime")
    for queue in sorted(rows):
        offset = rows[queue]
        row = _PROGRESS.format(
            queue.topic[:64],
            queue.broker_name[:32],
            queue.queue_id,
            offset.broker_offset,
            offset.consumer_offset,
        )
        row += f"{members.get(queue, 'N/A'):<20} " if with_ip else ""
        diff = offset.broker_offset - offset.consumer_offset
        context.line(f"{row}{diff:<20} {_inflight(offset):<20} {second_text(offset.last_timestamp)}")
    context.line()
    context.line(f"Consume TPS: {tps:.2f}")
    context.line(f"Consume Diff Total: {lag}")
    context.line(f"Consume Inflight Total: {inflight}")


def _asked_for_progress(context: Context, group: str, topic: str | None, cluster: str | None) -> list[str]:
    """Return the addresses of the masters to ask for a group's progress.

    They are the masters of the group's retry topic. If the retry topic has no route, they are the masters of
    the given topic.
    """
    if topic is None:
        return masters_of_group(context, group, cluster)
    try:
        return masters_of_group(context, group, cluster)
    except (ResponseError, NotApplied):
        return list(masters_of_topic(context, topic, cluster).values())


def _members_of_queues(context: Context, group: str) -> dict[MessageQueue, str]:
    """Ask each member of a group for its queues, and return a member's IP address for each queue.

    The IP address is the first part of the member's client id. Queues of members that do not answer are
    missing in the result.
    """
    admin = context.client.admin
    found: dict[MessageQueue, str] = {}
    for addr in masters_of_group(context, group):
        online = first_online(context, [addr], group)
        for member in online.connections if online is not None else ():
            ext = {"consumerGroup": group, "clientId": member.client_id, "jstackEnable": "false"}
            info: dict[str, Any] = {}
            with context.reporting(f"client {member.client_id}"):
                info = document(context.run(admin.call(addr, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)))
            for name in as_object(info.get("mqTable") or {}, "queues"):
                queue = MessageQueue.from_json(loads(name.encode(), ANSWER))
                found[queue] = member.client_id.partition("@")[0]
    return found


_GROUP: Final = "{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}"


def _all_progress(context: Context) -> None:
    """Print each group that has a retry topic: the number of members, the consumption rate and the lag."""
    rows: list[dict[str, Any]] = []
    for topic in context.run(context.client.admin.topic_list()).topics:
        if not topic.startswith(RETRY_PREFIX):
            continue
        group = topic.removeprefix(RETRY_PREFIX)
        with context.reporting(f"group {group}"):
            rows.append(_group_progress(context, group))
    rows.sort(key=lambda row: (-row["count"], -row["diffTotal"], row["group"]))
    context.json(rows)
    context.line(_GROUP.format("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    for row in rows if not context.as_json else ():
        context.line(
            _GROUP.format(
                row["group"][:64],
                row["count"],
                version_text(row["version"]) if row["count"] else "OFFLINE",
                ("PULL" if row["consumeType"] == "CONSUME_ACTIVELY" else "PUSH") if row["count"] else "",
                row["messageModel"] if row["consumeType"] == "CONSUME_PASSIVELY" else "",
                round(row["consumeTps"]),
                row["diffTotal"],
            )
        )


def _group_progress(context: Context, group: str) -> dict[str, Any]:
    addrs = masters_of_group(context, group)
    lag, tps = 0, 0.0
    for addr in addrs:
        stats = context.run(context.client.admin.consume_stats(addr, group))
        lag += sum(offset.broker_offset - offset.consumer_offset for offset in stats.offsets.values())
        tps += stats.consume_tps
    found = first_online(context, addrs, group)
    return {
        "group": group,
        "count": 0 if found is None else len(found.connections),
        "version": 0 if found is None else min((one.version for one in found.connections), default=0),
        "consumeType": None if found is None else found.consume_type,
        "messageModel": None if found is None else found.message_model,
        "consumeTps": tps,
        "diffTotal": lag,
    }


def _inflight(offset: ConsumeOffset) -> int:
    """Return the number of messages that were pulled but not consumed. For a broker of 4.9, return 0."""
    return max(0, offset.pull_offset - offset.consumer_offset)


def _document(queue: MessageQueue, offset: ConsumeOffset) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": offset.broker_offset,
        "consumerOffset": offset.consumer_offset,
        "diff": offset.broker_offset - offset.consumer_offset,
        "inflight": _inflight(offset),
        "lastTimestamp": offset.last_timestamp,
    }


def _consumer_connection(context: Context, args: Arguments) -> None:
    group = args.text("g")
    addrs = [args.text("b")] if "b" in args else masters_of_group(context, group)
    if not addrs:
        raise UsageError(f"no master of group {group!r} is known: give -b")
    found = first_online(context, addrs, group)
    if found is None:
        raise NotApplied(f"no member of group {group!r} is online")
    context.json(
        {
            "group": group,
            "connections": [connection.to_json() for connection in found.connections],
            "subscriptions": {topic: data.sub_string for topic, data in found.subscriptions.items()},
            "consumeType": found.consume_type,
            "messageModel": found.message_model,
            "consumeFromWhere": found.consume_from_where,
        }
    )
    context.line(f"{'#ClientId':<36} {'#ClientAddr':<22} {'#Language':<10} #Version")
    for connection in found.connections:
        context.line(
            f"{connection.client_id:<36} {connection.client_addr:<22}"
            f" {_language(connection.language):<10} {version_text(connection.version)}"
        )
    context.line()
    context.line("Below is subscription:")
    context.line(f"{'#Topic':<20} #SubExpression")
    for topic, data in sorted(found.subscriptions.items()):
        context.line(f"{topic:<20} {data.sub_string}")
    context.line()
    context.line(f"ConsumeType: {found.consume_type}")
    context.line(f"MessageModel: {found.message_model}")
    context.line(f"ConsumeFromWhere: {found.consume_from_where}")


def _language(language: Any) -> str:
    return str(getattr(language, "name", language))


COMMANDS: Final = (
    Command(
        name="consumerProgress",
        description="Query consumer's progress, speed.",
        options=(
            Option(short="g", long="groupName", description="consumer group name"),
            Option(short="t", long="topicName", description="topic name"),
            CLUSTER,
            Option(short="s", long="showClientIP", description="Show Client IP per Queue"),
            OUTPUT,
        ),
        run=_consumer_progress,
        only_reads=True,
    ),
    Command(
        name="consumerConnection",
        description="Query consumer's socket connection, client version and subscription.",
        options=(
            Option(short="g", long="consumerGroup", description="consumer group name", required=True),
            Option(short="b", long="brokerAddr", description="broker address"),
            OUTPUT,
        ),
        run=_consumer_connection,
        only_reads=True,
    ),
)
