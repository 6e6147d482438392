"""Subcommands sendMessage and consumeMessage."""

from __future__ import annotations

from typing import Final

from routekeeper.remoting import wall_clock
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.interrupt import interruptible_sleep
from routekeeper.remoting.lenient import INT32_MAX, INT64_MAX

from ..config import ProducerConfig
from ..errors import NotApplied
from ..producer import Message
from ..queue_reader import PullResult, ReceivedMessage, TopicReader
from . import java
from .context import Context
from .options import OUTPUT, Arguments, Command, Option, UsageError, instant

TOOLS_CONSUMER: Final = "TOOLS_CONSUMER"
_COUNT_DEFAULT: Final = 128
PULL_MAX: Final = 32
#: Largest number of pulls of one offset while a broker searches for the message there, and the pause between
#: two of these pulls in seconds. Together they allow 30 s.
_SEARCH_PULLS: Final = 150
_SEARCH_PAUSE_S: Final = 0.2
_STATUS: Final = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}


def _send_message(context: Context, args: Arguments) -> None:
    if "i" in args and "b" not in args:
        raise UsageError("Broker name must be set if the queue is chosen!")
    message = Message(
        topic=args.text("t"),
        body=args.text("p").encode(),
        tags=args.get("c") or None,
        keys=(args.get("k") or "").split(),
    )
    if args.flag("m", "msgTraceEnable"):
        raise UsageError("msgTraceEnable=true is not offered, allowed is false: this client writes no traces")
    producer = context.client.producer(ProducerConfig(group=f"mqadmin-{wall_clock.now_ms()}"))
    queue = None
    if "b" in args:
        queue_id = args.number("i", "qid", -1, low=0, high=INT32_MAX)
        candidates = [
            found
            for found in context.run(producer.core.queues(message.topic))
            if found.broker_name == args.text("b") and queue_id in (-1, found.queue_id)
        ]
        if not candidates:
            which = f" queue {queue_id}" if queue_id >= 0 else " queue"
            raise NotApplied(
                f"The broker[{args.text('b')}] not exist, or topic {message.topic} has no{which} there"
            )
        queue = candidates[0]
    result = producer.send(message, queue=queue)
    context.json(
        {
            "brokerName": result.queue.broker_name,
            "queueId": result.queue.queue_id,
            "sendResult": result.status.name,
            "msgId": result.message_id,
            "offsetMsgId": result.offset_message_id,
            "queueOffset": result.queue_offset,
        }
    )
    layout = "{:<32}  {:<4}  {:<20}    {}"
    context.line(layout.format("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    context.line(
        layout.format(result.queue.broker_name, result.queue.queue_id, result.status.name, result.message_id)
    )


def _consume_message(context: Context, args: Arguments) -> None:
    count = args.number("c", "MessageNumber", _COUNT_DEFAULT, low=1, high=INT64_MAX)
    if "i" in args and "b" not in args:
        raise UsageError("Please set the brokerName before queueId!")
    if "o" in args and "i" not in args:
        raise UsageError("please set queueId before offset!")
    begin_ms, end_ms = instant(args, "s"), instant(args, "e")
    consumer = TopicReader(context.client.core, args.get("g") or TOOLS_CONSUMER)
    queues = context.run(consumer.queues(args.text("t")))
    if "i" not in args:
        if "b" in args:
            queues = tuple(queue for queue in queues if queue.broker_name == args.text("b"))
            if not queues:
                raise NotApplied(f"The broker[{args.text('b')}] not exist, or has no queue of the topic")
        left = count
        for queue in sorted(queues):
            if left <= 0:
                break
            first, last = offset_bounds(context, consumer, queue, begin_ms, end_ms)
            if last - first > left:
                context.line(f"The older {left} message of the {queue.queue_id} queue will be provided")
                last = first + left - 1
            left -= _print_queue(context, consumer, queue, first, last)
        return
    queue_id = args.number("i", "queueId", 0, low=0, high=INT32_MAX)
    chosen = MessageQueue(topic=args.text("t"), broker_name=args.text("b"), queue_id=queue_id)
    if chosen not in queues:
        raise NotApplied(f"The broker[{args.text('b')}] not exist, or has no queue {queue_id} of the topic")
    offset = args.number("o", "offset", 0, low=0, high=INT64_MAX)
    first, last = offset_bounds(context, consumer, chosen, begin_ms, end_ms)
    if offset > last:
        context.line(f"{java.queue_text(chosen)} no matched msg, offset={offset}")
        return
    first = max(first, offset)
    if last - first > count:
        context.line(f"The oldler {count} message will be provided")
        last = first + count - 1
    _print_queue(context, consumer, chosen, first, last)


def offset_bounds(
    context: Context, consumer: TopicReader, queue: MessageQueue, begin_ms: int, end_ms: int
) -> tuple[int, int]:
    reader = consumer.reader
    first = context.run(reader.search_offset(queue, begin_ms) if begin_ms else reader.min_offset(queue))
    last = context.run(reader.search_offset(queue, end_ms) if end_ms else reader.max_offset(queue))
    return first, last


def _print_queue(context: Context, consumer: TopicReader, queue: MessageQueue, first: int, last: int) -> int:
    """Print the messages from offset ``first`` to ``last``, inclusive. Return the number of messages."""
    printed = 0
    offset = first
    while offset <= last:
        result = pull(context, consumer, queue, offset, count=min(PULL_MAX, last - offset + 1))
        if is_searching(result, offset):
            break
        offset = result.next_offset
        if result.code == ResponseCode.SUCCESS:
            context.line("Consume ok")
            printed += _print_messages(context, result)
            continue
        status = pull_status(result.code)
        if status == "NO_MATCHED_MSG":
            context.line(f"{java.queue_text(queue)} no matched msg. status={status}, offset={offset}")
            continue
        context.line(f"{java.queue_text(queue)} print msg finished. status={status}, offset={offset}")
        break
    return printed


def pull(
    context: Context,
    consumer: TopicReader,
    queue: MessageQueue,
    offset: int,
    *,
    expression: str = "*",
    count: int,
) -> PullResult:
    """Pull messages from ``offset`` on.

    While a broker searches its log for messages whose queue entries are damaged, it answers that the same
    offset must be pulled again. Pull again until the search has ended, but at most :data:`_SEARCH_PULLS`
    times. Then report that messages may be missing, and return the last answer (see :func:`is_searching`).
    """
    for _ in range(_SEARCH_PULLS):
        result = context.run(consumer.pull(queue, offset, expression=expression, count=count))
        if not is_searching(result, offset):
            return result
        interruptible_sleep(_SEARCH_PAUSE_S)
    context.fail(
        f"{java.queue_text(queue)}: the broker still searches for the message at offset {offset};"
        " this message and later ones are missing here"
    )
    return result


def is_searching(result: PullResult, offset: int) -> bool:
    """Return True if the answer says that the broker still searches for the message at ``offset``."""
    return result.code == ResponseCode.PULL_RETRY_IMMEDIATELY and result.next_offset <= offset


def print_message(
    context: Context, message: ReceivedMessage, result: PullResult, charset: str | None
) -> None:
    """Print a pulled message on one line. Print the body only if ``charset`` is given."""
    text = java.message_text(message, min_offset=result.min_offset, max_offset=result.max_offset)
    body = "NOT PRINT BODY" if charset is None else message.body.decode(charset, "replace")
    context.line(f"MSGID: {message.message_id} {text} BODY: {body}")


def pull_status(code: int) -> str:
    """Return the name that RocketMQ's tool prints for the status of a pull."""
    return _STATUS[ResponseCode(code)]


def _print_messages(context: Context, result: PullResult) -> int:
    for message in result.messages:
        print_message(context, message, result, "utf-8")
    for broken in result.broken:
        context.line(f"MSGID: {broken.offset_message_id} queueOffset={broken.queue_offset}: {broken.reason}")
    return len(result.messages) + len(result.broken)


COMMANDS: Final = (
    Command(
        name="sendMessage",
        description="Send a message.",
        options=(
            Option(short="t", long="topic", description="Topic name", required=True),
            Option(
                short="p", long="body", description="UTF-8 string format of the message body", required=True
            ),
            Option(short="k", long="key", description="Message keys"),
            Option(short="c", long="tags", description="Message tags"),
            Option(short="b", long="broker", description="Send message to target broker"),
            Option(short="i", long="qid", description="Send message to target queue"),
            Option(short="m", long="msgTraceEnable", description="Message Trace Enable, Default: false"),
            OUTPUT,
        ),
        run=_send_message,
    ),
    Command(
        name="consumeMessage",
        description="Consume message.",
        options=(
            Option(short="t", long="topic", description="Topic name", required=True),
            Option(short="b", long="brokerName", description="Broker name"),
            Option(short="i", long="queueId", description="Queue Id"),
            Option(short="o", long="offset", description="Queue offset"),
            Option(short="g", long="consumerGroup", description="Consumer group name"),
            Option(
                short="s",
                long="beginTimestamp ",
                description="Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]",
            ),
            Option(
                short="e",
                long="endTimestamp ",
                description="End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]",
            ),
            Option(short="c", long="MessageNumber", description="Number of message to be consumed"),
        ),
        run=_consume_message,
        only_reads=True,
    ),
)
