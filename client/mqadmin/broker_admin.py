"""Subcommands that change brokers or show their statistics.

They are updateBrokerConfig, cleanExpiredCQ, cleanUnusedTopic, deleteExpiredCommitLog, statsAll,
topicClusterList, updateTopicPerm and updateOrderConf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from routekeeper.remoting.codes import (
    DLQ_PREFIX,
    MASTER_ID,
    ORDER_TOPIC_NAMESPACE,
    RETRY_PREFIX,
    RequestCode,
)
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError

from ..errors import NotApplied, describe
from . import java
from .context import Context
from .kept import check_kept, check_setting
from .options import OUTPUT, Arguments, Command, Option, UsageError
from .targets import (
    ask_each,
    chosen,
    chosen_masters,
    cluster_info,
    counted,
    document,
    found_at,
    masters_of_topic,
    says_absent,
    stored_topic,
    target_options,
)

_PERMISSIONS: Final = ("2", "4", "6")


def _update_broker_config(context: Context, args: Arguments) -> None:
    key, value = args.text("k"), args.text("v")
    check_setting(key, value)
    with_slaves = args.flag("a", "updateAllBroker")
    done: list[str] = []

    def updated(addr: str, _answer: RemotingCommand) -> None:
        check_kept(context.run(context.client.admin.broker_config(addr)), key, value)
        done.append(addr)
        context.line(f"update broker config success, {addr}")

    body = f"{key}={value}\n".encode()
    addrs = chosen_masters(context, args, with_slaves=with_slaves)
    ask_each(context, addrs, RequestCode.UPDATE_BROKER_CONFIG, body=body, done=updated)
    context.json({"key": key, "value": value, "brokers": done})


def _clean(code: RequestCode) -> Callable[[Context, Arguments], None]:
    def run(context: Context, args: Arguments) -> None:
        done: list[str] = []
        addrs = chosen_masters(context, args, everywhere=True)
        ask_each(context, addrs, code, done=lambda addr, _answer: done.append(addr))
        context.json({addr: addr in done for addr in addrs})
        context.line("false" if context.failures else "success")

    return run


def _topic_cluster_list(context: Context, args: Arguments) -> None:
    admin = context.client.admin
    names = {data.broker_name for data in context.run(admin.topic_route(args.text("t"))).broker_datas}
    info = cluster_info(context)
    clusters = [name for name in sorted(info.cluster_addr_table) if names & {*info.cluster_addr_table[name]}]
    context.json(clusters)
    for cluster in clusters:
        context.line(cluster)
    if not clusters:
        context.fail(f"no cluster has a broker of topic {args.text('t')!r}")


def _update_topic_perm(context: Context, args: Arguments) -> None:
    topic, text = args.text("t"), args.text("p")
    if text not in _PERMISSIONS:
        raise UsageError(f"perm={text!r}, allowed {'|'.join(_PERMISSIONS)}")
    admin, perm = context.client.admin, int(text)
    if chosen(args) == "c":
        addrs = masters_of_topic(context, topic, args.text("c"))
    else:
        route = context.run(admin.topic_route(topic))
        known = {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        }
        addrs = {name: known[name] for name in found_at(known, args.text("b"))}
    if not addrs:
        raise NotApplied("updateTopicPerm error broker not exit or broker is not master!.")
    changes: list[dict[str, Any]] = []
    for name, addr in addrs.items():
        with context.reporting(f"broker {addr}"):
            # Read the topic from the broker, not from the nameserver. After wipeWritePerm, the nameserver
            # shows another permission. It also knows neither the topic's order flag nor its attributes.
            before = stored_topic(context, addr, topic)
            after = replace(before, perm=perm)
            if after != before:
                # The attributes in a request are edits. Send none, so that the topic keeps its attributes.
                context.run(admin.create_topic(addr, replace(after, attributes={})))
            changes.append({"brokerName": name, "brokerAddr": addr, "from": before.perm, "to": perm})
            if after == before:
                context.line("new perm equals to the old one!")
                continue
            context.line(f"update topic perm from {before.perm} to {perm} in {addr} success.")
            if "b" in args:
                context.line(f"{java.topic_config_text(after)}.")
    context.json(changes)


def _update_order_conf(context: Context, args: Arguments) -> None:
    topic, method, admin = args.text("t"), args.text("m"), context.client.admin
    value = args.get("v")
    match method:
        case "get":
            value = context.run(admin.kv_get(ORDER_TOPIC_NAMESPACE, topic))
            if value is None:
                raise NotApplied(f"topic {topic!r} has no order configuration")
            done = f"get orderConf success. topic=[{topic}], orderConf=[{value}] "
        case "put":
            if value is None:
                raise UsageError("please set orderConf with option -v.")
            context.report(context.run(admin.kv_put(ORDER_TOPIC_NAMESPACE, topic, value)))
            done = f"update orderConf success. topic=[{topic}], orderConf=[{value}]"
        case "delete":
            value = None
            context.report(context.run(admin.kv_delete(ORDER_TOPIC_NAMESPACE, topic)))
            done = f"delete orderConf success. topic=[{topic}]"
        case _:
            raise UsageError(f"method={method!r}, allowed put|get|delete")
    if not context.failures:
        context.json({"topic": topic, "orderConf": value})
        context.line(done)


_STATS: Final = "{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}"


def _stats_all(context: Context, args: Arguments) -> None:
    wanted = args.get("t")
    rows: list[dict[str, Any]] = []
    for topic in context.run(context.client.admin.topic_list()).topics:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or wanted not in (None, topic):
            continue
        with context.reporting(f"topic {topic}"):
            rows += _stats_of(context, topic)
    if "a" in args:
        rows = [row for row in rows if row["inMsg24Hour"] or row["outMsg24Hour"]]
    context.json(rows)
    context.line(
        _STATS.format(
            *("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS"),
            *("#InMsg24Hour", "#OutMsg24Hour"),
        )
    )
    for row in rows:
        group = row["group"]
        context.line(
            _STATS.format(
                row["topic"][:64],
                "" if group is None else group[:64],
                row["accumulation"],
                f"{row['inTps']:.2f}",
                "" if group is None else f"{row['outTps']:.2f}",
                row["inMsg24Hour"],
                "NO_CONSUMER" if group is None else row["outMsg24Hour"],
            )
        )


def _stats_of(context: Context, topic: str) -> list[dict[str, Any]]:
    admin = context.client.admin
    addrs = masters_of_topic(context, topic)
    in_tps, in_day = _counted(context, addrs.values(), "TOPIC_PUT_NUMS", topic)
    groups = dict.fromkeys(
        group for addr in addrs.values() for group in context.run(admin.consumer_groups_of(addr, topic))
    )
    begin: dict[str, Any] = {"topic": topic, "inTps": in_tps, "inMsg24Hour": in_day}
    rows = []
    for group in groups:
        out_tps, out_day = _counted(context, addrs.values(), "GROUP_GET_NUMS", f"{topic}@{group}")
        behind = 0
        for addr in addrs.values():
            offsets = context.run(admin.consume_stats(addr, group)).offsets
            behind += sum(
                offset.broker_offset - offset.consumer_offset
                for queue, offset in offsets.items()
                if queue.topic == topic
            )
        rows.append(
            begin | {"group": group, "accumulation": behind, "outTps": out_tps, "outMsg24Hour": out_day}
        )
    return rows or [begin | {"group": None, "accumulation": 0, "outTps": 0.0, "outMsg24Hour": 0}]


def _counted(context: Context, addrs: Any, name: str, key: str) -> tuple[float, int]:
    """Return two sums over all brokers.

    The first sum is messages per second in the last minute. The second sum is the number of messages in the
    last day. A broker's counters begin at its start, so both figures may cover less time.

    Args:
        name: Name of the statistics, such as TOPIC_PUT_NUMS.
        key: Topic or group whose messages are counted.
    """
    tps, day = 0.0, 0
    for addr in addrs:
        try:
            answer = context.run(
                context.client.admin.call(
                    addr, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
                )
            )
            found = document(answer)
        except RemotingError as error:
            text = f"broker {addr}: {describe(error)}"
            if not says_absent(error) and text not in context.failures:
                context.fail(text)
            continue  # add nothing for this broker: it failed, or it has counted no message yet
        more_tps, more = counted(found)
        tps, day = tps + more_tps, day + more
    return tps, day


def _cleaning(name: str, description: str, code: RequestCode, cluster: str, *more: Option) -> Command:
    return Command(
        name=name,
        description=description,
        options=(
            Option(short="b", long="brokerAddr", description="Broker address"),
            Option(short="c", long="cluster", description=cluster),
            *more,
            OUTPUT,
        ),
        run=_clean(code),
        needs_nameserver=False,
    )


COMMANDS: Final = (
    Command(
        name="updateBrokerConfig",
        description="Update broker's config.",
        options=(
            *target_options("update"),
            Option(short="a", long="updateAllBroker", description="update all brokers include slave"),
            Option(short="k", long="key", description="config key", required=True),
            Option(short="v", long="value", description="config value", required=True),
            OUTPUT,
        ),
        run=_update_broker_config,
        needs_nameserver=False,
    ),
    _cleaning(
        "cleanExpiredCQ",
        "Clean expired ConsumeQueue on broker.",
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        "clustername",
    ),
    _cleaning(
        "cleanUnusedTopic",
        "Clean unused topic on broker.",
        RequestCode.CLEAN_UNUSED_TOPIC,
        "cluster name",
    ),
    _cleaning(
        "deleteExpiredCommitLog",
        "Delete expired CommitLog files.",
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        "clustername",
        Option(short="n", long="namesrvAddr", description="Name server address"),
    ),
    Command(
        name="topicClusterList",
        description="Get cluster info for topic.",
        options=(Option(short="t", long="topic", description="topic name", required=True), OUTPUT),
        run=_topic_cluster_list,
        only_reads=True,
    ),
    Command(
        name="updateTopicPerm",
        description="Update topic perm.",
        options=(
            *target_options("create topic to"),
            Option(short="t", long="topic", description="topic name", required=True),
            Option(
                short="p",
                long="perm",
                description="set topic's permission(2|4|6), intro[2:W; 4:R; 6:RW]",
                required=True,
            ),
            OUTPUT,
        ),
        run=_update_topic_perm,
    ),
    Command(
        name="updateOrderConf",
        description="Create or update or delete order conf.",
        options=(
            Option(short="t", long="topic", description="topic name", required=True),
            Option(
                short="v",
                long="orderConf",
                description="set order conf [eg. brokerName1:num;brokerName2:num]",
            ),
            Option(short="m", long="method", description="option type [eg. put|get|delete", required=True),
            OUTPUT,
        ),
        run=_update_order_conf,
    ),
    Command(
        name="statsAll",
        description="Topic and Consumer tps stats.",
        options=(
            Option(short="a", long="activeTopic", description="print active topic only", value=False),
            Option(short="t", long="topic", description="print select topic only"),
            OUTPUT,
        ),
        run=_stats_all,
        only_reads=True,
    ),
)
