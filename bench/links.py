"""The network of one run: which links there are, and the harness's hold on the proxy that they pass.

Every link that a fault may cut passes a TCP proxy of its own process (:mod:`routekeeper.bench.proxy`), if it
is not the kernel that cuts (:mod:`routekeeper.bench.kernel`). Who dials is known by the address that was
dialled, as each dialler is given addresses of its own, or by the first frame.

What a cut by the proxy cannot show: a connection is still accepted by it, where a real dialler would repeat
its first packet; and what was sent into the cut arrives at once when it ends, where TCP would wait for its
next repetition.
"""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

Direction = tuple[str, str]
"""Names (from, to): ``nameserver-0``, ``broker-2``, ``side-a``."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One address that diallers use, and where it leads."""

    acceptor: str
    listen: str
    to: str
    dialler: str | None = None
    """Who dials here; null if its first frame says it."""
    peek: Literal["raft"] | None = None
    names: dict[str, str] = {}
    """For ``peek``: identity in the first frame to name."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One line to the proxy; it answers each with one :class:`Done`."""

    do: Literal["cut", "heal", "count"]
    directions: list[Direction] = []


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that passed between two, since the proxy began."""

    dialler: str
    acceptor: str
    forward: int
    back: int


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """That a command was carried out, and when."""

    t_ns: int
    counts: list[Count] = []


def both_ways(some: Collection[str], others: Collection[str]) -> list[Direction]:
    """Return both directions between each of two groups."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]


def between_groups(groups: Iterable[Collection[str]]) -> list[Direction]:
    """Return every direction that leads from one of the groups to another."""
    listed = [list(group) for group in groups]
    return [
        (one, other)
        for position, group in enumerate(listed)
        for one in group
        for foreign in (group for place, group in enumerate(listed) if place != position)
        for other in foreign
    ]


def pair_host(dialler: int, acceptor: int) -> str:
    """Return the loopback address at which one server dials another through the proxy."""
    return f"127.0.{10 + dialler}.{10 + acceptor}"
