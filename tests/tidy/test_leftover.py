"""Tests of tests/leftover.py, which runs two commands at the same time.

The second command gets only the CPU time that the first command does not use. The program fails if one of the
commands fails.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(660)

ROOT = Path(__file__).parents[2]
POLICY = "import os; print('policy', os.sched_getscheduler(0), os.getsid(0))"


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def leftover(command: str, other: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.leftover", command, other]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_only_the_other_one_yields_and_both_are_of_one_session() -> None:
    done = leftover(python(POLICY), python(POLICY))
    mine, its = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert mine == f"policy {os.sched_getscheduler(0)} {os.getsid(0)}"
    assert its == f"policy {os.SCHED_IDLE} {os.getsid(0)}"


@pytest.mark.parametrize(("first", "second", "code"), [(0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3)])
def test_each_failure_is_one(first: int, second: int, code: int) -> None:
    assert leftover(*(python(f"raise SystemExit({each})") for each in (first, second))).returncode == code
