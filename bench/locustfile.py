"""Locust users of the comparison: thin callers of our own client, each operation recorded raw.

Started by ``bench.run`` as ``locust --headless -f bench/locustfile.py --bench-config FILE``. All users of a
kind share one open-loop schedule: whoever is free takes the next due operation, and latency counts from its
due instant, so a stalled server shows as latency instead of as fewer requests.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, Final

import gevent
import msgspec
from locust import User, constant, events, task
from locust.exception import StopUser

from bench.pacing import OpenLoop
from bench.prober import Announcement, announce
from bench.run import GeneratorConfig, topic_name
from bench.samples import FLUSH_INTERVAL_NS, Change, EventLog, Op, Operation, Outcome, short_remark
from client.blocking import Client
from client.broker_registration import Registration, encode_registration, register
from client.config import ClientConfig, ProducerConfig
from client.errors import NotApplied, OutcomeUnknown
from client.producer import Message
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError, ResponseError
from remoting.route import DataVersion, TopicConfig

SIM_CLUSTER: Final = "SimulatedCluster"
NO_QUORUM: Final = "[NO_QUORUM]"
#: What a simulated broker waits for a nameserver. The documented 6 s would outlast the whole fault.
REGISTER_TIMEOUT_S: Final = 3.0


class Generator:
    """What all users of this process share."""

    def __init__(self, config: GeneratorConfig, environment: Any) -> None:
        self.config = config
        self.environment = environment
        self.log = EventLog(Path(config.folder), "generator")
        load = config.workload.load
        rates: dict[Op, float] = {
            "route_wire": load.route_wire_per_s,
            "route_http": load.route_http_per_s,
            "send": load.send_per_s,
            "register": load.register_per_s,
        }
        self.loops = {
            op: OpenLoop(start_ns=config.start_ns, rate_per_s=rate, end_ns=config.end_ns)
            for op, rate in rates.items()
        }
        self.random = random.Random(config.seed)
        self.topics = [topic_name(index) for index in range(load.topics)]
        self.announcer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.changes = itertools.count()
        self.sim_indexes = itertools.count()
        self.workers = itertools.count()
        self.active = load.wire_users + load.http_users + load.send_users + load.sim_brokers

    def record(self, operation: Operation) -> None:
        self.log.record(operation)
        self.environment.events.request.fire(
            request_type=operation.op,
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
        """Take one user out; the last one ends the process."""
        self.active -= 1
        if self.active == 0:
            self.log.close()
            self.environment.runner.quit()


class Shared:
    """Holder of the generator; Locust makes users itself, so it cannot be handed to them."""

    generator: Generator


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    parser.add_argument("--bench-config", required=True, help="JSON file written by mqbench")


@events.init.add_listener  # type: ignore[untyped-decorator]
def open_log(environment: Any, **_: Any) -> None:
    path = Path(environment.parsed_options.bench_config)
    config = msgspec.json.decode(path.read_bytes(), type=GeneratorConfig)
    Shared.generator = Generator(config, environment)
    load = config.workload.load
    RouteWire.fixed_count = load.wire_users
    RouteHttp.fixed_count = load.http_users
    Sender.fixed_count = load.send_users
    SimulatedBroker.fixed_count = load.sim_brokers
    gevent.spawn(Shared.generator.flush_always)


@events.user_error.add_listener  # type: ignore[untyped-decorator]
def void_run(exception: Exception, **_: Any) -> None:
    """A user's own failure is a bug of ours, not of what is measured: the run must not be used."""
    Shared.generator.environment.process_exit_code = 3


