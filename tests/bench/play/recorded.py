"""Sessions of the playground that start no process and only record the events that a test passes to them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from routekeeper.bench.events import Operation, ProcessSample, Truth
from routekeeper.bench.play.model import DesignName, Order
from routekeeper.bench.play.orders import directions
from routekeeper.bench.play.stage import PlayedSession, plan_of
from routekeeper.bench.schedule import SessionPlan

_S: Final = 1_000_000_000


@contextlib.contextmanager
def recorded(work: Path, arm: DesignName) -> Iterator[tuple[PlayedSession, int]]:
    """Yield a session that has begun, and the instant in ns at which it began."""
    plan = plan_of(60.0)
    given = SessionPlan(
        out=work,
        plan=plan,
        series=plan.series[0],
        arm=arm,
        block=1,
        order_in_block=0,
        attempt=1,
        profile="play",
        seed=1,
        command=("mqbench", "play"),
    )
    played = PlayedSession(given, lambda sample: None)
    try:
        played.cluster.build()
        yield played, played.begin_now()
    finally:
        played.end_all()


def with_a_kill_and_a_partition(root: Path, arm: DesignName) -> None:
    """Save a session of one design, with a kill and a partition, as a run folder below ``root``."""
    with tempfile.TemporaryDirectory() as work, recorded(Path(work), arm) as (played, begin_ns):
        for broker in range(3):
            played.record(Truth(subject="broker", broker=broker, what="up", t_ns=begin_ns))
        played.record(
            ProcessSample(
                role="nameserver", index=0, pid=1, t_ns=begin_ns, event="start", cpu_ns=0, rss_bytes=0
            )
        )
        kill = Order(do="kill", target="broker-1")
        part = Order(do="part", target="nameserver-0")
        played.strikes(kill, "broker-1", [], "broker", begin_ns + _S // 10)
        played.record(Truth(subject="broker", broker=1, what="down", t_ns=begin_ns + _S // 10))
        cut = directions(part, "nameserver-0", "")
        played.strikes(part, "nameserver-0", cut, "leader", begin_ns + 2 * _S // 10)
        for number in range(60):
            due_ns = begin_ns + number * _S // 200
            played.record(
                Operation(
                    op="lookup",
                    user=number % 4,
                    target=0,
                    due_ns=due_ns,
                    sent_ns=due_ns,
                    done_ns=due_ns + 1_000_000,
                    outcome="ok",
                    topic="Orders",
                    brokers=[0, 1, 2],
                    client_side=f"client-{number % 4}",
                )
            )
        time.sleep(0.35)  # the session must end after the last event above, which is at 0.3 s
        played.save(root)
