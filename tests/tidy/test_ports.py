"""Tests that two test sessions at the same time never use the same ports."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from routekeeper.bench.ports import HOST
from tests import ports
from tests.ports import free_port_with, free_ports

ROOT = Path(__file__).resolve().parents[2]
OTHER_SESSION = """
import sys
from tests.ports import free_ports
print(*free_ports(300), flush=True)
sys.stdin.read()
"""


def test_sessions_beside_each_other_share_no_port() -> None:
    command = [sys.executable, "-c", OTHER_SESSION]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as one,
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as other,
    ):
        given = [set(free_ports(300))]
        for session in (one, other):
            assert session.stdout is not None
            given.append(set(map(int, session.stdout.readline().split())))
        one.communicate()
        other.communicate()
    assert [len(each) for each in given] == [300] * 3
    assert len(set.union(*given)) == 900
    assert set.union(*given) <= set(ports.usable())


def test_port_in_use_is_not_given_and_neighbours_are_given_together() -> None:
    with socket.socket() as held:
        while True:
            (first,) = free_ports(1)
            try:
                held.bind((HOST, first + 3))
                break
            except OSError:
                continue  # this port may be in use, for example by another test session
        found = [free_port_with(1, 3) for _ in range(20)]
    everything = sorted(port + offset for port in found for offset in (0, 1, 3))
    assert all(a < b for a, b in pairwise(everything)), "none twice"
    assert first + 3 not in everything


def test_session_that_finds_no_further_block_gives_its_oldest_again() -> None:
    with contextlib.closing(ports._Ports()) as session:
        given = [session.take() for _ in range(100)]
        session._blocks.clear()
        while session._left:
            given.append(session.take())
        assert session.take() == given[0]


@pytest.mark.parametrize(
    ("outgoing", "allowed"),
    [
        ("32768\t60999\n", range(10_000, 20_000)),
        ("1024 65000", range(65_001, 65_536)),
        ("15000 65535", range(1024, 15_000)),
    ],
)
def test_ports_of_outgoing_connections_are_left_alone(
    outgoing: str, allowed: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    file.write_text(outgoing)
    monkeypatch.setattr(ports, "_OUTGOING", file)
    assert ports.usable() == allowed
