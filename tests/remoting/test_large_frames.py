"""Large frames of many connections at once: read in turns, and nobody is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.server import Connection, RemotingServer, ServerLimits

MIB = 1024 * 1024
CONDITION_S = 30.0
LENGTH = struct.Struct(">I")


def frame(opaque: int, size: int) -> bytes:
    return RemotingCommand.request(1, body=bytes(size)).with_opaque(opaque).encode()


def length(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.reply(remark=str(len(command.body)))


@contextlib.asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[tuple[RemotingServer, str]]:
    async with asyncio.TaskGroup() as group:
        server = RemotingServer(handlers={1: length}, group=group, limits=ServerLimits(**limits))
        addr = await server.start("127.0.0.1", 0)
        try:
            yield server, addr
        finally:
            await server.close(drain_s=0.5)


class Peer:
    """A connection from a host of its choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def dial(cls, addr: str, *, host: str = "127.0.0.1") -> AsyncIterator[Peer]:
        dialled = socket.create_connection(split_address(addr), source_address=(host, 0))
        reader, writer = await asyncio.open_connection(sock=dialled)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> RemotingCommand:
        async with asyncio.timeout(CONDITION_S):
            size = await self._reader.readexactly(LENGTH.size)
            (found,) = FrameDecoder().feed(size + await self._reader.readexactly(*LENGTH.unpack(size)))
            return decode_command(found)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(CONDITION_S):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.001)


Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a body on both loops."""

    def on_loop(body: Callable[[], Awaitable[None]]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body())  # type: ignore[arg-type]  # it is a coroutine

    return on_loop


@pytest.mark.xfail(strict=True, reason="above the bound the largest are cut off")
def test_brokers_that_send_more_than_may_be_held_are_all_answered(run: Run) -> None:
    async def main() -> None:
        async with serving(received_max=8 * MIB) as (server, addr), contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(Peer.dial(addr)) for _ in range(24)]
            for number, peer in enumerate(peers):
                peer.send(frame(number, MIB)[:-1])
            await until(lambda: server.received.total > 4 * MIB)
            for peer in peers:
                peer.send(bytes(1))
            for number, peer in enumerate(peers):
                answer = await peer.answer()
                assert (answer.opaque, answer.remark) == (number, str(MIB))
            assert server.stats.connections_shed == 0
            assert server.received.total == 0

    run(main)
