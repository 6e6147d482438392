"""State that the jobs of a load process share: the plan, connections, and an end when something fails."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar, cast

import msgspec

from routekeeper.bench.micro.raft.jute import JuteWire
from routekeeper.bench.micro.raft.remoting_wire import RemotingWire
from routekeeper.bench.micro.raft.wire import Answer, Conversation, Wire, WireError

Kind = Literal["remoting", "jute"]
JobName = Literal["one", "writes", "visible", "reads", "failover", "heartbeats", "watch", "poll"]
W = TypeVar("W", bound=Conversation)
CONNECT_S: Final = 10.0
PREPARE_S: Final = 20.0

now = time.perf_counter


class Plan(msgspec.Struct, kw_only=True):
    """The plan of a load process.

    Attributes:
        members: ``host:port`` of each member; connections take turns among them.
        value_size: Bytes written under a key; the remoting protocol has ``topics`` instead.
        pids: Processes whose CPU time is read.
        victim: Process that the failover job ends.
        by: The signal by which it does.
        lease_s: Of the heartbeat job: ZooKeeper's session timeout.
        watched: ``host:port`` where each member tells of changes.
        watchers: How many at each member are told.
        report: Seconds between lines on standard error, for a load that is held; 0 for none.
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
    victim: int = 0
    by: int = signal.SIGKILL
    lease_s: int = 30
    watched: list[str] = []
    watchers: int = 1
    report: float = 0.0


class Client(asyncio.Protocol, Generic[W]):
    """One connection; answers go to ``answered``, its end to ``lost``."""

    def __init__(
        self,
        wire: W,
        answered: Callable[[Client[W], Answer], None],
        lost: Callable[[Client[W], str], None],
    ) -> None:
        self.wire = wire
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.key = 0
        self.number = 0
        self.sent_at = 0.0
        self.answered = answered
        self._lost = lost
        self._transport: asyncio.Transport
        self.send: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.send = self._transport.write
        hello = self.wire.hello()
        if hello:
            self.send(hello)
        if self.wire.ready:
            self.ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self.wire.feed(data)
        except WireError as error:
            self._lost(self, str(error))
            self.abort()
            return
        if self.wire.out:
            self.send(bytes(self.wire.out))
            self.wire.out.clear()
        for answer in answers:
            self.answered(self, answer)
        if not self.ready.done() and self.wire.ready:
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self, f"connection lost: {error}")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"closed before it was ready: {error}"))
            self.ready.exception()  # the caller that waits sees it, if there is one

    def abort(self) -> None:
        self._transport.abort()


class Job:
    """Base of all jobs of a load process: connections, and an end when something fails."""

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
        """Connect to a member, as the writer of ``key``."""
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
        """Connect, and return once requests may be sent.

        Args:
            lost: Called when the connection ends; without it that ends the run.
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
        """Create each connection's own key; what is answered afterwards goes to ``answered``."""
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
        """Wait for ``done``, at most so long; a failure of the run ends it.

        Raises:
            WireError: The failure, or that time is up.
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
