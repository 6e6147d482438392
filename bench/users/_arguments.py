"""Limits of the Locust users' arguments, and the check of these arguments.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from routekeeper.client.config import MESSAGE_SIZE_MAX, ClientConfig, check_addr, check_group
from routekeeper.client.errors import InvalidArgument

TOPICS_MAX: Final = 10_000
_RATE_MAX: Final = 100_000.0

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "topics": (1, TOPICS_MAX),
    "rate": (0, _RATE_MAX),
    "registrar_rate": (0, _RATE_MAX),
    "message_bytes": (1, MESSAGE_SIZE_MAX),
    "request_timeout_s": (0.001, 3600),
}


def addresses(text: str) -> list[str]:
    """Return the addresses in a text such as ``h1:9876;h2:9876``, without ``http://``.

    Locust's web page may add a scheme to the host.
    """
    parts = (part.strip().removeprefix("http://").rstrip("/") for part in text.split(";"))
    return [part for part in parts if part]


def problem_of(options: Any, host: str | None) -> str | None:
    """Return in one line why the arguments are wrong, or None if they are right.

    Args:
        options: Locust's options, including the options of ``bench/users``.
        host: The nameservers, or None for the default.
    """
    for name, (low, high) in _BOUNDS.items():
        value = getattr(options, name)
        if not (math.isfinite(value) and low <= value <= high):
            return f"--{name.replace('_', '-')}: {value}, allowed are {low:g} to {high:,.0f}"
    for name, check in (("group", lambda: check_group(options.group)), ("host", lambda: _servers(host))):
        try:
            check()
        except InvalidArgument as error:
            return f"--{name}: {error}"
    try:
        for addr in addresses(options.http_addrs):
            check_addr(addr)
    except InvalidArgument as error:
        return f"--http-addrs: {error}"
    return None


def _servers(host: str | None) -> None:
    if host is not None:
        ClientConfig(nameservers=tuple(addresses(host)))
