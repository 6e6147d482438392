"""A comparison that is started again or resumed keeps its finished runs and makes only the missing runs."""

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
from routekeeper.bench.events import LinkSample, Operation, ProcessSample
from routekeeper.bench.plan import Plan, Scenario, load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.session import Session
from tests.bench.lives import rows

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(600)]


def tiny() -> Plan:
    """Return a plan with one arm (a design), one server, and one scenario, which takes a second."""
    return msgspec.structs.replace(
        load_plan("smoke"),
        arms=["independent"],
        servers=1,
        brokers=1,
        warmup_s=0.5,
        scenarios=[Scenario(name="idle-300", quiet_s=1.0)],
    )


class EndsBadlyOnce(Session):
    """A real run whose first attempt fails at its end."""

    def _leave(self) -> None:
        super()._leave()
        if self.given.attempt == 1:
            raise ClusterError("what was recorded cannot be read")


@dataclass(kw_only=True)
class Made:
    """Files and messages of a comparison with only one run. The run's first attempt failed.

    Attributes:
        out: Folder of the comparison.
        first: Folder of the run, which succeeded at its second attempt.
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
    """Add a second round to the plan, and resume the comparison.

    The series of the second round has its own load, from the profile ``idle``. It also has its own number of
    brokers: 1 instead of the plan's 3.
    """
    before = (made.first / "manifest.json").read_bytes()
    asked = compare.load(made.out)
    load = msgspec.structs.replace(load_plan("idle").load, sim_brokers=20)
    series = [msgspec.structs.replace(asked.plan.series[0], blocks=2, load=load, brokers=1)]
    plan = msgspec.structs.replace(asked.plan, brokers=3, series=series)
    asked = msgspec.structs.replace(asked, plan=plan)
    (made.out / compare.FILE_NAME).write_bytes(msgspec.json.encode(asked))

    assert main(["run", "--resume", str(made.out)]) == 0
    printed, said = capsys.readouterr()
    (second,) = map(Path, printed.splitlines())
    assert "block=2" in second.parts
    assert "1 runs are there already" in said
    assert (made.first / "manifest.json").read_bytes() == before, "what was there stays"
    again = read_manifest(second)
    _, (turn,) = blocks_of(asked.plan, asked.seed)
    assert (again.seed, again.void, again.lost) == (turn.seed, None, None)

    assert (again.sim_brokers, again.brokers) == (20, 1)
    assert {row.op for row in rows(second, Operation)} == {"announce"}, "nobody asks"
    samples = rows(second, ProcessSample)
    assert {row.index for row in samples if row.role == "nameserver"} == {0}
    assert max(row.forward_bytes for row in rows(second, LinkSample)) > 0
