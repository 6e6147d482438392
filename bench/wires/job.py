"""The plan of a load process, and the base class of its jobs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from routekeeper.bench.wires.client import Client, Kind, W
from routekeeper.bench.wires.jute import JuteWire
from routekeeper.bench.wires.remoting_wire import RemotingWire
from routekeeper.bench.wires.wire import Answer, Wire, WireError

JobName = Literal["one", "writes", "visible", "reads", "watch", "poll"]
CONNECT_S: Final = 10.0
PREPARE_S: Final = 20.0

now = time.perf_counter


class Plan(msgspec.Struct, kw_only=True):
    """The plan of a load process.

    Attributes:
        members: ``host:port`` of each member. Connections are spread over the members in rotation.
        value_size: Bytes of the value that a ZooKeeper write stores. The remoting protocol has no such value.
            The size of its writes depends on ``topics``.
        pids: Processes whose CPU time is measured.
        watched: ``host:port`` at which each member reports changes to watchers.
        watchers: Number of watchers at each member.
        first_key: Lowest number of a broker or node that the watch and poll jobs use. Other load processes
            use lower numbers.
        everywhere: True if the broker of the watch and poll jobs registers with every member, as RocketMQ's
            brokers do. False if the broker registers with one member.
    """

    job: JobName
    kind: Kind
    members: list[str]
    connections: int
    warm_s: float
    measure_s: float
    value_size: int = 200
    topics: int = 10
    pids: list[int] = []
    watched: list[str] = []
    watchers: int = 1
    first_key: int = 0
    everywhere: bool = False


class Job:
    """Base class of all jobs of a load process. It opens connections, and ends the job after a failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self._value = os.urandom(max(0, plan.value_size))
        self.timestamp_ms = time.time_ns() // 1_000_000
        self.stopping = False
        self.failed: asyncio.Future[None] = self.loop.create_future()

    def wire(self, key: int) -> Wire:
        plan = self.plan
        if plan.kind == "remoting":
            return RemotingWire(key=key, topics=plan.topics, timestamp_ms=self.timestamp_ms)
        return JuteWire(key=key, value=self._value)

    async def connect(
        self,
        key: int,
        member: int,
        answered: Callable[[Client[Wire], Answer], None],
        lost: Callable[[Client[Wire], str], None] | None = None,
    ) -> Client[Wire]:
        """Connect to a member. Writes over this connection register one broker or set one ZooKeeper node.

        Args:
            key: Number of this broker or node.
            member: Position of the member in the plan's ``members``.
            lost: See :meth:`dial`.
        """
        client = await self.dial(self.wire(key), self.plan.members[member], answered, lost)
        client.key = key
        return client

    async def dial(
        self,
        wire: W,
        addr: str,
        answered: Callable[[Client[W], Answer], None],
        lost: Callable[[Client[W], str], None] | None = None,
    ) -> Client[W]:
        """Connect, and return as soon as requests may be sent.

        Args:
            lost: Called when the connection ends. Without this callback, the run fails when the connection
                ends.
        """
        host, _, port = addr.rpartition(":")
        ended = lost or (lambda client, reason: self.fail(f"{addr}: {reason}"))
        _, client = await self.loop.create_connection(lambda: Client(wire, answered, ended), host, int(port))
        await asyncio.wait_for(client.ready, CONNECT_S)
        return client

    def fail(self, reason: str) -> None:
        if not self.stopping and not self.failed.done():
            self.failed.set_exception(WireError(reason))

    async def prepare(
        self, clients: list[Client[Wire]], answered: Callable[[Client[Wire], Answer], None]
    ) -> None:
        """Create each connection's broker or node, and set ``answered`` as the handler of later answers."""
        missing = set(clients)
        done: asyncio.Future[None] = self.loop.create_future()

        def prepared(client: Client[Wire], answer: Answer) -> None:
            if answer.error:
                self.fail(f"prepare: {answer.error}")
            missing.discard(client)
            if not missing and not done.done():
                done.set_result(None)

        for client in clients:
            client.answered = prepared
            client.send(client.wire.prepare())
        await self.until(done, PREPARE_S)
        for client in clients:
            client.answered = answered

    async def until(self, done: asyncio.Future[None], seconds: float) -> None:
        """Wait for ``done`` for at most ``seconds``. A failure of the run ends the wait at once.

        Raises:
            WireError: If the run failed, or if ``done`` is not set in time.
        """
        await asyncio.wait((done, self.failed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            await self.failed
        if not done.done():
            raise WireError(f"no answer within {seconds:g} s")

    async def pause(self, seconds: float) -> None:
        await asyncio.wait((self.failed,), timeout=seconds)
        if self.failed.done():
            await self.failed
