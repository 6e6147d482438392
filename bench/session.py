"""One cluster's life: servers of one arm, brokers, load, faults by a timetable, everything recorded."""

from __future__ import annotations

import math
import os
import platform
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import psutil

from bench.arms.interface import CLUSTER, Arm, ArmConfig, ArmKind, Side
from bench.arms.servers import Servers, StartedServers, server_names, servers_of, wait_until
from bench.chance import stream
from bench.cuts import SIDES, directions
from bench.events import Event, EventLog, Fact, Fault, LinkSample, Role, Truth
from bench.files import write_at_once
from bench.generator_config import (
    Beginning,
    GeneratorConfig,
    begin_path,
    end_path,
    new_topic,
    new_topics,
    observed_topics,
    topic_name,
)
from bench.links import Direction
from bench.machine import commit, cpu_name, versions
from bench.network import Network, ProxyNetwork
from bench.observer import ObserverConfig
from bench.plan import (
    CASES,
    NEW_TOPIC,
    Kind,
    Load,
    Plan,
    PlannedFault,
    SeriesPlan,
    after_seconds,
    down_seconds,
    scenarios_of,
    strikes_broker,
)
from bench.ports import free_ports
from bench.processes import (
    ArmLost,
    ClusterError,
    Process,
    allow_connections,
    sample_machine,
    sample_process,
)
from bench.runfolder import Arm as ArmName
from bench.runfolder import Machine, Manifest, run_folder, void_folder, write_manifest
from bench.split import Slot, split
from bench.timers import DOCUMENTED_MS
from client.blocking import Client
from client.config import ClientConfig
from remoting.codes import DEFAULT_TOPIC
from remoting.errors import RemotingError
from remoting.route import TopicConfig

#: From the moment everything is ready until the warm-up begins: users are made meanwhile.
LEAD_S: Final = 0.4
SAMPLE_EVERY_S = 0.2
#: Pause between two rounds of readings of what servers list, s.
OBSERVE_EVERY_S = 0.02
COUNT_EVERY_S: Final = 0.5
TICK_S: Final = 0.01
#: A server that was started and does not serve within this time has lost for its arm, s.
RESTART_MAX_S: Final = 60.0
#: After the last user may go: the longest request, and Locust's way out.
GENERATOR_END_S: Final = 20.0

#: Ahead of a new topic's beginning its producers are told of it, ns.
SIGNAL_NS: Final = 200_000_000
_NO_NEW_TOPICS: Final = "autoCreateTopicEnable=false"
_NEW_TOPICS: Final = "autoCreateTopicEnable=true"
#: What a server says whose port somebody else has: ports are the harness's choice.
_PORT_TAKEN: Final = "Address already in use"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """Which part of a comparison a cluster's life is."""

    out: Path
    plan: Plan
    series: SeriesPlan
    arm: ArmName
    block: int
    order_in_block: int
    attempt: int
    profile: str
    seed: int
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.series.name}-{self.block}-{self.arm}-{self.attempt}"

    def folder(self, scenario: str) -> Path:
        return run_folder(
            self.out, series=self.series.name, scenario=scenario, block=self.block, arm=self.arm
        )


