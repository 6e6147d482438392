"""If a settings file is not a regular file, or is far too large, the broker prints one line and exits."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig, apply_properties
from routekeeper.broker.errors import SettingError

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


def test_a_settings_file_must_be_regular(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    os.mkfifo(odd)
    line = one_line_of("-c", str(odd), "--store", str(tmp_path / "store"))
    assert f"-c {odd}" in line
    assert "not a regular file" in line


@pytest.mark.parametrize("key", ["brokerName", "brokerRole", "flushDiskType"])
def test_a_long_value_is_cut_in_the_line_that_refuses_it(key: str) -> None:
    with pytest.raises(SettingError) as refused:
        apply_properties(BrokerConfig(), {key: "x" * 120_000})[0].validate()
    assert key in str(refused.value)
    assert len(str(refused.value)) < 2_000
