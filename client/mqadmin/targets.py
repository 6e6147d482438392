"""Selection of the servers to which a subcommand applies, requests to them, and handling of their answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from routekeeper.remoting.addresses import canonical_host, same_address, split_address
from routekeeper.remoting.bodies import ConsumerConnection
from routekeeper.remoting.codes import MASTER_ID, RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import LocalProtocolError, RemotingError, ResponseError
from routekeeper.remoting.lenient import ANSWER, INT64_MAX, as_object, get_int, loads
from routekeeper.remoting.route import ClusterInfo, TopicConfig
from routekeeper.remoting.transport.lookups import resolve
from routekeeper.remoting.wall_clock import local_text

from ..admin import all_addrs, masters
from ..errors import NotApplied, describe
from ..operation import Operation, read_clock, together
from ..retry import Outcome, outcome_of, partial_failure
from .context import Context
from .options import Arguments, Option, UsageError

T = TypeVar("T")
#: Largest number of requests at the same time. If the requests were sent one after the other, a broker that
#: does not answer would delay all following requests.
_AT_ONCE: Final = 16
NO_CLUSTER: Final = "Make sure the specified clusterName exists or the name server connected to is correct."
#: Longest wait in seconds for the resolution of one host name.
RESOLVE_S: Final = 5.0
#: The option ``-c``, which restricts a topic's brokers to one cluster. In RocketMQ's tool, some subcommands
#: ignore it.
CLUSTER: Final = Option(
    short="c",
    long="cluster",
    description="Cluster name or lmq parent topic, lmq is used to find the route.",
)
#: Prefix of the names of light message queues. A light message queue has no route of its own. Source:
#: MixAll.LMQ_PREFIX.
_LMQ_PREFIX: Final = "%LMQ%"

#: Names of RocketMQ's releases by the version number that clients and brokers send. Source: MQVersion.
_VERSIONS: Final = {
    393: "V4_9_0",
    395: "V4_9_1",
    397: "V4_9_2",
    399: "V4_9_3",
    401: "V4_9_4",
    403: "V4_9_5",
    405: "V4_9_6",
    407: "V4_9_7",
    409: "V4_9_8",
    413: "V5_0_0",
    433: "V5_1_0",
    435: "V5_1_1",
    437: "V5_1_2",
    439: "V5_1_3",
    441: "V5_1_4",
    453: "V5_2_0",
    473: "V5_3_0",
    475: "V5_3_1",
    477: "V5_3_2",
    479: "V5_3_3",
    481: "V5_3_4",
    493: "V5_4_0",
    317: "V4_5_2",
    333: "V4_6_0",
    355: "V4_7_1",
    373: "V4_8_0",
}


def version_text(version: int) -> str:
    """Return a release's name, or its number if :data:`_VERSIONS` lacks it."""
    return _VERSIONS.get(version, str(version))


def masters_of_topic(context: Context, topic: str, cluster: str | None = None) -> dict[str, str]:
    """Return the masters that have a topic: the address for each broker name.

    Args:
        cluster: If given, return only brokers of this cluster. But if ``topic`` is a light message queue,
            this is the name of the topic whose route the queue uses.

    Raises:
        NotApplied: If ``cluster`` is given, and no master was found.
    """
    parent = cluster if cluster is not None and topic.startswith(_LMQ_PREFIX) else None
    route = context.run(context.client.admin.topic_route(parent or topic))
    found = {}
    for data in sorted(route.broker_datas, key=lambda data: data.broker_name):
        if not parent and cluster not in (None, data.cluster):
            continue
        addr = data.broker_addrs.get(MASTER_ID)
        if addr is not None:
            found[data.broker_name] = addr
        else:
            _report_masterless(context, data.broker_name)
    if cluster is not None and not found:
        raise NotApplied(f"no master in cluster {cluster!r} has topic {topic!r}")
    return found


def masters_of_cluster(
    context: Context, info: ClusterInfo, cluster: str, *, with_slaves: bool = False
) -> dict[str, str]:
    """Return the master's address for each broker name of a cluster. Report broker names without a master.

    Args:
        with_slaves: True if the caller asks slaves, too. This affects only the text of the reports.
    """
    found = masters(info, cluster)
    for name in sorted(info.cluster_addr_table.get(cluster, ())):
        if name not in found:
            data = info.broker_addr_table.get(name)
            _report_masterless(context, name, slaves=with_slaves and bool(data and data.broker_addrs))
    return found


def _report_masterless(context: Context, broker_name: str, *, slaves: bool = False) -> None:
    """Report a broker name that has no master, but report each name only once.

    Args:
        slaves: True if the broker's slaves are asked.
    """
    if slaves:
        text = f"broker {broker_name} has no master; only its slaves were asked"
    else:
        text = f"broker {broker_name} has no master and is left out"
    if text not in context.failures:
        context.fail(text)


