"""Ports for the servers that tests start; while a server is down, no other process takes its port.

A free port that the kernel chose (port 0) would be unsafe: while no server listens, the kernel may use it as
the local end of an outgoing connection, even of a connection to this port itself. The ports of this module
lie outside the range of outgoing connections.

Test sessions that run at the same time use different ranges of 200 ports. A session holds a bound socket at
the first port of each of its ranges. A session uses each port once. When no range is free any more, the
session uses its own ports again, the oldest first.
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

#: Ports below the usual range of outgoing connections, and below the ports of the benchmark's processes.
_USUAL: Final = range(10_000, 20_000)
_BLOCK: Final = 200
#: Linux file with the first and the last port of outgoing connections.
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def usable() -> range:
    """Return the ports that the kernel does not use for outgoing connections."""
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
        # Use the system's random source: tests may seed the default generator, and then sessions would choose
        # the same ports.
        self._blocks = random.SystemRandom().sample(
            range(ports.start, ports.stop - _BLOCK + 1, _BLOCK), len(ports) // _BLOCK
        )

    def take(self, *offsets: int) -> int:
        """Return a port that is free, and whose neighbours at the distances `offsets` are free, too."""
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
            if guard is None:  # another session holds this range
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
    """Return free ports on loopback, and reserve them for this session."""
    return [_ports.take() for _ in range(count)]


def free_port_with(*offsets: int) -> int:
    """Return a free port; reserve it and its neighbours at these positive distances for this session."""
    return _ports.take(*offsets)


def free_addresses(count: int) -> list[str]:
    """Return free ports on loopback as ``host:port``, and reserve them for this session."""
    return [f"{HOST}:{port}" for port in free_ports(count)]
