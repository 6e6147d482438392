"""The process that makes the load, on one event loop (uvloop). Only the encoding differs between systems.

It reads one :class:`Plan` as JSON from standard input, and writes one JSON object with the measured values to
standard output. All instants are of CLOCK_MONOTONIC. The process decodes every answer. An answer that reports
an error ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from typing import Any, Final

import msgspec
import uvloop

from routekeeper.bench.figures import percentile
from routekeeper.bench.group import cpu_s
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.job import Job, Plan, now
from routekeeper.bench.wires.wire import Answer, Wire, WireError

VISIBLE_S: Final = 10.0


class Run(Job):
    """The job of one load process: it sends requests, and measures when the answers come."""

    async def run(self) -> dict[str, Any]:
        plan = self.plan
        if plan.job == "visible":
            figures = await self.visible()
        else:
            figures = await self.closed_loop(reads=plan.job == "reads", in_turn=plan.job == "one")
        self.stopping = True
        return figures

    # -- writes/s, acknowledgement, reads/s ----------------------------------------------------------

    async def closed_loop(self, *, reads: bool, in_turn: bool) -> dict[str, Any]:
        """Keep one request in flight on each connection, and return rate, latencies and CPU times.

        Args:
            reads: True for reads, False for writes.
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
        latencies.clear()
        started, server, own = now(), [cpu_s(pid) for pid in plan.pids], time.process_time()
        await self.pause(plan.measure_s)
        seconds = now() - started
        # Read this at once, because the members still work on the last requests.
        used = [cpu_s(pid) - before for pid, before in zip(plan.pids, server, strict=True)]
        ordered = sorted(latencies)
        if not ordered:
            raise WireError("no answer in the measured time")
        return {
            "answered": len(ordered),
            "seconds": seconds,
            "per_s": len(ordered) / seconds,
            "ms_p50": percentile(ordered, 0.5) * 1e3,
            "ms_p99": percentile(ordered, 0.99) * 1e3,
            "ms_max": ordered[-1] * 1e3,
            "server_cpu_s": used,
            "generator_cpu_s": time.process_time() - own,
        }

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


async def _main(plan: Plan) -> dict[str, Any]:
    run = Run(plan)
    try:
        return await run.run()
    except (WireError, OSError, TimeoutError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    print(msgspec.json.encode(uvloop.run(_main(plan))).decode(), flush=True)
