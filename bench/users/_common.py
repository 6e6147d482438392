"""Code that all Locust users of this package share: the command line, the topics and the schedule.

Each user has its own schedule, which begins when the user is spawned. The schedule gives each operation a
planned instant, and the operation's response time counts from that instant. A stalled server therefore shows
as longer response times, not as fewer requests. To increase the load, start more users or more processes, as
always in Locust.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import sys
import time
from abc import abstractmethod
from typing import Any, Final

import gevent
from locust import User, constant, events, task
from locust.runners import MasterRunner, WorkerRunner

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.arrivals import NS_PER_S, Arrivals
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.users._arguments import addresses, problem_of
from routekeeper.client.admin import masters
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.errors import NoRoute
from routekeeper.client.raft_group import NoAnswer, http_address
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.properties import split_properties
from routekeeper.remoting.route import ClusterInfo, TopicConfig

log = logging.getLogger(__name__)
logging.getLogger("routekeeper.client").setLevel(
    logging.WARNING
)  # At level INFO, the client library would log one line for each queue and each user.

HOST: Final = "127.0.0.1:9876"
NS_PER_MS: Final = 1_000_000
#: Longest wait until every nameserver has a route of the new topics, in seconds.
ROUTED_S: Final = 5.0
IDLE_S: Final = 1.0
WAIT_S: Final = 0.1
#: Prefix of the names of simulated brokers.
SIMULATED: Final = "sim-"

#: Counter that gives each new user in this process the next number.
_numbers = itertools.count()


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    """Add the arguments to the command line and the web page.

    ``--host`` is Locust's own argument and lists the nameservers: ``h1:9876;h2:9876``.
    """
    parser.add_argument(
        "--http-addrs",
        default="",
        help="HTTP addresses of the nameservers, 'h1:9880;h2:9880' (default: ask each nameserver for its "
        "own)",
    )
    parser.add_argument(
        "--topics", type=int, default=4, help="number of topics to make, look up and send to (default: 4)"
    )
    parser.add_argument(
        "--rate", type=float, default=10.0, help="operations per second of each user (default: 10)"
    )
    parser.add_argument(
        "--registrar-rate",
        type=float,
        default=1.0,
        help="registrations per second of each user that registers (default: 1)",
    )
    parser.add_argument(
        "--message-bytes", type=int, default=256, help="bytes of a message's body (default: 256)"
    )
    parser.add_argument(
        "--request-timeout-s", type=float, default=3.0, help="time-out of one request, s (default: 3)"
    )
    parser.add_argument(
        "--group", default="locust", help="group of producers and consumers (default: locust)"
    )


def topic_names(count: int) -> list[str]:
    return [f"locust-{number}" for number in range(count)]


def client_config(servers: list[str], timeout_s: float) -> ClientConfig:
    return ClientConfig(nameservers=tuple(servers), call_timeout_s=timeout_s)


@events.init.add_listener  # type: ignore[untyped-decorator]
def check_arguments(environment: Any, runner: Any, **_: Any) -> None:
    """Exit with a one-line message if an argument is invalid.

    A worker process checks nothing, because its master sends it the arguments.
    """
    if environment.parsed_options is None or isinstance(runner, WorkerRunner):
        return
    problem = problem_of(environment.parsed_options, environment.host)
    if problem is not None:
        print(f"locust: {problem}", file=sys.stderr)
        sys.exit(2)


class NoBroker(Exception):
    """No broker is registered, so the topics cannot be created."""


class Topics:
    """The topics that the users of this process need.

    The topics are created on every broker. A failed attempt is repeated until every nameserver has routes for
    all topics.

    Attributes:
        made: True if every nameserver has the topics.
        awaited: True if the last attempt reached the nameservers, but the topics do not exist yet. In this
            state users wait.
    """

    def __init__(self) -> None:
        self.made = self.awaited = False
        self._making: gevent.Greenlet | None = None

    def begin(self, environment: Any) -> None:
        """Try once to create the topics. After a failure, try again in the background while users run."""
        self.end()
        failure = self._try(environment)
        if failure is None:
            return
        log.warning("topics are not ready, they are tried again: %s", failure)
        self._making = gevent.spawn(self._go_on, environment)

    def end(self) -> None:
        """Stop the attempts to create the topics."""
        if self._making is not None:
            self._making.kill()
            self._making = None
        self.made = self.awaited = False

    def _go_on(self, environment: Any) -> None:
        while self._try(environment) is not None:
            gevent.sleep(IDLE_S)
        log.warning("topics are ready")

    def _try(self, environment: Any) -> str | None:
        """Create the missing topics. Return None, or the reason of a failure in one line."""
        options = environment.parsed_options
        servers = addresses(environment.host or HOST)
        reached = False
        try:
            with contextlib.closing(Client(client_config(servers, options.request_timeout_s))) as client:
                info = client.run(client.admin.cluster_info())
                reached = True
                _make_topics(client, info, servers, topic_names(options.topics))
        except (RemotingError, OSError, ClusterError, NoBroker) as error:
            self.awaited = reached or isinstance(error, ResponseError)
            return str(error).partition("\n")[0]
        self.made, self.awaited = True, False
        return None

    def are_missed_by(self, error: Exception) -> bool:
        """Return True if an operation failed only because the topics do not exist yet."""
        return not self.made and (
            isinstance(error, (NoRoute, Missing))
            or (isinstance(error, ResponseError) and error.code == ResponseCode.TOPIC_NOT_EXIST)
        )


TOPICS: Final = Topics()


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def make_topics(environment: Any, **_: Any) -> None:
    """Create the topics on every broker before the first user needs them."""
    if isinstance(environment.runner, MasterRunner):
        return  # a master runs no users, and its workers create the topics
    problem = problem_of(environment.parsed_options, environment.host)
    if problem is None:
        TOPICS.begin(environment)
    else:  # `check_arguments` has not checked values that the user set on Locust's web page later.
        log.error("%s", problem)


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def leave_topics(**_: Any) -> None:
    """Stop creating topics when the users have stopped."""
    TOPICS.end()


def _make_topics(client: Client, info: ClusterInfo, servers: list[str], topics: list[str]) -> None:
    """Create topics on every broker that is not simulated, and wait for their routes on all nameservers.

    Raises:
        NoBroker: If no broker is registered.
        ClusterError: If a nameserver still has no route of a topic after ROUTED_S seconds.
        RemotingError: If a broker did not create a topic.
    """
    addrs = [
        addr
        for cluster in info.cluster_addr_table
        for name, addr in masters(info, cluster).items()
        if not name.startswith(SIMULATED)
    ]
    if not addrs:
        raise NoBroker("no broker is registered")
    for addr in addrs:
        for topic in topics:
            config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
            client.run(client.admin.create_topic(addr, config))

    def routed() -> bool:
        try:
            for server in servers:
                for topic in topics:
                    client.route(topic, nameserver=server)
        except RemotingError:
            return False
        return True

    wait_until(routed, "topics have no route", [], ROUTED_S)


def http_addresses(client: Client) -> list[str]:
    """Return the HTTP addresses that the nameservers report.

    Raises:
        NoAnswer: If no nameserver serves HTTP.
    """
    found, missing = [], []
    for answer in client.run(client.admin.namesrv_config()):
        try:
            if answer.response is None:
                raise NoAnswer(f"name server[{answer.addr}]: {answer.error}")
            found.append(http_address(answer.addr, split_properties(answer.response.body)))
        except NoAnswer as error:
            missing.append(str(error))
    if not found:
        raise NoAnswer("; ".join(missing))
    return found


class Failed(Exception):
    """An operation failed. The message says why."""


class Missing(Failed):
    """A nameserver answered over HTTP that the topic does not exist."""


class LoadUser(User):
    """A Locust user that repeats one step until it is stopped."""

    abstract = True
    host = HOST
    wait_time = constant(0)
    request_type = "RMQ"
    name: str

    needs_topics = True
    """True if this user sends no operation before the topics are made."""

    def on_start(self) -> None:
        self.number = next(_numbers)
        self.options = self.environment.parsed_options
        self.servers = addresses(self.host or HOST)
        self.chance = random.Random(f"{os.getpid()}/{self.number}")
        self.spawned_ms = time.time() * 1000
        self.problem = problem_of(self.options, self.host)
        self.has_begun = False

    @abstractmethod
    def begin(self) -> None:
        """Create the clients that this user needs, in the process that runs the user.

        Raises:
            RemotingError, OSError: If a client cannot be created. The method then leaves no client open, and
                the caller tries again later.
        """

    @abstractmethod
    def end(self) -> None:
        """Close the user's clients."""

    @abstractmethod
    def step(self) -> None:
        """Do the next operation, and report it to Locust."""

    def wait(self) -> None:
        """Pause for WAIT_S seconds. Operations that become due in the meantime are skipped."""
        gevent.sleep(WAIT_S)

    @task
    def go_on(self) -> None:
        if self.problem is not None:
            self.fail(Failed(self.problem), 0.0)
        elif self.needs_topics and TOPICS.awaited:
            self.wait()
        elif self.has_begun:
            self.step()
        else:
            begun = time.monotonic()
            try:
                self.begin()
            except (RemotingError, OSError) as error:
                if self.needs_topics and TOPICS.are_missed_by(error):
                    self.wait()
                    return
                self.fail(error, (time.monotonic() - begun) * 1000)
            else:
                self.has_begun = True

    def fail(self, failure: Exception, took_ms: float) -> None:
        """Report to Locust that this user could not begin, then pause for IDLE_S seconds."""
        self.tell(took_ms, 0, failure)
        gevent.sleep(IDLE_S)

    def on_stop(self) -> None:
        if self.has_begun:
            self.end()

    def new_client(self) -> Client:
        return Client(client_config(self.rotated(self.servers), self.options.request_timeout_s))

    def rotated(self, addrs: list[str]) -> list[str]:
        """Return the addresses in an order that starts at a different address for each user."""
        first = self.number % len(addrs)
        return addrs[first:] + addrs[:first]

    def tell(self, took_ms: float, length: int, failure: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type=self.request_type,
            name=self.name,
            response_time=took_ms,
            response_length=length,
            exception=failure,
            context={},
        )


