"""Subcommands exportConfigs, exportMetadata and exportMetrics.

Each subcommand makes a JSON document about a cluster, and prints the document or writes it to a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from routekeeper.remoting import wall_clock
from routekeeper.remoting.bodies import ConsumerConnection, KVTable, TopicList
from routekeeper.remoting.codes import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.errors import RemoteProtocolError, ResponseError
from routekeeper.remoting.lenient import ANSWER, INT64_MAX, as_object, get_int, loads
from routekeeper.remoting.properties import split_properties

from ..errors import NotApplied, PartlyNotApplied
from ..operation import Operation, read_clock
from . import java
from .context import Context
from .options import Arguments, Command, Option, UsageError
from .targets import (
    NO_CLUSTER,
    ask_together,
    brokers_of,
    cluster_info,
    counted,
    masters_of_cluster,
    says_absent,
    version_text,
)

T = TypeVar("T")
_WITHIN_S: Final = 60.0
#: The settings of a broker that exportConfigs exports. Source: ExportConfigsCommand.needBrokerProprties.
_SETTINGS: Final = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums"),
    *("flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable"),
    *("traceOn", "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)
#: Names of topics and groups that RocketMQ uses itself. Source: TopicValidator, and for groups MixAll and
#: DefaultMQAdminExtImpl.
_SYSTEM_TOPICS: Final = frozenset(
    {
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "CHECKPOINT_TOPIC"),
        *("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        *("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
    }
)
_SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
_SYSTEM_GROUPS: Final = frozenset(
    {
        *(
            "DEFAULT_CONSUMER",
            "DEFAULT_PRODUCER",
            "TOOLS_CONSUMER",
            "SCHEDULE_CONSUMER",
            "FILTERSRV_CONSUMER",
        ),
        *("__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL"),
    }
)
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_PERM_MAX: Final = 7

Document = dict[str, Any]


def _export(context: Context, args: Arguments, name: str, document: Document) -> None:
    """Print a document, or write it to a file in the folder of -f."""
    text = java.json_text(document)
    if "f" not in args:
        context.page(text)
        return
    path = Path(args.text("f")) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, text)
    except OSError as error:
        raise NotApplied(f"{path} cannot be written: {error.strerror}") from None
    context.line(f"export {path} success")


def _write(path: Path, text: str) -> None:
    """Replace the content of a file in one step, so that no reader sees a partial export."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _of_all(
    context: Context, addrs: Iterable[str], ask: Callable[[str, float], Operation[T]]
) -> dict[str, T]:
    """Ask all given brokers, and return the answer of each address.

    Raises:
        NotApplied: If a broker name has no master, or a broker gave no answer. An export needs all answers.
    """
    addrs = list(addrs)
    if context.failures:
        raise NotApplied("nothing exported, because a broker has no master")
    found, failures = ask_together(context, addrs, ask, within_s=_WITHIN_S)
    if failures:
        raise PartlyNotApplied("nothing exported, because a broker gave no answer", failures, of=len(addrs))
    return found


def _call(context: Context, addr: str, code: RequestCode, left_s: float, **ext: str) -> Operation[bytes]:
    # Wait up to 10 s for an answer, as RocketMQ's tool does.
    return (yield from context.client.admin.call(addr, code, ext, timeout_s=min(left_s, 10.0))).body


# Subcommand exportConfigs --------------------------------------------------------------------------


