"""Messages that cannot be read or that every listener refuses.

The queue continues, and these messages become dead letters.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ProducerConfig, PullConsumerConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig
from routekeeper.client.operation import invoke
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import BrokenMessage, ReceivedMessage, Taken, TopicReader, receive_all
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import SendMessageFields
from routekeeper.remoting.lenient import INT64_MAX
from routekeeper.remoting.message import SYS_COMPRESSED, StoredMessage, encode_message, encode_properties
from tests.client.conftest import Sink, create_topic

#: Number of bytes of a stored message before its body, if both hosts have IPv4 addresses.
RECORD_HEAD = 88
QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def stored(offset: int, **values: Any) -> bytes:
    values = {"topic": "T", "queue_id": 0, "body": b"%d" % offset, **values}
    return encode_message(StoredMessage(queue_offset=offset, physical_offset=offset * 100, **values))


def offsets(found: Sequence[ReceivedMessage | BrokenMessage], kind: type) -> list[int]:
    return [message.queue_offset for message in found if isinstance(message, kind)]


def read(*records: bytes, end: int = INT64_MAX) -> tuple[list[Taken], bytes]:
    """Return the messages of pulls from offset 0 on, and the unreadable rest of the last answer."""
    found: list[Taken] = []
    deferred = 1
    while deferred:
        rest = b"".join(records[len(found) :])
        more, rest, deferred = receive_all(rest, QUEUE, first=len(found), end=end)
        assert more
        found += more
    return found, rest


# Reading a pull's answer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(stored(1, sys_flag=SYS_COMPRESSED, body=b"no stream"), id="no zlib stream"),
        pytest.param(stored(1, sys_flag=SYS_COMPRESSED | 5 << 8), id="unknown method"),
        pytest.param(stored(1, properties="x")[:-1] + b"\xff", id="properties are no text"),
    ],
)
def test_what_cannot_be_read_does_not_hide_its_neighbours(bad: bytes) -> None:
    found, rest = read(stored(0), bad, stored(2))
    assert offsets(found, ReceivedMessage) == [0, 2]
    assert offsets(found, BrokenMessage) == [1]
    assert found[1].commit_log_offset == 100
    assert rest == b""


def test_where_no_end_can_be_found_the_messages_before_still_count() -> None:
    torn = struct.pack(">i", 10**6) + stored(1)[4:]
    found, rest, _ = receive_all(stored(0) + torn + stored(2), QUEUE)
    assert offsets(found, ReceivedMessage) == [0]
    assert rest == torn + stored(2)
    assert receive_all(torn + stored(2), QUEUE)[:2] == ([], torn + stored(2))


@pytest.mark.parametrize("claimed", [77, 10**9])
def test_a_head_that_claims_another_place_is_not_believed(claimed: int) -> None:
    """A client that trusted a wrong offset in a message's head would commit this offset and skip messages."""
    bad = stored(claimed, sys_flag=SYS_COMPRESSED, properties="x")[:-1] + b"\xff"
    found, rest, _ = receive_all(stored(0) + bad + stored(2), QUEUE, first=0, end=3)
    assert offsets(found, ReceivedMessage) == [0]
    assert rest == bad + stored(2)


@pytest.mark.parametrize("claimed", [77, 0, -1])
@pytest.mark.parametrize("inflatable", [True, False])
def test_a_message_that_claims_another_place_gets_the_first_that_is_free(
    claimed: int, inflatable: bool
) -> None:
    damaged = stored(claimed, **({} if inflatable else {"sys_flag": SYS_COMPRESSED}))
    found, rest = read(stored(0), damaged, stored(2), end=3)
    assert rest == b""
    assert [message.queue_offset for message in found] == [0, 1, 2]
    assert offsets(found, BrokenMessage) == ([] if inflatable else [1])


# With our broker, as processes -------------------------------------------------------------------


def settings(nameserver: Any) -> ClientConfig:
    return divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)


def send_raw(client: Client, broker: Any, topic: str, body: bytes, sys_flag: int, **properties: str) -> None:
    """Send a body unchanged, even if ``sys_flag`` is wrong, such as "compressed" for plain text."""
    fields = SendMessageFields(
        producer_group="raw",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=0,
        properties=encode_properties({"UNIQ_KEY": "raw", **properties}),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields.to_ext_v2(), body)
    assert client.run(invoke(broker.addr, request, 10.0)).code == 0


