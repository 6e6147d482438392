"""A process with many clients, which measures when they learn of a change: by a notification or by polling.

The program ``python -m routekeeper.bench.scale.herd`` reads a plan of :mod:`routekeeper.bench.wires.job` as
JSON from standard input. It writes one JSON object with the figures to standard output.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, Final

import msgspec
import uvloop

from routekeeper.bench.figures import percentile
from routekeeper.bench.group import cpu_s
from routekeeper.bench.processes import allow_connections
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.job import Job, Plan, now
from routekeeper.bench.wires.watchers import HttpWatcher, JuteWatcher
from routekeeper.bench.wires.wire import Answer, WatchWire, Wire, WireError

TOLD_S: Final = 10.0
#: Pause in seconds between two changes. In this time, every client sets its watch again.
REARM_S: Final = 0.02
#: Seconds to wait before the measurement, so that every server has the nodes that the writer created.
SETTLE_S: Final = 0.3
#: Polling interval in seconds: RocketMQ's pollNameServerInterval, and our clients' ``route_refresh_s``.
POLL_S: Final = 30.0


def watch_wire(job: Job, key: int, addr: str) -> WatchWire:
    if job.plan.kind == "remoting":
        return HttpWatcher(key=key, host=addr)
    return JuteWatcher(key=key)


def told_members(plan: Plan, member: int) -> list[int]:
    """Return the servers with which the changing broker registers."""
    return list(range(len(plan.members))) if plan.everywhere else [member]


async def watch(job: Job) -> dict[str, Any]:
    """Change one key (a broker or a node) again and again; measure when all watchers have the new value.

    ``watchers`` clients watch at each server. There is one phase for each server, and all phases take the
    same time. In a phase, changes are made one after the other. A change goes to the server of the phase; if
    the plan says ``everywhere``, it goes to all servers.
    """
    plan = job.plan
    took: list[tuple[float, float, float]] = []
    used = 0.0
    members = range(len(plan.members))
    for member in members:
        phase = Phase(job, member)
        await phase.begin()
        await phase.changes(plan.warm_s / len(members))
        before = sum(map(cpu_s, plan.pids))
        took += await phase.changes(plan.measure_s / len(members))
        used += sum(map(cpu_s, plan.pids)) - before
        phase.end()
    acks, halves, lasts = (sorted(column) for column in zip(*took, strict=True))
    return {
        "writes": len(lasts),
        "watchers": plan.watchers * len(members),
        "ms_p50": percentile(lasts, 0.5) * 1e3,
        "ms_p99": percentile(lasts, 0.99) * 1e3,
        "half_ms_p50": percentile(halves, 0.5) * 1e3,
        "ack_ms_p50": percentile(acks, 0.5) * 1e3,
        "server_cpu_s": used,
    }


class Phase:
    """A part of a measurement in which one broker or node changes again and again, and all watchers wait."""

    def __init__(self, job: Job, member: int) -> None:
        self._job = job
        self._member = member
        self._key = job.plan.first_key + member
        self._number = 0
        self._over = False
        self._marker = b""
        self._acked = 0.0
        self._seen: dict[Client[WatchWire], float] = {}
        self._turn: asyncio.Future[None] = job.loop.create_future()
        self._watchers: list[Client[WatchWire]] = []
        self._writers: list[Client[Wire]] = []
        self._unacked = 0

    async def begin(self) -> None:
        job, plan = self._job, self._job.plan
        for member in told_members(plan, self._member):
            self._writers.append(await job.connect(self._key, member, self._written, self._lost))
        await job.prepare(self._writers, self._written)
        await job.pause(SETTLE_S)
        for at in range(plan.watchers * len(plan.watched)):
            addr = plan.watched[at % len(plan.watched)]
            wire = watch_wire(job, self._key, addr)
            self._watchers.append(await job.dial(wire, addr, self._told, self._lost))
        self._expect()
        for watcher in self._watchers:
            watcher.send(watcher.wire.watch())
        await self._all_seen()

    async def changes(self, seconds: float) -> list[tuple[float, float, float]]:
        """Make changes one after the other for ``seconds``; make at least one change.

        Return for each change the seconds until it was acknowledged, until half of the watchers knew it, and
        until all watchers knew it.
        """
        found: list[tuple[float, float, float]] = []
        stop_at = now() + seconds
        while not found or now() < stop_at:
            # A number selects a topic of our nameserver. Multiples of the number of topics select the same
            # topic.
            self._number += self._job.plan.topics
            self._marker = self._writers[0].wire.marker(self._number)
            self._acked, self._unacked = 0.0, len(self._writers)
            requests = [writer.wire.write(self._number) for writer in self._writers]
            self._expect()
            sent_at = now()
            for writer, request in zip(self._writers, requests, strict=True):
                writer.send(request)
            await self._all_seen()
            seen = sorted(self._seen.values())
            found.append((self._acked - sent_at, percentile(seen, 0.5) - sent_at, seen[-1] - sent_at))
            await self._job.pause(REARM_S)
        return found

    def end(self) -> None:
        self._over = True
        for writer in self._writers:
            writer.abort()
        for watcher in self._watchers:
            watcher.abort()

    def _expect(self) -> None:
        self._seen = {}
        self._turn = self._job.loop.create_future()

    async def _all_seen(self) -> None:
        await self._job.until(self._turn, TOLD_S)

    def _step(self) -> None:
        acked = self._acked or not self._marker
        if acked and len(self._seen) == len(self._watchers) and not self._turn.done():
            self._turn.set_result(None)

    def _written(self, client: Client[Wire], answer: Answer) -> None:
        if answer.error:
            self._job.fail(f"write: {answer.error}")
            return
        self._unacked -= 1
        if not self._unacked:
            self._acked = now()
            self._step()

    def _told(self, client: Client[WatchWire], answer: Answer) -> None:
        if answer.error:
            self._job.fail(f"watch: {answer.error}")
        elif self._marker in answer.body and client not in self._seen:
            self._seen[client] = now()
            self._step()

    def _lost(self, client: Client[Any], reason: str) -> None:
        if not self._over:
            self._job.fail(f"watch: {reason}")


async def poll(job: Job) -> dict[str, Any]:
    """Change one broker once; measure when each polling client has seen the change.

    ``watchers`` clients poll at each server, each of them every 30 s. Their first requests are evenly spread
    over 30 s.
    """
    plan = job.plan
    count = plan.watchers * len(plan.members)
    number = plan.topics
    sent_at = 0.0
    seen: dict[Client[Wire], float] = {}
    all_seen: asyncio.Future[None] = job.loop.create_future()

    def polled(client: Client[Wire], answer: Answer) -> None:
        if answer.error:
            job.fail(f"read: {answer.error}")
        elif marker in answer.body and client not in seen:
            seen[client] = now() - sent_at
            if len(seen) == count:
                all_seen.set_result(None)

    def written(client: Client[Wire], answer: Answer) -> None:
        if answer.error:
            job.fail(f"write: {answer.error}")

    writers = [await job.connect(plan.first_key, member, written) for member in told_members(plan, 0)]
    await job.prepare(writers, written)
    marker = writers[0].wire.marker(number)
    clients = [await job.connect(plan.first_key + 1, at % len(plan.members), polled) for at in range(count)]

    async def ask() -> None:
        started = now()
        turn = 0
        while True:
            await asyncio.sleep(max(0.0, started + turn * POLL_S / count - now()))
            client = clients[turn % count]
            client.send(client.wire.read(number, plan.first_key))
            turn += 1

    asking = job.loop.create_task(ask())
    await job.pause(plan.warm_s)
    before = sum(map(cpu_s, plan.pids))
    sent_at = now()
    for writer in writers:
        writer.send(writer.wire.write(number))
    await job.until(all_seen, POLL_S + TOLD_S)
    seconds, used = now() - sent_at, sum(map(cpu_s, plan.pids)) - before
    asking.cancel()
    ordered = sorted(seen.values())
    return {
        "watchers": count,
        "ms_p50": percentile(ordered, 0.5) * 1e3,
        "ms_p99": percentile(ordered, 0.99) * 1e3,
        "ms_max": ordered[-1] * 1e3,
        "seconds": seconds,
        "server_cpu_s": used,
    }


async def _main(plan: Plan) -> dict[str, Any]:
    job = Job(plan)
    try:
        figures = await (watch(job) if plan.job == "watch" else poll(job))
    except (WireError, OSError, TimeoutError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    job.stopping = True
    return figures


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    allow_connections()
    print(
        msgspec.json.encode(uvloop.run(_main(msgspec.json.decode(sys.stdin.readline(), type=Plan)))).decode(),
        flush=True,
    )
