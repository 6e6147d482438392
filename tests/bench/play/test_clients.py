"""The process of the playground's clients writes whole lines, although several threads write at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.arms.interface import ArmConfig, Side
from routekeeper.bench.play.clients import READY
from routekeeper.bench.play.heard import ClientsConfig, Heard
from routekeeper.bench.ports import HOST, free_ports

pytestmark = pytest.mark.bench

LINE_MAX = 65_536
CLIENTS = [sys.executable, "-m", "routekeeper.bench.play.clients"]


def config_of(names: list[str], folder: Path) -> Path:
    """Write a settings file for clients whose nameserver does not run, and return the file's path."""
    config = ClientsConfig(
        arm=ArmConfig(
            kind="remoting",
            sides=[Side(name=name, servers=[f"{HOST}:{port}" for port in free_ports(1)]) for name in names],
            lease_ms=2_000,
            refresh_ms=500,
            heartbeat_ms=500,
            divisor=60.0,
            timeout_s=0.2,
        ),
        topic="Orders",
        every_s=0.05,
        seed=1,
    )
    path = folder / "clients.json"
    path.write_bytes(msgspec.json.encode(config))
    return path


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_each_line_is_one_write(tmp_path: Path, environment: dict[str, str]) -> None:
    """Check that a thread writes each line with one call.

    If a thread used two calls for a line, the line of another thread could come between the two parts. Stdout
    is a datagram socket in this test, so each call is a separate message.
    """
    names = ["client-0", "client-1"]
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with here, there:
        here.settimeout(60.0)
        child = subprocess.Popen(
            [*CLIENTS, str(config_of(names, tmp_path))],
            stdin=subprocess.PIPE,
            stdout=there.fileno(),
            env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"} | environment,
        )
        with child:
            lines = [here.recv(LINE_MAX) for _ in range(10)]
            assert child.stdin is not None
            child.stdin.close()
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines), lines
    assert lines.count(f"{READY}\n".encode()) == 1
    lines.remove(f"{READY}\n".encode())
    heard = [msgspec.json.decode(line, type=Heard) for line in lines]
    assert {each.operation.client_side for each in heard if each.operation is not None} == set(names)


def test_a_client_that_fails_ends_the_process_and_says_so(tmp_path: Path) -> None:
    """Check that a failed client ends the process with an error text.

    Without the text, the failed client would look like a client that queries slowly.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "from routekeeper.bench.arms.remoting import RemotingClientSession as Session\n"
        "Session.look_up = lambda self, topic: 1 // 0\n"
    )
    child = subprocess.Popen(
        [*CLIENTS, str(config_of(["client-0"], tmp_path))],
        stdin=subprocess.PIPE,  # a pipe, because the process exits when its stdin is closed
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    with child:
        assert child.wait(60.0) == 1
        assert child.stderr is not None
        said = child.stderr.read()
    assert "client-0 has ended" in said
    assert "ZeroDivisionError" in said
