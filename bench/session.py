"""The run of one cluster.

This module starts the cluster, applies the load, records events, and sorts the events into run folders.

:mod:`routekeeper.bench.cluster` manages the processes. :mod:`routekeeper.bench.director` executes the
timetable. :mod:`routekeeper.bench.chronicle` records the scenarios that are lost because the design's servers
failed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.chronicle import Chronicle, reason_of
from routekeeper.bench.cluster import RESTART_MAX_S, Cluster, Record
from routekeeper.bench.director import Director, Progress
from routekeeper.bench.events import Event
from routekeeper.bench.machine import commit, this_machine
from routekeeper.bench.plan import REST, scenarios_of
from routekeeper.bench.processes import (
    ArmLost,
    ClusterError,
    allow_connections,
    sample_machine,
    sample_process,
)
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.runfolder import Manifest, event_sums, void_folder, write_manifest
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.split import Slot, split

SAMPLE_EVERY_S = 0.2
COUNT_EVERY_S: Final = 0.5
TICK_S: Final = 0.01
#: Longest time in s for users to stop. It includes the longest request and Locust's own shutdown.
GENERATOR_END_S: Final = 20.0

MakeCluster = Callable[[SessionPlan, Record], Cluster]


class Session:
    """The runs of all scenarios in a round, with one design on one cluster.

    Attributes:
        cluster: The cluster that ``make_cluster`` made: by default, processes that this program starts.
    """

    def __init__(self, given: SessionPlan, progress: Progress, make_cluster: MakeCluster = Cluster) -> None:
        self.given = given
        self.plan = given.plan
        self._progress = progress
        given.spool.mkdir(parents=True, exist_ok=True)
        self._log = EventLog(given.spool, "harness")
        self._chronicle = Chronicle(given)
        self.cluster = make_cluster(given, self.record)
        self._start_ns = time.monotonic_ns()
        self._started_at = datetime.now(UTC)  # keep this time for the manifest, which is written at the end
        self._over = threading.Event()
        self._director: Director | None = None
        self._sample_ns = self._count_ns = 0
        self._end_ns: int | None = None
        """Instant in ns at which the load ended. None before, and if the servers failed before the load."""
        self._is_void = False
        self._network = ExitStack()
        self._network.callback(lambda: self.cluster.network.close())  # build() may set another network

    def record(self, event: Event) -> None:
        """Record an event of the harness. Any thread may call this method. Void runs need no events."""
        if not self._is_void:
            self._log.record(event)

    # -- the run ------------------------------------------------------------------------------------------

    def run(self) -> list[Path]:
        """Make the runs and return their folders. The errors are those of :meth:`measure`."""
        self.measure(lambda: None)
        return self.end()

    def measure(self, before_load: Callable[[], object]) -> None:
        """Start all processes, and wait for the end of load and faults. Call :meth:`end` afterwards.

        If a design's servers fail before the load begins, every scenario of the round counts as lost.

        Args:
            before_load: Called when all processes have started. It returns when no other work uses the
                machine.

        Raises:
            ClusterError: If the harness failed. In this case the runs are void, their manifests are in the
                folder of void attempts, and all processes have ended.
        """
        with self._void_if_it_fails():
            shutil.rmtree(self.given.work, ignore_errors=True)
            self.given.spool.mkdir(parents=True)
            allow_connections()
            self.cluster.build()
            if self._starts(before_load):
                self._drive()

    def _starts(self, before_load: Callable[[], object]) -> bool:
        """Start all processes and begin the load. Return False if the servers failed before the load."""
        try:
            self._progress(self.cluster.first_step)
            self.cluster.start()
            before_load()
            self._start_ns = self.cluster.begin()
            self._started_at = datetime.now(UTC)
        except (ArmLost, ClusterError) as error:
            reason = self._chronicle.loss(error, self.cluster.server_ends())
            if reason is None or self.cluster.lacks_port():
                raise ClusterError(str(error)) from error
            begin_ns = time.monotonic_ns()
            self._chronicle.loses_rest(begin_ns, time.monotonic_ns(), reason)
            return False
        return True

    def end(self) -> list[Path]:
        """Stop all processes and return the runs' folders.

        Raises:
            ClusterError: If the harness failed, as for :meth:`measure`.
        """
        with self._void_if_it_fails():
            self._leave()
            self.cluster.stop()
            if self._end_ns is not None:
                self.cluster.take_rows()
            self._end_all()
            return self._sort()

    @contextmanager
    def _void_if_it_fails(self) -> Iterator[None]:
        """End all processes if the code in the context fails.

        If the harness failed or was interrupted, also set the runs aside, because their results do not count.
        A full disk and an event file that cannot be read are failures of the harness, too.
        """
        try:
            yield
        except BaseException as error:
            self._is_void = True
            try:
                if isinstance(error, (ClusterError, OSError, msgspec.DecodeError, KeyboardInterrupt)):
                    self._set_aside(reason_of(error))
            finally:
                with suppress(OSError):  # a full disk refuses the last events, which a void run does not need
                    self._end_all()
            if isinstance(error, (OSError, msgspec.DecodeError)):
                raise ClusterError(reason_of(error)) from error
            raise

    def _end_all(self) -> None:
        self._over.set()
        try:
            self.cluster.kill()
            if self._director is not None:  # the director may have started a server after the first kill
                self._director.join(RESTART_MAX_S)
                self.cluster.kill()
            self._log.close()
        finally:
            self._network.close()

    # -- waiting -------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Wait for the end of the timetable, and then for the users' last operations."""
        director = self._director = Director(
            self.cluster, self._chronicle, self._progress, start_ns=self._start_ns, over=self._over
        )
        director.start()
        self._watch(lambda: not director.is_alive())
        slots = self._chronicle.slots
        end_ns = self._end_ns = slots[-1].end_ns if slots else time.monotonic_ns()
        self.cluster.say_end(end_ns)
        linger_ns = round(self.plan.linger_s * 1e9)
        self._watch(lambda: time.monotonic_ns() >= end_ns + linger_ns)
        self._rest()

    def _rest(self) -> None:
        """Run the scenario ``REST``, if the plan has it, to measure brokers and servers without clients."""
        planned = [each for each in scenarios_of(self.plan, self.given.series) if each.name == REST]
        if not planned or REST in self._chronicle.lost:
            return
        self._leave()
        self._progress(REST)
        self._chronicle.scenario = REST
        self.cluster.observe(reading=False)
        self.cluster.measure_disk(time.monotonic_ns())
        begin_ns = time.monotonic_ns()
        self.cluster.sample()
        self.cluster.count()
        end_ns = begin_ns + round(planned[0].quiet_s * self.given.series.stretch * 1e9)
        self._watch(lambda: time.monotonic_ns() >= end_ns)
        self.cluster.sample()
        self.cluster.count()
        over_ns = time.monotonic_ns()
        self.cluster.measure_disk(over_ns)
        self._chronicle.ends(begin_ns, over_ns + 1)

    def _leave(self) -> None:
        """Wait until every user of the load generator has ended."""
        if self._end_ns is None:
            return
        late_ns = self._end_ns + round(GENERATOR_END_S * 1e9)
        self._watch(lambda: time.monotonic_ns() > late_ns or self.cluster.users_are_gone())
        self.cluster.check_users_gone()

    def _watch(self, over: Callable[[], bool]) -> None:
        """Sample all processes, and check that they run, until ``over`` returns True."""
        while not over():
            now_ns = time.monotonic_ns()
            if now_ns >= self._sample_ns:
                self._sample_ns = now_ns + round(SAMPLE_EVERY_S * 1e9)
                self._sample(now_ns)
            if now_ns >= self._count_ns:
                self._count_ns = now_ns + round(COUNT_EVERY_S * 1e9)
                self.cluster.count()
            # If a server ended by itself, the present scenario of its design is recorded as lost, and the
            # server is started again. If any other process ended, the run is void.
            for end in self.cluster.revive_servers():
                self._chronicle.loses(end)
            self.cluster.check_others(load_is_over=self._end_ns is not None)
            time.sleep(TICK_S)
        if self._director is not None and self._director.failure is not None:
            raise ClusterError(str(self._director.failure)) from self._director.failure

    def _sample(self, now_ns: int) -> None:
        self.cluster.sample()
        self.record(sample_machine())
        own = sample_process(os.getpid(), role="harness", index=0)
        if own is not None:
            self.record(own)
        self._log.flush_if_due(now_ns)

    # -- run folders --------------------------------------------------------------------------------------

    def _sort(self) -> list[Path]:
        """Distribute the recorded events to the run folders, write each manifest, and return the folders."""
        slots = self._chronicle.slots
        try:
            for slot in slots:
                shutil.rmtree(slot.folder, ignore_errors=True)
                slot.folder.mkdir(parents=True)
            split(self.given.spool, slots)
            for slot in slots:
                self.write_manifest(slot)
            self._keep_logs()
        except BaseException:
            for slot in slots:  # an incomplete run must not look like a complete one
                shutil.rmtree(slot.folder, ignore_errors=True)
            raise
        return [slot.folder for slot in slots]

    def write_manifest(self, slot: Slot) -> None:
        """Write the manifest of a run into the folder with its events."""
        done = msgspec.structs.replace(
            self._manifest(slot.scenario, slot.begin_ns, slot.end_ns),
            ended_ns=time.monotonic_ns(),
            lost=self._chronicle.lost.get(slot.scenario),
            files=event_sums(slot.folder),
        )
        write_manifest(slot.folder, done)

    def _set_aside(self, reason: str) -> None:
        """Write a manifest with the reason for each scenario. If the disk is full, there is none."""
        if not hasattr(self.cluster, "servers"):
            return  # no run had begun
        with suppress(OSError):
            for scenario in self._chronicle.scenarios:
                manifest = msgspec.structs.replace(
                    self._manifest(scenario, 0, 0), void=reason, ended_ns=time.monotonic_ns()
                )
                aside = void_folder(self.given.out, manifest)
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
                write_manifest(aside, manifest)

    def _keep_logs(self) -> None:
        """Keep the logs of the processes, and delete their data folders."""
        for path in self.given.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    def _manifest(self, scenario: str, begin_ns: int, end_ns: int) -> Manifest:
        given, cluster, load = self.given, self.cluster, self.plan.load
        return Manifest(
            arm=given.arm,
            series=given.series.name,
            scenario=scenario,
            block=given.block,
            order_in_block=given.order_in_block,
            attempt=given.attempt,
            session=given.name,
            profile=given.profile,
            seed=given.seed,
            durability=cluster.servers.durability,
            servers=self.plan.servers,
            brokers=len(cluster.broker_indexes()),
            sim_brokers=load.sim_brokers,
            clients=2 * load.send_clients + load.consumers,
            divisor=given.series.timers.divisor,
            timers=cluster.timers(),
            watches=cluster.watches,
            links=cluster.links,
            workload=msgspec.to_builtins(msgspec.structs.replace(self.plan, lines=[])),
            lines=self.plan.lines,
            machine=this_machine(),
            versions=cluster.versions(),
            commit=commit(),
            command=list(given.command),
            started_at=self._started_at.isoformat(timespec="seconds"),
            started_ns=self._start_ns,
            measure_begin_ns=begin_ns,
            measure_end_ns=end_ns,
        )
