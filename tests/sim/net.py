"""Simulated connections in memory.

As with TCP, bytes arrive in the order in which they were sent, and are lost only if the connection ends.

The direction from one host to another can be blocked. Bytes that are sent in a blocked direction wait. They
arrive when the direction is unblocked, unless the connection has ended. If a process is killed, the other
side of each connection first gets the bytes that were already sent. Then it notices the end of the
connection. If a host loses power, the other sides notice this when the host is up again, or when a time limit
expires.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from .clock import Clock, Loop

DELAY_S = (1e-4, 1.5e-3)
SLOW_S = (0.02, 0.4)
GIVE_UP_S = 5.0
"""Seconds without acknowledgement of sent data after which a sender closes the connection.

It acts like Linux's TCP_USER_TIMEOUT.
"""


class Host(Protocol):
    """A host with connections. Its ``life`` changes with each start of its process."""

    name: str
    life: int

    def deliver(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function when the process runs next.

        Drop the call if ``life`` is the number of an earlier start of the process.
        """


class _Lost:
    """A marker for the end of a connection, among the messages in one direction."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class End:
    """One side of a connection."""

    def __init__(self, net: Net, host: Host) -> None:
        self._net = net
        self.host = host
        self.life = host.life
        self.peer: End
        self.closed = False
        self.unarrived = 0  # bytes or items that are sent and have not arrived yet
        self._last_arrival = 0.0
        self._held: deque[tuple[Any, int]] = deque()
        self._held_since = 0.0
        self.receive: Callable[[Any], None] = lambda item: None
        self.lost: Callable[[Exception | None], None] = lambda error: None

    def send(self, item: Any, size: int = 1) -> None:
        """Send a message. Messages arrive in order, unless the connection ends first."""
        if not self.closed:
            self.unarrived += size
            self._net.carry(self, item, size)

    def close(self) -> None:
        """Close this side. The other side notices the end after all bytes that were sent before."""
        if not self.closed:
            self.closed = True
            self._net.carry(self, _Lost(None), 0)

    def abort(self) -> None:
        """Reset the connection from this side, which from now on drops arriving bytes.

        The other side notices the reset when it arrives there.
        """
        if not self.closed:
            self.closed = True
            self._net.carry(self, _Lost(ConnectionResetError("connection reset by peer")), 0)

    def reset(self) -> None:
        """End the connection at both sides.

        Each side notices the reset when its process runs next.
        """
        error = ConnectionResetError("connection reset by peer")
        for end in (self, self.peer):
            self._end(end, error)

    def hold_until(self, at: float) -> None:
        """Delay all further messages of this side until time ``at``."""
        self._last_arrival = max(self._last_arrival, at)

    def arrive(self, item: Any, size: int) -> None:
        """Pass a message to the other side, or keep it while the direction is blocked."""
        net, peer = self._net, self.peer
        if net.blocked and net.is_blocked(self.host.name, peer.host.name):
            if not self._held:
                self._held_since = net.clock.now
                net.clock.at(GIVE_UP_S, self._give_up, self._held_since)
            self._held.append((item, size))
            net.held[self.host.name, peer.host.name].append(self)
            return
        if self._held:
            self._held.append((item, size))
            return
        self._take(item, size)

    def unblocked(self) -> None:
        """Deliver the messages that waited while the direction was blocked."""
        while self._held:
            self._take(*self._held.popleft())

    def _take(self, item: Any, size: int) -> None:
        self.unarrived -= size
        peer = self.peer
        if isinstance(item, _Lost):
            self._end(peer, item.error)
        elif not peer.closed:
            peer.host.deliver(peer.life, peer._received, item)
        elif self.host.life == self.life and not self.closed:
            # The other side is closed and answers with a reset.
            self._end(self, ConnectionResetError("connection reset by peer"))

    def _end(self, end: End, error: Exception | None) -> None:
        if not end.closed:
            end.host.deliver(end.life, end._ended, error)

    def _received(self, item: Any) -> None:
        if not self.closed:
            self.receive(item)

    def _ended(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self.lost(error)

    def _give_up(self, since: float) -> None:
        if self._held and self._held_since == since:
            self._held.clear()
            self._end(self, TimeoutError("data not acknowledged"))
            self._net.clock.at(0.0, self._gone)

    def _gone(self) -> None:
        """Note that this side has closed the connection, but that the other side does not know this yet."""
        self._net.dead.append(self)


class Net:
    """All connections between hosts, and the faults of the network."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.blocked: set[tuple[str, str]] = set()
        self.slow = 0.0
        """Probability that a message is delayed by ``SLOW_S`` seconds, from 0 to 1."""
        self.slow_ways: dict[tuple[str, str], float] = {}
        """Probability of a delay by ``SLOW_S`` seconds for single directions, by (source, target)."""
        self.held: dict[tuple[str, str], list[End]] = defaultdict(list)
        self.ends: dict[str, list[End]] = defaultdict(list)
        self.dead: list[End] = []
        self.listeners: dict[str, tuple[Host, Callable[[End], None]]] = {}

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self.blocked

    def carry(self, end: End, item: Any, size: int) -> None:
        clock = self.clock
        chance = clock.rng.random
        arrival = clock.now + DELAY_S[0] + (DELAY_S[1] - DELAY_S[0]) * chance()
        slow = self.slow
        if self.slow_ways:
            slow = max(slow, self.slow_ways.get((end.host.name, end.peer.host.name), 0.0))
        if slow and chance() < slow:
            arrival = clock.now + clock.rng.uniform(*SLOW_S)
        if arrival < end._last_arrival:
            arrival = end._last_arrival
        end._last_arrival = arrival
        clock.at_instant(arrival, end.arrive, item, size)

    def reset_between(self, one: Host, other: Host) -> None:
        """Reset all connections between two hosts."""
        for end in self.ends[one.name]:
            if end.peer.host is other and not end.closed:
                end.reset()

    def heal(self, pairs: set[tuple[str, str]] | None = None) -> None:
        """Unblock these directions, or all directions if ``pairs`` is None."""
        pairs = set(self.blocked) if pairs is None else pairs
        self.blocked -= pairs
        for pair in sorted(pairs):
            for end in dict.fromkeys(self.held.pop(pair, ())):
                end.unblocked()

    def connect(self, source: Host, address: str) -> End | None:
        """Open a connection at once, even in a blocked direction.

        Return None if nobody listens at the address.
        """
        found = self.listeners.get(address)
        if found is None:
            return None
        target, accepted = found
        near, far = End(self, source), End(self, target)
        near.peer, far.peer = far, near
        self.ends[source.name].append(near)
        self.ends[target.name].append(far)
        accepted(far)
        return near

    def died(self, host: Host, *, power: bool) -> None:
        """End the connections of a host whose process ended.

        After a power cut, the host's peers do not notice the end yet.
        """
        for end in self.ends.pop(host.name, ()):
            if not end.closed:
                end.closed = True
                if power:
                    self.dead.append(end)
                else:
                    error = ConnectionResetError("connection reset by peer")
                    self.carry(end, _Lost(None if self.clock.rng.random() < 0.5 else error), 0)

    def back(self, host: Host) -> None:
        """Reset the former connections of a host that is up again after a power cut."""
        dead, self.dead = self.dead, []
        for end in dead:
            if end.host is host:
                self.carry(end, _Lost(ConnectionResetError("connection reset by peer")), 0)
            else:
                self.dead.append(end)


