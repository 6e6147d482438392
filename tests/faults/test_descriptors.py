"""Tests of a nameserver that runs out of file descriptors.

Connections of unknown clients cannot use up the descriptors that the nameserver needs for its files. A
nameserver without free descriptors keeps running.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

from .cluster import (
    CONDITION_S,
    TOKEN,
    Cluster,
    Member,
    make_members,
    running,
    split,
    token_flags,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core, pytest.mark.timeout(180)]
DESCRIPTORS = 1024
IDLE_HTTP = 1061
IDLE_WIRE = 800
QUESTION = RemotingCommand.request(206)  # asks for the list of topics


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    return token_flags(tmp_path)


@pytest.fixture
def many_sockets() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this process may open {hard} files, the test needs more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def save_snapshot(connection: http.client.HTTPConnection) -> int:
    """Request a snapshot, which also begins a new journal file, and return the HTTP status."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/raft/snapshot", b"{}", headers)
    reply = connection.getresponse()
    reply.read()
    return reply.status


def connected(member: Member) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(*split(member.http), timeout=CONDITION_S)
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    return connection


def answers(member: Member) -> bool:
    """Return True if the member answers a request over a new connection."""
    with BlockingClient() as client, contextlib.suppress(ConnectionLost):
        return client.invoke(member.listen, QUESTION).code == 0
    return False


@contextlib.contextmanager
def alone(tmp_path: Path, arguments: tuple[str, ...], *prefix: str) -> Iterator[Cluster]:
    (member,) = make_members(tmp_path, size=1, arguments=arguments)
    member.prefix = prefix
    with running([member]) as cluster:
        yield cluster


@pytest.mark.usefixtures("many_sockets")
def test_idle_connections_leave_room_for_its_files(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not here")
    with (
        alone(tmp_path, arguments, "prlimit", f"--nofile={DESCRIPTORS // 2}:{DESCRIPTORS}") as cluster,
        contextlib.ExitStack() as idle,
    ):
        (member,) = cluster.members
        first = idle.enter_context(BlockingClient())
        assert first.invoke(member.listen, QUESTION).code == 0
        for address, count in ((member.http, IDLE_HTTP), (member.listen, IDLE_WIRE)):
            for _ in range(count):
                idle.enter_context(socket.create_connection(split(address), timeout=CONDITION_S))
        wait_until(lambda: "connections refused" in member.log(), "it names the shortage")
        assert member.log().count("connections refused") == 1
        assert "descriptor limit is short" in member.log()
        assert first.invoke(member.listen, QUESTION).code == 0
        with contextlib.closing(connected(member)) as connection:
            for _ in range(3):
                assert save_snapshot(connection) == 200
        assert member.process is not None
        assert member.process.poll() is None
        assert "Too many open files" not in member.log()
        idle.close()
        wait_until(lambda: answers(member), "a new connection is served")


def test_a_process_without_descriptors_goes_on_once_there_are_some(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with alone(tmp_path, arguments) as cluster:
        (member,) = cluster.members
        assert member.process is not None
        pid = member.process.pid
        with contextlib.closing(connected(member)) as connection:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # The new limit is below the number of open files. The process keeps these files open but cannot
            # open others.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                assert save_snapshot(connection) != 200
                wait_until(lambda: "journal full" in member.log(), "it says that there is no room")
                assert member.process.poll() is None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            wait_until(lambda: save_snapshot(connection) == 200, "a snapshot is saved")
        assert len(os.listdir(member.data / "raft")) > 0
        assert member.process.poll() is None
