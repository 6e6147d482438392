"""A run on a cluster that somebody else runs: it is given by its addresses; load and observer are ours."""

from __future__ import annotations

from typing import Final

import msgspec

from bench.arms.given import GivenServers
from bench.arms.interface import CLUSTER, Side, broker_index
from bench.arms.servers import wait_until
from bench.given import Given
from bench.processes import ClusterError
from bench.runfolder import Manifest
from bench.session import Progress, Session, SessionPlan
from client.blocking import Client
from client.config import ClientConfig
from remoting.codes import MASTER_ID
from remoting.errors import RemotingError

#: How long a given cluster may take to show that it is ready, s.
READY_S: Final = 15.0


class AttachedSession(Session):
    """Drives what is there. Nothing of it is started, sampled, struck or stopped."""

    def __init__(self, given: SessionPlan, cluster: Given, progress: Progress) -> None:
        super().__init__(given, progress)
        self._given_cluster = cluster
        self._indexes: list[int] = []

    def _build(self) -> None:
        self._given_servers = GivenServers(self._given_cluster, self.series.timers)
        self._servers = self._given_servers
        self._broker_addrs = []
        self._helpers = self._load_processes()

    def _start(self) -> None:
        self._progress("looking for the cluster")
        servers = self._given_servers
        wait_until(servers.ready, "nameservers do not say that they are ready", [], READY_S)
        for mode in servers.modes():
            if mode != self.given.arm:
                raise ClusterError(f"--arm is {self.given.arm}, a nameserver says that its mode is {mode}")
        self._find_brokers()
        self._generator.launch()
        self._launch_observer()
        for index in self._indexes:
            self._truth(index, "up")
        self._create_topics(self._topics())
        self._await_routes(self._topics(), [])

    def _find_brokers(self) -> None:
        """Take every master that the cluster lists, but for those that a load generator plays."""
        client = Client(ClientConfig(nameservers=tuple(self._servers.clients)))
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
            raise ClusterError(f"brokers cannot be told apart by their names: {', '.join(found)}")
        self._indexes = sorted(by_index)
        self._broker_addrs = [by_index[index] for index in self._indexes]
        self._sides = [
            Side(
                name="side-a",
                servers=self._servers.clients,
                http=self._servers.http,
                brokers={addr: addr for addr in self._broker_addrs},
            )
        ]

    def _broker_indexes(self) -> list[int]:
        return self._indexes

    def _stop(self) -> None:
        self._observer.terminate()
        self._observer.join()

    def _count(self) -> None:
        """No proxy stands before a given cluster, so nobody counts its bytes."""

    def _look_after(self) -> None:
        end = self._observer.died()
        if end is not None:
            raise ClusterError(f"{end}\n{self._observer.log_tail()}")

    def _manifest(self, scenario: str, begin_ns: int, end_ns: int) -> Manifest:
        made = super()._manifest(scenario, begin_ns, end_ns)
        return msgspec.structs.replace(made, links="none", brokers=len(self._indexes))
