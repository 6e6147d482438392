"""Settings files copied from web posts: comments after values, and servers that only local clients reach."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Process
from tests.waiting import wait_until

pytestmark = [pytest.mark.one_core, pytest.mark.slow]

PROGRAMS = ("nameserver", "broker")
#: Options that keep a server away from the ports and directories of other tests.
LOCAL = {
    "nameserver": ("--http", "off", "--data"),
    "broker": ("-n", "127.0.0.1:9", "--store"),
}
PORT = {"nameserver": ("--listenPort", "0"), "broker": ("--set", "listenPort=0")}
COMMENT = "a comment behind a value is part of the value: put it on a line of its own"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Process, Path]]]:
    """Yield ``start(program, *words)``: a function that starts a server.

    The function returns the server's process and the path of its log.
    """
    started: list[Process] = []

    def begin(program: str, *words: str) -> tuple[Process, Path]:
        log = tmp_path / "log"
        place = (*LOCAL[program], str(tmp_path / "data"))
        started.append(Process(f"routekeeper.{program}", *place, *words, log=log))
        return started[-1], log

    yield begin
    for process in started:
        process.stop()


def refused(program: str, text: str, folder: Path) -> str:
    """Start a server with a settings file that it refuses, and return its only error line."""
    file = folder / "posted.conf"
    file.write_text(text)
    words = ("-c", str(file), *LOCAL[program], str(folder / "data"))
    done = subprocess.run(
        [sys.executable, "-m", f"routekeeper.{program}", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if " WARNING " not in line]
    return line


# Comments after values ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "text", "value"),
    [
        ("nameserver", "listenPort=9876 # the port", "listenPort=9876 # the port"),
        ("nameserver", "orderMessageEnable=true\t# order", "orderMessageEnable=true"),
        ("nameserver", "mode = raft # or independent", "mode=raft # or independent"),
        ("broker", "brokerId=0 #0 is the master", "brokerId="),
        ("broker", "flushDiskType=ASYNC_FLUSH  # fast", "flushDiskType=ASYNC_FLUSH"),
        ("broker", "brokerName=broker-a # first", "brokerName="),
        ("broker", "authenticationEnabled=true # who are you", "authenticationEnabled=true"),
    ],
)
def test_a_refused_value_with_a_comment_behind_it_says_that_it_is_part_of_the_value(
    program: str, text: str, value: str, tmp_path: Path
) -> None:
    line = refused(program, f"{text}\n", tmp_path)
    assert line.startswith(f"mq{'namesrv' if program == 'nameserver' else 'broker'}: {value}")
    assert line.endswith(f"; {COMMENT}")


def test_a_refused_value_without_a_comment_says_nothing_of_comments(tmp_path: Path) -> None:
    for program in PROGRAMS:
        assert "comment" not in refused(program, "# a port\nlistenPort=98a76\n", tmp_path)


@pytest.mark.parametrize(
    ("program", "key", "value"),
    [("nameserver", "productEnvName", "center # of all"), ("broker", "regionId", "Region # here")],
)
def test_a_value_that_is_taken_with_a_comment_is_named(
    program: str, key: str, value: str, start: Any, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    file = tmp_path / "posted.conf"
    file.write_text(f"# a region\n{key}={value}\nbindAddress=127.0.0.1\n")
    _, log = start(program, "-c", str(file), *PORT[program])
    named = re.compile(rf" WARNING .*comment is part of a value key={key} ")
    eventually(lambda: named.search(log.read_text()) is not None, "it is named", within_s=20.0)


# Servers that only clients on their own machine can reach ----------------------------------------


def warnings(log: Path) -> list[str]:
    return [
        line for line in log.read_text().splitlines() if " WARNING " in line and "only this machine" in line
    ]


def wait_for_start(log: Path) -> None:
    wait_until(lambda: "only this machine" in log.read_text(), "a line about the address")


@pytest.mark.parametrize("given", ["file", "port"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_posted_server_that_nobody_else_reaches_names_the_setting(
    program: str, given: str, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "posted.conf"
    file.write_text("listenPort=0\n")
    _, log = start(program, *(("-c", str(file)) if given == "file" else PORT[program]))
    wait_for_start(log)
    (line,) = warnings(log)
    assert "bindAddress=0.0.0.0" in line
    assert ("brokerIP1=" in line) == (program == "broker")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_whose_address_was_chosen_does_not_warn_of_it(
    program: str, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "posted.conf"
    file.write_text("listenPort=0\nbindAddress=127.0.0.1\n")
    _, log = start(program, "-c", str(file))
    wait_for_start(log)
    assert warnings(log) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_whose_address_is_a_flag_does_not_warn_of_it(
    program: str, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "posted.conf"
    file.write_text("listenPort=1\n")
    _, log = start(program, "-c", str(file), "--listen", "127.0.0.1:0")
    wait_for_start(log)
    assert warnings(log) == []


# Settings that are refused -----------------------------------------------------------------------


def test_a_controller_in_the_nameserver_is_refused(tmp_path: Path) -> None:
    line = refused("nameserver", "enableControllerInNamesrv=true\n", tmp_path)
    assert line.startswith("mqnamesrv: enableControllerInNamesrv=true: ")
    assert line.endswith(", allowed is false")
