"""The process that simulates all brokers and clients while costs are measured.

The process reads JSON from standard input: a :class:`Plan`, and then one :class:`Command` in each line. It
answers each command with one line. It ends when its standard input ends.

Brokers repeat their registrations. Clients poll or watch. The requests are spread evenly over the period. So
every measurement that lasts whole periods contains the same number of requests.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import msgspec
import uvloop
from kazoo.protocol.serialization import GetChildren, SetData

from routekeeper.bench.arms.layout import child_index, master_path, topic_child, topic_path
from routekeeper.bench.costs.units import Numbers
from routekeeper.bench.storm.frames import (
    QUEUES,
    Topics,
    make_topics,
    query_frame,
    register_frame,
    topic_name,
)
from routekeeper.bench.storm.sessions import (
    MULTIS_IN_FLIGHT,
    PING_S,
    Session,
    encode_nodes,
    nodes_of,
    slices,
)
from routekeeper.bench.wires.client import Client, Kind
from routekeeper.bench.wires.remoting_wire import RemotingAnswers
from routekeeper.bench.wires.watchers import HttpWatcher
from routekeeper.bench.wires.wire import Answer
from routekeeper.remoting.route import DataVersion

ANSWER_S: Final = 30.0
CONNECT_S: Final = 10.0
#: Largest number of attempts to register. :data:`AGAIN_S` is the pause in s after a failed attempt.
REGISTER_TRIES: Final = 5
AGAIN_S: Final = 1.0
#: Largest number of connections that are opened at the same time, and of brokers that register at the same
#: time.
AT_ONCE: Final = 20
#: Number of connections that send a plan's lookups. Polling and watching clients use other connections.
LOOKUP_LINES: Final = 12
_CREATED_MS: Final = 1_700_000_000_000
_GOLDEN: Final = 0.6180339887498949


class Failed(Exception):
    """A server refused a request or did not answer, so the present measurement is void."""


class Plan(msgspec.Struct, kw_only=True):
    """The servers to which the simulated brokers and clients send requests.

    Attributes:
        servers: Addresses (``host:port``) to which brokers and polling clients connect.
        watched: Addresses (``host:port``) to which watching clients connect.
        period_s: Period of registrations and polls.
    """

    kind: Kind
    servers: list[str]
    watched: list[str]
    period_s: float


class Command(Numbers, frozen=True, kw_only=True):
    """One command. The field ``do`` is the name of a method of :class:`Players`."""

    do: str
    seconds: float = 0.0


class Counts(msgspec.Struct, kw_only=True):
    """Numbers of events, and bytes exchanged with each server, since :meth:`Players.begin`."""

    registrations: int = 0
    changes: int = 0
    newcomers: int = 0
    lookups: int = 0
    bytes: list[int] = []


class Line(Client[Any]):
    """A connection to one server. A request may be sent before earlier requests are answered."""

    def __init__(self, players: Players, server: int, wire: Any) -> None:
        super().__init__(wire, self._answer, self._end)
        self.server = server
        self.over = False
        self._players = players
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self.turn = asyncio.Lock()

    def send(self, data: bytes) -> None:
        self._count(len(data))
        super().send(data)

    def data_received(self, data: bytes) -> None:
        self._count(len(data))
        super().data_received(data)

    def _count(self, size: int) -> None:
        self._players.counts.bytes[self.server] += size

    def _answer(self, client: Client[Any], answer: Answer) -> None:
        waiting = self._waiting.pop(answer.tag, None)
        # No request waits for this message. It answers a ping, or it reports a change of a watched topic.
        if waiting is None:
            if answer.error is not None:
                self._players.fail(f"server {self.server}: {answer.error}")
        elif not waiting.done():
            waiting.set_result(answer)

    def _end(self, client: Client[Any], reason: str) -> None:
        if not self.over:
            self._players.fail(f"server {self.server}: {reason}")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Failed(reason))
                waiting.exception()
        self._waiting.clear()

    def asked(self) -> asyncio.Future[Answer]:
        """Return a future that will get the answer to the last request that ``wire`` made."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[self.wire.tag] = future
        return future

    async def ask(self, *pieces: bytes) -> bytes:
        """Send the pieces of one request, and return the body of the answer.

        Raises:
            Failed: If the server refused, or did not answer in time.
        """
        future = self.asked()
        for piece in pieces:
            self.send(piece)
        return await self.answer(future)

    async def answer(self, future: asyncio.Future[Answer]) -> bytes:
        try:
            answer = await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            raise Failed(f"server {self.server} did not answer within {ANSWER_S:g} s") from None
        if answer.error is not None:
            raise Failed(f"server {self.server}: {answer.error}")
        return answer.body


