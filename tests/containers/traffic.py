"""Runs inside a container of the server image: sends and reads without pause, and prints each outcome.

It prints one line for each attempt. ``drive`` reads the addresses of services from its stdin, a JSON object a
line, and ends with its stdin; ``read`` prints the stored messages.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Any

from routekeeper.client.config import parse_nameservers
from routekeeper.client.public import (
    Client,
    ClientConfig,
    ConsumeFrom,
    Message,
    OutcomeUnknown,
    ProducerConfig,
    PullConsumerConfig,
    RemotingError,
)

#: Seconds between two rounds of one read and one send.
PAUSE_S = 0.02
#: Timeout of one call in s: a machine that hangs for some seconds must not count as a failed read.
PATIENCE_S = 40.0
#: Timeout of one try in s, with one nameserver or one broker, while others are left.
TRY_S = 10.0


_resolve = socket.getaddrinfo
#: Last known address of each service. podman's name service was once silent for half a minute after
#: containers restarted, while their servers worked; this test is not about the name service.
_addresses: dict[str, str] = {}


def addresses(host: Any, *asked: Any, **more: Any) -> Any:
    """Stand for ``socket.getaddrinfo``."""
    return _resolve(_addresses.get(host, host), *asked, **more)


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


def drive(nameservers: str, topic: str) -> None:
    number = 0
    patient = ClientConfig(
        nameservers=parse_nameservers(nameservers),
        call_timeout_s=PATIENCE_S,
        nameserver_try_s=TRY_S,
        connect_timeout_s=TRY_S,
    )
    with Client(config=patient) as client:
        producer = client.producer(
            ProducerConfig(group="traffic", send_timeout_s=PATIENCE_S, try_timeout_s=TRY_S)
        )
        while True:
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                line = sys.stdin.readline()
                if not line:
                    return
                _addresses.update(json.loads(line))
            began = time.monotonic()
            try:
                client.route(topic)
                say(did="read", outcome="ok", took_s=time.monotonic() - began)
            except RemotingError as error:
                say(did="read", outcome="failed", error=repr(error), took_s=time.monotonic() - began)
            number += 1
            try:
                producer.send(Message(topic=topic, body=b"traffic-%d" % number))
                say(did="send", outcome="ok", number=number)
            except OutcomeUnknown as error:
                say(did="send", outcome="unknown", number=number, error=repr(error))
            except RemotingError as error:
                say(did="send", outcome="failed", number=number, error=repr(error))


def read_back(nameservers: str, topic: str, within_s: float) -> None:
    """Print every body of a topic, until no message has come for 3 s or the time is over."""
    config = PullConsumerConfig(group="reader", consume_from=ConsumeFrom.FIRST_OFFSET)
    deadline = time.monotonic() + within_s
    with Client(nameservers) as client, client.pull_consumer(config, {topic: "*"}) as consumer:
        last = time.monotonic() + 10  # joining a group takes its time
        while time.monotonic() < min(deadline, last + 3):
            for message in consumer.poll(count=64, timeout_s=1.0):
                say(body=message.body.decode())
                last = time.monotonic()


if __name__ == "__main__":
    socket.getaddrinfo = addresses
    if sys.argv[1] == "drive":
        drive(sys.argv[2], sys.argv[3])
    else:
        read_back(sys.argv[2], sys.argv[3], 60)
