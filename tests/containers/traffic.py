"""A client program that runs in a container of the server image.

With the argument ``drive``, the program reads a route and sends a message again and again. It prints one line
for each attempt. It gets the addresses of services from its standard input, one JSON object a line, and ends
at the end of this input. With the argument ``read``, the program prints the stored messages.
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
#: Timeout of one call in s. It is long, so that no call fails only because the machine hangs for some
#: seconds.
PATIENCE_S = 40.0
#: Timeout in s of one request to one nameserver or broker. After this time, the client asks the next server.
TRY_S = 10.0


_resolve = socket.getaddrinfo
#: Last known address of each service, so that the program does not need podman's DNS server. In one run, the
#: DNS server did not answer for 30 s after containers had restarted.
_addresses: dict[str, str] = {}


def addresses(host: Any, *asked: Any, **more: Any) -> Any:
    """Return the last known address of a service; look up other hosts like ``socket.getaddrinfo``."""
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
    """Print the body of every message in a topic. Stop after 3 s without a message, or after ``within_s``."""
    config = PullConsumerConfig(group="reader", consume_from=ConsumeFrom.FIRST_OFFSET)
    deadline = time.monotonic() + within_s
    with Client(nameservers) as client, client.pull_consumer(config, {topic: "*"}) as consumer:
        # Wait longer for the first message, because joining the group takes some seconds.
        last = time.monotonic() + 10
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
