"""The next run's cluster starts while the processes of the cluster before it are still ending.

All these processes must have ended before the load of the next run begins.

Other tests check the planned time of a comparison.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from routekeeper.bench.cluster import Cluster
from routekeeper.bench.compare import Ending, Teller
from routekeeper.bench.generator_config import end_path
from routekeeper.bench.plan import FOLDER as PLANS
from routekeeper.bench.plan import load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.schedule import REPORT_S, Comparison
from tests.bench.expected import expected_minutes

ROOT = Path(__file__).parents[2]
FOLDERS = [Path("quiet"), Path("partition")]


def test_whoever_awaits_the_loads_end_never_reads_half_of_it(tmp_path: Path) -> None:
    """Check that a reader of the file that ends the load sees its old or its new content, never a part.

    With an earlier version, a load generator read a half-written file, and the results of its run could not
    be used.
    """
    config = tmp_path / "generator.json"
    seen, held = end_path(config), tmp_path / "held"
    seen.write_text("as it was")
    held.hardlink_to(seen)  # the hard link stands for a reader that opened the file before the write
    cluster = cast(Cluster, SimpleNamespace(config_path=lambda _: config))
    Cluster.say_end(cluster, 1_234_567_890)
    assert seen.read_text() == "1234567890"
    assert held.read_text() == "as it was"


def test_a_run_ends_while_the_next_one_starts_and_is_over_before_the_next_load() -> None:
    ends, ended = threading.Event(), threading.Event()

    def end() -> list[Path]:
        assert ends.wait(10)
        ended.set()
        return FOLDERS

    with Ending(Teller(2)) as ending:
        ending.begin(end, "the first")
        assert not ended.is_set()  # begin() returns before the run has ended, so the next run can start
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
        *("quiet", "broker-dies", "nameserver-restarts", "leader-fails", "partition", "rest")
    }
    assert expected_minutes(planned("compare")) <= 12


def planned(profile: str) -> Comparison:
    return Comparison(profile=profile, plan=load_plan(profile), seed=1, command=[])


@pytest.mark.parametrize(
    "path", [PLANS / "full.toml", ROOT / "docs" / "benchmark-guide.md"], ids=lambda path: path.name
)
def test_what_is_said_of_the_full_profile_is_what_it_is_planned_to_take(path: Path) -> None:
    asked = planned("full")
    minutes = []
    for series in asked.plan.series:
        alone = msgspec.structs.replace(asked.plan, series=[series])
        whole = expected_minutes(msgspec.structs.replace(asked, plan=alone))
        minutes.append(f"{whole - REPORT_S / 60:.0f}")
    said = " ".join(path.read_text().replace("#", " ").split())
    assert f"about {expected_minutes(asked) / 60:.1f} hours" in said.lower()
    assert f"{', '.join(minutes[:-1])} and {minutes[-1]} minutes in this order" in said
