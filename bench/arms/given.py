"""The servers of a cluster that somebody else runs: asked, never started, struck or stopped."""

from __future__ import annotations

import json

from bench.arms.servers import Servers, fetch
from bench.given import Given
from bench.runfolder import Timer
from bench.timers import Timers, documented_timers


class GivenServers(Servers):
    """Nameservers that answer at given addresses; none of their processes is ours."""

    def __init__(self, given: Given, timers: Timers) -> None:
        super().__init__(given.arm, timers)
        self.clients = given.servers
        self.http = given.http

    def ready(self) -> bool:
        return all(fetch(f"http://{http}/readyz")[0] == 200 for http in self.http)

    def role(self, index: int) -> str:
        return self._status(index).get("role", "unknown")

    def modes(self) -> list[str]:
        """Return what each nameserver says of its mode, where it says something."""
        told = (self._status(index).get("mode") for index in range(len(self.http)))
        return [mode for mode in told if mode is not None]

    def _status(self, index: int) -> dict[str, str]:
        if not self.http:
            return {}
        status, body = fetch(f"http://{self.http[index]}/v1/status")
        return dict(json.loads(body)) if status == 200 else {}

    def timers(self) -> dict[str, Timer]:
        """Return what our users use; the servers' own are not known."""
        return documented_timers(self.given.divisor)
