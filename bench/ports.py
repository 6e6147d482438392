"""Ports for the processes of a run.

A port stays reserved, so a killed server can use its old port again.

The ports lie below the range that operating systems use for outgoing connections. A process reserves whole
blocks of ports. To reserve a block, the process binds a socket to the block's first port. So two comparisons
that run at the same time share no port.
"""

from __future__ import annotations

import atexit
import random
import socket
import threading
from collections import deque
from typing import Final

HOST: Final = "127.0.0.1"
USABLE: Final = range(20_000, 32_000)
BLOCK: Final = 250
#: Number of blocks of ports that a process reserves. They suffice for several clusters, and for a long time
#: before a port must be used again.
BLOCKS: Final = 4


class NoPorts(OSError):
    """Too few ports are free, because other processes hold them."""


class Ports:
    """Ports that one process has reserved. The first call of :meth:`take` reserves whole blocks of ports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: list[socket.socket] = []
        self._oldest_first: deque[int] = deque()

    def take(self, count: int) -> list[int]:
        """Return the ``count`` ports without a listener that were unused for the longest time.

        Raises:
            NoPorts: If this process has fewer than ``count`` such ports.
        """
        found: list[int] = []
        with self._lock:
            if not self._guards:
                self._take_blocks()
            for _ in range(len(self._oldest_first)):
                if len(found) == count:
                    break
                port = self._oldest_first.popleft()
                self._oldest_first.append(port)
                if is_free(port):
                    found.append(port)
        if len(found) < count:
            raise NoPorts(f"only {len(found)} free ports in {USABLE.start}..{USABLE.stop}, need {count}")
        return found

    def _take_blocks(self) -> None:
        firsts = range(USABLE.start, USABLE.stop - BLOCK + 1, BLOCK)
        for first in random.SystemRandom().sample(firsts, len(firsts)):
            guard = bound(first)
            if guard is None:  # another process has this block
                continue
            self._guards.append(guard)
            self._oldest_first.extend(range(first + 1, first + BLOCK))
            if len(self._guards) == BLOCKS:
                return

    def close(self) -> None:
        """Release the reserved blocks of ports."""
        while self._guards:
            self._guards.pop().close()
        self._oldest_first.clear()


def bound(port: int) -> socket.socket | None:
    """Return a socket that holds a port on loopback, or None if another process holds the port."""
    guard = socket.socket()
    try:
        guard.bind((HOST, port))
    except OSError:
        guard.close()
        return None
    return guard


def is_free(port: int) -> bool:
    probe = bound(port)
    if probe is not None:
        probe.close()
    return probe is not None


_ports: Final = Ports()
atexit.register(_ports.close)


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports on loopback that this process has reserved (see :meth:`Ports.take`)."""
    return _ports.take(count)
