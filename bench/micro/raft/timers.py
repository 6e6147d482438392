"""Timers of RouteKeeper and ZooKeeper: equal timers, or default timers.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Series = Literal["defaults", "equal"]

#: Number of heartbeats that our leader sends in one election timeout. ZooKeeper's tick is set so that
#: ZooKeeper's leader sends the same number of pings in this time.
_HEARTBEATS: Final = 6
#: Number of ticks after which a ZooKeeper follower considers a silent leader lost, for equal timers. Reasons:
#: - ZooKeeper's leader pings every half tick, so one tick is two heartbeats, and four ticks are 4/3 of the
#:   election timeout.
#: - Our two followers choose their timeouts at random between one and two election timeouts. The earlier of
#:   the two timeouts is 4/3 of the election timeout on average.
#: - ZooKeeper's followers choose nothing at random: they time out together.
_EQUAL_SYNC_LIMIT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers with which each system is started.

    Attributes:
        election_ms: Our election timeout. A follower starts an election after a leader's silence of one to
            two times this value, chosen at random. None for the default.
        heartbeat_ms: Interval of our leader's heartbeats, which follows from ``election_ms``; None for the
            default.
        tick_ms, sync_limit, init_limit: ZooKeeper's timers. The defaults are from its example file,
            because ZooKeeper itself has no defaults.
        lease_s: Session timeout of ZooKeeper and lease of our brokers; there is no default.
    """

    series: Series
    election_ms: int | None = None
    heartbeat_ms: int | None = None
    tick_ms: int = 2000
    sync_limit: int = 5
    init_limit: int = 10
    lease_s: int

    def borne_ms(self, system: str) -> tuple[int, int]:
        """Return the shortest and the longest silence of a leader, in ms, after which a follower acts."""
        if system == "zookeeper":
            return self.sync_limit * self.tick_ms, self.sync_limit * self.tick_ms
        least = self.election_ms or 500
        return least, 2 * least


def equal(election_ms: int, *, lease_s: int) -> Timers:
    """Return timers with which both systems detect the loss of a leader after the same time, on average.

    Raises:
        ValueError: If the heartbeat period would not be a whole number of ms.
    """
    if election_ms < 1 or election_ms % _HEARTBEATS:
        raise ValueError(f"election_ms={election_ms}, allowed are multiples of {_HEARTBEATS}")
    heartbeat_ms = election_ms // _HEARTBEATS
    tick_ms = 2 * heartbeat_ms
    return Timers(
        series="equal",
        election_ms=election_ms,
        heartbeat_ms=heartbeat_ms,
        tick_ms=tick_ms,
        sync_limit=_EQUAL_SYNC_LIMIT,
        init_limit=20_000 // tick_ms,  # 20 s, as with default timers, even if a tick is short
        lease_s=lease_s,
    )


#: Timers by series.
#: - "defaults": ZooKeeper's session timeout is the default of MetaQ 1.4 (zkSessionTimeoutMs of ZKConfig,
#:   30 s). Our leases have the same length.
#: - "equal": a lost broker is detected after 120 s, as in RocketMQ.
SERIES: Final[dict[Series, Timers]] = {
    "defaults": Timers(series="defaults", lease_s=30),
    "equal": equal(600, lease_s=120),
}
