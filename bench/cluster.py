"""All processes of one run: the servers of a compared design, brokers, users and the observer.

This module builds, starts, supervises and stops the processes, and announces the start and the end of the
load to the users. Measurements and faults are in :mod:`routekeeper.bench.director`.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from routekeeper.bench.arms.interface import CLUSTER, ArmConfig, ArmKind, Side
from routekeeper.bench.arms.remoting import threaded_arm
from routekeeper.bench.arms.servers import Servers, StartedServers, server_names, wait_until
from routekeeper.bench.arms.started import servers_of
from routekeeper.bench.chance import stream
from routekeeper.bench.cuts import SIDES
from routekeeper.bench.disk import sectors_written
from routekeeper.bench.events import DiskSample, Event, Fact, LinkSample, Role, Truth
from routekeeper.bench.files import write_at_once
from routekeeper.bench.generator_config import (
    Beginning,
    GeneratorConfig,
    begin_path,
    end_path,
    new_topics,
    observed_topics,
    topic_name,
)
from routekeeper.bench.links import Passes
from routekeeper.bench.machine import versions
from routekeeper.bench.network import Network, ProxyNetwork
from routekeeper.bench.observer import ObserverConfig
from routekeeper.bench.plan import Load
from routekeeper.bench.ports import free_ports
from routekeeper.bench.processes import READY_MARK, ArmLost, ClusterError, Process
from routekeeper.bench.resolution import OBSERVE_EVERY_S
from routekeeper.bench.runfolder import AGAIN, Links, Timer
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.timers import DOCUMENTED_MS
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.route import TopicConfig

#: Time in s between the instant at which all processes are ready and the start of the warm-up. Locust creates
#: its users in this time.
LEAD_S: Final = 0.4
#: Longest time in s until the observer confirms a command to start or to stop reading routes.
OBSERVER_MAX_S: Final = 30.0
#: Number of attempts to ask a server for its written bytes. A busy server may not answer in time. After the
#: last attempt, the harness continues without the number.
WRITTEN_TRIES: Final = 3
#: Longest time in s from the start of a server until it is ready. If a server needs longer, the scenario is
#: lost.
RESTART_MAX_S: Final = 60.0

_NO_NEW_TOPICS: Final = "autoCreateTopicEnable=false"
_NEW_TOPICS: Final = "autoCreateTopicEnable=true"
#: Text in the log of a server whose port is in use, because the harness had chosen a port that was not free.
_PORT_TAKEN: Final = "Address already in use"

Record = Callable[[Event], None]


class Cluster:
    """All processes of one run of one design.

    Attributes:
        first_step: Text to show while the cluster starts.
        side_names: Names of the groups of users.
        servers: The servers, for queries over the network. :meth:`build` sets this attribute.
        started: The same object as ``servers``. Set only if the harness starts the servers' processes.
        server_processes: Processes of the servers, or an empty list if other people run them.
        sides: Addresses to which each group of users connects.
    """

    first_step = "starting"
    side_names: Sequence[str] = SIDES
    servers: Servers
    started: StartedServers
    observer: Process
    generator: Process

    def __init__(self, given: SessionPlan, record: Record) -> None:
        self.given = given
        self.plan, self.series = given.plan, given.series
        self.record = record
        self.network: Network = ProxyNetwork(given.work, record)
        self.server_processes: list[Process] = []
        self.brokers: list[Process] = []
        self.broker_addrs: list[str] = []
        self.sides: list[Side] = []
        self._carriers: list[Process] = []
        self._helpers: list[Process] = []

    # -- building the processes --------------------------------------------------------------------------

    def build(self) -> None:
        """Choose hosts, ports and command lines, without starting a process."""
        names = [f"broker-{index}" for index in range(self.plan.brokers)]
        if self.plan.links == "kernel":
            from routekeeper.bench.kernel import KernelNetwork  # imported here, because only root can use it

            self.network = KernelNetwork([*server_names(self.plan.servers), *names])
        network = self.network
        servers = self.servers = self.started = servers_of(
            self.given.arm,
            self.given.work,
            self.series.timers,
            self.record,
            count=self.plan.servers,
            durability=self.series.durability or self.plan.durability,
            network=network,
        )
        self.server_processes = servers.processes
        self.broker_addrs = [self._broker_addr(name) for name in names]

        def dialled(dialler: str) -> list[str]:
            return [
                network.dialled(dialler, name, to)
                for name, to in zip(servers.names, servers.clients, strict=True)
            ]

        self.sides = [
            Side(
                name=side,
                servers=dialled(side),
                brokers={
                    addr: network.dialled(side, name, addr)
                    for name, addr in zip(names, self.broker_addrs, strict=True)
                },
            )
            for side in self.side_names
        ]
        self.brokers = [self._broker(index, dialled(name)) for index, name in enumerate(names)]
        self._carriers = network.carriers()
        self._helpers = [*self._carriers, *self._load_processes()]

    def _broker_addr(self, name: str) -> str:
        return f"{self.network.host(name)}:{free_ports(1)[0]}"

    def _broker(self, index: int, servers: list[str]) -> Process:
        divisor = self.series.timers.divisor
        program = (
            "routekeeper.bench.arms.zookeeper_broker" if self._kind == "zookeeper" else "routekeeper.broker"
        )
        command = [sys.executable, "-m", program, "-n", ";".join(servers)]
        command += ["--set", f"timerDivisor={divisor:g}", "--set", _NO_NEW_TOPICS]
        name, addr = f"broker-{index}", self.broker_addrs[index]
        command += ["--listen", f"{self.network.bind}:{addr.rpartition(':')[2]}", "--advertise", addr]
        command += ["--name", name, "--cluster", CLUSTER, "--store", str(self.given.work / name)]
        return self._process(name, "broker", self.network.command(name, command), index=index)

    @property
    def _generator_load(self) -> Load:
        """Return the load that the generator makes. A subclass may leave a part to other programs."""
        return self.plan.load

    def _load_processes(self) -> list[Process]:
        """Make the processes of the observer and the generator, without starting them."""
        observing = [sys.executable, "-m", "routekeeper.bench.observer", str(self.config_path("observer"))]
        self.observer = self._process("observer", "prober", observing)
        locustfile = Path(__file__).with_name("generator.py")
        load = self._generator_load
        users = str(load.all_users)
        command = [sys.executable, "-m", "locust", "--headless", "--only-summary", "--loglevel", "WARNING"]
        command += ["-f", str(locustfile), "--users", users, "--spawn-rate", users]
        command += ["--stop-timeout", str(math.ceil(load.timeout_s)), "--exit-code-on-error", "0"]
        command += ["--bench-config", str(self.config_path("generator"))]
        self.generator = self._process("generator", "generator", self.network.command(SIDES[0], command))
        return [self.observer, self.generator]

    def config_path(self, name: str) -> Path:
        """Return the path of the configuration file of our program ``name``."""
        return self.given.work / f"{name}.json"

    def _process(
        self, name: str, role: Role, command: Sequence[str], *, index: int = 0, ready_mark: str = READY_MARK
    ) -> Process:
        return Process(
            role=role,
            index=index,
            command=command,
            log=self.given.work / f"{name}.log",
            record=self.record,
            ready_mark=ready_mark,
        )

    @property
    def _kind(self) -> ArmKind:
        return "zookeeper" if AGAIN.get(self.given.arm, self.given.arm) == "zookeeper" else "remoting"

    def _arm_config(self) -> ArmConfig:
        timers = self.series.timers
        divisor = timers.divisor
        return ArmConfig(
            kind=self._kind,
            sides=self.sides,
            lease_ms=timers.session_ms() if self._kind == "zookeeper" else timers.lease_ms(),
            refresh_ms=round(DOCUMENTED_MS["pollNameServerInterval"] / divisor),
            heartbeat_ms=round(DOCUMENTED_MS["registerNameServerPeriod"] / divisor),
            divisor=divisor,
            timeout_s=self.plan.load.timeout_s,
            watches=self.series.watches,
        )

    # -- facts for the manifest ---------------------------------------------------------------------------

    def broker_indexes(self) -> list[int]:
        """Return the numbers of the real brokers, in the order of their addresses."""
        return list(range(self.plan.brokers))

    @property
    def links(self) -> Links | Literal["none"]:
        """Return the tool that cuts links between processes: the proxy or the kernel."""
        return self.plan.links

    @property
    def watches(self) -> bool:
        """Return whether clients watch for changes."""
        return self.series.watches and self._kind == "zookeeper"

    def timers(self) -> dict[str, Timer]:
        return self.servers.timers()

    def versions(self) -> dict[str, str]:
        return versions()

    # -- start and end ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and wait until every server lists every broker.

        Raises:
            ArmLost: If a server ends or never serves.
            ClusterError: If another process fails.
        """
        for process in self._carriers:
            process.launch()
        self.started.start()
        for process in self._carriers:
            process.wait_ready()
        self._launch_brokers()
        # Start the generator and the observer last, because they load slowly and no other process needs them.
        self.generator.launch()
        self._launch_observer()
        wait_until(
            self.servers.ready,
            "the servers were not ready",
            self.server_processes,
            RESTART_MAX_S,
            late=ArmLost,
        )
        for index, process in enumerate(self.brokers):
            process.wait_ready()
            self.truth(index, "up")
        self._start_topics()

    def _launch_brokers(self) -> None:
        """Start the brokers at random instants of one heartbeat period, so that heartbeats do not coincide.

        Brokers of a real installation do not start together, either. If all heartbeats came at once, a
        nameserver that restarts with empty tables would get all its routes at one instant.
        """
        period_s = DOCUMENTED_MS["registerNameServerPeriod"] / 1000 / self.series.timers.divisor
        chance = stream(self.given.seed, "phases of brokers")
        phases = sorted(chance.random() for _ in self.brokers)
        begun_s = time.monotonic()
        for process, phase in zip(self.brokers, phases, strict=True):
            due_s = begun_s + (phase - phases[0]) * period_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            process.launch()

    def _launch_observer(self) -> None:
        arm = self._arm_config()
        self.config_path("observer").write_bytes(
            msgspec.json.encode(
                ObserverConfig(
                    kind=arm.kind,
                    servers=self.servers.clients,
                    topics=observed_topics(self.plan.load) + new_topics(self.plan, self.series),
                    folder=str(self.given.spool),
                    session_ms=arm.lease_ms,
                    period_s=OBSERVE_EVERY_S,
                )
            )
        )
        self.observer.launch()

    def observe(self, *, reading: bool) -> None:
        """Make the observer start or stop reading routes, and wait for its confirmation.

        Raises:
            ClusterError: If the observer does not confirm in time.
        """
        self.observer.signal(signal.SIGUSR2 if reading else signal.SIGUSR1)
        deadline = time.monotonic() + OBSERVER_MAX_S
        said = "observer reads" if reading else "observer rests"
        while self.observer.next_line(deadline) != said:
            pass

    def _start_topics(self) -> None:
        """Create the initial topics, and wait until every server knows them."""
        topics = [topic_name(number) for number in range(self.plan.load.topics)]
        self.create_topics(topics)
        self.await_routes(topics, self.processes)

    def create_topics(self, topics: Sequence[str]) -> None:
        create_topics(self.servers.clients, self.broker_addrs, topics)

    def await_routes(self, topics: Sequence[str], watched: list[Process]) -> None:
        """Wait until every server lists every broker for each of these topics.

        Args:
            watched: Processes whose end stops the wait with an error. During a run, leave the servers out,
                because another part of the harness restarts servers.
        """
        arm = threaded_arm(self._arm_config())
        everybody = self.broker_indexes()
        sessions = [arm.client(Side(name="harness", servers=[addr]), 0) for addr in self.servers.clients]
        try:
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

    def await_brokers(self) -> None:
        """Wait until every server lists every broker, including those that the generator simulates."""
        wanted = len(self.broker_indexes()) + self.plan.load.sim_brokers
        servers = self.servers
        wait_until(
            lambda: all(servers.listed(index) >= wanted for index in range(self.plan.servers)),
            f"not every server lists {wanted} brokers",
            self.brokers,
        )

    def begin(self) -> int:
        """Start the load. Return the instant of its start in ns of the monotonic clock."""
        self.generator.wait_ready()
        self.observer.wait_ready()
        start_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        self._tell_generator(start_ns)
        return start_ns

    def _tell_generator(self, start_ns: int) -> None:
        config = GeneratorConfig(
            folder=str(self.given.spool),
            arm=self._arm_config(),
            load=self._generator_load,
            brokers=self.broker_indexes(),
            seed=self.given.seed,
            start_ns=start_ns,
            new_topics=new_topics(self.plan, self.series),
            linger_ns=round(self.plan.linger_s * 1e9),
        )
        write_at_once(self.config_path("generator"), [msgspec.json.encode(config)])

    def say_topic(self, topic: str, beginning: Beginning) -> None:
        """Write a file that announces to producers the instant at which a new topic is created."""
        path = begin_path(self.config_path("generator"), topic)
        write_at_once(path, [msgspec.json.encode(beginning)])

    def say_end(self, end_ns: int) -> None:
        """Write a file that announces to users the instant at which the load ends."""
        write_at_once(end_path(self.config_path("generator")), [str(end_ns).encode()])

    def users_are_gone(self) -> bool:
        return not self.generator.alive

    def check_users_gone(self) -> None:
        """Check that users have ended without an error.

        Raises:
            ClusterError: If users still run, or have failed.
        """
        if self.generator.alive:
            raise ClusterError(f"the generator did not end\n{self.generator.log_tail()}")
        if self.generator.code != 0:
            raise ClusterError(f"the generator ended with {self.generator.code}\n{self.generator.log_tail()}")

    def stop(self) -> None:
        """Stop these processes in this order: observer, brokers, servers, processes that carry links."""
        groups = [[self.observer], self.brokers, self.server_processes, self._carriers]
        for group in groups:
            for process in group:
                process.terminate()
            for process in group:
                process.join()

    def take_rows(self) -> None:
        """Do nothing, because our programs write event files.

        A subclass converts the output of other programs here.
        """

    def kill(self) -> None:
        """End all processes that still run."""
        for process in [*self._helpers, *self.processes]:
            process.kill()

    # -- while it runs ------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        """Processes of servers and brokers that the harness started."""
        return [*self.server_processes, *self.brokers]

    def truth(self, broker: int, what: Fact, t_ns: int | None = None) -> None:
        """Record a change of a broker's state at ``t_ns`` (default: now)."""
        t_ns = time.monotonic_ns() if t_ns is None else t_ns
        self.record(Truth(subject="broker", broker=broker, what=what, t_ns=t_ns))

    def sample(self) -> None:
        """Record the resources that each process has used so far."""
        for process in [*self.processes, *self._helpers]:
            process.sample()

    def measure_disk(self, t_ns: int) -> None:
        """Record how many bytes each server, and how many sectors the disk, has written until now."""
        for process in self.server_processes:
            # Ask several times, because a busy server may not answer in time.
            tries = (self.started.written(process.index) for _ in range(WRITTEN_TRIES))
            written = next((found for found in tries if found is not None), None)
            if written is not None:
                self.record(
                    DiskSample(
                        role=process.role,
                        index=process.index,
                        t_ns=t_ns,
                        written_bytes=written.written_bytes,
                        syncs=written.syncs,
                    )
                )
        sectors = sectors_written(self.given.work) if self.server_processes else None
        if sectors is not None:
            self.record(DiskSample(role="machine", index=0, t_ns=t_ns, sectors=sectors))

    def count(self, passes: Iterable[Passes] | None = None) -> None:
        """Record the number of bytes that have passed each link since the start of the run.

        Args:
            passes: Present states of the links, all of which are recorded. None to ask the network, and to
                record only links that their diallers have used. Of two servers often only one dials, and the
                link from the other one would count the same bytes again.
        """
        t_ns = time.monotonic_ns()
        used = [link for link in self.network.look() if link.dialled] if passes is None else passes
        for link in used:
            self.record(
                LinkSample(
                    dialler=link.dialler,
                    acceptor=link.acceptor,
                    t_ns=t_ns,
                    forward_bytes=link.forward.bytes,
                    back_bytes=link.back.bytes,
                )
            )

    def revive_servers(self) -> Iterator[str]:
        """Restart every server that ended by itself. For each server, yield a text that says how it ended."""
        for process in self.server_processes:
            end = process.revive()
            if end is not None:
                yield end

    def server_ends(self) -> Iterator[str]:
        """For each server that ended by itself and is down, yield a text that says how it ended."""
        return (end for process in self.server_processes if (end := process.died()) is not None)

    def check_others(self, *, load_is_over: bool) -> None:
        """Check that all processes except the servers run.

        Raises:
            ClusterError: If such a process has ended. If ``load_is_over``, users may have ended.
        """
        for process in [*self.brokers, self.observer, *self._carriers]:
            end = process.died()
            if end is not None:
                raise ClusterError(f"{end}\n{process.log_tail()}")
        self._check_users(load_is_over=load_is_over)

    def _check_users(self, *, load_is_over: bool) -> None:
        if not load_is_over and not self.generator.alive:
            code = self.generator.code
            raise ClusterError(f"the generator ended early, with {code}\n{self.generator.log_tail()}")

    def lacks_port(self) -> bool:
        """Return whether a server could not start because another process used its port."""
        return any(_PORT_TAKEN in process.log_text() for process in self.server_processes)


def create_topics(servers: Sequence[str], brokers: Sequence[str], topics: Sequence[str]) -> None:
    """Create topics at each broker, as an administrator does.

    The time limit of each call is 60 s, the longest time that a server may take to start.
    """
    client = Client(ClientConfig(nameservers=tuple(servers), call_timeout_s=RESTART_MAX_S))
    try:
        for topic in topics:
            config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
            for addr in brokers:
                client.run(client.admin.create_topic(addr, config))
    except RemotingError as error:
        raise ClusterError(f"topics cannot be created: {error}") from error
    finally:
        client.close()


def making_topics(command: Sequence[str]) -> list[str]:
    """Return a broker's command line that lets the broker create missing topics (RocketMQ's default)."""
    return [word.replace(_NO_NEW_TOPICS, _NEW_TOPICS) for word in command]
