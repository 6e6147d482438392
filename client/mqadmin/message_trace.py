"""Subcommand queryMsgTraceById."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ResponseError
from routekeeper.remoting.wall_clock import local_text

from ..errors import PartlyNotApplied
from ..operation import Operation
from . import java
from .context import Context
from .message_query import Match, matches_in, with_bodies
from .options import OUTPUT, Arguments, Command, Option
from .targets import masters_of_topic
from .together import ask_together
from .traces import PUB, Trace, Unreadable, decode_traces

#: Default topic of message traces. Brokers and clients can use another topic. Source: TopicValidator.
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_RESULTS_MAX: Final = 64
_INT64_MAX: Final = 2**63 - 1
_WITHIN_S: Final = 30.0
_ROW: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"


class _Seen(NamedTuple):
    """A message trace, and the IP address of the client that wrote the trace."""

    trace: Trace
    host: str


def _query_trace(context: Context, args: Arguments) -> int:
    topic, message_id, as_json = args.get("t") or _TRACE_TOPIC, args.text("i"), args.json()
    ext = {
        "topic": topic,
        "key": message_id,
        "maxNum": str(args.number("c", "maxNum", _RESULTS_MAX, low=1, high=_RESULTS_MAX)),
        "beginTimestamp": str(args.number("b", "beginTimestamp", 0, low=0, high=_INT64_MAX)),
        "endTimestamp": str(args.number("e", "endTimestamp", _INT64_MAX, low=0, high=_INT64_MAX)),
        "_UNIQUE_KEY_QUERY": "false",
    }
    names = {addr: name for name, addr in masters_of_topic(context, topic).items()}

    def ask(addr: str, left_s: float) -> Operation[list[Match]]:
        timeout_s = min(left_s, context.client.core.config.call_timeout_s)
        admin = context.client.admin
        try:
            answer: RemotingCommand = yield from admin.call(
                addr, RequestCode.QUERY_MESSAGE, ext, timeout_s=timeout_s
            )
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        return matches_in(answer.body, names[addr])

    answers, failures = ask_together(context, names, ask, within_s=_WITHIN_S)
    matches = [match for found in answers.values() for match in found if message_id in match.message.keys]
    seen: list[_Seen] = []
    for message in with_bodies(context, matches):
        for trace in decode_traces(message.body, message_id):
            if isinstance(trace, Unreadable):
                context.fail(f"{message.offset_message_id} holds no trace: {trace}")
            else:
                seen.append(_Seen(trace, split_address(message.born_host)[0]))
    if as_json:
        context.json([_document(one) for one in seen])
    else:
        _print(context, seen)
    if failures:
        raise PartlyNotApplied("traces not read", failures, of=len(names))
    return 0 if seen else context.fail(f"no trace of message {message_id!r} in topic {topic!r}")


def _print(context: Context, seen: Sequence[_Seen]) -> None:
    groups: dict[str, list[_Seen]] = {}
    for one in seen:
        if one.trace.kind == PUB:
            _head(context, "#ProducerGroup", "#SendTime")
            _row(context, "Pub", one)
            context.line()
        else:
            groups.setdefault(str(one.trace.group or "null"), []).append(one)
    for group in java.hash_order(groups, buckets=16):
        _head(context, "#ConsumerGroup", "#ConsumerTime")
        for one in groups[group]:
            _row(context, "Sub", one)
        context.line()


def _head(context: Context, group: str, instant: str) -> None:
    context.line(_ROW.format("#Type", group, "#ClientHost", instant, "#CostTimes", "#Status"))


def _row(context: Context, kind: str, one: _Seen) -> None:
    trace = one.trace
    status = "success" if trace.success else "failed"
    when = local_text(trace.time_ms)
    context.line(_ROW.format(kind, trace.group or "null", one.host, when, f"{trace.cost_ms}ms", status))


def _document(one: _Seen) -> dict[str, object]:
    trace = one.trace
    return {
        "type": "Pub" if trace.kind == PUB else "Sub",
        "group": trace.group,
        "clientHost": one.host,
        "timestamp": trace.time_ms,
        "costTime": trace.cost_ms,
        "success": trace.success,
    }


COMMANDS: Final = (
    Command(
        name="queryMsgTraceById",
        description="Query a message trace.",
        options=(
            Option(short="i", long="msgId", description="Message Id", required=True),
            Option(short="t", long="traceTopic", description="The name value of message trace topic"),
            Option(
                short="b",
                long="beginTimestamp",
                description="Begin timestamp(ms). default:0, eg:1676730526212",
            ),
            Option(
                short="e",
                long="endTimestamp",
                description="End timestamp(ms). default:Long.MAX_VALUE, eg:1676730526212",
            ),
            Option(
                short="c",
                long="maxNum",
                description="The maximum number of messages returned by the query, default:64",
            ),
            OUTPUT,
        ),
        run=_query_trace,
        only_reads=True,
    ),
)
