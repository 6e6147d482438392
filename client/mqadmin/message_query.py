"""Subcommands that search for messages and print them.

They are queryMsgById, queryMsgByKey, queryMsgByUniqueKey, queryMsgByOffset, printMsg and queryCq.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError, ResponseError
from routekeeper.remoting.lenient import INT32_MAX, INT64_MAX, as_object, get_int, get_list
from routekeeper.remoting.message import StoredMessage, decode_messages, parse_offset_message_id

from ..errors import NotApplied, describe
from ..queue_reader import PullResult, ReceivedMessage, TopicReader, receive
from . import java
from .context import Context
from .message import PULL_MAX, TOOLS_CONSUMER, offset_bounds, print_message, pull, pull_status
from .options import OUTPUT, OUTPUT_LONG, Arguments, Command, Option, UsageError, instant
from .targets import CLUSTER, document, masters_of_topic
from .tracks import Track, tracks_of

_RESULTS_MAX: Final = 64


class Match(NamedTuple):
    """A message that a search found. The body is decompressed only when the message is printed.

    Attributes:
        message: The message without its body.
        stored: The same message as the broker stored it, with its body.
    """

    message: ReceivedMessage
    stored: StoredMessage


def matches_in(body: bytes, broker_name: str = "") -> list[Match]:
    """Return the messages in the body of an answer.

    Raises:
        RemoteProtocolError: If the body cannot be decoded.
    """
    return [Match(receive(stored, broker_name, with_body=False), stored) for stored in decode_messages(body)]


def with_bodies(context: Context, matches: Iterable[Match]) -> Iterator[ReceivedMessage]:
    """Yield each message with its body. To save memory, decompress only one body at a time.

    Report messages that cannot be read.
    """
    for message, stored in matches:
        try:
            yield receive(stored, message.queue.broker_name)
        except RemoteProtocolError as error:
            context.fail(f"{message.message_id}: {error}")


def _show(
    context: Context,
    messages: Iterable[ReceivedMessage],
    *,
    with_id: bool = True,
    charset: str = "UTF-8",
) -> None:
    """Print messages one after the other. If nameservers are given, also print the tracks of each message.

    A track is the outcome of a message in one consumer group. This tool prints the body as text. RocketMQ's
    tool writes the body to a file and prints the file's name.

    Args:
        with_id: True to print the offset message id first. It contains the broker's address and the offset in
            its log.
    """

    def known_tracks(message: ReceivedMessage) -> list[Track] | None:
        with context.reporting(f"the groups of message {message.message_id} are unknown"):
            return tracks_of(context, message) if context.nameservers else None
        return None

    def documents() -> Iterator[dict[str, Any]]:
        for message in messages:
            tracks = [track.to_json() for track in known_tracks(message) or ()]
            yield _document(message, charset) | {"messageTracks": tracks}

    if context.as_json:
        context.json_list(documents())
        return
    for message in messages:
        _show_one(context, message, with_id=with_id, charset=charset)
        tracks = known_tracks(message)
        if tracks is not None:
            context.line()
            for line in map(str, tracks) if tracks else ("WARN: No Consumer",):
                context.line(line)
        context.line()


def _show_one(context: Context, message: ReceivedMessage, *, with_id: bool, charset: str) -> None:
    for name, value in (
        ("OffsetID:", message.offset_message_id),
        ("Topic:", message.topic),
        ("Tags:", f"[{message.tags if message.tags is not None else 'null'}]"),
        ("Keys:", f"[{' '.join(message.keys)}]"),
        ("Queue ID:", message.queue.queue_id),
        ("Queue Offset:", message.queue_offset),
        ("CommitLog Offset:", message.commit_log_offset),
        ("Reconsume Times:", message.reconsume_times),
        ("Born Timestamp:", java.time_text(message.born_ms)),
        ("Store Timestamp:", java.time_text(message.store_ms)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", message.sys_flag),
        ("Properties:", java.map_text(_in_java_order(message))),
        ("Message Body:", body_text(message.body, charset)),
    ):
        if with_id or name != "OffsetID:":
            context.line(f"{name:<20} {value}")
    context.line()


def _in_java_order(message: ReceivedMessage) -> dict[str, str]:
    return {name: message.properties[name] for name in java.hash_order(message.properties)}


def _document(message: ReceivedMessage, charset: str = "UTF-8") -> dict[str, Any]:
    return {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": list(message.keys),
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_ms,
        "storeTimestamp": message.store_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "properties": dict(message.properties),
        "body": body_text(message.body, charset),
    }


def _query_by_id(context: Context, args: Arguments) -> None:
    charset = charset_of(args, "f", "bodyFormat")
    found: list[Match] = []
    for message_id in filter(None, (part.strip() for part in args.text("i").split(","))):
        try:
            found += _by_id(context, message_id, args.get("t"), args.get("c"))
        except RemotingError as error:
            hint = "" if "t" in args else "; if a producer printed this id, also give its topic: -t TOPIC"
            context.fail(f"no message. msgId={message_id}: {describe(error)}{hint}")
    if "g" in args or "d" in args:
        _consume_directly(context, args, found)
    else:
        _show(context, with_bodies(context, found), charset=charset)


def _by_id(context: Context, message_id: str, topic: str | None, cluster: str | None) -> list[Match]:
    """Return the message with this offset message id, or else the message with this unique id."""
    try:
        host, offset = parse_offset_message_id(message_id)
        ext = {"offset": str(offset), "topic": topic or ""}
        answer = context.run(context.client.admin.call(str(host), RequestCode.VIEW_MESSAGE_BY_ID, ext))
        return matches_in(answer.body)
    except RemotingError:
        # The id may be a unique id, because both kinds of ids have 32 hexadecimal digits.
        found = [] if topic is None else _by_unique_id(context, topic, message_id, cluster)
        if not found:
            raise
        return found[:1]


def _by_unique_id(context: Context, topic: str, key: str, cluster: str | None) -> list[Match]:
    ext = {
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(INT64_MAX),
        "_UNIQUE_KEY_QUERY": "true",
    }
    return [found for found in _query(context, topic, key, ext, cluster) if found.message.message_id == key]


def _consume_directly(context: Context, args: Arguments, matches: Iterable[Match]) -> None:
    """Make one member of a group consume messages now, even if the group has consumed them before."""
    if "g" not in args or "d" not in args:
        raise UsageError(
            "-g and -d belong together: give the group, and the client id of its member that consumes"
        )
    rows = []
    for message, _ in matches:
        ext = {
            "consumerGroup": args.text("g"),
            "clientId": args.text("d"),
            "msgId": message.offset_message_id,
            "topic": message.topic,
        }
        answer = context.run(
            context.client.admin.call(message.store_host, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        )
        result = document(answer)
        rows.append({"msgId": message.message_id} | result)
        names = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")
        members = ", ".join(f"{name}={java.text(result.get(name))}" for name in names)
        context.line(f"ConsumeMessageDirectlyResult [{members}]")
    context.json(rows)
    if any(row.get("consumeResult") != "CR_SUCCESS" for row in rows):
        context.exit_with_1()


def _query(context: Context, topic: str, key: str, ext: dict[str, str], cluster: str | None) -> list[Match]:
    """Return a topic's messages with a key, from all masters or only from the masters of one cluster.

    Report brokers that fail to answer.
    """
    asked = {"topic": topic, "key": key} | ext
    found: list[Match] = []
    for name, addr in masters_of_topic(context, topic, cluster).items():
        try:
            answer = context.run(context.client.admin.call(addr, RequestCode.QUERY_MESSAGE, asked))
            found += matches_in(answer.body, name)
        except RemotingError as error:
            if not (isinstance(error, ResponseError) and error.code == ResponseCode.QUERY_NOT_FOUND):
                context.fail(f"broker {addr}: {describe(error)}")
    return found


def _none(context: Context, text: str) -> None:
    """Report that a search had no result, unless another failure was reported already."""
    if not context.failures:
        context.fail(text)


def _query_by_key(context: Context, args: Arguments) -> None:
    key = args.text("k")
    ext = {
        "maxNum": str(args.number("m", "maxNum", _RESULTS_MAX, low=1, high=_RESULTS_MAX)),
        "beginTimestamp": str(args.number("b", "beginTimestamp", 0, low=0, high=INT64_MAX)),
        "endTimestamp": str(args.number("e", "endTimestamp", INT64_MAX, low=0, high=INT64_MAX)),
        "_UNIQUE_KEY_QUERY": "false",
    }
    listed = _query(context, args.text("t"), key, ext, args.get("c"))
    found = [match for match in listed if key in match.message.keys]
    if not found:
        _none(context, f"no message of topic {args.text('t')!r} with key {key!r}")
        return
    if context.as_json:
        context.json_list(map(_document, with_bodies(context, found)))
    context.line(f"{'#Message ID':<50} {'#QID':>4} {'#Offset':>40}")
    for message, _ in found:
        context.line(f"{message.message_id:<50} {message.queue.queue_id:>4} {message.queue_offset:>40}")


def _query_by_unique_key(context: Context, args: Arguments) -> None:
    key = args.text("i")
    found = _by_unique_id(context, args.text("t"), key, args.get("c"))
    if not found:
        _none(context, f"no message of topic {args.text('t')!r} with id {key!r}")
    elif "g" in args or "d" in args:
        _consume_directly(context, args, found[:1])
    else:
        shown = with_bodies(context, found if "a" in args else found[:1])
        _show(context, shown, with_id=False)


def _query_by_offset(context: Context, args: Arguments) -> None:
    topic, name = args.text("t"), args.text("b")
    queue_id = args.number("i", "queueId", 0, low=0, high=INT32_MAX)
    offset = args.number("o", "offset", 0, low=0, high=INT64_MAX)
    charset = charset_of(args, "f", "bodyFormat")
    queue = MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
    consumer = TopicReader(context.client.core, TOOLS_CONSUMER)
    if queue not in context.run(consumer.queues(topic)):
        raise NotApplied(f"The broker[{name}] not exist, or has no queue {queue_id} of the topic")
    result = pull(context, consumer, queue, offset, count=1)
    taken = [message for message in result.messages if message.queue_offset == offset]
    if not taken:
        raise NotApplied(
            f"no message at offset {offset}: {pull_status(result.code)},"
            f" the queue has offsets {result.min_offset} to {result.max_offset}"
        )
    limits = {"MIN_OFFSET": str(result.min_offset), "MAX_OFFSET": str(result.max_offset)}
    shown = [
        msgspec.structs.replace(message, properties={**message.properties, **limits}) for message in taken
    ]
    _show(context, shown, charset=charset)


def _print_msg(context: Context, args: Arguments) -> None:
    topic, expression = args.text("t"), args.get("s") or "*"
    charset = charset_of(args, "c", "charsetName")
    with_body = "d" not in args or args.flag("d", "printBody")
    begin_ms, end_ms = instant(args, "b"), instant(args, "e")
    consumer = TopicReader(context.client.core, TOOLS_CONSUMER)
    queues = sorted(context.run(consumer.queues(topic)))

    def bounds(queue: MessageQueue) -> tuple[int, int]:
        return offset_bounds(context, consumer, queue, begin_ms, end_ms)

    if context.as_json:
        context.json_list(
            _document(message, charset) | ({} if with_body else {"body": None})
            for queue in queues
            for result in pulls(context, consumer, queue, expression, *bounds(queue))
            for message in result.messages
        )
        return
    for queue in queues:
        first, last = bounds(queue)
        context.line(f"minOffset={first}, maxOffset={last}, {java.queue_text(queue)}")
        for result in pulls(context, consumer, queue, expression, first, last):
            for message in result.messages:
                print_message(context, message, result, charset if with_body else None)
            if result.code != ResponseCode.SUCCESS:
                status = pull_status(result.code)
                what = "no matched msg." if status == "NO_MATCHED_MSG" else "print msg finished."
                context.line(f"{java.queue_text(queue)} {what} status={status}, offset={result.next_offset}")
        context.line("-" * 56)


def pulls(
    context: Context, consumer: TopicReader, queue: MessageQueue, expression: str, first: int, last: int
) -> Iterator[PullResult]:
    """Pull the messages from offset ``first`` to ``last`` - 1, and yield the result of each pull.

    The last result may also contain later messages. Report unreadable messages.
    """
    offset, ended = first, False
    while offset < last and not ended:
        result = pull(context, consumer, queue, offset, expression=expression, count=PULL_MAX)
        ended = result.next_offset <= offset
        for broken in result.broken:
            context.fail(f"{broken.offset_message_id}: {broken.reason}")
        yield result
        offset = result.next_offset


def charset_of(args: Arguments, short: str, name: str) -> str:
    """Return the encoding of message bodies that an option names.

    Raises:
        UsageError: If no text encoding has this name.
    """
    charset = args.get(short) or "UTF-8"
    try:
        body_text(b"a", charset)
    except (LookupError, UnicodeError):
        raise UsageError(
            f"{name}={charset!r} is no known text encoding, allowed are names such as UTF-8 and GBK"
        ) from None
    return charset


def body_text(body: bytes, charset: str) -> str:
    return body.decode(charset, "replace")


def _query_cq(context: Context, args: Arguments) -> None:
    ext = {
        "topic": args.text("t"),
        "queueId": str(args.number("q", "queue", 0, low=0, high=INT32_MAX)),
        "index": str(args.number("i", "index", 0, low=0, high=INT64_MAX)),
        "count": str(args.number("c", "count", 10, low=1, high=1024)),
    }
    if "g" in args:
        ext["consumerGroup"] = args.text("g")
    addrs = [args.text("b")] if "b" in args else list(masters_of_topic(context, args.text("t")).values())[:1]
    if not addrs:
        raise NotApplied("No topic route data!")
    found = document(context.run(context.client.admin.call(addrs[0], RequestCode.QUERY_CONSUME_QUEUE, ext)))
    context.json(found)
    if context.as_json:
        return
    line = "=" * 38
    if found.get("subscriptionData") is not None:
        context.line("Subscription data: ")
        members = as_object(found["subscriptionData"], "subscriptionData")
        sets = {name: tuple(value) for name, value in members.items() if isinstance(value, list)}
        context.page(java.json_text({**members, **sets}))
        context.line(line)
    if found.get("filterData") is not None:
        context.line("Filter data: ")
        context.line(str(found["filterData"]))
        context.line(line)
    context.line("Queue data: ")
    first, last = (get_int(found, name, limit=INT64_MAX) for name in ("minQueueIndex", "maxQueueIndex"))
    context.line(f"max: {last}, min: {first}")
    context.line(line)
    for number, entry in enumerate(get_list(found, "queueData"), int(ext["index"])):
        context.line(f"idx: {number}")
        context.line(_entry_text(as_object(entry, "queue entry")))
        context.line(line)


def _entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of a consume queue as text. Source: ConsumeQueueData.toString."""
    texts = {
        name: "null" if entry.get(name) is None else entry[name]
        for name in ("extendDataJson", "bitMap", "msg")
    }
    return (
        f"ConsumeQueueData{{physicOffset={get_int(entry, 'physicOffset', limit=INT64_MAX)},"
        f" physicSize={get_int(entry, 'physicSize')}, tagsCode={entry.get('tagsCode')},"
        f" extendDataJson='{texts['extendDataJson']}', bitMap='{texts['bitMap']}',"
        f" eval={java.flag(entry.get('eval') is True)}, msg='{texts['msg']}'}}"
    )


