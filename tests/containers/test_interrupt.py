"""Tests that an interrupted ``make containers`` removes its containers, networks, mounts and files."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .engine import ROOT, Engine, mounts_below, processes_of

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]

#: Directory that all podman engines of the user root share. It has a file with host names for each network. A
#: file that an engine does not remove would affect the containers of later networks.
NAMES = Path("/run/containers/networks/aardvark-dns")


def ctrl_c(make: subprocess.Popen[str]) -> None:
    """Send SIGINT to the whole process group, as a terminal does at Ctrl-C."""
    os.killpg(make.pid, signal.SIGINT)


def terminate(make: subprocess.Popen[str]) -> None:
    make.terminate()


def kept_of_networks(mark: str) -> list[str]:
    """Return the kernel rules and the files with container names that remain of an engine's networks."""
    rules = subprocess.run(("iptables-save",), capture_output=True, text=True, check=True).stdout
    return [line for line in rules.splitlines() if mark in line] + [
        str(path) for path in NAMES.glob(f"*{mark}*")
    ]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        pytest.param(terminate, "independent: up and healthy", id="sigterm-to-make-of-a-running-cluster"),
        pytest.param(ctrl_c, "independent: starting", id="ctrl-c-while-a-cluster-starts"),
    ],
)
def test_nothing_is_left_behind(
    engine: Engine, image: str, tmp_path: Path, end: Callable[[subprocess.Popen[str]], None], said: str
) -> None:
    arguments = f"--exitfirst -k independent -p no:cacheprovider --basetemp={tmp_path / 'pytest'}"
    make = subprocess.Popen(
        ("make", "containers", f"PYTEST_ARGS={arguments}"),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "CONTAINERS_IMAGES_OF": str(engine.images)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert make.stdout is not None
    try:
        lines = []
        for line in make.stdout:
            lines.append(line)
            if said in line:
                break
        (root,) = tmp_path.glob("rk-containers-*")
        wait_until(lambda: processes_of(root), "commands run for it")
        end(make)
        rest = make.communicate(timeout=240)[0]
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGKILL)
            make.communicate()
    assert make.returncode != 0, "".join(lines) + rest
    assert "ended by SIG" in rest
    assert list(tmp_path.glob("rk-containers-*")) == [], rest
    assert mounts_below(tmp_path) == []
    assert processes_of(root) == {}
    assert kept_of_networks(root.name.rpartition("-")[2]) == []
