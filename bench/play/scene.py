"""The shown state of one design (independent, raft or zookeeper), computed from three kinds of observations.

- A look: an observation of all processes, and of the directions in which the proxy passes bytes.
- A reading: a server's report about itself.
- An answer: the result of one query of a client, as the clients' process prints it.

This module has no other input and does no I/O. It does not use the commands of the playground's user, so the
page shows only observed states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from routekeeper.bench.arms.interface import broker_name
from routekeeper.bench.events import Fact, Operation, View
from routekeeper.bench.links import Passes
from routekeeper.bench.play.judging import Truth
from routekeeper.bench.play.model import (
    Answer,
    Broker,
    Cached,
    Change,
    Client,
    Counters,
    Design,
    DesignName,
    Life,
    Link,
    Server,
    TickOf,
    TopicKnown,
    Traffic,
    Usage,
    Verdict,
)

#: Largest number of stored answers. Answers are stored until the next look (observation of all processes and
#: links), and then judged. The limit is reached only if looks have stopped. Further answers are dropped.
PENDING_MAX: Final = 1_000
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One observation of all processes and links.

    Attributes:
        before_ns: Instant at which the previous look began.
        begin_ns, end_ns: Instants before the first and after the last state was read.
        lives: State and process id of each server and each broker, and of the process ``clients``.
        passes: Links as the proxy reports them, or None if the proxy did not answer.
    """

    before_ns: int
    begin_ns: int
    end_ns: int
    lives: Mapping[str, tuple[Life, int | None]]
    passes: Sequence[Passes] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A server's report about itself. ``answered`` is False if the server gave no report."""

    answered: bool
    role: str = "unknown"
    serves: bool = False
    term: int | None = None
    brokers: Sequence[str] = ()
    topics: Sequence[TopicKnown] = ()
    sent_ns: int = 0
    seen_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A change of the shown state, or a fact about a broker that the session writes to its event files.

    Attributes:
        lost: Text that says why nobody observes the design any more.
    """

    change: Change | None = None
    lost: str = ""
    broker: str = ""
    fact: Fact | None = None
    t_ns: int = 0


def newest(topics: Sequence[str], topic: str) -> list[str]:
    """Return the topics with ``topic`` at the end, because clients ask for the topic that was made last."""
    return [*(each for each in topics if each != topic), topic]


@dataclass(slots=True)
class _Traffic:
    forward: int = 0
    back: int = 0
    told_forward: int = 0
    told_back: int = 0


@dataclass(slots=True)
class _Client:
    client: Client
    cached: dict[str, tuple[list[str] | None, int]] = field(default_factory=dict)


class Scene:
    """The state of one design, as the page shows it.

    Attributes:
        design: The design's present state, in the form of the messages to the page.
        truth: States of processes and links, as all looks until now have shown them.
    """

    def __init__(
        self,
        name: DesignName,
        *,
        servers: Mapping[str, str],
        brokers: Mapping[str, str],
        clients: Sequence[str],
        learns: Literal["poll", "watch"],
        start_ns: int,
    ) -> None:
        """Begin with all processes down.

        Args:
            servers, brokers: Addresses by name.
            start_ns: Start of the session in ns. The shown times are ms since this instant.
        """
        self.truth = Truth()
        self._start_ns = start_ns
        self._learns = learns
        self._servers = {each: Server(name=each, addr=addr, life="down") for each, addr in servers.items()}
        self._brokers = {each: Broker(name=each, addr=addr, life="down") for each, addr in brokers.items()}
        self._clients = {each: _Client(Client(name=each, life="down")) for each in clients}
        self._links: dict[tuple[str, str], Link] = {}
        self._traffic: dict[tuple[str, str], _Traffic] = {}
        self._pending: list[Operation] = []
        self._verdicts: deque[tuple[int, Verdict]] = deque(maxlen=PENDING_MAX)
        self._isolated: set[str] = set()
        self._done_ms: dict[str, int] = {}
        self.topics: list[str] = []
        self.counters = Counters()
        self.usage: Usage | None = None
        self.name: DesignName = name

    def _ms(self, t_ns: int) -> int:
        return max(0, (t_ns - self._start_ns) // _MS)

    @property
    def design(self) -> Design:
        return Design(
            name=self.name,
            phase="running",
            servers=list(self._servers.values()),
            brokers=list(self._brokers.values()),
            clients=[each.client for each in self._clients.values()],
            links=[self._links[ends] for ends in sorted(self._links)],
            topics=list(self.topics),
            counters=msgspec.structs.replace(self.counters),
            usage=self.usage,
        )

    def _changed(
        self,
        *,
        server: Server | None = None,
        broker: Broker | None = None,
        client: Client | None = None,
        links: list[Link] | None = None,
        topics: list[str] | None = None,
    ) -> Happened:
        counters = msgspec.structs.replace(self.counters) if client is not None else None
        return Happened(
            change=Change(
                id=0,
                at_ms=0,
                design=self.name,
                server=server,
                broker=broker,
                client=client,
                links=links,
                topics=topics,
                counters=counters,
            )
        )

    # -- looks: states of processes and links -------------------------------------------------------------

    def look(self, look: Look) -> Iterator[Happened]:
        """Apply a look to the shown state, then judge the answers that can be judged now.

        These are the answers that clients received before the look began.
        """
        for name, (life, pid) in look.lives.items():
            if name in self._servers:
                yield from self._server_lives(name, life, pid)
            elif name in self._brokers:
                yield from self._broker_lives(name, life, pid, look)
            else:
                yield from self._clients_live(life)
        yield from self._pass(look)
        yield from self._judge(look.begin_ns)
        for mine in self._clients.values():
            yield from self._keep(mine, look.end_ns)

    def _server_lives(self, name: str, life: Life, pid: int | None) -> Iterator[Happened]:
        before = self._servers[name]
        if (before.life, before.pid) == (life, pid):
            return
        after = msgspec.structs.replace(before, life=life, pid=pid)
        if life == "down" or pid != before.pid:  # a new process has lost the former process's state
            after = Server(name=name, addr=before.addr, life=life, pid=pid)
        self._servers[name] = after
        yield self._changed(server=after)
        yield from self._registered()

    def _broker_lives(self, name: str, life: Life, pid: int | None, look: Look) -> Iterator[Happened]:
        before = self._brokers[name]
        if life == "starting":
            self.truth.broker_starts(name, look.before_ns)
        elif self.truth.broker(
            name, gone=life in ("down", "paused"), before_ns=look.before_ns, now_ns=look.end_ns
        ):
            yield Happened(broker=name, fact="up" if life == "up" else "down", t_ns=look.end_ns)
        if (before.life, before.pid) != (life, pid):
            self._brokers[name] = msgspec.structs.replace(before, life=life, pid=pid)
            yield self._changed(broker=self._brokers[name])

    def _clients_live(self, life: Life) -> Iterator[Happened]:
        for mine in self._clients.values():
            if mine.client.life != life:
                mine.client = msgspec.structs.replace(mine.client, life=life)
                yield self._changed(client=mine.client)

    def _pass(self, look: Look) -> Iterator[Happened]:
        """Note the state of the links as the proxy reports it."""
        changed = []
        if look.passes is None:
            for ends, link in self._links.items():
                silent = msgspec.structs.replace(link, forward="unknown", back="unknown", waiting=False)
                if silent != link:
                    self._links[ends] = silent
                    changed.append(silent)
        else:
            cut = set()
            for each in look.passes:
                link = Link(
                    dialler=each.dialler,
                    acceptor=each.acceptor,
                    forward="open" if each.forward.open else "cut",
                    back="open" if each.back.open else "cut",
                    forward_ms=round(each.forward.delay_ms),
                    back_ms=round(each.back.delay_ms),
                    waiting=each.forward.waiting or each.back.waiting,
                )
                ends = each.dialler, each.acceptor
                for direction, gate in ((ends, each.forward), (ends[::-1], each.back)):
                    if not gate.open:
                        cut.add(direction)
                    self.truth.direction(
                        direction, cut=not gate.open, before_ns=look.before_ns, now_ns=look.end_ns
                    )
                if self._links.get(ends) != link:
                    self._links[ends] = link
                    changed.append(link)
                traffic = self._traffic.setdefault(ends, _Traffic())
                traffic.forward, traffic.back = each.forward.bytes, each.back.bytes
            yield from self._isolate(cut, look.end_ns)
        if changed:
            yield self._changed(links=changed)

    def _isolate(self, cut: set[tuple[str, str]], now_ns: int) -> Iterator[Happened]:
        """Yield a fact for each broker that is newly cut off, or no longer cut off.

        A broker is cut off if both directions of all its links are cut.
        """
        for name in self._brokers:
            mine = [ends for ends in self._links if name in ends]
            alone = bool(mine) and all(ends in cut and ends[::-1] in cut for ends in mine)
            if alone != (name in self._isolated):
                (self._isolated.add if alone else self._isolated.discard)(name)
                yield Happened(broker=name, fact="cut" if alone else "healed", t_ns=now_ns)

    # -- readings: reports of servers ---------------------------------------------------------------------

    def read(self, name: str, reading: Reading) -> Iterator[Happened]:
        """Note a server's report about itself."""
        before = self._servers[name]
        if before.life == "down":
            return  # the process that gave this answer has ended in the meantime
        if reading.answered:
            after = msgspec.structs.replace(
                before,
                answers=True,
                role=reading.role,
                serves=reading.serves,
                term=reading.term,
                brokers=sorted(reading.brokers),
                topics=sorted(reading.topics, key=lambda each: each.topic),
                read_ms=self._ms(reading.sent_ns),
            )
            for known in reading.topics:
                self.truth.lists(name, known.topic, list(known.queues), reading.seen_ns)
        else:
            after = msgspec.structs.replace(before, answers=False, serves=False)
        self._servers[name] = after
        if msgspec.structs.replace(after, read_ms=before.read_ms) != before:
            yield self._changed(server=after)
            yield from self._registered()

    def _registered(self) -> Iterator[Happened]:
        for name, broker in self._brokers.items():
            listing = [each.name for each in self._servers.values() if name in each.brokers]
            if listing != broker.registered:
                self._brokers[name] = msgspec.structs.replace(broker, registered=listing)
                yield self._changed(broker=self._brokers[name])

    def made(self, topic: str, broker: str, *, begun_ns: int, acked_ns: int) -> Iterator[Happened]:
        """Note that a broker has confirmed a topic."""
        self.truth.made(topic, broker, begun_ns=begun_ns, acked_ns=acked_ns)
        if self.topics[-1:] != [topic]:
            self.topics = newest(self.topics, topic)
            yield self._changed(topics=list(self.topics))

    # -- answers that clients received --------------------------------------------------------------------

    def used(self, usage: Usage) -> tuple[Happened, ...]:
        self.usage = usage
        return ()

    def answered(self, operation: Operation) -> tuple[Happened, ...]:
        """Store an answer that a client received, until it can be judged.

        To judge the answer, the scene needs the true states of processes and links until the instant of the
        answer. These states are known after the next look that begins later than the answer.
        """
        if len(self._pending) < PENDING_MAX:
            self._pending.append(operation)
        return ()

    def _judge(self, known_until_ns: int) -> Iterator[Happened]:
        ready = [each for each in self._pending if each.done_ns <= known_until_ns]
        self._pending = [each for each in self._pending if each.done_ns > known_until_ns]
        for each in ready:
            yield from self._judge_one(each)

    def _judge_one(self, done: Operation) -> Iterator[Happened]:
        name = done.client_side or ""
        if name not in self._clients:
            return
        mine = self._clients[name]
        server = None if done.target is None else f"nameserver-{done.target}"
        topic = done.topic or ""
        brokers = None
        if done.outcome in ("ok", "absent"):
            brokers = [broker_name(index) for index in done.brokers or []]
        verdict, why = self.truth.judge(
            name, server, topic, done.outcome, brokers, sent_ns=done.sent_ns, done_ns=done.done_ns
        )
        self._verdicts.append((self._ms(done.done_ns), verdict))
        if self._ms(done.done_ns) >= self.counters.since_ms:
            self._count(verdict)
        answer = Answer(
            verdict=verdict,
            why=why,
            topic=topic,
            server=server,
            brokers=brokers,
            remark=done.remark or "",
            sent_ms=self._ms(done.sent_ns),
            done_ms=self._ms(done.done_ns),
        )
        before = mine.client.last
        mine.client = msgspec.structs.replace(mine.client, last=answer, asks=server or mine.client.asks)
        self._done_ms[name] = answer.done_ms
        same = (
            before is not None
            and msgspec.structs.replace(before, sent_ms=answer.sent_ms, done_ms=answer.done_ms) == answer
        )
        if not same or verdict != "right":
            yield self._changed(client=mine.client)

    def kept(self, view: View) -> Iterator[Happened]:
        """Note a route that a client has newly cached."""
        mine = self._clients.get(f"client-{view.index}")
        if mine is None:
            return
        brokers = None if view.brokers is None else [broker_name(index) for index in view.brokers]
        mine.cached[view.topic] = brokers, self._ms(view.seen_ns)
        yield from self._keep(mine, view.seen_ns)

    def _keep(self, mine: _Client, now_ns: int) -> Iterator[Happened]:
        cached = [
            Cached(
                topic=topic,
                brokers=brokers,
                since_ms=since_ms,
                by=self._learns,
                verdict=self.truth.judge_cached(mine.client.name, topic, brokers, now_ns),
            )
            for topic, (brokers, since_ms) in sorted(mine.cached.items())
        ]
        if cached != mine.client.cached:
            mine.client = msgspec.structs.replace(mine.client, cached=cached)
            yield self._changed(client=mine.client)

    # -- counters and ticks -------------------------------------------------------------------------------

    def count_from(self, at_ms: int) -> None:
        """Reset the counters, so that they count only answers that clients received at ``at_ms`` or later.

        Such an answer counts even if it was judged before this call, as long as the scene stores its verdict.
        """
        self.counters = Counters(since_ms=at_ms)
        for done_ms, verdict in self._verdicts:
            if done_ms >= at_ms:
                self._count(verdict)

    def _count(self, verdict: Verdict) -> None:
        setattr(self.counters, verdict, getattr(self.counters, verdict) + 1)

    def tick(self) -> TickOf:
        """Return this design's part of the next tick.

        It contains the counters, the times of the last readings and answers, and the use of CPU and memory.
        It also contains the bytes that each link has carried since the last tick.
        """
        traffic = []
        for (dialler, acceptor), mine in sorted(self._traffic.items()):
            forward, back = mine.forward - mine.told_forward, mine.back - mine.told_back
            mine.told_forward, mine.told_back = mine.forward, mine.back
            if forward > 0 or back > 0:
                traffic.append(
                    Traffic(dialler=dialler, acceptor=acceptor, forward=max(0, forward), back=max(0, back))
                )
        return TickOf(
            design=self.name,
            read_ms={name: each.read_ms for name, each in self._servers.items() if each.read_ms is not None},
            done_ms=dict(self._done_ms),
            counters=msgspec.structs.replace(self.counters),
            usage=self.usage,
            traffic=traffic,
        )
