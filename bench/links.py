"""The network of one run: its links, and commands to the proxy that they pass.

Every link that a fault may cut passes a TCP proxy in a process of its own (:mod:`routekeeper.bench.proxy`),
unless the kernel cuts links (:mod:`routekeeper.bench.kernel`). The proxy knows the connecting process by the
address that it used, because each has addresses of its own, or by the first frame.

A cut by the proxy differs from a real one in two ways. The proxy still accepts connections, while a real
client would repeat its first packet. Bytes that were sent into the cut arrive at once when it ends, while TCP
would wait for its next repetition.

A delay by the proxy holds each byte back for a given time, separately in each direction. A new connection
reaches its acceptor when the three packets of TCP's handshake would have passed: its first answer comes two
round trips after ``connect``, as without a proxy. Bytes that are under way when a cut begins wait for its
end, like bytes that are sent into it. A delay by the proxy differs from a real one in two ways: ``connect``
returns at once, and a refusal comes at once; and packets are neither lost nor sent twice.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Final, Literal

import msgspec

DELAY_MAX_MS: Final = 10_000.0
"""Longest delay of a direction, ms."""

Direction = tuple[str, str]
"""Names (from, to): ``nameserver-0``, ``broker-2``, ``side-a``."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One address for connections, and its target."""

    acceptor: str
    listen: str
    to: str
    dialler: str | None = None
    """The process that dials this address; null if its first frame names it."""
    peek: Literal["raft"] | None = None
    names: dict[str, str] = {}
    """For ``peek``: maps the identity in the first frame to the name of the process."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One line of JSON to the proxy; it answers each with one :class:`Done`.

    - ``cut``: pass no bytes in these directions.
    - ``heal``: end all cuts; delays stay.
    - ``delay``: hold each byte of these directions back for ``delay_ms`` from now on; 0 ends their delay.
      Bytes under way keep their order and their time of arrival.
    - ``count``: return how many bytes have passed.
    - ``look``: return for each direction whether it passes bytes, and its delay.

    For a round trip of 20 ms, both directions get 10 ms:
    ``{"do":"delay","directions":[["a","b"],["b","a"]],"delay_ms":10}``.
    """

    do: Literal["cut", "heal", "delay", "count", "look"]
    number: int = 0
    """The answer repeats this number, because other programs may give the proxy commands, too."""
    directions: list[Direction] = []
    delay_ms: Annotated[float, msgspec.Meta(ge=0, le=DELAY_MAX_MS)] = 0.0


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that passed between two processes since the proxy began."""

    dialler: str
    acceptor: str
    forward: int
    back: int


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of one direction of a link."""

    open: bool
    delay_ms: float = 0.0
    bytes: int = 0
    """Number of bytes that passed since the proxy began."""
    waiting: bool = False
    """True if a cut holds back bytes or a new connection."""


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """The states of both directions between two processes."""

    dialler: str
    acceptor: str
    forward: GateState
    """From the dialler to the acceptor; ``back`` is the other direction."""
    back: GateState


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command that was executed; ``t_ns`` is the instant."""

    t_ns: int
    number: int = 0
    """The number of the command."""
    counts: list[Count] = []
    passes: list[Passes] = []


def both_ways(some: Collection[str], others: Collection[str]) -> list[Direction]:
    """Return both directions between each of two groups."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]


def between_groups(groups: Iterable[Collection[str]]) -> list[Direction]:
    """Return every direction from one of the groups to another."""
    listed = [list(group) for group in groups]
    return [
        (one, other)
        for position, group in enumerate(listed)
        for one in group
        for foreign in (group for place, group in enumerate(listed) if place != position)
        for other in foreign
    ]


def pair_host(dialler: int, acceptor: int) -> str:
    """Return the loopback address at which one server reaches another through the proxy."""
    return f"127.0.{10 + dialler}.{10 + acceptor}"
