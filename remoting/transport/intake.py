"""Permissions to read large frames, so that only a few large frames are in memory at the same time.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from routekeeper.remoting.addresses import network_of

Holder = TypeVar("Holder", bound=Hashable)


class Intake(Generic[Holder]):
    """Permissions to read large frames. Nothing is read from a connection that waits for its permission.

    A connection with this permission has a *place*. The limit applies to the frames of all connections with
    places together. A single frame may exceed the limit if no other connection has a place. The hosts get
    free places in turn. Within a host, the connection that has waited longest is next.

    While other connections wait, slow connections lose their places:

    - A connection that sends its frame slowly waits again, behind the other connections of its host.
    - A connection that sends nothing loses its place until it sends again.

    In both cases, the bytes of the frame that were already read stay in memory.

    Args:
        bytes_max: Limit of the bytes of all large frames that are being read.
        host: Returns the address of a connection's peer, without its port. An IPv6 network of 64 bits is one
            host.
    """

    def __init__(self, *, bytes_max: int, host: Callable[[Holder], str]) -> None:
        self._bytes_max = bytes_max
        self._host: Callable[[Holder], str] = lambda holder: network_of(host(holder))
        self._reading: dict[Holder, int] = {}  # frame sizes of the connections that may read
        self._total = 0
        self._before: dict[Holder, int] = {}  # bytes received of each frame at the last call of look()
        # Frame sizes of connections that wait for permission to read, by host. The first host is the next to
        # get a permission.
        self._waiting: dict[str, dict[Holder, int]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait for a place, which is the permission to read."""
        return sum(map(len, self._waiting.values()))

    def waits(self, holder: Holder) -> bool:
        """Return True if a connection waits for permission to read a large frame."""
        return holder in self._waiting.get(self._host(holder), ())

    def enter(self, holder: Holder, size: int) -> bool:
        """Ask for permission to read a frame of ``size`` bytes; return True if it is granted now.

        If the result is False, the connection must wait until :meth:`next` returns it.
        """
        if self._waiting or not self._fits(size):
            self._waiting.setdefault(self._host(holder), {})[holder] = size
            return False
        self._give(holder, size)
        return True

    def leave(self, holder: Holder) -> None:
        """Remove a connection that has a place (permission to read) or waits for a place."""
        self._total -= self._reading.pop(holder, 0)
        self._before.pop(holder, None)
        host = self._host(holder)
        line = self._waiting.get(host)
        if line is not None:
            line.pop(holder, None)
            if not line:
                del self._waiting[host]

    def next(self) -> list[Holder]:
        """Give free places (permissions to read) to waiting connections, and return these connections."""
        chosen: list[Holder] = []
        while self._waiting:
            host, line = next(iter(self._waiting.items()))
            holder, size = next(iter(line.items()))
            if not self._fits(size):
                break
            del line[holder], self._waiting[host]
            if line:
                self._waiting[host] = line  # this host now waits behind all other hosts
            self._give(holder, size)
            chosen.append(holder)
        return chosen

    def look(
        self, waits_for_peer: Callable[[Holder], bool], received: Callable[[Holder], int]
    ) -> tuple[list[Holder], list[Holder]]:
        """If any connection waits, take places away from slow and silent connections.

        A place is the permission to read a frame. A connection that already had its place at the last call,
        and still has not sent its whole frame, loses the place.

        Args:
            waits_for_peer: Returns True if a connection can continue only when its peer sends or reads. Only
                such a connection loses its place.
            received: Returns the number of bytes received of a connection's frame.

        Returns:
            First, the connections that have sent bytes since the last call; they wait for a place again.
            Second, the connections that have sent no byte; they are removed.
        """
        slow: list[Holder] = []
        silent: list[Holder] = []
        if self._waiting:
            for holder in self._reading:
                if holder in self._before and waits_for_peer(holder):
                    (silent if received(holder) == self._before[holder] else slow).append(holder)
        for holder in silent:
            self._total -= self._reading.pop(holder)
        for holder in slow:
            size = self._reading.pop(holder)
            self._total -= size
            self._waiting.setdefault(self._host(holder), {})[holder] = size
        self._before = {holder: received(holder) for holder in self._reading}
        return slow, silent

    def _fits(self, size: int) -> bool:
        return not self._reading or self._total + size <= self._bytes_max

    def _give(self, holder: Holder, size: int) -> None:
        self._reading[holder] = size
        self._total += size
        self._before.pop(holder, None)
