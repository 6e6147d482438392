"""If peers send requests but never read, the answers must not fill a nameserver's memory."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration

from .servers import memory, server

pytestmark = pytest.mark.faults

MIB = 1024 * 1024
READERS = 40
BROKERS = 150
WITHIN_S = 60.0


def register(client: BlockingClient, addr: str) -> None:
    """Register one topic at many brokers, so that the route of the topic takes 50 kB."""
    for number in range(BROKERS):
        request = registration(f"{number:03d}-{'b' * 60}", f"10.0.0.1:{1000 + number}", ("T",))
        assert client.invoke(addr, request, timeout_s=30).code == 0


def test_forty_that_never_read_hold_little_together(tmp_path: Path) -> None:
    """Check that the unread answers to 40 peers use less than 48 MiB.

    If a nameserver prepared many long answers for each peer at once, the answers would take 110 MiB.
    """
    with (
        server("nameserver", tmp_path) as running,
        BlockingClient() as client,
        contextlib.ExitStack() as stack,
    ):
        addr = running.listen
        register(client, addr)
        question = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert len(client.invoke(addr, question).body) > 40_000
        before = memory(running.pid, "VmHWM")
        for _ in range(READERS):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            deaf.settimeout(WITHIN_S)
            deaf.connect(split_address(addr))
            deaf.sendall(b"".join(question.with_opaque(100 + n).encode() for n in range(800)))
            assert client.invoke(addr, question, timeout_s=WITHIN_S).code == 0
        assert memory(running.pid, "VmHWM") - before < 48 * MIB