_TOPIC: Final = Option(short="t", long="topic", description="topic name", required=True)
_BODY_FORMAT: Final = Option(
    short="f", long="bodyFormat", description="print message body by the specified format"
)
_DIRECTLY: Final = (
    Option(short="g", long="consumerGroup", description="consumer group name"),
    Option(short="d", long="clientId", description="The consumer's client id"),
)

COMMANDS: Final = (
    Command(
        name="queryMsgById",
        description="Query Message by Id.",
        options=(
            Option(short="t", long="topic", description="topic name"),
            Option(short="i", long="msgId", description="Message Id", required=True),
            CLUSTER,
            *_DIRECTLY,
            _BODY_FORMAT,
            Option(
                short="s",
                long="sendMessage",
                description="resend message",
                refused="print the message with queryMsgById -o json, and send it again with sendMessage",
            ),
            Option(
                short="u",
                long="unitName",
                description="unit name",
                refused="this client does not support units",
            ),
            OUTPUT,
        ),
        run=_query_by_id,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="queryMsgByKey",
        description="Query Message by Key.",
        options=(
            Option(short="t", long="topic", description="Topic name", required=True),
            Option(short="k", long="msgKey", description="Message Key", required=True),
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
                short="m",
                long="maxNum",
                description="The maximum number of messages returned by the query, default:64",
            ),
            CLUSTER,
            OUTPUT,
        ),
        run=_query_by_key,
        only_reads=True,
    ),
    Command(
        name="queryMsgByUniqueKey",
        description="Query Message by Unique key.",
        options=(
            Option(short="i", long="msgId", description="Message Id", required=True),
            Option(short="t", long="topic", description="The topic of msg", required=True),
            Option(
                short="a",
                long="showAll",
                description="Print all message, the limit is 32",
                value=False,
            ),
            CLUSTER,
            *_DIRECTLY,
            OUTPUT,
        ),
        run=_query_by_unique_key,
        only_reads=True,
    ),
    Command(
        name="queryMsgByOffset",
        description="Query Message by offset.",
        options=(
            _TOPIC,
            Option(short="b", long="brokerName", description="Broker Name", required=True),
            Option(short="i", long="queueId", description="Queue Id", required=True),
            Option(short="o", long="offset", description="Queue Offset", required=True),
            _BODY_FORMAT,
            OUTPUT_LONG,
        ),
        run=_query_by_offset,
        only_reads=True,
    ),
    Command(
        name="printMsg",
        description="Print Message Detail.",
        options=(
            _TOPIC,
            Option(short="c", long="charsetName ", description="CharsetName(eg: UTF-8,GBK)"),
            Option(short="s", long="subExpression ", description="Subscribe Expression(eg: TagA || TagB)"),
            Option(
                short="b",
                long="beginTimestamp ",
                description="Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]",
            ),
            Option(
                short="e",
                long="endTimestamp ",
                description="End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]",
            ),
            Option(short="d", long="printBody ", description="print body"),
            Option(
                short="l",
                long="lmqParentTopic",
                description="Lmq parent topic, lmq is used to find the route.",
                refused="this client does not read light message queues",
            ),
            OUTPUT,
        ),
        run=_print_msg,
        only_reads=True,
    ),
    Command(
        name="queryCq",
        description="Query cq command.",
        options=(
            _TOPIC,
            Option(short="q", long="queue", description="queue num, ie. 1", required=True),
            Option(short="i", long="index", description="start queue index.", required=True),
            Option(short="c", long="count", description="how many."),
            Option(short="b", long="broker", description="broker addr."),
            Option(short="g", long="consumer", description="consumer group."),
            OUTPUT,
        ),
        run=_query_cq,
        only_reads=True,
    ),
)
