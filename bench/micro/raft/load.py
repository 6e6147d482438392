"""The process that makes the load, on one event loop (uvloop). Only the encoding differs between systems.

It reads one :class:`Plan` as JSON from standard input, and writes one JSON object with the measured values to
standard output. All instants are of CLOCK_MONOTONIC. The process decodes every answer. An answer that reports
an error ends the run, except in the job ``failover``, which only counts such answers.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from routekeeper.bench.figures import percentile
from routekeeper.bench.group import cpu_s
from routekeeper.bench.micro.raft.standing import heartbeats
from routekeeper.bench.scale.herd import poll, watch
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.job import Job, Plan, now
from routekeeper.bench.wires.wire import Answer, Wire, WireError

VISIBLE_S: Final = 10.0
#: Longest time in s until a new leader acknowledges a write. It is long because, by default, ZooKeeper's
#: followers consider a silent leader lost only after 10 s.
FAILOVER_S: Final = 40.0
#: Interval in s between writes to each surviving member while the group has no leader.
FAILOVER_EVERY_S: Final = 0.005
FAILOVER_KEYS: Final = 32
ENDED_S: Final = 5.0
"""Seconds within which all threads of a process must have stopped or ended after SIGSTOP or SIGKILL."""


class Run(Job):
    """The job of one load process: it sends requests, and measures when the answers come."""

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
                figures = await heartbeats(self)
            case "watch":
                figures = await watch(self)
            case "poll":
                figures = await poll(self)
        self.stopping = True
        return figures

    # -- writes/s, acknowledgement, reads/s ----------------------------------------------------------

    async def closed_loop(self, *, reads: bool = False, in_turn: bool = False) -> dict[str, Any]:
        """Keep one request in flight on each connection, and return rate, latencies and CPU times.

        Args:
            in_turn: True to keep only one request in flight on all connections together, and to send the
                requests over each connection in turn.
        """
        latencies: list[float] = []
        record = latencies.append

        def answered(client: Client[Wire], answer: Answer) -> None:
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
        """Write at each member in turn, and measure the time until all members show the write.

        The queries to all members begin when the write is sent. Each member is queried until it shows the
        write.
        """
        plan = self.plan
        acks: list[float] = []
        seen_by_all: list[float] = []
        number = 0
        marker = b""
        key = 0
        waiting = 0
        polls = 0
        sent_at = last_seen = 0.0
        turn: asyncio.Future[None] = self.loop.create_future()

        def step() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                turn.set_result(None)

        def written(client: Client[Wire], answer: Answer) -> None:
            if answer.error:
                self.fail(f"write: {answer.error}")
                return
            acks.append(now() - sent_at)
            step()

        def polled(client: Client[Wire], answer: Answer) -> None:
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
            turn = self.loop.create_future()
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
            "polls_per_write": polls / (number - 1),  # the loop ended before it sent write ``number``
            "ms_p50": percentile(seen_by_all, 0.5) * 1e3,
            "ms_p99": percentile(seen_by_all, 0.99) * 1e3,
            "ack_ms_p50": percentile(acks, 0.5) * 1e3,
        }

    # -- leader lost ---------------------------------------------------------------------------------

    async def failover(self) -> dict[str, Any]:
        """Kill or stop the leader; measure the time until a surviving member acknowledges a later write.

        The time begins with the signal. A write counts only if it was sent after the leader's end. After
        SIGSTOP, the connections of the leader stay open.

        ``members`` are the surviving members. Each of them gets a write every 5 ms, under changing keys, even
        if earlier writes are unanswered. If a member closes a connection, open it again, at most once every
        160 ms.
        """
        plan = self.plan
        sent: dict[tuple[Client[Wire], int], float] = {}
        ended_at = 0.0
        outcome: asyncio.Future[float] = self.loop.create_future()
        refused: dict[str, int] = {}

        def answered(client: Client[Wire], answer: Answer) -> None:
            at = sent.pop((client, answer.tag), 0.0)
            if answer.error:
                refused[answer.error] = refused.get(answer.error, 0) + 1
            elif ended_at and at > ended_at and not outcome.done():
                outcome.set_result(now() - signalled_at)

        def gone(client: Client[Wire], reason: str) -> None:
            if client in lanes:
                lanes[lanes.index(client)] = None

        lanes: list[Client[Wire] | None] = []
        for lane in range(len(plan.members) * FAILOVER_KEYS):
            lanes.append(await self.connect(lane, lane % len(plan.members), answered, gone))
        await self.prepare([client for client in lanes if client], answered)

        def write(client: Client[Wire], number: int) -> None:
            request = client.wire.write(number)
            sent[client, client.wire.tag] = now()
            client.send(request)

        async def reconnect(lane: int, number: int) -> None:
            try:
                client = await self.connect(lane, lane % len(plan.members), answered, gone)
            except (OSError, TimeoutError):
                return
            lanes[lane] = client
            # Write at once: the next regular write over this connection comes 32 intervals later.
            write(client, number)

        async def drive() -> None:
            connecting: dict[int, asyncio.Task[None]] = {}
            for number in itertools.count(1):
                for member in range(len(plan.members)):
                    lane = member + len(plan.members) * (number % FAILOVER_KEYS)
                    client = lanes[lane]
                    if client is not None:
                        write(client, number)
                    elif lane not in connecting or connecting[lane].done():
                        connecting[lane] = self.loop.create_task(reconnect(lane, number))
                await asyncio.sleep(FAILOVER_EVERY_S)

        driver = self.loop.create_task(drive())
        await asyncio.sleep(plan.warm_s)
        signalled_at = now()
        os.kill(plan.victim, plan.by)
        wait_ended(plan.victim)
        ended_at = now()
        try:
            seconds = await asyncio.wait_for(outcome, FAILOVER_S)
        except TimeoutError:
            raise WireError(
                f"no write was acknowledged within {FAILOVER_S:g} s of the signal; {refused}"
            ) from None
        finally:
            driver.cancel()
        return {"ms": seconds * 1e3, "refused": refused}


def wait_ended(pid: int) -> None:
    """Wait until no thread of a process runs any more; this blocks the event loop for about 0.1 ms.

    Raises:
        WireError: If a thread still runs after 5 s.
    """
    deadline = now() + ENDED_S
    while any(state not in "TZX" for state in states(pid)):
        if now() > deadline:
            raise WireError(f"process {pid} runs {ENDED_S:g} s after the signal")


def states(pid: int) -> list[str]:
    """Return the state letter (R, S, T, Z...) of each thread of a process; an empty list if it has ended."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.append(task.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread ended before its file was read
            continue
    return found


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
