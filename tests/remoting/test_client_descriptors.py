"""Tests of the file descriptors of the blocking client.

A process may have no free descriptors. A client must close connections that it no longer uses.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import WITHIN_S, in_thread, wait_until

NOTICE = 40
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Allow this process to open only ``count`` more files."""
    gc.collect()  # otherwise Python could close forgotten files of other tests later
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]  # the lowest free descriptors
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 if held else 3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def sockets() -> set[str]:
    """Return the names of all sockets that this process has open."""
    names = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in names if name.startswith("socket:")}


def has_sockets(before: set[str], count: int) -> bool:
    return len(sockets() - before) == count


class Server:
    """A server that accepts one connection and answers each request, except for those of code 2.

    The server runs in a thread until the client or the test closes the connection.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: socket.socket | None = None
        self.addr = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = 0
        self.ended = in_thread(self._serve)

    def _serve(self) -> None:
        self._accepted, _ = self._listener.accept()
        self._listener.close()
        decoder = FrameDecoder()
        with self._accepted, contextlib.suppress(ConnectionError):
            while data := self._accepted.recv(65536):
                for frame in decoder.feed(data):
                    command = decode_command(frame)
                    self.received += 1
                    if command.code != 2:
                        self._accepted.sendall(command.reply().encode())

    def close(self) -> None:
        """Close the connection, and wait until the server has no socket."""
        assert self._accepted is not None
        self._accepted.shutdown(socket.SHUT_RDWR)
        self.ended.result(WITHIN_S)


def ask(client: BlockingClient, server: Server, code: int = 1) -> RemotingCommand:
    return client.invoke(server.addr, RemotingCommand.request(code), timeout_s=WITHIN_S)


@pytest.mark.slow
@pytest.mark.parametrize("handles", [False, True], ids=["sends only", "handles requests"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_process_without_free_descriptors_has_no_connection(count: int, *, handles: bool) -> None:
    # In a process of its own, in which no other test's thread closes descriptors meanwhile.
    program = f"import {__name__} as tests; tests.check_without_descriptors({count}, handles={handles})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def check_without_descriptors(count: int, *, handles: bool) -> None:
    before = sockets()
    with socket.create_server(("127.0.0.1", 0)) as listener, BlockingClient() as client:
        addr = f"127.0.0.1:{listener.getsockname()[1]}"
        if handles:
            client.on_request(NOTICE, lambda _addr, command: command.reply())
        with free_descriptors(count):
            with pytest.raises(ConnectionLost, match=r"no connection to .*Too many open files") as lost:
                client.invoke(addr, RemotingCommand.request(1))
            assert not lost.value.sent
            with pytest.raises(ConnectionLost, match=r"no connection to .*Too many open files") as lost:
                client.invoke_oneway(addr, RemotingCommand.request(1, oneway=True))
            assert not lost.value.sent
        assert has_sockets(before, 1), "only the listener"
        client.invoke_oneway(addr, RemotingCommand.request(1, oneway=True))


def test_a_connection_with_a_reader_thread_that_the_peer_closed_has_no_descriptors() -> None:
    before = sockets()
    with BlockingClient() as client:
        client.on_request(NOTICE, lambda _addr, command: command.reply())
        server = Server()
        ask(client, server)
        server.close()
        wait_until(lambda: has_sockets(before, 0), "the client has closed its side")


def test_a_connection_that_the_peer_closed_is_closed_when_another_is_opened() -> None:
    before = sockets()
    with BlockingClient() as client:
        former, later = Server(), Server()
        ask(client, former)
        former.close()
        ask(client, later)
        wait_until(lambda: has_sockets(before, 2), "only both sides of the second connection")


@pytest.mark.parametrize("handles", [False, True], ids=["sends only", "handles requests"])
def test_an_unused_connection_is_closed_when_another_is_opened(*, handles: bool) -> None:
    with BlockingClient(idle_s=0.1) as client:
        if handles:
            client.on_request(NOTICE, lambda _addr, command: command.reply())
        unused, waiting, last = Server(), Server(), Server()
        ask(client, unused)
        pending = in_thread(lambda: ask(client, waiting, 2))
        wait_until(lambda: waiting.received, "the server has received the request")
        time.sleep(0.12)
        ask(client, last)
        unused.ended.result(WITHIN_S)  # the client has closed the connection
        assert not pending.done(), "a connection with a waiting request is in use"
    assert isinstance(pending.exception(WITHIN_S), ConnectionLost), "the client was closed"


@pytest.mark.parametrize("handles", [False, True], ids=["sends only", "handles requests"])
def test_a_connection_that_was_used_a_moment_ago_stays_when_another_is_opened(*, handles: bool) -> None:
    with BlockingClient() as client:
        if handles:
            client.on_request(NOTICE, lambda _addr, command: command.reply())
        first, second = Server(), Server()
        for server in (first, second, first):
            ask(client, server)  # each server accepts only one connection
