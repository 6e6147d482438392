"""Subcommand queryMsgTraceById, and the form in which RocketMQ's clients write message traces.

The body of a message in a trace topic contains several records. The character 2 ends each record, and the
character 1 separates the fields of a record. The first field is the kind of the record.

Source: TraceConstants, TraceDataEncoder and TraceView, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.errors import ResponseError
from routekeeper.remoting.lenient import INT64_MAX
from routekeeper.remoting.wall_clock import local_text

from ..errors import NotApplied, PartlyNotApplied
from ..operation import Operation
from . import java
from .context import Context
from .message_query import Match, matches_in, with_bodies
from .options import OUTPUT, Arguments, Command, Option
from .targets import ask_together, call_within, masters_of_topic

#: Default topic of message traces. Brokers and clients can use another topic. Source: TopicValidator.
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_RESULTS_MAX: Final = 64
_WITHIN_S: Final = 30.0
_ROW: Final = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"
_FIELD_END: Final = chr(1)
_RECORD_END: Final = chr(2)
PUB: Final = "Pub"
SUB_AFTER: Final = "SubAfter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A client's record of one send or one consumption of a message.

    Attributes:
        kind: :data:`PUB` for a send, or :data:`SUB_AFTER` for a consumption, which may have failed.
        group: The producer's or consumer's group; None if the record has none.
        time_ms: Unix ms at which a send began, or a consumption ended; 0 if the record has no time.
        cost_ms: Duration of the send or consumption in ms.
    """

    kind: str
    message_id: str
    group: str | None
    time_ms: int
    cost_ms: int
    success: bool


class Unreadable(ValueError):
    """A record is not in RocketMQ's form. The text gives the reason."""


def decode_traces(body: bytes, message_id: str) -> Iterator[Trace | Unreadable]:
    """Yield the sends and consumptions of one message, and skip the records of other messages."""
    for record in body.decode("utf-8", "replace").split(_RECORD_END):
        fields = record.split(_FIELD_END)
        while fields and not fields[-1]:  # Java's split also drops empty fields at the end
            fields.pop()
        if not fields or fields[0] not in (PUB, SUB_AFTER):
            continue
        try:
            trace = _sent(fields) if fields[0] == PUB else _consumed(fields)
        except (IndexError, ValueError) as error:
            yield Unreadable(f"{fields[0]} of {len(fields)} fields: {error}")
            continue
        if trace.message_id == message_id:
            yield trace


def _sent(fields: Sequence[str]) -> Trace:
    flag = {13: 12, 14: 13}.get(len(fields), 13)  # index of the success flag: 12 before RocketMQ 4.3, then 13
    return Trace(
        kind=PUB,
        message_id=fields[5],
        group=fields[3],
        time_ms=int(fields[1]),
        cost_ms=int(fields[10]),
        success=len(fields) < 13 or fields[flag].lower() == "true",
    )


def _consumed(fields: Sequence[str]) -> Trace:
    known = len(fields) >= 9
    return Trace(
        kind=SUB_AFTER,
        message_id=fields[2],
        group=fields[8] if known else None,
        time_ms=int(fields[7]) if known else 0,
        cost_ms=int(fields[3]),
        success=fields[4].lower() == "true",
    )


class _Seen(NamedTuple):
    """A message trace, and the IP address of the client that wrote the trace."""

    trace: Trace
    host: str


def _query_trace(context: Context, args: Arguments) -> None:
    topic, message_id = args.get("t") or _TRACE_TOPIC, args.text("i")
    ext = {
        "topic": topic,
        "key": message_id,
        "maxNum": str(args.number("c", "maxNum", _RESULTS_MAX, low=1, high=_RESULTS_MAX)),
        "beginTimestamp": str(args.number("b", "beginTimestamp", 0, low=0, high=INT64_MAX)),
        "endTimestamp": str(args.number("e", "endTimestamp", INT64_MAX, low=0, high=INT64_MAX)),
        "_UNIQUE_KEY_QUERY": "false",
    }
    names = {addr: name for name, addr in masters_of_topic(context, topic).items()}

    def ask(addr: str, left_s: float) -> Operation[list[Match]]:
        try:
            answer = yield from call_within(context, addr, RequestCode.QUERY_MESSAGE, ext, left_s)
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
    context.json([_document(one) for one in seen])
    _print(context, seen)
    if failures:
        raise PartlyNotApplied("traces not read", failures, of=len(names))
    if not seen:
        raise NotApplied(f"no trace of message {message_id!r} in topic {topic!r}")


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
