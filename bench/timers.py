"""Timers of the systems that are compared: as documented, and as a run divides them (pure)."""

from dataclasses import replace
from typing import Final

import msgspec

from routekeeper.bench.runfolder import Timer
from routekeeper.client.config import ClientConfig


class Timers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timers of a workload; see ``plans/compare.toml``."""

    divisor: float
    """Divides the documented broker, client and scan timers."""
    election_timeout_ms: int
    """Raft: least election timeout; ZooKeeper's syncLimit * tickTime lies at its mean, 1.5 times this."""
    zookeeper_tick_ms: int | None = None
    """ZooKeeper's tickTime, where it is not to follow from the election timeout."""
    zookeeper_session_ms: int | None = None
    """Session timeout, where it is not to equal RocketMQ's lease."""

    def session_ms(self) -> int:
        """Return ZooKeeper's session timeout."""
        return self.zookeeper_session_ms or self.lease_ms()

    def lease_ms(self) -> int:
        """Return RocketMQ's lease of a broker."""
        return round(DOCUMENTED_MS["brokerLease"] / self.divisor)


#: RocketMQ's documented timers. Source: BrokerConfig, NamesrvConfig, ClientConfig of 5.3.
DOCUMENTED_MS: Final = {
    "registerNameServerPeriod": 30_000.0,
    "brokerLease": 120_000.0,
    "scanNotActiveBrokerInterval": 5_000.0,
    "pollNameServerInterval": 30_000.0,
    "heartbeatBrokerInterval": 30_000.0,
}


#: The shortest and the longest time between two registrations that RocketMQ's own broker accepts.
#: Source: BrokerController.start of 5.3: Math.max(10000, Math.min(registerNameServerPeriod, 60000)).
REAL_PERIOD_MS: Final = (10_000.0, 60_000.0)


def documented_timers(divisor: float) -> dict[str, Timer]:
    """Return RocketMQ's timers, divided."""
    return {
        name: Timer(used_ms=value / divisor, documented_ms=value, scaled=True, source="RocketMQ 5.3")
        for name, value in DOCUMENTED_MS.items()
    }


def divide_periods(config: ClientConfig, divisor: float) -> ClientConfig:
    """Return a client's settings with shorter periods; timeouts stay."""
    return replace(
        config,
        route_refresh_s=config.route_refresh_s / divisor,
        nameserver_refresh_s=config.nameserver_refresh_s / divisor,
        nameserver_avoid_s=config.nameserver_avoid_s / divisor,
        heartbeat_s=config.heartbeat_s / divisor,
        rebalance_s=config.rebalance_s / divisor,
        offset_persist_s=config.offset_persist_s / divisor,
        lock_s=config.lock_s / divisor,
    )
