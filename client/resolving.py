"""Host names resolved within a time: the system's resolver has no limit of its own."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from typing import Any, Final

#: Family, type, protocol and address of a socket, as ``getaddrinfo`` gives them.
SocketAddress = tuple[int, int, int, Any]
#: Names that are resolved at a time, each in a thread of its own: a resolver that hangs keeps the thread.
_AT_ONCE_MAX: Final = 8
_places: Final = threading.BoundedSemaphore(_AT_ONCE_MAX)


def resolve(host: str, port: int, *, timeout_s: float) -> list[SocketAddress]:
    """Return the addresses of a host, in the order in which they are to be tried.

    Raises:
        TimeoutError: If the resolver did not answer in time; it may hang in a thread of its own from now on.
        OSError: If the host is not known.
        ValueError: If no resolver takes the name.
    """
    try:
        return _addresses(host, port, flags=socket.AI_NUMERICHOST)
    except OSError:
        pass  # it is a name
    deadline_s = time.monotonic() + timeout_s
    failure = TimeoutError(f"{host} was not resolved within {timeout_s:g} s")
    if not _places.acquire(timeout=max(0.0, timeout_s)):
        raise failure
    outcome: Future[list[SocketAddress]] = Future()

    def ask() -> None:
        try:
            outcome.set_result(_addresses(host, port))
        except Exception as error:  # the caller's to judge
            outcome.set_exception(error)
        finally:
            _places.release()

    # A daemon: a program ends although its resolver hangs.
    thread = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _places.release()
        raise OSError(f"no thread can be started: {error}") from None
    try:
        return outcome.result(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        if outcome.done():
            raise  # the system's own
        raise failure from None


def connect(host: str, port: int, *, deadline_s: float) -> socket.socket:
    """Return a socket that is connected to a host by the instant ``deadline_s`` of the monotonic clock.

    Raises:
        TimeoutError, OSError, ValueError: As :func:`resolve`, or if no address of it can be connected to.
    """
    failure: OSError | None = None
    for family, kind, protocol, address in resolve(host, port, timeout_s=deadline_s - time.monotonic()):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure or TimeoutError(f"no connection to {host} in time")


def _addresses(host: str, port: int, *, flags: int = 0) -> list[SocketAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in found]
