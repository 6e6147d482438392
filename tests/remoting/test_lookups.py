"""A resolver that does not answer holds up no request, no loop, no client's end and no program's end."""

from __future__ import annotations

import asyncio
import functools
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

REQUEST = RemotingCommand.request(105)
#: How long the resolver is silent. Real ones are for longer.
SILENT_S = 4.0
#: Longest time that a test may take.
SOON_S = 2.0

_resolve = socket.getaddrinfo


def silent(wait: Callable[[float], object], host: Any, *asked: Any, **more: Any) -> Any:
    """Stand for ``socket.getaddrinfo`` where no name server answers about names below ``.example``."""
    if str(host).endswith(".example") and not more.get("flags"):
        wait(SILENT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return _resolve(host, *asked, **more)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Silence the resolver for the length of a test; say when it is asked for a name."""
    asked, over = threading.Event(), threading.Event()

    def wait(timeout_s: float) -> None:
        asked.set()
        over.wait(timeout_s)

    monkeypatch.setattr(socket, "getaddrinfo", functools.partial(silent, wait))
    yield asked
    over.set()


pytestmark = [
    pytest.mark.usefixtures("asked"),
    pytest.mark.xfail(strict=True, reason="getaddrinfo has no deadline"),
]


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
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout) == (0, "lost\n"), done.stderr
