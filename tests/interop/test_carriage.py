"""Tests of Java's clients and our client: all features of a push consumer, and the order of many messages.

``ROUTEKEEPER_INTEROP_COUNT=100000`` makes the tests of the order send 100,000 messages. The default is 2000,
which suits CI. A longer run also tries each mode of our nameservers with each release of Java's clients.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from routekeeper import (
    AsyncClient,
    AsyncProducer,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageQueue,
    ReceivedMessage,
)
from routekeeper.bench.timers import divide_periods

from .apache import RELEASES, START_S, Apache, ask, wait_until
from .ours import MODES, PAIRS, ApacheDeployment, OurDeployment, in_parallel, routed_topic
from .patient import patient, sender

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT: Final = int(os.environ.get("ROUTEKEEPER_INTEROP_COUNT", "2000"))
QUEUES: Final = 4
LONG: Final = COUNT > 2000
#: Decorator that runs a test with both modes of our nameservers and both releases of Java clients.
EACH: Final = pytest.mark.parametrize(
    ("deployment", "release"),
    itertools.product(MODES, RELEASES) if LONG else PAIRS,
    indirect=["deployment"],
)


# -- Java's clients through our broker ---------------------------------------------------------


@EACH
def test_java_clients_lose_nothing_and_keep_order_at_our_broker(
    deployment: OurDeployment, apaches: dict[str, Apache], release: str
) -> None:
    apache, addrs = apaches[release], deployment.addrs
    topic = routed_topic(addrs, deployment.ours.addr, f"Ordered{release[0]}")
    begin = time.monotonic()
    sent = apache.produce(addrs, topic, COUNT, ordered=QUEUES, timeout_s=600)
    sent_s = time.monotonic() - begin
    assert sent["status SEND_OK"] == str(COUNT), sent
    # The consumer refuses some messages at first. Such a message must block its queue: a later message must
    # not arrive before it.
    facts = apache.consume(
        addrs, topic, f"ordered_{release[0]}", COUNT, seconds=600, retry_every=COUNT // 4, ordered=1
    )
    assert (facts["distinct"], facts["duplicates"], facts["disorder"]) == (str(COUNT), "0", "0"), facts
    print(f"{COUNT} messages java={release} sent_s={sent_s:.1f} consumed {facts['done']}")


@EACH
def test_java_consumers_get_what_they_ask_for_at_our_broker(
    deployment: OurDeployment, apaches: dict[str, Apache], release: str, tmp_path: Path
) -> None:
    apache, addrs = apaches[release], deployment.addrs
    mark, broker = release[0], deployment.ours.addr

    def tags() -> None:
        topic = routed_topic(addrs, broker, f"Tagged{mark}")
        apache.produce(addrs, topic, 300, tags="A,B,C")
        facts = apache.consume(addrs, topic, f"tagged_{mark}", 200, tags="A||C")
        assert (facts["distinct"], facts["duplicates"]) == ("200", "0"), facts

    def broadcast() -> None:
        topic = routed_topic(addrs, broker, f"Broadcast{mark}")
        apache.produce(addrs, topic, 200)
        members = [apache.consumer(addrs, topic, f"broadcast_{mark}", 200, broadcast=1) for _ in range(2)]
        assert [member.wait(START_S) for member in members] == [0, 0], [member.text() for member in members]

    def dead_letters() -> None:
        topic, group = routed_topic(addrs, broker, f"Dead{mark}"), f"dead_{mark}"
        apache.produce(addrs, topic, 100)
        consumer = apache.consumer(
            addrs, topic, group, f"@{tmp_path / 'count'}", seconds=300, dead=10, retries=1
        )
        fields = {"topic": f"%DLQ%{group}", "queueId": "0"}
        wait_until(
            lambda: ask(broker, 30, fields)[1].get("extFields", {}).get("offset") == "10",
            "the dead letters",
            START_S,
        )
        (tmp_path / "partial").write_text("90")
        (tmp_path / "partial").rename(tmp_path / "count")
        assert consumer.wait(START_S) == 0, consumer.text()
        assert "distinct 90\n" in consumer.text(), consumer.text()

    def delayed() -> None:
        topic = routed_topic(addrs, broker, f"Delayed{mark}")
        begin = time.monotonic()
        sent = apache.produce(addrs, topic, 1, delay=4)  # delay level 4 of RETRY_LEVELS is 2 s
        assert sent["status SEND_OK"] == "1"
        assert apache.consume(addrs, topic, f"delayed_{mark}", 1)["distinct"] == "1"
        assert time.monotonic() - begin >= 2

    def large() -> None:
        topic = routed_topic(addrs, broker, f"Large{mark}")
        apache.produce(addrs, topic, 20, body_bytes=20_000)  # the producer compresses bodies of this size
        assert apache.consume(addrs, topic, f"large_{mark}", 20)["distinct"] == "20"

    in_parallel(tags, broadcast, dead_letters, delayed, large)


# -- our client through Apache's broker and ours ----------------------------------------------


@pytest.mark.parametrize("apache_deployment", RELEASES, indirect=True)
def test_our_client_loses_nothing_and_keeps_order_at_apaches_broker(
    apache_deployment: ApacheDeployment,
) -> None:
    addrs, broker = apache_deployment.addrs, apache_deployment.broker.addr
    carry(addrs, routed_topic(addrs, broker, "OursOrdered"), apache_deployment.release)


@pytest.mark.parametrize("deployment", MODES if LONG else MODES[1:], indirect=True)
def test_our_client_loses_nothing_and_keeps_order_at_our_broker(deployment: OurDeployment) -> None:
    addrs, broker = deployment.addrs, deployment.ours.addr
    carry(addrs, routed_topic(addrs, broker, "OursThroughOurs"), "ours")


def carry(addrs: Sequence[str], topic: str, broker: str) -> None:
    """Send COUNT messages, in order within each queue; check that each arrives exactly once and in order."""
    came: dict[MessageQueue, list[int]] = {}
    refused: set[int] = set()

    async def run() -> tuple[float, float]:
        done = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                number = int(message.body)
                if number % (COUNT // 4) == 0 and number not in refused:
                    refused.add(number)
                    raise RuntimeError("refused at first")
                came.setdefault(message.queue, []).append(number)
            if sum(map(len, came.values())) >= COUNT:
                done.set()

        config = divide_periods(patient(addrs), 10)
        async with AsyncClient(config=config) as client:
            producer = client.producer(sender("ordered-senders"))
            queues = await producer.queues(topic)
            begin = time.monotonic()
            async with asyncio.TaskGroup() as senders:
                for index, queue in enumerate(queues):
                    senders.create_task(send_to(producer, topic, queue, range(index, COUNT, len(queues))))
            sent_s = time.monotonic() - begin
            group = ConsumerConfig(
                group="ordered-readers",
                consume_from=ConsumeFrom.FIRST_OFFSET,
                orderly=True,
                consume_batch_max=1,
            )
            begin = time.monotonic()
            async with client.push_consumer(group, {topic: "*"}, listen), asyncio.timeout(600):
                await done.wait()
            return sent_s, time.monotonic() - begin

    sent_s, consumed_s = asyncio.run(run())
    assert len(came) == QUEUES
    for numbers in came.values():
        assert numbers == list(range(numbers[0], COUNT, QUEUES)), "lost, twice, or out of order"
    assert refused == set(range(0, COUNT, COUNT // 4))
    print(f"{COUNT} messages broker={broker} sent_s={sent_s:.1f} consumed_s={consumed_s:.1f}")


async def send_to(producer: AsyncProducer, topic: str, queue: MessageQueue, numbers: Sequence[int]) -> None:
    """Send to one queue in order: the first tenth of the messages one by one, then batches."""
    messages = [Message(topic=topic, body=b"%d" % number) for number in numbers]
    singly = len(messages) // 10
    for message in messages[:singly]:
        await producer.send(message, queue=queue)
    waiting = [await producer.put(message, queue=queue) for message in messages[singly:]]
    await asyncio.gather(*waiting)
