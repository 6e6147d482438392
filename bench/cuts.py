"""Choice of a fault's targets, and of the directions of links that the fault cuts.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from routekeeper.bench.links import Direction, between_groups, both_ways
from routekeeper.bench.plan import Kind

SIDES: Final = ("side-a", "side-b")
"""Names of the two groups of clients. In a partition, ``side-a`` is on the isolated server's side."""

_Side = TypeVar("_Side")


def side_of(number: int, sides: Sequence[_Side]) -> _Side:
    """Return the group ("side") of the client or simulated broker with this number.

    The number modulo the number of groups is the index of the group.
    """
    return sides[number % len(sides)]


def struck_server(scenario: str, case: str, *, count: int, drawn: int, leader: int | None) -> int:
    """Return the index of the one server that a fault hits.

    - Restart, and cases of followers: the server ``drawn``, or the server after it if ``drawn`` is the
      leader.
    - Partition: in a case about the leader, the leader; else the server ``drawn``.
    - All other cases: the leader, or the server ``drawn`` if there is no leader.

    Args:
        count: Number of servers.
        drawn: Index of a random server.
        leader: Index of the leader, or None if there is none.
    """
    if scenario == "nameserver-restarts" or case.startswith("follower-"):
        return (drawn + 1) % count if drawn == leader else drawn
    if leader is None or case in ("1-2", "1-1-1", "broker-nameserver"):
        return drawn
    return leader


def directions(
    kind: Kind, case: str, *, servers: Sequence[str], target: int, brokers: Sequence[str], broker: int | None
) -> list[Direction]:
    """Return the directions (from one process to another) that a fault cuts, if any.

    Args:
        servers: Names of the servers, by index.
        target: Index of the server that the fault hits.
        brokers: Names of the brokers, by index.
        broker: Index of the broker that the fault hits, or None if the fault hits only servers.
    """
    me = servers[target]
    match kind:
        case "cable" if broker is not None:
            return both_ways([brokers[broker]], [*servers, *SIDES])
        case "cable":
            return both_ways([me], [*servers, *brokers, *SIDES])
        case "oneway":
            return [(me, other) for other in [*servers, *brokers, *SIDES] if other != me]
        case "partition" if case == "broker-nameserver":
            assert broker is not None, "this case strikes a broker, too"
            return both_ways([brokers[broker]], [me])
        case "partition":
            turn = [servers[(target + step) % len(servers)] for step in range(len(servers))]
            alone = turn if case == "1-1-1" else turn[:1]
            groups = [[name] for name in alone]
            if case != "1-1-1":
                groups.append(turn[1:])
            for position, name in enumerate(brokers):
                groups[min(position, len(groups) - 1)].append(name)
            for position, side in enumerate(SIDES):
                groups[min(position, len(groups) - 1)].append(side)
            return between_groups(groups)
        case _:
            return []
