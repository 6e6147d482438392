"""Nobody reads the stdout and stderr of the programs in these tests.

Servers must serve nevertheless, and all programs must end in time.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import standstill
from tests.ports import free_addresses

pytestmark = [pytest.mark.faults, pytest.mark.slow]

START_S = 60.0
END_S = 8.0
"""Limit for the seconds from SIGTERM to the end of the process.

The process itself waits at most 1 s for log lines that it cannot write. The other 7 s are a margin for slow
machines.
"""


@contextmanager
def pipe_that_nobody_reads() -> Iterator[int]:
    """Yield the write end of a full pipe that nobody reads. So every further write blocks."""
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writer, False)
        for size in (4096, 1):
            try:
                while True:
                    os.write(writer, b"." * size)
            except BlockingIOError:
                pass
        os.set_blocking(writer, True)
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


def healthy(http_addr: str) -> bool:
    connection = http.client.HTTPConnection(http_addr, timeout=START_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def registration(number: int) -> RemotingCommand:
    fields = {
        "brokerName": f"b{number}",
        "brokerAddr": f"127.0.0.1:{1000 + number}",
        "clusterName": "C",
        "brokerId": "0",
        "haServerAddr": "",
    }
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body=b"")


@pytest.mark.parametrize(
    "program",
    [
        "routekeeper.nameserver --listen {wire} --http {http} --data {data}",
        "routekeeper.nameserver --listen {wire} --http {http} --data {data}"
        " --mode raft --raft {raft} --peers {raft}",
        "routekeeper.broker --listen {wire} --http {http} --store {data} -n {raft} --log-level debug",
    ],
    ids=["independent", "raft", "broker"],
)
def test_server_whose_output_nobody_reads_serves_and_ends_in_time(program: str, tmp_path: Path) -> None:
    wire, http_addr, raft = free_addresses(3)
    command = program.format(wire=wire, http=http_addr, raft=raft, data=tmp_path / "data").split()
    with pipe_that_nobody_reads() as full:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=full,
            stderr=full,
            env=os.environ | {"MQNAMESRV_LOG_LEVEL": "DEBUG"},
        )
        try:
            deadline = time.monotonic() + START_S
            while not healthy(http_addr):
                assert process.poll() is None
                assert time.monotonic() < deadline, "it does not serve"
                time.sleep(0.05)
            with BlockingClient() as client:
                # A nameserver logs a line for each of these requests, although nobody reads its log. A broker
                # refuses the requests, but must answer them, too.
                for number in range(100):
                    client.invoke(wire, registration(number), timeout_s=START_S)
            assert healthy(http_addr)
            standstill.begin()
            standstill.watch(process.pid)
            asked_at = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_S) == 0
            assert standstill.elapsed(asked_at) < END_S
        finally:
            process.kill()
            process.wait()
            standstill.forget(process.pid)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("routekeeper.nameserver --no-such-flag", 2),
        ("routekeeper.broker --no-such-flag", 2),
        ("routekeeper.client.mqadmin clusterList -n x", 1),
    ],
)
def test_program_that_has_a_last_line_for_nobody_ends_in_time(
    program: str, code: int, tmp_path: Path
) -> None:
    with pipe_that_nobody_reads() as full:
        process = subprocess.Popen([sys.executable, "-m", *program.split()], stderr=full, cwd=tmp_path)
        try:
            # The program must not wait until somebody reads its output, because then it would never end.
            assert process.wait(START_S) == code
        finally:
            process.kill()
            process.wait()
