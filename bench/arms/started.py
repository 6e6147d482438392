"""Choice of the class that starts the servers of a compared design, by the name of the design."""

from __future__ import annotations

from pathlib import Path

from routekeeper.bench.arms.apache import ApacheNameservers
from routekeeper.bench.arms.servers import Nameservers, StartedServers, ZooKeepers
from routekeeper.bench.network import Network
from routekeeper.bench.processes import Record
from routekeeper.bench.runfolder import AGAIN, Arm, Durability
from routekeeper.bench.timers import Timers


def servers_of(
    arm: Arm,
    folder: Path,
    timers: Timers,
    record: Record,
    *,
    count: int,
    durability: Durability,
    network: Network,
) -> StartedServers:
    """Return the servers of a design (``arm``), not yet started.

    Args:
        durability: Setting of raft mode only. ZooKeeper always syncs, and independent nameservers store
            nothing.

    Raises:
        ClusterError: If this machine cannot run the design.
    """
    match AGAIN.get(arm, arm):
        case "zookeeper":
            return ZooKeepers(arm, folder, timers, record, count=count, network=network)
        case "apache":
            return ApacheNameservers(arm, folder, timers, record, count=count, network=network)
        case _:
            return Nameservers(
                arm, folder, timers, record, count=count, durability=durability, network=network
            )
