"""Connections that may read on in large frames, so that few of these are held at once; pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Intake(Generic[Holder]):
    """Gives connections places to read large frames; the others wait, unread.

    The frames of those that have places are within the bound together, or there is one of them alone: some
    frame can always be completed. Hosts take turns, and within a host who has waited longest comes first.
    While others wait, who does not complete its frame goes to the end of its host's line, and who sends
    nothing loses its place until it sends again. What was read of their frames is kept.

    Args:
        bytes_max: The bound.
        host: Returns the address of a connection's peer, without its port.
    """

    def __init__(self, *, bytes_max: int, host: Callable[[Holder], str]) -> None:
        self._bytes_max = bytes_max
        self._host = host
        self._reading: dict[Holder, int] = {}  # with the sizes of their frames
        self._total = 0
        self._before: dict[Holder, int] = {}  # what was read of those that had places at the last look
        self._waiting: dict[str, dict[Holder, int]] = {}  # by host, in the order of their turns

    @property
    def waiting(self) -> int:
        """Connections that wait for a place."""
        return sum(map(len, self._waiting.values()))

    def waits(self, holder: Holder) -> bool:
        """Return whether a connection waits for a place."""
        return holder in self._waiting.get(self._host(holder), ())

    def enter(self, holder: Holder, size: int) -> bool:
        """Ask for a place for a frame of so many bytes; if there is none, :meth:`next` gives it later."""
        if self._waiting or not self._fits(size):
            self._waiting.setdefault(self._host(holder), {})[holder] = size
            return False
        self._give(holder, size)
        return True

    def leave(self, holder: Holder) -> None:
        """Take a connection out, whether it has a place or waits for one."""
        self._total -= self._reading.pop(holder, 0)
        self._before.pop(holder, None)
        host = self._host(holder)
        line = self._waiting.get(host)
        if line is not None:
            line.pop(holder, None)
            if not line:
                del self._waiting[host]

    def next(self) -> list[Holder]:
        """Give places to those that wait, as far as there are any; return who got one."""
        chosen: list[Holder] = []
        while self._waiting:
            host, line = next(iter(self._waiting.items()))
            holder, size = next(iter(line.items()))
            if not self._fits(size):
                break
            del line[holder], self._waiting[host]
            if line:
                self._waiting[host] = line  # behind all other hosts
            self._give(holder, size)
            chosen.append(holder)
        return chosen

    def look(
        self, waits_for_peer: Callable[[Holder], bool], received: Callable[[Holder], int]
    ) -> tuple[list[Holder], list[Holder]]:
        """Take the places of connections that have had them since the last look, if others wait.

        Args:
            waits_for_peer: Whether the peer of a connection is to send or to read, before it can leave.
            received: Bytes that are there of its frame.

        Returns:
            Those that have sent something since, and wait again now. Those that have not: they are out.
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
