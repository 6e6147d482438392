"""mqadmin and the servers with an unusual terminal, unusual arguments or a group without a leader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.conftest import Process
from tests.ports import free_addresses

pytestmark = pytest.mark.slow


def run(*command: str | bytes, **environment: str) -> tuple[int, bytes, bytes]:
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        env=os.environ | environment,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("routekeeper.client.mqadmin", "no€such"), 1),
        (("routekeeper.nameserver", "--data", "no€such", "-p"), 0),
        (("routekeeper.broker", "--store", "no€such", "-p"), 0),
    ],
)
def test_text_that_the_terminal_cannot_carry_is_escaped(command: tuple[str, ...], code: int) -> None:
    ended, out, err = run(*command, PYTHONIOENCODING="latin-1", PYTHONUTF8="1")
    assert b"Traceback" not in err
    assert ended == code
    assert b"no\\u20acsuch" in out


def test_argument_that_is_not_utf_8_is_refused_in_one_line() -> None:
    command = ("routekeeper.client.mqadmin", "topicRoute", "-n", "127.0.0.1:1", "-t", b"caf\xe9")
    code, out, err = run(*command, PYTHONUTF8="1")
    assert (code, out) == (1, b"")
    assert err == b"mqadmin: argument 'caf\\udce9' is not UTF-8 text; give names as UTF-8\n"


def test_status_of_a_group_without_leader_fails_if_scripts_ask_for_that(tmp_path: Path) -> None:
    me, *others, wire, http = free_addresses(5)
    process = Process(
        "routekeeper.nameserver",
        *("--mode", "raft", "--raft", me, "--peers", ",".join((me, *others))),
        *("--listen", wire, "--http", http, "--data", str(tmp_path / "data")),
        log=tmp_path / "log",
    )
    try:
        assert run("routekeeper.client.mqadmin", "raftStatus", "--http", http)[0] == 0, (
            "it says what there is"
        )
        code, out, err = run("routekeeper.client.mqadmin", "raftStatus", "--http", http, "--check")
        assert code == 1
        assert b"voters:" in out
        assert re.search(rf"{http} is not ready: .*no leader".encode(), err + out), (out, err)
        assert err.count(b"\n") == 1, err
    finally:
        process.stop()
