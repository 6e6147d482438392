"""TCP connections to hosts by name, within a time limit. The system's resolver itself has no time limit."""

from __future__ import annotations

import socket
import time

from routekeeper.remoting.transport.lookups import look_up, of_address


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
