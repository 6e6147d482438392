"""Tests of the options for level and format of the log, in both servers; the level can change at run time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.properties import format_properties
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

#: Each server's program, and the code of the request that changes its settings.
SERVERS = [pytest.param("nameserver", 318, id="mqnamesrv"), pytest.param("broker", 25, id="mqbroker")]


@dataclass
class Server:
    addr: str
    log: Path
    client: BlockingClient

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if text in line]

    def change(self, code: int, **settings: str) -> RemotingCommand:
        return self.client.invoke(
            self.addr, RemotingCommand.request(code, {}, format_properties(settings).encode())
        )


Start = Callable[..., contextlib.AbstractContextManager[Server]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @contextlib.contextmanager
    def start(program: str, *flags: str, environment: Mapping[str, str] = {}) -> Iterator[Server]:
        log = tmp_path / "stderr.txt"
        arguments = (
            ["--http", "off", "--data", "d"] if program == "nameserver" else ["-n", "", "--store", "s"]
        )
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"routekeeper.{program}", "--listen", "127.0.0.1:0"),
                    *arguments,
                    *flags,
                ],
                env=os.environ | environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            assert "ready" in ready, log.read_text()
            with BlockingClient() as client:
                yield Server(ready.split("listen=")[1].split()[0], log, client)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return start


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_level_changes_at_run_time_and_is_kept(program: str, code: int, start: Start) -> None:
    with start(program) as server:
        refused = server.change(code, logLevel="LOUD")
        assert refused.code != 0
        assert "logLevel=LOUD" in (refused.remark or "")
        assert "DEBUG, INFO, WARNING, ERROR" in (refused.remark or "")
        assert server.change(code, logLevel="debug").code == 0
        with BlockingClient() as other:  # a faulty request causes lines at level DEBUG
            other.invoke(server.addr, RemotingCommand.request(15, {}))
        wait_until(lambda: server.lines(" DEBUG "), "a line of level DEBUG")
        assert server.change(code, logLevel="ERROR").code == 0
        server.client.close()
        count = len(server.lines(" DEBUG "))
    assert not server.lines(" INFO routekeeper.broker.server.process stopping")
    assert not server.lines(" INFO routekeeper.nameserver stopped")
    assert len(server.lines(" DEBUG ")) == count
    with start(program) as server:
        pass  # after this restart the changed level must still be in force
    assert not server.lines(" INFO ")


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_flags_are_the_same_for_both_servers(program: str, code: int, start: Start) -> None:
    with start(program, "--log-level", "warning", "--log-format", "json") as server:
        answer = server.client.invoke(server.addr, RemotingCommand.request(code + 1, {}))
        assert b"logLevel=WARNING\n" in answer.body
        assert b"logFormat=json\n" in answer.body
        assert server.change(code, logFormat="text").code != 0  # the format can only be set at the start
    assert not server.lines('"INFO"')
    with start(
        program,
        "--logFormat" if program == "nameserver" else "--set",
        "json" if program == "nameserver" else "logFormat=json",
    ) as server:
        pass
    assert {json.loads(line)["level"] for line in server.log.read_text().splitlines()} >= {"INFO"}


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_level_may_stand_in_the_file(program: str, code: int, start: Start, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("logLevel=error\nlogFormat=json\n")
    with start(program, "-c", str(tmp_path / "conf")) as server:
        pass
    assert server.log.read_text() == ""


def test_environment_of_the_nameserver_goes_on_working(start: Start) -> None:
    with start("nameserver", environment={"MQNAMESRV_LOG_LEVEL": "ERROR"}) as server:
        answer = server.client.invoke(server.addr, RemotingCommand.request(319, {}))
        assert b"logLevel=ERROR\n" in answer.body
    assert server.log.read_text() == ""
    with start("nameserver", "--log-level", "INFO", environment={"MQNAMESRV_LOG_LEVEL": "ERROR"}) as server:
        pass
    assert server.lines(" INFO ")
