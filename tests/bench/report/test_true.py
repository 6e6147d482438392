"""Sentences of a page that an opponent found false for some data, each with data that made it false."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench.report import measures
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.page import page
from routekeeper.bench.report.used_timers import LOOK_MS, used_timers
from routekeeper.bench.runfolder import Manifest, Timer
from routekeeper.bench.timers import documented_timers
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from tests.bench.report.test_misled import gold_of
from tests.bench.report.test_said import text_of

THREE: Final = {"independent": 100, "raft": 100, "zookeeper": 100}


def with_timers(gold: Gold, *, session_ms: float = 2000.0, tick_ms: float = 150.0) -> Gold:
    """The timers of the plan ``full``, with its divisor of 60."""

    def timers(manifest: Manifest) -> dict[str, Timer]:
        documented = documented_timers(60.0)
        if manifest.arm != "zookeeper":
            election = Timer(used_ms=500, documented_ms=500)
            return documented | ({"raftElectionTimeoutMs": election} if manifest.arm == "raft" else {})
        return {
            "sessionTimeout": Timer(used_ms=session_ms, scaled=session_ms == 2000.0),
            "pollNameServerInterval": documented["pollNameServerInterval"],
            "tickTime": Timer(used_ms=tick_ms, documented_ms=2000),
            "syncLimit": Timer(used_ms=5 * tick_ms, documented_ms=10_000),
        }

    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        manifest = msgspec.structs.replace(source.manifest, divisor=60.0, timers=timers(source.manifest))
        sources.append(dataclasses.replace(source, manifest=manifest))
    return dataclasses.replace(gold, sources=sources)


# -- timers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tick_ms", "reason"),
    [
        (150.0, "set to match raft mode's election time-out"),
        (2000.0, "as documented"),
        (100.0, "set by the plan"),
    ],
)
def test_a_tick_is_told_as_it_was_set(tmp_path: Path, tick_ms: float, reason: str) -> None:
    """ZooKeeper's tick was 150 ms instead of 2 s, and the page called it "as it is"."""
    gold = with_timers(gold_of(tmp_path, THREE), tick_ms=tick_ms)
    rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
    for timer in ("tickTime (ZooKeeper)", "syncLimit (ZooKeeper)"):
        assert rows[timer].endswith(reason)
    said = text_of(page(gold, measures.values(gold)))
    assert "as it is" not in said
    assert "Election time-outs are not divided" not in said


def test_a_session_is_called_equal_to_the_lease_only_if_it_is(tmp_path: Path) -> None:
    for session_ms, reason in ((2000.0, "equal to RocketMQ's lease"), (500.0, "set by the plan")):
        gold = with_timers(gold_of(tmp_path / reason, THREE), session_ms=session_ms)
        rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
        assert rows["sessionTimeout (ZooKeeper)"].endswith(reason)
        told = "ZooKeeper's session time-out is as long as RocketMQ's lease"
        assert (told in text_of(page(gold, measures.values(gold)))) == (session_ms == 2000.0)


def test_periods_that_no_plan_divides_are_told(tmp_path: Path) -> None:
    """Nameservers look for silent brokers every 250 ms, where the divided scan would do so every 83 ms."""
    assert LOOK_MS == 1000 * CLOCK_PERIOD_S
    gold = with_timers(gold_of(tmp_path, THREE))
    rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
    assert rows["scanNotActiveBrokerInterval"] == (
        "83.3 ms, divided; our nameservers look for silent brokers every 250 ms, which no plan divides"
    )
    assert "less 10 to 400 ms" in rows["ping of a session (ZooKeeper)"]


# -- method -------------------------------------------------------------------------------------------------


def test_faults_are_not_said_to_come_at_the_same_instants(tmp_path: Path) -> None:
    """In one round the leader was killed 47.0, 47.8 and 54.5 s after the start."""
    gold = gold_of(tmp_path, THREE)
    said = text_of(page(gold, measures.values(gold)))
    assert "same instants" not in said
    assert "the same faults in the same order" in said
