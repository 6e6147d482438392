"""For whom a request is meant, by its ``Host``: what keeps pages of other sites from reading a loopback port.

A page whose name its owner points at 127.0.0.1 (DNS rebinding) is, to a browser, of one origin with all that
answers there. Its requests carry the page's own name. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from routekeeper.remoting.addresses import canonical_host, is_loopback


class AllowedHosts:
    """The names under which requests are answered.

    Args:
        loopback: The port is bound to loopback: every way to write that is allowed, others only if named.
        named: What the operator allows, without ports. Elsewhere than on loopback, empty allows everything.
    """

    def __init__(self, *, loopback: bool, named: Collection[str]) -> None:
        self._loopback = loopback
        self._named = frozenset(canonical_host(name.strip()) for name in named if name.strip())

    def allow(self, host: str | None) -> bool:
        """Return whether a request with this ``Host`` (``name``, ``name:port``, ``[v6]:port``) may pass."""
        if host is None or (not self._loopback and not self._named):
            return True  # a client that sends no Host header is no browser
        name = canonical_host(_without_port(host))
        return name in self._named or (self._loopback and is_loopback(name))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host
