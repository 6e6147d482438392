"""Subcommands printMsgByQueue and allocateMQ."""

from __future__ import annotations

from collections import Counter
from typing import Final

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.lenient import INT32_MAX

from ..errors import NotApplied
from ..queue_reader import TopicReader
from ..rebalance import average_share
from .context import Context
from .message import TOOLS_CONSUMER, offset_bounds, print_message
from .message_query import charset_of, pulls
from .options import Arguments, Command, Option, UsageError, instant

#: Largest number of members among which allocateMQ distributes queues.
_MEMBERS_MAX: Final = 10_000


def _print_msg_by_queue(context: Context, args: Arguments) -> None:
    queue = MessageQueue(
        topic=args.text("t"),
        broker_name=args.text("a"),
        queue_id=args.number("i", "queueId", 0, low=0, high=INT32_MAX),
    )
    charset, expression = charset_of(args, "c", "charsetName"), args.get("s") or "*"
    begin_ms, end_ms = instant(args, "b"), instant(args, "e")
    prints, with_body = args.flag("p", "print msg"), args.flag("d", "printBody")
    counts = args.flag("f", "calculate")
    consumer = TopicReader(context.client.core, TOOLS_CONSUMER)
    if queue not in context.run(consumer.queues(queue.topic)):
        raise NotApplied(
            f"The broker[{queue.broker_name}] not exist, or has no queue {queue.queue_id} of the topic"
        )
    first, last = offset_bounds(context, consumer, queue, begin_ms, end_ms)
    tags: Counter[str] = Counter()
    for result in pulls(context, consumer, queue, expression, first, last):
        for message in result.messages:
            if message.queue_offset >= last:
                continue
            if message.tags and message.tags.strip():
                tags[message.tags] += 1
            if prints:
                print_message(context, message, result, charset if with_body else None)
    for tag, count in sorted(tags.items(), key=lambda item: (-item[1], item[0])) if counts else ():
        context.line(f"Tag: {tag:<30} Count: {count}")


def _allocate_mq(context: Context, args: Arguments) -> None:
    topic, members = args.text("t"), args.text("i").split(",")
    wrong = [member for member in members if not member.strip()]
    if wrong or len(set(members)) != len(members) or len(members) > _MEMBERS_MAX:
        raise UsageError(
            f"ipList={args.text('i')[:200]!r}, allowed 1..{_MEMBERS_MAX} members, separated by commas,"
            " each once"
        )
    queues = sorted(context.run(TopicReader(context.client.core, TOOLS_CONSUMER).queues(topic)))
    shares = {member: average_share(queues, members, member) for member in members}
    result = {member: [one.to_json() for one in share] for member, share in shares.items()}
    context.json({"result": result}, always=True)


COMMANDS: Final = (
    Command(
        name="printMsgByQueue",
        description="Print Message Detail by queueId.",
        options=(
            Option(short="t", long="topic", description="topic name", required=True),
            Option(short="a", long="brokerName ", description="broker name", required=True),
            Option(short="i", long="queueId ", description="queue id", required=True),
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
            Option(short="p", long="print msg", description="print msg. eg: true | false(default)"),
            Option(short="d", long="printBody ", description="print body. eg: true | false(default)"),
            Option(short="f", long="calculate", description="calculate by tag. eg: true | false(default)"),
        ),
        run=_print_msg_by_queue,
        only_reads=True,
    ),
    Command(
        name="allocateMQ",
        description="Allocate MQ.",
        options=(
            Option(short="t", long="topic", description="topic name", required=True),
            Option(short="i", long="ipList", description="ipList", required=True),
        ),
        run=_allocate_mq,
        only_reads=True,
    ),
)
