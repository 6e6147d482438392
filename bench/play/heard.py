"""Settings of a design's clients, and the lines that they read and write (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmConfig
from routekeeper.bench.events import Operation, View


class ClientsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Handed over as a JSON file. Each side of the design's is one client."""

    arm: ArmConfig
    topic: str
    every_s: float
    """Interval of a client's questions."""
    seed: int


class Heard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: an answer, or a change of a kept route."""

    operation: Operation | None = None
    view: View | None = None


_RECONNECT: Final = "reconnect"


def reconnect_line(client: str, first: int) -> str:
    """Return the line that tells a client to connect anew and to ask this server first."""
    return f"{_RECONNECT} {client} {first}"


def reconnecting(line: str) -> tuple[str, int] | None:
    """Return the client that a line tells to connect anew, and its first server; None if it names a topic."""
    match line.split():  # a topic has no blank
        case [word, client, first] if word == _RECONNECT:
            return client, int(first)
    return None