class Session:
    """Makes one run of every scenario of a block, with one arm."""

    def __init__(self, given: SessionPlan, progress: Progress) -> None:
        self.given = given
        self.plan, self.series = given.plan, given.series
        self._progress = progress
        self._jitter = stream(given.seed, "jitter of faults")
        self._work = given.out / "work" / given.name
        self._spool = self._work / "events"
        self._spool.mkdir(parents=True, exist_ok=True)
        self._recording = threading.Lock()
        self._log = EventLog(self._spool, "harness")
        self._slots: list[Slot] = []
        self._scenario = scenarios_of(self.plan, self.series)[0].name  # the warm-up belongs to the first one
        self._start_ns = time.monotonic_ns()
        self._over = threading.Event()
        self._director: threading.Thread | None = None
        self._sample_ns = self._count_ns = 0
        self._end_ns: int | None = None
        self._lost: dict[str, str] = {}
        self._failures: list[BaseException] = []
        self._helpers: list[Process] = []
        self._network: Network = ProxyNetwork(self._work, self._record)
        self._servers: Servers
        self._started: StartedServers
        """The same, where their processes are ours."""

    # -- the run ------------------------------------------------------------------------------------------

    def run(self) -> list[Path]:
        """Make the runs and return their folders; see :meth:`measure`."""
        self.measure(lambda: None)
        return self.end()

    def measure(self, before_load: Callable[[], object]) -> None:
        """Start everything, let the load and the faults go by; what runs is ended by :meth:`end`.

        Args:
            before_load: Called when everything has started; returns when nothing else needs the machine.

        An arm whose servers do not get that far has lost every scenario, without a load.

        Raises:
            ClusterError: If the harness failed: the runs are void, and their manifests lie in the folder of
                void attempts. Nothing is left running.
        """
        shutil.rmtree(self._work, ignore_errors=True)
        self._spool.mkdir(parents=True)
        allow_connections()
        try:
            self._build()
            if self._starts(before_load):
                self._drive()
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, OSError):
                raise ClusterError(_reason(error)) from error
            raise

    def _starts(self, before_load: Callable[[], object]) -> bool:
        """Start everything and let the load go; return whether the arm got so far."""
        try:
            self._start()
            before_load()
            self._begin()
        except (ArmLost, ClusterError) as error:
            reason = self._loss(error)
            if reason is None or any(map(_port_is_taken, self._started.processes)):
                raise ClusterError(str(error)) from error
            self._lose_rest(time.monotonic_ns(), reason)
            return False
        return True

    def _loss(self, error: ArmLost | ClusterError) -> str | None:
        """Say what the arm has lost by, if a server of its own kept the harness from going on."""
        if isinstance(error, ArmLost):
            return _reason(error)
        ends = [process.died() for process in self._cluster() if process.serves]
        return self._lost.get(self._scenario) or next((end for end in ends if end is not None), None)

    def _lose_rest(self, begin_ns: int, reason: str) -> None:
        """Let the arm lose the scenario that began then, and those that were to follow."""
        over = {slot.scenario for slot in self._slots}
        for scenario in scenarios_of(self.plan, self.series):
            if scenario.name in over:
                continue
            end_ns = time.monotonic_ns() if scenario.name == self._scenario else begin_ns
            self._lost.setdefault(scenario.name, reason)
            self._slots.append(self._slot(scenario.name, begin_ns, end_ns))
            begin_ns = end_ns

    def _slot(self, scenario: str, begin_ns: int, end_ns: int) -> Slot:
        folder = self.given.folder(scenario)
        return Slot(scenario=scenario, folder=folder, begin_ns=begin_ns, end_ns=end_ns)

    def end(self) -> list[Path]:
        """Stop everything and return the runs' folders.

        Raises:
            ClusterError: As for :meth:`measure`.
        """
        try:
            self._leave()
            self._stop()
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, OSError):
                raise ClusterError(_reason(error)) from error
            raise
        self._end_all()
        return self._sort()

    def _give_up(self, error: BaseException) -> None:
        try:
            if isinstance(error, (ClusterError, OSError, KeyboardInterrupt)):
                self._set_aside(_reason(error))
        finally:
            self._end_all()

    def _end_all(self) -> None:
        self._over.set()
        try:
            for process in [*self._helpers, *self._cluster()]:
                process.kill()
            if self._director is not None:  # it may have been starting what it had struck
                self._director.join(RESTART_MAX_S)
                for process in self._cluster():
                    process.kill()
            self._log.close()
        finally:
            self._network.close()

    def _sort(self) -> list[Path]:
        """Cut what was recorded into runs, and say of each what it is."""
        for slot in self._slots:
            shutil.rmtree(slot.folder, ignore_errors=True)
            slot.folder.mkdir(parents=True)
        split(self._spool, self._slots)
        for slot in self._slots:
            done = msgspec.structs.replace(
                self._manifest(slot.scenario, slot.begin_ns, slot.end_ns),
                ended_ns=time.monotonic_ns(),
                lost=self._lost.get(slot.scenario),
            )
            write_manifest(slot.folder, done)
        self._keep_logs()
        return [slot.folder for slot in self._slots]

    def _set_aside(self, reason: str) -> None:
        if not hasattr(self, "_servers"):
            return  # there was no run yet
        for scenario in scenarios_of(self.plan, self.series):
            manifest = msgspec.structs.replace(
                self._manifest(scenario.name, 0, 0), void=reason, ended_ns=time.monotonic_ns()
            )
            aside = void_folder(self.given.out, manifest)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            write_manifest(aside, manifest)

    def _keep_logs(self) -> None:
        """What servers stored is not kept, what they said is."""
        for path in self._work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    # -- what there is ------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        with self._recording:
            self._log.record(event)

    def _truth(self, broker: int, what: Fact, t_ns: int | None = None) -> None:
        self._record(
            Truth(
                subject="broker", broker=broker, what=what, t_ns=time.monotonic_ns() if t_ns is None else t_ns
            )
        )

    def _build(self) -> None:
        brokers = self.plan.brokers
        names = [f"broker-{index}" for index in range(brokers)]
        if self.plan.links == "kernel":
            from bench.kernel import KernelNetwork  # only root has it

            self._network = KernelNetwork([*server_names(self.plan.servers), *names])
        network = self._network
        servers = self._started = servers_of(
            self.given.arm,
            self._work,
            self.series.timers,
            self._record,
            count=self.plan.servers,
            durability=self.series.durability or self.plan.durability,
            network=network,
        )
        self._servers = servers
        self._broker_addrs = [self._broker_addr(name) for name in names]

        def dialled(dialler: str) -> list[str]:
            return [
                network.dialled(dialler, name, to)
                for name, to in zip(servers.names, servers.clients, strict=True)
            ]

        self._sides = [
            Side(
                name=side,
                servers=dialled(side),
                http=servers.http,
                brokers={
                    addr: network.dialled(side, name, addr)
                    for name, addr in zip(names, self._broker_addrs, strict=True)
                },
            )
            for side in SIDES
        ]
        self._brokers = [self._broker(index, dialled(name)) for index, name in enumerate(names)]
        self._carriers = network.carriers()
        self._helpers = [*self._carriers, *self._load_processes()]

    def _broker_addr(self, name: str) -> str:
        return f"{self._network.host(name)}:{free_ports(1)[0]}"

    @property
    def _generator_load(self) -> Load:
        """What the generator does of the plan's load."""
        return self.plan.load

    def _load_processes(self) -> list[Process]:
        """Make observer and generator, not yet started."""
        self._observer = self._helper("observer", "prober", ["-m", "bench.observer", self._path("observer")])
        locustfile = Path(__file__).with_name("generator.py")
        load = self._generator_load
        users = str(load.all_users)
        options = ["-m", "locust", "--headless", "--only-summary", "--loglevel", "WARNING"]
        options += ["-f", str(locustfile), "--users", users, "--spawn-rate", users]
        options += ["--stop-timeout", str(math.ceil(load.timeout_s)), "--exit-code-on-error", "0"]
        options += ["--bench-config", self._path("generator")]
        self._generator = self._helper("generator", "generator", options)
        self._generator.command = self._network.command(SIDES[0], self._generator.command)
        return [self._observer, self._generator]

    def _path(self, name: str) -> str:
        return str(self._work / f"{name}.json")

    def _helper(self, name: str, role: Role, options: list[str]) -> Process:
        return Process(
            role=role,
            index=0,
            command=[sys.executable, *options],
            log=self._work / f"{name}.log",
            record=self._record,
        )

    def _broker(self, index: int, servers: list[str]) -> Process:
        divisor = self.series.timers.divisor
        program = "bench.arms.zookeeper_broker" if self._kind == "zookeeper" else "broker"
        command = [sys.executable, "-m", program, "-n", ";".join(servers)]
        command += ["--set", f"timerDivisor={divisor:g}", "--set", _NO_NEW_TOPICS]
        name, addr = f"broker-{index}", self._broker_addrs[index]
        command += ["--listen", f"{self._network.bind}:{addr.rpartition(':')[2]}", "--advertise", addr]
        command += ["--name", name, "--cluster", CLUSTER, "--store", str(self._work / name)]
        return Process(
            role="broker",
            index=index,
            command=self._network.command(name, command),
            log=self._work / f"{name}.log",
            record=self._record,
        )

    @property
    def _kind(self) -> ArmKind:
        return "zookeeper" if self.given.arm == "zookeeper" else "remoting"

    def _cluster(self) -> list[Process]:
        found: list[Process] = []
        if hasattr(self, "_started"):
            found += self._started.processes
        if hasattr(self, "_brokers"):
            found += self._brokers
        return found

    def _arm_config(self) -> ArmConfig:
        timers = self.series.timers
        divisor = timers.divisor
        return ArmConfig(
            kind=self._kind,
            sides=self._sides,
            lease_ms=timers.session_ms() if self._kind == "zookeeper" else timers.lease_ms(),
            refresh_ms=round(DOCUMENTED_MS["pollNameServerInterval"] / divisor),
            heartbeat_ms=round(DOCUMENTED_MS["registerNameServerPeriod"] / divisor),
            divisor=divisor,
            timeout_s=self.plan.load.timeout_s,
            watches=self.series.watches,
        )

    # -- start and end ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start everything; returns when every server lists every broker and the load can begin."""
        self._progress("starting")
        for process in self._carriers:
            process.launch()
        self._started.start()
        for process in self._carriers:
            process.wait_ready()
        for process in self._brokers:
            process.launch()
        # Whoever loads much comes after those that the others wait for, and is ready when these have met.
        self._generator.launch()
        self._launch_observer()
        wait_until(
            self._servers.ready,
            "servers are not ready",
            self._started.processes,
            RESTART_MAX_S,
            late=ArmLost,
        )
        for index, process in enumerate(self._brokers):
            process.wait_ready()
            self._truth(index, "up")
        self._create_topics(self._topics())
        self._await_routes(self._topics(), self._cluster())

    def _topics(self) -> list[str]:
        """Return the topics that are there from the start."""
        return [topic_name(number) for number in range(self.plan.load.topics)]

    def _broker_indexes(self) -> list[int]:
        """Return the numbers of the real brokers, in the order of their addresses."""
        return list(range(self.plan.brokers))

    def _await_routes(self, topics: Sequence[str], watched: list[Process]) -> None:
        """Wait until every server lists every broker for each of these topics.

        Args:
            watched: Whose end ends the wait; servers are started again by whoever watches over the run.
        """
        direct = self._arm_config()
        arm = _threaded_arm(direct)
        try:
            everybody = self._broker_indexes()
            sessions = [arm.client(Side(name="harness", servers=[addr]), 0) for addr in self._servers.clients]
            for session in sessions:
                for topic in topics:
                    wait_until(
                        lambda session=session, topic=topic: (  # type: ignore[misc]
                            session.look_up(topic).brokers == everybody
                        ),
                        "not every server lists every broker",
                        watched,
                    )
        finally:
            for session in sessions:
                session.close()

    def _create_topics(self, topics: Sequence[str]) -> None:
        """Create topics at each broker, as an administrator does who waits as long as a start may take."""
        client = Client(ClientConfig(nameservers=tuple(self._servers.clients), call_timeout_s=RESTART_MAX_S))
        try:
            for topic in topics:
                config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
                for addr in self._broker_addrs:
                    client.run(client.admin.create_topic(addr, config))
        except RemotingError as error:
            raise ClusterError(f"topics cannot be created: {error}") from error
        finally:
            client.close()

    def _begin(self) -> None:
        """Let the load go."""
        self._generator.wait_ready()
        self._observer.wait_ready()
        self._start_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        self._tell_generator()

    def _launch_observer(self) -> None:
        arm = self._arm_config()
        Path(self._path("observer")).write_bytes(
            msgspec.json.encode(
                ObserverConfig(
                    kind=arm.kind,
                    servers=self._servers.clients,
                    topics=observed_topics(self.plan.load) + new_topics(self.plan, self.series),
                    folder=str(self._spool),
                    session_ms=arm.lease_ms,
                    period_s=OBSERVE_EVERY_S,
                )
            )
        )
        self._observer.launch()

    def _tell_generator(self) -> None:
        config = GeneratorConfig(
            folder=str(self._spool),
            arm=self._arm_config(),
            load=self._generator_load,
            brokers=self._broker_indexes(),
            seed=self.given.seed,
            start_ns=self._start_ns,
            new_topics=new_topics(self.plan, self.series),
            linger_ns=round(self.plan.linger_s * 1e9),
        )
        write_at_once(Path(self._path("generator")), [msgspec.json.encode(config)])

    def _manifest(self, scenario: str, begin_ns: int, end_ns: int) -> Manifest:
        load = self.plan.load
        return Manifest(
            arm=self.given.arm,
            series=self.series.name,
            scenario=scenario,
            block=self.given.block,
            order_in_block=self.given.order_in_block,
            attempt=self.given.attempt,
            session=self.given.name,
            profile=self.given.profile,
            seed=self.given.seed,
            durability=self._servers.durability,
            servers=self.plan.servers,
            brokers=self.plan.brokers,
            sim_brokers=load.sim_brokers,
            clients=2 * load.send_clients + load.consumers,
            divisor=self.series.timers.divisor,
            timers=self._servers.timers(),
            watches=self.series.watches and self._kind == "zookeeper",
            links=self.plan.links,
            workload=msgspec.to_builtins(msgspec.structs.replace(self.plan, lines=[])),
            lines=self.plan.lines,
            machine=Machine(
                cpu=cpu_name(),
                cores=len(os.sched_getaffinity(0)),
                memory_bytes=psutil.virtual_memory().total,
                system=f"{platform.system()} {platform.release()}",
            ),
            versions=versions(),
            commit=commit(),
            command=list(self.given.command),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            started_ns=self._start_ns,
            measure_begin_ns=begin_ns,
            measure_end_ns=end_ns,
        )

    def _stop(self) -> None:
        """Stop everything, brokers first as an operator would."""
        groups = [[self._observer], self._brokers, self._started.processes, self._carriers]
        for group in groups:
            for process in group:
                process.terminate()
            for process in group:
                process.join()

    # -- time goes by -------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Let the timetable go by in a thread of its own, and users stay for as long as they linger."""
        director = self._director = threading.Thread(target=self._direct, daemon=True)
        director.start()
        self._watch(lambda: not director.is_alive())
        end_ns = self._end_ns = self._slots[-1].end_ns
        say_end(Path(self._path("generator")), end_ns)
        linger_ns = round(self.plan.linger_s * 1e9)
        self._watch(lambda: time.monotonic_ns() >= end_ns + linger_ns, may_leave=True)

    def _leave(self) -> None:
        """Wait until every user has gone."""
        if self._end_ns is None:
            return  # the arm lost before there was a load
        late_ns = self._end_ns + round(GENERATOR_END_S * 1e9)
        self._watch(lambda: time.monotonic_ns() > late_ns or not self._generator.alive, may_leave=True)
        if self._generator.alive:
            raise ClusterError(f"the generator did not end\n{self._generator.log_tail()}")
        assert self._generator.child is not None
        if self._generator.child.returncode != 0:
            code = self._generator.child.returncode
            raise ClusterError(f"the generator ended with {code}\n{self._generator.log_tail()}")

    def _watch(self, over: Callable[[], bool], *, may_leave: bool = False) -> None:
        """Sample and watch over everybody until something is over.

        Args:
            may_leave: Whether users may go meanwhile.
        """
        while not over():
            now_ns = time.monotonic_ns()
            if now_ns >= self._sample_ns:
                self._sample_ns = now_ns + round(SAMPLE_EVERY_S * 1e9)
                self._sample(now_ns)
            if now_ns >= self._count_ns:
                self._count_ns = now_ns + round(COUNT_EVERY_S * 1e9)
                self._count()
            self._look_after()
            if not may_leave and not self._generator.alive:
                assert self._generator.child is not None
                code = self._generator.child.returncode
                raise ClusterError(f"the generator ended early, with {code}\n{self._generator.log_tail()}")
            time.sleep(TICK_S)
        if self._failures:
            raise ClusterError(str(self._failures[0])) from self._failures[0]

    def _direct(self) -> None:
        """Carry out the timetable: scenario by scenario, fault by fault."""
        begin_ns = self._start_ns
        try:
            self._sleep_until(self._start_ns + round(self.plan.warmup_s * 1e9))
            for scenario in scenarios_of(self.plan, self.series):
                self._scenario = scenario.name
                if scenario.name == "idle-300":
                    self._await_brokers()
                begin_ns = at_ns = time.monotonic_ns()
                if scenario.quiet_s:
                    self._progress(scenario.name)
                    at_ns += round(scenario.quiet_s * self.series.stretch * 1e9)
                    self._sleep_until(at_ns)
                for n, fault in enumerate(scenario.faults):
                    self._progress(f"{scenario.name}: {fault.case}")
                    strike = self._bring_topic if scenario.name == NEW_TOPIC else self._strike
                    at_ns = strike(scenario.name, n, fault, at_ns)
                self._slots.append(self._slot(scenario.name, begin_ns, at_ns))
        except (ArmLost, ClusterError) as error:
            reason = self._loss(error)
            if reason is None or self._over.is_set():
                self._failures.append(error)
            else:
                self._lose_rest(begin_ns, reason)
        except Exception as error:  # the thread's boundary: the main one makes the run void
            self._failures.append(error)

    def _await_brokers(self) -> None:
        """Wait until every server lists every broker: what idles elsewhere costs nothing."""
        wanted = self.plan.brokers + self.plan.load.sim_brokers
        servers = self._servers
        wait_until(
            lambda: all(servers.listed(index) >= wanted for index in range(self.plan.servers)),
            f"not every server lists {wanted} brokers",
            self._brokers,
        )

    def _sample(self, now_ns: int) -> None:
        for process in [*self._cluster(), *self._helpers]:
            process.sample()
        self._record(sample_machine())
        own = sample_process(os.getpid(), role="harness", index=0)
        if own is not None:
            self._record(own)
        with self._recording:
            self._log.flush_if_due(now_ns)

    def _count(self) -> None:
        t_ns = time.monotonic_ns()
        for count in self._network.counts():
            self._record(
                LinkSample(
                    dialler=count.dialler,
                    acceptor=count.acceptor,
                    t_ns=t_ns,
                    forward_bytes=count.forward,
                    back_bytes=count.back,
                )
            )

    def _look_after(self) -> None:
        """A server that ended by itself has lost for its arm and is started again; others void the run."""
        for process in self._started.processes:
            end = process.revive()
            if end is not None:
                self._lost.setdefault(self._scenario, end)
        for process in [*self._brokers, self._observer, *self._carriers]:
            end = process.died()
            if end is not None:
                raise ClusterError(f"{end}\n{process.log_tail()}")

    # -- faults -------------------------------------------------------------------------------------------

    def _strike(self, scenario: str, n: int, fault: PlannedFault, from_ns: int) -> int:
        """Carry out one fault: choose, wait, strike, wait, take back, wait for those who start again.

        Returns:
            The end of its window: it goes on after everything was back, however long a restart took.
        """
        kind = CASES[scenario][fault.case]
        chance = stream(self.given.seed, f"targets of {scenario} {fault.case}")
        servers = self._targets(scenario, fault.case, chance)
        broker = self._brokers[chance.randrange(len(self._brokers))]
        takes_broker = strikes_broker(scenario, fault.case)
        processes = [broker] if takes_broker else servers
        role = "broker" if takes_broker else self._servers.role(servers[0].index)
        cut = directions(
            kind,
            fault.case,
            servers=self._started.names,
            target=servers[0].index,
            brokers=[process.name for process in self._brokers],
            broker=broker.index if takes_broker or fault.case == "broker-nameserver" else None,
        )
        self._sleep_until(from_ns + round((fault.quiet_s + self._jitter.uniform(0, fault.jitter_s)) * 1e9))
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
        self._record(
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

    def _bring_topic(self, scenario: str, n: int, fault: PlannedFault, from_ns: int) -> int:
        """Have a topic made while producers try to send to it; return the end of its window."""
        kind = CASES[scenario][fault.case]
        if kind == "first-send":
            self._let_brokers_make_topics()
            from_ns = time.monotonic_ns()
        topic = new_topic(fault.case)
        quiet_ns = round((fault.quiet_s + self._jitter.uniform(0, fault.jitter_s)) * 1e9)
        begin_ns = from_ns + max(quiet_ns, SIGNAL_NS)
        until_ns = begin_ns + round((fault.down_s + fault.after_s) * self.series.stretch * 1e9)
        self._sleep_until(begin_ns - SIGNAL_NS)
        beginning = Beginning(begin_ns=begin_ns, until_ns=until_ns)
        write_at_once(begin_path(Path(self._path("generator")), topic), [msgspec.json.encode(beginning)])
        self._sleep_until(begin_ns)
        if kind == "update-topic":
            self._create_topics([topic])
        self._record(
            Fault(
                n=n,
                kind=kind,
                case=fault.case,
                targets=[],  # nobody is struck
                from_ns=from_ns,
                begin_ns=begin_ns,
                until_ns=until_ns,
            )
        )
        self._sleep_until(until_ns)
        return until_ns

    def _let_brokers_make_topics(self) -> None:
        """Restart the brokers so that they make topics themselves, as RocketMQ's do unless told otherwise."""
        for process in self._brokers:
            process.command = [word.replace(_NO_NEW_TOPICS, _NEW_TOPICS) for word in process.command]
            self._truth(process.index, "down")
            process.terminate()
            process.join()
            process.launch()
            self._serves_again(process)
        self._await_routes([DEFAULT_TOPIC], self._brokers)

    def _sleep_until(self, at_ns: int) -> None:
        """Sleep, unless the run is over before.

        Raises:
            ClusterError: If it is.
        """
        if self._over.wait(max(0.0, (at_ns - time.monotonic_ns()) / 1e9)):
            raise ClusterError("the run was given up")

    def _targets(self, scenario: str, case: str, chance: random.Random) -> list[Process]:
        """Choose servers: the leader where there is one, or whoever does not lead, or the one drawn."""
        everybody = self._started.processes
        drawn = chance.randrange(len(everybody))
        if case in ("all", "rolling"):
            return list(everybody)
        leader = self._servers.leader()
        if scenario == "nameserver-restarts":
            if drawn == leader:
                drawn = (drawn + 1) % len(everybody)
            return [everybody[drawn]]
        return [everybody[drawn if leader is None else leader]]

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
                self._network.cut(cut)
            case "rolling":
                return  # one by one, when they come back
            case "update-topic" | "first-send":
                raise AssertionError("these strike nobody")
        for broker in brokers:
            self._truth(broker, "cut" if cut else "down", begin_ns)

    def _come_back(self, kind: Kind, processes: list[Process], cut: list[Direction]) -> int:
        """Take a fault back; return when that was complete."""
        if cut:
            done_ns = self._network.heal()
            for process in processes:
                if process.role == "broker":
                    self._truth(process.index, "healed", done_ns)
            return done_ns
        if kind == "freeze":
            for process in processes:
                process.signal(signal.SIGCONT)
                if process.role == "broker":
                    self._truth(process.index, "up")
            return time.monotonic_ns()
        if kind == "rolling":
            for process in processes:
                process.terminate()
                process.join()
                process.launch()
                self._serves_again(process)
                # An operator goes on when all are well: else two of them are away at a time.
                self._await_server(self._servers.ready, f"{process.name} is not ready")
            return time.monotonic_ns()
        for process in processes:
            process.join()
            if kind == "empty":
                self._started.empty_disk(process.index)
            process.launch()
        for process in processes:
            self._serves_again(process)
        return time.monotonic_ns()

    def _serves_again(self, process: Process) -> None:
        if process.role == "broker":
            process.wait_ready(RESTART_MAX_S)
            self._truth(process.index, "up")
        else:
            self._await_server(lambda: self._started.serves(process), f"{process.name} does not serve")

    def _await_server(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a server that was started again; should it end meanwhile, it is started once more.

        Raises:
            ArmLost: If that takes too long.
        """
        wait_until(lambda: self._over.is_set() or condition(), what, [], RESTART_MAX_S, late=ArmLost)


def say_end(config: Path, end_ns: int) -> None:
    """Tell users that await it when the load ends.

    Args:
        config: Whose :func:`end_path` they watch.
    """
    write_at_once(end_path(config), [str(end_ns).encode()])


def _port_is_taken(process: Process) -> bool:
    return _PORT_TAKEN in process.log_text()


def _reason(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _threaded_arm(config: ArmConfig) -> Arm:
    if config.kind == "zookeeper":
        from bench.arms.zookeeper import ZooKeeperArm  # kazoo is loaded for this arm only

        return ZooKeeperArm(config)
    from bench.arms.remoting import RemotingArm

    return RemotingArm(config)
