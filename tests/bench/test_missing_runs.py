"""``mqbench compare`` and ``mqbench run`` say which runs are missing at the end, and how to make them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.__main__ import main
from routekeeper.bench.cluster import Cluster
from routekeeper.bench.plan import load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.runfolder import Arm, read_manifest
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.session import Session
from tests.bench.report.planted import PlantedRun


def comparison_in(out: Path, arms: list[Arm]) -> Path:
    """Make a comparison of these designs with one finished run, that of independent mode; return ``out``."""
    plan = load_plan("smoke")
    plan = msgspec.structs.replace(plan, arms=arms, scenarios=plan.scenarios[:1])
    asked = Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"])
    compare.begin(out, asked)
    (turns,) = blocks_of(plan, asked.seed)
    seed = turns[0].seed - turns[0].block
    with PlantedRun(out, scenario="quiet", arm="independent", seed=seed, block=1):
        pass
    (out / "work").touch()  # a file in the place of a folder refuses every write, as a full disk does
    return out


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a script in place of the report's process, and return the file with its arguments."""
    program, asked = tmp_path / "report", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\ncase "$2" in *.start) exit 0;; esac\necho "$@" > {asked}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return asked


def test_missing_run_is_named_with_the_command_that_makes_it(
    tmp_path: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = comparison_in(tmp_path / "my out", ["independent", "raft"])
    assert main(["compare", "--resume", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "attempt 3 is void: " in line]
    assert said[-1] == (
        "mqbench: 1 of 2 runs is missing, because each attempt failed; the report shows the others. "
        f"To make what is missing, run: mqbench compare --resume '{out}'"
    )
    assert "all runs are done" not in "".join(said)
    assert report.read_text() == f"-m routekeeper.bench.report {out}/runs --out {out}\n"


def test_missing_run_makes_the_command_run_fail_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = comparison_in(tmp_path / "out", ["independent", "raft"])
    assert main(["run", "--resume", str(out)]) == 1
    printed, said = capsys.readouterr()
    assert printed == ""
    assert said.splitlines()[-1] == (
        "mqbench: 1 of 2 runs is missing, because each attempt failed. "
        f"To make what is missing, run: mqbench run --resume {out}"
    )


def test_complete_comparison_is_a_success(
    tmp_path: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = comparison_in(tmp_path / "out", ["independent"])
    assert main(["run", "--resume", str(out)]) == 0
    printed, said = capsys.readouterr()
    assert (printed, said) == ("", f"mqbench: all 1 runs are there already; everything is in {out}\n")
    assert main(["compare", "--resume", str(out)]) == 0
    assert "all runs are done; the report follows" in capsys.readouterr().err
    assert report.exists()


class NeverStarts(Cluster):
    """A cluster whose start fails because of the harness."""

    def start(self) -> None:
        raise ClusterError("the load generator did not start")


def test_void_attempts_of_a_resumed_comparison_do_not_replace_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "Session", partial(Session, make_cluster=NeverStarts))
    plan = load_plan("smoke")
    plan = msgspec.structs.replace(plan, arms=["independent"], scenarios=plan.scenarios[:1])
    out = tmp_path / "out"
    compare.begin(out, Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"]))
    for invocation in (1, 2):
        assert compare.make_runs(out, compare.load(out)) == []
        attempts = sorted(read_manifest(path.parent).attempt for path in out.rglob("void/**/manifest.json"))
        assert attempts == list(range(1, 1 + 3 * invocation))