def dead(client: Client, group: str) -> Callable[[], bool]:
    """Return a function that returns True if the group's dead letter queue has exactly one message."""
    queue = MessageQueue(topic=f"%DLQ%{group}", broker_name="broker-a", queue_id=0)

    def check() -> bool:
        try:
            return client.run(TopicReader(client.core, group).reader.max_offset(queue)) == 1
        except Exception:
            client.run(client.core.directory.refresh_quietly(queue.topic))
            return False

    return check


@pytest.mark.faults
@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_that_cannot_be_inflated_stops_nothing_and_ends_among_the_dead(
    orderly: bool,
    nameserver: Any,
    broker: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"Poison{orderly}"
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, topic)
        sender = client.producer(ProducerConfig(group="pg"))
        sender.send(Message(topic=topic, body=b"before"))
        send_raw(client, broker, topic, b"no LZ4 frame", SYS_COMPRESSED | 1 << 8)
        sender.send(Message(topic=topic, body=b"behind"))
        sink = Sink()
        group = f"poisoned{orderly}"
        config = ConsumerConfig(
            group=group, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly, max_reconsume_times=1
        )
        with caplog.at_level(logging.ERROR, logger="routekeeper.client.consumer"):
            client.consume(config, {topic: "*"}, sink)
            eventually(lambda: len(sink.bodies()) >= 2, "the others are delivered")
            assert (sink.bodies() if orderly else sorted(sink.bodies())) == [b"before", b"behind"]
            eventually(dead(client, group), "the bad one is in the dead letter queue")
        assert "no LZ4 frame" in caplog.text
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
        reader = TopicReader(client.core, group).reader
        eventually(lambda: client.run(reader.committed(queue)) == 3, "the offset behind all three is stored")


@pytest.mark.faults
@pytest.mark.parametrize("orderly", [False, True])
def test_unreadable_messages_too_large_for_a_copy_stay_in_their_queue_and_stop_nothing(
    orderly: bool,
    nameserver: Any,
    broker: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = f"Large{orderly}", f"large{orderly}"
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, topic)
        for _ in range(4):  # as many as the group has workers
            send_raw(client, broker, topic, b"no LZ4 frame", SYS_COMPRESSED | 1 << 8, long="x" * 32_600)
        client.producer(ProducerConfig(group="pg")).send(Message(topic=topic, body=b"behind"))
        sink = Sink()
        config = ConsumerConfig(group=group, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly)
        with caplog.at_level(logging.ERROR, logger="routekeeper.client.consumer"):
            client.consume(config, {topic: "*"}, sink)
            eventually(lambda: sink.bodies() == [b"behind"], "the readable message is delivered")
            queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
            reader = TopicReader(client.core, group).reader
            eventually(lambda: client.run(reader.committed(queue)) == 5, "the offset behind all messages")
        assert caplog.text.count("message left behind unread ") == 4
        assert dead(client, group)() is False


def spoil_size(broker: Any, body: bytes) -> None:
    """Overwrite the size field of the stored message that has this body, as a failing disk might."""
    command = broker.popen.args
    directory = Path(command[command.index("--store") + 1]) / "commitlog"
    (log,) = (file for file in directory.iterdir() if file.name.isdecimal())
    start = log.read_bytes().index(body) - RECORD_HEAD
    with log.open("r+b") as file:
        file.seek(start)
        file.write(struct.pack(">i", 10**6))


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["push", "orderly", "pull"])
def test_a_message_without_a_findable_end_stops_no_queue(
    kind: str,
    nameserver: Any,
    broker: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"Endless{kind}"
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, topic)
        sender = client.producer(ProducerConfig(group="pg"))
        spoiled = f"spoiled {kind}".encode()
        for body in (b"before", spoiled, b"behind", b"last"):
            sender.send(Message(topic=topic, body=body))
        spoil_size(broker, spoiled)
        group = f"endless{kind}"
        with caplog.at_level(logging.ERROR, logger="routekeeper.client.member"):
            if kind == "pull":
                pulling = PullConsumerConfig(group=group, consume_from=ConsumeFrom.FIRST_OFFSET)
                with client.pull_consumer(pulling, {topic: "*"}) as consumer:
                    bodies = [consumer.poll(count=1, timeout_s=20.0)[0].body for _ in range(3)]
                    unreadable = consumer.core.unreadable
            else:
                sink = Sink()
                config = ConsumerConfig(
                    group=group, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=kind == "orderly"
                )
                pushed = client.consume(config, {topic: "*"}, sink)
                eventually(lambda: len(sink.bodies()) == 3, "the others are delivered")
                bodies, unreadable = sink.bodies(), pushed.core.unreadable
        assert (sorted(bodies) if kind == "push" else bodies) == [b"before", b"behind", b"last"]
        assert unreadable == 1
        assert "without a findable end passed over" in caplog.text
        assert "offset=1 next=2" in caplog.text


