"""The links between the processes of a run, and the commands to the proxy that carries the links.

Every link that a fault may cut passes a TCP proxy in a process of its own (:mod:`routekeeper.bench.proxy`),
unless the kernel cuts links (:mod:`routekeeper.bench.kernel`). For each process, the proxy has addresses to
which only this process connects. So the proxy knows the connecting process by the address. If processes share
an address, the first frame of the connection names the process.

A cut by the proxy differs from a cut of a real network in two ways:

- The proxy still accepts connections. At a real cut, a client would repeat its first packet.
- Bytes that were sent during the cut arrive at once when the cut ends. At a real cut, TCP would wait until
  its next repetition.

A delay by the proxy holds each byte back for a given time, separately in each direction. A new connection
reaches its acceptor when the three packets of TCP's handshake would have passed. So the first answer on this
connection comes two round trips after ``connect``, as without a proxy. Bytes that the proxy still holds when
a cut begins wait for the cut's end, like bytes that are sent during the cut.

A delay by the proxy differs from a delay in a real network in two ways:

- ``connect`` returns at once, and a refusal comes at once.
- Packets are neither lost nor sent twice.
"""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

Direction = tuple[str, str]
"""Names of two processes or groups of clients, as (from, to): ``nameserver-0``, ``broker-2``, ``side-a``."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One address at which the proxy listens, and the address to which the proxy then connects."""

    acceptor: str
    listen: str
    to: str
    dialler: str | None = None
    """Name of the process that connects to this address.

    It is null if several processes connect to this address. In this case a connection's first frame has the
    name.
    """
    names: dict[str, str] = {}
    """Without ``dialler``: maps the identity in a first frame to the name of the connecting process."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One line of JSON to the proxy, which answers each command with one :class:`Done`.

    - ``cut``: pass no bytes in these directions.
    - ``heal``: end all cuts. Delays stay.
    - ``delay``: hold each byte of these directions back for ``delay_ms`` from now on. 0 ends their delay.
      Bytes that the proxy holds already still arrive in their order and at their time.
    - ``look``: return for each direction whether it passes bytes, its delay, and the bytes that have passed.

    To add 20 ms to a round trip, delay both directions by 10 ms:
    ``{"do":"delay","directions":[["a","b"],["b","a"]],"delay_ms":10}``.
    """

    do: Literal["cut", "heal", "delay", "look"]
    number: int = 0
    """Number that the answer repeats, because several programs may send commands to one proxy."""
    directions: list[Direction] = []
    delay_ms: float = 0.0


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of one direction of a link."""

    open: bool
    delay_ms: float = 0.0
    bytes: int = 0
    """Number of bytes that passed in this direction since the proxy started."""
    waiting: bool = False
    """True if bytes or a new connection now wait for the end of a cut of this direction."""


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """The states of both directions of the link between two processes."""

    dialler: str
    acceptor: str
    forward: GateState
    """State of the direction from the dialler to the acceptor. ``back`` is the opposite direction."""
    back: GateState
    dialled: bool = False
    """True if the dialler has opened a connection over this link."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command. ``t_ns`` is the instant at which the command was complete."""

    t_ns: int
    number: int = 0
    """Number of the command that is answered."""
    passes: list[Passes] = []


def both_ways(some: Collection[str], others: Collection[str]) -> list[Direction]:
    """Return both directions of every link between a process in ``some`` and a process in ``others``."""
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]


def between_groups(groups: Iterable[Collection[str]]) -> list[Direction]:
    """Return every direction from a process of one group to a process of another group."""
    listed = [list(group) for group in groups]
    return [
        (one, other)
        for position, group in enumerate(listed)
        for one in group
        for foreign in (group for place, group in enumerate(listed) if place != position)
        for other in foreign
    ]


def pair_host(dialler: int, acceptor: int) -> str:
    """Return the loopback address at which one server connects to another server through the proxy."""
    return f"127.0.{10 + dialler}.{10 + acceptor}"
