"""Ports for the servers that tests start. While a server is down, no other process uses its port.

A free port that the kernel chose (port 0) would be unsafe. While no server listens at it, the kernel may use
it as the local port of an outgoing connection. The ports of this module are outside the kernel's range for
outgoing connections.

Test sessions that run at the same time use different ranges of 200 ports. A session reserves a range by a
socket that it binds to the first port of the range. It uses each port once. If no range is free any more, it
uses its own ports again, the oldest first.
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
#: Linux file with the first and the last port of the kernel's range for outgoing connections.
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
        # Use the system's random source. Tests may seed the default generator, and then all sessions would
        # choose the same ports.
        self._blocks = random.SystemRandom().sample(
            range(ports.start, ports.stop - _BLOCK + 1, _BLOCK), len(ports) // _BLOCK
        )

    def take(self, *offsets: int) -> int:
        """Return a free port. The ports at the distances `offsets` from it are free, too."""
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
    """Return a free port; reserve it and the ports at these positive distances for this session."""
    return _ports.take(*offsets)


def free_addresses(count: int) -> list[str]:
    """Return free ports on loopback as ``host:port``, and reserve them for this session."""
    return [f"{HOST}:{port}" for port in free_ports(count)]
