"""Addresses of hosts, with a bound on the wait for the system's resolver.

``getaddrinfo`` has no deadline: if a name server does not answer, it blocks its caller for up to a minute. So
each name is looked up in a thread of its own, which all callers that ask for the name share. Unlike the
threads of a loop's executor, such a thread delays neither the end of the program nor other work.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

#: Names that a process may look up at the same time; further ones are refused. Each costs a thread.
LOOKUPS_MAX: Final = 64
#: Seconds for looking up a name on which a server is to listen.
LISTEN_WITHIN_S: Final = 10.0

_lookups: Final[dict[str, Future[list[str]]]] = {}
os.register_at_fork(after_in_child=_lookups.clear)  # the threads stay in the parent


def look_up(host: str) -> Future[list[str]]:
    """Begin to look up a host; return the future of its addresses, which no caller can cancel.

    The future of an address is done at once.

    Raises:
        OSError: If too many names are being looked up.
        ValueError: The host is no valid name.
    """
    lookup: Future[list[str]] = Future()
    addresses = of_address(host)
    if addresses is not None:
        lookup.set_result(addresses)
        return lookup
    lookup.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel it for the others
    known = _lookups.setdefault(host, lookup)
    if known is not lookup:
        return known
    try:
        if len(_lookups) > LOOKUPS_MAX:
            raise OSError(f"{LOOKUPS_MAX} names of hosts are being looked up already, that is the limit")
        threading.Thread(target=_resolve, args=(host, lookup), name=f"look up {host}", daemon=True).start()
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
        _lookups.pop(host, None)
        lookup.set_exception(OSError(str(error)))
    return lookup


def of_address(host: str) -> list[str] | None:
    """Return an address as the only one of its host; None if the host is a name. No resolver is asked.

    Raises:
        ValueError: The host is no valid name.
    """
    try:
        return _addresses(
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        )
    except socket.gaierror:
        return None


async def addresses_of(host: str, *, timeout_s: float) -> list[str]:
    """Return the addresses of a host; an address is its own.

    Raises:
        OSError: If it has none, too many names are being looked up, or the resolver did not answer in time.
        ValueError: The host is no valid name.
    """
    lookup = look_up(host)
    if lookup.done():
        return lookup.result()
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(lookup)
    except TimeoutError:
        raise OSError(f"{host} was not resolved within {timeout_s:g} s") from None


async def hosts_to_listen_on(host: str) -> str | list[str]:
    """Return the addresses to bind for an operator's host: all those of a name, else the host itself.

    Raises:
        OSError, ValueError: As :func:`addresses_of`.
    """
    if not host or of_address(host) is not None:
        return host  # unchanged: it may have a scope
    return await addresses_of(host, timeout_s=LISTEN_WITHIN_S)


def _resolve(host: str, lookup: Future[list[str]]) -> None:
    try:
        addresses = _addresses(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except Exception as error:  # all waiting callers get it
        _lookups.pop(host, None)
        lookup.set_exception(error)
    else:
        _lookups.pop(host, None)
        lookup.set_result(addresses)


def _addresses(found: list[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(str(name[0]) for *_, name in found))
