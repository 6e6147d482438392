"""Settings of a design's clients, and the lines by which they report answers (pure)."""

from __future__ import annotations

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
