"""``mqbench costs`` measures real servers with short timers, and goes on after an interrupt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.costs.measured import written_end
from routekeeper.bench.costs.units import UNITS, Costs, Row

ROW = msgspec.json.Decoder(Row)


#: Time limit of a quick run in s. A quick run takes half a minute, and up to ten times as long on a busy
#: machine.
RUN_S = 400.0


def mqbench(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "routekeeper.bench", *words]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, error = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            # SIGTERM and not SIGKILL, because the process must stop its servers before it exits
            process.terminate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def test_the_end_of_a_log_is_where_its_zeros_begin(tmp_path: Path) -> None:
    path = tmp_path / "log.1"
    path.write_bytes(b"abc\0def" + bytes(300_000))
    assert written_end(path, 0) == 7
    with path.open("r+b") as file:
        file.seek(7)
        file.write(b"x" * 100_000)
    assert written_end(path, 7) == 100_007
    assert written_end(path, 100_007) == 100_007


@pytest.mark.bench
@pytest.mark.timeout(2 * RUN_S)
def test_quick_costs_measure_each_unit_and_go_on_after_an_interrupt(tmp_path: Path) -> None:
    """Measure one design, and then resume the run with a second design.

    The files are changed as if an interrupt had come while the second design was measured.
    """
    done = mqbench("costs", "--quick", "--designs", "zookeeper", "--out", str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "zookeeper, three servers each; 1 of 1 lives, about" in done.stderr
    path = Path(done.stdout.strip())
    rows, run = path.with_name("rows.jsonl"), path.with_name("run.json")
    kept = rows.read_text().splitlines()
    cut = [json.dumps({**json.loads(line), "design": "raft"}) for line in kept[:3]]
    rows.write_text("\n".join([*kept, *cut]) + "\n" + kept[0][:20])
    run.write_text(json.dumps({**json.loads(run.read_text()), "designs": ["raft", "zookeeper"]}))
    done = mqbench("costs", "--resume", str(path.parent), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "raft, zookeeper, three servers each; 1 of 2 lives, about" in done.stderr
    whole = rows.read_text().splitlines()
    assert whole[: len(kept)] == kept
    assert len(whole) == 2 * len(kept)

    found = msgspec.json.decode(path.read_bytes(), type=Costs)
    assert found.quick
    assert list(found.designs) == ["raft", "zookeeper"]
    for design, costs in found.designs.items():
        assert costs.alone["cpu_s"] > 0, design
        assert costs.alone["memory_bytes"] > 10e6, design
        for unit in UNITS:
            assert len(costs.slopes[unit]["cpu_s"].sizes) >= 4, (design, unit)
        assert [each["cpu_s"].measured > 0 for each in costs.held_out] == [True, True], design
    written: dict[str, list[tuple[int, ...]]] = {}
    for row in map(ROW.decode, whole):
        assert row.disk_bytes is not None
        assert row.syncs is not None
        written.setdefault(row.design, []).append((*row.disk_bytes, *row.syncs))
        if row.series == "change":
            # A change is acknowledged when two of three servers have synced the change to disk. The third
            # server may sync later.
            assert row.changes > 0
            assert sum(size > 0 for size in row.disk_bytes) >= 2, row
            assert sum(count > 0 for count in row.syncs) >= 2, row
        elif row.series == "lookup":
            assert sum(row.clients_bytes) > 100 * row.lookups > 0, row
    for name, of_rows in written.items():
        assert all(sum(column) > 0 for column in zip(*of_rows, strict=True)), f"each server of {name} writes"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["--designs", "apache"], "apache: allowed are independent, raft, zookeeper", id="design"
        ),
        pytest.param(
            ["--resume", "nowhere"], "--resume nowhere: no run of costs was begun there", id="folder"
        ),
        pytest.param(
            ["--resume", "x", "--out", "y"], "or --out beside --resume x: a resumed run", id="other folder"
        ),
        pytest.param(
            ["--resume", "x", "--designs", "independent,raft,zookeeper"],
            "--designs or --out beside --resume x: a resumed run",
            id="all designs",
        ),
    ],
)
@pytest.mark.slow
def test_bad_input_is_named(words: list[str], message: str, tmp_path: Path) -> None:
    done = mqbench("costs", *words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
