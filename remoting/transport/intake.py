"""Connections that may read large frames, so that few such frames are held at once; pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from routekeeper.remoting.addresses import network_of

Holder = TypeVar("Holder", bound=Hashable)


class Intake(Generic[Holder]):
    """Gives connections places to read large frames; the others wait and are not read.

    The frames of the connections with places fit the bound together, or there is only one of them. So some
    frame can always be completed. Hosts take turns, and within a host the connection that has waited longest
    is next.

    While others wait, a connection that is slow to complete its frame moves to the end of its host's queue.
    One that sends nothing loses its place until it sends again. The bytes read of these frames are kept.

    Args:
        bytes_max: The bound.
        host: Returns the address of a connection's peer, without its port. An IPv6 network of 64 bits is one
            host.
    """

    def __init__(self, *, bytes_max: int, host: Callable[[Holder], str]) -> None:
        self._bytes_max = bytes_max
        self._host: Callable[[Holder], str] = lambda holder: network_of(host(holder))
        self._reading: dict[Holder, int] = {}  # sizes of their frames
        self._total = 0
        self._before: dict[Holder, int] = {}  # bytes received of each frame at the last look
        self._waiting: dict[str, dict[Holder, int]] = {}  # by host, in the order of their turns

    @property
    def waiting(self) -> int:
        """Return the number of connections that wait for a place."""
        return sum(map(len, self._waiting.values()))

    def waits(self, holder: Holder) -> bool:
        """Return whether a connection waits for a place."""
        return holder in self._waiting.get(self._host(holder), ())

    def enter(self, holder: Holder, size: int) -> bool:
        """Ask for a place for a frame of ``size`` bytes; return False if it must wait until :meth:`next`
        gives one.
        """
        if self._waiting or not self._fits(size):
            self._waiting.setdefault(self._host(holder), {})[holder] = size
            return False
        self._give(holder, size)
        return True

    def leave(self, holder: Holder) -> None:
        """Remove a connection that has a place or waits for one."""
        self._total -= self._reading.pop(holder, 0)
        self._before.pop(holder, None)
        host = self._host(holder)
        line = self._waiting.get(host)
        if line is not None:
            line.pop(holder, None)
            if not line:
                del self._waiting[host]

    def next(self) -> list[Holder]:
        """Give free places to waiting connections; return those that got one."""
        chosen: list[Holder] = []
        while self._waiting:
            host, line = next(iter(self._waiting.items()))
            holder, size = next(iter(line.items()))
            if not self._fits(size):
                break
            del line[holder], self._waiting[host]
            if line:
                self._waiting[host] = line  # after all other hosts
            self._give(holder, size)
            chosen.append(holder)
        return chosen

    def look(
        self, waits_for_peer: Callable[[Holder], bool], received: Callable[[Holder], int]
    ) -> tuple[list[Holder], list[Holder]]:
        """Take back the places of connections that have had them since the last look, if others wait.

        Args:
            waits_for_peer: Returns whether a connection can only continue when its peer sends or reads.
            received: Returns the number of bytes received of a connection's frame.

        Returns:
            Connections that have sent bytes since the last look: they wait again. And those that have not:
            they are removed.
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
