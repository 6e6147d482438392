"""Ports for the servers that tests start: nobody takes one before it is bound, nor while its server is down.

A port that the kernel gave and that is free again (port 0) may become the near end of anybody's outgoing
connection, even of one to that very port. These lie outside the range of outgoing connections. Test sessions
that run side by side keep apart by blocks of ports, each guarded by a socket. A session gives none twice, or,
if all blocks are taken, none that it has given lately.
"""

from __future__ import annotations

import atexit
import random
import socket
import threading
from collections import deque
from pathlib import Path
from typing import Final

from routekeeper.bench.ports import HOST, bound, is_free

#: Below the usual outgoing connections and below the ports of the benchmark's processes.
_USUAL: Final = range(10_000, 20_000)
_BLOCK: Final = 200
#: Linux: first and last port of outgoing connections.
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def usable() -> range:
    """Return the ports from which outgoing connections take none."""
    try:
        first, last = map(int, _OUTGOING.read_text().split())
    except OSError:
        return _USUAL
    if first >= _USUAL.stop:
        return _USUAL
    below, above = range(1024, first), range(last + 1, 65_536)
    return max(below, above, key=len)


class _Ports:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: list[socket.socket] = []
        self._left: deque[int] = deque()
        self._given: deque[int] = deque()
        ports = usable()
        # Not by the generator that tests may seed.
        self._blocks = random.SystemRandom().sample(
            range(ports.start, ports.stop - _BLOCK + 1, _BLOCK), len(ports) // _BLOCK
        )

    def take(self, *offsets: int) -> int:
        """Return a port that can be bound, as can those at the offsets from it."""
        with self._lock:
            while True:
                if not self._left:
                    self._take_block()
                port = self._left.popleft()
                self._given.append(port)
                others = [port + offset for offset in offsets]
                if all(other in self._left for other in others) and all(map(is_free, (port, *others))):
                    for other in others:
                        self._left.remove(other)
                        self._given.append(other)
                    return port

    def _take_block(self) -> None:
        while self._blocks:
            first = self._blocks.pop()
            guard = bound(first)
            if guard is None:  # another session's
                continue
            self._guards.append(guard)
            self._left.extend(range(first + 1, first + _BLOCK))
            return
        assert self._given, "no block of ports is left for this session"
        self._left, self._given = self._given, deque()

    def close(self) -> None:
        for guard in self._guards:
            guard.close()


_ports: Final = _Ports()
atexit.register(_ports.close)


def free_ports(count: int) -> list[int]:
    """Return ports on loopback that are this session's from now on."""
    return [_ports.take() for _ in range(count)]


def free_port_with(*offsets: int) -> int:
    """Return a port whose neighbours at these (positive) offsets are this session's, too."""
    return _ports.take(*offsets)


def free_addresses(count: int) -> list[str]:
    """Return ``host:port`` of :func:`free_ports`."""
    return [f"{HOST}:{port}" for port in free_ports(count)]
