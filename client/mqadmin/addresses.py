"""Search for a server by address. Nameservers and operators may write the same address differently."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final, TypeVar

from routekeeper.remoting.addresses import canonical_host, same_address, split_address
from routekeeper.remoting.errors import LocalProtocolError

from ..resolving import resolve

T = TypeVar("T")
#: Longest wait in seconds for the resolution of one host name.
RESOLVE_S: Final = 5.0


def found_at(addrs: Mapping[T, str], addr: str) -> list[T]:
    """Return the keys of the servers at an address. Resolve host names only if no text matches."""
    alike = [key for key, known in addrs.items() if same_address(known, addr)]
    return alike or [key for key, known in addrs.items() if _resolved(known) & _resolved(addr)]


@functools.lru_cache(maxsize=1024)
def _resolved(addr: str) -> frozenset[tuple[str, int]]:
    """Return the IP addresses of a server; empty if its host name cannot be resolved."""
    try:
        host, port = split_address(addr)
        found = resolve(host, timeout_s=RESOLVE_S)
    except (OSError, ValueError, LocalProtocolError):  # ValueError: the host name is invalid
        return frozenset()
    return frozenset((canonical_host(address), port) for address in found)
