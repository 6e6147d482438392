"""Servers of a cluster that other people run. The harness only sends queries to these servers."""

from __future__ import annotations

from routekeeper.bench.arms.servers import Servers, status_of
from routekeeper.bench.given import Given
from routekeeper.bench.timers import Timers


class GivenServers(Servers):
    """Nameservers at given addresses. The harness did not start their processes and cannot stop them."""

    def __init__(self, given: Given, timers: Timers) -> None:
        super().__init__(given.arm, timers)
        self.clients = given.servers
        self.http = given.http

    def modes(self) -> list[str]:
        """Return the mode (such as ``raft``) of each nameserver that reports its mode."""
        told = (status_of(http).get("mode") for http in self.http)
        return [mode for mode in told if mode is not None]
