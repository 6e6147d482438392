"""If a program ends without closing its client, no message is lost silently.

The messages arrive, or a log line gives the number of lost messages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.queue_reader import TopicReader
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import ResponseError
from tests.client.conftest import Process, is_routed
from tests.ports import free_addresses
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.one_core]

BLOCKING = """
import sys
from routekeeper import Client, ClientConfig, Message, ProducerConfig

client = Client()
producer = client.producer(ProducerConfig(group="senders", linger_s=60.0))
for number in range(3):
    producer.put(Message(topic=TOPIC, body=b"%d" % number))
"""
IN_A_CHILD = """
import multiprocessing
from routekeeper import Client, Message, ProducerConfig

def work():
    producer = Client().producer(ProducerConfig(group="senders", linger_s=60.0))
    for number in range(3):
        producer.put(Message(topic=TOPIC, body=b"%d" % number))

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""
SEND_ASYNC = """
from routekeeper import Client, Message

producer = Client().producer("senders")
for number in range(3):
    producer.send_async(Message(topic=TOPIC, body=b"%d" % number))
"""
ASYNCIO = """
import asyncio
from routekeeper import AsyncClient, Message, ProducerConfig

async def main():
    client = AsyncClient()
    await client.start()
    producer = client.producer(ProducerConfig(group="senders", linger_s=60.0))
    for number in range(3):
        await producer.put(Message(topic=TOPIC, body=b"%d" % number))

asyncio.run(main())
"""
#: Programs that end in different ways. The second value is the exit code that the test expects.
PROGRAMS = {
    "falls off its end": (BLOCKING, 0),
    "forgets the client": (BLOCKING + "del client, producer\n", 0),
    "leaves by sys.exit": (BLOCKING + "sys.exit(3)\n", 3),
    "ends by an exception": (BLOCKING + "raise ValueError('of the user')\n", 1),
    "closes and does not flush": (BLOCKING + "client.close()\n", 0),
    "is a child of multiprocessing": (IN_A_CHILD, 0),
    "sends in threads": (SEND_ASYNC, 0),
    "lets its loop end": (ASYNCIO, 0),
}


def run(folder: Path, program: str, addr: str, topic: str = "T") -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(f"TOPIC = {topic!r}\n" + program)
    return subprocess.run(
        [sys.executable, str(folder / "program.py")],
        env={**os.environ, "NAMESRV_ADDR": addr},
        capture_output=True,
        text=True,
        timeout=90,
    )


def stored(nameserver: Process, topic: str) -> int:
    """Return the number of messages in the topic's queues."""
    with Client(ClientConfig(nameservers=(nameserver.addr,))) as client:
        # The broker registers a new topic shortly after it has stored the topic's first message.
        wait_until(lambda: is_routed(client, topic), f"the route of {topic}")
        reader = TopicReader(client.core, "readers")
        queues = client.run(reader.queues(topic))
        return sum(client.run(reader.reader.max_offset(queue)) for queue in queues)


@pytest.mark.parametrize(("program", "code"), list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_messages_that_were_put_arrive_although_the_program(
    program: str, code: int, nameserver: Process, broker: Process, tmp_path: Path, request: Any
) -> None:
    topic = "End_" + request.node.callspec.id.replace(" ", "_").replace(".", "_")
    done = run(tmp_path, program, nameserver.addr, topic)
    assert done.returncode == code, done.stderr
    assert stored(nameserver, topic) == 3


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO, BLOCKING + "client.close()\n"])
def test_the_number_of_messages_that_could_not_be_sent_is_told(program: str, tmp_path: Path) -> None:
    done = run(tmp_path, program, free_addresses(1)[0])
    assert done.returncode == 0, done.stderr
    assert "messages not sent before the end group=senders not_sent=3 unknown=0" in done.stderr


PATIENT = """
from routekeeper import Client, ClientConfig, Message, ProducerConfig

settings = ClientConfig(
    nameservers=(ADDR,), shutdown_s=0.5, call_timeout_s=100.0, nameserver_try_s=100.0, connect_timeout_s=100.0
)
client = Client(config=settings)
producer = client.producer(ProducerConfig(group="senders", send_timeout_s=100.0))
for number in range(3):
    producer.put(Message(topic=TOPIC, body=b"%d" % number))
"""


def test_a_nameserver_that_never_answers_holds_the_end_no_longer_than_the_shutdown_time(
    new_peer: Any, tmp_path: Path
) -> None:
    peer = new_peer(lambda request: None)
    began = time.monotonic()
    done = run(tmp_path, f"ADDR = {peer.addr!r}\n" + PATIENT, peer.addr)
    # The program must end after shutdown_s (0.5 s) and not wait for the timeout of a request (100 s).
    assert time.monotonic() - began < 30
    assert done.returncode == 0, done.stderr
    # The sender may start before or after the program's end. If it starts after the end, it sends nothing. If
    # it starts before the end, it still waits for the nameserver, so the outcome is unknown.
    assert re.search("end group=senders (not_sent=3 unknown=0|not_sent=0 unknown=3)", done.stderr)


CONSUMES = """
import threading
from routekeeper import Client, ClientConfig, ConsumeFrom, ConsumerConfig, Message

settings = ClientConfig(nameservers=(ADDR,), offset_persist_s=3600.0)
client = Client(config=settings)
client.producer("senders").send(Message(topic=TOPIC, body=b"x"))
seen = threading.Event()
group = ConsumerConfig(group="ends", consume_from=ConsumeFrom.FIRST_OFFSET)
client.consume(group, {TOPIC: "*"}, lambda messages: seen.set())
assert seen.wait(60)
"""


def test_offsets_of_a_consumer_that_was_not_closed_are_stored(
    nameserver: Process, broker: Process, tmp_path: Path
) -> None:
    done = run(tmp_path, f"ADDR = {nameserver.addr!r}\n" + CONSUMES, nameserver.addr, "Consumed")
    assert done.returncode == 0, done.stderr
    with Client(ClientConfig(nameservers=(nameserver.addr,))) as client:
        reader = TopicReader(client.core, "ends")
        queues = client.run(reader.queues("Consumed"))
        assert sorted(client.run(reader.reader.committed(queue)) or 0 for queue in queues)[-1] == 1

        def is_offline() -> bool:
            try:
                client.run(client.admin.consumer_connection(broker.addr, "ends"))
            except ResponseError as refused:
                return refused.code == ResponseCode.CONSUMER_NOT_ONLINE
            return False

        wait_until(is_offline, "the broker knows that it has ended")
