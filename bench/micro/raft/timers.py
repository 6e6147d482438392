"""ZooKeeper's timers. Our nameservers run with their default timers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """ZooKeeper's timers, from its example file, because ZooKeeper itself has no defaults.

    Attributes:
        lease_s: Session timeout, the default of MetaQ 1.4 (zkSessionTimeoutMs of ZKConfig).
    """

    tick_ms: int = 2000
    sync_limit: int = 5
    init_limit: int = 10
    lease_s: int = 30


SERIES: Final = {"defaults": Timers()}
