"""Kills a broker again and again while clients send to it and consume from it, and checks the messages.

    python -m tests.broker.kills [--kills 30] [--flush SYNC_FLUSH] [--seed 1]

Messages are sent alone, in batches and by a lingering producer. Two groups consume them all the time: a group
with two members, and an orderly group. In the end, every acknowledged message must be at the offset of its
acknowledgement. Both groups must have consumed it, and the orderly group must have kept the order.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Final

from routekeeper.bench.timers import divide_periods
from routekeeper.client.aio import Client, Producer
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, ProducerConfig
from routekeeper.client.producer import Message, SendResult
from routekeeper.client.queue_reader import ReceivedMessage, TopicReader
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.route import TopicConfig
from tests.ports import free_addresses

TOPIC: Final = "Kill"
QUEUES: Final = 4
_READY_S: Final = 60.0
_CAUGHT_UP_S: Final = 120.0
#: Number of acknowledgements for which the run waits before it kills the broker again.
_PER_LIFE: Final = 60


def body(number: int) -> bytes:
    """Return a message body that begins with ``number`` and whose length depends on ``number``."""
    return b"%d " % number + b"." * (number * 7919 % 1500)


def number_of(found: bytes) -> int:
    """Return the number of the message with this body.

    Raises:
        AssertionError: If no sender sent this body.
    """
    number = int(found.partition(b" ")[0])
    assert found == body(number), f"message {number} came back altered"
    return number


class Server:
    """A server process that keeps its port when it is started again."""

    def __init__(self, module: str, *flags: str, log: Path) -> None:
        self._module, self._flags, self._log = module, flags, log
        (self.addr,) = free_addresses(1)  # the kernel gives this port to nobody while the server is down
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "--listen", self.addr, *self._flags],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "listen=" in line, f"not ready: {line!r}\n{self._log.read_text()[-2000:]}"
        self.addr = line.split("listen=")[1].split()[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        code = process.wait(_READY_S)
        assert process.stdout is not None
        process.stdout.close()
        return code


class Run:
    """Senders and consumers of one run, and their results.

    Attributes:
        acknowledged: Queue id and offset of each acknowledged message, by the number of the message.
        consumed: Numbers of the consumed messages, by group and queue id, in the order of the listener's
            calls. Retried messages are under the queue id -1.
    """

    def __init__(self, namesrv: str) -> None:
        self._config = divide_periods(ClientConfig(nameservers=(namesrv,)), 20)
        self._numbers = itertools.count(1)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.unknown = 0
        self.consumed: dict[str, dict[int, list[int]]] = {}
        self.stopping = False

    def seen(self, group: str) -> set[int]:
        return {number for numbers in self.consumed[group].values() for number in numbers}

    async def consume(self, client: Client, group: str, *, orderly: bool) -> None:
        seen = self.consumed.setdefault(group, defaultdict(list))

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                number = number_of(message.body)
                if message.queue.topic == TOPIC:
                    seen[message.queue.queue_id].append(number)
                else:
                    seen[-1].append(number)  # retried: the message came from the retry topic

        config = ConsumerConfig(
            group=group, orderly=orderly, consume_from=ConsumeFrom.FIRST_OFFSET, suspend_s=2.0
        )
        await client.consume(config, {TOPIC: "*"}, listen)

    async def send(self, producer: Producer) -> None:
        """Send single messages, batches, and messages of a lingering producer until the run is stopped."""
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(self._send_single(producer))
            for _ in range(2):
                group.create_task(self._send_batches(producer))
            group.create_task(self._put(producer))

    async def _send_single(self, producer: Producer) -> None:
        while not self.stopping:
            number = next(self._numbers)
            await self._note(producer.send(self._message(number)), [number])

    async def _send_batches(self, producer: Producer) -> None:
        while not self.stopping:
            numbers = [next(self._numbers) for _ in range(7)]
            await self._note(producer.send_batch([*map(self._message, numbers)]), numbers)

    async def _put(self, producer: Producer) -> None:
        while not self.stopping:
            numbers = [next(self._numbers) for _ in range(40)]
            puts = [await producer.put(self._message(number)) for number in numbers]
            for number, put in zip(numbers, puts, strict=True):
                await self._note(put, [number])

    def _message(self, number: int) -> Message:
        return Message(topic=TOPIC, body=body(number), keys=(str(number),))

    async def _note(self, sent: Awaitable[SendResult], numbers: list[int]) -> None:
        try:
            result = await sent
        except RemotingError:
            self.unknown += len(numbers)
            await asyncio.sleep(0.02)
            return
        for index, number in enumerate(numbers):
            self.acknowledged[number] = (result.queue.queue_id, result.queue_offset + index)


async def play(namesrv: str, broker: Server, *, kills: int, rng: random.Random) -> Run:
    """Send and consume while the broker is killed ``kills`` times. Check and return the run."""
    run = Run(namesrv)
    client_config = divide_periods(ClientConfig(nameservers=(namesrv,)), 20)
    async with (
        Client(client_config) as sender,
        Client(client_config) as first,
        Client(client_config) as second,
    ):
        topic = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await sender.run(sender.admin.create_topic(broker.addr, topic))
        await run.consume(first, "clustered", orderly=False)
        await run.consume(second, "clustered", orderly=False)
        await run.consume(first, "in-order", orderly=True)
        producer = sender.producer(ProducerConfig(group="senders"))
        sending = asyncio.create_task(run.send(producer))
        for life in range(kills):
            await until(run, len(run.acknowledged) + _PER_LIFE, sending, f"life {life} acknowledges messages")
            await asyncio.sleep(rng.uniform(0, 0.5))
            broker.end(signal.SIGKILL)
            await asyncio.to_thread(broker.start)
        await until(run, len(run.acknowledged) + _PER_LIFE, sending, "the last life acknowledges messages")
        run.stopping = True
        await sending
        await producer.flush()
        wanted = run.acknowledged.keys()
        deadline = time.monotonic() + _CAUGHT_UP_S
        while not all(wanted <= run.seen(group) for group in run.consumed):
            missing = {group: len(wanted - run.seen(group)) for group in run.consumed}
            assert time.monotonic() < deadline, f"acknowledged and not consumed: {missing}"
            await asyncio.sleep(0.1)
        await judge(run, sender)
    return run


async def until(run: Run, count: int, sending: asyncio.Task[None], what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while len(run.acknowledged) < count:
        assert not sending.done(), sending.exception()
        assert time.monotonic() < deadline, f"{what}: not within {_READY_S} s"
        await asyncio.sleep(0.01)


async def judge(run: Run, client: Client) -> None:
    """Read all messages back and compare them with the results of the run.

    Raises:
        AssertionError: If an acknowledged message is missing, a message exists that no sender sent, or the
            orderly group did not consume in order.
    """
    reader = TopicReader(client.core, "readers")
    stored: dict[tuple[int, int], int] = {}
    for queue in await client.run(reader.queues(TOPIC)):
        offset = 0
        while messages := (await client.run(reader.pull(queue, offset))).messages:
            for message in messages:
                assert message.queue_offset == offset, f"{queue} has no message at {offset}"
                stored[queue.queue_id, offset] = number_of(message.body)
                offset += 1
    lost = [number for number, place in run.acknowledged.items() if stored.get(place) != number]
    assert not lost, f"{len(lost)} acknowledged messages are not where they should be, the first is {lost[0]}"
    offset_of = {
        queue: {n: o for (q, o), n in sorted(stored.items(), reverse=True) if q == queue}
        for queue in range(QUEUES)
    }
    for queue_id, numbers in run.consumed["in-order"].items():
        firsts = [offset_of[queue_id][number] for number in dict.fromkeys(numbers)]
        assert firsts == sorted(firsts), f"queue {queue_id} was not consumed in order"


def kill_again_and_again(directory: Path, *, kills: int, flush: str, seed: int) -> str:
    """Run servers, clients and kills, and return a line with the figures.

    Raises:
        AssertionError: If an acknowledged message was lost, altered, or not consumed.
    """
    nameserver = Server(
        "routekeeper.nameserver", "--http", "off", "--data", str(directory / "ns"), log=directory / "ns.log"
    )
    nameserver.start()
    broker = Server(
        "routekeeper.broker",
        *("-n", nameserver.addr, "--store", str(directory / "store")),
        *("--set", f"flushDiskType={flush}", "--set", "cleanFileForciblyEnable=false"),
        # The log files are small, so that some kills happen while a new file begins. The broker stores
        # consumer offsets every 200 ms, so that it also stores some between two kills.
        *("--set", "maxMessageSize=100000", "--set", "mappedFileSizeCommitLog=1000000"),
        *("--set", "flushConsumerOffsetInterval=200", "--set", "timerDivisor=20"),
        log=directory / "broker.log",
    )
    try:
        broker.start()
        began = time.monotonic()
        run = asyncio.run(play(nameserver.addr, broker, kills=kills, rng=random.Random(seed)))
        took = time.monotonic() - began
        assert broker.end() == 0
        assert "Traceback" not in (directory / "broker.log").read_text()
    finally:
        broker.end(signal.SIGKILL)
        nameserver.end()
    deliveries = {group: sum(map(len, queues.values())) for group, queues in run.consumed.items()}
    return (
        f"kills={kills} flush={flush} acknowledged={len(run.acknowledged)} failed_or_unknown={run.unknown}"
        f" lost=0 deliveries={deliveries} seconds={took:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--flush", choices=("SYNC_FLUSH", "ASYNC_FLUSH"), default="SYNC_FLUSH")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # clients log each broken connection, which is expected here
    with tempfile.TemporaryDirectory() as directory:
        print(
            kill_again_and_again(
                Path(directory), kills=arguments.kills, flush=arguments.flush, seed=arguments.seed
            )
        )


if __name__ == "__main__":
    main()
