"""Bounds of one pull's answer: its messages, their memory, and the work of decompressing their bodies."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from routekeeper.client import queue_reader
from routekeeper.client.config import ClientConfig
from routekeeper.client.core import ClientCore, Identity
from routekeeper.client.operation import Invoke
from routekeeper.client.process_queue import PROPERTIES_FREE, PROPERTY_BYTES, memory_size
from routekeeper.client.queue_reader import (
    BODY_MAX,
    MESSAGE_MAX,
    PULL_MAX,
    PullResult,
    QueueReader,
    Taken,
    receive_all,
    subscription,
)
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.message import (
    PROPERTIES_SIZE_MAX,
    SYS_COMPRESSED,
    StoredMessage,
    decode_message,
    decompress_body,
    encode_message,
    encode_properties,
)
from routekeeper.remoting.route import BrokerData, QueueData, TopicRouteData
from tests.client.test_consumer_sim import QUEUES, History, Member, World

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
MIB = 1024 * 1024
#: A compressed body of 16 KiB that becomes larger than consumers accept.
BOMB = zlib.compress(bytes(BODY_MAX + 1), 1)
MANY_PROPERTIES = encode_properties({f"{number:x}": "v" for number in range(4000)})


def stored(offset: int, **values: Any) -> bytes:
    values = {"topic": "T", "queue_id": 0, "body": b"%d" % offset, **values}
    return encode_message(StoredMessage(queue_offset=offset, physical_offset=offset * 100, **values))


def pull(
    records: Sequence[bytes], offset: int, *, count: int = 32, room: Callable[[], int] | None = None
) -> PullResult:
    """Pull from a broker that answers with all records from ``offset`` on, even with more than ``count``.

    Args:
        room: Function that returns how many bytes of memory the messages may take. None means ``PULL_MAX``.
    """
    core = ClientCore(
        ClientConfig(nameservers=("192.0.2.1:9876",)),
        Identity(ip="192.0.2.2", pid=1, serial=1),
        random.Random(1),
    )
    route = TopicRouteData(
        queue_datas=(QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6),),
        broker_datas=(BrokerData(cluster="C", broker_name="b", broker_addrs={0: "192.0.2.1:10911"}),),
    )
    core.directory.routes.put("T", route, 0.0)
    operation = QueueReader(core, "g").pull(QUEUE, offset, subscription("T", "*", 0), count=count, room=room)
    effect = next(operation)
    assert isinstance(effect, Invoke)
    end = str(len(records))
    fields = {"nextBeginOffset": end, "minOffset": "0", "maxOffset": end, "suggestWhichBrokerId": "0"}
    try:
        operation.send(effect.request.reply(ext_fields=fields, body=b"".join(records[offset:])))
    except StopIteration as stop:
        result: PullResult = stop.value
        return result
    raise AssertionError("the operation asks again")


def pull_all(records: Sequence[bytes], seen: Callable[[PullResult], None], **values: Any) -> list[int]:
    """Pull until the end of the queue. Return the offsets of all messages, readable or not."""
    offsets: list[int] = []
    offset = 0
    while offset < len(records):
        result = pull(records, offset, **values)
        assert result.next_offset > offset, "each pull makes progress"
        seen(result)
        taken: list[Taken] = [*result.messages, *result.broken]
        offsets += sorted(message.queue_offset for message in taken)
        offset = result.next_offset
    return offsets


class Counted:
    """A function that counts its calls."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._call(*args, **kwargs)


@pytest.mark.slow
def test_bodies_that_inflate_above_the_limit_are_little_work_in_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inflate = Counted(decompress_body)
    monkeypatch.setattr(queue_reader, "decompress_body", inflate)
    bombs = [stored(offset, sys_flag=SYS_COMPRESSED, body=BOMB) for offset in range(40)]
    bodies: list[bytes] = []

    def seen(result: PullResult) -> None:
        assert inflate.calls <= 3
        inflate.calls = 0
        bodies.extend(message.body for message in result.messages)

    assert pull_all([*bombs, stored(40, body=b"good")], seen) == list(range(41))
    assert bodies == [b"good"]


@pytest.mark.parametrize("count", [1, 32])
@pytest.mark.parametrize("readable", [True, False])
def test_no_more_messages_are_read_than_were_asked_for(
    count: int, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Counted(decode_message)
    monkeypatch.setattr(queue_reader, "decode_message", decode)
    records = [stored(offset, properties="x")[:-1] + (b"x" if readable else b"\xff") for offset in range(200)]

    def seen(result: PullResult) -> None:
        assert decode.calls <= count
        decode.calls = 0
        assert len(result.messages) == (count if readable else 0) or result.next_offset == 200

    assert pull_all(records, seen, count=count) == list(range(200))


def test_properties_count_as_memory_of_an_answer() -> None:
    records = [stored(offset, body=b"x", properties=MANY_PROPERTIES) for offset in range(32)]
    room = 4 * MIB

    def seen(result: PullResult) -> None:
        assert len(result.messages[0].properties) == 4000
        assert len(result.messages) <= room // ((4000 - PROPERTIES_FREE) * PROPERTY_BYTES)

    assert pull_all(records, seen, room=lambda: room) == list(range(32))


@pytest.mark.slow
def test_a_consumer_holds_no_more_properties_than_fit_in_its_cache() -> None:
    world = World(1, loss=0.0)
    for number in range(160):
        message = StoredMessage(
            topic="T",
            queue_id=number % QUEUES,
            body=b"%d" % number,
            queue_offset=number // QUEUES,
            physical_offset=number,
            properties=MANY_PROPERTIES,
        )
        world.broker.queues["T", number % QUEUES].append(message)
    history = History(world.rng, failing=0.0)
    member = Member(world, history, 1)
    cache_size = 20 * MIB
    member.core.config = replace(member.core.config, cache_size=cache_size)
    most = 0

    def all_seen() -> bool:
        nonlocal most
        queues = member.consumer.running_info(world.now_s).queues.values()
        most = max(most, sum(queue.cached_count for queue in queues))
        return len(history.finished) == 160

    world.run_until(all_seen, 600)
    assert 10 < most <= cache_size // ((4000 - PROPERTIES_FREE) * PROPERTY_BYTES)


def test_a_consumer_that_holds_nothing_may_pull_the_largest_message() -> None:
    """If a consumer without messages had no room for this message, the consumer would wait for ever."""
    names = [chr(first) + chr(second) for first in range(3, 100) for second in range(3, 100)]
    properties = encode_properties(dict.fromkeys(names[: PROPERTIES_SIZE_MAX // 5], "v"))
    largest = stored(
        0, sys_flag=SYS_COMPRESSED, body=zlib.compress(bytes(BODY_MAX), 1), properties=properties
    )
    ((message,), rest, deferred) = receive_all(largest, QUEUE, room=MESSAGE_MAX)
    assert (len(message.body), rest, deferred) == (BODY_MAX, b"", 0)
    assert BODY_MAX + 6000 * 160 < memory_size(message) <= MESSAGE_MAX < PULL_MAX
