"""Measures the CPU time that broker and client need for one message, with several ways to send and to read.

    python -m routekeeper.bench.micro.messages [--count 20000] [--size 1024] [--in-flight 64] [--rounds 3]
        [CASE ...]
    python -m routekeeper.bench.micro.messages --served NAMESRV BROKER PID [CASE ...]

The benchmark starts a nameserver and a broker on loopback; this process is the client (asyncio, uvloop). It
measures user and system CPU time by the kernel's clock of each process, because other programs disturb CPU
time less than wall time. For each case it prints the smallest and the largest value of all rounds. At the end
it kills the broker, and measures the time in which this process recovers the messages from the broker's log
alone. ``--served`` names servers that already run, such as Apache's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from routekeeper.bench import interpreter
from routekeeper.bench.group import cpu_s
from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server.founding import name_of_store
from routekeeper.broker.server.loading import load_broker
from routekeeper.broker.store.files import DISK
from routekeeper.client.aio import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, ProducerConfig
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage, TopicReader
from routekeeper.remoting.errors import ResponseError
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig

_TOPIC: Final = "Bench"
_QUEUES: Final = 8
_BATCH: Final = 32
_RECOVERY: Final = "recovery"
#: Longest time in s until the nameserver has a new topic: Apache's broker registers a topic some time after
#: the topic's creation.
_ROUTED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one round of one benchmark case.

    Attributes:
        wall_s: Seconds from the first to the last message.
    """

    messages: int
    wall_s: float
    broker_s: float
    client_s: float


