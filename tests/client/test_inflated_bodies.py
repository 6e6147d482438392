"""Compressed bodies that become very large: consumers and mqadmin hold few inflated bodies at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, PullConsumerConfig
from routekeeper.client.operation import invoke
from routekeeper.client.queue_reader import MESSAGE_MAX, ReceivedMessage
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import SendMessageFields
from routekeeper.remoting.message import SYS_COMPRESSED, encode_properties
from tests.client.conftest import Process, create_topic

MIB = 1024 * 1024
#: Size in bytes of the largest body that consumers inflate.
LARGE = 16 * MIB
SMALL = zlib.compress(b"a" * LARGE, 1)

pytestmark = [pytest.mark.faults, pytest.mark.one_core]


def send_compressed(client: Client, broker: Process, topic: str, queue_id: int, body: bytes) -> None:
    """Send a compressed body that is larger than our producer allows, as other clients may do."""
    fields = SendMessageFields(
        producer_group="stranger",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=queue_id,
        sys_flag=SYS_COMPRESSED,
        born_timestamp=1,
        flag=0,
        properties=encode_properties({"KEYS": "large"}),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields.to_ext_v2(), body)
    assert client.run(invoke(broker.addr, request, 10.0)).code == 0


#: Source of a function for the programs below. It returns the process's peak memory in MiB. It does not use
#: getrusage, which would also count the memory of the parent process.
PEAK = """
from pathlib import Path

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
"""
#: Program that consumes messages slowly, one at a time. It prints each message's queue, offset and size, and
#: the process's peak memory in MiB.
CONSUMER = (
    PEAK
    + """
import asyncio, json, sys, threading, time

from routekeeper.client import aio, blocking
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, PullConsumerConfig

nameserver, topic, kind, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
config = ClientConfig(nameservers=(nameserver,))
start = {"group": f"slow_{topic}", "consume_from": ConsumeFrom.FIRST_OFFSET}
seen, ended = [], threading.Event()

def take(batch):
    time.sleep(0.03)
    for message in batch:
        seen.append((message.queue.queue_id, message.queue_offset, len(message.body)))
    if len(seen) >= count:
        ended.set()

async def main():
    async with aio.Client(config) as client:
        if kind == "aio-push":
            await client.consume(ConsumerConfig(workers=1, **start), {topic: "*"}, take)
            await asyncio.to_thread(ended.wait, 60)
        else:
            async with client.pull_consumer(PullConsumerConfig(**start), {topic: "*"}) as consumer:
                while len(seen) < count:
                    await asyncio.to_thread(take, await consumer.poll(count=1, timeout_s=60))

if kind.startswith("aio"):
    asyncio.run(main())
else:
    with blocking.Client(config) as client:
        if kind == "blocking-push":
            client.consume(ConsumerConfig(workers=1, **start), {topic: "*"}, take)
            ended.wait(60)
        else:
            with client.pull_consumer(PullConsumerConfig(**start), {topic: "*"}) as consumer:
                while len(seen) < count:
                    take(consumer.poll(count=1, timeout_s=60))
