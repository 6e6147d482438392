"""Tests of callers of the blocking client while another caller writes to the same connection."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import WITHIN_S, in_thread

from .test_interruptions import LARGE, addr, interrupt, request, wait_until_inside

__all__ = ["addr", "interrupt"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return a listening socket whose buffer is too small for a large request."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.settimeout(20)
        yield sock


def receive(connection: socket.socket) -> RemotingCommand:
    """Receive one whole frame from the client, and no more bytes."""
    size = connection.recv(4, socket.MSG_WAITALL)
    (frame,) = FrameDecoder().feed(size + connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    return decode_command(frame)


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as client:
        yield client


@pytest.mark.parametrize("oneway", [False, True])
def test_a_request_that_waits_for_anothers_write_ends_at_its_deadline(
    listener: socket.socket, addr: str, client: BlockingClient, *, oneway: bool
) -> None:
    large = in_thread(lambda: client.invoke(addr, request(LARGE), timeout_s=WITHIN_S))
    connection, _ = listener.accept()
    with connection:
        connection.recv(1, socket.MSG_PEEK)  # waits until the client sends
        send = client.invoke_oneway if oneway else client.invoke
        begun = time.monotonic()
        late = in_thread(lambda: send(addr, request(b"late", oneway=oneway), timeout_s=0.1))
        failure = late.exception(WITHIN_S / 3)
        assert isinstance(failure, ConnectionLost)
        assert not failure.sent
        assert time.monotonic() - begun >= 0.1
        # The peer receives the whole large request. The late request does not follow it.
        command = receive(connection)
        assert command.body == LARGE
        connection.sendall(command.reply(body=b"done").encode())
        assert large.result(WITHIN_S).body == b"done"
        client.invoke_oneway(addr, request(b"next", oneway=True), timeout_s=WITHIN_S)
        assert receive(connection).body == b"next"


def test_a_request_is_sent_after_anothers_write_has_ended(
    listener: socket.socket, addr: str, client: BlockingClient
) -> None:
    large = in_thread(lambda: client.invoke_oneway(addr, request(LARGE, oneway=True), timeout_s=WITHIN_S))
    connection, _ = listener.accept()
    with connection:
        connection.recv(1, socket.MSG_PEEK)  # waits until the client sends
        second = in_thread(lambda: client.invoke(addr, request(b"second"), timeout_s=WITHIN_S))
        assert receive(connection).body == LARGE
        large.result(WITHIN_S)
        command = receive(connection)
        connection.sendall(command.reply(body=command.body).encode())
        assert second.result(WITHIN_S).body == b"second"


def test_a_request_whose_connection_was_lost_ends_although_another_is_being_sent(
    listener: socket.socket, addr: str, client: BlockingClient
) -> None:
    first = in_thread(lambda: client.invoke(addr, request(b"first"), timeout_s=WITHIN_S))
    connection, _ = listener.accept()
    with connection:
        assert receive(connection).body == b"first"
        large = in_thread(lambda: client.invoke(addr, request(LARGE), timeout_s=WITHIN_S))
        connection.recv(1, socket.MSG_PEEK)  # waits until the client sends
        connection.shutdown(socket.SHUT_WR)
        for ended in (first, large):
            failure = ended.exception(WITHIN_S / 3)
            assert isinstance(failure, ConnectionLost)
            assert failure.sent


def test_an_interruption_of_a_request_that_waits_for_anothers_write_ends_only_this_request(
    listener: socket.socket, addr: str, client: BlockingClient, interrupt: Callable[[], None]
) -> None:
    own = threading.get_ident()
    large = in_thread(lambda: client.invoke_oneway(addr, request(LARGE, oneway=True), timeout_s=WITHIN_S))
    connection, _ = listener.accept()

    def serve() -> list[bytes]:
        connection.recv(1, socket.MSG_PEEK)  # waits until the client sends
        wait_until_inside(own, "_acquired")
        interrupt()
        return [receive(connection).body, receive(connection).body]

    with connection:
        served = in_thread(serve)
        with pytest.raises(KeyboardInterrupt):
            client.invoke(addr, request(b"interrupted"), timeout_s=WITHIN_S)
        large.result(WITHIN_S)
        client.invoke_oneway(addr, request(b"next", oneway=True), timeout_s=WITHIN_S)
        assert served.result(WITHIN_S) == [LARGE, b"next"]


GREENLETS = """
    from gevent import monkey

    monkey.patch_all()

    import socket
    import time

    import gevent

    from routekeeper.remoting.command import RemotingCommand
    from routekeeper.remoting.errors import ConnectionLost
    from routekeeper.remoting.transport.blocking import BlockingClient

    size = 8 << 20
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    addr = f"127.0.0.1:{listener.getsockname()[1]}"
    client = BlockingClient()
    large = RemotingCommand.request(1, body=bytes(size), oneway=True)
    writing = gevent.spawn(client.invoke_oneway, addr, large, timeout_s=30)
    connection, _ = listener.accept()
    connection.recv(1, socket.MSG_PEEK)
    begun = time.monotonic()
    try:
        client.invoke(addr, RemotingCommand.request(2), timeout_s=0.2)
    except ConnectionLost as lost:
        print("sent", lost.sent, "in time", 0.2 <= time.monotonic() - begun < 5)
    received = 0
    while received < size:
        received += len(connection.recv(1 << 20))
    writing.get(timeout=30)
    client.invoke_oneway(addr, RemotingCommand.request(3, oneway=True), timeout_s=5)
    print("next", b'"code":3' in connection.recv(1 << 20))
    client.close()
"""


@pytest.mark.slow
def test_a_greenlet_that_waits_for_anothers_write_ends_at_its_deadline() -> None:
    pytest.importorskip("gevent", reason="gevent comes with the bench extra")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREENLETS)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["sent False in time True", "next True"], done.stderr
