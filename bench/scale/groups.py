"""The servers of one measurement: the servers of the comparison, in any number, also with delayed links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from routekeeper.bench.arms.servers import (
    StartedServers,
    is_ready,
    server_names,
    status_of,
    wait_until,
    zookeeper_epoch,
)
from routekeeper.bench.arms.started import servers_of
from routekeeper.bench.group import Unhealthy
from routekeeper.bench.kernel import KernelNetwork
from routekeeper.bench.links import both_ways
from routekeeper.bench.network import Network, ProxyNetwork
from routekeeper.bench.processes import Record
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.points import LinkKind
from routekeeper.bench.slow_disk import SlowDisks
from routekeeper.bench.timers import Timers
from routekeeper.bench.wires.client import Kind

#: Default timers of each system. The session time-out is a default of MetaQ 1.4 (class ZKConfig), which was
#: RocketMQ's predecessor and used ZooKeeper.
TIMERS: Final = Timers(
    divisor=1.0, election_timeout_ms=500, zookeeper_tick_ms=2000, zookeeper_session_ms=30_000
)
#: Size of the JVM's heap in MB. It is enough for 100 brokers with 10,000 topics each: with a smaller heap, a
#: JVM would spend its time on garbage collection. RocketMQ's own script, runserver.sh, also sets 4096.
HEAP_MB: Final[dict[Arm, int]] = {"apache": 4096, "zookeeper": 3072}
#: Options with which the comparison starts its JVMs, because they live for a short time only. This module
#: removes the options from the commands, because its JVMs serve a heavy load.
_SHORT_LIVES: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_S: Final = 90.0
_LEADS: Final = ("leader", "standalone")


def network_of(kind: LinkKind, folder: Path, count: int, record: Record) -> Network:
    match kind:
        case "none":
            return Network()
        case "proxy":
            return ProxyNetwork(folder, record)
        case "kernel":
            return KernelNetwork(server_names(count))


class ScaleGroup:
    """The servers of one design; see :class:`routekeeper.bench.group.Group`.

    Args:
        slow: Makes the disks of single servers slow on request; None if the point needs no slow disk.
    """

    def __init__(
        self,
        arm: Arm,
        folder: Path,
        *,
        count: int,
        links: LinkKind,
        record: Record,
        slow: SlowDisks | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name: str = arm
        self.kind: Kind = "jute" if arm == "zookeeper" else "remoting"
        self.jvm = arm in HEAP_MB
        self._network = network_of(links, folder, count, record)
        try:
            self.servers: StartedServers = servers_of(
                arm, folder, TIMERS, record, count=count, durability="fsync", network=self._network
            )
        except BaseException:
            self._network.close()
            raise
        self.processes, self.clients = self.servers.processes, self.servers.clients
        self._carriers = self._network.carriers()
        for process in self.processes:
            heap = f"-Xmx{HEAP_MB.get(arm, 0)}m"
            words = [heap if word.startswith("-Xmx") else word for word in process.command]
            words = [word for word in words if word not in _SHORT_LIVES]
            process.command = [*(slow.prefix(process.index) if slow else ()), *words]

    @property
    def watched(self) -> list[str]:
        return self.servers.http or self.clients

    @property
    def pids(self) -> list[int]:
        return [process.child.pid for process in self.processes if process.child is not None]

    def start(self) -> None:
        for carrier in self._carriers:
            carrier.launch()
            carrier.wait_ready()
        self.servers.start()
        self.wait_healthy()

    def healthy(self) -> bool:
        """Return True if every server serves; in a design with a leader, one server must lead."""
        return self.servers.ready() if self.name == "apache" else self.serves(range(len(self.clients)))

    def serves(self, indexes: Sequence[int]) -> bool:
        """Return True if each of these servers serves; in a design with a leader, one of them must lead."""
        if self.servers.http:  # our own servers report whether they serve
            return all(is_ready(self.servers.http[index]) for index in indexes)
        roles = [self.servers.role(index) for index in indexes]
        return "unknown" not in roles and sum(role in _LEADS for role in roles) == 1

    def wait_healthy(self) -> None:
        wait_until(self.healthy, f"{self.name} is not whole", self.processes, START_S, late=Unhealthy)

    def leader(self) -> int | None:
        return self.servers.leader()

    def epoch(self) -> int | None:
        if self.kind == "jute":
            return zookeeper_epoch(self.clients)
        if self.name != "raft":
            return None
        terms = [status_of(http).get("term") for http in self.servers.http]
        return max((int(term) for term in terms if term is not None), default=None)

    # -- faults -------------------------------------------------------------------------------------------

    def delay(self, round_trip_ms: float, *, loss: float = 0.0) -> None:
        """Set the round-trip time, and the share of lost packets (0 to 1), between each pair of servers."""
        names = self.servers.names
        directions = [
            pair for name in names for pair in both_ways([name], [each for each in names if each > name])
        ]
        if directions and (round_trip_ms or loss):
            self._network.delay(directions, round_trip_ms / 2, loss=loss)

    def kill(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            self.processes[index].strike()
        for index in indexes:
            self.processes[index].kill()

    def launch(self, indexes: Sequence[int]) -> None:
        for index in indexes:
            self.processes[index].launch()

    def kill_and_restart(self) -> None:
        everybody = range(len(self.clients))
        self.kill(everybody)
        self.launch(everybody)

    def roll(self) -> None:
        """Restart the servers one by one, the leader last, as operators do.

        After each restart, wait until all servers serve.
        """
        for index in restart_order(len(self.clients), self.leader()):
            process = self.processes[index]
            process.terminate()
            process.join()
            process.launch()
            self.wait_healthy()

    def log_tail(self, index: int) -> str:
        return self.processes[index].log_tail()

    def stop(self) -> None:
        try:
            for process in self.processes:
                process.terminate()
            for process in self.processes:
                process.join()
        finally:
            for carrier in self._carriers:
                carrier.kill()
            self._network.close()


def restart_order(count: int, leader: int | None) -> list[int]:
    """Return the order in which servers restart: the leader last, so that leadership moves only once."""
    return sorted(range(count), key=lambda index: index == leader)
