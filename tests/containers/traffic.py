"""Runs inside a container of the server image: sends and reads without pause, and says how each ended.

One line per attempt on stdout. ``drive`` is told on its stdin which services have which addresses, a JSON
object a line, and ends with it; ``read`` prints what is stored.
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

#: Between two rounds of one read and one send.
PAUSE_S = 0.02
#: Of one call. A machine that hangs for some seconds is no failed read.
PATIENCE_S = 40.0
#: Of one try: with one nameserver, or one broker, while others are left.
TRY_S = 10.0


_resolve = socket.getaddrinfo
#: Of each service, as it was said last. podman's name service has been silent for half a minute after
#: containers restarted, while their servers were well; its silence is not what is tested here.
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
    """Print every body of a topic, until none came for 3 s or the time is over."""
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
