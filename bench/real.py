"""A run with RocketMQ's own brokers and Java client in place of ours, before our nameservers.

It shows whether the comparison's brokers and clients behave like those of an installation. Simulated brokers,
new clients and whoever watches the nameservers are the same programs as in every other run.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from bench.arms.apache import RELEASE
from bench.arms.apache_brokers import LEASE_MS, READY_MARK, broker_addr, broker_command, client_command
from bench.events import EventLog
from bench.files import write_at_once
from bench.generator_config import RETRIES, end_path
from bench.java_client import LinesError, rows, schedule, settings, without_java
from bench.plan import Load, run_seconds, scenarios_of
from bench.processes import ClusterError, Process
from bench.runfolder import Manifest, Timer
from bench.session import GENERATOR_END_S, LEAD_S, RESTART_MAX_S, Session


class RealSession(Session):
    """Makes one run of every scenario of a block; brokers, producers and look-ups are RocketMQ's own.

    Attributes:
        java: The Java client.
    """

    java: Process

    # -- what there is ------------------------------------------------------------------------------------

    def _broker_addr(self, name: str) -> str:
        return broker_addr()

    @property
    def _generator_load(self) -> Load:
        return without_java(self.plan.load)

    def _load_processes(self) -> list[Process]:
        made = super()._load_processes()
        self._lines = self._work / "java-client.jsonl"
        self._schedule = self._work / "java-client.schedule"
        described = self._work / "java-client.properties"
        arm = self._arm_config()
        described.write_text(
            settings(
                self.plan.load,
                self._sides,
                retries=RETRIES,
                refresh_ms=arm.refresh_ms,
                heartbeat_ms=arm.heartbeat_ms,
                linger_ns=round(self.plan.linger_s * 1e9),
                output=self._lines,
                schedule=self._schedule,
                end=end_path(Path(self._path("generator"))),
            )
        )
        self.java = Process(
            role="generator",
            index=1,
            command=client_command(self._work / "java-client", described),
            log=self._work / "java-client.log",
            record=self._record,
        )
        return [*made, self.java]

    def _broker(self, index: int, servers: list[str]) -> Process:
        name = f"broker-{index}"
        return Process(
            role="broker",
            index=index,
            command=broker_command(
                self._work / name,
                name=name,
                addr=self._broker_addrs[index],
                servers=servers,
                period_ms=self._arm_config().heartbeat_ms,
            ),
            log=self._work / f"{name}.log",
            record=self._record,
            ready_mark=READY_MARK,
        )

    # -- start and end ------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.java.launch()
        super()._start()

    def _begin(self) -> None:
        self.java.wait_ready(RESTART_MAX_S)
        super()._begin()

    def _tell_generator(self) -> None:
        super()._tell_generator()
        # Far enough for every restart to take as long as it may; else the client would say so and end.
        faults = sum(len(scenario.faults) for scenario in scenarios_of(self.plan, self.series))
        horizon_s = LEAD_S + 2 * run_seconds(self.plan, self.series) + faults * RESTART_MAX_S
        lines = schedule(self.plan.load, self.given.seed, self._start_ns, round(horizon_s * 1e9))
        write_at_once(self._schedule, (line.encode() for line in lines))

    def _look_after(self) -> None:
        super()._look_after()
        end = self.java.died()
        if end is not None and not (self._end_ns is not None and self.java.code == 0):
            raise ClusterError(f"the Java client: {end}\n{self.java.log_tail()}")

    def _leave(self) -> None:
        super()._leave()
        if self._end_ns is None:
            return
        late_ns = self._end_ns + round(GENERATOR_END_S * 1e9)
        self._watch(lambda: time.monotonic_ns() > late_ns or not self.java.alive, may_leave=True)
        if self.java.alive:
            raise ClusterError(f"the Java client did not end\n{self.java.log_tail()}")

    def _stop(self) -> None:
        self._observer.terminate()
        self._observer.join()
        for process in self._brokers:  # nothing is measured any more, and their way out takes ten seconds
            process.kill()
        super()._stop()
        if self._end_ns is not None:
            self._take_rows()

    def _take_rows(self) -> None:
        """Make the ordinary rows of what the Java client wrote.

        Raises:
            ClusterError: If it wrote something else.
        """
        with self._lines.open("rb") as lines, EventLog(self._spool, "java-client") as log:
            try:
                for row in rows(lines, self._sides):
                    log.record(row)
            except LinesError as error:
                raise ClusterError(str(error)) from error

    def _manifest(self, scenario: str, begin_ns: int, end_ns: int) -> Manifest:
        made = super()._manifest(scenario, begin_ns, end_ns)
        lease = Timer(
            used_ms=LEASE_MS,
            documented_ms=LEASE_MS,
            source="RocketMQ 5.3: its brokers ask for none, so the nameserver's default holds",
        )
        return msgspec.structs.replace(
            made,
            timers={**made.timers, "brokerLease": lease},
            versions={**made.versions, "rocketmq": RELEASE},
        )
