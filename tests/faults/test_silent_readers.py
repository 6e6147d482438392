"""If peers send requests but never read, the answers must not fill a nameserver's memory."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration

pytestmark = pytest.mark.faults

MIB = 1024 * 1024
READERS = 40
BROKERS = 150
WITHIN_S = 60.0


@contextlib.contextmanager
def nameserver(tmp_path: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "routekeeper.nameserver", "--listen", "127.0.0.1:0", "--http", "off"]
    process = subprocess.Popen(
        [*command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        match = re.search(r"listen=(\S+)", process.stdout.readline())
        assert match
        yield match[1], process.pid
        assert process.poll() is None, "the nameserver must still run"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def peak_bytes(pid: int) -> int:
    """Return the highest memory use of the process in bytes up to now (VmHWM)."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) * 1024


def register(client: BlockingClient, addr: str) -> None:
    """Register one topic at many brokers, so that the route of the topic takes 50 kB."""
    for number in range(BROKERS):
        request = registration(f"{number:03d}-{'b' * 60}", f"10.0.0.1:{1000 + number}", ("T",))
        assert client.invoke(addr, request, timeout_s=30).code == 0


def test_forty_that_never_read_hold_little_together(tmp_path: Path) -> None:
    """If a nameserver prepared many long answers for each peer at once, they would take 110 MiB."""
    with (
        nameserver(tmp_path) as (addr, pid),
        BlockingClient() as client,
        contextlib.ExitStack() as stack,
    ):
        register(client, addr)
        question = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert len(client.invoke(addr, question).body) > 40_000
        before = peak_bytes(pid)
        for _ in range(READERS):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            deaf.settimeout(WITHIN_S)
            deaf.connect(split_address(addr))
            deaf.sendall(b"".join(question.with_opaque(100 + n).encode() for n in range(800)))
            assert client.invoke(addr, question, timeout_s=WITHIN_S).code == 0
        assert peak_bytes(pid) - before < 48 * MIB