def stored_topic(context: Context, addr: str, topic: str) -> TopicConfig:
    """Return the settings that a broker has stored for a topic.

    Raises:
        NotApplied: If the broker does not have the topic.
        RemotingError: If the broker did not answer.
    """
    answer = context.run(context.client.admin.call(addr, RequestCode.GET_ALL_TOPIC_CONFIG))
    table = as_object(document(answer).get("topicConfigTable") or {}, "topicConfigTable")
    if topic not in table:
        raise NotApplied(f"it does not have topic {topic!r}")
    return TopicConfig.from_json(table[topic], topic_name=topic)


def says_absent(error: RemotingError) -> bool:
    """Return True if a broker answered that the requested object does not exist."""
    return (
        isinstance(error, ResponseError)
        and error.code == ResponseCode.SYSTEM_ERROR
        and (error.remark or "").rstrip().endswith("not exist")
    )


def masters_of_group(context: Context, group: str, cluster: str | None = None) -> list[str]:
    """Return the masters that know a consumer group: the masters of the group's retry topic."""
    return list(masters_of_topic(context, RETRY_PREFIX + group, cluster).values())


def target_options(verb: str) -> tuple[Option, Option]:
    """Return RocketMQ's options ``-b`` and ``-c`` for a subcommand. :func:`chosen` reads their values."""
    return (
        Option(short="b", long="brokerAddr", description=f"{verb} which broker"),
        Option(short="c", long="clusterName", description=f"{verb} which cluster"),
    )


def chosen(args: Arguments) -> str:
    """Return the name of the option that selects the brokers: ``b`` if it is given, else ``c``.

    Raises:
        UsageError: If neither option was given. RocketMQ's tool then does nothing and reports no error.
    """
    for short in ("b", "c"):
        if short in args:
            return short
    raise UsageError("no brokers are selected. Give -b or -c")


def first_online(context: Context, addrs: Iterable[str], group: str) -> ConsumerConnection | None:
    """Return the group's members that are online; None if there are none.

    Ask the brokers one after the other until a broker knows members. One broker is enough, because all
    members connect to every broker.

    Raises:
        RemotingError: If no broker knew a member, and a broker did not answer.
    """
    failures: dict[str, RemotingError] = {}
    found: ConsumerConnection | None = None
    for addr in addrs:
        try:
            found = context.run(context.client.admin.consumer_connection(addr, group))
            break
        except RemotingError as error:
            if not (isinstance(error, ResponseError) and error.code == ResponseCode.CONSUMER_NOT_ONLINE):
                failures[addr] = error
    if found is None and failures:
        raise next(iter(failures.values()))
    for addr, failure in failures.items():
        context.warn(f"broker {addr}: {describe(failure)}")
    return found


def cluster_info(context: Context) -> ClusterInfo:
    """Ask a nameserver for clusters and brokers.

    Raises:
        UsageError: If neither ``-n`` nor NAMESRV_ADDR names a nameserver.
    """
    if not context.nameservers:
        raise UsageError("needs a nameserver: name it by -n or NAMESRV_ADDR")
    return context.run(context.client.admin.cluster_info())


def chosen_masters(
    context: Context, args: Arguments, *, everywhere: bool = False, with_slaves: bool = False
) -> list[str]:
    """Return the address given with -b, or the masters of the cluster given with -c.

    Args:
        everywhere: True to return the masters of all clusters if neither option is given.
        with_slaves: True to return the clusters' slaves as well.

    Raises:
        UsageError: If neither option is given, and ``everywhere`` is False.
    """
    if not everywhere:
        chosen(args)
    if "b" in args:
        return [args.text("b")]
    info = cluster_info(context)
    clusters = [args.text("c")] if "c" in args else sorted(info.cluster_addr_table)
    addrs: list[str] = []
    for each in clusters:
        found = masters_of_cluster(context, info, each, with_slaves=with_slaves)
        addrs += all_addrs(info, each) if with_slaves else found.values()
    if not addrs:
        context.fail(f"no master in cluster {', '.join(clusters)!r}")
    return list(dict.fromkeys(addrs))


def ask_each(
    context: Context,
    addrs: Collection[str],
    code: RequestCode,
    ext: Mapping[str, str] | None = None,
    *,
    body: bytes = b"",
    done: Callable[[str, RemotingCommand], None] = lambda _addr, _answer: None,
) -> None:
    """Send a request to brokers one after the other, and report failures. Exit with 1 if there is no broker.

    Args:
        done: Called with each broker's address and successful answer. If it raises a RemotingError, the
            broker counts as failed.
    """
    if not addrs:
        context.exit_with_1()
    for addr in addrs:
        with context.reporting(f"broker {addr}"):
            done(addr, context.run(context.client.admin.call(addr, code, ext or {}, body)))


def document(answer: RemotingCommand) -> dict[str, Any]:
    """Return the JSON object in an answer's body.

    Raises:
        RemoteProtocolError: If the body is no JSON object.
    """
    return as_object(loads(answer.body, ANSWER), "answer")


