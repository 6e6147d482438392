"""What every Locust user here shares: the command line, the topics, and when an operation is due.

Each user has a schedule of its own that begins when it is spawned: operation *i* is due at its planned
instant, and its response time counts from there. A server that stalls shows as response times, not as fewer
requests; more users, or more processes, make more load, as everywhere in Locust.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from abc import abstractmethod
from typing import Any, Final

import gevent
from locust import User, constant, events, task
from locust.runners import MasterRunner

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.arrivals import NS_PER_S, Arrivals
from routekeeper.bench.processes import ClusterError
from routekeeper.client.admin import masters
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.raft_group import NoAnswer, http_address
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.properties import split_properties
from routekeeper.remoting.route import TopicConfig

log = logging.getLogger(__name__)
logging.getLogger("routekeeper.client").setLevel(
    logging.WARNING
)  # a line per queue and user tells nothing here

HOST: Final = "127.0.0.1:9876"
NS_PER_MS: Final = 1_000_000
#: How long new topics may take until every nameserver has a route, s.
ROUTED_S: Final = 5.0
IDLE_S: Final = 1.0

#: Users of one process, so that each gets a number of its own.
_numbers = itertools.count()


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: Any) -> None:
    """Add what the web page shows, too; ``--host`` names the nameservers: ``h1:9876;h2:9876``."""
    parser.add_argument(
        "--http-addrs",
        default="",
        help="where they serve HTTP, 'h1:9880;h2:9880' (default: they are asked)",
    )
    parser.add_argument(
        "--topics", type=int, default=4, help="topics made, asked for and sent to (default: 4)"
    )
    parser.add_argument(
        "--rate", type=float, default=10.0, help="operations per second of each user (default: 10)"
    )
    parser.add_argument(
        "--registrar-rate", type=float, default=1.0, help="registrations per second of each (default: 1)"
    )
    parser.add_argument("--message-bytes", type=int, default=256, help="body of a message (default: 256)")
    parser.add_argument("--request-timeout-s", type=float, default=3.0, help="of one request, s (default: 3)")
    parser.add_argument(
        "--group", default="locust", help="group of producers and consumers (default: locust)"
    )


def addresses(text: str) -> list[str]:
    """Return the addresses of ``h1:9876;h2:9876``; a scheme, as the web page may want one, is left out."""
    parts = (part.strip().removeprefix("http://").rstrip("/") for part in text.split(";"))
    return [part for part in parts if part]


def topic_names(count: int) -> list[str]:
    return [f"locust-{number}" for number in range(count)]


def client_config(servers: list[str], timeout_s: float) -> ClientConfig:
    return ClientConfig(nameservers=tuple(servers), call_timeout_s=timeout_s)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def make_topics(environment: Any, **_: Any) -> None:
    """Make the topics on every broker before the first user asks for them."""
    if isinstance(environment.runner, MasterRunner):
        return  # its workers do
    options = environment.parsed_options
    servers = addresses(environment.host or HOST)
    topics = topic_names(options.topics)
    try:
        client = Client(client_config(servers, options.request_timeout_s))
        try:
            _make_topics(client, servers, topics)
        finally:
            client.close()
    except (RemotingError, ClusterError) as error:
        log.warning("topics are not ready: %s", str(error).partition("\n")[0])


def _make_topics(client: Client, servers: list[str], topics: list[str]) -> None:
    info = client.run(client.admin.cluster_info())
    for cluster in info.cluster_addr_table:
        for addr in masters(info, cluster).values():
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
    """Ask the nameservers where they serve HTTP.

    Raises:
        NoAnswer: If none does.
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
    """An operation did not do what it was to do; the message says why."""


class LoadUser(User):
    """Does one step again and again."""

    abstract = True
    host = HOST
    wait_time = constant(0)
    request_type = "RMQ"
    name: str

    def on_start(self) -> None:
        self.number = next(_numbers)
        self.options = self.environment.parsed_options
        self.servers = addresses(self.host or HOST)
        self.chance = random.Random(f"{os.getpid()}/{self.number}")
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Make what this user needs: clients belong to their process."""

    @abstractmethod
    def end(self) -> None:
        """Close it again."""

    @abstractmethod
    def step(self) -> None:
        """Do the next thing, and tell Locust of it."""

    @task
    def go_on(self) -> None:
        self.step()

    def on_stop(self) -> None:
        self.end()

    def new_client(self) -> Client:
        return Client(client_config(self.rotated(self.servers), self.options.request_timeout_s))

    def rotated(self, addrs: list[str]) -> list[str]:
        """Return the addresses so that users begin at different ones."""
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
    """Does each operation when it is due."""

    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self.schedule = Arrivals(
            start_ns=time.monotonic_ns(),
            rate_per_s=self.rate(),
            choices=topic_names(self.options.topics),
            chance=self.chance,
        )

    def rate(self) -> float:
        """Return operations per second."""
        return float(self.options.rate)

    @abstractmethod
    def operate(self, topic: str, due_ns: int) -> int:
        """Do it now; return the length of the answer.

        Raises:
            RemotingError, OSError, Failed: What went wrong, for Locust's table of failures.
        """

    def step(self) -> None:
        taken = self.schedule.take()
        if taken is None:  # a rate of 0
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
            failure = error
        self.tell((time.monotonic_ns() - due_ns) / NS_PER_MS, length, failure)
