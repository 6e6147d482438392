"""The process that runs all brokers of a storm: they register, repeat the registration, leave and return.

The process reads JSON from standard input: a :class:`Plan`, and then one :class:`Command` in each line. It
answers each command with one line of JSON, and ends when its standard input ends.

A broker has a connection to each nameserver, or one session with one ZooKeeper server. If it loses a
connection, it connects again after a pause, as soon as the server accepts a connection. It sends a
registration again if the server refused it, or if the outcome is unknown. Each registration and each lost
connection is a row of the result.

The process also measures the pauses of its own event loop, because such a pause looks like a delay of a
server.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import uvloop

from routekeeper.bench.storm.frames import QUEUES, Topics, make_topics, register_frame, topic_name
from routekeeper.bench.storm.sessions import (
    MULTIS_IN_FLIGHT,
    PING_S,
    Encoded,
    Session,
    encode_changes,
    encode_nodes,
    nodes_of,
    slices,
)
from routekeeper.bench.wires.client import Client, Kind
from routekeeper.bench.wires.remoting_wire import RemotingAnswers
from routekeeper.bench.wires.wire import Answer
from routekeeper.remoting.route import DataVersion

#: Seconds without an answer after which a broker closes the connection: RocketMQ's
#: registerBrokerTimeoutMills.
ANSWER_S: Final = 24.0
#: Pause in seconds after a refusal. It is also the pause after a lost connection, unless
#: :meth:`Brokers.returning` spreads the return of the brokers. A real broker would wait longer, for its next
#: period (30 s). So after a failed registration, the measured times are shorter than with real brokers.
#: Therefore the result also has the number of failed registrations.
AGAIN_S: Final = 1.0
CONNECT_AGAIN_S: Final = 0.1
CONNECT_S: Final = 10.0
#: RocketMQ's registerNameServerPeriod, in seconds.
PERIOD_S: Final = 30.0
TICK_S: Final = 0.001
#: Names of the topics of the resident broker, which never leaves. The bystander process asks for the routes
#: of these topics, because they stay the same while other brokers register or leave.
RESIDENT_TOPICS: Final = [f"resident-{number}" for number in range(10)]
_CREATED_MS: Final = 1_700_000_000_000


class Plan(msgspec.Struct, kw_only=True):
    """The brokers, and the servers with which they register.

    Attributes:
        resident: True to add one broker that has topics of its own and never leaves.
        compressed: True to compress registrations; real brokers do not compress them by default.
    """

    kind: Kind
    servers: list[str]
    brokers: int
    topics: int
    resident: bool = True
    compressed: bool = False


class Command(msgspec.Struct, kw_only=True):
    """One command; ``do`` is the name of the method of :class:`Brokers` that carries it out.

    Attributes:
        seconds: Duration, or time limit, of the command.
    """

    do: str
    seconds: float = 0.0


class Pauses:
    """Pauses of this process's event loop in ns: their sum, and the longest pause."""

    def __init__(self) -> None:
        self.total_ns = 0
        self.longest_ns = 0

    async def watch(self) -> None:
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(TICK_S)
            late = time.monotonic_ns() - before - round(2 * TICK_S * 1e9)
            if late > 0:
                self.total_ns += late
                self.longest_ns = max(self.longest_ns, late)


