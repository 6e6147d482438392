"""A failure of the harness or of the machine does not count as a failure of a design in ``mqbench scale``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.bench.__main__ import main
from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.ports import NoPorts
from routekeeper.bench.processes import ArmLost, ClusterError
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale import series as measuring
from routekeeper.bench.scale.groups import ScaleGroup
from routekeeper.bench.scale.order import add_row, begin, read_rows
from routekeeper.bench.scale.points import Part, Point, Row
from routekeeper.bench.scale.series import Series, order_of
from routekeeper.bench.scale.size import herd
from routekeeper.bench.storm import brokers
from routekeeper.bench.storm.life import Child
from routekeeper.bench.wires.wire import WireError


def series_in(folder: Path, part: Part, designs: list[Arm], said: Callable[[str], None] = print) -> Series:
    order = order_of(part, designs=designs, rounds=1, small=True, seed=1, command=[])
    begin(folder, order)
    return Series(folder, order, said)


@pytest.mark.parametrize(
    ("error", "of_design"),
    [
        (Unhealthy("raft is not whole within 90 s"), True),
        (ArmLost("nameserver-0 ended with 1"), True),
        (WireError("the session was refused"), True),
        (ConnectionRefusedError(111, "Connection refused"), True),
        (TimeoutError("timed out"), True),
        (ArmLost("nameserver-0 ended with 1\nOSError: [Errno 28] No space left on device"), False),
        (ArmLost("nameserver-0 ended with 1\nAddress already in use"), False),
        (ClusterError("mvn ended with 1"), False),
        (Missing("no jars"), False),
        (NoPorts("only 3 free ports"), False),
        (OSError(28, "No space left on device"), False),
    ],
    ids=lambda each: str(each).replace("\n", ", "),
)
def test_errors_of_servers_count_for_the_design_and_others_do_not(error: Exception, of_design: bool) -> None:
    assert measuring.is_of_design(error) == of_design


def test_process_of_the_brokers_that_ends_is_no_failure_of_a_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    plan = brokers.Plan(kind="remoting", servers=[], brokers=0, topics=0)
    with Child(brokers.__name__, plan) as child, pytest.raises(Exception, match="ended with 1") as caught:
        child.hear()
    assert not measuring.is_of_design(caught.value)


def test_process_of_the_clients_that_ends_early_is_no_failure_of_a_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ScaleGroup("independent", tmp_path, count=1, links="none", record=print)
    point = Point(part="size", kind="herd", name="6 clients", clients=6)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClusterError, match="the clients' process ended with 1"):
        herd(group, point, "watch", print)


def test_full_disk_is_no_failure_of_a_design_and_the_series_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my series"
    series = series_in(folder, "size", ["independent"])
    (folder / "events").touch()  # a file in the place of a folder refuses every write, as a full disk does
    assert main(["scale", "--resume", str(folder)]) == 1
    assert read_rows(folder) == []
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if "is void: " in line and "Not a directory" in line]) == 3
    assert "3 attempts failed" in said[-2]
    assert said[-1] == f"mqbench: to go on, run: mqbench scale --resume '{folder}'"
    (folder / "events").unlink()
    # With this program in place of Python, each server ends at once: this is a failure of the design.
    monkeypatch.setattr(sys, "executable", "/bin/false")
    series.points = series.points[:1]
    series.run()
    (row,) = read_rows(folder)
    assert row.failed is not None
    assert row.failed.startswith("ArmLost: nameserver-")


def test_resume_with_another_commit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = series_in(tmp_path, "size", ["independent"])
    first = Row(
        point=series.points[0],
        design="independent",
        round=1,
        links="none",
        seconds=1.0,
        load=0.5,
        commit="abc",
    )
    add_row(tmp_path, first)
    (tmp_path / "events").touch()  # a file in the place of a folder refuses every write, as a full disk does
    assert main(["scale", "--resume", str(tmp_path)]) == 1
    warnings = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert [line.partition(", the next ones of ")[0] for line in warnings] == [
        "mqbench: WARNING: the rows are of commit abc"
    ]


def test_row_that_cannot_be_written_ends_the_series_with_the_command_that_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "series"
    series_in(folder, "size", ["independent"])
    (folder / "rows.jsonl").symlink_to(tmp_path / "nowhere" / "rows")  # refuses every write
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["scale", "--resume", str(folder)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert "No such file or directory" in said[-2]
    assert said[-1] == f"mqbench: to go on, run: mqbench scale --resume {folder}"
