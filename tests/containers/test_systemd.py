"""Tests of the systemd units of the nameserver and the broker.

The tests run in a container whose first process is systemd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import BASE_PACKAGES, COMMAND_S, COMPOSE, Engine, say

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

PACKAGES = (*BASE_PACKAGES, "systemd", "systemd-sysv", "dbus")
NAME = "routekeeper-systemd"
WITHIN_S = 240.0
#: Settings of the units with a short watchdog time, so that the test ends sooner.
WATCHDOG = "[Service]\nWatchdogSec=10\n"


class Machine:
    """A container whose first process is systemd."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, *words: str) -> str:
        return self._engine.podman("exec", NAME, *words)

    def attempt(self, *words: str) -> str:
        done = self._engine.attempt("podman", "exec", NAME, *words)
        return done.stdout + done.stderr

    def write(self, path: str, text: str) -> None:
        self.run("sh", "-c", f"mkdir -p $(dirname {path}); printf '%s' \"$1\" > {path}", "sh", text)

    def shown(self, unit: str, key: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", key, unit).strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output", "cat", "--unit", unit)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            units = ("mqnamesrv", "mqbroker")
            assert time.monotonic() < deadline, f"{what}\n" + "\n".join(map(self.journal, units))
            time.sleep(0.2)


@pytest.fixture(scope="module")
def machine(engine: Engine, image: str) -> Iterator[Machine]:
    """Start systemd with the units and the programs, installed as compose/README.md describes."""
    began = time.monotonic()
    archive = engine.bootstrap("systemd", PACKAGES)
    engine.podman("import", str(archive), NAME)
    programs = engine.root / "routekeeper"
    engine.podman("create", "--name", "programs", image)
    engine.podman("cp", "programs:/opt/venv", str(programs))
    units = [f"--volume={unit}:/etc/systemd/system/{unit.name}:ro" for unit in units_of(COMPOSE)]
    engine.podman(
        *("run", "--detach", "--name", NAME, "--network", "none", "--systemd=always", "--privileged"),
        *(f"--volume={programs}:/opt/routekeeper:ro", *units),
        *(f"localhost/{NAME}", "/lib/systemd/systemd"),
    )
    machine = Machine(engine)
    deadline = time.monotonic() + COMMAND_S
    while machine.attempt("systemctl", "is-system-running").strip() not in ("running", "degraded"):
        assert time.monotonic() < deadline, "systemd has not started"
        time.sleep(0.2)
    say(f"systemd runs after {time.monotonic() - began:.0f} s")
    yield machine
    engine.podman("rm", "--force", "--time", "0", NAME)


def units_of(compose: Path) -> list[Path]:
    return sorted((compose / "systemd").glob("*.service"))


def test_both_units_run_reload_are_watched_and_end_as_they_say(machine: Machine) -> None:
    machine.write("/etc/routekeeper/namesrv.properties", "logLevel=INFO\n")
    machine.write("/etc/routekeeper/broker.properties", "namesrvAddr=127.0.0.1:9876\nbrokerName=b\n")
    machine.run("systemctl", "start", "mqnamesrv")  # systemctl ends when the server has bound its ports
    machine.run("systemctl", "start", "mqbroker")
    for unit in ("mqnamesrv", "mqbroker"):
        assert machine.shown(unit, "ActiveState") == "active"
        assert "listen=127.0.0.1:" in machine.shown(unit, "StatusText")
        # The unit's process must run as a temporary user without capabilities.
        status = machine.run("cat", f"/proc/{machine.shown(unit, 'MainPID')}/status")
        assert "\nUid:\t0\t" not in status
        assert "\nCapEff:\t0000000000000000\n" in status
        assert "\nNoNewPrivs:\t1\n" in status
    tool = ("/opt/routekeeper/bin/mqadmin", "clusterList", "-n", "127.0.0.1:9876")
    machine.wait_for(lambda: ":10911" in machine.attempt(*tool), "the broker has not registered")

    machine.write("/etc/routekeeper/namesrv.properties", "logLevel=DEBUG\n")
    machine.run("systemctl", "reload", "mqnamesrv")
    machine.wait_for(
        lambda: "reloaded changed=logLevel=DEBUG refused=nothing" in machine.journal("mqnamesrv"), "no reload"
    )
    assert machine.shown("mqnamesrv", "ActiveState") == "active"
    assert machine.shown("mqnamesrv", "NRestarts") == "0"

    machine.write("/etc/systemd/system/mqbroker.service.d/watchdog.conf", WATCHDOG)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "mqbroker")
    hung = machine.shown("mqbroker", "MainPID")
    machine.run("sh", "-c", f"kill -STOP {hung}")
    machine.wait_for(lambda: machine.shown("mqbroker", "NRestarts") == "1", "the hung broker goes on")
    machine.wait_for(
        lambda: machine.shown("mqbroker", "ActiveState") == "active", "no broker after the hung one"
    )
    assert machine.shown("mqbroker", "MainPID") not in (hung, "0")

    machine.run("systemctl", "stop", "mqbroker", "mqnamesrv")
    for unit in ("mqnamesrv", "mqbroker"):
        assert (machine.shown(unit, "Result"), machine.shown(unit, "ExecMainStatus")) == ("success", "0")

    machine.write("/etc/routekeeper/namesrv.properties", "logLevel=LOUD\n")
    machine.attempt("systemctl", "start", "mqnamesrv")
    machine.wait_for(lambda: machine.shown("mqnamesrv", "ActiveState") == "failed", "a bad setting was taken")
    assert machine.shown("mqnamesrv", "ExecMainStatus") == "2"
    assert machine.shown("mqnamesrv", "NRestarts") == "0"
    assert "logLevel=LOUD" in machine.journal("mqnamesrv")