class Lane(abc.ABC):
    """One broker at one server: its connection to a nameserver, or its session with ZooKeeper.

    Attributes:
        wanted: Set when the broker has to register.
        listed: Set as long as the registration is acknowledged, over this connection or session.
        answered_s: During a registration: time of the last answer, on the event loop's clock.
    """

    def __init__(self, given: Brokers, broker: int, server: int) -> None:
        self.given = given
        self.broker = broker
        self.server = server
        self.client: Client[Any] | None = None
        self.connected = asyncio.Event()
        self.wanted = asyncio.Event()
        self.listed = asyncio.Event()
        # True after the first registration. The broker then registers again after each lost connection.
        self.stays = False
        self.over = False
        self.answered_s = 0.0
        self._lost = asyncio.Event()
        self._step: asyncio.Future[str | None] | None = None

    @abc.abstractmethod
    def wire(self) -> Any:
        """Return the protocol object for a new connection."""

    @abc.abstractmethod
    def send(self, client: Client[Any]) -> None:
        """Send a registration; when its result is known, :meth:`finish` is called."""

    @abc.abstractmethod
    def answered(self, client: Client[Any], answer: Answer) -> None:
        """Handle an answer."""

    @abc.abstractmethod
    def part(self, client: Client[Any]) -> None:
        """Remove the broker from the server. The broker does not register again."""

    def is_still_listed(self) -> bool:
        """Return True if the server lists the broker although the connection was lost."""
        return False

    def finish(self, error: str | None) -> None:
        if self._step is not None and not self._step.done():
            self._step.set_result(error)

    async def live(self) -> None:
        """Keep the broker connected until :meth:`leave`.

        After its first registration, also keep it registered.
        """
        while not self.over:
            try:
                await self._connect()
            except (OSError, TimeoutError):
                await asyncio.sleep(CONNECT_AGAIN_S)
                continue
            if self.stays and not self.is_still_listed():
                self.listed.clear()
                self.wanted.set()
            while await self._next():
                if not await self._register():
                    break
            if not self.over:
                self.given.note_cut(self)
                if not self.is_still_listed():
                    self.listed.clear()
                await asyncio.sleep(self.given.back_after_s(self.broker))

    async def _next(self) -> bool:
        """Wait until the broker has to register; return False if the connection is lost before."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.wanted, self._lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        return not self._lost.is_set()

    async def _connect(self) -> None:
        host, _, port = self.given.plan.servers[self.server].rpartition(":")
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(self._new_client, host, int(port))
        _, client = await asyncio.wait_for(connecting, CONNECT_S)
        try:
            await asyncio.wait_for(client.ready, CONNECT_S)
        except TimeoutError:
            client.abort()
            raise
        self.connected.set()

    def _new_client(self) -> Client[Any]:
        self._lost.clear()
        self.client = Client(self.wire(), self.answered, self._gone)
        return self.client

    def _gone(self, client: Client[Any], reason: str) -> None:
        if client is not self.client:
            return  # the end of an abandoned connection is no loss of the present one
        self._lost.set()
        self.connected.clear()
        self.finish("lost")

    async def _register(self) -> bool:
        """Send the registration until it is acknowledged; return False if the connection is lost."""
        client = self.client
        assert client is not None, "only a connected broker registers"
        self.wanted.clear()
        self.stays = True
        while not self.over:
            self._step = asyncio.get_running_loop().create_future()
            sent_ns, paused_ns = time.monotonic_ns(), self.given.pauses.total_ns
            self.send(client)
            error = await self._result(self._step)
            if error == "unanswered":
                client.abort()
            own_ns = self.given.pauses.total_ns - paused_ns
            self.given.note(self, sent_ns, time.monotonic_ns(), own_ns, error)
            if error is None:
                self.listed.set()
                return True
            if error in ("lost", "unanswered"):
                return False
            await asyncio.sleep(AGAIN_S)
            if self._lost.is_set():
                return False
        return False

    async def _result(self, step: asyncio.Future[str | None]) -> str | None:
        """Wait for a registration's result; return "unanswered" if no answer comes for :data:`ANSWER_S`."""
        loop = asyncio.get_running_loop()
        self.answered_s = loop.time()
        while not step.done():
            left_s = self.answered_s + ANSWER_S - loop.time()
            if left_s <= 0:
                return "unanswered"
            await asyncio.wait((step,), timeout=left_s)
        return step.result()

    def leave(self) -> None:
        self.over = True
        self.listed.clear()
        if self.client is not None and self.connected.is_set():
            self.part(self.client)


class RemotingLane(Lane):
    """A broker's connection to one nameserver."""

    def wire(self) -> RemotingAnswers:
        return RemotingAnswers()

    def send(self, client: Client[Any]) -> None:
        for piece in self.given.frames[self.broker]:
            client.send(piece)

    def answered(self, client: Client[Any], answer: Answer) -> None:
        self.finish(answer.error)

    def part(self, client: Client[Any]) -> None:
        client.abort()


class JuteLane(Lane):
    """A broker's session with one ZooKeeper server."""

    def __init__(self, given: Brokers, broker: int, server: int) -> None:
        super().__init__(given, broker, server)
        self._session = Session()
        self._under_way = 0  # number of requests of this registration without an answer
        self._rest: Iterator[Encoded] = iter(())
        self._refused: str | None = None

    def wire(self) -> Session:
        old = self._session
        if old.expired:
            self.listed.clear()
        self._session = Session() if old.expired else Session(old.identity)
        return self._session

    def is_still_listed(self) -> bool:
        return self.listed.is_set() and not self._session.expired

    def send(self, client: Client[Any]) -> None:
        self._rest = iter(self.given.nodes[self.broker])
        self._under_way = 0
        self._refused = None
        for part in itertools.islice(self._rest, MULTIS_IN_FLIGHT):
            client.send(client.wire.create_all(part))
            self._under_way += 1

    def answered(self, client: Client[Any], answer: Answer) -> None:
        if answer.tag < 0:
            return  # the answer to a ping
        self.answered_s = asyncio.get_running_loop().time()
        self._under_way -= 1
        if answer.error is not None:
            self._rest = iter(())
            self._refused = self._refused or answer.error
        elif (part := next(self._rest, None)) is not None:
            client.send(client.wire.create_all(part))
            self._under_way += 1
        # After a refusal, wait for the answers that are still to come. Otherwise the next try would take them
        # for its own answers.
        if not self._under_way:
            self.finish(self._refused)

    def ping(self) -> None:
        if self.client is not None and self.connected.is_set():
            self.client.send(self._session.ping())

    def part(self, client: Client[Any]) -> None:
        self._rest = iter(())
        client.send(self._session.close())


