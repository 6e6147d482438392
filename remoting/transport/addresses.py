"""Addresses: ``host:port`` in text, and who can reach one."""

from __future__ import annotations

import socket
from typing import Final

from remoting.errors import LocalProtocolError
from remoting.logs import shortened

_PORT_DIGITS: Final = 5
_MAPPED: Final = "[::ffff:"


def split_address(addr: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Raises:
        LocalProtocolError: If it is neither.
    """
    host, _, port = addr.rpartition(":")
    # Peers choose addresses: a number of thousands of digits is none, and Python raises at it.
    is_port = len(port) <= _PORT_DIGITS and port.isascii() and port.isdecimal() and int(port) <= 65535
    if not host or not is_port:
        raise LocalProtocolError(f"address {shortened(addr)!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def host_port(name: object) -> str:
    """Return ``host:port`` of a socket's name, "?" if it has none."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "?"


def plain_host(host: str) -> str:
    """Return ``10.0.0.1`` for ``[::ffff:10.0.0.1]``, as a listener for both families names IPv4 peers."""
    return host[len(_MAPPED) : -1] if host.startswith(_MAPPED) and "." in host else host


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a listener bound to ``host``."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(str(info[4][0]).startswith("127.") or info[4][0] == "::1" for info in infos)
