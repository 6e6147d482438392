"""The load process: one uvloop, one ``asyncio.Protocol`` for all systems; only the encoding differs.

Reads one :class:`Plan` as JSON from standard input, writes one object with the figures to standard output.
All instants are of CLOCK_MONOTONIC. Every answer is decoded and held to success; the first refusal ends the
run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import msgspec
import uvloop

from bench.micro.load import cpu_s
from bench.micro.raft.figures import percentile
from bench.micro.raft.grpc import GrpcWire
from bench.micro.raft.jute import JuteWire
from bench.micro.raft.remoting_wire import RemotingWire
from bench.micro.raft.wire import Answer, Wire, WireError

Kind = Literal["remoting", "jute", "grpc"]
Job = Literal["one", "writes", "visible", "reads", "failover", "heartbeats"]
CONNECT_S: Final = 10.0
PREPARE_S: Final = 20.0
VISIBLE_S: Final = 10.0
FAILOVER_S: Final = 20.0
#: While a leader is away, each survivor is sent a write this often.
FAILOVER_EVERY_S: Final = 0.005
FAILOVER_KEYS: Final = 32
HEARTBEAT_S: Final = 30.0
STARTS_AT_ONCE: Final = 20
"""Brokers of the heartbeat job that register at the same time."""

now = time.perf_counter


class Plan(msgspec.Struct, kw_only=True):
    """What to do.

    Attributes:
        members: ``host:port`` of each member; connections take turns among them.
        value_size: Bytes written under a key; the remoting protocol has ``topics`` instead.
        linearizable: Of etcd's reads.
        pids: Processes whose CPU time is read.
        victim: Process that the failover job kills.
        report: Seconds between lines on standard error, for a load that is held; 0 for none.
    """

    job: Job
    kind: Kind
    members: list[str]
    connections: int
    warm_s: float
    measure_s: float
    value_size: int = 200
    topics: int = 10
    linearizable: bool = False
    pids: list[int] = []
    victim: int = 0
    report: float = 0.0


class Client(asyncio.Protocol):
    """One connection; answers go to ``answered``, its end to ``lost``."""

    def __init__(
        self,
        wire: Wire,
        answered: Callable[[Client, Answer], None],
        lost: Callable[[Client, str], None],
    ) -> None:
        self.wire = wire
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.key = 0
        self.number = 0
        self.sent_at = 0.0
        self._answered = answered
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
            self._answered(self, answer)
        if not self.ready.done() and self.wire.ready:
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self, f"connection lost: {error}")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"closed before it was ready: {error}"))
            self.ready.exception()  # seen by whoever waits, or by nobody

    def abort(self) -> None:
        self._transport.abort()


class Run:
    """One job of one load process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._loop = asyncio.get_running_loop()
        self._value = os.urandom(max(0, plan.value_size))
        self._timestamp_ms = time.time_ns() // 1_000_000
        self._stopping = False
        self._failed: asyncio.Future[None] = self._loop.create_future()

    # -- common --------------------------------------------------------------------------------------

    def wire(self, key: int) -> Wire:
        plan = self.plan
        if plan.kind == "remoting":
            return RemotingWire(key=key, topics=plan.topics, timestamp_ms=self._timestamp_ms)
        if plan.kind == "jute":
            return JuteWire(key=key, value=self._value)
        return GrpcWire(key=key, value=self._value, linearizable=plan.linearizable)

    async def connect(
        self,
        key: int,
        member: int,
        answered: Callable[[Client, Answer], None],
        lost: Callable[[Client, str], None] | None = None,
    ) -> Client:
        host, _, port = self.plan.members[member].rpartition(":")
        _, client = await self._loop.create_connection(
            lambda: Client(self.wire(key), answered, lost or self.lost), host, int(port)
        )
        client.key = key
        await asyncio.wait_for(client.ready, CONNECT_S)
        return client

    def lost(self, client: Client, reason: str) -> None:
        self.fail(f"{self.plan.members[client.key % len(self.plan.members)]}: {reason}")

    def fail(self, reason: str) -> None:
        if not self._stopping and not self._failed.done():
            self._failed.set_exception(WireError(reason))

    async def prepare(self, clients: list[Client], answered: Callable[[Client, Answer], None]) -> None:
        """Create each connection's own key; what is answered afterwards goes to ``answered``."""
        missing = set(clients)
        done: asyncio.Future[None] = self._loop.create_future()

        def prepared(client: Client, answer: Answer) -> None:
            if answer.error:
                self.fail(f"prepare: {answer.error}")
            missing.discard(client)
            if not missing and not done.done():
                done.set_result(None)

        for client in clients:
            client._answered = prepared
            client.send(client.wire.prepare())
        await self.until(done, PREPARE_S)
        for client in clients:
            client._answered = answered

    async def until(self, done: asyncio.Future[None], seconds: float) -> None:
        """Wait for ``done``, at most so long; a failure of the run ends it.

        Raises:
            WireError: The failure, or that time is up.
        """
        await asyncio.wait((done, self._failed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            await self._failed
        if not done.done():
            raise WireError(f"no answer within {seconds:g} s")

    async def pause(self, seconds: float) -> None:
        await asyncio.wait((self._failed,), timeout=seconds)
        if self._failed.done():
            await self._failed

    async def run(self) -> dict[str, Any]:
        plan = self.plan
        match plan.job:
            case "one":
                figures = await self.closed_loop(in_turn=True)
            case "writes" | "reads":
                figures = await self.closed_loop(reads=plan.job == "reads")
            case "visible":
                figures = await self.visible()
            case "failover":
                figures = await self.failover()
            case "heartbeats":
                figures = await self.heartbeats()
        self._stopping = True
        return figures

    # -- writes/s, acknowledgement, reads/s ----------------------------------------------------------

    async def closed_loop(self, *, reads: bool = False, in_turn: bool = False) -> dict[str, Any]:
        """Keep one request in flight on each connection; ``in_turn``: one in all, by each in turn."""
        latencies: list[float] = []
        record = latencies.append

        def answered(client: Client, answer: Answer) -> None:
            at = now()
            if answer.error:
                self.fail(f"{plan.job}: {answer.error}")
                return
            record(at - client.sent_at)
            if in_turn:
                client = clients[(client.key + 1) % len(clients)]
            client.number += 1
            wire = client.wire
            request = wire.read(client.number, client.key) if reads else wire.write(client.number)
            client.sent_at = now()
            client.send(request)

        plan = self.plan
        clients = [
            await self.connect(key, key % len(plan.members), answered) for key in range(plan.connections)
        ]
        await self.prepare(clients, answered)
        for client in clients[: 1 if in_turn else None]:
            client.sent_at = now()
            answered(client, Answer(0, None, b""))
        await self.pause(plan.warm_s)
        while True:
            latencies.clear()
            started, server, own = now(), [cpu_s(pid) for pid in plan.pids], time.process_time()
            await self.pause(plan.measure_s)
            seconds = now() - started
            used = [cpu_s(pid) - before for pid, before in zip(plan.pids, server, strict=True)]
            ordered = sorted(latencies)
            if not ordered:
                raise WireError("no answer in the measured time")
            figures = {
                "answered": len(ordered),
                "seconds": seconds,
                "per_s": len(ordered) / seconds,
                "ms_p50": percentile(ordered, 0.5) * 1e3,
                "ms_p99": percentile(ordered, 0.99) * 1e3,
                "ms_max": ordered[-1] * 1e3,
                "server_cpu_s": used,
                "generator_cpu_s": time.process_time() - own,
            }
            if not plan.report:
                return figures
            print(
                f"{figures['per_s']:,.0f}/s  p50 {figures['ms_p50']:.2f} ms  p99 {figures['ms_p99']:.2f} ms"
                f"  max {figures['ms_max']:.1f} ms  member CPU "
                + " ".join(f"{one / seconds:.0%}" for one in used),
                file=sys.stderr,
                flush=True,
            )

    # -- visible on all members ----------------------------------------------------------------------

    async def visible(self) -> dict[str, Any]:
        """Write by each member in turn; from the send, ask all members over and over until each shows it."""
        plan = self.plan
        acks: list[float] = []
        seen_by_all: list[float] = []
        number = 0
        marker = b""
        key = 0
        waiting = 0
        polls = 0
        sent_at = last_seen = 0.0
        turn: asyncio.Future[None] = self._loop.create_future()

        def step() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                turn.set_result(None)

        def written(client: Client, answer: Answer) -> None:
            if answer.error:
                self.fail(f"write: {answer.error}")
                return
            acks.append(now() - sent_at)
            step()

        def polled(client: Client, answer: Answer) -> None:
            nonlocal polls, last_seen
            polls += 1
            if answer.error:
                self.fail(f"read: {answer.error}")
            elif marker in answer.body:
                last_seen = now()
                step()
            else:
                client.send(client.wire.read(number, key))

        count = len(plan.members)
        writers = [await self.connect(member, member, written) for member in range(count)]
        readers = [await self.connect(count + member, member, polled) for member in range(count)]
        await self.prepare(writers, written)
        stop_at = now() + plan.warm_s + plan.measure_s
        measured_from = now() + plan.warm_s
        measured = 0
        for number in itertools.count(1):
            if now() > stop_at:
                break
            turn = self._loop.create_future()
            waiting = 1 + count
            key = number % count
            writer = writers[key]
            request = writer.wire.write(number)
            marker = writer.wire.marker(number)
            last_seen = 0.0
            sent_at = now()
            writer.send(request)
            for reader in readers:
                reader.send(reader.wire.read(number, key))
            await self.until(turn, VISIBLE_S)
            if sent_at >= measured_from:
                measured += 1
                seen_by_all.append(last_seen - sent_at)
        acks = sorted(acks[-measured:])
        seen_by_all.sort()
        if not measured:
            raise WireError("no write became visible in the measured time")
        return {
            "writes": measured,
            "polls_per_write": polls / number,
            "ms_p50": percentile(seen_by_all, 0.5) * 1e3,
            "ms_p99": percentile(seen_by_all, 0.99) * 1e3,
            "ack_ms_p50": percentile(acks, 0.5) * 1e3,
        }

    # -- leader lost ---------------------------------------------------------------------------------

    async def failover(self) -> dict[str, Any]:
        """Kill the leader; the first acknowledgement, by a survivor, of a write sent after the kill ends it.

        ``members`` are the survivors. Each is sent a write every 5 ms, whether or not earlier ones are
        answered, under changing keys; connections that a survivor closes are made anew at that pace.
        """
        plan = self.plan
        sent: dict[tuple[Client, int], float] = {}
        killed_at = 0.0
        outcome: asyncio.Future[float] = self._loop.create_future()
        refused: dict[str, int] = {}

        def answered(client: Client, answer: Answer) -> None:
            at = sent.pop((client, answer.tag), 0.0)
            if answer.error:
                refused[answer.error] = refused.get(answer.error, 0) + 1
            elif killed_at and at > killed_at and not outcome.done():
                outcome.set_result(now() - killed_at)

        def gone(client: Client, reason: str) -> None:
            if client in lanes:
                lanes[lanes.index(client)] = None

        lanes: list[Client | None] = []
        for lane in range(len(plan.members) * FAILOVER_KEYS):
            lanes.append(await self.connect(lane, lane % len(plan.members), answered, gone))
        await self.prepare([client for client in lanes if client], answered)

        def write(client: Client, number: int) -> None:
            request = client.wire.write(number)
            sent[client, client.wire.tag] = now()
            client.send(request)

        async def reconnect(lane: int, number: int) -> None:
            try:
                client = await self.connect(lane, lane % len(plan.members), answered, gone)
            except (OSError, TimeoutError):
                return
            lanes[lane] = client
            write(client, number)  # at once: who may speak again does not wait for its turn

        async def drive() -> None:
            connecting: dict[int, asyncio.Task[None]] = {}
            for number in itertools.count(1):
                for member in range(len(plan.members)):
                    lane = member + len(plan.members) * (number % FAILOVER_KEYS)
                    client = lanes[lane]
                    if client is not None:
                        write(client, number)
                    elif lane not in connecting or connecting[lane].done():
                        connecting[lane] = self._loop.create_task(reconnect(lane, number))
                await asyncio.sleep(FAILOVER_EVERY_S)

        driver = self._loop.create_task(drive())
        await asyncio.sleep(plan.warm_s)
        killed_at = now()
        os.kill(plan.victim, signal.SIGKILL)
        try:
            seconds = await asyncio.wait_for(outcome, FAILOVER_S)
        except TimeoutError:
            raise WireError(
                f"no write was acknowledged within {FAILOVER_S:g} s of the kill; {refused}"
            ) from None
        finally:
            driver.cancel()
        return {"ms": seconds * 1e3, "refused": refused}

    # -- idle brokers --------------------------------------------------------------------------------

    async def heartbeats(self) -> dict[str, Any]:
        """Be ``connections`` brokers: each registers with every member, then again, unchanged, every 30 s.

        Says ``steady`` and ``measured`` at both ends of the window, and waits for a line at each, so that the
        caller can count what else it counts over the same time.
        """
        plan = self.plan
        answers = 0

        def answered(client: Client, answer: Answer) -> None:
            nonlocal answers
            if answer.error:
                self.fail(f"heartbeat: {answer.error}")
            answers += 1

        brokers: list[list[Client]] = []
        for key in range(plan.connections):
            lanes = [await self.connect(key, member, answered) for member in range(len(plan.members))]
            brokers.append(lanes)
        for start in range(0, len(brokers), STARTS_AT_ONCE):
            group = brokers[start : start + STARTS_AT_ONCE]
            await self.prepare([client for lanes in group for client in lanes], answered)
        answers = 0

        async def beat() -> None:
            started = now()
            for turn in itertools.count():
                due = started + turn * HEARTBEAT_S / len(brokers)
                await asyncio.sleep(max(0.0, due - now()))
                for client in brokers[turn % len(brokers)]:
                    client.send(cast(RemotingWire, client.wire).heartbeat())

        beats = self._loop.create_task(beat())
        await self.pause(plan.warm_s)
        print("steady", flush=True)
        await self._loop.run_in_executor(None, sys.stdin.readline)
        started, server, before = now(), [cpu_s(pid) for pid in plan.pids], answers
        await self.pause(plan.measure_s)
        figures = {
            "seconds": now() - started,
            "heartbeats": answers - before,
            "server_cpu_s": [cpu_s(pid) - was for pid, was in zip(plan.pids, server, strict=True)],
        }
        print("measured", flush=True)
        await self._loop.run_in_executor(None, sys.stdin.readline)
        beats.cancel()
        return figures


async def _main(plan: Plan) -> dict[str, Any]:
    run = Run(plan)
    try:
        return await run.run()
    except (WireError, OSError, TimeoutError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    print(msgspec.json.encode(uvloop.run(_main(plan))).decode(), flush=True)
