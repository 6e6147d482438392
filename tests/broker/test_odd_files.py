"""If a settings file is not a regular file, or is far too large, the broker prints one line and exits."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MEMORY_MAX = 2 << 30


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def one_line_of(*arguments: str) -> str:
    command = [sys.executable, "-m", "routekeeper.broker", "--listen", "127.0.0.1:0", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False, preexec_fn=limit_memory
    )
    assert ended.returncode == 2, ended.stderr[-2000:]
    assert len(ended.stderr.splitlines()) == 1, ended.stderr[-2000:]
    return ended.stderr


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_settings_file_must_be_regular(tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd" if kind == "fifo" else Path("/dev/zero")
    if kind == "fifo":
        os.mkfifo(odd)
    line = one_line_of("-c", str(odd), "--store", str(tmp_path / "store"))
    assert f"-c {odd}" in line
    assert "not a regular file" in line


@pytest.mark.parametrize("key", ["brokerName", "brokerRole", "flushDiskType"])
def test_a_long_value_is_cut_in_the_line_that_refuses_it(tmp_path: Path, key: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{key}={'x' * 120_000}")
    line = one_line_of("-c", str(file), "--store", str(tmp_path / "store"))
    assert key in line
    assert len(line) < 2_000
