"""Tests that complete nameservers obey all rules under all simulated faults.

Environment variables: SIM_SEEDS is the number of seeds (80 in CI, else 8). SIM_FIRST is the first seed; by
default it is random.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from .__main__ import main
from .plants import PLANTS
from .scenario import run_seed

pytestmark = [pytest.mark.sim, pytest.mark.computes]

SEEDS = int(os.environ.get("SIM_SEEDS") or (80 if os.environ.get("CI") else 8))
FIRST = int(os.environ.get("SIM_FIRST", "0"))
SECONDS = float(os.environ.get("SIM_SECONDS", "6"))
ROOT = Path(__file__).resolve().parents[2]


def test_other_seeds_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    """All rules hold under all faults, with three members (odd seeds) and five members (even seeds).

    Each call of this test uses other seeds, unless SIM_FIRST is set.
    """
    first = FIRST or random.SystemRandom().randrange(10**5, 10**9)
    seeds = f"{first}-{first + SEEDS - 1}"
    with capsys.disabled():
        print(f" simulator seeds {seeds}", end=" ", flush=True)
    options = {"--seeds": seeds, "--seconds": f"{SECONDS:g}", "--workers": str(min(2, os.cpu_count() or 1))}
    played = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--keep-going", *chain.from_iterable(options.items())],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize(("seed", "members"), [(1, 3), (2, 5)])
def test_a_run_has_enough_in_it_to_be_worth_checking(seed: int, members: int) -> None:
    result = run_seed(seed, members=members, seconds=SECONDS)
    assert not result.violations, (
        f"{result.settings}: {result.violations}; replay: PYTHONHASHSEED=0 python -m tests.sim --verbose "
        f"--seed {seed} --members {members} --seconds {SECONDS:g}"
    )
    assert result.count["acknowledged"] > 20
    assert result.count["calls"] > 20


@pytest.mark.parametrize("durability", ["journal", "fsync"])
def test_a_group_of_one_member_loses_nothing(durability: str) -> None:
    faults = ("disk hangs", "disk full", "kill", "power", "crash in a call")
    for seed in range(1, 6):
        result = run_seed(seed, members=1, seconds=SECONDS, faults=faults, durability=durability)
        assert not result.violations, f"seed {seed}: {result.violations}"
        assert result.count["acknowledged"] > 20


def test_a_seed_is_the_same_run_in_every_process() -> None:
    traces = set()
    for _ in range(2):
        played = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seed", "3", "--seconds", "3", "--verbose"],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(next(word for word in played.stdout.split() if word.startswith("trace=")))
    assert len(traces) == 1


def test_a_failure_ends_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PLANTS["connections_of_others_do_not_count"].install(monkeypatch)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert main(["--seeds", "1-9", "--faults", "broker cut off,reset"]) == 1
    said = capsys.readouterr().out
    assert "VIOLATION" in said
    assert 'python -m tests.sim --verbose --seed 1 --faults "broker cut off,reset"' in said


@pytest.mark.skipif(
    os.environ.get("PYTHONHASHSEED") != "0",
    reason="seeds that show planted bugs are those of PYTHONHASHSEED=0, which make sets",
)
@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = PLANTS[name]
    plant.install(monkeypatch)
    assert plant.likely is not None
    # If the seed ``likely`` does not catch the bug, the test only takes longer. It then prints a seed that
    # catches the bug, so that a developer can correct ``likely``.
    seeds = (plant.likely, *range(1, 301))
    caught = next((seed for seed in seeds if plant.caught_by(seed)), None)
    assert caught is not None, f"not caught by seed {plant.likely} nor 1 to 300"
    if caught != plant.likely:
        print(f"{name}: likely={plant.likely} is stale, seed {caught} catches it")
