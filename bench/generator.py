"""The load of the comparison: Locust users that work with every compared design and record each operation.

:mod:`routekeeper.bench.cluster` starts this file as ``locust --headless -f bench/generator.py --bench-config
FILE``. All users of one kind share one open-loop schedule. A user that is free takes the next due operation.
Latency counts from the due instant, so a stalled server causes latency and not fewer requests. Users keep
their connections and sessions until some time after the last scenario.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import gevent
import msgspec
from gevent.event import Event as GreenEvent
from kazoo.handlers.gevent import SequentialGeventHandler
from locust import User, constant, events, task
from locust.exception import StopUser

from routekeeper.bench.arms.interface import (
    Arm,
    ArmConfig,
    BrokerSession,
    ClientSession,
    Listing,
    Looked,
    Side,
    broker_index,
    looked_at,
)
from routekeeper.bench.arms.remoting import LastAsked, RemotingArm
from routekeeper.bench.arms.zookeeper import Waits, ZooKeeperArm
from routekeeper.bench.arrivals import Arrivals
from routekeeper.bench.chance import stream
from routekeeper.bench.cuts import side_of
from routekeeper.bench.events import (
    SIMULATED_FROM,
    Delivery,
    Op,
    Operation,
    Outcome,
    Truth,
    View,
    ViewState,
)
from routekeeper.bench.generator_config import (
    RETRIES,
    Beginning,
    GeneratorConfig,
    begin_path,
    changing_topic,
    end_path,
    is_versioned,
    observed_topics,
    paced,
    sim_addr,
    topic_name,
)
from routekeeper.bench.recorder import FLUSH_INTERVAL_NS, EventLog, short_remark
from routekeeper.bench.waiting import at_once
from routekeeper.client.blocking import Client
from routekeeper.client.blocking_parts import PushConsumer
from routekeeper.client.config import ConsumeFrom, ConsumerConfig, ProducerConfig
from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.route import TopicRouteData

#: Interval in s between two checks for a file that the harness will write, such as the configuration.
AWAIT_S: Final = 0.01
#: Interval in s between a producer's attempts to send to a new topic. The producers' first attempts are
#: spread evenly over this interval.
FIRST_SEND_EVERY_S: Final = 0.1
#: Lowest number of a message to a new topic. Messages to other topics have lower numbers.
FIRST_MESSAGES_FROM: Final = 1_000_000_000
#: Name of the message property that holds a message's number.
MESSAGE_NUMBER: Final = "benchNumber"


def arm_of(config: ArmConfig) -> Arm:
    """Return the part of a design that simulated clients and brokers use.

    The clients and brokers wait by gevent, so that other greenlets run in the meantime.
    """
    if config.kind == "zookeeper":
        return ZooKeeperArm(config, Waits(SequentialGeventHandler, (gevent.Timeout,)))
    return RemotingArm(config, at_once)


class Generator:
    """The state that all users of this process share."""

    def __init__(self, config: GeneratorConfig, environment: Any) -> None:
        self.config = config
        self.environment = environment
        self.log = EventLog(Path(config.folder), "generator-0")
        self.leaving = GreenEvent()
        self.schedules: list[Arrivals[Any]] = []
        self.arm = arm_of(config.arm)
        load = config.load
        topics = [topic_name(number) for number in range(load.topics)]
        every = paced(load) | {"newcomer": (load.newcomer_per_s, topics)}
        self.arrivals_of = {op: self.arrivals(op, *each) for op, each in every.items()}
        self.body = stream(config.seed, "bodies").randbytes(load.message_bytes)
        self.changes = itertools.count()
        self.counters: dict[str, itertools.count[int]] = {}
        self.lookup_sessions: list[tuple[Side, ClientSession]] = [
            (side, self.arm.client(side, number))
            for number in range(load.lookup_clients)
            for side in [self.side(number)]
        ]
        self.producers = {
            op: [ProducingClient(self, op, number) for number in range(load.send_clients)]
            for op in ("send", "send_once")
        }
        self.first_messages = itertools.count(FIRST_MESSAGES_FROM)
        self.readers = [ReadingClient(self, number) for number in range(load.consumers)]
        self.active = load.all_users

    def arrivals(
        self, name: str, rate_per_s: float, choices: list[Any], phase: float | None = None
    ) -> Arrivals[Any]:
        made = Arrivals(
            start_ns=self.config.start_ns,
            rate_per_s=rate_per_s,
            choices=choices,
            chance=stream(self.config.seed, f"arrivals of {name}"),
            phase=phase,
        )
        self.schedules.append(made)
        return made

    def await_end(self, path: Path) -> None:
        """Wait until the harness announces the end of the load, and stop all users ``linger_ns`` later."""
        while not path.exists():
            gevent.sleep(AWAIT_S)
        end_ns = int(path.read_text())
        for schedule in self.schedules:
            schedule.end(end_ns)
        sleep_until(end_ns + self.config.linger_ns)
        self.leaving.set()

    def await_due(self, due_ns: int) -> bool:
        """Wait until an operation is due, or until all users may end.

        Returns:
            True if all users may end.
        """
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            self.leaving.wait(ahead_ns / 1e9)
        return bool(self.leaving.is_set())

    def await_beginnings(self, path: Path) -> None:
        """For each new topic, wait for its file beside ``path``, and let every producer send to the topic."""
        for topic in self.config.new_topics:
            signal = begin_path(path, topic)
            while not signal.exists():
                gevent.sleep(AWAIT_S)
            beginning = msgspec.json.decode(signal.read_bytes(), type=Beginning)
            everybody = [client for clients in self.producers.values() for client in clients]
            for place, client in enumerate(everybody):
                late_ns = round(FIRST_SEND_EVERY_S * 1e9 * place / len(everybody))
                gevent.spawn(client.try_to_send, topic, beginning.begin_ns + late_ns, beginning.until_ns)

    def side(self, number: int) -> Side:
        return side_of(number, self.config.arm.sides)

    def number(self, kind: str) -> int:
        """Return the next free number for a user of this kind. The first number is 0."""
        return next(self.counters.setdefault(kind, itertools.count()))

    def record(self, operation: Operation) -> None:
        self.log.record(operation)
        self.environment.events.request.fire(
            request_type="RMQ",
            name=operation.op,
            response_time=(operation.done_ns - operation.due_ns) / 1e6,
            response_length=0,
            exception=None if operation.outcome == "ok" else RuntimeError(operation.outcome),
            context={},
        )

    def flush_always(self) -> None:
        while True:
            gevent.sleep(FLUSH_INTERVAL_NS / 1e9)
            self.log.flush()

    def leave(self) -> None:
        """Remove one user. After the last user, end all observations and the process."""
        self.active -= 1
        if self.active == 0:
            for clients in self.producers.values():
                for client in clients:
                    client.end()
            for reader in self.readers:
                reader.end()
            self.log.close()
            self.environment.runner.quit()


class ObservedClient:
    """A client of the load that records each change of its cached routes."""

    def __init__(self, generator: Generator, op: str, number: int) -> None:
        self.side = generator.side(number)
        self.asked = LastAsked()
        load = generator.config.load
        self.index = {"send": 0, "send_once": load.send_clients, "read": 2 * load.send_clients}[op] + number
        seed = stream(generator.config.seed, f"client {op} {number}").getrandbits(63)
        self.client: Client = generator.arm.producer_client(
            self.side, self.index, seed=seed, hooks=(self.asked,)
        )
        self.broker_addrs = dict(
            zip(self.side.brokers.values(), generator.config.brokers, strict=True)
        )  # maps the address of a broker to the broker's number
        self._log = generator.log
        self._observed = observed_topics(load)
        self._shown: dict[str, tuple[ViewState, list[int] | None, int | None]] = {}
        self._ended = False
        directory = self.client.core.directory
        for topic in self._observed:
            directory.routes.use(topic)
        directory.watchers.append(self.look)
        phase = 0.0
        if not load.clients_together:
            phase = stream(generator.config.seed, f"phase of client {op} {number}").random()
        begun = gevent.spawn(self.begin, phase * generator.config.arm.refresh_ms / 1000)
        begun.link_exception(lambda failed: void_run(failed.exception))

    def begin(self, after_s: float) -> None:
        """Ask for the routes after ``after_s`` seconds, and then once in each period.

        ``after_s`` is random, as in a real installation, unless ``clients_together`` is set. Clients that
        start together also poll together, so a change reaches all of them at the same time.
        """
        gevent.sleep(after_s)
        if self._ended:
            return
        directory = self.client.core.directory
        for topic in self._observed:
            self.client.run(directory.refresh_quietly(topic))
        self.client.start()

    def look(self) -> None:
        """Record the cached routes that have changed since the last call."""
        now_ns = time.monotonic_ns()
        for topic in self._observed:
            route = self.client.core.directory.routes.route(topic)
            shown = view_of(topic, route)
            before = self._shown.get(topic)
            if self._ended or route is None or shown == before:
                continue
            self._shown[topic] = shown
            self._record(topic, *shown, seen_ns=now_ns, unseen_ns=None if before is None else now_ns)

    def _record(
        self,
        topic: str,
        state: ViewState,
        brokers: list[int] | None,
        version: int | None,
        *,
        seen_ns: int,
        unseen_ns: int | None,
    ) -> None:
        self._log.record(
            View(
                observer="client",
                index=self.index,
                topic=topic,
                state=state,
                brokers=brokers,
                version=version,
                unseen_ns=unseen_ns,
                seen_ns=seen_ns,
            )
        )

    def end(self) -> None:
        """Record the instant at which the observation of the cache ended."""
        self._ended = True
        for topic in self._shown:
            self._record(topic, "end", None, None, seen_ns=time.monotonic_ns(), unseen_ns=None)


class ProducingClient(ObservedClient):
    """A producer and the client with which it sends."""

    def __init__(self, generator: Generator, op: Op, number: int) -> None:
        super().__init__(generator, op, number)
        self.producer = self.client.producer(
            ProducerConfig(
                group="mqbench",
                send_timeout_s=generator.config.load.timeout_s,
                retry_times=RETRIES if op == "send" else 0,
                retry_unknown=op == "send",
            )
        )
        self._generator = generator
        self._user = generator.number("user")

    def try_to_send(self, topic: str, begin_ns: int, until_ns: int) -> None:
        """Send a message to a topic at fixed intervals from ``begin_ns`` on, until one message succeeds."""
        due_ns = begin_ns
        while due_ns < until_ns:
            sleep_until(due_ns)
            done = self.send(
                "first_send", topic, next(self._generator.first_messages), user=self._user, due_ns=due_ns
            )
            self._generator.record(done)
            if done.outcome == "ok":
                return
            due_ns += round(FIRST_SEND_EVERY_S * 1e9)

    def send(self, op: Op, topic: str, message: int, *, user: int, due_ns: int) -> Operation:
        """Send one message and return its outcome."""
        outcome: Outcome = "ok"
        code = remark = None
        target: int | None = None
        attempts: int | None = None
        self.asked.count = 0
        sent_ns = time.monotonic_ns()
        try:
            result = self.producer.send(
                Message(topic=topic, body=self._generator.body, properties={MESSAGE_NUMBER: str(message)})
            )
            target, attempts = broker_index(result.queue.broker_name), result.tries
        except OutcomeUnknown as error:
            outcome, remark = "unknown", short_remark(str(error))
        except ResponseError as error:
            outcome, code, remark = "error", error.code, short_remark(str(error))
        except (NotApplied, RemotingError, OSError) as error:
            outcome, remark = "error", short_remark(str(error))
        if target is None:
            target = self.broker_addrs.get(self.asked.addr)
        return Operation(
            op=op,
            user=user,
            target=target,
            due_ns=due_ns,
            sent_ns=sent_ns,
            done_ns=time.monotonic_ns(),
            outcome=outcome,
            code=code,
            remark=remark,
            topic=topic,
            attempts=attempts or max(1, self.asked.count),
            message=message,
            client_side=self.side.name,
        )


class ReadingClient(ObservedClient):
    """A consumer in the consumer group that reads all sent messages."""

    def __init__(self, generator: Generator, number: int) -> None:
        super().__init__(generator, "read", number)
        self.known = [topic_name(place) for place in range(generator.config.load.topics)]
        self.topics = dict.fromkeys([*self.known, *generator.config.new_topics], "*")
        self.consumer: PushConsumer | None = None

    def begin(self, after_s: float) -> None:
        super().begin(after_s)
        self.join()

    def join(self) -> None:
        """Join the group once routes can be read, because a new ZooKeeper session is not usable at once."""
        directory = self.client.core.directory
        for topic in self.known:
            while not self._ended:
                try:
                    self.client.run(directory.refresh(topic))
                    break
                except RemotingError:
                    gevent.sleep(AWAIT_S)
        if not self._ended:
            config = ConsumerConfig(group="mqbench-readers", consume_from=ConsumeFrom.FIRST_OFFSET)
            self.consumer = self.client.consume(config, self.topics, self.read)

    def read(self, messages: Sequence[ReceivedMessage]) -> None:
        """Record the delivery of these messages, one row for each delivery."""
        now_ns = time.monotonic_ns()
        for message in messages:
            number = int(message.properties[MESSAGE_NUMBER])
            self._log.record(Delivery(message=number, user=self.index, t_ns=now_ns))

    def end(self) -> None:
        super().end()
        if self.consumer is not None:
            self.consumer.close()


def view_of(topic: str, route: TopicRouteData | None) -> tuple[ViewState, list[int] | None, int | None]:
    """Return the state, the brokers and the version that a route shows."""
    if route is None:
        return "absent", None, None
    shown = looked_at(route, target=None)
    return "routed", shown.brokers, shown.version if is_versioned(topic) else None


class Shared:
    """A global place for the generator that all users share.

    Locust creates the users, so our code cannot pass the generator to their constructors.
    """

    generator: Generator


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    parser.add_argument("--bench-config", required=True, help="JSON file written by mqbench")


@events.init.add_listener  # type: ignore[untyped-decorator]
def open_log(environment: Any, **_: Any) -> None:
    path = Path(environment.parsed_options.bench_config)
    print("generator ready", flush=True)
    # At this point all modules are loaded. After "ready", the harness writes the configuration with the
    # instant at which the load begins.
    while not path.exists():
        gevent.sleep(AWAIT_S)
    config = msgspec.json.decode(path.read_bytes(), type=GeneratorConfig)
    load = config.load
    for kind in (Lookup, Newcomer, Sender, SenderOnce):
        kind.fixed_count = load.users(kind.op)
    SimulatedBroker.fixed_count = load.sim_brokers
    Shared.generator = Generator(config, environment)
    gevent.spawn(Shared.generator.flush_always)
    gevent.spawn(Shared.generator.await_end, end_path(path))
    gevent.spawn(Shared.generator.await_beginnings, path)


@events.user_error.add_listener  # type: ignore[untyped-decorator]
def void_run(exception: Exception, **_: Any) -> None:
    """End the run, whose results must not count: an exception in a user is a bug of the harness."""
    Shared.generator.environment.process_exit_code = 3
    Shared.generator.environment.runner.quit()


def sleep_until(instant_ns: int) -> None:
    ahead_ns = instant_ns - time.monotonic_ns()
    if ahead_ns > 0:
        gevent.sleep(ahead_ns / 1e9)


class Staying(User):
    """A user that runs until the generator ends all users."""

    abstract = True
    wait_time = constant(0)
    op: Op

    def on_start(self) -> None:
        self.generator = Shared.generator
        self.config = self.generator.config
        self.user = self.generator.number("user")
        self.place = self.generator.number(self.op)
        self.prepare()

    def prepare(self) -> None:
        """Create this user's objects. Locust calls this method inside the user's own greenlet."""

    def stay(self) -> NoReturn:
        """Wait until all users may end, then end this user."""
        self.generator.leaving.wait()
        self.generator.leave()
        raise StopUser


class Paced(Staying):
    """A user that does the due operations of one kind until their schedule has ended."""

    abstract = True

    @property
    def arrivals(self) -> Arrivals[Any]:
        """Schedule of the operations that users of this class do."""
        return self.generator.arrivals_of[self.op]

    @abstractmethod
    def operate(self, number: int, due_ns: int, chosen: Any) -> Operation:
        """Do one operation now and return its event. The caller sets the event's field ``queued``."""

    @task
    def go_on(self) -> None:
        taken = self.arrivals.take()
        if taken is None:
            self.stay()
        number, due_ns, chosen = taken
        queued = due_ns < time.monotonic_ns()
        self.generator.await_due(due_ns)
        if self.arrivals.is_over(due_ns):
            self.stay()
        operation = self.operate(number, due_ns, chosen)
        self.generator.record(msgspec.structs.replace(operation, queued=queued))

    def looked(self, topic: str, due_ns: int, side: Side, ask: Callable[[], Looked]) -> Operation:
        sent_ns = time.monotonic_ns()
        found = ask()
        return Operation(
            op=self.op,
            user=self.user,
            target=found.target,
            due_ns=due_ns,
            sent_ns=sent_ns,
            done_ns=time.monotonic_ns(),
            outcome=found.outcome,
            code=found.code,
            remark=found.remark,
            topic=topic,
            brokers=found.brokers,
            version=found.version if is_versioned(topic) else None,
            attempts=found.attempts,
            client_side=side.name,
        )


