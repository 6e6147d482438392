"""Check of a request's ``Host`` header, so that web pages of other sites cannot read a loopback port.

The owner of a site can make the site's name resolve to 127.0.0.1 (DNS rebinding). A browser then believes
that a server on the user's machine belongs to that site, and lets the site's pages read this server's
answers. The requests of such pages have the site's name in ``Host``, so this check refuses them. This module
does no I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

from routekeeper.remoting.addresses import canonical_host, is_loopback

#: Names that a browser can send in ``Host``, which has international names in their ASCII form.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class AllowedHosts:
    """Host names under which this port answers requests.

    Args:
        loopback: True if the port is bound to loopback. All names of loopback are then allowed, and other
            names only if they are in ``named``.
        named: Names that the operator allows, without ports. If the port is not on loopback and ``named`` is
            empty, all names are allowed.
    """

    def __init__(self, *, loopback: bool, named: Collection[str]) -> None:
        self._loopback = loopback
        self._named = frozenset(canonical_host(name.strip()) for name in named if name.strip())

    def allow(self, host: str | None) -> bool:
        """Return True if a request with this ``Host`` (``name``, ``name:port``, ``[v6]:port``) may pass."""
        if host is None or (not self._loopback and not self._named):
            # A browser always sends a Host header. So a client without this header is no browser, and no web
            # page can misuse it.
            return True
        name = canonical_host(_without_port(host))
        return name in self._named or (self._loopback and is_loopback(name))


def host_fault(text: str) -> str:
    """Return what is allowed in place of ``text``, if it is neither a host name nor an IP address; else "".

    No request could have a host that is equal to such a text.
    """
    if _is_host(text):
        return ""
    host = _without_port((text.partition("://")[2] or text).partition("/")[0])
    write = f"; write {host}" if _is_host(host) else ""
    return (
        "allowed are IP addresses and host names of ASCII letters, digits, '.', '-' and '_', without scheme,"
        f" port and wildcard, separated by commas{write}"
    )


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host
