"""A cluster of our nameservers, RocketMQ's own brokers, and RocketMQ's Java client.

A run with this cluster shows whether the comparison's own brokers and clients behave like RocketMQ's brokers
and clients. The simulated brokers, the new clients and the observer are the same as in every other run.
"""

from __future__ import annotations

from routekeeper.bench.arms.apache import RELEASE
from routekeeper.bench.arms.apache_brokers import (
    LEASE_MS,
    READY_MARK,
    broker_addr,
    broker_command,
    client_command,
)
from routekeeper.bench.cluster import LEAD_S, RESTART_MAX_S, Cluster
from routekeeper.bench.files import write_at_once
from routekeeper.bench.generator_config import RETRIES, end_path
from routekeeper.bench.java_client import LinesError, rows, schedule, settings, without_java
from routekeeper.bench.plan import Load, run_seconds, scenarios_of
from routekeeper.bench.processes import ClusterError, Process
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.runfolder import Timer


class RealCluster(Cluster):
    """A cluster whose brokers, producers and look-up clients are RocketMQ's own programs.

    Attributes:
        java: The process of the Java client.
    """

    java: Process

    # -- processes ----------------------------------------------------------------------------------------

    def _broker_addr(self, name: str) -> str:
        return broker_addr()

    @property
    def _generator_load(self) -> Load:
        return without_java(self.plan.load)

    def _load_processes(self) -> list[Process]:
        made = super()._load_processes()
        work = self.given.work
        self._lines = work / "java-client.jsonl"
        self._schedule = work / "java-client.schedule"
        described = work / "java-client.properties"
        arm = self._arm_config()
        described.write_text(
            settings(
                self.plan.load,
                self.sides,
                retries=RETRIES,
                refresh_ms=arm.refresh_ms,
                heartbeat_ms=arm.heartbeat_ms,
                linger_ns=round(self.plan.linger_s * 1e9),
                output=self._lines,
                schedule=self._schedule,
                end=end_path(self.config_path("generator")),
            )
        )
        command = client_command(work / "java-client", described)
        self.java = self._process("java-client", "generator", command, index=1)
        return [*made, self.java]

    def _broker(self, index: int, servers: list[str]) -> Process:
        name = f"broker-{index}"
        command = broker_command(
            self.given.work / name,
            name=name,
            addr=self.broker_addrs[index],
            servers=servers,
            period_ms=self._arm_config().heartbeat_ms,
        )
        return self._process(name, "broker", command, index=index, ready_mark=READY_MARK)

    # -- facts for the manifest ---------------------------------------------------------------------------

    def timers(self) -> dict[str, Timer]:
        lease = Timer(
            used_ms=LEASE_MS,
            documented_ms=LEASE_MS,
            source="RocketMQ 5.3: its brokers ask for none, so the nameserver's default holds",
        )
        return {**super().timers(), "brokerLease": lease}

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "rocketmq": RELEASE}

    # -- start and end ------------------------------------------------------------------------------------

    def start(self) -> None:
        self.java.launch()
        super().start()

    def begin(self) -> int:
        self.java.wait_ready(RESTART_MAX_S)
        return super().begin()

    def _tell_generator(self, start_ns: int) -> None:
        super()._tell_generator(start_ns)
        # Schedule requests for longer than the run can last, even with the longest restarts. A client without
        # further requests would report an error and end.
        faults = sum(len(scenario.faults) for scenario in scenarios_of(self.plan, self.series))
        horizon_s = LEAD_S + 2 * run_seconds(self.plan, self.series) + faults * RESTART_MAX_S
        lines = schedule(self.plan.load, self.given.seed, start_ns, round(horizon_s * 1e9))
        write_at_once(self._schedule, (line.encode() for line in lines))

    def _check_users(self, *, load_is_over: bool) -> None:
        end = self.java.died()
        if end is not None and not (load_is_over and self.java.code == 0):
            raise ClusterError(f"the Java client: {end}\n{self.java.log_tail()}")
        super()._check_users(load_is_over=load_is_over)

    def users_are_gone(self) -> bool:
        return super().users_are_gone() and not self.java.alive

    def check_users_gone(self) -> None:
        super().check_users_gone()
        if self.java.alive:
            raise ClusterError(f"the Java client did not end\n{self.java.log_tail()}")

    def stop(self) -> None:
        self.observer.terminate()
        self.observer.join()
        # Kill the brokers, because an orderly end of RocketMQ's brokers takes ten seconds. All measurements
        # are complete.
        for process in self.brokers:
            process.kill()
        super().stop()

    def take_rows(self) -> None:
        """Convert the lines of the Java client to the rows that our own clients write, and record the rows.

        Raises:
            ClusterError: If a line cannot be read.
        """
        with self._lines.open("rb") as lines, EventLog(self.given.spool, "java-client") as log:
            try:
                for row in rows(lines, self.sides):
                    log.record(row)
            except LinesError as error:
                raise ClusterError(str(error)) from error
