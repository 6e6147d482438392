"""``mqbench compare --open`` opens the report's page when the report is finished.

Without the flag, no page opens. test_compare.py checks that the page opens after a real comparison.
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


@pytest.fixture
def shown(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the pages that were opened.

    A script runs in place of the report's process and needs no Spark. The script exits with the code in the
    file ``code``.
    """
    report = tmp_path / "report"
    report.write_text(
        '#!/bin/sh\ncase "$2" in *.start) exit 0;; esac\n'  # mqbench first checks that Spark starts
        f'echo "$@" > {tmp_path}/asked\necho page > {out}/report.html\nexit $(cat {tmp_path}/code)\n'
    )
    report.chmod(0o755)
    shown: list[str] = []
    monkeypatch.setattr(sys, "executable", str(report))
    monkeypatch.setattr(webbrowser, "open", shown.append)
    return shown


@pytest.mark.parametrize(
    ("asked", "code", "opened"),
    [(["--open"], 0, True), ([], 0, False), (["--open"], 3, False)],
    ids=["asked for", "not asked for", "the report failed"],
)
def test_page_is_opened_only_if_it_was_asked_for_and_made(
    asked: list[str], code: int, opened: bool, out: Path, tmp_path: Path, shown: list[str]
) -> None:
    (tmp_path / "code").write_text(str(code))
    assert main(["compare", "--resume", str(out), *asked]) == code
    assert (tmp_path / "asked").read_text() == f"-m routekeeper.bench.report {out}/runs --out {out}\n"
    assert shown == ([f"file://{out}/report.html"] if opened else [])


def test_nothing_is_opened_where_there_is_no_run(
    out: Path, tmp_path: Path, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = compare.load(out)
    nothing = msgspec.structs.replace(asked.plan, series=[])
    (out / compare.FILE_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(asked, plan=nothing)))
    (out / "runs").rename(out.parent / "aside")
    assert main(["compare", "--resume", str(out), "--open"]) == 1
    assert "no run was completed, so there is no report" in capsys.readouterr().err
    assert not (tmp_path / "asked").exists()
    assert shown == []
