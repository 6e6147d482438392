"""Execution of one run's timetable: scenario by scenario, fault by fault, at exact instants.

:mod:`routekeeper.bench.plan` decides the times of faults, and :mod:`routekeeper.bench.cuts` decides their
targets. This module causes the faults.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.chance import stream
from routekeeper.bench.chronicle import Chronicle
from routekeeper.bench.cluster import RESTART_MAX_S, Cluster, making_topics
from routekeeper.bench.cuts import directions, struck_server
from routekeeper.bench.events import Fault
from routekeeper.bench.generator_config import Beginning, new_topic
from routekeeper.bench.links import Direction
from routekeeper.bench.plan import (
    CASES,
    COSTS,
    DEVICE,
    NEW_TOPIC,
    REST,
    Kind,
    PlannedFault,
    after_seconds,
    down_seconds,
    drawn_in_round,
    quiet_seconds,
    scenarios_of,
    strikes_broker,
    strikes_every_server,
)
from routekeeper.bench.processes import ArmLost, ClusterError, Process
from routekeeper.remoting.codes import DEFAULT_TOPIC

#: Time in ns between the announcement of a new topic's name to producers and the topic's creation.
SIGNAL_NS: Final = 200_000_000

#: Longest time in s for which the harness waits until every server reports its role and there is a leader.
ROLES_MAX_S: Final = 15.0

#: Pause in ns before the harness measures idle servers. The pause begins when every server lists every
#: broker.
SETTLE_NS: Final = 3_000_000_000

Progress = Callable[[str], None]


class Director(threading.Thread):
    """A thread that executes one run's timetable. Another thread supervises the processes.

    Attributes:
        failure: The error that stopped the harness. None if the timetable was executed, or if the servers of
            the measured design failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        chronicle: Chronicle,
        progress: Progress,
        *,
        start_ns: int,
        over: threading.Event,
    ) -> None:
        """Prepare the timetable.

        Args:
            start_ns: Instant at which the load begins.
            over: An event that another thread sets to stop the thread of this object.
        """
        super().__init__(daemon=True)
        self.given = cluster.given
        self.plan, self.series = cluster.plan, cluster.series
        self.failure: Exception | None = None
        self._cluster = cluster
        self._chronicle = chronicle
        self._progress = progress
        self._start_ns = start_ns
        self._over = over
        self._jitter = stream(self.given.seed, "jitter of faults")

    def run(self) -> None:
        begin_ns = self._start_ns
        try:
            self._sleep_until(self._start_ns + round(self.plan.warmup_s * 1e9))
            for place, scenario in enumerate(scenarios_of(self.plan, self.series)):
                if scenario.name == REST:
                    break  # another part of the harness runs this last scenario after the end of the load
                self._chronicle.scenario = scenario.name
                if place == 0:
                    # Wait for the simulated brokers. A generator without enough CPU registers them late.
                    # Without the wait, the report would blame the servers for the missing routes.
                    self._cluster.await_brokers()
                    if scenario.name in DEVICE:
                        self._sleep_until(time.monotonic_ns() + SETTLE_NS)
                # Stop the observer while costs are measured. It sends 50 queries per second to each server,
                # and these queries cost more CPU time than idle brokers.
                of_costs = scenario.name in COSTS
                self._cluster.observe(reading=not of_costs)
                if of_costs:
                    self._cluster.measure_disk(time.monotonic_ns())
                begin_ns = at_ns = time.monotonic_ns()
                if scenario.quiet_s:
                    self._progress(scenario.name)
                    at_ns += round(scenario.quiet_s * self.series.stretch * 1e9)
                    self._sleep_until(at_ns)
                if of_costs:
                    # Give the sample a time 1 ns before the end, so that it belongs to this scenario.
                    self._cluster.measure_disk(at_ns - 1)
                for n, fault in enumerate(scenario.faults):
                    self._progress(f"{scenario.name}: {fault.case}")
                    strike = self._bring_topic if scenario.name == NEW_TOPIC else self._strike
                    at_ns = strike(scenario.name, n, fault, at_ns)
                self._chronicle.ends(begin_ns, at_ns)
        except (ArmLost, ClusterError) as error:
            reason = self._chronicle.loss(error, self._cluster.server_ends())
            if reason is None or self._over.is_set():
                self.failure = error
            else:
                self._chronicle.loses_rest(begin_ns, time.monotonic_ns(), reason)
        # Keep the error, because this thread ends here. The main thread reads the error and voids the run.
        except Exception as error:
            self.failure = error

    def _sleep_until(self, at_ns: int) -> None:
        """Sleep until an instant.

        Raises:
            ClusterError: If the run is over before that instant.
        """
        if self._over.wait(max(0.0, (at_ns - time.monotonic_ns()) / 1e9)):
            raise ClusterError("the run was given up")

    def _drawn(self) -> float:
        """Return the random number that sets the quiet time before the next fault.

        All designs of a round get the same number.
        """
        return drawn_in_round(self._jitter.random(), block=self.given.block, blocks=self.series.blocks)

    # -- new topics ---------------------------------------------------------------------------------------

    def _bring_topic(self, scenario: str, n: int, fault: PlannedFault, from_ns: int) -> int:
        """Create a topic while producers try to send to it.

        Returns:
            The end of the observation in ns.
        """
        kind = CASES[scenario][fault.case]
        if kind == "first-send":
            self._let_brokers_make_topics()
            from_ns = time.monotonic_ns()
        topic = new_topic(fault.case)
        quiet_s = quiet_seconds(fault, self.series, self._drawn())
        begin_ns = from_ns + max(round(quiet_s * 1e9), SIGNAL_NS)
        until_ns = begin_ns + round((fault.down_s + fault.after_s) * self.series.stretch * 1e9)
        self._sleep_until(begin_ns - SIGNAL_NS)
        self._cluster.say_topic(topic, Beginning(begin_ns=begin_ns, until_ns=until_ns))
        self._sleep_until(begin_ns)
        if kind == "update-topic":
            self._cluster.create_topics([topic])
        self._cluster.record(
            Fault(
                n=n,
                kind=kind,
                case=fault.case,
                targets=[],  # this case hits no server
                from_ns=from_ns,
                begin_ns=begin_ns,
                until_ns=until_ns,
            )
        )
        self._sleep_until(until_ns)
        return until_ns

    def _let_brokers_make_topics(self) -> None:
        """Restart the brokers one by one with a setting that lets them create missing topics."""
        brokers = self._cluster.brokers
        for process in brokers:
            process.command = making_topics(process.command)
            self._cluster.truth(process.index, "down")
            process.terminate()
            process.join()
            process.launch()
            self._await_service(process)
        self._cluster.await_routes([DEFAULT_TOPIC], brokers)

    # -- faults -------------------------------------------------------------------------------------------

    def _strike(self, scenario: str, n: int, fault: PlannedFault, from_ns: int) -> int:
        """Choose a target, cause one fault, repair it, and wait until the repair is complete.

        Returns:
            The end of the fault's window in ns. The window is the time in which the fault's effects are
            measured. It ends a fixed time after the complete repair, even if a restart takes long.
        """
        cluster = self._cluster
        kind = CASES[scenario][fault.case]
        chance = stream(self.given.seed, f"targets of {scenario} {fault.case}")
        roles = self._roles()
        servers = self._struck_servers(scenario, fault.case, chance, roles)
        broker = cluster.brokers[chance.randrange(len(cluster.brokers))]
        takes_broker = strikes_broker(scenario, fault.case)
        processes = [broker] if takes_broker else servers
        role = "broker" if takes_broker else roles[servers[0].index]
        cut = directions(
            kind,
            fault.case,
            servers=cluster.started.names,
            target=servers[0].index,
            brokers=[process.name for process in cluster.brokers],
            broker=broker.index if takes_broker or fault.case == "broker-nameserver" else None,
        )
        quiet_s = quiet_seconds(fault, self.series, self._drawn())
        self._sleep_until(from_ns + round(quiet_s * 1e9))
        begin_ns = time.monotonic_ns()
        self._go_down(kind, processes, cut, begin_ns)
        self._sleep_until(begin_ns + round(down_seconds(scenario, fault, self.series) * 1e9))
        healed_ns = time.monotonic_ns()
        end_ns = self._come_back(kind, processes, cut)
        after_s = after_seconds(scenario, fault, self.series, self.plan.links)
        until_ns = end_ns + round(after_s * 1e9)
        names = [process.name for process in processes]
        if fault.case == "broker-nameserver":
            names.append(broker.name)
        cluster.record(
            Fault(
                n=n,
                kind=kind,
                case=fault.case,
                targets=names,
                role=role,
                cut=[list(direction) for direction in cut] or None,
                from_ns=from_ns,
                begin_ns=begin_ns,
                healed_ns=healed_ns,
                end_ns=end_ns,
                until_ns=until_ns,
            )
        )
        self._sleep_until(until_ns)
        return until_ns

    def _struck_servers(
        self, scenario: str, case: str, chance: random.Random, roles: list[str]
    ) -> list[Process]:
        everybody = self._cluster.server_processes
        drawn = chance.randrange(len(everybody))
        if strikes_every_server(case):
            return list(everybody)
        leader = roles.index("leader") if "leader" in roles else None
        struck = struck_server(scenario, case, count=len(everybody), drawn=drawn, leader=leader)
        return [everybody[struck]]

    def _roles(self) -> list[str]:
        """Return the roles of all servers, after each server has reported its role and there is a leader.

        The wait for a leader is only for designs with a leader. On a busy machine, the servers may still be
        electing a leader. Without this wait, a fault that must hit the leader would hit some other server.
        After 15 s, return the roles as they are.
        """
        servers = self._cluster.servers
        deadline = time.monotonic() + ROLES_MAX_S
        while True:
            roles = [servers.role(index) for index in range(len(servers.clients))]
            is_known = "unknown" not in roles and (
                "leader" in roles or set(roles) <= {"independent", "standalone"}
            )
            if is_known or time.monotonic() > deadline or self._over.wait(0.05):
                return roles

    def _go_down(self, kind: Kind, processes: list[Process], cut: list[Direction], begin_ns: int) -> None:
        brokers = [process.index for process in processes if process.role == "broker"]
        match kind:
            case "stop":
                for process in processes:
                    process.terminate()
            case "kill" | "empty":
                for process in processes:
                    process.strike()
            case "freeze":
                for process in processes:
                    process.signal(signal.SIGSTOP)
            case "cable" | "oneway" | "partition":
                self._cluster.network.cut(cut)
            case "rolling":
                return  # _come_back restarts the servers one by one
            case "update-topic" | "first-send":
                raise AssertionError("these strike nobody")
        for broker in brokers:
            self._cluster.truth(broker, "cut" if cut else "down", begin_ns)

    def _come_back(self, kind: Kind, processes: list[Process], cut: list[Direction]) -> int:
        """Repair a fault, and return the instant in ns at which the repair was complete."""
        cluster = self._cluster
        if cut:
            done_ns = cluster.network.heal()
            for process in processes:
                if process.role == "broker":
                    cluster.truth(process.index, "healed", done_ns)
            return done_ns
        if kind == "freeze":
            for process in processes:
                process.signal(signal.SIGCONT)
                if process.role == "broker":
                    cluster.truth(process.index, "up")
            return time.monotonic_ns()
        if kind == "rolling":
            for process in processes:
                process.terminate()
                process.join()
                process.launch()
                self._await_service(process)
                # Continue only when all servers are ready, as an operator would do. Otherwise two servers
                # would be down at the same time.
                self._await_server(cluster.servers.ready, f"{process.name} was not ready")
            return time.monotonic_ns()
        for process in processes:
            process.join()
            if kind == "empty":
                cluster.started.empty_disk(process.index)
            process.launch()
        for process in processes:
            self._await_service(process)
        return time.monotonic_ns()

    def _await_service(self, process: Process) -> None:
        """Wait until a restarted process serves."""
        if process.role == "broker":
            process.wait_ready(RESTART_MAX_S)
            self._cluster.truth(process.index, "up")
        else:
            started = self._cluster.started
            self._await_server(lambda: started.serves(process), f"{process.name} did not serve")

    def _await_server(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` holds or the run is over.

        The end of a server does not stop the wait, because the supervising thread restarts the server.

        Raises:
            ArmLost: If ``condition`` does not hold within RESTART_MAX_S (60 s).
        """
        wait_until(lambda: self._over.is_set() or condition(), what, [], RESTART_MAX_S, late=ArmLost)
