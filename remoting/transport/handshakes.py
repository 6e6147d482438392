"""TLS handshakes that wait for their peers, with a bound over all and one for each host; pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

#: Handshakes of one port that may wait for their peers.
HANDSHAKES_MAX: Final = 1024
#: The same for one host.
HOST_HANDSHAKES_MAX: Final = 512
#: Seconds for a handshake, from its first byte on; where TLS is demanded, from the start of the connection.
HANDSHAKE_S: Final = 5.0

Holder = TypeVar("Holder", bound=Hashable)


class Handshakes(Generic[Holder]):
    """Handshakes that wait for their peers; for each, a library object of some 50 KiB is held.

    Above a bound, the handshake that has waited longest is broken off, among those of the host that has most.
    A peer that answers at once is hardly ever chosen. A handshake that waits for us has no such object, so it
    is not counted.

    Args:
        host: Returns the address that a holder counts for.
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
        """Count a handshake that has begun; return the handshake to break off for it, if any."""
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