def _export_configs(context: Context, args: Arguments) -> None:
    cluster = args.text("c")
    info = cluster_info(context)
    addrs = masters_of_cluster(context, info, cluster)
    if not addrs:
        raise NotApplied(f"no master in cluster {cluster!r}. {NO_CLUSTER}")

    def ask(addr: str, left_s: float) -> Operation[Mapping[str, str]]:
        return split_properties((yield from _call(context, addr, RequestCode.GET_BROKER_CONFIG, left_s)))

    settings = _of_all(context, addrs.values(), ask)
    slaves = sum(
        broker_id != MASTER_ID
        for name in info.cluster_addr_table[cluster]
        if name in info.broker_addr_table
        for broker_id in info.broker_addr_table[name].broker_addrs
    )
    configs = {
        name: {key: settings[addr][key] for key in _SETTINGS if key in settings[addr]}
        for name, addr in addrs.items()
    }
    scale = {
        "masterBrokerSize": len(addrs),
        "namesrvSize": len(context.nameservers),
        "slaveBrokerSize": slaves,
    }
    _export(context, args, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


# Subcommand exportMetadata -------------------------------------------------------------------------


def _topics(context: Context, addr: str, left_s: float, *, special: bool) -> Operation[Document]:
    """Return a broker's topics (request 21) without system topics.

    Args:
        special: True to include retry topics and dead letter topics, which belong to consumer groups.
    """
    body = yield from _call(context, addr, RequestCode.GET_ALL_TOPIC_CONFIG, left_s)
    found = as_object(loads(body, ANSWER), "topics")
    body = yield from _call(context, addr, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, left_s)
    system = _SYSTEM_TOPICS | set(TopicList.decode(body).topics)
    table = as_object(found.get("topicConfigTable") or {}, "topicConfigTable")

    def is_users(name: str, config: Document) -> bool:
        return (
            name not in system
            and not name.startswith(_SYSTEM_TOPIC_PREFIX)
            and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
            and 0 <= get_int(config, "perm", 6) <= _PERM_MAX
        )

    kept = {name: as_object(value, "topic") for name, value in sorted(table.items())}
    return found | {"topicConfigTable": {name: one for name, one in kept.items() if is_users(name, one)}}


def _groups(context: Context, addr: str, left_s: float) -> Operation[Document]:
    """Return a broker's subscription groups (request 201) without system groups."""
    body = yield from _call(context, addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, left_s)
    found = as_object(loads(body, ANSWER), "groups")
    table = as_object(found.get("subscriptionGroupTable") or {}, "subscriptionGroupTable")
    kept = {
        name: as_object(value, "group")
        for name, value in sorted(table.items())
        if name not in _SYSTEM_GROUPS and not name.startswith(_SYSTEM_GROUP_PREFIX)
    }
    return found | {"subscriptionGroupTable": kept}


def _export_metadata(context: Context, args: Arguments) -> None:
    topics, groups, special = "t" in args, "g" in args, "s" in args
    if topics and groups:
        raise UsageError("-t exports only topics and -g only groups: give one of them, or neither for both")
    if special and groups:
        raise UsageError("-s selects topics, and -g exports no topics: leave one of them out")
    addrs = brokers_of(context, args)

    def ask(addr: str, left_s: float) -> Operation[Document]:
        found: Document = {}
        if not groups:
            found |= yield from _topics(context, addr, left_s, special=special)
        if not topics:
            found |= yield from _groups(context, addr, left_s)
        return found

    documents = _of_all(context, addrs, ask)
    name = "topic.json" if topics else "subscriptionGroup.json" if groups else "metadata.json"
    if "b" in args and (topics or groups):  # only one table of one broker, so merge nothing
        _export(context, args, name, documents[args.text("b")])
        return
    document: Document = {"exportTime": wall_clock.now_ms()}
    if not groups:
        document["topicConfigTable"] = _merged(
            documents.values(), "topicConfigTable", ("readQueueNums", "writeQueueNums")
        )
    if not topics:
        document["subscriptionGroupTable"] = _merged(
            documents.values(), "subscriptionGroupTable", ("retryQueueNums",)
        )
    _export(context, args, name, document)


def _merged(documents: Iterable[Document], table: str, summed: Iterable[str]) -> Document:
    """Merge the tables of several brokers into one table.

    Args:
        table: JSON member that contains the table.
        summed: Names of settings whose values are added up over all brokers. They are numbers of queues.
    """
    merged: dict[str, Document] = {}
    for document in documents:
        for name, config in document[table].items():
            former = merged.get(name)
            if former is not None:
                config = config | {key: get_int(former, key) + get_int(config, key) for key in summed}
            merged[name] = config
    return dict(sorted(merged.items()))


# Subcommand exportMetrics --------------------------------------------------------------------------


def _export_metrics(context: Context, args: Arguments) -> None:
    cluster = args.text("c")
    addrs = masters_of_cluster(context, cluster_info(context), cluster)
    if not addrs:
        raise NotApplied(f"no master in cluster {cluster!r}. {NO_CLUSTER}")

    def ask(addr: str, left_s: float) -> Operation[Document]:
        return (yield from _figures(context, addr, left_s))

    reports = _of_all(context, addrs.values(), ask)
    total_tps = dict.fromkeys(("totalNormalInTps", "totalNormalOutTps", "totalTransInTps"), 0.0)
    total_tps["totalScheduleInTps"] = 0.0
    total_day = dict.fromkeys(_DAY, 0)
    for report in reports.values():
        quota = report["runtimeQuota"]
        for name in _TPS:
            total_tps[f"total{name[0].upper()}{name[1:]}"] += quota["tps"][name]
        for name in _DAY:
            total_day[name] += quota["oneDayNum"][name]
    document = {
        "evaluateReport": {name: reports[addr] for name, addr in addrs.items()},
        "totalData": {"totalOneDayNum": total_day, "totalTps": total_tps},
    }
    _export(context, args, "metrics.json", document)


_TPS: Final = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
_DAY: Final = ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")


def _figures(context: Context, addr: str, within_s: float) -> Operation[Document]:
    """Ask one broker for the figures of exportMetrics, in at most ``within_s`` seconds for all requests."""
    deadline_s = (yield from read_clock()).now_s + within_s

    def left_s() -> Operation[float]:
        return max(deadline_s - (yield from read_clock()).now_s, 0.001)

    body = yield from _call(context, addr, RequestCode.GET_BROKER_RUNTIME_INFO, (yield from left_s()))
    runtime = KVTable.decode(body).table
    body = yield from _call(context, addr, RequestCode.GET_BROKER_CONFIG, (yield from left_s()))
    settings = split_properties(body)
    topics = yield from _topics(context, addr, (yield from left_s()), special=False)
    groups = (yield from _groups(context, addr, (yield from left_s())))["subscriptionGroupTable"]
    clients: set[str] = set()
    for group in groups:
        try:
            body = yield from _call(
                context,
                addr,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                (yield from left_s()),
                consumerGroup=group,
            )
        except ResponseError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        for client in ConsumerConnection.decode(body).connections:
            language = "OTHER" if client.language is None else client.language.name
            clients.add(f"{language}%{version_text(client.version)}")
    trans = yield from _counted(context, addr, "RMQ_SYS_TRANS_HALF_TOPIC", (yield from left_s()))
    delayed = yield from _counted(context, addr, "SCHEDULE_TOPIC_XXXX", (yield from left_s()))
    return {
        "runtimeEnv": {
            "cpuNum": settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {
                name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
            },
            "groupSize": len(groups),
            "messageAverageSize": runtime.get("putMessageAverageSize"),
            "oneDayNum": {
                "normalOneDayInNum": _since_yesterday(runtime, "msgPutTotal"),
                "normalOneDayOutNum": _since_yesterday(runtime, "msgGetTotal"),
                "transOneDayInNum": trans[1],
                "scheduleOneDayInNum": delayed[1],
            },
            "topicSize": len(topics["topicConfigTable"]),
            "tps": {
                "normalInTps": _rate(runtime, "putTps"),
                # Brokers of 4.9 misspell this name as getTransferedTps. Use that name if the broker sends it.
                "normalOutTps": _rate(runtime, "getTransferedTps", "getTransferredTps"),
                "transInTps": trans[0],
                "scheduleInTps": delayed[0],
            },
        },
        "runtimeVersion": {
            "clientInfo": tuple(sorted(clients)),
            "rocketmqVersion": runtime.get("brokerVersionDesc"),
        },
    }


def _counted(context: Context, addr: str, topic: str, left_s: float) -> Operation[tuple[float, int]]:
    """Return a topic's new messages per second in the last minute, and their number in the last day."""
    try:
        body = yield from _call(
            context,
            addr,
            RequestCode.VIEW_BROKER_STATS_DATA,
            left_s,
            statsName="TOPIC_PUT_NUMS",
            statsKey=topic,
        )
    except ResponseError as error:
        if not says_absent(error):
            raise
        return 0.0, 0  # the broker has counted no message of this topic yet
    return counted(as_object(loads(body, ANSWER), "statistics"))


def _rate(runtime: Mapping[str, str], *names: str) -> float:
    """Return a broker's rate per second in the last 10 s, the first of three rates in the broker's text.

    Args:
        names: Possible names of the rate. The first name that the broker sends is used.
    """
    for name in names:
        if name in runtime:
            text = runtime[name].split(" ")[0] or "0"
            try:
                return float(text)
            except ValueError:
                raise RemoteProtocolError(f"{name} is {text[:40]!r}, which is not a number") from None
    return 0.0


def _since_yesterday(runtime: Mapping[str, str], name: str) -> int:
    """Return the number of messages that a broker counted from yesterday's midnight to today's midnight."""
    mornings = (f"{name}TodayMorning", f"{name}YesterdayMorning")
    today, yesterday = (get_int(runtime, morning, limit=INT64_MAX) for morning in mornings)
    return today - yesterday


def _file_path(name: str) -> Option:
    return Option(short="f", long="filePath", description=f"export {name}.json path | default: print it")


COMMANDS: Final = (
    Command(
        name="exportConfigs",
        description="Export configs.",
        options=(
            Option(short="c", long="clusterName", description="choose a cluster to export", required=True),
            _file_path("configs"),
        ),
        run=_export_configs,
    ),
    Command(
        name="exportMetadata",
        description="Export metadata.",
        options=(
            Option(short="c", long="clusterName", description="choose a cluster to export"),
            Option(short="b", long="brokerAddr", description="choose a broker to export"),
            _file_path("metadata"),
            Option(short="t", long="topic", description="only export topic metadata", value=False),
            Option(
                short="g",
                long="subscriptionGroup",
                description="only export subscriptionGroup metadata",
                value=False,
            ),
            Option(short="s", long="specialTopic", description="need retryTopic and dlqTopic", value=False),
        ),
        run=_export_metadata,
        needs_nameserver=False,
    ),
    Command(
        name="exportMetrics",
        description="Export metrics.",
        options=(
            Option(short="c", long="clusterName", description="choose a cluster to export", required=True),
            _file_path("metrics"),
        ),
        run=_export_metrics,
    ),
)
