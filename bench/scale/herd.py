"""A process with many clients, which measures when they learn of a change: by a notification or by polling.

The program ``python -m routekeeper.bench.scale.herd`` reads a plan of :mod:`routekeeper.bench.wires.job` as
JSON from standard input. To standard output it writes one JSON object per line: first the raw rows, from
which the figures are computed, and in the last line the figures.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import uvloop

from routekeeper.bench.figures import percentile
from routekeeper.bench.group import cpu_s
from routekeeper.bench.processes import allow_connections
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.job import Job, Plan, now
from routekeeper.bench.wires.watchers import HttpWatcher, JuteWatcher, WatchWire
from routekeeper.bench.wires.wire import Answer, Wire, WireError

Record = Callable[[dict[str, Any]], None]
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
    """Return the indexes of the servers that get each change of the broker.

    Args:
        member: Index of the server that gets the change, if the plan does not send it to all servers.
    """
    return list(range(len(plan.members))) if plan.everywhere else [member]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, with the instants at which it was known, in seconds of :data:`now`.

    Attributes:
        acked_at: Instant at which the last server had acknowledged the change.
        seen_at: Instant at which each watcher knew the change. Watcher ``n`` watches at server
            ``n % servers``.
    """

    sent_at: float
    acked_at: float
    seen_at: list[float]

    @property
    def half_s(self) -> float:
        """Return the seconds until half of the watchers knew the change."""
        return percentile(sorted(self.seen_at), 0.5) - self.sent_at

    @property
    def last_s(self) -> float:
        """Return the seconds until all watchers knew the change."""
        return max(self.seen_at) - self.sent_at

    def row(self, server: int) -> dict[str, Any]:
        """Return the raw row of the change; ``server`` is the server to which the change was sent first."""
        return {
            "kind": "watch",
            "server": server,
            "sent_ns": round(self.sent_at * 1e9),
            "acked_us": round((self.acked_at - self.sent_at) * 1e6),
            "seen_us": [round((at - self.sent_at) * 1e6) for at in self.seen_at],
        }


def cpu_row(job: str, before_s: list[float], after_s: list[float]) -> dict[str, Any]:
    """Return the raw row with the processor time that each server had used before and after a measurement."""
    return {"kind": "cpu", "job": job, "before_s": before_s, "after_s": after_s}


def used_s(pids: list[int]) -> list[float]:
    return [cpu_s(pid) for pid in pids]


async def watch(job: Job, record: Record) -> dict[str, Any]:
    """Change one key (a broker or a node) again and again; measure when all watchers have the new value.

    ``watchers`` clients watch at each server. There is one phase for each server, and all phases take the
    same time. In a phase, changes are made one after the other. A change goes to the server of the phase; if
    the plan says ``everywhere``, it goes to all servers.

    ``record`` gets a row for each measured change. The time of the measurement limits the number of rows: a
    change takes at least :data:`REARM_S`.
    """
    plan = job.plan
    made: list[Change] = []
    used = 0.0
    members = range(len(plan.members))
    for member in members:
        phase = Phase(job, member)
        await phase.begin()
        await phase.changes(plan.warm_s / len(members))
        before = used_s(plan.pids)
        measured = await phase.changes(plan.measure_s / len(members))
        after = used_s(plan.pids)
        phase.end()
        made += measured
        used += sum(after) - sum(before)
        for change in measured:
            record(change.row(member))
        record(cpu_row("watch", before, after))
    halves = sorted(change.half_s for change in made)
    lasts = sorted(change.last_s for change in made)
    return {
        "writes": len(lasts),
        "watchers": plan.watchers * len(members),
        "ms_p50": percentile(lasts, 0.5) * 1e3,
        "ms_p99": percentile(lasts, 0.99) * 1e3,
        "half_ms_p50": percentile(halves, 0.5) * 1e3,
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

    async def changes(self, seconds: float) -> list[Change]:
        """Make changes one after the other for ``seconds``; make at least one change."""
        found: list[Change] = []
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
            seen_at = [self._seen[watcher] for watcher in self._watchers]
            found.append(Change(sent_at=sent_at, acked_at=self._acked, seen_at=seen_at))
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


async def poll(job: Job, record: Record) -> dict[str, Any]:
    """Change one broker once; measure when each polling client has seen the change.

    ``watchers`` clients poll at each server, each of them every 30 s. Their first requests are evenly spread
    over 30 s. ``record`` gets one row with the time of each client.
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
    before = used_s(plan.pids)
    sent_at = now()
    for writer in writers:
        writer.send(writer.wire.write(number))
    await job.until(all_seen, POLL_S + TOLD_S)
    seconds, after = now() - sent_at, used_s(plan.pids)
    asking.cancel()
    seen_us = [round(seen[client] * 1e6) for client in clients]
    record({"kind": "poll", "sent_ns": round(sent_at * 1e9), "seen_us": seen_us})
    record(cpu_row("poll", before, after))
    ordered = sorted(seen.values())
    return {
        "watchers": count,
        "ms_p50": percentile(ordered, 0.5) * 1e3,
        "ms_p99": percentile(ordered, 0.99) * 1e3,
        "ms_max": ordered[-1] * 1e3,
        "seconds": seconds,
        "server_cpu_s": sum(after) - sum(before),
    }


async def _main(plan: Plan, record: Record) -> dict[str, Any]:
    job = Job(plan)
    try:
        figures = await (watch(job, record) if plan.job == "watch" else poll(job, record))
    except (WireError, ConnectionError, TimeoutError) as error:  # other errors are failures of this process
        return {"failure": f"{type(error).__name__}: {error}"}
    job.stopping = True
    return figures


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    allow_connections()
    rows: list[dict[str, Any]] = []
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    # Write the rows after the measurement, because writing takes processor time.
    rows.append(uvloop.run(_main(plan, rows.append)))
    print("\n".join(msgspec.json.encode(row).decode() for row in rows), flush=True)
