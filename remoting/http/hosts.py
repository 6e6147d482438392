"""Check of a request's ``Host``, so that pages of other sites cannot read a loopback port.

The owner of a site can point its name at 127.0.0.1 (DNS rebinding). A browser then takes its page and the
servers there for one origin. The page's requests have the site's own name. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from routekeeper.remoting.addresses import canonical_host, is_loopback


class AllowedHosts:
    """The names under which requests are answered.

    Args:
        loopback: The port is bound to loopback: all names of loopback are allowed, others only if named.
        named: Names that the operator allows, without ports. If the port is not on loopback, empty allows all
            names.
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
