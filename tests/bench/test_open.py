"""``mqbench compare --open`` opens the report's page when the report is finished.

Without the flag, no page opens. ``test_compare.py``, which runs a comparison, checks that the page of that
comparison's report opens.
"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.__main__ import main
from routekeeper.bench.plan import load_plan
from routekeeper.bench.schedule import Comparison, blocks_of
from tests.bench.report.planted import PlantedRun


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the folder of a comparison whose only run is finished."""
    plan = load_plan("smoke")
    plan = msgspec.structs.replace(plan, arms=["independent"], scenarios=plan.scenarios[:1])
    asked = Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"])
    compare.begin(tmp_path / "out", asked)
    ((turn,),) = blocks_of(plan, asked.seed)
    with PlantedRun(
        tmp_path / "out", scenario="quiet", arm="independent", seed=turn.seed - turn.block, block=turn.block
    ):
        pass
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("asked", "code", "opened"),
    [(["--open"], 0, True), ([], 0, False), (["--open"], 3, False)],
    ids=["asked for", "not asked for", "the report failed"],
)
def test_page_is_opened_only_if_it_was_asked_for_and_made(
    asked: list[str], code: int, opened: bool, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a script in place of the report's process; the script ends with ``code`` and needs no Spark."""
    report = tmp_path / "report"
    report.write_text(
        '#!/bin/sh\ncase "$2" in *.start) exit 0;; esac\n'  # Spark starts before anything is measured
        f'echo "$@" > {tmp_path}/asked\necho page > {out}/report.html\nexit {code}\n'
    )
    report.chmod(0o755)
    shown: list[str] = []
    monkeypatch.setattr(sys, "executable", str(report))
    monkeypatch.setattr(webbrowser, "open", shown.append)
    assert main(["compare", "--resume", str(out), *asked]) == code
    assert (tmp_path / "asked").read_text() == f"-m routekeeper.bench.report {out}/runs --out {out}\n"
    assert shown == ([f"file://{out}/report.html"] if opened else [])


@pytest.mark.spark
def test_nothing_is_opened_where_there_is_no_run(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = compare.load(out)
    nothing = msgspec.structs.replace(asked.plan, series=[])
    (out / compare.FILE_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(asked, plan=nothing)))
    (out / "runs").rename(out.parent / "aside")
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    assert main(["compare", "--resume", str(out), "--open"]) == 1
    assert "no run was completed, so there is no report" in capsys.readouterr().err
    assert shown == []
