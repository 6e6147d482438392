"""Subcommands updateTopic, deleteTopic, topicRoute, topicList and topicStatus."""

from __future__ import annotations

from typing import Final

from routekeeper.remoting.bodies import MessageQueue, TopicOffset
from routekeeper.remoting.codes import (
    DLQ_PREFIX,
    MASTER_ID,
    ORDER_TOPIC_NAMESPACE,
    RETRY_PREFIX,
    ResponseCode,
)
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError, ResponseError
from routekeeper.remoting.lenient import ANSWER, loads
from routekeeper.remoting.route import TopicConfig, TopicRouteData

from ..admin import QUEUE_NUMS_MAX, all_addrs
from ..errors import NotApplied, describe
from . import java
from .context import Context
from .kept import has_attributes
from .options import OUTPUT, Arguments, Command, Option, UsageError, attributes_of
from .targets import NO_CLUSTER, cluster_info, found_at, masters_of_cluster, stored_topic

_PERMISSIONS: Final = {"2": 2, "4": 4, "6": 6}


def _update_topic(context: Context, args: Arguments) -> None:
    topic = _topic_config(args)
    admin = context.client.admin
    if "b" in args:
        addr = args.text("b")
        _create(context, addr, topic)
        if topic.order:
            listed = {
                (name, broker_id): known
                for name, data in cluster_info(context).broker_addr_table.items()
                for broker_id, known in data.broker_addrs.items()
            }
            holders = found_at(listed, addr)
            if not holders:
                raise NotApplied(
                    f"no name server lists a broker with address {addr}, so the order is not configured"
                )
            order_conf = f"{holders[0][0]}:{topic.write_queue_nums}"
            answers = context.run(admin.add_to_order_conf(topic.topic_name, order_conf))
            if context.report(answers):
                return
            context.line(f"set broker orderConf. isOrder=true, orderConf=[{order_conf}]")
        context.line(f"create topic to {addr} success.")
        context.line(java.topic_config_text(topic))
        return
    info, cluster = cluster_info(context), args.text("c")
    found = masters_of_cluster(context, info, cluster)
    if not found:
        raise NotApplied(f"no master in cluster {cluster!r}. {NO_CLUSTER}")
    done = 0
    for addr in found.values():
        with context.reporting(f"create topic to {addr} failed"):
            _create(context, addr, topic)
            context.line(f"create topic to {addr} success.")
            done += 1
    if context.failures:
        raise NotApplied(f"done at {done} of {len(info.cluster_addr_table[cluster])} brokers")
    if topic.order:
        order_conf = ";".join(f"{name}:{topic.write_queue_nums}" for name in found)
        if context.report(context.run(admin.kv_put(ORDER_TOPIC_NAMESPACE, topic.topic_name, order_conf))):
            return
        context.line(f"set cluster orderConf. isOrder=true, orderConf=[{order_conf}]")
    context.line(java.topic_config_text(topic))


def _create(context: Context, addr: str, topic: TopicConfig) -> None:
    """Create or change a topic at one broker.

    Raises:
        NotApplied: If the broker stored the topic without its attributes, as brokers of 4.x do.
        RemotingError: If the broker refused the request, or did not answer.
    """
    context.run(context.client.admin.create_topic(addr, topic))
    if not topic.attributes:
        return
    if not has_attributes(stored_topic(context, addr, topic.topic_name).attributes, topic.attributes):
        raise NotApplied(f"broker {addr} stored the topic without the attributes, which it does not know")


