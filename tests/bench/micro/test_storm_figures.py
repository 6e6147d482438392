"""Figures of registration storms: waiting times, samples, times of returning brokers, and JVM memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from routekeeper.bench.group import live_bytes
from routekeeper.bench.micro.load import PLACE, Load, Plan, Run
from routekeeper.bench.micro.storm.rows import Sizes, table
from routekeeper.bench.storm import brokers
from routekeeper.bench.storm.brokers import AGAIN_S, Brokers, JuteLane
from routekeeper.bench.storm.bystander import Sample
from routekeeper.bench.storm.life import sampled, until_right, waits
from routekeeper.bench.storm.sessions import NODES_PER_MULTI
from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.wire import Answer
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import FrameDecoder

MS = 1_000_000


def sample(sent_ms: int, wait_ms: int, outcome: str = "ok", *, server: int = 0, own_ms: int = 0) -> Sample:
    return Sample(server, sent_ms * MS, wait_ms * MS, own_ms * MS, outcome)


def test_wait_that_is_refused_goes_on_until_a_right_answer() -> None:
    samples = [
        sample(0, 1),
        sample(3, 500, "refused", own_ms=2),
        sample(505, 5, "lost"),
        sample(560, 40, "wrong", own_ms=1),
        sample(602, 8),
        sample(612, 1),
    ]
    assert until_right(samples) == [sample(0, 1), sample(3, 607, own_ms=3), sample(612, 1)]
    found = waits(samples)
    assert found["wait_ms_longest"] == 604
    assert found["wait_ms_longest_own"] == 3
    assert (found["queries"], found["queries_failed"]) == (6, 3)


def test_right_answer_of_one_server_ends_no_wait_at_another() -> None:
    samples = [sample(0, 10, "refused"), sample(5, 1, server=1), sample(12, 3)]
    assert until_right(samples) == [sample(5, 1, server=1), sample(0, 15)]


def test_wait_without_an_end_goes_until_the_last_answer() -> None:
    samples = [sample(0, 10, "refused"), sample(12, 5_000, "unanswered")]
    assert until_right(samples) == [sample(0, 5_012, "unanswered")]


def test_samples_are_taken_before_and_after_what_is_measured() -> None:
    measured: list[str] = []
    with sampled(lambda: [len(measured)]) as taken:
        measured.append("it")
    assert (taken[0], taken[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("spread_s", "after_s"), [(None, [AGAIN_S] * 3), (0.0, [AGAIN_S] * 3), (30.0, [0, 10, 20])]
)
def test_brokers_come_back_when_the_row_says(spread_s: float | None, after_s: list[float]) -> None:
    async def body() -> list[float]:
        made = Brokers(brokers.Plan(kind="remoting", servers=["127.0.0.1:1"], brokers=2, topics=1))
        if spread_s is not None:
            await made.returning(brokers.Command(do="returning", seconds=spread_s))
        return [made.back_after_s(broker) for broker in range(3)]

    assert asyncio.run(body()) == after_s


class Written:
    """A transport that collects the bytes that a connection sends."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False


def test_refused_registration_ends_with_its_last_answer() -> None:
    """Check that a refused registration ends only after its last answer.

    If it ended earlier, a late answer would count for the broker's next try.
    """
    plan = brokers.Plan(
        kind="jute", servers=["127.0.0.1:1"], brokers=1, topics=5 * NODES_PER_MULTI, resident=False
    )
    ended: list[str | None] = []

    class Watched(JuteLane):
        def finish(self, error: str | None) -> None:
            ended.append(error)

    async def body() -> None:
        lane = Watched(Brokers(plan), 0, 0)
        client = Client(lane.wire(), lane.answered, lambda *_: None)
        client.connection_made(cast(asyncio.Transport, Written()))
        lane.send(client)
        for tag, error in ((1, None), (2, "-110"), (3, None), (4, None)):
            lane.answered(client, Answer(tag, error, b""))
            assert not ended
        lane.answered(client, Answer(5, None, b""))
        assert ended == ["-110"]

    asyncio.run(body())


@pytest.mark.parametrize("fresh", [True, False])
def test_names_are_asked_for_once_where_the_plan_says_so(fresh: bool) -> None:
    plan = Plan(
        host="",
        port=0,
        connections=1,
        depth=4,
        topics=[f"nobody-has-{PLACE.decode()}"],
        mixed=False,
        pid=0,
        check=False,
        fresh=fresh,
        warm_s=0,
        measure_s=0,
        seed=1,
    )

    async def body() -> list[str]:
        run, written = Run(plan), Written()
        Load(run, run.orders[0]).connection_made(cast(asyncio.Transport, written))
        commands = [decode_command(frame) for frame in FrameDecoder().feed(written.data)]
        return [command.ext_fields["topic"] for command in commands]

    names = asyncio.run(body())
    assert len(set(names)) == (4 if fresh else 1)
    assert {len(name) for name in names} == {len(plan.topics[0])}


def test_heap_is_the_total_of_a_class_histogram() -> None:
    histogram = (
        " num     #instances         #bytes  class name (module)\n"
        "   1:         38290        3063200  [B (java.base@17.0.9)\n"
        "Total         99307        5341928\n"
    )
    assert live_bytes(histogram) == 5_341_928
    with pytest.raises(ValueError, match="no total in a class histogram of 4 characters"):
        live_bytes("1234")


def test_table_says_which_heap_a_jvm_had_and_what_it_keeps() -> None:
    figures: dict[Any, list[dict[str, float]]] = {
        ("register", "rocketmq"): [{"memory_mb": 1061.0, "heap_kept_mb": 400.0, "right_s": 1.0}],
        ("register", "raft"): [{"memory_mb": 145.0, "right_s": 1.0}],
    }
    found = table(Sizes(brokers=1, topics=1), ["raft", "rocketmq"], figures, {}, {"rocketmq": 4096})
    assert found[0] == "| | raft | rocketmq, -Xmx4096m | goal |"
    assert "| 1 x 1: largest memory of one server, resident, MB | 145 | 1,061 | 250, raft 350 |" in found
    assert "| 1 x 1: the same of a JVM's heap after a collection, MB | - | 400 |  |" in found
