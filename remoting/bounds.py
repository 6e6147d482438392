"""Bounds of names, addresses and counts on the wire. Real peers stay far below these bounds.

Each bound is checked when a request is decoded, so that later code never gets a larger value. If a bound is
checked elsewhere, its comment says so. Lengths are in characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

#: Longest name of a topic. The longest name in use has 390 characters: the pop retry topic (5.x) of a group
#: with 255 characters and a topic with 127.
TOPIC_NAME_MAX: Final = 512
#: Longest name of a broker, cluster, zone or group. Source: Validators.CHARACTER_MAX_LENGTH, RocketMQ 5.3.
NAME_MAX: Final = 255
#: Longest client id. Java's client id is ``ip@pid#nanos``, followed at most by a unit name and a namespace.
CLIENT_ID_MAX: Final = 1024
#: Longest address: a host name, a colon, a port.
ADDR_MAX: Final = NAME_MAX + 6
ADDR_FORM: Final = f"host:port of at most {ADDR_MAX} characters, the port from 1 to 65535"
PORT_MAX: Final = 65_535
#: Largest number of queues of one topic at one broker. Brokers and clients check this bound, because they
#: make objects for each queue. A nameserver only passes the number on, so it does not check the bound.
QUEUE_NUMS_MAX: Final = 65_536
#: Lease in ms of a broker whose request names no lease. A lease is the longest time for which a broker may be
#: silent before it is evicted. Source: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME, RouteInfoManager.
LEASE_MS: Final = 120_000
#: Longest lease in ms that a broker may ask for: one day. 5.x brokers ask for 10 s by default.
LEASE_MS_MAX: Final = 24 * 60 * 60 * 1000
#: Largest number of filter servers of one broker.
FILTER_SERVERS_MAX: Final = 256
#: Largest number of consumer groups, and of producer groups, in one heartbeat of a client. A broker stores
#: each new group, so heartbeats with too many groups would fill its memory. At a broker, the bound also holds
#: for all heartbeats of one connection together.
GROUPS_MAX: Final = 1024
#: Longest name of a choice in a heartbeat, such as the consume type. The longest name in RocketMQ has 53
#: characters: CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST.
CHOICE_MAX: Final = 64
#: Largest number of subscriptions in one heartbeat. RocketMQ writes one object and two arrays for each
#: subscription. More subscriptions would exceed the limit of 8192 objects and arrays in one request.
SUBSCRIPTIONS_MAX: Final = 2730
#: Largest number of tags, and of codes of tags, in all subscriptions of one heartbeat. In other bodies, the
#: bound holds for the codes of each subscription. A server reads tags and codes one by one, and all other
#: requests wait meanwhile.
TAGS_MAX: Final = 32_768
#: Largest header of a request in bytes. The longest arguments in use are properties of messages (32 KiB) and
#: KV values.
REQUEST_HEADER_MAX: Final = 1024 * 1024
#: Largest number of arguments of a request. Java's requests have at most 20 arguments, and a few more for
#: access control and tracing.
ARGUMENTS_MAX: Final = 128

# The pattern also matches an IPv6 host without brackets, as Java's brokers write it.
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Za-z:.%_-]++\]|[0-9A-Za-z:.%_-]+):([0-9]{1,5})", re.ASCII)


def is_address(text: str) -> bool:
    """Return True if a text has the form of an address to which a program can connect."""
    return len(text) <= ADDR_MAX and _has_form(text)


@lru_cache(maxsize=4096)  # cached: brokers send the same addresses with every registration
def _has_form(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[1]) <= PORT_MAX
