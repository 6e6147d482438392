"""Subcommands that change consumer groups or their offsets, or show producers and consumers.

They are updateSubGroup, deleteSubGroup, getConsumerConfig, resetOffsetByTime, skipAccumulatedMessage,
cloneGroupOffset, brokerConsumeStats, producerConnection, producer and consumerStatus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from routekeeper.remoting.bodies import (
    ClientConnection,
    ConsumeStats,
    MessageQueue,
    ProducerConnection,
    QueueOffsets,
    SubscriptionGroupConfig,
)
from routekeeper.remoting.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.lenient import ANSWER, INT32_MAX, INT64_MAX, as_object, get_int, get_list, loads

from ..errors import NotApplied, describe
from ..queue_reader import QueueReader
from . import java
from .context import Context
from .kept import has_attributes
from .options import OUTPUT, OUTPUT_LONG, Arguments, Command, Option, UsageError, attributes_of, instant
from .targets import (
    CLUSTER,
    ask_each,
    chosen_masters,
    cluster_info,
    document,
    masters_of_cluster,
    masters_of_topic,
    says_absent,
    second_text,
    target_options,
    version_text,
)

_TIMEOUT_MS_MAX: Final = 3_600_000
#: Version number of RocketMQ 5.1.0. Source: MQVersion.
_V5_1_0: Final = 433


def _update_sub_group(context: Context, args: Arguments) -> None:
    config = SubscriptionGroupConfig(
        group_name=args.text("g"),
        consume_enable="s" not in args or args.flag("s", "consumeEnable"),
        # flag() returns False for an absent option. RocketMQ's tool sends False in this case, too.
        consume_from_min_enable=args.flag("m", "consumeFromMinEnable"),
        consume_broadcast_enable=args.flag("d", "consumeBroadcastEnable"),
        retry_queue_nums=args.number("q", "retryQueueNums", 1, low=0, high=1024),
        retry_max_times=args.number("r", "retryMaxTimes", 16, low=-1, high=INT32_MAX),
        broker_id=args.number("i", "brokerId", 0, low=0, high=INT64_MAX),
        which_broker_when_consume_slowly=args.number(
            "w", "whichBrokerWhenConsumeSlowly", 1, low=0, high=INT64_MAX
        ),
        notify_consumer_ids_changed_enable=args.flag("a", "notifyConsumerIdsChanged")
        if "a" in args
        else True,
    )
    more, done = _asked_of_5(args), list[str]()

    def created(addr: str, _answer: RemotingCommand) -> None:
        done.append(addr)
        context.line(f"create subscription group to {addr} success.")

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = orjson.dumps(config.to_json() | more)
    ask_each(context, chosen_masters(context, args), code, body=body, done=created)
    context.json({"brokers": done, "group": config.to_json() | more})
    if done:
        context.line(java.group_config_text(config, more))
    if more:
        _check_kept(context, done, config.group_name, more)


_POLICIES: Final = ("EXPONENTIAL", "CUSTOMIZED")


def _asked_of_5(args: Arguments) -> dict[str, Any]:
    """Return the settings from the command line that only 5.x brokers know, by their JSON names."""
    found: dict[str, Any] = {}
    if "o" in args:
        found["consumeMessageOrderly"] = args.flag("o", "consumeMessageOrderly")
    if "p" in args:
        text = args.text("p")
        try:
            policy = as_object(loads(text.encode(), ANSWER), "policy")
        except RemotingError as error:
            raise UsageError(f"groupRetryPolicy={text!r} is not a JSON object: {error}") from None
        if policy.get("type") not in _POLICIES:
            raise UsageError(f"groupRetryPolicy={text!r}, allowed types {'|'.join(_POLICIES)}")
        found["groupRetryPolicy"] = policy
    if "attributes" in args:
        found["attributes"] = attributes_of(args.text("attributes"))
    return found


def _check_kept(context: Context, addrs: Sequence[str], group: str, asked: Mapping[str, Any]) -> None:
    """Check that brokers stored the settings that only 5.x brokers know.

    Brokers of 4.x, and RouteKeeper's brokers, ignore settings that they do not know. Report each broker that
    did not store all of these settings, or did not answer.
    """

    def look(addr: str, answer: RemotingCommand) -> None:
        have = as_object(_groups(answer).get(group) or {}, "group")
        for name, value in asked.items():
            if name == "attributes":
                same = has_attributes(have.get(name), value)
            elif name == "groupRetryPolicy":
                policy = as_object(have.get(name) or {}, name)
                same = {key: policy.get(key) for key in value} == value
            else:
                same = have.get(name, False) == value
            if not same:
                context.fail(f"broker {addr} did not keep {name}: it does not know this setting")

    ask_each(context, addrs, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, done=look)


def _groups(answer: RemotingCommand) -> dict[str, Any]:
    """Return the groups in an answer to request 201, unchanged."""
    return as_object(document(answer).get("subscriptionGroupTable") or {}, "subscriptionGroupTable")


def _delete_sub_group(context: Context, args: Arguments) -> None:
    group, admin = args.text("g"), context.client.admin
    ext = {"groupName": group, "removeOffset": java.flag(args.flag("r", "removeOffset"))}
    ext["cleanOffset"] = ext["removeOffset"]
    addrs = chosen_masters(context, args)
    where = f" in cluster [{args.text('c')}]" if "b" not in args else ""
    done: list[str] = []

    def deleted(addr: str, _answer: RemotingCommand) -> None:
        done.append(addr)
        context.line(f"delete subscription group [{group}] from broker [{addr}]{where} success.")

    ask_each(context, addrs, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, done=deleted)
    context.json({"group": group, "brokers": done})
    if "b" in args or context.failures:
        return
    for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
        before = context.failed
        ask_each(context, addrs, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        if context.failed == before:  # else a broker still has the topic, and would register it again
            context.report(context.run(admin.delete_topic_in_nameservers(topic, args.text("c"))))


def _get_consumer_config(context: Context, args: Arguments) -> None:
    group = args.text("g")
    info = cluster_info(context)
    found: list[tuple[str, str, SubscriptionGroupConfig, dict[str, Any]]] = []
    for cluster in sorted(info.cluster_addr_table):
        for name, addr in masters_of_cluster(context, info, cluster).items():

            def listed(_addr: str, answer: RemotingCommand, cluster: str = cluster, name: str = name) -> None:
                members = _groups(answer).get(group)
                if members is not None:
                    members = as_object(members, "group")
                    found.append((cluster, name, SubscriptionGroupConfig.from_json(members), members))

            ask_each(context, [addr], RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, done=listed)
    if not found:
        raise NotApplied(f"no broker knows group {group!r}")
    context.json(
        [
            {"cluster": at, "brokerName": name} | members | config.to_json()
            for at, name, config, members in found
        ]
    )
    for cluster, name, config, members in found if not context.as_json else ():
        context.line(f"{'=' * 29}{cluster}:{name}{'=' * 29}")
        for member, value in java.group_config_members(config, members).items():
            context.line(f"{member:<40}=  {'' if value == 'null' else value}")


# Subcommands that change or show offsets -----------------------------------------------------------


def _reset_offset_by_time(context: Context, args: Arguments) -> None:
    text = args.text("s")
    if text in ("-1", "now"):
        # -1 means the end of each queue. Do not send the current time for "now". A broker of 4.9 would then
        # set the offset of the last message, and the group would consume this message again. Send no other
        # negative number, because 4.9 and 5.3 interpret it differently.
        wall_ms = -1
    else:
        wall_ms = instant(args, "s", also="-1|now|")
    group, topic = args.text("g"), args.text("t")
    force = args.flag("f", "force") if "f" in args else True
    if "b" in args and "q" in args:
        queue_id = args.number("q", "queue", 0, low=0, high=INT32_MAX)
        offset = args.number("o", "offset", -1, low=-1, high=INT64_MAX)
        begin = f"group[{group}], topic[{topic}], queueId[{queue_id}], broker[{args.text('b')}]"
        chosen = {"queueId": str(queue_id)} | ({"offset": str(offset)} if offset >= 0 else {})
        addrs = {args.text("b"): args.text("b")}
        if "c" in args:
            raise UsageError("-b selects one broker and -c the brokers of a cluster: give one of them")
        _require_one_queue_resets(context, args.text("b"))
    elif "b" in args or "q" in args or "o" in args:
        raise UsageError("-b, -q and -o select one queue: give both -b and -q")
    else:
        begin, chosen = f"group[{group}], topic[{topic}], force[{java.flag(force)}]", {}
        addrs = masters_of_topic(context, topic, args.get("c"))
    title = (
        f"start reset consumer offset by specified, {begin}, timestamp(string)[{text}],"
        f" timestamp(long)[{wall_ms}]"
    )
    _reset(context, group, topic, addrs, wall_ms, force=force, chosen=chosen, title=title)


def _require_one_queue_resets(context: Context, addr: str) -> None:
    """Check that a broker obeys the queue id in a reset request, so that it resets only this queue.

    Brokers of 4.9, and brokers of 5.x with ``useServerSideResetOffset=false``, ignore the queue id and reset
    every queue of the topic.

    Raises:
        NotApplied: If the broker would reset every queue.
    """
    admin = context.client.admin
    obeys = context.run(admin.broker_config(addr)).get("useServerSideResetOffset")
    # RocketMQ's brokers before 5.1 and RouteKeeper's brokers do not have this setting. RouteKeeper's brokers
    # reset a single queue, and report a version after 5.1.
    if obeys is None:
        version = get_int(context.run(admin.broker_runtime(addr)), "brokerVersion")
        obeys = java.flag(version >= _V5_1_0)
    if obeys != "true":
        raise NotApplied(
            f"nothing was reset: broker {addr} would ignore -q and reset every queue of the topic; only"
            " brokers of RocketMQ 5 with useServerSideResetOffset=true reset one queue"
        )


_ROLLED: Final = (
    *("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#rollbackOffset"),
)


def _skip_accumulated(context: Context, args: Arguments) -> None:
    group, topic = args.text("g"), args.text("t")
    force = args.flag("f", "force") if "f" in args else True
    addrs = masters_of_topic(context, topic, args.get("c"))
    _reset(context, group, topic, addrs, -1, force=force, chosen={}, title="")


def _reset(
    context: Context,
    group: str,
    topic: str,
    addrs: Mapping[str, str],
    wall_ms: int,
    *,
    force: bool,
    chosen: Mapping[str, str],
    title: str,
) -> None:
    """Ask each broker to reset a group's offsets.

    Brokers of 4.9 refuse the reset if the group has no members. In this case, this tool sets the offsets
    itself (:func:`_roll_back`).

    Args:
        addrs: Addresses of the brokers, by broker name.
        force: True to also set an offset that is above the group's present offset.
        chosen: Fields of the request that select one queue and its offset; empty for all queues.
        title: Line above the list of reset offsets; empty for no line.
    """
    ext = {"topic": topic, "group": group, "timestamp": str(wall_ms), "isForce": java.flag(force)}
    ext |= chosen
    offsets: dict[MessageQueue, int] = {}
    rolled: list[tuple[MessageQueue, int, int, int, int]] = []
    before = context.failed
    for name, addr in addrs.items():
        with context.reporting(f"broker {addr}"):
            try:
                answer = context.run(
                    context.client.admin.call(addr, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
                )
                offsets.update(QueueOffsets.decode(answer.body).offsets)
            except ResponseError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE or chosen:
                    raise
                _roll_back(context, group, topic, name, addr, wall_ms, force=force, done=rolled)
    offsets |= {queue: new for queue, _, _, _, new in rolled}
    context.json([queue.to_json() | {"offset": offsets[queue]} for queue in sorted(offsets)])
    if offsets:
        if title:
            context.line(title)
        _print_reset(context, offsets, rolled)
    elif context.failed == before:
        context.fail("no offset was reset")


def _print_reset(
    context: Context,
    offsets: Mapping[MessageQueue, int],
    rolled: Sequence[tuple[MessageQueue, int, int, int, int]],
) -> None:
    """Print a line for each queue, in one or two tables.

    Args:
        offsets: New offsets of all queues.
        rolled: Queues whose offsets this tool set itself, each with the four offsets of :func:`_roll_back`.
            They are printed in a table of their own, with more columns.
    """
    if rolled:
        context.line("  ".join(f"{name:<20}" for name in _ROLLED).rstrip())
        for queue, *numbers in sorted(rolled):
            cells = (queue.broker_name, queue.queue_id, *numbers)
            context.line("  ".join(f"{cell:<20}" for cell in cells))
    others = offsets.keys() - {queue for queue, *_ in rolled}
    if others:
        context.line(f"{'#brokerName':<40}  {'#queueId':<40}  {'#offset':<40}")
    for queue in sorted(others):
        context.line(f"{queue.broker_name[:32]:<40}  {queue.queue_id:<40}  {offsets[queue]:<40}")


def _roll_back(
    context: Context,
    group: str,
    topic: str,
    name: str,
    addr: str,
    wall_ms: int,
    *,
    force: bool,
    done: list[tuple[MessageQueue, int, int, int, int]],
) -> None:
    """Set the offsets of a group without members, queue by queue.

    Args:
        force: True to also set an offset that is above the group's present offset.
        done: List to which this function adds one entry for each offset that was set. An entry has the queue
            and four offsets: the end of the queue, the group's old offset, the offset at the given time, and
            the group's new offset.

    Raises:
        RemotingError: If the broker did not return the group's offsets.

    Source: DefaultMQAdminExtImpl.resetOffsetByTimestampOld.
    """
    stats = context.run(context.client.admin.consume_stats(addr, group))
    reader = QueueReader(context.client.core, group)
    here = {
        queue: offset
        for queue, offset in sorted(stats.offsets.items())
        if queue.topic == topic and queue.broker_name == name
    }
    for queue, offset in here.items():
        with context.reporting(str(queue)):
            wanted = context.run(
                reader.max_offset(queue) if wall_ms < 0 else reader.search_offset(queue, wall_ms)
            )
            new = wanted if force or wanted < offset.consumer_offset else offset.consumer_offset
            context.run(reader.commit(queue, new))
            done.append((queue, offset.broker_offset, offset.consumer_offset, wanted, new))
    if not here:
        raise NotApplied(f"group {group!r} has no offsets of topic {topic!r}")


def _clone_group_offset(context: Context, args: Arguments) -> None:
    source, target, topic = args.text("s"), args.text("d"), args.text("t")
    ext = {"srcGroup": source, "destGroup": target, "topic": topic}
    ext["offline"] = java.flag(args.flag("o", "offline"))
    done, lacking = list[str](), list[str]()

    def copy(addr: str, before: RemotingCommand) -> None:
        # A broker answers success even if it copied nothing. To notice that, compare the target group's
        # offsets with their old values. Do not compare them with the source group's offsets, because a
        # running group changes its offsets all the time.
        wanted, old = (offsets_by_queue(before.body, topic, group) for group in (source, target))
        call = context.client.admin.call
        context.run(call(addr, RequestCode.CLONE_GROUP_OFFSET, ext))
        after = context.run(call(addr, RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        new = offsets_by_queue(after, topic, target)
        if not wanted:
            lacking.append(addr)
        elif wanted.keys() <= new.keys() and (new != old or wanted.items() <= old.items()):
            done.append(addr)
        else:
            raise NotApplied(
                f"copied nothing, because the online members of group {source!r} do not subscribe to topic"
                f" {topic!r}; -o true copies all the same"
            )

    addrs = masters_of_topic(context, topic).values()
    before = context.failed
    ask_each(context, addrs, RequestCode.GET_ALL_CONSUMER_OFFSET, done=copy)
    for addr in lacking:
        reason = f"broker {addr}: group {source!r} has no offsets of topic {topic!r}"
        if done:
            context.warn(reason)
        else:
            context.fail(reason)
    context.json({"srcGroup": source, "destGroup": target, "topic": topic, "brokers": done})
    if context.failed == before:
        context.line(f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]")


def offsets_by_queue(table: bytes, topic: str, group: str) -> dict[bytes, bytes]:
    """Return a group's offset for each queue id of a topic. Ids and offsets are bytes of digits.

    Args:
        table: A broker's answer to request 43. It has the offsets of all groups, and may be too large to
            decode.
    """
    key = re.escape(orjson.dumps(f"{topic}@{group}"))
    found = re.search(key + rb"\s*:\s*\{([^{}]*)\}", table)
    return dict(re.findall(rb'"?(\d+)"?\s*:\s*(-?\d+)', found[1])) if found else {}


_CONSUME_STATS: Final = "{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}"


def _broker_consume_stats(context: Context, args: Arguments) -> None:
    timeout_ms = args.number("t", "timeoutMillis", 50_000, low=1, high=_TIMEOUT_MS_MAX)
    level = args.number("l", "level", 0, low=0, high=INT64_MAX)
    ext = {"isOrder": java.flag(args.flag("o", "order"))}
    answer = context.run(
        context.client.admin.call(
            args.text("b"), RequestCode.GET_BROKER_CONSUME_STATS, ext, timeout_s=timeout_ms / 1000
        )
    )
    found = document(answer)
    rows: list[tuple[str, MessageQueue, Any]] = []
    for entry in get_list(found, "consumeStatsList"):
        for group in as_object(entry, "consume stats"):
            for stats in get_list(entry, group):
                for queue, offset in sorted(ConsumeStats.from_json(stats).offsets.items()):
                    if offset.broker_offset - offset.consumer_offset >= level:
                        rows.append((group, queue, offset))
    table = [
        queue.to_json()
        | {
            "group": group,
            "brokerOffset": offset.broker_offset,
            "consumerOffset": offset.consumer_offset,
            "diff": offset.broker_offset - offset.consumer_offset,
            "lastTimestamp": offset.last_timestamp,
        }
        for group, queue, offset in rows
    ]
    context.json({"queues": table, "diffTotal": found.get("totalDiff")})
    context.line(
        _CONSUME_STATS.format(
            *("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"),
            *("#Diff", "#LastTime"),
        )
    )
    for group, queue, offset in rows:
        if offset.last_timestamp <= 0:
            continue  # only -o json lists queues of which the group has consumed nothing
        context.line(
            _CONSUME_STATS.format(
                queue.topic[:64],
                group[:64],
                queue.broker_name[:32],
                queue.queue_id,
                offset.broker_offset,
                offset.consumer_offset,
                offset.broker_offset - offset.consumer_offset,
                second_text(offset.last_timestamp),
            )
        )
    context.line()
    context.line(f"Diff Total: {found.get('totalDiff')}")


# Subcommands that show producers and consumers -----------------------------------------------------


def _producer_connection(context: Context, args: Arguments) -> None:
    group = args.text("g")
    rows: list[ClientConnection] = []
    addrs, before = masters_of_topic(context, args.text("t")).values(), context.failed
    for addr in addrs:
        try:
            ext = {"producerGroup": group}
            answer = context.run(
                context.client.admin.call(addr, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
            )
            rows += ProducerConnection.decode(answer.body).connections
        except RemotingError as error:
            if not says_absent(error):
                context.fail(f"broker {addr}: {describe(error)}")
    if not rows:
        if context.failed == before:
            context.fail(f"no member of producer group {group!r} is online")
        return
    context.json([row.to_json() for row in rows])
    for number, row in enumerate(rows, 1):
        language = row.to_json()["language"]
        version = version_text(row.version)
        context.line(f"{number:04}  {row.client_id:<32} {row.client_addr:<22} {language:<8} {version}")


def _producer(context: Context, args: Arguments) -> None:
    answer = context.run(context.client.admin.call(args.text("b"), RequestCode.GET_ALL_PRODUCER_INFO))
    table = as_object(document(answer).get("data") or {}, "producers")
    context.json(table)
    for group in table if not context.as_json else ():
        producers = get_list(table, group)
        if not producers:
            context.line(f"producer group ({group}) instances are empty")
        for producer in producers:
            members = as_object(producer, "producer")
            text = (
                f"clientId={members.get('clientId')},remoteIP={members.get('remoteIP')},"
                f" language={members.get('language')}, version={members.get('version')},"
                f" lastUpdateTimestamp={members.get('lastUpdateTimestamp')}"
            )
            context.line(f"producer group ({group}) instance : {text}")


def _consumer_status(context: Context, args: Arguments) -> None:
    group, admin = args.text("g"), context.client.admin
    addrs = (
        [args.text("b")] if "b" in args else list(masters_of_topic(context, RETRY_PREFIX + group).values())
    )
    clients: dict[str, tuple[str, int]] = {}
    broadcast, before = False, context.failed
    for addr in addrs:
        try:
            online = context.run(admin.consumer_connection(addr, group))
        except RemotingError as error:
            if not isinstance(error, ResponseError) or error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                context.fail(f"broker {addr}: {describe(error)}")
            continue
        clients |= {found.client_id: (addr, found.version) for found in online.connections}
        broadcast = online.message_model == "BROADCASTING"
    if "i" in args:
        clients = {name: where for name, where in clients.items() if name == args.text("i")}
    if not clients and context.failed > before:
        return
    if not clients:
        raise NotApplied(f"no member of group {group!r} is online")
    stack = java.flag("s" in args)
    infos: dict[str, dict[str, Any]] = {}
    for client_id, (addr, _) in sorted(clients.items()):
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": stack}
        with context.reporting(f"client {client_id}"):
            answer = context.run(admin.call(addr, RequestCode.GET_CONSUMER_RUNNING_INFO, ext))
            infos[client_id] = document(answer)
    if "i" in args:
        context.json(infos, always=True)
        return
    context.json(infos)
    # RocketMQ's tool writes each client's full report to a file. In this tool, -i or -o json prints the
    # reports.
    context.line(f"{'#Index':<10} {'#ClientId':<40} {'#Version':<20} #Queues")
    for number, (client_id, info) in enumerate(infos.items(), 1):
        queues = len(as_object(info.get("mqTable") or {}, "queues"))
        context.line(f"{number:<10} {client_id:<40} {version_text(clients[client_id][1]):<20} {queues}")
    wanted = {
        tuple(sorted((str(one.get("topic")), str(one.get("subString"))) for one in _subscriptions(info)))
        for info in infos.values()
    }
    context.line()
    context.line()
    if len(wanted) > 1:
        context.line("WARN: Different subscription in the same group of consumer!!!")
        context.exit_with_1()
        return
    context.line("Same subscription in the same group of consumer")
    context.line()
    twice = [] if broadcast else held_twice(infos.values())
    context.line(f"Rebalance {'Failed' if twice else 'OK'}")
    for queue in twice:
        context.line(f"{queue} has more than one member")
        context.exit_with_1()


def held_twice(infos: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the queues that more than one member claims. RocketMQ's tool does not check this."""
    holders: dict[str, int] = {}
    for info in infos:
        for queue in as_object(info.get("mqTable") or {}, "queues"):
            holders[queue] = holders.get(queue, 0) + 1
    return [queue for queue, count in sorted(holders.items()) if count > 1]


