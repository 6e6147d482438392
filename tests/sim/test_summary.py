"""Tests of the summary, which adds up the results of many seeds, also if a run is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from . import __main__ as command
from .scenario import Result
from .summary import Summary

ROOT = Path(__file__).resolve().parents[2]


def result(seed: int, *violations: str, **count: int) -> Result:
    return Result(
        seed=seed,
        settings="",
        violations=violations,
        count=Counter({name.replace("_", " "): number for name, number in count.items()}),
        trace="",
        seconds=20.0,
        events=1000,
        cpu_s=0.25,
    )


def test_counts_are_added_and_put_under_their_titles() -> None:
    summary = Summary(range(1, 11))
    summary.add(result(1, acknowledged=7, fault_kill=2, broker_die=1, setting_3_members=1, Moved=4))
    summary.add(result(2, "bad", acknowledged=1000, fault_kill=1, fault_pause=5, setting_5_members=1))
    assert summary.failed == [2]
    assert list(summary.lines(4.0)) == [
        "seeds 1-10: 2 played, 1 failed, 4.0 s, 0.25 CPU s each",
        "  40 s of virtual time, 2,000 events; runs: 3 members 1, 5 members 1",
        "  covered: 1,007 commands acknowledged",
        "  faults: pause 5, kill 3",
        "  brokers: die 1",
        "  also: Moved 4",
        "failed: 2",
    ]
    assert summary.progress(4.0, "12:01") == "2 of 10 seeds, 1 failed, 0.5/s, ends about 12:01 (0 min)"
    assert summary.left_s(4.0) == 16.0


def test_a_seed_that_cannot_be_played_has_failed_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_seed(seed: int, **_: object) -> Result:
        if seed == 2:
            raise ValueError("no such thing")
        return result(seed)

    monkeypatch.setattr("tests.sim.runner.run_seed", run_seed)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert command.main(["--seeds", "1-3", "--keep-going"]) == 1
    said = capsys.readouterr().out
    assert "seeds 1-3: 3 played, 1 failed" in said
    assert "ValueError: no such thing" in said
    assert said.count("replay: PYTHONHASHSEED=0 python -m tests.sim --verbose --seed 2 --keep-going") == 0
    assert said.count("replay: PYTHONHASHSEED=0 python -m tests.sim --verbose --seed 2") == 2


@pytest.mark.slow
def test_an_interrupted_call_says_what_it_did() -> None:
    played = subprocess.Popen(
        [sys.executable, "-m", "tests.sim", "--seeds", "1-100000", "--seconds", "1", "--verbose"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert played.stdout is not None
    with played, played.stdout as said:
        assert said.readline().startswith("seed 1 ")
        played.send_signal(signal.SIGINT)
        rest = said.read()
    assert played.returncode == 130
    assert "interrupted; what was done:\nseeds 1-100000: " in rest
