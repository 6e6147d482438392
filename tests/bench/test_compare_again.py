"""A comparison that is interrupted, made again or gone on with: what is kept, and who is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from routekeeper.bench import compare
from routekeeper.bench.__main__ import main
from routekeeper.bench.plan import Plan, load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.session import Session

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(600)]


def test_kill_in_the_middle_of_a_run_leaves_nobody_behind(tmp_path: Path) -> None:
    """As in the background, where no terminal interrupts anything that was started."""
    command = [
        sys.executable,
        "-m",
        "routekeeper.bench",
        "compare",
        "--profile",
        "smoke",
        "--out",
        str(tmp_path),
    ]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    said = next((line for line in program.stderr if ": quiet; ends about" in line), None)
    started = psutil.Process(program.pid).children(recursive=True)
    program.terminate()
    _, rest = program.communicate(timeout=60)
    assert said is not None
    assert len(started) > 5
    assert program.returncode == 130, rest
    _, alive = psutil.wait_procs(started, timeout=10)
    assert [process.cmdline() for process in alive] == []


def tiny() -> Plan:
    """One arm and half a second."""
    plan = load_plan("smoke")
    quiet = plan.scenarios[0]
    return msgspec.structs.replace(
        plan,
        arms=["independent"],
        brokers=1,
        warmup_s=0.5,
        scenarios=[msgspec.structs.replace(quiet, quiet_s=0.5)],
    )


class EndsBadlyOnce(Session):
    """A real run whose end fails in the first attempt."""

    def _leave(self) -> None:
        super()._leave()
        if self.given.attempt == 1:
            raise ClusterError("what was recorded cannot be read")


def test_run_that_turns_out_void_while_it_ends_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "Session", EndsBadlyOnce)
    out = tmp_path / "out"
    compare.begin(out, Comparison(profile="smoke", plan=tiny(), seed=4, command=["mqbench"]))
    (made,) = compare.make_runs(out, compare.load(out))
    assert json.loads((made / "manifest.json").read_text())["void"] is None
    assert "is void: what was recorded cannot be read" in capsys.readouterr().err
    (aside,) = (json.loads(path.read_text()) for path in (out / "void").rglob("manifest.json"))
    assert (aside["void"], aside["attempt"]) == ("what was recorded cannot be read", 1)


def test_resumed_comparison_makes_what_is_missing_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    compare.begin(out, Comparison(profile="smoke", plan=tiny(), seed=4, command=["mqbench"]))
    (first,) = compare.make_runs(out, compare.load(out))
    made = (first / "manifest.json").read_bytes()
    asked = compare.load(out)
    series = [msgspec.structs.replace(asked.plan.series[0], blocks=2)]
    asked = msgspec.structs.replace(asked, plan=msgspec.structs.replace(asked.plan, series=series))
    (out / compare.FILE_NAME).write_bytes(msgspec.json.encode(asked))
    capsys.readouterr()

    assert main(["run", "--resume", str(out)]) == 0
    printed, said = capsys.readouterr()
    (second,) = map(Path, printed.splitlines())
    assert "block=2" in second.parts
    assert "1 runs are there already" in said
    assert (first / "manifest.json").read_bytes() == made, "what was there stays"
    again = json.loads((second / "manifest.json").read_text())
    _, (turn,) = blocks_of(asked.plan, asked.seed)
    assert (again["seed"], again["void"]) == (turn.seed, None)