def _subscriptions(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [as_object(one, "subscription") for one in get_list(info, "subscriptionSet")]


_POLICY: Final = (
    'the json string of retry policy ( exp: {"type":"EXPONENTIAL","exponentialRetryPolicy":'
    '{"initial":5000,"max":7200000,"multiplier":2}} {"type":"CUSTOMIZED","customizedRetryPolicy":'
    '{"next":[1000,5000,10000]}} )'
)

COMMANDS: Final = (
    Command(
        name="updateSubGroup",
        description="Update or create subscription group.",
        options=(
            *target_options("create subscription group to"),
            Option(short="g", long="groupName", description="consumer group name", required=True),
            Option(short="s", long="consumeEnable", description="consume enable"),
            Option(short="m", long="consumeFromMinEnable", description="from min offset"),
            Option(short="d", long="consumeBroadcastEnable", description="broadcast"),
            Option(short="q", long="retryQueueNums", description="retry queue nums"),
            Option(short="r", long="retryMaxTimes", description="retry max times"),
            Option(short="i", long="brokerId", description="consumer from which broker id"),
            Option(
                short="w",
                long="whichBrokerWhenConsumeSlowly",
                description="which broker id when consume slowly",
            ),
            Option(short="a", long="notifyConsumerIdsChanged", description="notify consumerId changed"),
            Option(short="o", long="consumeMessageOrderly", description="consume message orderly"),
            Option(short="p", long="groupRetryPolicy", description=_POLICY),
            Option(short="", long="attributes", description="attribute(+a=b,+c=d,-e)"),
            OUTPUT_LONG,
        ),
        run=_update_sub_group,
        needs_nameserver=False,
    ),
    Command(
        name="deleteSubGroup",
        description="Delete subscription group from broker.",
        options=(
            *target_options("delete subscription group from"),
            Option(short="g", long="groupName", description="subscription group name", required=True),
            Option(short="r", long="removeOffset", description="remove offset"),
            OUTPUT,
        ),
        run=_delete_sub_group,
        needs_nameserver=False,
    ),
    Command(
        name="getConsumerConfig",
        description="Get consumer config by subscription group name.",
        options=(
            Option(short="g", long="groupName", description="subscription group name", required=True),
            OUTPUT,
        ),
        run=_get_consumer_config,
        only_reads=True,
    ),
    Command(
        name="resetOffsetByTime",
        description="Reset consumer offset by timestamp(without client restart).",
        options=(
            Option(short="g", long="group", description="set the consumer group", required=True),
            Option(short="t", long="topic", description="set the topic", required=True),
            Option(
                short="s",
                long="timestamp",
                description="set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]",
                required=True,
            ),
            Option(
                short="f",
                long="force",
                description="set the force rollback by timestamp switch[true|false]. Deprecated.",
            ),
            Option(short="b", long="broker", description="broker addr"),
            Option(short="q", long="queue", description="queue id"),
            Option(
                short="o", long="offset", description="Expect queue offset, not support old version broker"
            ),
            CLUSTER,
            OUTPUT_LONG,
        ),
        run=_reset_offset_by_time,
    ),
    Command(
        name="skipAccumulatedMessage",
        description="Skip all messages that are accumulated (not consumed) currently.",
        options=(
            Option(short="g", long="group", description="set the consumer group", required=True),
            Option(short="t", long="topic", description="set the topic", required=True),
            Option(
                short="f", long="force", description="set the force rollback by timestamp switch[true|false]"
            ),
            CLUSTER,
            OUTPUT,
        ),
        run=_skip_accumulated,
    ),
    Command(
        name="cloneGroupOffset",
        description="Clone offset from other group.",
        options=(
            Option(short="s", long="srcGroup", description="set source consumer group", required=True),
            Option(short="d", long="destGroup", description="set destination consumer group", required=True),
            Option(short="t", long="topic", description="set the topic", required=True),
            Option(short="o", long="offline", description="the group or the topic is offline"),
            OUTPUT_LONG,
        ),
        run=_clone_group_offset,
    ),
    Command(
        name="brokerConsumeStats",
        description="Fetch broker consume stats data.",
        options=(
            Option(short="b", long="brokerAddr", description="Broker address", required=True),
            Option(short="t", long="timeoutMillis", description="request timeout Millis"),
            Option(short="l", long="level", description="threshold of print diff"),
            Option(short="o", long="order", description="order topic"),
            OUTPUT_LONG,
        ),
        run=_broker_consume_stats,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="producerConnection",
        description="Query producer's socket connection and client version.",
        options=(
            Option(short="g", long="producerGroup", description="producer group name", required=True),
            Option(short="t", long="topic", description="topic name", required=True),
            OUTPUT,
        ),
        run=_producer_connection,
        only_reads=True,
    ),
    Command(
        name="producer",
        description="Query producer's instances, connection, status, etc.",
        options=(Option(short="b", long="broker", description="broker address", required=True), OUTPUT),
        run=_producer,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="consumerStatus",
        description="Query consumer's internal data structure.",
        options=(
            Option(short="g", long="consumerGroup", description="consumer group name", required=True),
            Option(short="i", long="clientId", description="The consumer's client id"),
            Option(short="b", long="brokerAddr", description="broker address"),
            Option(
                short="s",
                long="jstack",
                description="Run jstack command in the consumer progress",
                value=False,
            ),
            OUTPUT,
        ),
        run=_consumer_status,
        only_reads=True,
    ),
)
