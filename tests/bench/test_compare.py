"""The whole comparison once, small: real clusters, load, faults, Spark report."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

MODES = ("independent", "raft")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run ``mqbench compare`` and return the report's path and what was said meanwhile."""
    out = tmp_path_factory.mktemp("compare")
    command = [sys.executable, "-m", "bench", "compare", "--profile", "smoke", "--pairs", "1", "--seed", "7"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(done.stdout.splitlines()[-1]), done.stderr


def rows(report: Path, mode: str, prefix: str) -> list[dict[str, Any]]:
    folder = report.parent / "runs" / f"mode={mode}" / "scenario=smoke" / "rep=1"
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"{prefix}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def mart(report: Path, name: str) -> list[dict[str, str]]:
    with open(report.parent / "marts" / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_compare_writes_one_self_contained_page_and_shows_progress(comparison: tuple[Path, str]) -> None:
    report, said = comparison
    page = report.read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "src=" not in page.replace('src="data:', "")
    assert "<svg" in page
    for word in ("run 1 of 2", "run 2 of 2", "fault: kill_one", "fault: kill_all"):
        assert word in said


@pytest.mark.parametrize("mode", MODES)
def test_both_modes_were_really_run_and_served_every_kind(comparison: tuple[Path, str], mode: str) -> None:
    report, _ = comparison
    assert [row["left_out"] for row in mart(report, "runs")] == ["", ""]
    served = {row["op"] for row in rows(report, mode, "ops") if row["outcome"] == "ok"}
    assert served == {"route_wire", "route_http", "send", "register"}
    kinds = [row["kind"] for row in rows(report, mode, "faults")]
    assert kinds == ["kill_one", "kill_all"]
    roles = [row.get("role") for row in rows(report, mode, "faults")]
    assert roles[0] == ("leader" if mode == "raft" else "independent")


@pytest.mark.parametrize("mode", MODES)
def test_report_counts_are_those_of_the_raw_events(comparison: tuple[Path, str], mode: str) -> None:
    report, _ = comparison
    manifest = json.loads(
        (report.parent / "runs" / f"mode={mode}" / "scenario=smoke" / "rep=1" / "manifest.json").read_text()
    )
    begin, end = manifest["measure_begin_ns"], manifest["measure_end_ns"]
    raw = Counter(
        (row["op"], row["outcome"]) for row in rows(report, mode, "ops") if begin <= row["due_ns"] < end
    )
    told: Counter[tuple[str, str]] = Counter()
    for row in mart(report, "outcomes"):
        if row["run"].startswith(f"{mode}/"):
            told[row["op"], row["outcome"]] += int(row["n"])
    assert told == raw


def test_raft_routes_are_never_wrong_even_when_all_nameservers_come_back(
    comparison: tuple[Path, str],
) -> None:
    report, _ = comparison
    wrong = [row for row in rows(report, "raft", "ops") if row["outcome"] == "wrong"]
    assert wrong == []


def test_independent_nameservers_know_nothing_right_after_all_restarted(
    comparison: tuple[Path, str],
) -> None:
    report, _ = comparison
    assert any(row["outcome"] == "wrong" for row in rows(report, "independent", "ops"))
