"""Subcommands sendMsgStatus, checkMsgSendRT and clusterRT, which measure the duration of sends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from routekeeper.remoting import wall_clock
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.interrupt import interruptible_sleep

from ..blocking_parts import Producer
from ..config import ProducerConfig
from ..errors import NotApplied, describe
from ..messages import Message
from ..producer import SendResult
from . import java
from .context import Context
from .options import Arguments, Command, Option
from .targets import NO_CLUSTER, cluster_info

_SIZE_MAX: Final = 4 * 1024 * 1024
_COUNT_MAX: Final = 10_000_000
_PIECE: Final = "hello jodie"
#: Offset of the time zone in log lines of clusterRT, as in RocketMQ's tool. Source:
#: CLusterSendMsgRTCommand.getCurTime.
_GMT_8: Final = timedelta(hours=8)


class _Timed(NamedTuple):
    """One send and its outcome.

    Attributes:
        ms: Duration of the send in ms.
    """

    ms: int
    result: SendResult | None
    error: RemotingError | None


def _timed(send: Callable[[], SendResult]) -> _Timed:
    begin = time.monotonic()
    result, failure = None, None
    try:
        result = send()
    except RemotingError as error:
        failure = error
    return _Timed(round((time.monotonic() - begin) * 1000), result, failure)


def _producer(context: Context) -> Producer:
    return context.client.producer(ProducerConfig(group=f"mqadmin-{wall_clock.now_ms()}"))


def mean_text(sends: Sequence[int]) -> str:
    """Return the mean duration of sends as a number in text, in the same unit as ``sends``.

    The first send opens the connection, so its duration is not counted. If there is no other send, return
    NaN.

    Args:
        sends: Durations in the order of the sends.
    """
    return f"{_mean(sends):.2f}" if len(sends) > 1 else "NaN"


def _mean(sends: Sequence[int]) -> float:
    return sum(sends[1:]) / (len(sends) - 1) if len(sends) > 1 else math.nan


def send_result_text(result: SendResult) -> str:
    """Return the result of a send as text. Source: SendResult.toString, RocketMQ 5.3."""
    return (
        f"SendResult [sendStatus={result.status.name}, msgId={result.message_id},"
        f" offsetMsgId={result.offset_message_id}, messageQueue={java.queue_text(result.queue)},"
        f" queueOffset={result.queue_offset}, recallHandle=null]"
    )


def _send_msg_status(context: Context, args: Arguments) -> None:
    topic = args.text("b")
    size = args.number("s", "messageSize", 128, low=1, high=_SIZE_MAX - len(_PIECE))
    count = args.number("c", "count", 50, low=1, high=_COUNT_MAX)
    producer = _producer(context)

    def message(bytes_min: int) -> Message:
        return Message(topic=topic, body=(_PIECE * -(-bytes_min // len(_PIECE))).encode())

    producer.send(message(16))
    for _ in range(count):
        sent = _timed(lambda: producer.send(message(size)))
        if sent.result is None:
            assert sent.error is not None
            raise sent.error
        context.line(f"rt={sent.ms}ms, SendResult={send_result_text(sent.result)}")


_SEND: Final = "{:<32}  {:<4}  {:<20}    {}"


def _check_msg_send_rt(context: Context, args: Arguments) -> None:
    count = args.number("a", "amount", 100, low=1, high=_COUNT_MAX)
    size = args.number("s", "size", 128, low=1, high=_SIZE_MAX)
    message = Message(topic=args.text("t"), body=b"a" * size)
    producer = _producer(context)
    producer.core.check_use(message, None, None, None)
    if not context.run(producer.core.queues(message.topic)):
        raise NotApplied(f"topic {message.topic!r} has no queue to send to")
    sends: list[int] = []
    failed = 0
    last: RemotingError | None = None
    queue: MessageQueue | None = None
    context.line(_SEND.format("#Broker Name", "#QID", "#Send Result", "#RT"))
    for number in range(count):

        def select(queues: Sequence[MessageQueue], _message: Message, number: int = number) -> MessageQueue:
            nonlocal queue
            queue = queues[number % len(queues)]
            return queue

        sent = _timed(lambda select=select: producer.send(message, select=select))  # type: ignore[misc]
        sends.append(sent.ms)
        if sent.error is not None:
            failed, last = failed + 1, sent.error
        name, queue_id = ("", 0) if queue is None else (queue.broker_name, queue.queue_id)
        context.line(_SEND.format(name, queue_id, java.flag(sent.error is None), sent.ms))
    context.line(f"Avg RT: {mean_text(sends)}")
    if last is not None:
        context.fail(f"{failed} of {count} sends failed; last error: {describe(last)}")


_RT: Final = "{:<24}  {:<24}  {:<8}  {:<16}  {:<16}"


def _cluster_rt(context: Context, args: Arguments) -> None:
    count = args.number("a", "amount", 100, low=1, high=_COUNT_MAX)
    size = args.number("s", "size", 128, low=1, high=_SIZE_MAX)
    interval_s = args.number("i", "interval", 10, low=1, high=86_400)
    as_log, room = args.flag("p", "print log"), args.get("m") or "noname"
    info = cluster_info(context)
    clusters = [args.text("c")] if "c" in args else sorted(info.cluster_addr_table)
    targets = [
        (cluster, name) for cluster in clusters for name in sorted(info.cluster_addr_table.get(cluster, ()))
    ]
    if not targets:
        raise NotApplied(f"cluster {', '.join(clusters)!r} not exist. {NO_CLUSTER}")
    producer = _producer(context)
    if not as_log:
        context.line(
            "{:<24}  {:<24}  {:<4}  {:<8}  {:<8}".format(
                "#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"
            )
        )
    while True:
        for cluster, name in targets:
            _measure(context, producer, cluster, name, b"a" * size, count, room if as_log else None)
        interruptible_sleep(interval_s)


def _measure(
    context: Context,
    producer: Producer,
    cluster: str,
    name: str,
    body: bytes,
    count: int,
    room: str | None,
) -> None:
    """Send ``count`` messages to the topic that has the broker's name, and print the mean duration.

    Args:
        name: Name of the broker and of the topic.
        room: Name of the machine room, which a log line contains; None to print a table line instead.
    """
    message = Message(topic=name, body=body)
    sends = [_timed(lambda: producer.send(message)) for _ in range(count)]
    errors = [sent.error for sent in sends if sent.error is not None]
    times = [sent.ms for sent in sends]
    if room is None:
        context.line(_RT.format(cluster, name, mean_text(times), count - len(errors), len(errors)))
    else:
        mean = math.floor(_mean(times) + 0.5) if len(times) > 1 else "NaN"
        instant = datetime.fromtimestamp(wall_clock.now_ms() / 1000, UTC) + _GMT_8
        context.line(f"{instant:%Y-%m-%d %H:%M:%S}|{room}|{cluster}|{name}|{mean}")
    if errors:
        context.fail(f"{len(errors)} of {count} sends to {name} failed; last error: {describe(errors[-1])}")


_AMOUNT: Final = Option(short="a", long="amount", description="message amount | default 100")
_SIZE: Final = Option(short="s", long="size", description="message size | default 128 Byte")

COMMANDS: Final = (
    Command(
        name="sendMsgStatus",
        description="Send msg to broker.",
        options=(
            Option(
                short="b",
                long="brokerName",
                description="Broker Name e.g. clusterName_brokerName as DefaultCluster_broker-a",
                required=True,
            ),
            Option(short="s", long="messageSize", description="Message Size, Default: 128"),
            Option(short="c", long="count", description="send message count, Default: 50"),
        ),
        run=_send_msg_status,
    ),
    Command(
        name="checkMsgSendRT",
        description="Check message send response time.",
        options=(
            Option(short="t", long="topic", description="topic name", required=True),
            _AMOUNT,
            _SIZE,
        ),
        run=_check_msg_send_rt,
    ),
    Command(
        name="clusterRT",
        description="List All clusters Message Send RT.",
        options=(
            _AMOUNT,
            _SIZE,
            Option(short="c", long="cluster", description="cluster name | default display all cluster"),
            Option(short="p", long="print log", description="print as tlog | default false"),
            Option(short="m", long="machine room", description="machine room name | default noname"),
            Option(short="i", long="interval", description="print interval | default 10 seconds"),
        ),
        run=_cluster_rt,
    ),
)
