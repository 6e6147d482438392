"""Bounds of names, addresses and counts on the wire: real peers stay far below.

Each is checked when the request is decoded, so that later code never gets a larger value.
Lengths are in characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: Longest name of a topic. The longest real one has 390: the pop retry topic (5.x) of a group of 255
#: characters and a topic of 127.
TOPIC_NAME_MAX: Final = 512
#: Longest name of a broker, cluster, zone or group. Source: Validators.CHARACTER_MAX_LENGTH, RocketMQ 5.3.
NAME_MAX: Final = 255
#: Longest client id: Java's is ``ip@pid#nanos``, with a unit name and a namespace at most.
CLIENT_ID_MAX: Final = 1024
#: Longest address: a host name, a colon, a port.
ADDR_MAX: Final = NAME_MAX + 6
ADDR_FORM: Final = f"host:port of at most {ADDR_MAX} characters, the port from 1 to 65535"
PORT_MAX: Final = 65_535
#: Bound of the queues of one topic at one broker, for brokers and clients, which make objects for each queue.
#: A nameserver only passes the number on.
QUEUE_NUMS_MAX: Final = 65_536
#: Longest silence of a broker whose request names no lease, in ms. Source:
#: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME, RouteInfoManager.
LEASE_MS: Final = 120_000
#: Longest silence that a broker may ask for, in ms: a day. 5.x brokers ask for 10 s unless set otherwise.
LEASE_MS_MAX: Final = 24 * 60 * 60 * 1000
#: Bound of the filter servers of one broker.
FILTER_SERVERS_MAX: Final = 256
#: Bound of the consumer groups, and of the producer groups, of one client, because a broker creates unknown
#: groups.
GROUPS_MAX: Final = 1024
#: Largest header of a request in bytes. The longest arguments are properties of messages (32 KiB) and KV
#: values.
REQUEST_HEADER_MAX: Final = 1024 * 1024
#: Bound of a request's arguments. Java's requests have at most 20, and some more for access control and
#: tracing.
ARGUMENTS_MAX: Final = 128

# Also IPv6 without brackets, as Java's brokers spell it.
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Za-z:.%_-]++\]|[0-9A-Za-z:.%_-]+):([0-9]{1,5})", re.ASCII)


def is_address(text: str) -> bool:
    """Say whether a text has the form of an address that one could dial."""
    return len(text) <= ADDR_MAX and _has_form(text)


@lru_cache(maxsize=4096)  # cache results, because the same addresses come again and again
def _has_form(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[1]) <= PORT_MAX