print(json.dumps({"seen": seen, "peak": peak()}))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocking-push", "blocking-pull", "aio-push", "aio-pull"])
def test_a_consumer_of_large_bodies_stays_small_and_misses_none(
    kind: str, nameserver: Process, broker: Process
) -> None:
    topic, queues, each = f"Large-{kind}", 4, 6
    with Client(ClientConfig(nameservers=(nameserver.addr,))) as client:
        create_topic(client, broker, topic, queues=queues)
        for queue_id in range(queues):
            for _ in range(each):
                send_compressed(client, broker, topic, queue_id, SMALL)
    found = subprocess.run(
        [sys.executable, "-c", CONSUMER, nameserver.addr, topic, kind, str(queues * each)],
        # Make glibc return freed memory at once. Otherwise its reserves for each thread would count as used.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    for queue_id in range(queues):
        offsets = [offset for queue, offset, _ in result["seen"] if queue == queue_id]
        assert offsets == list(range(each)), "each once and in order"
    assert {size for _, _, size in result["seen"]} == {LARGE}
    assert result["peak"] < 300, "384 MiB of bodies, of which a client holds 128 MiB at a time"


class Kept:
    """A listener that takes 20 ms for each batch and records the queue and offset of each message."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def __call__(self, batch: Sequence[ReceivedMessage]) -> None:
        time.sleep(0.02)
        self.seen += [(message.queue.queue_id, message.queue_offset) for message in batch]


def settings(nameserver: Process, cache_size: int) -> ClientConfig:
    return divide_periods(ClientConfig(nameservers=(nameserver.addr,), cache_size=cache_size), 10)


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
def test_a_body_above_the_whole_budget_is_delivered_alone(
    orderly: bool, nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    topic = f"Alone{orderly}"
    with Client(settings(nameserver, cache_size=1)) as client:
        create_topic(client, broker, topic, queues=2)
        for queue_id in range(2):
            for _ in range(3):
                send_compressed(client, broker, topic, queue_id, SMALL)
        listener = Kept()
        config = ConsumerConfig(
            group=f"alone{orderly}", consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly
        )
        consumer = client.consume(config, {topic: "*"}, listener)
        most = 0

        def all_seen() -> bool:
            nonlocal most
            most = max(most, consumer.core.cached_bytes)
            return len(listener.seen) >= 6

        eventually(all_seen, "all six messages", within_s=30.0)
        assert most <= MESSAGE_MAX
    for queue_id in range(2):
        assert [offset for queue, offset in listener.seen if queue == queue_id] == [0, 1, 2]


def test_queues_and_consumers_that_hold_the_budget_do_not_stop_others(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    with Client(settings(nameserver, cache_size=1)) as client:
        for topic in ("Unasked", "Paused"):
            create_topic(client, broker, topic, queues=2)
            for queue_id in range(2):
                send_compressed(client, broker, topic, queue_id, SMALL)
        unasked = PullConsumerConfig(group="unasked", consume_from=ConsumeFrom.FIRST_OFFSET)
        asked = PullConsumerConfig(group="asked", consume_from=ConsumeFrom.FIRST_OFFSET)
        with (
            client.pull_consumer(unasked, {"Unasked": "*"}) as idle,
            client.pull_consumer(asked, {"Paused": "*"}) as active,
        ):
            eventually(
                lambda: LARGE <= idle.core.cached_bytes < 2 * LARGE, "the idle consumer holds one body"
            )
            (first,) = active.poll(count=1, timeout_s=20.0)
            active.pause(first.queue)
            (second,) = active.poll(count=1, timeout_s=20.0)
            assert {first.queue.queue_id, second.queue.queue_id} == {0, 1}


def mqadmin(nameserver: Process, *arguments: str) -> tuple[int, int, bytes]:
    """Run mqadmin, and return its exit code, its peak memory in MiB, and its output."""
    program = f"""{PEAK}
import sys
from routekeeper.client.mqadmin.__main__ import main

code = main(sys.argv[1:])
print(peak(), file=sys.stderr)
sys.exit(code)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments, "-n", nameserver.addr], capture_output=True, timeout=100
    )
    return found.returncode, int(found.stderr.split()[-1]), found.stdout


@pytest.mark.slow
def test_mqadmin_prints_large_bodies_one_at_a_time(nameserver: Process, broker: Process) -> None:
    with Client(ClientConfig(nameservers=(nameserver.addr,))) as client:
        create_topic(client, broker, "Printed", queues=1)
        for _ in range(8):
            send_compressed(client, broker, "Printed", 0, SMALL)
    for arguments in (
        ("queryMsgByKey", "-t", "Printed", "-k", "large", "-o", "json"),
        ("printMsg", "-t", "Printed", "-o", "json"),
    ):
        code, peak, printed = mqadmin(nameserver, *arguments)
        assert code == 0
        assert printed.count(b"a" * LARGE) == 8
        if "json" in arguments:
            assert {len(message["body"]) for message in json.loads(printed)} == {LARGE}
        assert peak < 250, arguments
