"""A cluster that other people run, at given addresses. The harness starts only the load and an observer."""

from __future__ import annotations

from typing import Final, Literal

from routekeeper.bench.arms.given import GivenServers
from routekeeper.bench.arms.interface import CLUSTER, Side, broker_index
from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.cluster import Cluster, Record
from routekeeper.bench.given import Given
from routekeeper.bench.network import Network
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.runfolder import Links
from routekeeper.bench.schedule import SessionPlan
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.remoting.codes import MASTER_ID
from routekeeper.remoting.errors import RemotingError

#: Longest wait in s until the servers of a given cluster are ready.
READY_S: Final = 15.0


class AttachedCluster(Cluster):
    """A given cluster under the harness's load. The harness never stops or starts the cluster's processes."""

    first_step = "looking for the cluster"

    def __init__(self, given: SessionPlan, record: Record, cluster: Given) -> None:
        super().__init__(given, record)
        self.network = Network()
        self._given_cluster = cluster
        self._indexes: list[int] = []

    def build(self) -> None:
        self._given_servers = GivenServers(self._given_cluster, self.series.timers)
        self.servers = self._given_servers
        self._helpers = self._load_processes()

    def start(self) -> None:
        servers = self._given_servers
        wait_until(servers.ready, "nameservers do not say that they are ready", [], READY_S)
        for mode in servers.modes():
            if mode != self.given.arm:
                raise ClusterError(f"--arm is {self.given.arm}, a nameserver says that its mode is {mode}")
        self._find_brokers()
        self.generator.launch()
        self._launch_observer()
        for index in self._indexes:
            self.truth(index, "up")
        self._start_topics()

    def _find_brokers(self) -> None:
        """Use every master that the cluster lists, except the brokers that a load generator simulates."""
        client = Client(ClientConfig(nameservers=tuple(self.servers.clients)))
        try:
            info = client.run(client.admin.cluster_info())
        except RemotingError as error:
            raise ClusterError(f"the cluster does not say which brokers it has: {error}") from error
        finally:
            client.close()
        found = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs and data.cluster != CLUSTER
        }
        if not found:
            raise ClusterError("the cluster has no broker that is a master")
        by_index = {index: addr for name, addr in found.items() if (index := broker_index(name)) is not None}
        if len(by_index) < len(found):
            raise ClusterError(f"broker names must end in different numbers: {', '.join(found)}")
        self._indexes = sorted(by_index)
        self.broker_addrs = [by_index[index] for index in self._indexes]
        self.sides = [
            Side(
                name="side-a",
                servers=self.servers.clients,
                brokers={addr: addr for addr in self.broker_addrs},
            )
        ]

    def observe(self, *, reading: bool) -> None:
        """Do nothing, because the observer may read all the time.

        Its reads distort only CPU times, and a run on a given cluster measures no CPU times.
        """

    def broker_indexes(self) -> list[int]:
        return self._indexes

    @property
    def links(self) -> Links | Literal["none"]:
        return "none"
