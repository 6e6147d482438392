"""Addresses as text: ``host:port``, with brackets around an IPv6 host.

This module does no I/O and resolves no names.

:mod:`routekeeper.remoting.bounds` defines the form of an address on the wire.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from routekeeper.remoting.bounds import PORT_MAX
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.logs import shortened

FORM: Final = f"HOST:PORT with a port of 0 to {PORT_MAX}"

_MAPPED: Final = "[::ffff:"
_SEPARATORS: Final = re.compile(r"[;,\s]")


def split_address(text: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port.

    Raises:
        LocalProtocolError: The text has no host, or no valid port.
    """
    host, _, port = text.rpartition(":")
    # Check the length first. A peer may send thousands of digits, and int() raises an error for so many
    # digits.
    is_port = len(port) <= 5 and port.isascii() and port.isdecimal() and int(port) <= PORT_MAX
    if not host or not is_port or "/" in host or _SEPARATORS.search(host):
        raise LocalProtocolError(f"address {shortened(text)!r} {address_fault(text)}")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port)


def address_fault(text: str, *, form: str = FORM, separator: str = "") -> str:
    """Return the reason why a text is not one address, in words that help to correct it.

    Args:
        form: The allowed form of an address, in words.
        separator: Name of the character between two addresses, if the text may contain several addresses.
    """
    if "://" in text:
        return f"has a scheme; leave it out: {form}"
    if _SEPARATORS.search(text.strip()):
        how = f"; separate with {separator}" if separator else ""
        return f"is more than one address{how}: allowed is {form}"
    return f"is not {form}"


def is_unspecified(host: str) -> bool:
    """Return True if a host, such as 0.0.0.0, means all addresses of a machine.

    Brackets around the host are ignored.
    """
    if host and not host.strip("0."):  # operating systems read "0" as 0.0.0.0
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_port(name: object) -> str:
    """Return ``host:port`` for an address that a socket returned; "?" for anything else."""
    return join_address(name[0], name[1]) if isinstance(name, tuple) and len(name) >= 2 else "?"


def plain_host(host: str) -> str:
    """Return ``10.0.0.1`` for ``[::ffff:10.0.0.1]``, and any other host unchanged.

    A socket that listens for IPv4 and IPv6 shows an IPv4 peer as ``[::ffff:10.0.0.1]``.
    """
    return host[len(_MAPPED) : -1] if host.startswith(_MAPPED) and "." in host else host


def is_loopback(host: str) -> bool:
    """Return True if a host is an address or a name of loopback. Brackets around the host are ignored."""
    host = canonical_host(host)
    # RFC 6761: these names always stand for this machine.
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def canonical_host(host: str) -> str:
    """Return a host in one fixed spelling, so that two spellings of the same host compare as equal.

    The result is the shortest form of an IP address, or a name in lower case. An IPv4 address inside an IPv6
    address becomes the IPv4 address. Brackets are removed.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower().rstrip(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


@lru_cache(maxsize=4096)
def charged_host(host: str) -> str:
    """Return the key of a host for limits that count each host; empty for loopback.

    Such limits do not apply to loopback.

    All addresses of an IPv6 network of 64 bits have the same key, because they usually have the same owner.
    """
    host = canonical_host(host.strip("[]").partition("%")[0])
    if is_loopback(host):
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


def network_of(host: str) -> str:
    """Return the key under which the connections of a host are counted together.

    Limits and the order of service use this key.

    All addresses of an IPv6 network of 64 bits have the same key, as in :func:`charged_host`. Each loopback
    address has a separate key.
    """
    return charged_host(host) or host


def same_address(one: str, other: str) -> bool:
    """Return True if two texts are spellings of the same address; names are not resolved."""
    if one == other:
        return True
    try:
        (host, port), (other_host, other_port) = split_address(one), split_address(other)
    except LocalProtocolError:
        return False
    return port == other_port and canonical_host(host) == canonical_host(other_host)
