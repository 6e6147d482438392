"""A cluster that other people run, described by its addresses. This module does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from routekeeper.bench.plan import Plan, PlanError
from routekeeper.bench.runfolder import Arm

ARMS: Final[tuple[Arm, ...]] = ("independent", "raft", "apache")
SERVERS_MAX: Final = 9


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a cluster that other people run, and the design (``arm``) of this cluster."""

    arm: Arm
    servers: list[str]
    """Address ``host:port`` of each nameserver for RocketMQ's protocol."""
    http: list[str] = []
    """HTTP address of each nameserver, in the order of ``servers``. Empty if HTTP must not be used."""


def given_cluster(arm: str | None, servers: Sequence[str], http: Sequence[str]) -> Given:
    """Check the flags that describe a cluster, and return the cluster.

    Raises:
        PlanError: If a flag is missing or has a wrong value. The message names the flag.
    """
    kind = next((known for known in ARMS if known == arm), None)
    if kind is None:
        raise PlanError(f"--arm is missing: name the design of the cluster, {', '.join(ARMS)}")
    if not 1 <= len(servers) <= SERVERS_MAX:
        raise PlanError(f"--nameservers names {len(servers)} nameservers, allowed are 1 to {SERVERS_MAX}")
    if http and len(http) != len(servers):
        raise PlanError(f"--http names {len(http)} addresses for {len(servers)} nameservers")
    for flag, addrs in (("--nameservers", servers), ("--http", http)):
        for addr in addrs:
            host, _, port = addr.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
                raise PlanError(f"{flag}: {addr!r} is no HOST:PORT with a port of 1 to 65535")
        if len(set(addrs)) < len(addrs):
            raise PlanError(f"{flag} has one address twice: {';'.join(addrs)}")
    return Given(arm=kind, servers=list(servers), http=list(http))


def plan_for(plan: Plan, given: Given) -> Plan:
    """Return the plan with the design and the number of servers of a cluster that other people run.

    Raises:
        PlanError: If the plan has faults, because the harness must not damage such a cluster.
    """
    for scenario in plan.scenarios:
        if scenario.faults:
            raise PlanError(
                f"the profile has faults ({scenario.name}); mqbench makes no faults in a running cluster"
            )
    return msgspec.structs.replace(plan, arms=[given.arm], servers=len(given.servers), lines=[])
