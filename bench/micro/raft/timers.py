"""Timers of both systems, set equal or left at their defaults (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Series = Literal["defaults", "equal"]

#: Number of our leader's heartbeats in one election timeout; ZooKeeper's leader is set to the same.
_HEARTBEATS: Final = 6
#: Ticks after which ZooKeeper's followers give up a silent leader. One tick is two heartbeats, because
#: ZooKeeper's leader pings every half tick. So four ticks are 4/3 of the election timeout. Our two followers
#: choose their timeouts at random between one and two election timeouts, and the earlier of the two is 4/3 on
#: average. ZooKeeper's followers choose nothing at random: they time out together.
_EQUAL_SYNC_LIMIT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers with which each system is started.

    Attributes:
        election_ms: Least silence after which our follower starts an election; it chooses its timeout at
            random between once and twice this time. None: the default.
        heartbeat_ms: Interval of a leader's heartbeats, which follows from ``election_ms``; None: the
            default.
        tick_ms, sync_limit, init_limit: ZooKeeper's timers. Defaults are those of its example file, because
            it has no others.
        lease_s: ZooKeeper's session timeout, which has no default.
    """

    series: Series
    election_ms: int | None = None
    heartbeat_ms: int | None = None
    tick_ms: int = 2000
    sync_limit: int = 5
    init_limit: int = 10
    lease_s: int

    def borne_ms(self, system: str) -> tuple[int, int]:
        """Return the shortest and the longest silence of a leader that a follower tolerates."""
        if system == "zookeeper":
            return self.sync_limit * self.tick_ms, self.sync_limit * self.tick_ms
        least = self.election_ms or 500
        return least, 2 * least


def equal(election_ms: int, *, lease_s: int) -> Timers:
    """Return timers by which both notice a silent leader after the same time, on average.

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
        init_limit=20_000 // tick_ms,  # allow the same time for a start, however short the ticks are
        lease_s=lease_s,
    )


#: "defaults": sessions as in MetaQ 1.4's ZKConfig (zkSessionTimeoutMs), and equal leases. "equal": a lost
#: broker is noticed as late as in RocketMQ.
SERIES: Final[dict[Series, Timers]] = {
    "defaults": Timers(series="defaults", lease_s=30),
    "equal": equal(600, lease_s=120),
}
