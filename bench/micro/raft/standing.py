"""A job that simulates idle brokers: they are registered, and send only heartbeats."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import Any, Final

from routekeeper.bench.group import cpu_s
from routekeeper.bench.wires.brokers import JuteBroker, RemotingBroker, period_s
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.job import PREPARE_S, Job, now
from routekeeper.bench.wires.wire import Answer, BrokerWire

STARTS_AT_ONCE: Final = 20
"""Number of brokers that register concurrently before the measurement begins."""


def broker_wire(job: Job, key: int) -> BrokerWire:
    plan = job.plan
    if plan.kind == "remoting":
        return RemotingBroker(key=key, topics=plan.topics, timestamp_ms=job.timestamp_ms)
    return JuteBroker(key=key, topics=plan.topics, lease_s=plan.lease_s)


def members_of(kind: str, key: int, count: int) -> Sequence[int]:
    """Return the members to which a broker connects: all RouteKeeper members, or one ZooKeeper member."""
    return range(count) if kind == "remoting" else (key % count,)


async def heartbeats(job: Job) -> dict[str, Any]:
    """Simulate ``connections`` brokers: each registers once, then sends heartbeats, evenly spread over time.

    Print ``steady`` when the measured time begins and ``measured`` when it ends. After each of the two words,
    wait for a line from the caller: the caller measures other values over the same time.
    """
    plan = job.plan
    answers = 0
    missing = 0
    step: asyncio.Future[None] = job.loop.create_future()

    def answered(client: Client[BrokerWire], answer: Answer) -> None:
        nonlocal answers, missing
        if answer.error:
            job.fail(f"broker {client.key}: {answer.error}")
        answers += 1
        if missing:
            missing -= 1
            if not missing:
                step.set_result(None)

    brokers: list[list[Client[BrokerWire]]] = []
    for key in range(plan.connections):
        lanes = []
        for member in members_of(plan.kind, key, len(plan.members)):
            client = await job.dial(broker_wire(job, key), plan.members[member], answered)
            client.key = key
            lanes.append(client)
        brokers.append(lanes)
    for start in range(0, len(brokers), STARTS_AT_ONCE):
        clients = [client for lanes in brokers[start : start + STARTS_AT_ONCE] for client in lanes]
        for requests in zip(*(client.wire.steps() for client in clients), strict=True):
            step = job.loop.create_future()
            missing = sum(map(len, requests))
            for client, its in zip(clients, requests, strict=True):
                client.send(b"".join(its))
            await job.until(step, PREPARE_S)
    answers = 0
    interval = period_s(plan.kind, plan.lease_s) / len(brokers)

    async def beat() -> None:
        started = now()
        for turn in itertools.count():
            await asyncio.sleep(max(0.0, started + turn * interval - now()))
            for client in brokers[turn % len(brokers)]:
                client.send(client.wire.heartbeat())

    beats = job.loop.create_task(beat())
    await job.pause(plan.warm_s)
    print("steady", flush=True)
    await job.loop.run_in_executor(None, sys.stdin.readline)
    started, server, before = now(), [cpu_s(pid) for pid in plan.pids], answers
    await job.pause(plan.measure_s)
    figures = {
        "seconds": now() - started,
        "heartbeats": answers - before,
        "server_cpu_s": [cpu_s(pid) - was for pid, was in zip(plan.pids, server, strict=True)],
    }
    print("measured", flush=True)
    await job.loop.run_in_executor(None, sys.stdin.readline)
    beats.cancel()
    return figures