def _topic_config(args: Arguments) -> TopicConfig:
    perm = args.get("p") or "6"
    if perm not in _PERMISSIONS:
        raise UsageError(f"perm={perm!r}, allowed 2 (W), 4 (R), 6 (RW)")
    return TopicConfig(
        topic_name=args.text("t"),
        read_queue_nums=args.number("r", "readQueueNums", 8, low=1, high=QUEUE_NUMS_MAX),
        write_queue_nums=args.number("w", "writeQueueNums", 8, low=1, high=QUEUE_NUMS_MAX),
        perm=_PERMISSIONS[perm],
        topic_sys_flag=(1 if args.flag("u", "unit") else 0) | (2 if args.flag("s", "hasUnitSub") else 0),
        order=args.flag("o", "order"),
        attributes=attributes_of(args.get("a") or ""),
    )


def _delete_topic(context: Context, args: Arguments) -> None:
    topic, cluster = args.text("t"), args.text("c")
    admin = context.client.admin
    info = cluster_info(context)
    addrs = all_addrs(info, cluster)
    if not addrs:
        raise NotApplied(f"no broker in cluster {cluster!r}. {NO_CLUSTER}")
    # Report broker names without a master: an absent master may still have the topic.
    masters_of_cluster(context, info, cluster, with_slaves=True)
    done = 0
    for addr in addrs:
        with context.reporting(f"delete topic at {addr} failed"):
            context.run(admin.delete_topic_in_broker(addr, topic))
            done += 1
    if context.failures:
        raise NotApplied(
            f"deleted at {done} of {len(addrs)} brokers, not at the name servers:"
            " a broker that still has the topic would report it again"
        )
    context.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    if not context.report(context.run(admin.delete_topic_in_nameservers(topic, cluster))):
        context.line(f"delete topic [{topic}] from NameServer success.")


def _topic_route(context: Context, args: Arguments) -> None:
    route = context.run(context.client.admin.topic_route(args.text("t")))
    if context.as_json:
        context.json(java.route_document(route))
    elif "l" in args:
        _print_route_list(context, route)
    else:
        context.page(java.route_text(route))


