"""Even if threads hang in a send, the client can be closed and the program can end."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import ClientError, NotApplied, OutcomeUnknown
from routekeeper.client.producer import Message, SendResult
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand

MESSAGE = Message(topic="T", body=b"x")
ONE_TRY = ProducerConfig(group="g", retry_times=0, send_timeout_s=30.0)


class Hangs:
    """A request hook that blocks its thread, as a user's hook or the system's name resolver may do."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.held = threading.Semaphore(0)

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            self.held.release()
            self.let_go.wait(60)


@pytest.fixture
def addr(peer: Any) -> str:
    found: str = peer.addr
    return found


@pytest.mark.slow
def test_close_ends_although_sends_in_threads_hang(addr: str) -> None:
    hook = Hangs()
    config = ClientConfig(nameservers=(addr,), shutdown_s=0.2)
    client = routekeeper.client.blocking.Client(config, hooks=(hook,), send_threads=2)
    closed: Future[None] = Future()

    def close() -> None:
        client.close()
        closed.set_result(None)

    try:
        producer = client.producer(ONE_TRY)
        futures: list[Future[SendResult]] = [producer.send_async(MESSAGE) for _ in range(3)]
        assert hook.held.acquire(timeout=20)
        assert hook.held.acquire(timeout=20)
        threading.Thread(target=close, daemon=True).start()
        closed.result(timeout=20)
        errors = [future.exception(timeout=0) for future in futures]
        assert [isinstance(error, OutcomeUnknown) for error in errors] == [True, True, False]
        assert isinstance(errors[2], NotApplied), "it was never sent"
    finally:
        hook.let_go.set()


PROGRAM = """
import threading
from routekeeper import Client, ClientConfig, Message
from routekeeper.remoting.codes import RequestCode

held = threading.Event()

class Hangs:
    def before_request(self, remote, request):
        return request

    def after_response(self, remote, request, response):
        if request.code == RequestCode.SEND_MESSAGE_V2:
            held.set()
            threading.Event().wait()

with Client(config=ClientConfig(nameservers=({addr!r},), shutdown_s=0.2), hooks=(Hangs(),)) as client:
    future = client.producer("g").send_async(Message(topic="T", body=b"x"))
    held.wait(20)
print(type(future.exception(timeout=0)).__name__)
"""


@pytest.mark.slow
def test_a_program_ends_although_a_send_in_a_thread_hangs(addr: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(addr=addr)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "OutcomeUnknown\n"), done.stderr


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_send_for_which_no_thread_can_be_started_fails_and_later_sends_succeed(
    addr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(addr,))) as client:
        producer = client.producer(ONE_TRY)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            with pytest.raises(ClientError, match="no thread can be started"):
                producer.send_async(MESSAGE)
        assert producer.send_async(MESSAGE).result(timeout=20)


def test_a_send_is_made_by_the_present_thread_if_no_other_can_be_started(
    addr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Hangs()
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(addr,)), hooks=(hook,)) as client:
        producer = client.producer(ONE_TRY)
        first = producer.send_async(MESSAGE)
        assert hook.held.acquire(timeout=20)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            second = producer.send_async(MESSAGE)
        hook.let_go.set()
        assert len({sent.result(timeout=20).message_id for sent in (first, second)}) == 2


def test_more_sends_than_threads_all_end(addr: str) -> None:
    config = ClientConfig(nameservers=(addr,))
    with routekeeper.client.blocking.Client(config, send_threads=3) as client:
        producer = client.producer(ONE_TRY)
        before = threading.active_count()
        futures = [producer.send_async(MESSAGE) for _ in range(50)]
        assert threading.active_count() - before <= 3
        assert len({future.result(timeout=20).message_id for future in futures}) == 50
