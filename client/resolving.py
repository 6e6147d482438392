"""Connections to hosts by name, within a time bound, which the system's resolver does not have."""

from __future__ import annotations

import socket
import time

from routekeeper.remoting.transport.lookups import look_up, of_address


def resolve(host: str, *, timeout_s: float) -> list[str]:
    """Return the addresses of a host, in the order of tries.

    Raises:
        TimeoutError: If the resolver did not answer in time.
        OSError: If the host is not known, or too many names are being looked up.
        ValueError: If no resolver accepts the name.
    """
    if of_address(host) is not None:
        return [host]  # unchanged, because it may have a scope
    lookup = look_up(host)
    try:
        return lookup.result(max(0.0, timeout_s))
    except TimeoutError:
        if lookup.done():
            raise  # the system's own timeout
        raise TimeoutError(f"{host} was not resolved within {timeout_s:g} s") from None


def connect(host: str, port: int, *, deadline_s: float) -> socket.socket:
    """Return a socket that is connected to a host by the instant ``deadline_s`` of the monotonic clock.

    Raises:
        TimeoutError, OSError, ValueError: As :func:`resolve`, or if no address of it can be connected to.
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
