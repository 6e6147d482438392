"""The timers of the compared systems, with their documented values and the divided values of a run."""

from dataclasses import replace
from typing import Final

import msgspec

from routekeeper.bench.runfolder import Timer
from routekeeper.client.config import ClientConfig


class Timers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The timers of a workload (see ``plans/compare.toml``)."""

    divisor: float
    """Number by which the documented timers of brokers, clients and the lease scan are divided."""
    election_timeout_ms: int
    """Raft's minimum election timeout in ms. Raft's mean is 1.5 times as long, and so is ZooKeeper's
    syncLimit * tickTime."""
    zookeeper_tick_ms: int | None = None
    """ZooKeeper's tickTime in ms, or null to compute it from the election timeout."""
    zookeeper_session_ms: int | None = None
    """ZooKeeper's session time-out in ms, or null to use RocketMQ's lease."""

    def session_ms(self) -> int:
        """Return ZooKeeper's session time-out in ms."""
        return self.zookeeper_session_ms or self.lease_ms()

    def lease_ms(self) -> int:
        """Return RocketMQ's lease of a broker in ms, divided by :attr:`divisor`."""
        return round(DOCUMENTED_MS["brokerLease"] / self.divisor)

    def scan_ms(self) -> int:
        return max(1, round(DOCUMENTED_MS["scanNotActiveBrokerInterval"] / self.divisor))


#: RocketMQ's documented timers, in ms. They do not follow our defaults. Source: BrokerConfig, NamesrvConfig
#: and ClientConfig of 5.3.
DOCUMENTED_MS: Final = {
    "registerNameServerPeriod": 30_000.0,
    "brokerLease": 120_000.0,
    "scanNotActiveBrokerInterval": 5_000.0,
    "pollNameServerInterval": 30_000.0,
    "heartbeatBrokerInterval": 30_000.0,
}


#: Bounds in ms of the time between two registrations. RocketMQ's own broker moves its setting into this
#: range. Source: BrokerController.start of 5.3: Math.max(10000, Math.min(registerNameServerPeriod, 60000)).
REAL_PERIOD_MS: Final = (10_000.0, 60_000.0)


def documented_timers(divisor: float) -> dict[str, Timer]:
    """Return RocketMQ's documented timers, divided by ``divisor``."""
    return {
        name: Timer(used_ms=value / divisor, documented_ms=value, scaled=True, source="RocketMQ 5.3")
        for name, value in DOCUMENTED_MS.items()
    }


def divide_periods(config: ClientConfig, divisor: float) -> ClientConfig:
    """Return a client's settings with all periods divided and all time-outs unchanged."""
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
