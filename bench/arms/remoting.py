"""Designs with RocketMQ's protocol.

A broker registers with every nameserver. A client asks one nameserver.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from routekeeper.bench.arms.interface import (
    CLUSTER,
    Arm,
    ArmConfig,
    Listing,
    Looked,
    Side,
    Told,
    as_dialled,
    broker_name,
    client_config,
    looked_at,
)
from routekeeper.bench.broker_registration import (
    Registration,
    encode_registration,
    encode_unregistration,
    tell,
)
from routekeeper.bench.events import Outcome
from routekeeper.bench.recorder import short_remark
from routekeeper.client.blocking import Client
from routekeeper.client.core import ClientCore
from routekeeper.client.directory import Directory, ask_nameservers
from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.operation import Operation
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.route import DataVersion, TopicConfig, TopicRouteData
from routekeeper.remoting.transport import RPCHook

NO_QUORUM = "[NO_QUORUM]"
#: A function that runs several calls concurrently and returns their results in the order of the calls.
#: Locust's simulated clients pass a function that uses gevent.
AtOnce = Callable[[list[Callable[[], Told]]], list[Told]]


def one_by_one(calls: list[Callable[[], Told]]) -> list[Told]:
    return [call() for call in calls]


class LastAsked(threading.local):
    """A hook of the client library that notes the last asked address and counts requests.

    Each thread or greenlet has its own address and count.
    """

    addr = ""
    count = 0

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        self.addr = remote
        self.count += 1
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


def failed_look_up(error: Exception, *, target: int | None, attempts: int) -> Looked:
    """Return the result of a look-up that failed with ``error``."""
    outcome: Outcome = "error"
    code = None
    if isinstance(error, ResponseError):
        code = error.code
        if code == ResponseCode.TOPIC_NOT_EXIST:
            outcome = "absent"
        elif error.remark.startswith(NO_QUORUM):
            outcome = "refused"
    return Looked(
        outcome=outcome,
        target=target,
        code=code,
        remark=short_remark(str(error)),
        attempts=max(1, attempts),
    )


class RemotingArm:
    """Our nameservers in independent or raft mode, or Apache's nameservers."""

    def __init__(self, config: ArmConfig, at_once: AtOnce = one_by_one) -> None:
        self.config = config
        self._at_once = at_once

    def broker(self, side: Side) -> RemotingBroker:
        return RemotingBroker(self.config, side, self._at_once)

    def client(self, side: Side, user: int) -> RemotingClientSession:
        first = user % len(side.servers)
        return RemotingClientSession(self.config, side, side.servers[first:] + side.servers[:first])

    def starting_client(self, side: Side, first: int) -> RemotingClientSession:
        """Return a client whose first request goes to the server at index ``first``."""
        session = RemotingClientSession(self.config, side, side.servers)
        session.begin_with(first)
        return session

    def newcomer(self, side: Side, target: int, topic: str) -> Looked:
        """Connect to one server as a new client, ask for one topic's route, and disconnect."""
        session = RemotingClientSession(self.config, side, [side.servers[target]])
        try:
            return replace(session.look_up(topic), target=target)
        finally:
            session.close()

    def producer_client(self, side: Side, user: int, *, seed: int, hooks: tuple[RPCHook, ...]) -> Client:
        """Return our own client, which reads and refreshes routes at this design's servers."""

        def source(directory: Directory, topic: str, *, timeout_s: float | None) -> Operation[TopicRouteData]:
            return as_dialled(
                (yield from ask_nameservers(directory, topic, timeout_s=timeout_s)), side.brokers
            )

        return Client(
            client_config(self.config, side.servers),
            hooks=hooks,
            rng=random.Random(seed),
            core=partial(ClientCore, source=source),
        )


class RemotingBroker:
    """A simulated broker that registers with all nameservers concurrently, over connections of its own."""

    def __init__(self, config: ArmConfig, side: Side, at_once: AtOnce) -> None:
        self._config = config
        self._side = side
        self._at_once = at_once
        self._client = Client(client_config(config, side.servers))
        self._last: Registration | None = None

    def announce(self, listing: Listing) -> list[Told]:
        """Announce a change. Return the answers when every server has answered or failed."""
        self._last = Registration(
            cluster_name=CLUSTER,
            broker_name=broker_name(listing.index),
            broker_addr=listing.addr,
            topics=tuple(
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                for topic, queues in listing.topics.items()
            ),
            data_version=DataVersion(counter=listing.version, timestamp=listing.stamp),
            heartbeat_timeout_ms=self._config.lease_ms,
        )
        request = encode_registration(self._last)
        return self._at_once(
            [lambda target=target: self._tell(target, request) for target in range(len(self._side.servers))]  # type: ignore[misc]
        )

    def heartbeat(self, listing: Listing) -> list[Told]:
        """Announce the unchanged ``listing`` again, because the servers would otherwise drop the broker."""
        return self.announce(listing)

    def _tell(self, target: int, request: RemotingCommand) -> Told:
        sent_ns = time.monotonic_ns()
        outcome: Outcome = "ok"
        remark = None
        try:
            self._client.run(tell(self._side.servers[target], request, timeout_s=self._config.timeout_s))
        except OutcomeUnknown as error:
            outcome, remark = "unknown", short_remark(str(error))
        except NotApplied as error:
            outcome = "refused" if NO_QUORUM in str(error) else "error"
            remark = short_remark(str(error))
        return Told(
            target=target, outcome=outcome, remark=remark, sent_ns=sent_ns, done_ns=time.monotonic_ns()
        )

    def withdraw(self) -> None:
        for addr in self._side.servers:
            if self._last is not None:
                try:
                    request = encode_unregistration(self._last)
                    self._client.run(tell(addr, request, timeout_s=self._config.timeout_s))
                except (NotApplied, OutcomeUnknown):
                    # Ignore the error: the server removes the broker anyway when the connection closes.
                    pass

    def close(self) -> None:
        self._client.close()


class RemotingClientSession:
    """Look-ups over connections that stay open.

    If a nameserver fails, the client library itself tries the next nameserver.
    """

    def __init__(self, config: ArmConfig, side: Side, order: list[str]) -> None:
        self._servers = side.servers
        self._asked = LastAsked()
        self._client = Client(client_config(config, order), hooks=(self._asked,))

    def begin_with(self, target: int) -> None:
        """Let the session send its first request to the server with the index ``target``.

        By default a RocketMQ client begins with a random nameserver.
        """
        self._client.core.directory.nameservers.answered(self._servers[target])

    def look_up(self, topic: str) -> Looked:
        """Ask for a topic's route. If a server does not answer, ask the next server."""
        self._asked.count = 0
        try:
            route = self._client.route(topic)
        except (RemotingError, OSError) as error:
            return failed_look_up(error, target=self._target(), attempts=self._asked.count)
        return looked_at(route, target=self._target(), attempts=max(1, self._asked.count))

    def _target(self) -> int | None:
        return self._servers.index(self._asked.addr) if self._asked.addr in self._servers else None

    def close(self) -> None:
        self._client.close()


def threaded_arm(config: ArmConfig) -> Arm:
    """Return the part of a design that clients use. Each of its calls blocks the calling thread."""
    if config.kind == "zookeeper":
        # Imported here, because only the design ZooKeeper needs kazoo.
        from routekeeper.bench.arms.zookeeper import ZooKeeperArm

        return ZooKeeperArm(config)
    return RemotingArm(config)