class Brokers:
    """All brokers of a storm, and the results of their registrations.

    Attributes:
        frames: For nameservers: the registration of each broker, in pieces.
        nodes: For ZooKeeper: the requests that register each broker.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pauses = Pauses()
        self.rows: list[dict[str, Any]] = []
        self.frames: list[tuple[bytes, ...]] = []
        self.nodes: list[list[Encoded]] = []
        names = [topic_name(number) for number in range(plan.topics)]
        held = [names] * plan.brokers + [RESIDENT_TOPICS] * plan.resident
        if plan.kind == "jute":
            self.nodes = [
                [encode_nodes(part, ephemeral=True) for part in slices(nodes_of(key, topics))]
                for key, topics in enumerate(held)
            ]
        else:
            shared = make_topics(names, compressed=plan.compressed)
            own = make_topics(RESIDENT_TOPICS, compressed=plan.compressed)
            self.frames = [
                register_frame(
                    key,
                    shared if topics is names else own,
                    DataVersion(timestamp=_CREATED_MS + key, counter=1),
                )
                for key, topics in enumerate(held)
            ]
        self.lanes: list[Lane] = [lane for key in range(plan.brokers) for lane in self._lanes_of(key)]
        self.resident: list[Lane] = self._lanes_of(plan.brokers) if plan.resident else []
        self._tasks: list[asyncio.Task[None]] = []
        self._spread_s = 0.0
        self._changed: list[Topics] = []
        self._changes = 0

    def back_after_s(self, broker: int) -> float:
        """Return the seconds after which a broker that has lost its connection connects again."""
        if not self._spread_s:
            return AGAIN_S
        return self._spread_s * broker / (self.plan.brokers + self.plan.resident)

    def _lanes_of(self, key: int) -> list[Lane]:
        servers = len(self.plan.servers)
        if self.plan.kind == "jute":
            return [JuteLane(self, key, key % servers)]
        return [RemotingLane(self, key, server) for server in range(servers)]

    def note(self, lane: Lane, sent_ns: int, ended_ns: int, own_ns: int, error: str | None) -> None:
        self.rows.append(
            {
                "kind": "registration",
                "broker": lane.broker,
                "server": lane.server,
                "sent_ns": sent_ns,
                "ended_ns": ended_ns,
                "own_ns": own_ns,
                "outcome": error or "ok",
            }
        )

    def note_cut(self, lane: Lane) -> None:
        self.rows.append(
            {"kind": "cut", "broker": lane.broker, "server": lane.server, "t_ns": time.monotonic_ns()}
        )

    # -- commands ------------------------------------------------------------------------------------

    async def connect(self, command: Command) -> dict[str, Any]:
        """Connect all brokers to their servers, then register the resident broker."""
        everyone = [*self.lanes, *self.resident]
        self._tasks = [asyncio.ensure_future(lane.live()) for lane in everyone]
        self._tasks.append(asyncio.ensure_future(self.pauses.watch()))
        self._tasks.append(asyncio.ensure_future(self._keep_sessions()))
        for task in self._tasks:
            task.add_done_callback(_end_with_its_failure)
        await self._all([lane.connected for lane in everyone], command.seconds)
        for lane in self.resident:
            lane.wanted.set()
        await self._all([lane.listed for lane in self.resident], command.seconds)
        return {}

    async def register(self, command: Command) -> dict[str, Any]:
        """Make every broker register now; return without waiting for the results."""
        t_ns = time.monotonic_ns()
        for lane in self.lanes:
            lane.listed.clear()
            lane.wanted.set()
        return {"t_ns": t_ns}

    async def settle(self, command: Command) -> dict[str, Any]:
        """Wait until all brokers are connected, and until the servers list them.

        Both are necessary: if a broker loses its connection, ZooKeeper lists it until its session ends.
        """
        everyone = [*self.lanes, *self.resident]
        await self._all([lane.connected for lane in everyone], command.seconds)
        await self._all([lane.listed for lane in everyone], command.seconds)
        return {}

    async def rest(self, command: Command) -> dict[str, Any]:
        """Let each broker repeat its registration every 30 s for some time; spread the repetitions evenly.

        ZooKeeper's brokers do not repeat registrations; they only keep their sessions.
        """
        by_broker: dict[int, list[Lane]] = {}
        for lane in [*self.lanes, *self.resident]:
            by_broker.setdefault(lane.broker, []).append(lane)
        began = time.monotonic()
        until = began + command.seconds
        turn = 0
        while self.plan.kind != "jute" and began + turn * PERIOD_S / len(by_broker) < until:
            await asyncio.sleep(max(0.0, began + turn * PERIOD_S / len(by_broker) - time.monotonic()))
            for lane in by_broker[turn % len(by_broker)]:
                lane.wanted.set()
            turn += 1
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        return {"repeated": turn}

    async def returning(self, command: Command) -> dict[str, Any]:
        """From now on, spread the return of brokers that lose their connection evenly over some seconds.

        With 0 seconds, each broker returns after :data:`AGAIN_S`. A broker that returned at once would reach
        a dying server, whose listener still accepts connections for some milliseconds.
        """
        self._spread_s = command.seconds
        return {}

    async def prepare(self, command: Command) -> dict[str, Any]:
        """Make the two versions of the topics that :meth:`repeat` sends in turn."""
        names = [topic_name(number) for number in range(self.plan.topics)]
        self._changed = [make_topics(names, compressed=True, queues=queues) for queues in (8, 9)]
        return {}

    async def repeat(self, command: Command) -> dict[str, Any]:
        """For some time, register changed topics at all servers again and again.

        A registration is sent to all servers at the same time.
        """
        bodies = self._changed
        until = time.monotonic() + command.seconds
        count = 0
        began_ns = time.monotonic_ns()
        while time.monotonic() < until:
            version = DataVersion(timestamp=_CREATED_MS + 1000 + count, counter=2 + count)
            self.frames[0] = register_frame(0, bodies[count % 2], version)
            for lane in self.lanes:
                lane.listed.clear()
                lane.wanted.set()
            with contextlib.suppress(TimeoutError):
                await self._all([lane.listed for lane in self.lanes], ANSWER_S)
            count += 1
        return {"t_ns": began_ns, "count": count}

    async def change(self, command: Command) -> dict[str, Any]:
        """Let one broker register again with all its topics changed; wait for the last acknowledgement."""
        names = [topic_name(number) for number in range(self.plan.topics)]
        self._changes += 1
        queues = QUEUES + self._changes
        if self.plan.kind == "jute":
            nodes = nodes_of(0, names, queues=queues)
            self.nodes[0] = [encode_changes(part) for part in slices(nodes)]
        else:
            topics = make_topics(names, compressed=self.plan.compressed, queues=queues)
            version = DataVersion(timestamp=_CREATED_MS + 1000, counter=1 + self._changes)
            self.frames[0] = register_frame(0, topics, version)
        lanes = [lane for lane in self.lanes if lane.broker == 0]
        began_ns = time.monotonic_ns()
        for lane in lanes:
            lane.listed.clear()
            lane.wanted.set()
        await self._all([lane.listed for lane in lanes], command.seconds)
        return {"t_ns": began_ns, "took_ns": time.monotonic_ns() - began_ns}

    async def leave(self, command: Command) -> dict[str, Any]:
        """Let all brokers leave at the same time: close their connections, and end their sessions."""
        t_ns = time.monotonic_ns()
        for lane in self.lanes:
            lane.leave()
        return {"t_ns": t_ns}

    async def _keep_sessions(self) -> None:
        lanes = [lane for lane in [*self.lanes, *self.resident] if isinstance(lane, JuteLane)]
        while lanes:
            for lane in lanes:
                lane.ping()
                await asyncio.sleep(PING_S / len(lanes))

    async def _all(self, events: list[asyncio.Event], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            command = msgspec.json.decode(line, type=Command)
            try:
                found = await getattr(self, command.do)(command)
            except TimeoutError:
                found = {"failure": f"{command.do}: not within {command.seconds:g} s"}
            rows, self.rows = self.rows, []
            found |= {"rows": rows, "longest_pause_ns": self.pauses.longest_ns}
            self.pauses.longest_ns = 0
            sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            sys.stdout.buffer.flush()


def _end_with_its_failure(task: asyncio.Task[None]) -> None:
    """End the process if a broker's task fails; otherwise the process would wait for this broker in vain."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)


async def _main(plan: Plan) -> None:
    await Brokers(plan).run()
    os._exit(0)  # end without closing connections one by one: the servers must see all of them end together


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    uvloop.run(_main(msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)))
