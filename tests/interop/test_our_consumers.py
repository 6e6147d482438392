"""Tests of our push consumer at Apache's brokers and at our broker.

The tests cover broadcast, dead letters, order with bounded retries, an unreadable message, and bodies that
Java compressed in three ways.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from routekeeper import AsyncClient, ConsumeFrom, ConsumerConfig, Message, ReceivedMessage
from routekeeper.bench.timers import divide_periods

from .apache import RELEASES, Apache, ask, wait_until
from .ours import MODES, ApacheDeployment, OurDeployment, in_parallel, routed_topic
from .patient import patient, sender

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

#: Compression types of Java's client, with the number of each type in the system flag of a message.
COMPRESSED = {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}
_COMPRESSED_FLAG = "1"
_names = itertools.count(1)


class Stage:
    """One broker and its topics; every nameserver has routes for the topics."""

    def __init__(self, addrs: Sequence[str], broker: str) -> None:
        self.addrs = addrs
        self.broker = broker
        self.mark = next(_names)

    def group(self, name: str) -> str:
        return f"ours_{name}_{self.mark}"

    def topic(self, name: str, *, queues: int = 2) -> str:
        return routed_topic(self.addrs, self.broker, f"Ours{name}{self.mark}", queues=queues)

    def dead(self, group: str) -> int:
        """Return the number of dead-letter messages of a group."""
        code, header, _ = ask(self.broker, 30, {"topic": f"%DLQ%{group}", "queueId": "0"})
        return int(header["extFields"]["offset"]) if code == 0 else 0

    async def all_dead(self, group: str, count: int) -> None:
        await asyncio.to_thread(wait_until, lambda: self.dead(group) >= count, "the dead letters", 100)

    def compression(self, message_id: str) -> int:
        """Return the compression type of a stored message, as the number in its system flag."""
        code, header, record = ask(self.broker, 33, {"offset": str(int(message_id[-16:], 16))})
        assert code == 0, header
        (sys_flag,) = struct.unpack_from(">i", record, 36)
        return int(sys_flag) >> 8 & 7

    def unreadable(self, topic: str) -> None:
        """Store a message whose system flag says that the body is compressed, although it is not."""
        fields = dict.fromkeys("ehj", "0") | {"a": "PG", "b": topic, "c": "TBW102", "d": "4"}
        fields |= {"f": _COMPRESSED_FLAG, "g": "1700000000000", "i": "", "k": "false", "m": "false"}
        code, header, _ = ask(self.broker, 310, fields, b"this is no compressed body")
        assert code == 0, header


class Seen:
    """A listener that records the bodies of messages.

    ``came`` has the bodies of all received messages. ``bodies`` has only the bodies of messages that the
    listener did not refuse.
    """

    def __init__(
        self, wanted: int, *, refuses: Callable[[ReceivedMessage], bool] = lambda message: False
    ) -> None:
        self.bodies: list[bytes] = []
        self.came: list[bytes] = []
        self.done = asyncio.Event()
        self._wanted = wanted
        self._refuses = refuses

    async def __call__(self, batch: Sequence[ReceivedMessage]) -> None:
        for message in batch:
            self.came.append(message.body)
            if self._refuses(message):
                raise RuntimeError("refused")
            self.bodies.append(message.body)
        if len(self.bodies) >= self._wanted:
            self.done.set()

    async def wait(self) -> None:
        async with asyncio.timeout(100):
            await self.done.wait()


def first(group: str, **values: Any) -> ConsumerConfig:
    return ConsumerConfig(group=group, consume_from=ConsumeFrom.FIRST_OFFSET, **values)


async def fill(client: AsyncClient, topic: str, bodies: Sequence[bytes]) -> None:
    producer = client.producer(sender("ours-senders"))
    queue = min(await producer.queues(topic))
    for body in bodies:
        await producer.send(Message(topic=topic, body=body), queue=queue)


async def broadcast(client: AsyncClient, other: AsyncClient, stage: Stage) -> None:
    topic = await asyncio.to_thread(stage.topic, "Broadcast")
    bodies = [b"%d" % number for number in range(50)]
    await fill(client, topic, bodies)
    members = [Seen(50), Seen(50)]
    config = first(stage.group("broadcast"), broadcast=True)
    async with (
        client.push_consumer(config, {topic: "*"}, members[0]),
        other.push_consumer(config, {topic: "*"}, members[1]),
    ):
        for member in members:
            await member.wait()
    assert [Counter(member.bodies) for member in members] == [Counter(bodies)] * 2


async def dead_letters(client: AsyncClient, stage: Stage) -> None:
    """A message that the listener always refuses is redelivered once and then dead-lettered.

    The other messages arrive.
    """
    topic, group = await asyncio.to_thread(stage.topic, "Dead"), stage.group("dead")
    bodies = [b"%d" % number for number in range(20)]
    await fill(client, topic, bodies)
    seen = Seen(18, refuses=lambda message: message.body in (b"3", b"13"))
    async with client.push_consumer(first(group, max_reconsume_times=1), {topic: "*"}, seen):
        await stage.all_dead(group, 2)
        await seen.wait()
    assert Counter(seen.bodies) == Counter(bodies) - Counter([b"3", b"13"])
    assert (seen.came.count(b"3"), seen.came.count(b"13")) == (2, 2)


async def orderly(client: AsyncClient, stage: Stage) -> None:
    """A refused message in an ordered queue is retried up to the limit and then dead-lettered.

    Later messages of the queue wait meanwhile.
    """
    topic, group = await asyncio.to_thread(stage.topic, "Orderly"), stage.group("orderly")
    bodies = [b"%d" % number for number in range(20)]
    await fill(client, topic, bodies)
    seen = Seen(19, refuses=lambda message: message.body == b"7")
    config = first(group, orderly=True, max_reconsume_times=2)
    async with client.push_consumer(config, {topic: "*"}, seen):
        await seen.wait()
        await stage.all_dead(group, 1)
    assert seen.came == [*bodies[:7], b"7", b"7", b"7", *bodies[8:]], "nothing overtakes it"


async def unreadable(client: AsyncClient, stage: Stage) -> None:
    """An unreadable message goes to the retry topic and finally to the dead letters.

    The messages behind it in the queue arrive.
    """
    topic, group = await asyncio.to_thread(stage.topic, "Unreadable", queues=1), stage.group("unreadable")
    await fill(client, topic, [b"before"])
    await asyncio.to_thread(stage.unreadable, topic)
    await fill(client, topic, [b"after"])
    seen = Seen(2)
    async with client.push_consumer(first(group, max_reconsume_times=1), {topic: "*"}, seen):
        await seen.wait()
        await stage.all_dead(group, 1)
    assert seen.bodies == [b"before", b"after"]


async def compressed(client: AsyncClient, stage: Stage, topics: Mapping[str, str]) -> None:
    for kind, topic in topics.items():
        seen = Seen(20)
        async with client.push_consumer(first(stage.group(f"of_{kind.lower()}")), {topic: "*"}, seen):
            await seen.wait()
        assert sorted(int(body) for body in seen.bodies) == list(range(20)), kind
        assert {len(body) for body in seen.bodies} == {20_000}


def consume_all(stage: Stage, java: Apache) -> None:
    topics = {kind: stage.topic(kind.capitalize()) for kind in COMPRESSED}

    def produce(kind: str) -> None:
        sent = java.produce(stage.addrs, topics[kind], 20, body_bytes=20_000, compress=kind)
        assert sent["status SEND_OK"] == "20", sent
        assert stage.compression(sent["last"]) == COMPRESSED[kind]

    in_parallel(*(lambda kind=kind: produce(kind) for kind in COMPRESSED))

    async def run() -> None:
        config = divide_periods(patient(stage.addrs), 10)
        async with (
            AsyncClient(config=config) as client,
            AsyncClient(config=config) as other,
            asyncio.TaskGroup() as all_at_once,
        ):
            all_at_once.create_task(broadcast(client, other, stage))
            all_at_once.create_task(dead_letters(client, stage))
            all_at_once.create_task(orderly(client, stage))
            all_at_once.create_task(unreadable(client, stage))
            all_at_once.create_task(compressed(client, stage, topics))

    asyncio.run(run())


@pytest.mark.parametrize("apache_deployment", RELEASES, indirect=True)
def test_our_consumers_at_apaches_brokers(
    apache_deployment: ApacheDeployment, apaches: dict[str, Apache]
) -> None:
    stage = Stage(apache_deployment.addrs, apache_deployment.broker.addr)
    consume_all(stage, apaches["5.3.3"])


@pytest.mark.parametrize("deployment", MODES[:1], indirect=True)  # consumers behave alike in both modes
def test_our_consumers_at_our_broker(deployment: OurDeployment, apaches: dict[str, Apache]) -> None:
    consume_all(Stage(deployment.addrs, deployment.ours.addr), apaches["5.3.3"])