def _print_route_list(context: Context, route: TopicRouteData) -> None:
    layout = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
    context.line(
        layout.format("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    )
    queues = {data.broker_name: data for data in route.queue_datas}
    reads = writes = 0
    for broker in sorted(route.broker_datas, key=lambda data: data.broker_name):
        data = queues.get(broker.broker_name)
        if data is None:
            continue
        reads += data.read_queue_nums
        writes += data.write_queue_nums
        context.line(
            layout.format(
                broker.cluster,
                broker.broker_name,
                java.map_text(dict(sorted(broker.broker_addrs.items()))),
                data.read_queue_nums,
                data.write_queue_nums,
                data.perm,
            )
        )
    context.line("-" * 158)
    context.line(layout.format("Total:", len(queues), "", reads, writes, ""))


def _topic_list(context: Context, args: Arguments) -> None:
    topics = context.run(context.client.admin.topic_list()).topics
    if "c" not in args:
        context.json(topics)
        for topic in topics:
            context.line(topic)
        return
    rows = []
    for topic in topics:
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            cluster, groups = _cluster_and_groups(context, topic)
            rows += [(cluster, topic, group) for group in groups or ("",)]
    context.json([{"cluster": c, "topic": t, "consumerGroup": g} for c, t, g in rows])
    context.line("{:<20}  {:<48}  {:<48}".format("#Cluster Name", "#Topic", "#Consumer Group"))
    for cluster, topic, group in rows:
        context.line(f"{cluster[:20]:<20}  {topic[:64]:<64}  {group[:64]:<64}")


def _cluster_and_groups(context: Context, topic: str) -> tuple[str, tuple[str, ...]]:
    """Return a topic's cluster and consumer groups. Both are empty if the topic does not exist any more."""
    admin = context.client.admin
    try:
        route = context.run(admin.topic_route(topic))
        for broker in route.broker_datas:
            addr = broker.broker_addrs.get(MASTER_ID)
            if addr is not None:
                return broker.cluster, context.run(admin.consumer_groups_of(addr, topic))
    except RemotingError as error:
        if not (isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST):
            context.fail(f"topic {topic}: {describe(error)}")
    return "", ()


def _topic_status(context: Context, args: Arguments) -> None:
    admin = context.client.admin
    topic = args.text("t")
    route = context.run(admin.topic_route(args.get("c") or topic))
    offsets: dict[MessageQueue, TopicOffset] = {}
    put_tps = 0.0
    for broker in route.broker_datas:
        addr = broker.broker_addrs.get(MASTER_ID)
        if addr is None:
            context.fail(f"broker {broker.broker_name} has no master, its queues are not listed")
            continue
        with context.reporting(f"broker {addr}"):
            stats, body = context.run(admin.topic_stats(addr, topic))
            offsets.update(stats.offsets)
            put_tps += _put_tps(body)
    rows = sorted(offsets.items())
    context.json(
        [
            {
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": offset.min_offset,
                "maxOffset": offset.max_offset,
                "lastUpdateTimestamp": offset.last_update_timestamp,
            }
            for queue, offset in rows
        ]
    )
    context.line(
        "{:<32}  {:<4}  {:<20}  {:<20}    {}".format(
            "#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"
        )
    )
    for queue, offset in rows:
        updated = java.time_text(offset.last_update_timestamp) if offset.last_update_timestamp > 0 else ""
        context.line(
            f"{queue.broker_name[:32]:<32}  {queue.queue_id:<4}  {offset.min_offset:<20}"
            f"  {offset.max_offset:<20}    {updated}"
        )
    context.line()
    context.line(f"Topic Put TPS: {put_tps}")


def _put_tps(body: bytes) -> float:
    """Return the rate of new messages that a 5.x broker's answer includes; 0 for other brokers."""
    try:
        members = loads(body, ANSWER)
    except RemoteProtocolError:
        return 0.0
    value = members.get("topicPutTps") if isinstance(members, dict) else None
    return float(value) if isinstance(value, (int, float)) else 0.0


_TOPIC: Final = Option(short="t", long="topic", description="topic name", required=True)

COMMANDS: Final = (
    Command(
        name="updateTopic",
        description="Update or create topic.",
        options=(
            Option(short="b", long="brokerAddr", description="create topic to which broker", group="target"),
            Option(
                short="c", long="clusterName", description="create topic to which cluster", group="target"
            ),
            _TOPIC,
            Option(short="r", long="readQueueNums", description="set read queue nums"),
            Option(short="w", long="writeQueueNums", description="set write queue nums"),
            Option(short="p", long="perm", description="set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"),
            Option(short="o", long="order", description="set topic's order(true|false)"),
            Option(short="u", long="unit", description="is unit topic (true|false)"),
            Option(short="s", long="hasUnitSub", description="has unit sub (true|false)"),
            Option(short="a", long="attributes", description="attribute(+a=b,+c=d,-e)"),
        ),
        run=_update_topic,
    ),
    Command(
        name="deleteTopic",
        description="Delete topic from broker and NameServer.",
        options=(
            _TOPIC,
            Option(
                short="c", long="clusterName", description="delete topic from which cluster", required=True
            ),
        ),
        run=_delete_topic,
    ),
    Command(
        name="topicRoute",
        description="Examine topic route info.",
        options=(
            _TOPIC,
            Option(short="l", long="list", description="Use list format to print data", value=False),
            OUTPUT,
        ),
        run=_topic_route,
        only_reads=True,
    ),
    Command(
        name="topicStatus",
        description="Examine topic Status info.",
        options=(
            _TOPIC,
            Option(
                short="c",
                long="cluster",
                description="cluster name or lmq parent topic, lmq is used to find the route.",
            ),
            OUTPUT,
        ),
        run=_topic_status,
        only_reads=True,
    ),
    Command(
        name="topicList",
        description="Fetch all topic list from name server.",
        options=(Option(short="c", long="clusterModel", description="clusterModel", value=False), OUTPUT),
        run=_topic_list,
        only_reads=True,
    ),
)