class LastAddress:
    """Client hook: which server was asked last, and how often one was asked."""

    def __init__(self) -> None:
        self.addr = ""
        self.count = 0

    def before(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        self.addr = addr
        self.count += 1
        return request

    def after(self, addr: str, request: RemotingCommand, answer: RemotingCommand) -> None:
        pass


class Paced(User):
    """Takes due operations of one kind until the schedule is over."""

    abstract = True
    wait_time = constant(0)
    op: Op

    def on_start(self) -> None:
        self.generator = Shared.generator
        self.config = self.generator.config
        self.worker = next(self.generator.workers)
        self.prepare()

    def prepare(self) -> None:
        """Make what this user needs, after the fork and inside its greenlet."""

    def finish(self) -> None:
        """Close it again."""

    @abstractmethod
    def operate(self, due_ns: int) -> None:
        """Do one operation, due at this reading of the monotonic clock, and record it."""

    @task
    def go_on(self) -> None:
        taken = self.generator.loops[self.op].take()
        if taken is None:
            self.finish()
            self.generator.leave()
            raise StopUser
        due_ns = taken[1]
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            gevent.sleep(ahead_ns / 1e9)
        self.operate(due_ns)

    def rotated(self, addrs: list[str]) -> list[str]:
        """Return the addresses so that users begin at different ones."""
        first = self.worker % len(addrs)
        return addrs[first:] + addrs[:first]


def wire_client(user: Paced, hook: LastAddress) -> Client:
    config = ClientConfig(
        nameservers=tuple(user.rotated(user.config.wire)),
        timer_divisor=user.config.workload.timer_divisor,
        call_timeout_s=user.config.workload.load.timeout_s,
    )
    return Client(config, hooks=(hook,), rng=random.Random(user.config.seed + user.worker))


def judge_read(error: Exception) -> tuple[Outcome, int | None]:
    """Say what a failed read means. Every topic asked for is registered, so "no route" is untrue."""
    if isinstance(error, ResponseError):
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return "wrong", error.code
        return ("refused" if error.remark.startswith(NO_QUORUM) else "error"), error.code
    return "error", None


class RouteWire(Paced):
    """Asks for routes over the wire, as a client that refreshes them; tries the next nameserver itself."""

    op = "route_wire"

    def prepare(self) -> None:
        self.last = LastAddress()
        self.caller = wire_client(self, self.last)

    def finish(self) -> None:
        self.caller.close()

    def operate(self, due_ns: int) -> None:
        topic = self.generator.random.choice(self.generator.topics)
        code: int | None = ResponseCode.SUCCESS
        remark = None
        self.last.count = 0
        sent_ns = time.monotonic_ns()
        try:
            route = self.caller.route(topic)
            outcome: Outcome = "ok" if len(route.broker_datas) == len(self.config.brokers) else "wrong"
            if outcome == "wrong":
                remark = f"{len(route.broker_datas)} of {len(self.config.brokers)} brokers"
        except (RemotingError, OSError) as error:
            outcome, code = judge_read(error)
            remark = short_remark(str(error))
        done_ns = time.monotonic_ns()
        self.generator.record(
            Operation(
                op=self.op,
                worker=self.worker,
                target=self.config.wire.index(self.last.addr) if self.last.count else 0,
                due_ns=due_ns,
                sent_ns=sent_ns,
                done_ns=done_ns,
                outcome=outcome,
                code=code,
                remark=remark,
                topic=topic,
                attempts=max(1, self.last.count),
            )
        )


class RouteHttp(Paced):
    """Asks for routes over HTTP on a kept connection; tries the next nameserver when one fails."""

    op = "route_http"

    def prepare(self) -> None:
        self.addrs = self.rotated(self.config.http)
        self.connection: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def ask(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.addrs[0], timeout=timeout_s)
        try:
            self.connection.request("GET", path)
            reply = self.connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            self.disconnect()
            self.addrs = self.addrs[1:] + self.addrs[:1]
            raise

    def operate(self, due_ns: int) -> None:
        topic = self.generator.random.choice(self.generator.topics)
        outcome: Outcome = "error"
        code = remark = None
        target = self.config.http.index(self.addrs[0])
        attempts = 0
        sent_ns = time.monotonic_ns()
        for _ in self.config.http:
            attempts += 1
            target = self.config.http.index(self.addrs[0])
            try:
                code, body = self.ask(f"/v1/topics/{topic}/route", self.config.workload.load.timeout_s)
            except (OSError, http.client.HTTPException) as error:
                remark = short_remark(str(error))
                continue
            outcome, remark = judge_http(code, body, len(self.config.brokers))
            if outcome != "refused":
                break
            self.disconnect()
            self.addrs = self.addrs[1:] + self.addrs[:1]
        done_ns = time.monotonic_ns()
        self.generator.record(
            Operation(
                op=self.op,
                worker=self.worker,
                target=target,
                due_ns=due_ns,
                sent_ns=sent_ns,
                done_ns=done_ns,
                outcome=outcome,
                code=code,
                remark=remark,
                topic=topic,
                attempts=attempts,
            )
        )


def judge_http(status: int, body: bytes, brokers: int) -> tuple[Outcome, str | None]:
    if status == 200:
        found = len(json.loads(body)["route"]["brokerDatas"])
        return ("ok", None) if found == brokers else ("wrong", f"{found} of {brokers} brokers")
    text = body.decode(errors="replace")
    try:
        text = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        pass  # not a problem document: its text will do
    outcomes: dict[int, Outcome] = {404: "wrong", 503: "refused"}
    return outcomes.get(status, "error"), short_remark(text)


class Sender(Paced):
    """Sends messages through the brokers that the routes name."""

    op = "send"

    def prepare(self) -> None:
        self.last = LastAddress()
        self.caller = wire_client(self, self.last)
        load = self.config.workload.load
        self.producer = self.caller.producer(
            ProducerConfig(group="mqbench", send_timeout_s=load.timeout_s, retry_unknown=False)
        )
        self.body = self.generator.random.randbytes(load.message_bytes)

    def finish(self) -> None:
        self.caller.close()

    def operate(self, due_ns: int) -> None:
        topic = self.generator.random.choice(self.generator.topics)
        outcome: Outcome = "ok"
        remark = None
        self.last.count = 0
        sent_ns = time.monotonic_ns()
        try:
            self.producer.send(Message(topic=topic, body=self.body))
        except OutcomeUnknown as error:
            outcome, remark = "unknown", short_remark(str(error))
        except (RemotingError, OSError) as error:
            outcome, remark = "error", short_remark(str(error))
        done_ns = time.monotonic_ns()
        brokers = self.config.brokers
        self.generator.record(
            Operation(
                op=self.op,
                worker=self.worker,
                target=brokers.index(self.last.addr) if self.last.addr in brokers else 0,
                due_ns=due_ns,
                sent_ns=sent_ns,
                done_ns=done_ns,
                outcome=outcome,
                remark=remark,
                topic=topic,
                attempts=max(1, self.last.count),
            )
        )


class SimulatedBroker(Paced):
    """A broker with ten topics that changes one of them and reports to every nameserver at once."""

    op = "register"

    def prepare(self) -> None:
        self.index = next(self.generator.sim_indexes)
        self.version = 0
        self.caller = Client(ClientConfig(nameservers=tuple(self.config.wire)))
        self.name = f"sim-{self.index}"
        self.topic = f"sim-{self.index}-changing"
        count = self.config.workload.load.topics_per_sim_broker - 1
        self.steady = tuple(
            TopicConfig(topic_name=f"sim-{self.index}-{number}", read_queue_nums=4, write_queue_nums=4)
            for number in range(count)
        )
        # DataVersions are compared by equality: the stamp tells this run's broker from another's.
        self.stamp = time.time_ns() // 1_000_000
        self.lease_ms = self.config.workload.timers_ms()["brokerLease"]

    def finish(self) -> None:
        self.caller.close()

    def request(self) -> RemotingCommand:
        changing = TopicConfig(
            topic_name=self.topic, read_queue_nums=self.version, write_queue_nums=self.version
        )
        return encode_registration(
            Registration(
                cluster_name=SIM_CLUSTER,
                broker_name=self.name,
                broker_addr=f"127.0.0.1:{40_000 + self.index}",
                topics=(*self.steady, changing),
                data_version=DataVersion(counter=self.version, timestamp=self.stamp),
                heartbeat_timeout_ms=self.lease_ms,
            )
        )

    def operate(self, due_ns: int) -> None:
        self.version += 1
        change = next(self.generator.changes)
        request = self.request()
        announce(
            self.generator.announcer,
            self.config.prober_port,
            Announcement(change=change, topic=self.topic, version=self.version),
        )
        begun_ns = time.monotonic_ns()
        told = [gevent.spawn(self.tell, target, request) for target in range(len(self.config.wire))]
        gevent.joinall(told, raise_error=True)
        outcomes: list[Outcome] = []
        acked: list[int | None] = []
        for target, (outcome, remark, sent_ns, done_ns) in enumerate(each.value for each in told):
            outcomes.append(outcome)
            acked.append(done_ns if outcome == "ok" else None)
            self.generator.record(
                Operation(
                    op=self.op,
                    worker=self.worker,
                    target=target,
                    due_ns=due_ns,
                    sent_ns=sent_ns,
                    done_ns=done_ns,
                    outcome=outcome,
                    remark=remark,
                    topic=self.topic,
                    version=self.version,
                    change=change,
                )
            )
        self.generator.log.record(
            Change(
                change=change,
                broker=self.index,
                topic=self.topic,
                begun_ns=begun_ns,
                acked_ns=acked,
                outcomes=outcomes,
                version=self.version,
            )
        )

    def tell(self, target: int, request: RemotingCommand) -> tuple[Outcome, str | None, int, int]:
        sent_ns = time.monotonic_ns()
        outcome: Outcome = "ok"
        remark = None
        try:
            self.caller.run(register(self.config.wire[target], request, timeout_s=REGISTER_TIMEOUT_S))
        except OutcomeUnknown as error:
            outcome, remark = "unknown", short_remark(str(error))
        except NotApplied as error:
            outcome = "refused" if NO_QUORUM in str(error) else "error"
            remark = short_remark(str(error))
        return outcome, remark, sent_ns, time.monotonic_ns()
