"""Subcommands clusterList, wipeWritePerm and addWritePerm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from routekeeper.remoting import wall_clock
from routekeeper.remoting.interrupt import interruptible_sleep

from ..admin import topic_count
from ..directory import EachAnswer
from ..errors import describe
from ..operation import Operation
from .context import Context
from .options import OUTPUT, Arguments, Command, Option
from .targets import cluster_info

_BASE: Final = "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>30}  {:<22}  {:>11}  {:<12}  {:<8}  {:>10}"
_BASE_HEAD: Final = (
    "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>30}  {:<22}  {:<11}  {:<12}  {:<8}  {:<10}"
)
_MORE: Final = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"


def _cluster_list(context: Context, args: Arguments) -> None:
    interval_s = args.number("i", "interval", 0, low=1, high=86_400)
    show = _more if "m" in args else _base
    while True:
        rows = _runtimes(context, args.get("c"))
        context.json([_document(*row) for row in rows])
        if not context.as_json:
            show(context, rows)
        if not interval_s:
            return
        interruptible_sleep(interval_s)
        print(file=context.out, flush=True)  # JSON documents are separated, too


_Row = tuple[str, str, int, str, Mapping[str, str]]


def _runtimes(context: Context, cluster: str | None) -> list[_Row]:
    """Ask each broker for its runtime figures.

    Returns:
        One row for each broker: cluster, broker name, broker id, address and figures. If a broker does not
        answer, its row has no figures.
    """
    admin = context.client.admin
    info = cluster_info(context)
    rows: list[_Row] = []
    for cluster_name, broker_names in sorted(info.cluster_addr_table.items()):
        if cluster is not None and cluster_name != cluster:
            continue
        for broker_name in sorted(broker_names):
            data = info.broker_addr_table.get(broker_name)
            for broker_id, addr in sorted(data.broker_addrs.items()) if data is not None else ():
                runtime: Mapping[str, str] = {}
                with context.reporting(f"broker {addr}"):
                    runtime = context.run(admin.broker_runtime(addr))
                rows.append((cluster_name, broker_name, broker_id, addr, runtime))
    if cluster is not None and not rows:
        context.fail(f"no broker in cluster {cluster!r}")
    return rows


def _base(context: Context, rows: Sequence[_Row]) -> None:
    context.line(
        _BASE_HEAD.format(
            "#Cluster Name",
            "#Broker Name",
            "#BID",
            "#Addr",
            "#Version",
            "#InTPS(LOAD)",
            "#OutTPS(LOAD)",
            "#Timer(Progress)",
            "#PCWait(ms)",
            "#Hour",
            "#SPACE",
            "#ACTIVATED",
        )
    )
    now_ms = wall_clock.now_ms()
    for cluster_name, broker_name, broker_id, addr, runtime in rows:
        context.line(
            _BASE.format(cluster_name, broker_name, broker_id, addr, *_base_columns(runtime, now_ms))
        )


def _base_columns(runtime: Mapping[str, str], now_ms: int) -> tuple[str, ...]:
    """Return the table's columns from ``#Version`` on. Like RocketMQ's tool, replace missing figures by 0."""

    def figure(name: str) -> str:
        return runtime.get(name, "0") or "0"

    earliest_ms = _number(runtime.get("earliestMessageTimeStamp"))
    hours = (now_ms - earliest_ms) / 3_600_000 if earliest_ms > 0 else 0.0
    return (
        runtime.get("brokerVersionDesc", ""),
        f"{_rate(runtime.get('putTps')):9.2f}({figure('sendThreadPoolQueueSize')},"
        f"{figure('sendThreadPoolQueueHeadWaitTimeMills')}ms)",
        f"{_rate(runtime.get('getTransferredTps') or runtime.get('getTransferedTps')):9.2f}"
        f"({figure('pullThreadPoolQueueSize')},{figure('pullThreadPoolQueueHeadWaitTimeMills')}ms"
        f"|{figure('ackThreadPoolQueueSize')},{figure('ackThreadPoolQueueHeadWaitTimeMills')}ms)",
        f"{int(_number(runtime.get('timerReadBehind')))}-{int(_number(runtime.get('timerOffsetBehind')))}"
        f"({_number(runtime.get('timerCongestNum')) / 10000:.1f}w,"
        f" {_number(runtime.get('timerEnqueueTps')):.1f}, {_number(runtime.get('timerDequeueTps')):.1f})",
        figure("pageCacheLockTimeMills"),
        f"{hours:2.2f}",
        f"{_number(runtime.get('commitLogDiskRatio')):.4f}",
        runtime.get("brokerActive", "true") or "true",
    )


def _more(context: Context, rows: Sequence[_Row]) -> None:
    context.line(
        _MORE.format(
            "#Cluster Name",
            "#Broker Name",
            "#InTotalYest",
            "#OutTotalYest",
            "#InTotalToday",
            "#OutTotalToday",
        )
    )
    for cluster_name, broker_name, _, _, runtime in rows:
        columns = [
            int(_number(runtime.get(f"{kind}{later}")) - _number(runtime.get(f"{kind}{earlier}")))
            for later, earlier in (
                ("TodayMorning", "YesterdayMorning"),
                ("TodayNow", "TodayMorning"),
            )
            for kind in ("msgPutTotal", "msgGetTotal")
        ]
        context.line(_MORE.format(cluster_name, broker_name, *columns))


def _document(
    cluster_name: str, broker_name: str, broker_id: int, addr: str, runtime: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "cluster": cluster_name,
        "brokerName": broker_name,
        "brokerId": broker_id,
        "addr": addr,
        "runtime": dict(runtime),
    }


def _rate(text: str | None) -> float:
    """Return the first of three rates in a broker's text: the rate of the last 10 s."""
    return _number((text or "").split(" ")[0])


