"""A disk that is full while a run ends, or a damaged event file, makes this run void and no other run."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.arms import servers
from routekeeper.bench.compare import Ending, Teller, missing_turns
from routekeeper.bench.plan import load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.schedule import Comparison
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn


class FullDisk(Session):
    """A real session. While its first run ends, files in the place of folders refuse every write."""

    def _leave(self) -> None:
        super()._leave()
        refusing = [self.given.out / name for name in ("runs", "void")]
        if self.given.attempt == 1 and self.given.order_in_block == 0:
            for path in refusing:
                path.touch()

    def measure(self, before_load: Callable[[], object]) -> None:
        super().measure(before_load)
        if self.given.attempt == 1 and self.given.order_in_block == 1:
            before_load()  # returns when the first run has ended
            for name in ("runs", "void"):
                (self.given.out / name).unlink()


class DamagedEvents(Session):
    """A real session. A process of its first run left a part of a line in an event file."""

    def _leave(self) -> None:
        super()._leave()
        if self.given.attempt == 1 and self.given.order_in_block == 0:
            (self.given.spool / "ops-generator-1.jsonl").write_bytes(b'{"op":"look')


def short_comparison() -> Comparison:
    """Return a comparison of two designs in one round, whose servers have one scenario."""
    plan = load_plan("smoke")
    plan = msgspec.structs.replace(
        plan, arms=["independent", "raft"], servers=1, scenarios=plan.scenarios[:1], lines=[]
    )
    return Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"])


@pytest.mark.parametrize("session", [FullDisk, DamagedEvents])
def test_failure_while_a_run_ends_makes_one_run_void_and_the_others_go_on(
    session: type[Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, out, said = short_comparison(), tmp_path / "out", io.StringIO()
    compare.begin(out, asked)
    # With this program in place of Python, each server ends at once, so each design loses its runs quickly.
    # The harness's own programs are real. If one of them ended, the run would be void.
    monkeypatch.setattr(servers, "sys", SimpleNamespace(executable="/bin/false"))
    monkeypatch.setattr(compare, "Session", session)
    with contextlib.redirect_stderr(said):
        folders = compare.make_runs(out, asked)
    lines = said.getvalue().splitlines()
    assert len([line for line in lines if " is void: " in line]) == 1, lines
    assert "attempt 1 is void" not in said.getvalue(), "no other run is blamed"
    assert len(folders) == 2, "the void run was made again"
    assert missing_turns(out, asked) == []


def test_full_disk_at_the_start_of_a_run_makes_it_void(tmp_path: Path) -> None:
    given = a_turn(tmp_path / "out", short_comparison().plan, "raft", profile="smoke", seed=4)
    session = Session(given, lambda step: None)
    shutil.rmtree(given.work.parent)
    given.work.parent.touch()  # a file in the place of a folder refuses every write
    with pytest.raises(ClusterError, match="Not a directory"):
        session.measure(lambda: None)


def test_error_of_one_run_is_reported_once() -> None:
    def end() -> list[Path]:
        raise ZeroDivisionError

    with Ending(Teller(2)) as ending:
        ending.begin(end, "the first")
        with pytest.raises(ZeroDivisionError):
            ending.wait()
        ending.wait()
        ending.begin(lambda: [Path("next")], "the second")
    assert ending.folders == [Path("next")]
