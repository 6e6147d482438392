"""One design's processes and links, with the code that starts, observes, breaks, records and ends them.

Each thread of this module reads one kind of data and passes it to the playground's event loop. Commands run
in that loop's thread pool.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.cluster import Cluster, Record
from routekeeper.bench.events import Event, Fault, ProcessSample, ViewState
from routekeeper.bench.links import Direction, Passes
from routekeeper.bench.plan import Load, Plan, Scenario, SeriesPlan
from routekeeper.bench.play.clients import READY
from routekeeper.bench.play.heard import ClientsConfig, Heard, reconnect_line
from routekeeper.bench.play.model import DesignName, Life, Order, Outcome, Result, Usage
from routekeeper.bench.play.orders import (
    BROKERS,
    CLIENTS,
    FAULTS,
    HEALING,
    SERVERS,
    TOPICS_MAX,
    directions,
    in_words,
)
from routekeeper.bench.play.readers import NameserverReader, ZooKeeperReader
from routekeeper.bench.play.scene import Happened, Look, Reading, Scene, newest
from routekeeper.bench.processes import ClusterError, Process, allow_connections
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.session import Session
from routekeeper.bench.split import Slot, split
from routekeeper.bench.timers import DOCUMENTED_MS, Timers
from routekeeper.bench.views import Views
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.errors import OutcomeUnknown
from routekeeper.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from routekeeper.remoting.route import TopicConfig

FIRST_TOPIC: Final = "Orders"
SCENARIO: Final = "played"
#: Seconds within which a started design must be ready. The limit is long, because three designs may start at
#: the same time on two CPU cores.
START_MAX_S: Final = 180.0
#: Interval between two observations (looks) of processes and links, in seconds.
LOOK_EVERY_S: Final = 0.1
#: Pause between two readings of one server's state, in seconds.
READ_EVERY_S: Final = 0.35
SAMPLE_EVERY_S: Final = 1.0
#: Interval between two requests of one client, in seconds.
ASK_EVERY_S: Final = 0.5
#: Longest wait for an answer of the proxy, in seconds.
ANSWERS_S: Final = 1.0
#: Longest time in seconds until a process has ended or paused after the signal to do so.
OBEYS_S: Final = 10.0
#: Longest time in seconds over which the brokers' starts are spread, so that their registrations do not
#: coincide.
SPREAD_S: Final = 2.0
#: Recording ends when the recorded events of one design have this size in bytes.
RECORD_MAX: Final = 256 * 1024 * 1024
ELECTION_MS: Final = 500
_LOG = logging.getLogger(__name__)


def plan_of(divisor: float) -> Plan:
    """Return the plan of a playground session. The session is recorded as one run of this plan."""
    return Plan(
        arms=["independent", "raft", "zookeeper"],
        servers=len(SERVERS),
        brokers=len(BROKERS),
        durability="fsync",
        warmup_s=0.0,
        linger_s=0.0,
        series=[
            SeriesPlan(
                name="equal",
                blocks=1,
                timers=Timers(divisor=divisor, election_timeout_ms=ELECTION_MS),
                watches=True,
            )
        ],
        load=Load(
            lookup_per_s=len(CLIENTS) / ASK_EVERY_S,
            newcomer_per_s=0.0,
            send_per_s=0.0,
            send_once_per_s=0.0,
            change_per_s=0.0,
            lookup_clients=len(CLIENTS),
            # A run's manifest counts two clients for each send client. With this half, it counts every client
            # once.
            send_clients=len(CLIENTS) // 2,
            sim_brokers=0,
            observed_sims=0,
            topics=1,
            topics_per_sim_broker=0,
            message_bytes=0,
            timeout_s=1.0,
        ),
        scenarios=[Scenario(name=SCENARIO, quiet_s=1.0)],
    )


class PlayCluster(Cluster):
    """The processes of one design: three servers, three brokers, and one process with four clients.

    Attributes:
        clients: The process of all clients.
    """

    side_names = CLIENTS
    clients: Process

    def __init__(self, given: SessionPlan, record: Record) -> None:
        super().__init__(given, record)
        self._ending = threading.Event()
        self._launching = threading.Lock()

    def _load_processes(self) -> list[Process]:
        path = self.config_path("clients")
        command = [sys.executable, "-m", "routekeeper.bench.play.clients", str(path)]
        self.clients = self._process("clients", "generator", command)
        self.clients.pipe_in = True
        return [self.clients]

    def start(self) -> None:
        """Start the servers and brokers, create the first topic, and then start the clients' process.

        Raises:
            ArmLost, ClusterError: If the start fails, or if :meth:`kill` cancels it.
        """
        for process in [*self._carriers, *self.server_processes]:
            self.launch(process)
        for process in self._carriers:
            process.wait_ready(START_MAX_S)
        period_s = DOCUMENTED_MS["registerNameServerPeriod"] / 1000 / self.series.timers.divisor
        for process in self.brokers:
            self.launch(process)
            self._ending.wait(min(period_s, SPREAD_S) / len(self.brokers))
        wait_until(
            lambda: self._ending.is_set() or self.servers.ready(),
            "servers are not ready",
            self.server_processes,
            START_MAX_S,
        )
        for process in self.brokers:
            process.wait_ready(START_MAX_S)
        self.create_topics([FIRST_TOPIC])
        config = ClientsConfig(
            arm=self._arm_config(), topic=FIRST_TOPIC, every_s=ASK_EVERY_S, seed=self.given.seed
        )
        self.config_path("clients").write_bytes(msgspec.json.encode(config))
        self.launch(self.clients)

    def launch(self, process: Process) -> None:
        """Start a process of this design.

        Raises:
            ClusterError: If :meth:`kill` was called before. Nobody would end the process any more.
        """
        with self._launching:
            if self._ending.is_set():
                raise ClusterError(f"{process.name} is not started: its design ends")
            process.launch()

    def kill(self) -> None:
        """End all processes that run, and start no further one. If :meth:`start` is under way, it fails."""
        with self._launching:
            self._ending.set()
        super().kill()


class PlayedSession(Session):
    """One design's run in the playground, recorded like a run of the comparison.

    Attributes:
        cluster: The design's processes.
    """

    cluster: PlayCluster

    def __init__(self, given: SessionPlan, used: Callable[[ProcessSample], object]) -> None:
        self._used = used
        self._recording = threading.Lock()
        """Lock held while an event is written or the files are copied, so that no copy ends inside a line."""
        super().__init__(given, lambda step: None, PlayCluster)
        self._bytes = 0
        self.is_recorded = True
        self._views = [Views(index) for index in range(given.plan.servers)]
        self._faults: list[Fault] = []

    def begin(self) -> None:
        """Start all processes of the design, and begin to record events.

        Raises:
            ArmLost, ClusterError, OSError: If the start fails. Processes that have started continue to run
                until the caller calls :meth:`end_all`.
        """
        allow_connections()
        self.cluster.build()
        self.cluster.start()
        self.begin_now()

    def begin_now(self) -> int:
        """Set the start of the recorded session to now. Return this instant in nanoseconds."""
        self._start_ns = time.monotonic_ns()
        return self._start_ns

    def record(self, event: Event) -> None:
        """Record an event, unless recording has ended."""
        if isinstance(event, ProcessSample):
            self._used(event)
        with self._recording:
            if self.is_recorded:
                self._log.record(event)

    def flush(self) -> None:
        """Write the buffered events to disk. End recording if the files have reached :data:`RECORD_MAX`."""
        with self._recording:
            if not self.is_recorded:
                return
            self._log.flush()
            size = sum(path.stat().st_size for path in self.given.spool.iterdir())
            self.is_recorded = size < RECORD_MAX

    def lists(self, server: int, reading: Reading, topics: Sequence[str]) -> None:
        """Record a server's list of brokers for each topic, if the list has changed."""
        queues = {each.topic: each.queues for each in reading.topics}
        for topic in topics:
            brokers = sorted(int(name.removeprefix("broker-")) for name in queues.get(topic, ()))
            row = self._views[server].reading(
                topic,
                _state(reading, brokers),
                brokers=brokers or None,
                sent_ns=reading.sent_ns,
                seen_ns=reading.seen_ns,
            )
            if row is not None:
                self.record(row)

    def strikes(self, order: Order, target: str, cut: Sequence[Direction], role: str, begin_ns: int) -> None:
        """Record the fault that a command has caused.

        The fault's time window ends when the next fault begins.
        """
        number = len(self._faults)
        from_ns = self._faults[-1].begin_ns if self._faults else self._start_ns
        self._end_window(begin_ns)
        kind = "oneway" if order.do == "cut" and order.oneway else FAULTS[order.do]
        self._faults.append(
            Fault(
                n=number,
                kind=kind,
                case=f"{number + 1}: {in_words(order, order.target)}",
                targets=[target] if target else [],
                role=role or None,
                cut=[list(direction) for direction in cut] or None,
                from_ns=from_ns,
                begin_ns=begin_ns,
                until_ns=begin_ns,
            )
        )

    def heals(self, order: Order, target: str, now_ns: int) -> None:
        """Record the end of the faults that a command has undone.

        The command ``heal`` undoes cuts, delays and pauses. Any other command undoes the faults of its
        target, but not those of the target's links.
        """
        for place, fault in enumerate(self._faults):
            of_links = fault.cut is not None or fault.kind == "slow"
            if order.do == "heal":
                taken_back = of_links or fault.kind == "freeze"
            else:
                taken_back = not of_links and target in fault.targets
            if taken_back and fault.healed_ns is None:
                self._faults[place] = msgspec.structs.replace(fault, healed_ns=now_ns, end_ns=now_ns)

    def _end_window(self, now_ns: int) -> None:
        if self._faults:
            self._faults[-1] = msgspec.structs.replace(self._faults[-1], until_ns=now_ns)

    def save(self, out: Path) -> Path:
        """Write the session until now as a run folder below ``out``. The session continues."""
        end_ns = time.monotonic_ns()
        self._end_window(end_ns)
        self.flush()
        folder = replace(self.given, out=out).folder(SCENARIO)
        slot = Slot(scenario=SCENARIO, folder=folder, begin_ns=self._start_ns, end_ns=end_ns)
        with tempfile.TemporaryDirectory(dir=self.given.work) as name:
            copy = Path(name)
            with self._recording:
                for path in self.given.spool.iterdir():
                    shutil.copy(path, copy / path.name)
            with EventLog(copy, "faults") as log:
                for fault in self._faults:
                    log.record(fault)
                for view in (row for views in self._views for row in views.end()):
                    log.record(view)
            folder.mkdir(parents=True)
            split(copy, [slot])
        self.write_manifest(slot)
        return folder

    def end_all(self) -> None:
        """End the recording and every process of this design."""
        with self._recording:
            self.is_recorded = False
        self._end_all()


