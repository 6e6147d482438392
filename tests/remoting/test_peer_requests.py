"""Tests of the limits on requests that a peer sends over a connection which our client opened.

The peer may be hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.aio import RemotingClient
from tests.remoting.loops import Run
from tests.waiting import WITHIN_S, until

MIB = 1024 * 1024
NOTICE = 40
#: A request of ten bytes with an unknown code; its sender expects an answer.
SMALLEST = b"\x00\x00\x00\x06\x00\x00\x00\x02{}"


class Peer:
    """Accepting side of one connection; it reads only when the test calls :meth:`read`."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.sent = 0
        self.answers: list[RemotingCommand] = []
        self._decoder = FrameDecoder()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)
        self.sent += len(data)

    async def read(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20)
        assert data, "closed"
        self.answers += map(decode_command, self._decoder.feed(data))


@contextlib.asynccontextmanager
async def dialled(client: RemotingClient) -> AsyncIterator[Peer]:
    """Yield a peer to which the client has a connection; the client has received the peer's first answer."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        # Small socket buffers, so that unread bytes soon block the sender.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        addr = f"127.0.0.1:{listener.getsockname()[1]}"
        asked = loop.create_task(client.invoke(addr, RemotingCommand.request(106), timeout_s=WITHIN_S))
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            accepted.setblocking(False)
            peer = Peer(accepted)
            while not peer.answers:
                await peer.read()
            await peer.send(peer.answers.pop().reply().encode())
            await asked
            yield peer


def notices(count: int, *, oneway: bool = False) -> bytes:
    return b"".join(
        RemotingCommand.request(NOTICE, oneway=oneway).with_opaque(opaque).encode() for opaque in range(count)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_a_peer_that_never_reads_is_read_no_more_and_counts_as_idle() -> None:
    async with RemotingClient(idle_s=1.0) as client, dialled(client) as peer:
        with contextlib.suppress(ConnectionError):
            while peer.sent < 4 * MIB:
                await peer.send(1000 * SMALLEST)
        assert peer.sent < 4 * MIB


@pytest.mark.usefixtures("run")
async def test_a_peer_that_sends_only_requests_of_unknown_codes_counts_as_idle() -> None:
    async with RemotingClient(idle_s=0.2) as client, dialled(client) as peer:
        async with asyncio.timeout(WITHIN_S):
            with contextlib.suppress(AssertionError, ConnectionError):
                while True:
                    await peer.send(SMALLEST)
                    await peer.read()


@pytest.mark.usefixtures("run")
async def test_few_requests_and_unasked_answers_are_handled_before_other_work() -> None:
    loop = asyncio.get_running_loop()
    handled = turns = most = 0

    def count(_addr: str, _request: RemotingCommand) -> None:
        nonlocal handled
        handled += 1

    def turn(before: int) -> None:
        nonlocal turns, most
        turns, most = turns + 1, max(most, handled - before)
        if not stopped.is_set():
            loop.call_soon(turn, handled)

    stopped = asyncio.Event()
    async with RemotingClient() as client, dialled(client) as peer:
        client.on_request(NOTICE, count)
        loop.call_soon(turn, 0)
        await peer.send(notices(5000, oneway=True))
        await until(lambda: handled == 5000)
        late = RemotingCommand.request(106).reply().encode()
        begun = turns
        await peer.send(5000 * late + notices(1, oneway=True))
        await until(lambda: handled == 5001)
        stopped.set()
    assert most <= 2 * 64
    assert turns - begun >= 5000 // (2 * 64)


@pytest.mark.usefixtures("run")
async def test_answers_that_a_peer_reads_late_all_arrive() -> None:
    async with RemotingClient() as client, dialled(client) as peer:
        client.on_request(NOTICE, lambda _addr, command: command.reply(body=bytes(900_000)))
        await peer.send(notices(20))
        for _ in range(100):
            await asyncio.sleep(0)
        async with asyncio.timeout(WITHIN_S):
            while len(peer.answers) < 20:
                await peer.read()
        assert [answer.opaque for answer in peer.answers] == list(range(20))


def test_answers_that_come_later_and_are_not_read_end_the_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        under_way = most = 0
        may_answer = asyncio.Event()

        async def answer(command: RemotingCommand) -> RemotingCommand:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await may_answer.wait()
            under_way -= 1
            return command.reply(body=bytes(200_000))

        async with RemotingClient() as client, dialled(client) as peer:
            client.on_request(NOTICE, lambda _addr, command: answer(command))
            await peer.send(notices(500))
            await until(lambda: under_way >= 64)
            for _ in range(100):
                await asyncio.sleep(0)
            may_answer.set()
            await until(lambda: caplog.records)
        assert most == 64

    with caplog.at_level(logging.WARNING):
        run(body)
    assert [record.getMessage().split(" peer=")[0] for record in caplog.records] == ["peer does not read"]


@pytest.mark.usefixtures("run")
async def test_requests_that_wait_are_answered_when_others_are_done() -> None:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0.001)
        return command.reply(body=b"done")

    async with RemotingClient() as client, dialled(client) as peer:
        client.on_request(NOTICE, lambda _addr, command: answer(command))
        await peer.send(notices(300))
        async with asyncio.timeout(WITHIN_S):
            while len(peer.answers) < 300:
                await peer.read()
        assert sorted(answer.opaque for answer in peer.answers) == list(range(300))


@pytest.mark.usefixtures("run")
async def test_bytes_that_are_no_frame_end_the_connection_behind_requests() -> None:
    handled = 0

    def count(_addr: str, _request: RemotingCommand) -> None:
        nonlocal handled
        handled += 1

    async with RemotingClient() as client, dialled(client) as peer:
        client.on_request(NOTICE, count)
        await peer.send(notices(200, oneway=True) + b"\xff\xff\xff\xff")
        with contextlib.suppress(AssertionError, ConnectionError):
            while True:
                await peer.read()
    assert handled == 200


@pytest.mark.usefixtures("run")
async def test_a_request_behind_many_of_the_peer_is_answered() -> None:
    async with RemotingClient() as client, dialled(client) as peer:
        addr = "{}:{}".format(*peer.socket.getsockname())
        asked = asyncio.create_task(client.invoke(addr, RemotingCommand.request(106), timeout_s=WITHIN_S))
        while not peer.answers:
            await peer.read()
        await peer.send(1000 * SMALLEST + peer.answers.pop().reply(body=b"it").encode())
        reading = asyncio.create_task(_read_on(peer))
        assert (await asked).body == b"it"
        reading.cancel()


async def _read_on(peer: Peer) -> None:
    with contextlib.suppress(AssertionError, ConnectionError, ConnectionLost):
        while True:
            await peer.read()
