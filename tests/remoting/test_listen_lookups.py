"""Tests of a start that fails because no resolver answers for the name in an address of the server.

The program must print one line and end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

#: Program that starts a server with a resolver that never answers for names below ``.example``. The server
#: waits half a second for an answer.
PROGRAM = """
import runpy, socket, sys, time
from routekeeper.remoting.transport import lookups
lookups.LISTEN_WITHIN_S = 0.5
known = socket.getaddrinfo

def silent(host, *more, **others):
    flags = others.get("flags", more[4] if len(more) > 4 else 0)
    if not str(host).endswith(".example") or flags & socket.AI_NUMERICHOST:
        return known(host, *more, **others)
    time.sleep(60)

socket.getaddrinfo = silent
sys.modules["uvloop"] = None  # looks names up by itself
sys.argv[0] = "server"
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""
SERVERS = {
    "nameserver wire": ("nameserver", "--listen me.example:0 --http off --data"),
    "nameserver http": ("nameserver", "--listen 127.0.0.1:0 --http me.example:0 --data"),
    "broker wire": ("broker", "--name b --listen me.example:0 --store"),
    "broker http": ("broker", "--name b --listen 127.0.0.1:0 --http me.example:0 --store"),
    "broker advertised": ("broker", "--name b --listen 127.0.0.1:0 --advertise me.example:10911 --store"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_name_that_nobody_resolves_ends_the_start_with_one_line(server: str, tmp_path: Path) -> None:
    program, flags = SERVERS[server]
    ended = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM, f"routekeeper.{program}"),
            *(*flags.split(), str(tmp_path / "data")),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert "me.example" in last
    assert "not resolved within 0.5 s" in last
