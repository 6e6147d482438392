"""One run ends while the next one starts, never while it is measured; and how long it all takes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bench.compare import Ending, Teller, expected_minutes
from bench.plan import load_plan
from bench.processes import ClusterError
from bench.schedule import Comparison

FOLDERS = [Path("quiet"), Path("partition")]


def test_a_run_ends_while_the_next_one_starts_and_is_over_before_the_next_load() -> None:
    ends, ended = threading.Event(), threading.Event()

    def end() -> list[Path]:
        assert ends.wait(10)
        ended.set()
        return FOLDERS

    with Ending(Teller(2)) as ending:
        ending.begin(end, "the first")
        assert not ended.is_set()  # the next one is starting meanwhile
        ends.set()
        ending.wait()
        assert ended.is_set()
        ending.begin(lambda: [Path("next")], "the second")
    assert ending.folders == [*FOLDERS, Path("next")]


def test_a_run_that_failed_to_end_is_said_to_be_void(capsys: pytest.CaptureFixture[str]) -> None:
    def end() -> list[Path]:
        raise ClusterError("the proxy is gone")

    with Ending(Teller(1)) as ending:
        ending.begin(end, "block 1, raft")
    assert ending.folders == []
    assert "block 1, raft is void: the proxy is gone" in capsys.readouterr().err


def test_the_quick_comparison_is_planned_to_take_twelve_minutes_at_most() -> None:
    plan = load_plan("compare")
    assert [series.blocks for series in plan.series] == [6]
    assert plan.arms == ["independent", "raft", "zookeeper"]
    assert {scenario.name for scenario in plan.scenarios} == {
        *("quiet", "broker-dies", "nameserver-restarts", "leader-fails", "partition")
    }
    asked = Comparison(profile="compare", plan=plan, seed=1, command=[])
    assert expected_minutes(asked) <= 12
