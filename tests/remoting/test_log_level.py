"""Tests of the options for the log's level and format, and of a change of the level at run time.

The tests run with both servers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.properties import format_properties
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import server
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


@contextlib.contextmanager
def started(program: str, folder: Path, *flags: str) -> Iterator[Server]:
    with server(program, folder, *flags) as running, BlockingClient() as client:
        yield Server(running.listen, running.log, client)


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_level_changes_at_run_time_and_is_kept(program: str, code: int, tmp_path: Path) -> None:
    with started(program, tmp_path) as running:
        refused = running.change(code, logLevel="LOUD")
        assert refused.code != 0
        assert "logLevel=LOUD" in (refused.remark or "")
        assert "DEBUG, INFO, WARNING, ERROR" in (refused.remark or "")
        assert running.change(code, logLevel="debug").code == 0
        with BlockingClient() as other:  # a faulty request causes lines at level DEBUG
            other.invoke(running.addr, RemotingCommand.request(15, {}))
        wait_until(lambda: running.lines(" DEBUG "), "a line of level DEBUG")
        if program == "nameserver":
            wait_until(lambda: running.lines("connection closed"), "the line about the other client's end")
        assert running.change(code, logLevel="ERROR").code == 0
        running.client.close()
        count = len(running.lines(" DEBUG "))
    assert not running.lines(" INFO routekeeper.broker.server.process stopping")
    assert not running.lines(" INFO routekeeper.nameserver stopped")
    assert len(running.lines(" DEBUG ")) == count
    with started(program, tmp_path) as running:
        pass  # after this restart the changed level must still be in force
    assert not running.lines(" INFO ")


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_flags_are_the_same_for_both_servers(program: str, code: int, tmp_path: Path) -> None:
    with started(program, tmp_path, "--log-level", "warning", "--log-format", "json") as running:
        answer = running.client.invoke(running.addr, RemotingCommand.request(code + 1, {}))
        assert b"logLevel=WARNING\n" in answer.body
        assert b"logFormat=json\n" in answer.body
        assert running.change(code, logFormat="text").code != 0  # the format can only be set at the start
    assert not running.lines('"INFO"')
    with started(
        program,
        tmp_path,
        "--logFormat" if program == "nameserver" else "--set",
        "json" if program == "nameserver" else "logFormat=json",
    ) as running:
        pass
    assert {json.loads(line)["level"] for line in running.log.read_text().splitlines()} >= {"INFO"}


@pytest.mark.parametrize(("program", "code"), SERVERS)
def test_level_may_stand_in_the_file(program: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("logLevel=error\nlogFormat=json\n")
    with started(program, tmp_path, "-c", str(tmp_path / "conf")) as running:
        pass
    assert running.log.read_text() == ""


def test_environment_of_the_nameserver_goes_on_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQNAMESRV_LOG_LEVEL", "ERROR")
    with started("nameserver", tmp_path) as running:
        answer = running.client.invoke(running.addr, RemotingCommand.request(319, {}))
        assert b"logLevel=ERROR\n" in answer.body
    assert running.log.read_text() == ""
    with started("nameserver", tmp_path, "--log-level", "INFO") as running:
        pass
    assert running.lines(" INFO ")
