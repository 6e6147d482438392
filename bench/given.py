"""A cluster that somebody else runs, given by its addresses (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from routekeeper.bench.plan import Plan, PlanError
from routekeeper.bench.runfolder import Arm

ARMS: Final[tuple[Arm, ...]] = ("independent", "raft", "apache")
SERVERS_MAX: Final = 9


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a given cluster, and the arm that it stands for."""

    arm: Arm
    servers: list[str]
    """``host:port`` of each nameserver, over the wire."""
    http: list[str] = []
    """The same over HTTP, in the same order; empty if nobody is to ask there."""


def given_cluster(arm: str | None, servers: Sequence[str], http: Sequence[str]) -> Given:
    """Check a command line's description of a cluster.

    Raises:
        PlanError: If something is missing or is no address; the message names it.
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
    """Return a plan for a given cluster.

    Raises:
        PlanError: If it has faults: the harness must not break a cluster that somebody else runs.
    """
    for scenario in plan.scenarios:
        if scenario.faults:
            raise PlanError(
                f"the profile has faults ({scenario.name}); mqbench makes no faults in a running cluster"
            )
    return msgspec.structs.replace(plan, arms=[given.arm], servers=len(given.servers), lines=[])
