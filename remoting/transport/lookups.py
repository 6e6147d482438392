"""Look-ups of host names, and connections to hosts, with a limit on the time for which callers wait.

``getaddrinfo`` has no time limit. If a DNS server does not answer, the function blocks its caller for up to a
minute. Therefore each name is looked up in a separate thread. All callers that need the same name share this
thread. Threads of the event loop's executor would delay other work and the end of the program; these threads
do not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from concurrent.futures import Future
from typing import Any, Final

#: Largest number of names that are looked up at the same time, because each look-up needs a thread. Further
#: look-ups fail.
LOOKUPS_MAX: Final = 64
#: Longest time in seconds for the look-up of a host name to which a server will bind its port.
LISTEN_WITHIN_S: Final = 10.0

_lookups: Final[dict[str, Future[list[str]]]] = {}
os.register_at_fork(after_in_child=_lookups.clear)  # a forked process has none of the threads


def look_up(host: str) -> Future[list[str]]:
    """Begin to look up a host; return the future of its addresses.

    No caller can cancel the future.

    If ``host`` is an address, the future is done at once. The future fails with OSError if too many names are
    being looked up.

    Raises:
        ValueError: If ``host`` is no valid name.
    """
    lookup: Future[list[str]] = Future()
    addresses = of_address(host)
    if addresses is not None:
        lookup.set_result(addresses)
        return lookup
    # A caller that stops waiting must not cancel the look-up for other callers.
    lookup.set_running_or_notify_cancel()
    known = _lookups.setdefault(host, lookup)
    if known is not lookup:
        return known
    try:
        if len(_lookups) > LOOKUPS_MAX:
            raise OSError(f"{LOOKUPS_MAX} names of hosts are being looked up already, that is the limit")
        threading.Thread(target=_resolve, args=(host, lookup), name=f"look up {host}", daemon=True).start()
    except (OSError, RuntimeError) as error:  # RuntimeError: the system cannot start another thread
        _lookups.pop(host, None)
        lookup.set_exception(OSError(str(error)))
    return lookup


def of_address(host: str) -> list[str] | None:
    """Return a list with ``host`` itself if this is an address; None if it is a name.

    This function asks no resolver.

    Raises:
        ValueError: If ``host`` is no valid name.
    """
    try:
        return _addresses(
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        )
    except socket.gaierror:
        return None


async def addresses_of(host: str, *, timeout_s: float) -> list[str]:
    """Return the addresses of a host; if ``host`` is an address, return only this address.

    Raises:
        OSError: If the host has no address, if too many names are being looked up, or if the resolver did not
            answer within ``timeout_s``.
        ValueError: If ``host`` is no valid name.
    """
    lookup = look_up(host)
    if lookup.done():
        return lookup.result()
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(lookup)
    except TimeoutError:
        raise OSError(f"{host} was not resolved within {timeout_s:g} s") from None


def resolve(host: str, *, timeout_s: float) -> list[str]:
    """Return the addresses of a host, in the order in which to try them.

    Raises:
        TimeoutError: If the resolver did not answer in time.
        OSError: If the host is unknown, or too many lookups are running.
        ValueError: If no resolver accepts the name.
    """
    if of_address(host) is not None:
        return [host]  # keep the text unchanged: an IPv6 address may carry a scope ("%eth0")
    lookup = look_up(host)
    try:
        return lookup.result(max(0.0, timeout_s))
    except TimeoutError:
        if lookup.done():
            raise  # the lookup itself ended with a TimeoutError
        raise TimeoutError(f"{host} was not resolved within {timeout_s:g} s") from None


def connect(host: str, port: int, *, deadline_s: float) -> socket.socket:
    """Connect to a host and return the socket. ``deadline_s`` is an instant of the monotonic clock.

    Raises:
        TimeoutError, OSError, ValueError: As :func:`resolve`, or if no address accepts a connection in time.
    """
    failure: OSError | None = None
    for address in resolve(host, timeout_s=deadline_s - time.monotonic()):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            return socket.create_connection((address, port), timeout=left_s)
        except OSError as error:
            failure = error
    raise failure or TimeoutError(f"no connection to {host} in time")


def own_address() -> str:
    """Return the IP address that this machine uses to reach others, or 127.0.0.1 without a network."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # 192.0.2.1 is reserved for documentation. For a UDP socket, connect() only chooses the source
            # address and sends nothing.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:  # no network, or no free descriptor
        return "127.0.0.1"


async def hosts_to_listen_on(host: str) -> str | list[str]:
    """Return the addresses to bind for the host in a listen address.

    These are all addresses of a name, or the given address itself.

    Raises:
        OSError: If the name cannot be resolved, see :func:`addresses_of`.
        ValueError: If ``host`` is no valid name.
    """
    if not host or of_address(host) is not None:
        return host  # return it unchanged, because an IPv6 address may have a scope
    return await addresses_of(host, timeout_s=LISTEN_WITHIN_S)


def _resolve(host: str, lookup: Future[list[str]]) -> None:
    try:
        addresses = _addresses(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except Exception as error:  # every caller that waits gets this exception
        _lookups.pop(host, None)
        lookup.set_exception(error)
    else:
        _lookups.pop(host, None)
        lookup.set_result(addresses)


def _addresses(found: list[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(str(name[0]) for *_, name in found))