class Lookup(Paced):
    """A user that asks for routes over connections that stay open, without a cache."""

    op = "lookup"

    def prepare(self) -> None:
        sessions = self.generator.lookup_sessions
        self.side, self.session = sessions[self.place % len(sessions)]

    def operate(self, number: int, due_ns: int, chosen: str) -> Operation:
        return self.looked(chosen, due_ns, self.side, lambda: self.session.look_up(chosen))


class Newcomer(Paced):
    """A user that connects as a new client to one server, and the next time to the next server."""

    op = "newcomer"

    def operate(self, number: int, due_ns: int, chosen: str) -> Operation:
        turn, target = divmod(number, len(self.generator.side(0).servers))
        side = self.generator.side(turn)
        return self.looked(chosen, due_ns, side, lambda: self.generator.arm.newcomer(side, target, chosen))


class Sender(Paced):
    """A user that sends messages through the brokers that its client's routes name, with retries."""

    op: Op = "send"

    def prepare(self) -> None:
        clients = self.generator.producers[self.op]
        self.producing = clients[self.place % len(clients)]

    def operate(self, number: int, due_ns: int, chosen: str) -> Operation:
        message = 2 * number + (self.op == "send_once")
        return self.producing.send(self.op, chosen, message, user=self.user, due_ns=due_ns)