@pytest.mark.faults
def test_a_pull_consumer_leaves_what_it_cannot_read_where_it_lies(
    nameserver: Any, broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, "LeftBehind")
        sender = client.producer(ProducerConfig(group="pg"))
        sender.send(Message(topic="LeftBehind", body=b"before"))
        send_raw(client, broker, "LeftBehind", b"no LZ4 frame", SYS_COMPRESSED | 1 << 8)
        sender.send(Message(topic="LeftBehind", body=b"behind"))
        config = PullConsumerConfig(group="leaves", consume_from=ConsumeFrom.FIRST_OFFSET)
        with (
            caplog.at_level(logging.ERROR, logger="routekeeper.client"),
            client.pull_consumer(config, {"LeftBehind": "*"}) as consumer,
        ):
            assert [consumer.poll(count=1, timeout_s=20.0)[0].body for _ in range(2)] == [
                b"before",
                b"behind",
            ]
            assert consumer.core.unreadable == 1
            consumer.commit()
            queue = MessageQueue(topic="LeftBehind", broker_name="broker-a", queue_id=0)
            assert consumer.committed(queue) == 3
        assert "message left behind unread" in caplog.text
        assert dead(client, "leaves")() is False


@pytest.mark.slow
@pytest.mark.parametrize("compress_type", ["zlib", "lz4", "zstd"])
def test_compressed_bodies_arrive_plain(
    compress_type: Any, nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    topic = f"Small{compress_type}"
    body = b"text that repeats itself, " * 1000
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, topic)
        sender = client.producer(ProducerConfig(group="pg", compress_type=compress_type))
        sender.send(Message(topic=topic, body=body))
        sink = Sink()
        config = ConsumerConfig(group=f"small{compress_type}", consume_from=ConsumeFrom.FIRST_OFFSET)
        client.consume(config, {topic: "*"}, sink)
        eventually(lambda: sink.bodies() == [body], "the message")
        assert sink.messages[0].store_size < 1000


@pytest.mark.faults
def test_an_orderly_group_gives_up_a_message_after_its_retries(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, "Stuck")
        sender = client.producer(ProducerConfig(group="pg"))
        for body in (b"first", b"refused", b"last"):
            sender.send(Message(topic="Stuck", body=body))
        sink = Sink(refused=b"refused")
        config = ConsumerConfig(
            group="stuck", consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, max_reconsume_times=2
        )
        client.consume(config, {"Stuck": "*"}, sink)
        eventually(lambda: b"last" in sink.bodies(), "what lies behind the refused message")
        assert sink.bodies() == [b"first", *[b"refused"] * 3, b"last"]
        seen = [message.reconsume_times for message in sink.messages if message.body == b"refused"]
        assert seen == [0, 1, 2]
        eventually(dead(client, "stuck"), "the refused message is in the dead letter queue")


@pytest.mark.faults
@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_too_large_for_a_dead_letter_stays_in_its_queue_and_stops_nothing(
    orderly: bool,
    nameserver: Any,
    broker: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = f"Long{orderly}", f"long{orderly}"
    with Client(settings(nameserver)) as client:
        create_topic(client, broker, topic)
        sender = client.producer(ProducerConfig(group="pg"))
        sender.send(Message(topic=topic, body=b"first"))
        # The broker stores this message. A copy of it in the dead letter queue needs more properties, so the
        # copy's properties would exceed the broker's size limit.
        sender.send(Message(topic=topic, body=b"refused", properties={"long": "x" * 32_600}))
        sender.send(Message(topic=topic, body=b"last"))
        sink = Sink(refused=b"refused")
        config = ConsumerConfig(
            group=group, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly, max_reconsume_times=1
        )
        with caplog.at_level(logging.ERROR, logger="routekeeper.client.consumer"):
            client.consume(config, {topic: "*"}, sink)
            queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
            reader = TopicReader(client.core, group).reader
            eventually(lambda: client.run(reader.committed(queue)) == 3, "the offset behind all three")
        assert sorted(sink.bodies()) == [b"first", b"last", b"refused", b"refused"]
        assert "left behind, too large for a copy" in caplog.text
        assert dead(client, group)() is False