class Remoting:
    """RocketMQ's protocol. A broker registers with all nameservers, and a client asks one nameserver."""

    def __init__(self, players: Players) -> None:
        self.players = players
        self._tables: dict[int, Topics] = {}
        self._queries: dict[int, bytes] = {}
        self._changes: dict[tuple[int, int], Topics] = {}

    def wire(self) -> Any:
        return RemotingAnswers()

    def lanes(self, key: int) -> list[int]:
        """Return the indexes of the servers to which a broker connects: all servers."""
        return list(range(len(self.players.plan.servers)))

    def _frame(self, broker: Broker, topics: Topics) -> tuple[bytes, ...]:
        version = DataVersion(timestamp=_CREATED_MS + broker.key, counter=broker.version)
        return register_frame(broker.key, topics, version)

    async def register(self, broker: Broker) -> None:
        if broker.topics not in self._tables:
            names = [topic_name(number) for number in range(broker.topics)]
            self._tables[broker.topics] = make_topics(names, compressed=False)
        broker.frame = self._frame(broker, self._tables[broker.topics])
        await self.repeat(broker)

    async def repeat(self, broker: Broker) -> None:
        await self._tell(broker, broker.frame)

    async def _tell(self, broker: Broker, frame: tuple[bytes, ...]) -> None:
        await asyncio.gather(*(self._tell_one(line, frame) for line in broker.lines))

    async def _tell_one(self, line: Line, frame: tuple[bytes, ...]) -> None:
        async with line.turn:
            await line.ask(*frame)

    async def change(self, broker: Broker, topic: int, queues: int) -> None:
        """Register one topic with changed queues, as a real broker does.

        Each change increases the version of the broker's topics. Later heartbeats have this version, too.
        """
        broker.version += 1
        key = topic, queues
        if key not in self._changes:
            self._changes[key] = make_topics([topic_name(topic)], compressed=False, queues=queues)
        broker.frame = self._frame(broker, self._tables[broker.topics])
        await self._tell(broker, self._frame(broker, self._changes[key]))

    async def look_up(self, line: Line, topic: int, *, watch: bool = False) -> None:
        if topic not in self._queries:
            self._queries[topic] = query_frame(topic_name(topic))
        async with line.turn:
            body = await line.ask(self._queries[topic])
        if b'"brokerName"' not in body:
            raise Failed(f"{topic_name(topic)}: an answer without brokers")

    async def leave(self, line: Line) -> None:
        line.over = True
        line.abort()

    def periodic(self, broker: Broker) -> tuple[float, Callable[[], Awaitable[None]]]:
        """Return a broker's period in s and the action that the broker repeats in each period."""
        return self.players.plan.period_s, lambda: self.repeat(broker)


class Jute:
    """ZooKeeper's protocol. Each broker and each client has one session.

    A broker's session owns the broker's ephemeral nodes.
    """

    def __init__(self, players: Players) -> None:
        self.players = players

    def wire(self) -> Any:
        return Session()

    def lanes(self, key: int) -> list[int]:
        return [key % len(self.players.plan.servers)]

    async def register(self, broker: Broker) -> None:
        """Create the broker's missing nodes: first the nodes of its topics, last the node of its address."""
        (line,) = broker.lines
        names = [topic_name(number) for number in range(broker.topics)]
        new = nodes_of(broker.key, names)[broker.made : None if broker.made == 0 else -1]
        nodes = iter(slices(new))
        await asyncio.gather(*(self._make(line, nodes) for _ in range(MULTIS_IN_FLIGHT)))
        broker.made = broker.topics

    async def repeat(self, broker: Broker) -> None:
        """Do nothing: the nodes last as long as the session, so a broker does not repeat its registration."""

    async def _make(self, line: Line, nodes: Iterator[list[tuple[str, bytes]]]) -> None:
        for part in nodes:
            await line.ask(line.wire.create_all(encode_nodes(part, ephemeral=True)))

    async def change(self, broker: Broker, topic: int, queues: int) -> None:
        (line,) = broker.lines
        path = f"{topic_path(topic_name(topic))}/{topic_child(broker.key)}"
        await line.ask(line.wire.request(SetData(path, b"%d" % queues, -1)))

    async def look_up(self, line: Line, topic: int, *, watch: bool = False) -> None:
        """Read a route as clients do: the topic's children, then each broker's queues and address.

        Args:
            watch: True to set a watch on each node that is read.
        """
        parent = topic_path(topic_name(topic))
        body = await line.ask(line.wire.request(GetChildren(parent, watch)))
        asked = []
        for name in GetChildren.deserialize(body, 0):
            index = child_index(name)
            if index is None:
                raise Failed(f"{parent}: a child {name}")
            for path in (f"{parent}/{name}", master_path(index)):
                line.send(line.wire.get(path, watch=watch))
                asked.append(line.asked())
        if not asked:
            raise Failed(f"{parent}: no broker")
        for future in asked:
            await line.answer(future)

    async def leave(self, line: Line) -> None:
        line.over = True
        await line.ask(line.wire.close())
        line.abort()

    async def keep(self, line: Line) -> None:
        """Keep a session alive while its client sends no requests."""
        line.send(line.wire.ping())

    def ping_s(self) -> float:
        return PING_S * min(1.0, self.players.plan.period_s / 30.0)

    def periodic(self, broker: Broker) -> tuple[float, Callable[[], Awaitable[None]]]:
        return self.ping_s(), lambda: self.keep(broker.lines[0])


