"""The report can read saved sessions of the playground: they have the same format as a comparison's runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from routekeeper.bench.events import Operation, ProcessSample, Truth
from routekeeper.bench.play.model import DesignName, Order
from routekeeper.bench.play.orders import directions
from routekeeper.bench.play.stage import PlayedSession, plan_of
from routekeeper.bench.runfolder import find_run_folders, read_manifest
from routekeeper.bench.schedule import SessionPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

_S = 1_000_000_000


def a_saved_session(work: Path, out: Path, arm: DesignName) -> None:
    """Save a session of one design with a kill and a partition, without starting a process."""
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
        begin_ns = played.begin_now()
        for broker in range(3):
            played.record(Truth(subject="broker", broker=broker, what="up", t_ns=begin_ns))
        for role, index in (("nameserver", 0), ("broker", 1)):
            played.record(
                ProcessSample(
                    role=role,  # type: ignore[arg-type]
                    index=index,
                    pid=1,
                    t_ns=begin_ns,
                    event="start",
                    cpu_ns=0,
                    rss_bytes=0,
                )
            )
        kill = Order(do="kill", target="broker-1")
        part = Order(do="part", target="nameserver-0")
        played.strikes(kill, "broker-1", [], "broker", begin_ns + _S // 10)
        played.record(Truth(subject="broker", broker=1, what="down", t_ns=begin_ns + _S // 10))
        played.strikes(
            part, "nameserver-0", directions(part, "nameserver-0", ""), "leader", begin_ns + 2 * _S // 10
        )
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
        played.save(out)
    finally:
        played.end_all()


def test_a_page_is_made_of_a_saved_session(tmp_path: Path, spark: SparkSession) -> None:
    """Make a page; the fixture ``spark`` starts the Spark session that :func:`build_report` uses."""
    from routekeeper.bench.report.job import build_report

    out = tmp_path / "saved"
    designs: tuple[DesignName, ...] = ("independent", "raft")
    for arm in designs:
        a_saved_session(tmp_path / "work" / arm, out, arm)
    runs = find_run_folders([out])
    assert [read_manifest(run).arm for run in runs] == ["independent", "raft"]
    text = Path(build_report([str(out)], str(out), progress=print)).read_text()
    assert "kill broker-1" in text
    assert "part nameserver-0" in text