def _number(text: str | None) -> float:
    """Convert a broker's figure to a number, or to 0 if the text is no finite number."""
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _perm(
    verb: str, change: Callable[[Context, str], Operation[tuple[EachAnswer, ...]]]
) -> Callable[[Context, Arguments], None]:
    def run(context: Context, args: Arguments) -> None:
        broker_name = args.text("b")
        for answer in context.run(change(context, broker_name)):
            prefix = f"{verb} write perm of broker[{broker_name}] in name server[{answer.addr}]"
            if answer.response is not None:
                count = topic_count(answer.response)
                context.line(f"{prefix} OK, {count}")
                if not count:  # the count includes unchanged topics, so 0 means that the broker has no topic
                    hint = "give -b a broker name that clusterList shows"
                    reason = f"no topic of broker {broker_name!r}; {hint}"
                    context.fail(f"name server[{answer.addr}]: {reason}")
            else:
                assert answer.error is not None
                context.line(f"{prefix} Failed")
                context.fail(f"name server[{answer.addr}]: {describe(answer.error)}")

    return run


COMMANDS: Final = (
    Command(
        name="clusterList",
        description="List cluster infos.",
        options=(
            Option(short="m", long="moreStats", description="Print more stats", value=False),
            Option(short="i", long="interval", description="specify intervals numbers, it is in seconds"),
            Option(short="c", long="clusterName", description="which cluster"),
            OUTPUT,
        ),
        run=_cluster_list,
        only_reads=True,
    ),
    Command(
        name="wipeWritePerm",
        description="Wipe write perm of broker in all name server you defined in the -n param.",
        options=(Option(short="b", long="brokerName", description="broker name", required=True),),
        run=_perm("wipe", lambda context, name: context.client.admin.wipe_write_perm(name)),
    ),
    Command(
        name="addWritePerm",
        description="Add write perm of broker in all name server you defined in the -n param.",
        options=(Option(short="b", long="brokerName", description="broker name", required=True),),
        run=_perm("add", lambda context, name: context.client.admin.add_write_perm(name)),
    ),
)
