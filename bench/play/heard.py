"""The settings of the process that runs a design's clients, and the text lines of its stdin and stdout.

This module does no I/O and reads no clock. It only converts between lines and values.
"""

from __future__ import annotations

from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmConfig
from routekeeper.bench.events import Operation, View


class ClientsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process of all clients, in a JSON file.

    There is one client for each :class:`Side` in ``arm``.
    """

    arm: ArmConfig
    topic: str
    every_s: float
    """Seconds between two queries of a client."""
    seed: int


class Heard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One output line of the clients' process: a client's answer, or a change of a client's cache."""

    operation: Operation | None = None
    view: View | None = None


_RECONNECT: Final = "reconnect"


def reconnect_line(client: str, first: int) -> str:
    """Return the line that makes a client connect again and send its next query to the server ``first``."""
    return f"{_RECONNECT} {client} {first}"


def reconnecting(line: str) -> tuple[str, int] | None:
    """Return the client that must connect again, and the server to ask first, or None for other lines."""
    match line.split():  # a topic's name has no blank, so a line of three words does not name a topic
        case [word, client, first] if word == _RECONNECT:
            return client, int(first)
    return None
