"""The nameserver and the broker report to systemd, and systemd accepts their unit files.

They report that they are ready, that their event loops still run, and that they stop.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.remoting.service_manager import ServiceManager
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "compose" / "systemd").glob("*.service"))
ANSWER_S = 60.0
WATCHDOG_S = 0.6

SERVERS = {
    "mqnamesrv": ("routekeeper.nameserver", "--listen", "127.0.0.1:0", "--http", "off", "--data", "data"),
    "mqbroker": ("routekeeper.broker", "--listen", "127.0.0.1:0", "--store", "data", "-n", "127.0.0.1:1"),
}


class Manager:
    """The notification socket of a service manager."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def next(self, within_s: float) -> str | None:
        """Return the next message, or None if no message arrives within ``within_s`` seconds."""
        self.socket.settimeout(within_s)
        try:
            return self.socket.recv(4096).decode()
        except TimeoutError:
            return None

    def wait_for(self, beginning: str) -> str:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            message = self.next(deadline - time.monotonic())
            if message is not None and message.startswith(beginning):
                return message
        raise AssertionError(f"no message begins {beginning}")

    def drain(self) -> None:
        while self.next(0.001) is not None:
            pass


@contextmanager
def started(name: str, folder: Path, notify: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    module, *arguments = SERVERS[name]
    environment = dict(os.environ, NOTIFY_SOCKET=notify, **more)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stands_still(pid: int) -> bool:
    """Return True if all threads of a process are stopped (state T)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_service_manager_hears_of_start_turning_loop_and_stop(name: str, tmp_path: Path) -> None:
    # This socket has an abstract name and no file. test_reload.py uses a socket with a file.
    notify, watchdog = f"routekeeper-{os.getpid()}-{name}", str(int(WATCHDOG_S * 1e6))
    with (
        Manager(f"\0{notify}") as manager,
        started(name, tmp_path, f"@{notify}", WATCHDOG_USEC=watchdog) as server,
    ):
        assert "listen=127.0.0.1:" in manager.wait_for("READY=1\nSTATUS=")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        server.send_signal(signal.SIGSTOP)
        wait_until(lambda: stands_still(server.pid), "it stands still")
        manager.drain()
        assert manager.next(2 * WATCHDOG_S) is None, "the loop hangs, and the watchdog hears that it turns"
        server.send_signal(signal.SIGCONT)
        manager.wait_for("WATCHDOG=1")
        server.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert server.wait(timeout=ANSWER_S) == 0


def test_watchdog_hears_at_most_a_hundred_messages_a_second_and_that_of_another_process_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    class Loop:
        def call_later(self, delay_s: float, *_: object) -> None:
            pauses.append(delay_s)

    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    for microseconds, pid in (("1", "7"), ("1", "8"), ("600000", "7")):
        watchdog = {"WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
        named = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), **watchdog}
        ServiceManager.of_environment(named, pid=7).ready("serving")
    assert pauses == [0.01, pytest.approx(0.2)]


@pytest.mark.parametrize("said", ["9" * 5000, "-1", "x", "1.5", ""])
def test_odd_time_of_a_watchdog_stops_no_start(said: str) -> None:
    ServiceManager.of_environment({"WATCHDOG_USEC": said}, pid=1)


@pytest.mark.slow
def test_service_manager_that_is_away_stops_no_server(tmp_path: Path) -> None:
    with started("mqnamesrv", tmp_path, str(tmp_path / "nobody"), WATCHDOG_USEC="100000") as server:
        assert server.stdout is not None
        assert "ready" in server.stdout.readline()
        # In this time, the server tries to send five watchdog messages, and all of them fail.
        time.sleep(0.5)
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=ANSWER_S)
        assert server.returncode == 0
        assert said.count("the service manager cannot be reached") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/routekeeper/bin", str(programs)))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_little_that_the_unit_leaves_open(unit: Path) -> None:
    found = subprocess.run(
        # systemd-analyze rates how much of the system a unit can reach, from 0 to 10 (no confinement).
        # Threshold 13 means that the rating may be at most 1.3.
        ["systemd-analyze", "security", "--offline=true", "--threshold=13", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stdout


def test_unit_gives_a_nameserver_time_to_end() -> None:
    (unit,) = [unit for unit in UNITS if unit.name == "mqnamesrv.service"]
    assert f"\nTimeoutStopSec={NamesrvSettings().drain_s + 15:.0f}\n" in unit.read_text()


def test_unit_starts_the_program_with_flags_that_it_has() -> None:
    assert len(UNITS) == 2
    for unit in UNITS:
        (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
        program, *arguments = line.removeprefix("ExecStart=").split()
        module = {"mqnamesrv": "routekeeper.nameserver", "mqbroker": "routekeeper.broker"}[Path(program).name]
        shown = subprocess.check_output([sys.executable, "-m", module, "--help"], text=True)
        for flag in arguments[::2]:
            assert re.search(rf"{flag}[ ,]", shown), (unit.name, flag)