def counted(statistics: Mapping[str, Any]) -> tuple[float, int]:
    """Return the messages per second in the last minute, and the number of messages in the last day.

    A broker counts the messages of the last day, hour and minute. If the count of the last day is 0, return
    the count of the last hour instead. If this is 0, too, return the count of the last minute. RocketMQ's
    tool prints the same number.

    Args:
        statistics: A broker's answer to request 315.

    Source: StatsAllSubCommand.compute24HourSum.
    """
    day, hour, minute = (
        as_object(statistics.get(span) or {}, span) for span in ("statsDay", "statsHour", "statsMinute")
    )
    tps = minute.get("tps")
    sums = [get_int(span, "sum", limit=INT64_MAX) for span in (day, hour, minute)]
    return float(tps) if isinstance(tps, int | float) else 0.0, next(filter(None, sums), 0)


def second_text(wall_ms: int) -> str:
    """Return local time as ``2026-11-21 12:01:10``; N/A if the time is 0 or less."""
    return local_text(wall_ms) if wall_ms > 0 else "N/A"


# Requests to several brokers at the same time ------------------------------------------------------


def ask_together(
    context: Context, places: Iterable[str], ask: Callable[[str, float], Operation[T]], *, within_s: float
) -> tuple[dict[str, T], dict[str, RemotingError]]:
    """Ask several brokers or clients concurrently, and return the results and the failures.

    Args:
        places: Addresses of brokers, or client ids. They are the keys of both dicts in the result.
        ask: Operation that asks one broker or client, within the given number of seconds.
        within_s: Time limit in seconds for all requests together. Requests that still wait after
            this time are not sent.
    """
    order = list(dict.fromkeys(places))
    found: dict[str, T] = {}
    failures: dict[str, RemotingError] = {}

    def one(place: str, deadline_s: float) -> Operation[None]:
        try:
            left_s = deadline_s - (yield from read_clock()).now_s
            if left_s <= 0:
                raise NotApplied(f"not asked, because the limit of {within_s:g} s was over")
            found[place] = yield from ask(place, left_s)
        except RemotingError as error:
            failures[place] = error

    def all_of_them() -> Operation[None]:
        deadline_s = (yield from read_clock()).now_s + within_s
        yield from together([one(place, deadline_s) for place in order], "mqadmin", at_once=_AT_ONCE)

    context.run(all_of_them())
    return (
        {place: found[place] for place in order if place in found},
        {place: failures[place] for place in order if place in failures},
    )


def call_within(
    context: Context, addr: str, code: RequestCode, ext: Mapping[str, str], left_s: float
) -> Operation[RemotingCommand]:
    """Send a request to a broker. Wait for ``left_s`` seconds or the client's timeout, if that is shorter."""
    timeout_s = min(left_s, context.client.core.config.call_timeout_s)
    return context.client.admin.call(addr, code, ext, timeout_s=timeout_s)


def raise_failures(what: str, failures: Mapping[str, RemotingError], *, of: int) -> None:
    """Raise one error that names all brokers at which a change failed. Without failures, do nothing.

    Args:
        what: The failed change in words, such as "account not deleted".
        of: Number of all brokers that were asked.

    Raises:
        PartlyNotApplied: If the change was certainly not made at the brokers of ``failures``.
        PartlyUnknown: If the change may have been made at some brokers of ``failures``.
    """
    if not failures:
        return
    unknown = any(outcome_of(error) is Outcome.UNKNOWN for error in failures.values())
    raise partial_failure(f"{what}, or outcome unknown," if unknown else what, failures, of=of)


def brokers_of(context: Context, args: Arguments, *, with_slaves: bool = False) -> list[str]:
    """Return the address given with -b, or the masters of the cluster given with -c.

    Args:
        with_slaves: True to return slaves as well.

    Raises:
        UsageError: If neither option is given.
        NotApplied: If the cluster has no brokers.
    """
    if chosen(args) == "b":
        return [args.text("b")]
    info, cluster = cluster_info(context), args.text("c")
    found = list(masters_of_cluster(context, info, cluster, with_slaves=with_slaves).values())
    if with_slaves:
        found = list(all_addrs(info, cluster))
    if not found:
        kind = "broker" if with_slaves else "master"
        raise NotApplied(f"no {kind} in cluster {cluster!r}. {NO_CLUSTER}")
    return found


# Search for a server by address ---------------------------------------------------------------------


def found_at(addrs: Mapping[T, str], addr: str) -> list[T]:
    """Return the keys of the servers at an address. Resolve host names only if no text matches."""
    alike = [key for key, known in addrs.items() if same_address(known, addr)]
    return alike or [key for key, known in addrs.items() if _resolved(known) & _resolved(addr)]


@functools.lru_cache(maxsize=1024)
def _resolved(addr: str) -> frozenset[tuple[str, int]]:
    """Return the IP addresses of a server; empty if its host name cannot be resolved."""
    try:
        host, port = split_address(addr)
        found = resolve(host, timeout_s=RESOLVE_S)
    except (OSError, ValueError, LocalProtocolError):  # ValueError: the host name is invalid
        return frozenset()
    return frozenset((canonical_host(address), port) for address in found)
