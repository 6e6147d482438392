"""A run of ``mqbench costs`` names failed attempts and all commits with which it measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.costs import run as program
from routekeeper.bench.costs.fit import told_of_the_mixture
from routekeeper.bench.costs.plan import QUICK, Plan, steps
from routekeeper.bench.costs.run import ROWS, Failure, Run, begin, make_rows, measure, result
from routekeeper.bench.costs.units import Design, Row
from routekeeper.bench.group import Unhealthy
from routekeeper.bench.machine import commit
from routekeeper.bench.processes import ClusterError
from tests.bench.costs.rows import row

RUN = Run(
    command=["mqbench"], date="today", commit="abc", quick=True, designs=["raft", "zookeeper"], plan=QUICK
)


def rows_of(design: Design) -> list[Row]:
    return [row(step, design=design, life=life) for life in QUICK.lives for step in steps(QUICK, life)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run in which raft mode was measured by an older program."""
    begin(tmp_path / "costs", RUN)
    lines = [msgspec.json.encode(each) for each in rows_of("raft")]
    (tmp_path / "costs" / ROWS).write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path / "costs"


def fail_with(errors: list[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the measurements of a life fail with these errors, one for each attempt, and then succeed."""
    left = iter(errors)

    def life_rows(plan: Plan, design: Design, life: str) -> Iterator[Row]:
        rows = rows_of(design)
        yield rows[0]
        for error in left:
            raise error
        yield from rows[1:]

    monkeypatch.setattr(program, "life_rows", life_rows)


def test_failed_attempts_of_the_servers_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with([Unhealthy("no leader"), ClusterError("players ended with 1")], monkeypatch)
    rows = make_rows(folder, RUN)
    assert capsys.readouterr().err.count("made anew") == 2
    assert {(each.design, each.attempts) for each in rows} == {("raft", 1), ("zookeeper", 2)}
    assert told_of_the_mixture(result(RUN, rows))[-1] == (
        "the servers of ZooKeeper failed, and a measurement needed 2 attempts"
    )


def test_result_names_all_commits_and_the_resumed_run_warns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with([], monkeypatch)
    found = result(RUN, make_rows(folder, RUN))
    assert found.commit == f"abc, {commit()}"
    warning = f"mqbench: WARNING: the rows are of commit abc, the next ones of {commit()}"
    assert sum(line.startswith(warning) for line in capsys.readouterr().err.splitlines()) == 1
    make_rows(folder, RUN)
    assert "WARNING" not in capsys.readouterr().err, "nothing more is measured"


def test_harness_that_always_fails_ends_the_run_with_the_command_that_resumes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with([ClusterError("players ended with 1")] * 3, monkeypatch)
    with pytest.raises(Failure, match="players ended with 1"):
        measure([], out=folder.parent, resume=folder, designs=["raft"], quick=True)
    assert f"to go on, run: mqbench costs --resume {folder}" in capsys.readouterr().err
