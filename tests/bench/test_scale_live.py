"""A tiny measurement by ``mqbench scale`` with real servers gives rows, events and a report page.

A second start does not repeat measurements that are finished.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routekeeper.bench import slow_disk
from routekeeper.bench.__main__ import main
from routekeeper.bench.events import Operation, ProcessSample
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale import distance, groups, number
from routekeeper.bench.scale.order import begin, read_rows
from routekeeper.bench.scale.points import Part
from routekeeper.bench.scale.series import Series, order_of
from tests.bench import recompute_scale
from tests.bench.lives import rows as events_of

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Set long limits, so that a leader on a busy machine stays leader and a change may take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "TIMERS", msgspec.structs.replace(groups.TIMERS, election_timeout_ms=3000))
        patch.setattr(number, "tried_s", lambda servers, down: 25.0)
        patch.setattr(number, "TIMEOUT_S", 20.0)
        for module in (distance, number):
            patch.setattr(module, "TRY_S", 2.0)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "scale-size"
    order = order_of("size", designs=["independent", "raft"], rounds=1, small=True, seed=1, command=[])
    begin(folder, order)
    said: list[str] = []
    series = Series(folder, order, said.append)
    storm = next(point for point in series.points if point.kind == "storm")
    herd = next(point for point in series.points if point.kind == "herd")
    series.points = [storm, herd]
    series.run()
    assert [line for line in said if "failed" in line] == []
    series.run()
    assert len(said) == 4, "finished turns are not measured again"
    return folder


def test_every_design_is_right_again_and_its_figures_are_kept(folder: Path) -> None:
    rows = read_rows(folder)
    assert {(row.point.kind, row.design) for row in rows} == {
        (kind, design) for kind in ("storm", "herd") for design in ("independent", "raft")
    }
    assert [row.failed for row in rows] == [None] * 4
    for row in rows:
        print(row.design, row.point.name, row.seconds, row.figures)
        if row.point.kind == "herd":
            assert 0 < row.figures["watch_ms_half"] <= row.figures["watch_ms_last"]
            continue
        assert row.figures["register_failures"] == 0
        assert 0 < row.figures["restart_right_s"] < row.seconds
        assert row.figures["restart_wait_ms_longest"] > 1, "all servers were away"
        assert row.figures["change_took_s"] > 0
        assert row.figures["register_memory_mb"] > 10


def test_queries_and_registrations_are_operations_that_the_report_reads(folder: Path) -> None:
    (events,) = folder.glob("events/point=3-brokers*/round=1/arm=raft")
    operations = events_of(events, Operation)
    asked = [operation for operation in operations if operation.op == "lookup"]
    told = [operation for operation in operations if operation.op == "announce"]
    assert {operation.target for operation in asked} == {0, 1, 2}
    assert {operation.user for operation in told} >= {100, 101, 102}
    assert any(operation.outcome != "ok" for operation in asked), "servers were killed"
    assert all(operation.due_ns <= operation.sent_ns <= operation.done_ns for operation in operations)
    assert {sample.index for sample in events_of(events, ProcessSample)} == {0, 1, 2}


def test_raw_changes_of_clients_that_watch_give_the_same_figures(folder: Path) -> None:
    found = recompute_scale.figures(folder)
    herds = [row for row in read_rows(folder) if row.point.kind == "herd"]
    assert len(herds) == 2
    for herd in herds:
        again = {name: value for (_, design, _, name), value in found.items() if design == herd.design}
        for name in ("watch_ms_last", "watch_ms_half", "watch_cpu_ms_a_change"):
            assert again[name] == pytest.approx(herd.figures[name], rel=0.01)
        assert herd.figures["watch_other_programs_cores"] >= 0
    compared, differ = recompute_scale.differences(found, folder / "rows.jsonl", busier=50.0)
    assert (differ, compared >= 12) == ([], True)


def figures_of(folder: Path, part: Part, kind: str, design: Arm) -> dict[str, float]:
    """Measure one point once and return the figures.

    The point is the last point of ``kind`` with three servers in the small measurement.
    """
    order = order_of(
        part,
        designs=[design],
        rounds=1,
        links="proxy" if part == "distance" else "none",
        small=True,
        seed=1,
        command=[],
    )
    begin(folder, order)
    series = Series(folder, order, print)
    series.points = [point for point in series.points if point.kind == kind and point.servers == 3][-1:]
    series.run()
    (row,) = read_rows(folder)
    assert row.failed is None
    print(row.seconds, row.figures)
    return row.figures


def test_change_takes_a_round_trip_more_where_servers_are_far(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "distance", "distance", "raft")
    assert found["change_leader_ms"] > 5
    assert found["change_follower_ms"] > 10
    assert found["everywhere_ms"] > 5
    assert found["failover_s"] > 0
    phases = [note.get("phase", note["kind"]) for note in notes_of(tmp_path)]
    assert phases.index("failover") < phases.index("restart"), "the successors are not young JVMs"


@pytest.mark.skipif(slow_disk.missing() is not None, reason=f"a slow disk needs {slow_disk.missing()}")
def test_slow_disk_of_the_leader_or_of_one_follower_is_one_of_three(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "distance", "slow-disk", "raft")
    assert sum("_change_" in name for name in found) == 6
    assert found["slow_leader_change_follower_ms"] > 0


def notes_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.rglob("notes.jsonl")
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


@pytest.mark.skipif(shutil.which("java") is None, reason="ZooKeeper needs Java")
def test_clients_that_watch_zookeeper_learn_of_each_change(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "size", "herd", "zookeeper")
    assert 0 < found["watch_ms_half"] <= found["watch_ms_last"]


def test_raft_mode_takes_changes_with_one_of_three_down_and_not_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A short time is enough to show that changes are impossible without a majority.
    monkeypatch.setattr(number, "tried_s", lambda servers, down: 25.0 if down == 1 else 6.0)
    found = figures_of(tmp_path, "number", "number", "raft")
    assert found["down_with_changes"] == 1
    assert found["down_1_change_s"] > 0
    assert found["rolling_read_gap_s"] < found["rolling_s"]
    assert found["rolling_leader_changes"] >= 1, "the leader restarts, too"
    kills = [note for note in notes_of(tmp_path) if note["kind"] == "down"]
    assert [kill["was_leader"] for kill in kills] == [True, True]
    again = {name for *_, name in recompute_scale.figures(tmp_path)}
    assert {"change_leader_ms", "rolling_change_gap_s", "rolling_read_gap_s"} <= again
    assert (
        recompute_scale.differences(recompute_scale.figures(tmp_path), tmp_path / "rows.jsonl", busier=50.0)[
            1
        ]
        == []
    )
    assert {name for name in found if name.endswith("_other_programs_cores")} == {
        f"{phase}_other_programs_cores" for phase in ("change", "kills", "rolling")
    }


def test_independent_mode_answers_right_again_only_when_brokers_are_back(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "number", "number", "independent")
    assert (found["down_with_changes"], found["down_with_answers"]) == (2, 2)
    # Brokers come back within 30 s, and the last of three comes back after 15 s or later. By then, the
    # rolling restart of the servers has long ended.
    assert found["rolling_read_gap_s"] > 15 - found["rolling_s"]
    assert found["rolling_change_gap_s"] < found["rolling_s"]


def test_messages_go_on_while_all_servers_are_away(tmp_path: Path) -> None:
    found = figures_of(tmp_path, "number", "away", "independent")
    assert found["away_sent"] == 60
    assert found["away_failed"] == 0
    assert found["away_right_s"] > 0
    assert found["away_other_programs_cores"] >= 0
    # Messages are counted until 2 s after the last route is right again. Demand only half of the messages
    # that are due, because the machine may be busy.
    assert found["away_sent_after"] > (found["away_right_s"] + 2) / number.SEND_EVERY_S / 2


def test_page_is_made_of_the_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--report", str(folder.parent)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == folder.parent / "scale.html"
    text = page.read_text()
    assert "<svg" in text
    assert "A trial with tiny sizes" in text
