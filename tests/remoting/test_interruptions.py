"""Tests that an interrupted caller of the blocking client does not harm other callers on its connection.

Examples of interruptions are KeyboardInterrupt and a greenlet's timeout. After a partly sent frame, the
client must send no request on the same connection. The other callers must still get their answers.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import ConnectionLost, RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import in_thread, wait_until

#: More bytes than the send buffer of a socket can hold, so that a sender has to wait for the peer.
LARGE = b"x" * (8 << 20)


def request(body: bytes, *, oneway: bool = False) -> RemotingCommand:
    return RemotingCommand.request(1, body=body, oneway=oneway)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return a listening socket whose small buffer makes senders wait until the test reads."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.settimeout(20)
        yield sock


@pytest.fixture
def addr(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Return a function by which another thread raises KeyboardInterrupt in the test's own thread."""
    own = threading.get_ident()

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGUSR1, stop)
    yield lambda: signal.pthread_kill(own, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, former)


def wait_until_inside(thread: int, function: str) -> None:
    """Wait until ``function`` is the innermost Python function that the thread executes."""
    wait_until(
        lambda: sys._current_frames()[thread].f_code.co_name == function, f"the thread is in {function}"
    )


class Reader:
    """The server's side of one connection, from which a test reads requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = FrameDecoder()

    def next(self) -> RemotingCommand:
        while True:
            data = self._connection.recv(65536)
            assert data, "the client closed the connection"
            for frame in self._decoder.feed(data):
                return decode_command(frame)


@pytest.mark.parametrize("oneway", [False, True])
def test_a_frame_that_an_interruption_cut_off_is_not_continued(
    listener: socket.socket, addr: str, interrupt: Callable[[], None], *, oneway: bool
) -> None:
    def serve() -> None:
        former, _ = listener.accept()
        with former:
            former.recv(1, socket.MSG_PEEK)  # waits until the client sends
            interrupt()
            later, _ = listener.accept()
        with later:
            command = Reader(later).next()
            later.sendall(command.reply(body=command.body).encode())
            later.recv(1)  # waits until the client closes the connection

    with BlockingClient() as client:
        served = in_thread(serve)
        send = client.invoke_oneway if oneway else client.invoke
        with pytest.raises(KeyboardInterrupt):
            send(addr, request(LARGE, oneway=oneway), timeout_s=30)
        assert client.invoke(addr, request(b"later"), timeout_s=20).body == b"later"
    served.result(20)


def test_a_frame_that_was_too_slow_is_not_continued_by_a_caller_that_waits_to_send(
    listener: socket.socket, addr: str
) -> None:
    with BlockingClient() as client:
        slow = in_thread(lambda: client.invoke(addr, request(LARGE), timeout_s=0.2))
        connection, _ = listener.accept()
        with connection:
            connection.recv(1, socket.MSG_PEEK)  # waits until the client sends
            with pytest.raises(ConnectionLost) as lost:
                client.invoke(addr, request(b"later"), timeout_s=20)
            assert not lost.value.sent, "no byte of the second request was sent"
            failure = slow.exception(20)
            assert isinstance(failure, ConnectionLost)
            assert failure.sent


def test_an_answer_is_read_although_the_thread_that_read_for_all_was_interrupted(
    listener: socket.socket, addr: str, interrupt: Callable[[], None]
) -> None:
    own = threading.get_ident()
    other: Future[RemotingCommand] = Future()

    def ask() -> None:
        try:
            other.set_result(client.invoke(addr, request(b"other"), timeout_s=20))
        except RemotingError as error:
            other.set_exception(error)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            reader = Reader(connection)
            assert reader.next().body == b"first"
            wait_until_inside(own, "_receive")
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            command = reader.next()
            assert asking.ident is not None
            wait_until_inside(asking.ident, "wait")
            interrupt()
            connection.sendall(command.reply(body=command.body).encode())
            connection.recv(1)  # waits until the client closes the connection

    with BlockingClient() as client:
        served = in_thread(serve)
        with pytest.raises(KeyboardInterrupt):
            client.invoke(addr, request(b"first"), timeout_s=20)
        assert other.result(20).body == b"other"
    served.result(20)
