"""Parser of the kernel's counts of bytes for the TCP connections of processes.

This module does no I/O and reads no clock: its callers read the counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple

Side = Literal["members", "clients"]
_COUNTED: Final = re.compile(r"\bbytes_(?:acked|received):(\d+)")
_OWNER: Final = re.compile(r"\bpid=(\d+)")


class Connection(NamedTuple):
    """One end of a TCP connection; this end belongs to the process ``pid``."""

    pid: int
    local: str
    remote: str


Counts = Mapping[Connection, int]


def payloads(lines: Iterable[str]) -> dict[Connection, int]:
    """Return the sum of payload bytes sent and received at each end of a connection.

    The counts are read from the lines that ``ss -tinpOH`` prints.

    The kernel counts these bytes (TCP_INFO: bytes_acked without retransmissions, and bytes_received), without
    the headers of TCP and IP. Lines without a process are omitted, because their connections have ended.
    """
    found = {}
    for line in lines:
        words = line.split()
        owner = _OWNER.search(line)
        if owner is not None and len(words) >= 5:
            connection = Connection(int(owner[1]), words[3], words[4])
            found[connection] = sum(int(count) for count in _COUNTED.findall(line))
    return found


def moved(
    before: Counts,
    after: Counts,
    *,
    pids: Collection[int],
    member_ports: Collection[str],
    client_ports: Collection[str],
) -> dict[Side, list[int]]:
    """Return the bytes that each process exchanged between two counts: with members, and with clients.

    A connection that began between the counts is counted from its beginning. A connection that closed between
    the counts is not counted.
    """
    sides: tuple[Side, Side] = ("members", "clients")
    totals = {side: dict.fromkeys(pids, 0) for side in sides}
    for connection, count in after.items():
        if connection.pid not in totals["members"]:
            continue
        ports = [addr.rpartition(":")[2] for addr in (connection.local, connection.remote)]
        added = count - before.get(connection, 0)
        if not set(ports).isdisjoint(member_ports):
            totals["members"][connection.pid] += added
        elif ports[0] in client_ports:
            totals["clients"][connection.pid] += added
    return {side: list(by_pid.values()) for side, by_pid in totals.items()}