class SenderOnce(Sender):
    """A user that sends messages through the brokers that its client's routes name, without retries."""

    op = "send_once"


class SimulatedBroker(Staying):
    """A broker that registers each period, and also when a change of one of its topics is due.

    A registration does not wait for the answer to an earlier registration. So a silent nameserver does not
    delay the broker's registrations with other nameservers.
    """

    op = "announce"

    def prepare(self) -> None:
        config = self.config
        self.index = SIMULATED_FROM + self.place
        # Give the brokers different phases, so that the changes of all brokers come at even intervals.
        # Otherwise a short outage might contain no change, and its effect on changes would not be measured.
        self.own = self.generator.arrivals(
            f"change {self.index}",
            config.load.change_per_s / config.load.sim_brokers,
            [None],
            phase=(self.place + stream(config.seed, "phase of changes").random()) / config.load.sim_brokers,
        )
        self.side = self.generator.side(self.place)
        self.session: BrokerSession = self.generator.arm.broker(self.side)
        self.version = 1
        # A nameserver ignores the topics of a registration if it already has their DataVersion. A broker of
        # an earlier run may have had the same name and version. The time stamp makes the DataVersion unique.
        self.stamp = time.time_ns() // 1_000_000
        self.steady = {
            f"sim-{self.index}-{number}": 4 for number in range(config.load.topics_per_sim_broker - 1)
        }
        self.running: set[gevent.Greenlet] = set()
        self.spawn(lambda: self.announced(time.monotonic_ns(), self.change()))
        beats = stream(config.seed, f"heartbeats of {self.index}")
        self.spawn(lambda: self.beat(beats.random()))

    def spawn(self, work: Callable[[], object]) -> None:
        greenlet = gevent.spawn(work)
        self.running.add(greenlet)
        greenlet.link(self.running.discard)
        greenlet.link_exception(lambda failed: void_run(failed.exception))

    def listing(self) -> Listing:
        return Listing(
            index=self.index,
            addr=sim_addr(self.index),
            topics=self.steady | {changing_topic(self.index): self.version},
            version=self.version,
            stamp=self.stamp,
        )

    def change(self) -> int:
        self.version += 1
        return next(self.generator.changes)

    def beat(self, phase: float) -> None:
        period_ns = self.config.arm.heartbeat_ms * 1_000_000
        due_ns = time.monotonic_ns() + round(phase * period_ns)
        while not self.generator.await_due(due_ns):
            self.spawn(lambda due_ns=due_ns: self.announced(due_ns, None))  # type: ignore[misc]
            due_ns += period_ns

    def announced(self, due_ns: int, change: int | None) -> None:
        """Announce the topics to all servers concurrently and record each answer."""
        listing = self.listing()
        begun_ns = time.monotonic_ns()
        facts = {
            "subject": "topic",
            "broker": self.index,
            "topic": changing_topic(self.index),
            "version": listing.version,
            "change": change,
        }
        if change is not None:
            self.generator.log.record(Truth(**facts, what="changing", t_ns=begun_ns))  # type: ignore[arg-type]
        told = (self.session.heartbeat if change is None else self.session.announce)(listing)
        acked = [one.done_ns for one in told if one.outcome == "ok"]
        if change is not None and acked:
            self.generator.log.record(Truth(**facts, what="changed", t_ns=min(acked)))  # type: ignore[arg-type]
        for one in told:
            self.generator.record(
                Operation(
                    op="announce",
                    user=self.user,
                    target=one.target,
                    due_ns=min(due_ns, one.sent_ns),
                    sent_ns=one.sent_ns,
                    done_ns=one.done_ns,
                    outcome=one.outcome,
                    remark=one.remark,
                    topic=changing_topic(self.index),
                    version=listing.version,
                    change=change,
                    client_side=self.side.name,
                )
            )

    @task
    def go_on(self) -> None:
        taken = self.own.take()
        if taken is None:
            self.generator.leaving.wait()
            gevent.joinall(list(self.running), timeout=self.config.load.timeout_s)
            self.stay()
        due_ns = taken[1]
        self.generator.await_due(due_ns)
        if self.own.is_over(due_ns):
            return
        change = self.change()
        self.spawn(lambda: self.announced(due_ns, change))
