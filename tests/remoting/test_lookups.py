"""Tests of look-ups without an answer: they must not delay other requests, the loop, a close or an exit."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.transport.aio import RemotingClient
from routekeeper.remoting.transport.blocking import BlockingClient
from routekeeper.remoting.transport.lookups import LOOKUPS_MAX

REQUEST = RemotingCommand.request(105)
#: Seconds for which the resolver does not answer. Real resolvers can take longer.
SILENT_S = 30.0
#: Longest time in seconds that a test may take.
SOON_S = 15.0

_resolve = socket.getaddrinfo


def silent(wait: Callable[[float], object], host: Any, *asked: Any, **more: Any) -> Any:
    """Replace ``socket.getaddrinfo``: look-ups of names that end in ``.example`` get no answer."""
    if str(host).endswith(".example") and not more.get("flags"):
        wait(SILENT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return _resolve(host, *asked, **more)


def lookups() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("look up ")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Replace the resolver during a test; yield an event that is set at the first look-up."""
    asked, over = threading.Event(), threading.Event()

    def wait(timeout_s: float) -> None:
        asked.set()
        over.wait(timeout_s)

    monkeypatch.setattr(socket, "getaddrinfo", functools.partial(silent, wait))
    yield asked
    over.set()
    for thread in lookups():
        thread.join(SOON_S)


pytestmark = pytest.mark.usefixtures("asked")


def test_blocking_request_fails_at_its_deadline() -> None:
    client, began = BlockingClient(), time.monotonic()
    with pytest.raises(ConnectionLost, match=r"namesrv\.example") as lost:
        client.invoke("namesrv.example:9876", REQUEST, timeout_s=0.1)
    assert not lost.value.sent
    client.close()
    assert time.monotonic() - began < SOON_S


def test_names_that_are_looked_up_take_no_thread_from_other_work_of_the_loop() -> None:
    async def ask() -> None:
        async with RemotingClient(connect_timeout_s=0.1) as client:
            requests = [client.invoke(f"namesrv-{i}.example:9876", REQUEST) for i in range(40)]
            results = await asyncio.gather(*requests, return_exceptions=True)
            assert {type(result) for result in results} == {ConnectionLost}
            await asyncio.to_thread(lambda: None)

    began = time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - began < SOON_S


def test_client_and_loop_end_while_a_name_is_looked_up(asked: threading.Event) -> None:
    async def close() -> None:
        client = RemotingClient()
        request = asyncio.ensure_future(client.invoke("namesrv.example:9876", REQUEST))
        await asyncio.to_thread(asked.wait, SOON_S)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await request

    began = time.monotonic()
    asyncio.run(close())
    assert time.monotonic() - began < SOON_S


PROGRAM = """
import socket, time
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.transport.blocking import BlockingClient

def silent(host, *asked, flags=0, **more):
    if flags:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    time.sleep(60)

socket.getaddrinfo = silent
try:
    BlockingClient().invoke("namesrv.example:9876", RemotingCommand.request(105), timeout_s=0.1)
except ConnectionLost:
    print("lost")
"""


def test_program_ends_while_a_name_is_looked_up() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout) == (0, "lost\n"), done.stderr


def test_callers_share_the_lookup_of_a_name_and_names_are_bounded() -> None:
    async def ask(addrs: list[str]) -> list[str]:
        async with RemotingClient(connect_timeout_s=0.1) as client:
            requests = [client.invoke(addr, REQUEST) for addr in addrs]
            return [str(result) for result in await asyncio.gather(*requests, return_exceptions=True)]

    asyncio.run(ask([f"same.example:{port}" for port in range(1, 100)]))
    assert [thread.name for thread in lookups()] == ["look up same.example"]
    answers = asyncio.run(ask([f"namesrv-{i}.example:9876" for i in range(LOOKUPS_MAX + 9)]))
    assert len(lookups()) == LOOKUPS_MAX
    limit = f"{LOOKUPS_MAX} names of hosts are being looked up already"
    assert sum(limit in answer for answer in answers) == 10


def test_child_process_does_not_wait_for_lookups_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = BlockingClient()
    with pytest.raises(ConnectionLost, match="within the deadline"):
        client.invoke("namesrv.example:9876", REQUEST, timeout_s=0.05)
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(socket, "getaddrinfo", functools.partial(silent, lambda _: None))
            client.invoke("namesrv.example:9876", REQUEST, timeout_s=15.0)
        except ConnectionLost as lost:
            os._exit(0 if "Temporary failure" in str(lost) else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def blocking(addr: str, oneway: RemotingCommand) -> None:
    client = BlockingClient()
    client.invoke_oneway(addr, oneway)
    client.close()


def aio(addr: str, oneway: RemotingCommand) -> None:
    async def ask() -> None:
        async with RemotingClient() as client:
            await client.invoke_oneway(addr, oneway)

    asyncio.run(ask())


@pytest.mark.parametrize("send", [blocking, aio])
def test_next_address_of_a_host_is_tried_when_one_refuses(
    send: Callable[[str, RemotingCommand], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(host: Any, *asked: Any, **more: Any) -> Any:
        if host != "two":
            return _resolve(host, *asked, **more)
        if more.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", 0)) for last in (9, 1)]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON_S)
        send(f"two:{server.getsockname()[1]}", RemotingCommand.request(105, oneway=True))
        peer, _ = server.accept()
        with peer:
            peer.settimeout(SOON_S)
            assert peer.recv(4)
