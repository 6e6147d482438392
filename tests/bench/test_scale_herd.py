"""The figures of watching clients follow from the raw changes that ``mqbench scale`` records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.scale.herd import Change, cpu_row
from tests.bench import recompute_scale


def change(sent_at: float, *seen_s: float) -> Change:
    return Change(sent_at=sent_at, acked_at=sent_at + 0.002, seen_at=[sent_at + each for each in seen_s])


def test_row_of_a_change_has_the_time_of_each_watcher_in_their_order() -> None:
    made = change(8.0, 0.004, 0.001, 0.003, 0.0025)
    assert made.half_s == pytest.approx(0.0025)
    assert made.last_s == pytest.approx(0.004)
    assert made.row(2) == {
        "kind": "watch",
        "server": 2,
        "sent_ns": 8_000_000_000,
        "acked_us": 2000,
        "seen_us": [4000, 1000, 3000, 2500],
    }


def figures_of(folder: Path, notes: list[dict[str, Any]]) -> dict[str, float]:
    events = folder / "events" / "point=12-clients" / "round=1" / "arm=raft"
    events.mkdir(parents=True)
    (events / "notes.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    found = recompute_scale.figures(folder)
    assert {key[:3] for key in found} == {("12-clients", "raft", 1)}
    return {name: value for (*_, name), value in found.items()}


def test_independent_program_computes_the_figures_of_clients_that_watch(tmp_path: Path) -> None:
    made = [change(8.0, 0.004, 0.001, 0.003), change(9.0, 0.002, 0.006, 0.001), change(9.5, 0.003, 0.1, 0.01)]
    cpu = cpu_row("watch", before_s=[1.0, 2.0, 5.0], after_s=[1.1, 2.1, 5.1])
    assert figures_of(tmp_path, [*(each.row(0) for each in made), cpu]) == {
        "watch_ms_last": 6.0,
        "watch_ms_half": 3.0,
        "watch_cpu_ms_a_change": pytest.approx(100.0),
    }


def test_independent_program_computes_the_figures_of_clients_that_poll(tmp_path: Path) -> None:
    polled = {"kind": "poll", "sent_ns": 1, "seen_us": [20_000_000, 5_000_000, 10_000_000, 1_000_000]}
    cpu = cpu_row("poll", before_s=[1.0], after_s=[2.0])
    assert figures_of(tmp_path, [polled, cpu]) == {
        "poll_ms_last": 20_000.0,
        "poll_ms_half": 5_000.0,
        "poll_cpu_s_a_minute": pytest.approx(3.0),
    }


def test_independent_program_computes_the_gaps_of_a_rolling_restart(tmp_path: Path) -> None:
    notes = [
        {"kind": "trying", "what": what, "began_ns": 1, "done_us": done_us, "ended_us": 9_000_000}
        for what, done_us in (("change", [1_000_000, 6_000_000, 7_000_000]), ("read", []))
    ]
    assert figures_of(tmp_path, notes) == {"rolling_change_gap_s": 5.0, "rolling_read_gap_s": 9.0}
