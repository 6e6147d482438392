"""Bytes that this process holds for its peers, with one limit for all peers together.

This module does no I/O.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from routekeeper.remoting.addresses import network_of

Holder = TypeVar("Holder", bound=Hashable)

#: When the limit is exceeded, connections are cut off until the total is below this fraction of the limit.
#: Without such a margin, the next received byte would exceed the limit again.
_DOWN_TO: Final = 7 / 8


class Holdings(Generic[Holder]):
    """Number of bytes that this process holds for each connection.

    While the total is within the limit, this process may hold any number of bytes for one peer, because many
    brokers can share one address. Above the limit, connections of the address with most bytes are cut off
    first.

    Args:
        bytes_max: Limit of the bytes held for all connections together.
        host: Returns the address of a connection's peer, without its port. An IPv6 network of 64 bits counts
            as one address.
    """

    def __init__(self, *, bytes_max: int, host: Callable[[Holder], str]) -> None:
        self._bytes_max = bytes_max
        self._host: Callable[[Holder], str] = lambda holder: network_of(host(holder))
        self._sizes: dict[Holder, int] = {}
        self.total = 0

    @property
    def exceeded(self) -> bool:
        return self.total > self._bytes_max

    def holders(self) -> list[Holder]:
        return list(self._sizes)

    def size(self, holder: Holder) -> int:
        """Return the number of bytes held for a connection."""
        return self._sizes.get(holder, 0)

    def set(self, holder: Holder, size: int) -> None:
        """Set the number of bytes held for a connection."""
        self.total += size - self._sizes.get(holder, 0)
        if size:
            self._sizes[holder] = size
        else:
            self._sizes.pop(holder, None)

    def largest(self) -> list[Holder]:
        """Return the connections to cut off so that the total falls below the limit by a margin.

        The connections are chosen one after another. Each time, first choose the address that has most bytes.
        Then choose the connection of this address that has most bytes. Connections that are already chosen do
        not count.
        """
        if not self.exceeded:
            return []
        by_host: defaultdict[str, list[Holder]] = defaultdict(list)
        sums: defaultdict[str, int] = defaultdict(int)
        for holder, size in self._sizes.items():
            host = self._host(holder)
            by_host[host].append(holder)
            sums[host] += size
        for holders in by_host.values():
            holders.sort(key=self._sizes.__getitem__)
        heap = [(-size, host) for host, size in sums.items()]
        heapq.heapify(heap)
        left = self.total
        chosen: list[Holder] = []
        while left > self._bytes_max * _DOWN_TO:
            held, host = heapq.heappop(heap)
            holder = by_host[host].pop()
            size = self._sizes[holder]
            left -= size
            chosen.append(holder)
            if by_host[host]:
                heapq.heappush(heap, (held + size, host))
        return chosen
