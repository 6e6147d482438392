"""A comparison that is started again or resumed keeps its finished runs and makes only the others."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.__main__ import main
from routekeeper.bench.events import Operation
from routekeeper.bench.plan import Plan, load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.session import Session
from tests.bench.lives import rows

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(600)]


def tiny() -> Plan:
    """Return a plan with one arm (a design) whose only scenario takes half a second."""
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
    """A real run whose first attempt fails at its end."""

    def _leave(self) -> None:
        super()._leave()
        if self.given.attempt == 1:
            raise ClusterError("what was recorded cannot be read")


@dataclass(kw_only=True)
class Made:
    """A comparison of one run whose first attempt failed.

    Attributes:
        out: Folder of the comparison.
        first: Folder of the failed attempt.
        said: Messages that the comparison printed.
    """

    out: Path
    first: Path
    said: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out, said = tmp_path_factory.mktemp("again") / "out", io.StringIO()
    compare.begin(out, Comparison(profile="smoke", plan=tiny(), seed=4, command=["mqbench"]))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(compare, "Session", EndsBadlyOnce)
        (first,) = compare.make_runs(out, compare.load(out))
    return Made(out=out, first=first, said=said.getvalue())


def test_run_that_turns_out_void_while_it_ends_is_made_again(made: Made) -> None:
    assert json.loads((made.first / "manifest.json").read_text())["void"] is None
    assert "is void: what was recorded cannot be read" in made.said
    (aside,) = (json.loads(path.read_text()) for path in (made.out / "void").rglob("manifest.json"))
    assert (aside["void"], aside["attempt"]) == ("what was recorded cannot be read", 1)


def test_resumed_comparison_makes_what_is_missing_and_nothing_else(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (made.first / "manifest.json").read_bytes()
    asked = compare.load(made.out)
    series = [msgspec.structs.replace(asked.plan.series[0], blocks=2)]
    asked = msgspec.structs.replace(asked, plan=msgspec.structs.replace(asked.plan, series=series))
    (made.out / compare.FILE_NAME).write_bytes(msgspec.json.encode(asked))

    assert main(["run", "--resume", str(made.out)]) == 0
    printed, said = capsys.readouterr()
    (second,) = map(Path, printed.splitlines())
    assert "block=2" in second.parts
    assert "1 runs are there already" in said
    assert (made.first / "manifest.json").read_bytes() == before, "what was there stays"
    again = json.loads((second / "manifest.json").read_text())
    _, (turn,) = blocks_of(asked.plan, asked.seed)
    assert (again["seed"], again["void"]) == (turn.seed, None)


def test_runs_of_a_series_have_its_own_load_and_its_brokers(tmp_path: Path) -> None:
    plan = tiny()
    load = msgspec.structs.replace(plan.load, sim_brokers=5, observed_sims=0, lookup_per_s=0.0)
    own = msgspec.structs.replace(plan.series[0], load=load, brokers=1)
    plan = msgspec.structs.replace(plan, brokers=3, series=[own])
    compare.begin(tmp_path / "out", Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"]))
    (run,) = compare.make_runs(tmp_path / "out", compare.load(tmp_path / "out"))
    manifest = read_manifest(run)
    assert (manifest.sim_brokers, manifest.brokers) == (5, 1)
    done = {row.op for row in rows(run, Operation)}
    assert "announce" in done
    assert "lookup" not in done
