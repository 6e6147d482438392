"""The whole job on synthetic run folders: what is kept, what is left out, and that the figures are theirs."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bench.manifest import read_manifest
from bench.report.job import NoRuns, build_report, main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]  # a JVM on a busy machine

Writer = Callable[..., list[Path]]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory, write_synthetic_runs: Writer) -> Path:
    """Six pairs: four whole, two with all that can be wrong with a run; in a path that Spark could glob."""
    root = tmp_path_factory.mktemp("runs") / "results [1]"
    folders = {
        folder.parts[-3] + "/" + folder.parts[-1]: folder
        for folder in write_synthetic_runs(root, pairs=6, rate=0.3)
    }
    ops = {name: folder / "ops-synthetic.jsonl" for name, folder in folders.items()}

    whole = ops["mode=raft/rep=1"].read_bytes()
    ops["mode=raft/rep=1"].write_bytes(whole + whole[: whole.index(b"\n") // 2])  # killed while it wrote
    with ops["mode=raft/rep=5"].open("ab") as file:
        file.write(b'{"op":"send"}\n\x00\x00\n{"op":7,"target":"x"}\n')
    (folders["mode=independent/rep=5"] / "manifest.json").unlink()
    said = json.loads((folders["mode=raft/rep=6"] / "manifest.json").read_bytes())
    (folders["mode=raft/rep=6"] / "manifest.json").write_text(json.dumps(said | {"void": "disk was full"}))
    ops["mode=independent/rep=6"].unlink()
    return root


@pytest.fixture(scope="module")
def report(damaged: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines: list[str] = []
    path = build_report([damaged], tmp_path_factory.mktemp("report"), progress=lines.append)
    assert path.name == "report.html"
    assert "12 run folders" in lines[0]
    assert spark.range(1).count() == 1  # a session that was there before is left running
    return path.parent


def mart(report: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(report / "marts" / f"{name}.parquet").to_pylist()
    return rows


def test_runs_that_cannot_be_trusted_are_left_out_and_say_why(report: Path) -> None:
    reasons = {row["run"]: row["left_out"] for row in mart(report, "runs") if row["left_out"]}
    assert set(reasons) == {
        "raft/synthetic/5",
        "independent/synthetic/5",
        "raft/synthetic/6",
        "independent/synthetic/6",
    }
    assert str(reasons["raft/synthetic/5"]).startswith("3 of ")
    assert reasons["independent/synthetic/5"] == "no manifest.json"
    assert "disk was full" in str(reasons["raft/synthetic/6"])
    assert reasons["independent/synthetic/6"] == "it holds no operations"
    used = {row["run"] for row in mart(report, "outcomes")}
    assert used == {f"{mode}/synthetic/{rep}" for mode in ("raft", "independent") for rep in range(1, 5)}
    html = (report / "report.html").read_text()
    for reason in reasons.values():
        assert str(reason) in html


def test_a_cut_last_line_is_counted_and_costs_nothing_else(report: Path, damaged: Path) -> None:
    bad = {(row["run"], row["file"]): row["bad"] for row in mart(report, "files") if row["bad"]}
    assert bad == {
        ("raft/synthetic/1", "ops-synthetic.jsonl"): 1,
        ("raft/synthetic/5", "ops-synthetic.jsonl"): 3,
    }
    (path,) = damaged.rglob("mode=raft/*/rep=1/ops-synthetic.jsonl")
    counted = sum(int(str(row["n"])) for row in mart(report, "outcomes") if row["run"] == "raft/synthetic/1")
    assert counted == len(path.read_bytes().splitlines()) - 1


def test_percentiles_are_those_of_the_raw_events(report: Path, damaged: Path) -> None:
    (path,) = damaged.rglob("mode=independent/*/rep=2/ops-synthetic.jsonl")
    begin = read_manifest(path.parent).measure_begin_ns
    raw = [json.loads(line) for line in path.read_bytes().splitlines()]
    windows = [
        (row["begin_ns"], row["quiet_ns"])
        for row in mart(report, "faults")
        if row["run"] == "independent/synthetic/2"
    ]
    assert len(windows) == 2
    quiet = [
        event["done_ns"] - event["due_ns"]
        for event in raw
        if event["op"] == "route_wire"
        and event["outcome"] == "ok"
        and all(
            event["done_ns"] - begin < int(str(start)) or event["due_ns"] - begin >= int(str(end))
            for start, end in windows
        )
    ]
    (row,) = (
        row
        for row in mart(report, "latency")
        if (row["run"], row["op"], row["measure"]) == ("independent/synthetic/2", "route_wire", "latency")
    )
    assert row["n"] == len(quiet)
    assert row["p50_ns"] == pytest.approx(np.quantile(quiet, 0.5), rel=0.01)
    assert row["p99_ns"] == pytest.approx(np.quantile(quiet, 0.99), rel=0.01)


def test_planted_differences_are_found_with_their_sign(report: Path) -> None:
    found = {row["key"]: row for row in mart(report, "comparisons")}
    assert found["latency.p50.register"]["verdict"] == "independent"
    assert found["visible.p50"]["verdict"] == "independent"
    assert found["recovery.kill_all.route_wire.struck"]["verdict"] == "raft"
    assert found["cpu.nameserver"]["verdict"] == "independent"
    assert found["unavailable.kill_one.register.others"]["verdict"] == "independent"
    assert found["sends.failed"]["verdict"] == "none"
    assert found["latency.p50.register"]["difference_runs"] == 4


def test_csv_holds_what_parquet_holds(report: Path) -> None:
    for name in ("comparisons", "latency", "outages", "files", "faults"):
        with (report / "marts" / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(mart(report, name)) > 0
        assert list(rows[0]) == list(mart(report, name)[0])


def test_a_report_of_one_pair_replaces_an_older_one_and_prints_its_path_last(
    damaged: Path, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stale in ("silver/operation/stale.parquet", "marts/runs.parquet", "report.html"):
        (tmp_path / "out" / stale).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / stale).write_text("stale")
    assert main([*(str(path) for path in damaged.rglob("rep=2")), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out' / 'report.html'}\n"
    assert "starting Spark" in printed.err
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Too few pairs to say" in html
    assert "Raft is better" not in html
    assert len(mart(tmp_path / "out", "runs")) == 2


def test_no_run_folder_is_an_error_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoRuns):
        build_report([tmp_path], tmp_path / "out", progress=print)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