class _Socket:
    """A socket on which only options can be set."""

    def setsockopt(self, *_: object) -> None: ...


class Listener:
    """A replacement of the socket at which the raft transport listens."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None: ...


class Wire(asyncio.Transport):
    """An asyncio transport on a simulated connection. One write may arrive in two pieces."""

    def __init__(self, end: End, protocol: asyncio.Protocol, peername: tuple[str, int]) -> None:
        super().__init__({"socket": _Socket(), "peername": peername})
        self._end = end
        self._protocol = protocol
        end.receive = protocol.data_received
        end.lost = self._lost
        self._told = False

    def _lost(self, error: Exception | None) -> None:
        if not self._told:
            self._told = True
            self._protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes:
            data = bytes(data)
        end, size = self._end, len(data)
        rng = end._net.clock.rng
        if rng.random() < 0.05 and size > 1:
            cut = rng.randrange(1, size)
            end.send(data[:cut], cut)
            data, size = data[cut:], size - cut
        end.send(data, size)

    def get_write_buffer_size(self) -> int:
        return self._end.unarrived

    def is_closing(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        self._end.close()
        asyncio.get_running_loop().call_soon(self._lost, None)

    def abort(self) -> None:
        self._end.abort()
        asyncio.get_running_loop().call_soon(self._lost, None)


class _Server:
    """The server that :meth:`NetLoop.create_server` returns."""

    def __init__(self, net: Net, host: Host, loop: Loop, factory: Callable[[], Any], address: str) -> None:
        self._net, self._host, self._loop = net, host, loop
        self._factory, self._address = factory, address

    async def start_serving(self) -> None:
        self._net.listeners[self._address] = (self._host, self._accept)

    def _accept(self, end: End) -> None:
        self._host.deliver(end.life, self._connected, end)

    def _connected(self, end: End) -> None:
        if end.closed:
            return
        protocol = self._factory()
        protocol.connection_made(Wire(end, protocol, ("10.0.0.9", 1)))

    def close(self) -> None:
        self._net.listeners.pop(self._address, None)

    async def wait_closed(self) -> None: ...


class NetLoop(Loop):
    """A process's event loop that uses the simulated network."""

    net: Net
    host: Host

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        host, port = sock.getsockname()
        return _Server(self.net, self.host, self, protocol_factory, f"{host}:{port}")

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        address, net = f"{host}:{port}", self.net
        await asyncio.sleep(net.clock.rng.uniform(*DELAY_S))
        while True:
            found = net.listeners.get(address)
            if found is None:
                raise ConnectionRefusedError(f"nobody listens at {address}")
            there = found[0].name
            if not (net.is_blocked(self.host.name, there) or net.is_blocked(there, self.host.name)):
                break
            await asyncio.sleep(0.2)  # like TCP, try again while one of the two directions is blocked
        end = net.connect(self.host, address)
        assert end is not None
        protocol = protocol_factory()
        wire = Wire(end, protocol, cast(tuple[str, int], (host, port)))
        protocol.connection_made(wire)
        return wire, protocol