def _state(reading: Reading, brokers: Sequence[int]) -> ViewState:
    if not reading.answered:
        return "silent"
    if not reading.serves:
        return "refused"
    return "routed" if brokers else "absent"


#: The observing threads call this to report an observation. The argument is a function that applies the
#: observation to a design's state (:class:`Scene`) and returns the changes for the page.
Post = Callable[[Callable[[Scene], Iterable[Happened]]], object]


class Stage:
    """One running design, with the threads that observe it.

    Attributes:
        topics: Topics, sorted by the instant at which each was created last.
    """

    def __init__(self, name: DesignName, given: SessionPlan, post: Post) -> None:
        self.name = name
        self.topics = [FIRST_TOPIC]
        self.life = PlayedSession(given, self._sampled)
        self._post = post
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._looked_ns = 0
        self._passes: list[Passes] | None = None
        self._threads: list[threading.Thread] = []
        self._samples: dict[tuple[str, int], ProcessSample] = {}
        self._served: dict[str, int] = {}

    @property
    def cluster(self) -> PlayCluster:
        return self.life.cluster

    # -- start and end ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the design.

        Raises:
            ArmLost, ClusterError, OSError: If the start fails.
        """
        self.life.begin()

    def watch(self) -> None:
        """Start the threads that observe processes, links, servers and clients."""
        made_ns = self._looked_ns = time.monotonic_ns()
        for index, name in enumerate(BROKERS):
            self.cluster.truth(index, "up", made_ns)
            self._made(FIRST_TOPIC, name, made_ns, made_ns)
        work: list[tuple[str, Callable[[], None]]] = [
            ("look at processes and links", self._look_always),
            ("listen to the clients", self._listen),
            ("sample processes", self._sample_always),
        ]
        for index, name in enumerate(SERVERS):
            work.append((f"read {name}", lambda index=index: self._read_always(index)))  # type: ignore[misc]
        for each, target in work:
            thread = threading.Thread(
                target=self._read, args=(each, target), name=f"{self.name} {each}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """End every process and every thread of this design, even while the design starts."""
        self._over.set()
        self.life.end_all()
        for thread in self._threads:
            thread.join(OBEYS_S)

    # -- threads that read --------------------------------------------------------------------------------

    def _read(self, what: str, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as error:
            if not self._over.is_set():
                _LOG.exception("%s: the thread that should %s has ended", self.name, what)
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
                lost = Happened(lost=f"the thread that should {what} has ended: {why}")
                self._post(lambda scene: [lost])

    def _look_always(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Observe all processes and links now, and report the observation to the session."""
        with self._looking:
            before_ns, begin_ns = self._looked_ns, time.monotonic_ns()
            cluster = self.cluster
            lives = {each.name: self._life_of(each) for each in cluster.processes}
            lives["clients"] = self._life_of(cluster.clients)
            try:
                passes = cluster.network.look(ANSWERS_S)
            except ClusterError:
                passes = None
            self._passes = passes
            self._looked_ns = begin_ns
            if not self._over.is_set():
                look = Look(
                    before_ns=before_ns,
                    begin_ns=begin_ns,
                    end_ns=time.monotonic_ns(),
                    lives=lives,
                    passes=passes,
                )
                self._post(lambda scene: scene.look(look))

    def _life_of(self, process: Process) -> tuple[Life, int | None]:
        if not process.alive or process.child is None:
            return "down", None
        pid = process.child.pid
        if process.paused:
            return "paused", pid
        is_up = process.is_ready or self._served.get(process.name) == pid
        return "up" if is_up else "starting", pid

    def _reader(self, index: int) -> NameserverReader | ZooKeeperReader:
        if self.name == "zookeeper":
            return ZooKeeperReader(
                self.cluster.servers.clients[index],
                session_s=self.life.given.series.timers.session_ms() / 1000,
            )
        return NameserverReader(self.cluster.servers.http[index])

    def _read_always(self, index: int) -> None:
        reader = self._reader(index)
        process = self.cluster.server_processes[index]
        while not self._over.is_set():
            pid = process.child.pid if process.child is not None else 0
            topics = list(self.topics)
            reading = reader.read(topics)
            if reading.answered:
                self._served[process.name] = pid
            self.life.lists(index, reading, topics)
            if not self._over.is_set():
                self._post(partial(Scene.read, name=process.name, reading=reading))
            self._over.wait(READ_EVERY_S)
        reader.close()

    def _listen(self) -> None:
        clients = self.cluster.clients
        while not self._over.is_set():
            try:
                line = clients.next_line(time.monotonic() + OBEYS_S)
            except ClusterError:
                if not clients.alive:
                    raise
                continue
            if line == READY:
                continue
            heard = msgspec.json.decode(line, type=Heard)
            if heard.operation is not None:
                self.life.record(heard.operation)
                self._post(partial(Scene.answered, operation=heard.operation))
            if heard.view is not None:
                self.life.record(heard.view)
                self._post(partial(Scene.kept, view=heard.view))

    def _sample_always(self) -> None:
        before: dict[tuple[str, int], ProcessSample] = {}
        while not self._over.wait(SAMPLE_EVERY_S):
            self.cluster.sample()
            self.cluster.count(self._passes or ())
            self.life.flush()
            now = dict(self._samples)
            used_s = [
                (each.cpu_ns - before[key].cpu_ns) / max(1, each.t_ns - before[key].t_ns)
                for key, each in now.items()
                if key in before and before[key].pid == each.pid
            ]
            running = [each for each in now.values() if each.event != "exit"]
            before = now
            usage = Usage(
                processes=len(running),
                memory_bytes=sum(each.rss_bytes for each in running),
                cpu=round(sum(used_s), 3),
            )
            self._post(partial(Scene.used, usage=usage))

    def _sampled(self, sample: ProcessSample) -> None:
        self._samples[sample.role, sample.index] = sample

    # -- commands from the page ---------------------------------------------------------------------------

    def carry_out(self, order: Order, target: str, to: str) -> Outcome:
        """Execute a command, and observe all processes and links before and after it.

        ``target`` and ``to`` are names of processes. Each design executes one command at a time.
        """
        cut = directions(order, target, to) if order.do in ("cut", "slow", "part") else []
        role = self.cluster.servers.role(SERVERS.index(target)) if target in SERVERS else "broker"
        self.look()
        begin_ns = time.monotonic_ns()
        try:
            result, reason = self._do(order, target, to, cut)
        except ClusterError as error:
            result, reason = "unknown", str(error).partition("\n")[0]
        self.look()
        if order.do in FAULTS and result != "not applied":
            lets_nothing_through = cut if order.do != "slow" else []
            self.life.strikes(order, target, lets_nothing_through, role if target else "", begin_ns)
        elif order.do in HEALING and result != "not applied":
            self.life.heals(order, target, time.monotonic_ns())
        return Outcome(design=self.name, result=result, reason=reason, target=target)

    def _do(self, order: Order, target: str, to: str, cut: Sequence[Direction]) -> tuple[Result, str]:
        network = self.cluster.network
        match order.do:
            case "cut" | "part":
                network.cut(cut)
            case "slow":
                network.delay(cut, order.delay_ms)
            case "heal":
                self._heal()
            case "reconnect":
                if not self._tell_clients(reconnect_line(target, SERVERS.index(to))):
                    return "unknown", "the clients have ended"
            case "make-topic":
                return self._make_topic(order.topic)
            case "timers":
                raise AssertionError("all designs are started again for it")
            case _:
                return self._do_to_process(order, target)
        return "applied", ""

    def _do_to_process(self, order: Order, target: str) -> tuple[Result, str]:
        process = next(each for each in self.cluster.processes if each.name == target)
        life, _ = self._life_of(process)
        match order.do:
            case "kill":
                return self._end(process, life, process.strike)
            case "stop":
                return self._end(process, life, process.terminate)
            case "pause":
                if life not in ("up", "starting"):
                    return "not applied", f"{target} is {life}"
                process.signal(signal.SIGSTOP)
                if not self._wait_for(lambda: self._life_of(process)[0] == "paused"):
                    return "unknown", f"{target} is not paused within {OBEYS_S:g} s"
            case "resume":
                if life != "paused":
                    return "not applied", f"{target} is not paused, it is {life}"
                process.signal(signal.SIGCONT)
            case "start":
                if life != "down":
                    return "not applied", f"{target} is {life}"
                self.cluster.launch(process)
            case "restart-empty":
                process.strike()
                if not self._wait_for(lambda: not process.alive):
                    return "unknown", f"{target} did not end within {OBEYS_S:g} s"
                self.cluster.started.empty_disk(process.index)
                self.look()
                self.cluster.launch(process)
        return "applied", ""

    def _end(self, process: Process, life: Life, end: Callable[[], None]) -> tuple[Result, str]:
        if life == "down":
            return "not applied", f"{process.name} is down"
        end()
        if self._wait_for(lambda: not process.alive):
            return "applied", ""
        return "unknown", f"{process.name} did not end within {OBEYS_S:g} s"

    def _wait_for(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + OBEYS_S
        while not condition():
            if time.monotonic() > deadline or self._over.is_set():
                return False
            time.sleep(0.005)
        return True

    def _heal(self) -> None:
        network = self.cluster.network
        network.heal()
        slowed = [
            direction
            for each in network.look(OBEYS_S)
            for direction, gate in (
                ((each.dialler, each.acceptor), each.forward),
                ((each.acceptor, each.dialler), each.back),
            )
            if gate.delay_ms
        ]
        if slowed:
            network.delay(slowed, 0)
        for process in self.cluster.processes:
            if self._life_of(process)[0] == "paused":
                process.signal(signal.SIGCONT)

    def _make_topic(self, topic: str) -> tuple[Result, str]:
        """Create a topic on each running broker, one after the other. Return the outcome and its reason."""
        if topic not in self.topics and len(self.topics) >= TOPICS_MAX:
            return "not applied", f"there are {len(self.topics)} topics, allowed are {TOPICS_MAX}"
        running = [each for each in self.cluster.brokers if self._life_of(each)[0] == "up"]
        if not running:
            return "not applied", "no broker runs"
        failures: list[tuple[Result, str]] = []
        config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
        servers = tuple(self.cluster.servers.clients)
        client = Client(ClientConfig(nameservers=servers, call_timeout_s=OBEYS_S))
        try:
            for process in running:
                begun_ns = time.monotonic_ns()
                addr = self.cluster.broker_addrs[process.index]
                try:
                    client.run(client.admin.create_topic(addr, config))
                except (OutcomeUnknown, ConnectionLost, RequestTimeout) as error:
                    failures.append(("unknown", f"{process.name}: {error}"))
                except RemotingError as error:
                    failures.append(("not applied", f"{process.name}: {error}"))
                else:
                    self._made(topic, process.name, begun_ns, time.monotonic_ns())
        finally:
            client.close()
        if len(failures) == len(running):
            return failures[0]
        self.topics = newest(self.topics, topic)
        # Ignore a failure: if the clients have ended, the page shows the design as failed.
        self._tell_clients(topic)
        if failures:
            return "unknown", "; ".join(reason for _, reason in failures)
        return "applied", ""

    def _made(self, topic: str, broker: str, begun_ns: int, acked_ns: int) -> None:
        self._post(lambda scene: scene.made(topic, broker, begun_ns=begun_ns, acked_ns=acked_ns))

    def _tell_clients(self, line: str) -> bool:
        """Write a line to the clients' process. Return False if that failed."""
        child = self.cluster.clients.child
        if child is None or child.stdin is None:
            return False
        try:
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
        except (OSError, ValueError):  # ValueError: the process has ended, and its stdin is closed
            return False
        return True