class Broker:
    """One simulated broker and its connections.

    Attributes:
        task: Repeats the registration, or keeps the session; None until the next :meth:`Players.bring`.
    """

    def __init__(self, key: int, topics: int) -> None:
        self.key = key
        self.topics = topics
        self.version = 1
        self.made = 0
        self.frame: tuple[bytes, ...] = ()
        self.lines: list[Line] = []
        self.task: asyncio.Task[None] | None = None


class TopicWatcher(HttpWatcher):
    """A client that sends blocking queries for one topic's route, one after the other.

    The server answers the first query after ``first_s``, and each later query after ``period_s``. When the
    route changes, it answers at once. Each client has a different ``first_s``, so the clients' queries do not
    coincide.
    """

    def __init__(self, *, topic: str, host: str, period_s: float, first_s: float) -> None:
        super().__init__(key=0, host=host)
        self._path = f"/v1/topics/{topic}/route?consistency=stale"
        self._waits = itertools.chain([first_s], itertools.repeat(period_s))

    def _ask(self, beyond: str) -> bytes:
        index, mark, _ = beyond.partition("&wait=")
        return super()._ask(f"{index}{mark}{next(self._waits):.1f}s" if beyond else "")


class SessionWatcher(Session):
    """A ZooKeeper session that calls ``fired`` when a watch fires."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: Callable[[], None] = lambda: None

    def event(self) -> None:
        self.fired()


class Players:
    """All simulated brokers and clients, with a method for each command.

    Attributes:
        counts: Counts since :meth:`begin`.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts = Counts(bytes=[0] * len(plan.servers))
        self._routes: Remoting | Jute = Remoting(self) if plan.kind == "remoting" else Jute(self)
        self._brokers: list[Broker] = []
        self._polling: list[Line] = []
        self._watching: list[Line] = []
        self._asking: list[Line] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._topics = 0
        self._changed = 0
        self._raised: set[tuple[int, int]] = set()
        self._looked = 0
        self._failure: str | None = None
        """Reason of the first failed request, or None if no request has failed."""

    def fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    # -- commands ------------------------------------------------------------------------------------

    async def clear(self, command: Command) -> None:
        """Disconnect all brokers and clients."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        lines = [*self._polling, *self._watching, *self._asking]
        await self._leave(lines)
        await self._leave_brokers()
        self._polling, self._watching, self._asking = [], [], []

    async def bring(self, command: Command) -> None:
        """Connect brokers and clients until there are as many as the command names.

        If there are too many brokers or topics, disconnect all brokers first.
        """
        if command.topics < self._topics or command.brokers < len(self._brokers):
            await self._leave_brokers()
        self._topics = command.topics
        for broker in self._brokers:
            if broker.topics < self._topics:
                broker.topics = self._topics
                broker.version += 1
                await self._retried(self._routes.register, broker)
                await self._retried(self._routes.repeat, broker)
        await self._add_brokers(command.brokers)
        await self._begin_repeating()
        new = range(len(self._polling), command.polling)
        self._polling += await self._connect([(key, self._routes.wire()) for key in new])
        for key in new:
            self._every(self.plan.period_s, key, lambda key=key: self._poll(key))  # type: ignore[misc]
            self._keep(key, self._polling[key])
        await self._watch(range(len(self._watching), command.watching))
        if command.lookups or command.changes or command.newcomers:
            missing = range(len(self._asking), LOOKUP_LINES)
            lines = await self._connect([(key, self._routes.wire()) for key in missing])
            for key, line in zip(missing, lines, strict=True):
                self._keep(key, line)
            self._asking += lines

    async def begin(self, command: Command) -> None:
        """Reset the counts and begin to count."""
        self.counts = Counts(bytes=[0] * len(self.plan.servers))

    async def count(self, command: Command) -> None:
        """Do nothing, because the answer to every command contains the counts."""

    async def run(self, command: Command) -> None:
        """Cause events at constant rates for ``command.seconds``.

        Return when the servers have answered all requests of these events.
        """
        ends = asyncio.create_task(asyncio.sleep(command.seconds))
        await asyncio.gather(
            self._at(command.changes, command.seconds, self._change),
            self._at(command.newcomers, command.seconds, self._newcomer),
            self._at(command.lookups, command.seconds, self._lookup),
        )
        await ends

    async def come_back(self, command: Command) -> None:
        """Disconnect every broker and register it once again at once.

        A repetition would count as a part of the registration's cost. So the brokers begin to repeat their
        registrations in the next :meth:`bring`.
        """
        count = len(self._brokers)
        await self._leave_brokers()
        await self._add_brokers(count)
        self.counts.registrations += count * self._topics

    # -- brokers ---------------------------------------------------------------------------------------

    async def _add_brokers(self, count: int) -> None:
        for first in range(len(self._brokers), count, AT_ONCE):
            new = [Broker(key, self._topics) for key in range(first, min(count, first + AT_ONCE))]
            await asyncio.gather(*map(self._list, new))
            self._brokers += new

    async def _list(self, broker: Broker) -> None:
        broker.lines = [
            await self._dial(self._routes.wire(), server, self.plan.servers[server])
            for server in self._routes.lanes(broker.key)
        ]
        await self._retried(self._routes.register, broker)

    async def _begin_repeating(self) -> None:
        """Let all new brokers repeat their registrations; return after the first repetition.

        Our servers decode the first repetition of a registration, and recognise later repetitions by their
        bytes. So all repetitions that are measured cost the same.
        """
        new = [broker for broker in self._brokers if broker.task is None]
        for first in range(0, len(new), AT_ONCE):
            some = new[first : first + AT_ONCE]
            await asyncio.gather(*(self._retried(self._routes.repeat, broker) for broker in some))
        for broker in new:
            period_s, act = self._routes.periodic(broker)
            broker.task = asyncio.create_task(self._repeat(period_s, broker.key, act))

    async def _retried(self, send: Callable[[Broker], Awaitable[None]], broker: Broker) -> None:
        """Send a registration. Retry after a failure, as a real broker does."""
        for tries_left in reversed(range(REGISTER_TRIES)):
            try:
                await send(broker)
                return
            except Failed:
                if not tries_left:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _leave_brokers(self) -> None:
        for broker in self._brokers:
            if broker.task is not None:
                broker.task.cancel()
        await self._leave([line for broker in self._brokers for line in broker.lines])
        self._brokers = []
        self._raised = set()

    async def _change(self) -> None:
        turn = self._changed
        self._changed += 1
        broker = self._brokers[turn % len(self._brokers)]
        topic = turn * 7 % self._topics
        # Use another number of queues each time. A registration with the same number would change no route.
        self._raised ^= {(broker.key, topic)}
        queues = QUEUES + ((broker.key, topic) in self._raised)
        await self._routes.change(broker, topic, queues)
        self.counts.changes += 1

    # -- clients ---------------------------------------------------------------------------------------

    async def _poll(self, key: int) -> None:
        await self._routes.look_up(self._polling[key], key % self._topics)

    async def _lookup(self) -> None:
        turn = self._looked
        self._looked += 1
        await self._routes.look_up(self._asking[turn % len(self._asking)], turn % self._topics)
        self.counts.lookups += 1

    async def _newcomer(self) -> None:
        server = self.counts.newcomers % len(self.plan.servers)
        line = await self._dial(self._routes.wire(), server, self.plan.servers[server])
        await self._routes.look_up(line, self.counts.newcomers % self._topics)
        await self._routes.leave(line)
        self.counts.newcomers += 1

    async def _watch(self, new: range) -> None:
        if self.plan.kind == "remoting":
            period_s = self.plan.period_s
            wires = [
                TopicWatcher(
                    topic=topic_name(key % self._topics),
                    host=self.plan.watched[key % len(self.plan.watched)],
                    period_s=period_s,
                    first_s=max(0.1, key * _GOLDEN % 1.0 * period_s),
                )
                for key in new
            ]
            lines = await self._connect(list(zip(new, wires, strict=True)), self.plan.watched)
            for line in lines:
                line.send(line.wire.watch())
        else:
            sessions = [SessionWatcher() for _ in new]
            lines = await self._connect(list(zip(new, sessions, strict=True)))
            for key, line, session in zip(new, lines, sessions, strict=True):
                await self._read_watched(line, key)
                session.fired = self._reader(line, key)
                self._keep(key, line)
        self._watching += lines

    async def _read_watched(self, line: Line, key: int) -> None:
        await self._routes.look_up(line, key % self._topics, watch=True)

    def _reader(self, line: Line, key: int) -> Callable[[], None]:
        """Return a function that reads a client's route again.

        If several watches fire at the same time, the function reads the route only once.
        """
        reading = False

        async def read() -> None:
            nonlocal reading
            reading = False
            await self._guarded(self._read_watched(line, key))

        def fired() -> None:
            nonlocal reading
            if not reading:
                reading = True
                self._tasks.append(asyncio.create_task(read()))

        return fired

    # -- connections ------------------------------------------------------------------------------------

    async def _dial(self, wire: Any, server: int, addr: str) -> Line:
        host, _, port = addr.rpartition(":")
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(lambda: Line(self, server, wire), host, int(port))
        _, line = await asyncio.wait_for(connecting, CONNECT_S)
        await asyncio.wait_for(line.ready, CONNECT_S)
        return line

    async def _connect(self, wires: list[tuple[int, Any]], addresses: list[str] | None = None) -> list[Line]:
        """Connect clients, evenly spread over the servers, and return their connections.

        Args:
            wires: For each client, its number and its protocol.
            addresses: Addresses of the servers; None for the plan's ``servers``.
        """
        addresses = addresses or self.plan.servers
        lines: list[Line] = []
        for first in range(0, len(wires), AT_ONCE):
            lines += await asyncio.gather(
                *(
                    self._dial(wire, key % len(addresses), addresses[key % len(addresses)])
                    for key, wire in wires[first : first + AT_ONCE]
                )
            )
        return lines

    async def _leave(self, lines: list[Line]) -> None:
        for line in lines:
            line.over = True
        for first in range(0, len(lines), AT_ONCE):
            await asyncio.gather(*map(self._routes.leave, lines[first : first + AT_ONCE]))

    def _keep(self, key: int, line: Line) -> None:
        routes = self._routes
        if isinstance(routes, Jute):
            self._every(routes.ping_s(), key, lambda: routes.keep(line))

    def _every(self, period_s: float, key: int, act: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(period_s, key, act)))

    async def _repeat(self, period_s: float, key: int, act: Callable[[], Awaitable[None]]) -> None:
        """Call ``act`` once in each period, at a time in the period that follows from the number ``key``."""
        due = time.monotonic() + (key * _GOLDEN % 1.0) * period_s
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._guarded(act())
            due += period_s

    async def _at(self, rate: float, seconds: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call ``act`` at even intervals, ``rate`` times a second. Return when all calls have ended."""
        began = time.monotonic()
        started = []
        for turn in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + (turn + 0.5) / rate - time.monotonic()))
            started.append(asyncio.create_task(self._guarded(act())))
        await asyncio.gather(*started)

    async def _guarded(self, action: Awaitable[None]) -> None:
        try:
            await action
        except (Failed, OSError, TimeoutError) as error:
            self.fail(f"{type(error).__name__}: {error}")

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            command = msgspec.json.decode(line, type=Command)
            await self._guarded(getattr(self, command.do)(command))
            found: dict[str, Any] = {"counts": msgspec.to_builtins(self.counts)}
            if self._failure is not None:
                found["failure"] = f"{command.do}: {self._failure}"
            sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            sys.stdout.buffer.flush()


async def _main(plan: Plan) -> None:
    await Players(plan).serve()
    os._exit(0)  # exit without closing the connections: closing thousands of connections takes long


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    uvloop.run(_main(msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)))
