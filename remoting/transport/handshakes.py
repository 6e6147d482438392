"""Limits of the TLS handshakes that wait for their peers: for one port, and for each host.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

#: Largest number of handshakes of one port that wait for their peers.
HANDSHAKES_MAX: Final = 1024
#: Largest number of handshakes of one host that wait for their peers.
HOST_HANDSHAKES_MAX: Final = 512
#: Longest time in seconds for a handshake, from its first byte on. If the port demands TLS, the time begins
#: with the connection.
HANDSHAKE_S: Final = 5.0

Holder = TypeVar("Holder", bound=Hashable)


class Handshakes(Generic[Holder]):
    """TLS handshakes that wait for their peers. Each handshake occupies an OpenSSL object of about 50 KiB.

    If a new handshake would exceed a limit, an older handshake is broken off:

    - If one host reaches its limit, the handshake of this host that has waited longest is broken off.
    - If all hosts together reach their limit, the host with most handshakes loses the handshake that has
      waited longest.

    So a peer that answers at once hardly ever loses its handshake. A handshake that this process has not
    begun yet has no OpenSSL object and does not count.

    Args:
        host: Returns the address of the host for which a handshake counts.
    """

    def __init__(
        self,
        *,
        host: Callable[[Holder], str],
        count_max: int = HANDSHAKES_MAX,
        host_max: int = HOST_HANDSHAKES_MAX,
    ) -> None:
        self._host = host
        self._count_max, self._host_max = count_max, host_max
        self._by_host: dict[str, dict[Holder, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, holder: Holder) -> Holder | None:
        """Count a handshake that has begun.

        Returns:
            The handshake that must be broken off so that no limit is exceeded; None if there is none.
        """
        host = self._host(holder)
        line = self._by_host.setdefault(host, {})
        oldest = None
        if len(line) >= self._host_max:
            oldest = next(iter(line))
        elif self._count >= self._count_max:
            most = max(self._by_host, key=lambda other: len(self._by_host[other]))
            oldest = next(iter(self._by_host[most]))
        if oldest is not None:
            self.leave(oldest)
        self._by_host.setdefault(host, {})[holder] = None
        self._count += 1
        return oldest

    def leave(self, holder: Holder) -> None:
        """Stop counting a handshake, if it was counted."""
        host = self._host(holder)
        line = self._by_host.get(host, {})
        if holder in line:
            del line[holder]
            self._count -= 1
            if not line:
                del self._by_host[host]