@contextmanager
def process(module: str, *args: str) -> Iterator[tuple[int, str]]:
    """Run a server until the ``with`` block ends; yield the server's pid and address."""
    popen = subprocess.Popen(
        [sys.executable, "-m", module, "--listen", "127.0.0.1:0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert popen.stdout is not None
    try:
        line = popen.stdout.readline()
        yield popen.pid, line.split("listen=")[1].split()[0]
    finally:
        popen.terminate()
        popen.wait()
        popen.stdout.close()


async def measure(work: Callable[[], Awaitable[int]], broker: int) -> Cost:
    """Run ``work`` and return its cost; ``work`` returns the number of messages that it has handled.

    Args:
        broker: Pid of the broker.
    """
    before, own, wall = cpu_s(broker), time.process_time(), time.perf_counter()
    messages = await work()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    return Cost(messages, wall, cpu_s(broker) - before, own)


async def await_route(client: Client) -> None:
    """Wait until the nameserver has a route of the benchmark's topic.

    Raises:
        ResponseError: If the nameserver has no route within a minute.
    """
    deadline = time.monotonic() + _ROUTED_S
    while True:
        try:
            await client.run(client.core.directory.refresh(_TOPIC))
            return
        except ResponseError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def run(arguments: argparse.Namespace, namesrv: str, broker_addr: str, broker: int) -> None:
    body = os.urandom(arguments.size)
    count: int = arguments.count
    async with Client(ClientConfig(nameservers=(namesrv,))) as client:
        config = TopicConfig(topic_name=_TOPIC, read_queue_nums=_QUEUES, write_queue_nums=_QUEUES)
        await client.run(client.admin.create_topic(broker_addr, config))
        await await_route(client)
        producer = client.producer(ProducerConfig(group="bench", compress_above=1 << 22))

        async def side_by_side(one: Callable[[], Awaitable[object]], times: int) -> None:
            left = iter(range(times))

            async def worker() -> None:
                for _ in left:
                    await one()

            await asyncio.gather(*(worker() for _ in range(arguments.in_flight)))

        async def sends() -> int:
            await side_by_side(lambda: producer.send(Message(topic=_TOPIC, body=body)), count)
            return count

        async def batches() -> int:
            batch = [Message(topic=_TOPIC, body=body)] * _BATCH
            await side_by_side(lambda: producer.send_batch(batch), count // _BATCH)
            return count // _BATCH * _BATCH

        async def lingers() -> int:
            for _ in range(count):
                await producer.put(Message(topic=_TOPIC, body=body))
            await producer.flush()
            return count

        async def pulls() -> int:
            reader = TopicReader(client.core, "readers")
            moved = 0
            for queue in await client.run(reader.queues(_TOPIC)):
                offset = 0
                while result := (await client.run(reader.pull(queue, offset))).messages:
                    offset = result[-1].queue_offset + 1
                    moved += len(result)
                    if moved >= count:
                        return moved
            return moved

        groups = itertools.count()

        async def consumes() -> int:
            done, seen = asyncio.Event(), 0

            async def listen(messages: Sequence[ReceivedMessage]) -> None:
                nonlocal seen
                seen += len(messages)
                if seen >= count:
                    done.set()

            config = ConsumerConfig(
                group=f"consumers{next(groups)}",
                consume_from=ConsumeFrom.FIRST_OFFSET,
                consume_batch_max=_BATCH,
                workers=_QUEUES,
            )
            consumer = await client.consume(config, {_TOPIC: "*"}, listen)
            await done.wait()
            moved = seen
            await consumer.close()
            return moved

        print(f"{'':>8} {'messages':>9} {'broker us':>18} {'client us':>18} {'a second':>10}")
        cases = {"send": sends, "batch 32": batches, "linger": lingers, "pull 32": pulls}
        cases["consume"] = consumes
        for name in arguments.only or cases:
            if name == _RECOVERY:
                continue
            found = [await measure(cases[name], broker) for _ in range(arguments.rounds)]
            brokers = sorted(1e6 * cost.broker_s / cost.messages for cost in found)
            clients = sorted(1e6 * cost.client_s / cost.messages for cost in found)
            rate = max(cost.messages / cost.wall_s for cost in found)
            print(
                f"{name:>8} {found[0].messages:>9} {brokers[0]:>8.1f} ..{brokers[-1]:>7.1f}"
                f" {clients[0]:>8.1f} ..{clients[-1]:>7.1f} {rate:>10.0f}"
            )


def recover(store: Path, rounds: int) -> None:
    """Measure how long a broker takes to read and index its whole log; print a line for each round."""
    name = name_of_store(DISK, store, asked=None, host=socket.gethostname())
    for _ in range(rounds):
        (store / "checkpoint").unlink(missing_ok=True)
        shutil.rmtree(store / "consumequeue", ignore_errors=True)
        cpu, wall = time.process_time(), time.perf_counter()
        state, _ = load_broker(
            DISK,
            store,
            BrokerConfig(broker_name=name),
            store_host=Host("127.0.0.1", 10911),
            boot="",
            now_ms=time.time_ns() // 1_000_000,
            changed_settings={},
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        size = (state.store.log.max_offset - state.store.log.min_offset) / 1e6
        state.store.log.close()
        print(f"{_RECOVERY}: {size:.0f} MB, {size / wall:.0f} MB/s, {size / cpu:.0f} MB per second of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000, help="messages per round (default %(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message (default %(default)s)")
    parser.add_argument(
        "--in-flight", type=int, default=64, help="sends at the same time (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (default %(default)s)")
    parser.add_argument(
        "--flush", default="ASYNC_FLUSH", help="the broker's flushDiskType (default %(default)s)"
    )
    parser.add_argument("--directory", help="make the broker's temporary directory in this one")
    parser.add_argument(
        "--served",
        nargs=3,
        metavar=("NAMESRV", "BROKER", "PID"),
        help="use running servers: addresses of a nameserver and a broker, and the broker's process id",
    )
    parser.add_argument(
        "only",
        nargs="*",
        help="cases: send, 'batch 32', linger, 'pull 32', consume, recovery; default all",
    )
    arguments = parser.parse_args()
    print(interpreter.said(), flush=True)
    if arguments.served:
        namesrv, broker, pid = arguments.served
        if _RECOVERY in arguments.only:
            parser.error("recovery does not work with --served: leave one of them out")
        uvloop.run(run(arguments, namesrv, broker, int(pid)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        run_on(directory, arguments)
        if not arguments.only or _RECOVERY in arguments.only:
            recover(Path(directory) / "store", arguments.rounds)


def run_on(directory: str, arguments: argparse.Namespace) -> None:
    with (
        process("routekeeper.nameserver", "--http", "off", "--data", f"{directory}/ns") as (_, namesrv),
        process(
            "routekeeper.broker",
            *("-n", namesrv, "--store", f"{directory}/store", "--set", f"flushDiskType={arguments.flush}"),
        ) as (pid, addr),
    ):
        uvloop.run(run(arguments, namesrv, addr, pid))


if __name__ == "__main__":
    main()
