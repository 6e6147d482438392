"""Tests of the signals that end a nameserver.

The tests send a first signal, repeat it within a second, or send another signal later.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.ports import free_addresses
from tests.signals import IN_TERMINAL, inherited

CONDITION_S = 30.0
ATTEMPTS = 5


class Busy:
    """A nameserver that does not end for 2.5 s after a signal, because a change waits for a leader."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log

    def wait_for_log(self, text: str) -> None:
        deadline = time.monotonic() + CONDITION_S
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.005)


@contextmanager
def busy(tmp_path: Path) -> Iterator[Busy]:
    peers = free_addresses(3)
    raft = (
        "--mode",
        "raft",
        "--raft",
        peers[0],
        "--peers",
        ",".join(peers),
        "--data",
        str(tmp_path / "data"),
    )
    command = [
        *IN_TERMINAL,
        sys.executable,
        "-m",
        "routekeeper.nameserver",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        *raft,
    ]
    log = tmp_path / "stderr.txt"
    with inherited(signal.SIGHUP, signal.SIG_DFL), log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().split("listen=")[1].split()[0].rpartition(":")
        change = RemotingCommand.request(
            RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}
        )
        question = RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)
        try:
            with socket.create_connection((host, int(port)), timeout=CONDITION_S) as client:
                client.sendall(change.encode() + question.encode())
                assert client.recv(1)  # this answer shows that the nameserver has read the change, too
                yield Busy(process, log)
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
def test_a_repeat_of_the_signal_within_a_second_changes_nothing(
    tmp_path: Path, second: signal.Signals
) -> None:
    """A second signal within a second of the first signal must do nothing.

    Some supervisors signal a process and then its process group, so one stop request arrives as two signals.
    """
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with busy(folder) as server:
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("stopping signal=SIGTERM")
            server.process.send_signal(second)
            code = server.process.wait(CONDITION_S)
            if code == 0 or time.monotonic() - begun < 1.0:
                break  # otherwise the second signal may have come after more than 1 s, so try again
    assert code == 0
    assert "exiting at once" not in server.log.read_text()


@pytest.mark.slow
def test_a_second_signal_after_more_than_a_second_ends_it_at_once(tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with busy(folder) as server:
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("stopping signal=SIGTERM")
            # Pause the process, so that it cannot end before the second signal.
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1.1)  # the second signal must come more than 1 s after the first
            server.process.send_signal(signal.SIGINT)
            server.process.send_signal(signal.SIGCONT)
            code = server.process.wait(CONDITION_S)
            if code == 128 + signal.SIGINT:
                server.wait_for_log("exiting at once")
            if code != 0:
                break  # with code 0 it may have ended by itself before it handled the signal, so try again
    assert code == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_closed_terminal_ends_it_in_order_with_code_129(tmp_path: Path) -> None:
    with busy(tmp_path) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(CONDITION_S) == 128 + signal.SIGHUP
        assert "stopped abandoned=0" in server.log.read_text()