class ScheduledUser(LoadUser):
    """A user that does each operation at its planned instant."""

    abstract = True

    schedule: Arrivals[str] | None = None
    """Planned instants of the operations. None before the first operation, and after each wait for topics."""

    def wait(self) -> None:
        self.schedule = None
        super().wait()

    def rate(self) -> float:
        """Return this user's rate in operations per second."""
        return float(self.options.rate)

    @abstractmethod
    def operate(self, topic: str, due_ns: int) -> int:
        """Do one operation. Return the length of the answer in bytes.

        Raises:
            RemotingError, OSError, Failed: If the operation failed. Locust's table of failures lists it.
        """

    def step(self) -> None:
        if self.schedule is None:
            self.schedule = Arrivals(
                start_ns=time.monotonic_ns(),
                rate_per_s=self.rate(),
                choices=topic_names(self.options.topics),
                chance=self.chance,
            )
        taken = self.schedule.take()
        if taken is None:  # there are no operations, because the rate is 0
            gevent.sleep(IDLE_S)
            return
        _, due_ns, topic = taken
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            gevent.sleep(ahead_ns / NS_PER_S)
        length = 0
        failure: Exception | None = None
        try:
            length = self.operate(topic, due_ns)
        except (RemotingError, OSError, Failed) as error:
            if self.needs_topics and TOPICS.are_missed_by(error):
                self.wait()
                return
            failure = error
        self.tell((time.monotonic_ns() - due_ns) / NS_PER_MS, length, failure)
