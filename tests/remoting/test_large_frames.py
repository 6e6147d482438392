"""Tests of many large frames at once: the server reads a few at a time, and closes no connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.server import Connection, RemotingServer, ServerLimits
from tests.remoting import servers
from tests.waiting import until

MIB = 1024 * 1024
CONDITION_S = 30.0
BOUNDS = {"received_max": 10 * MIB, "large_frames_max": 3 * MIB, "large_frame_s": 0.02}
LENGTH = struct.Struct(">I")


def frame(opaque: int, size: int) -> bytes:
    return RemotingCommand.request(1, body=bytes(size)).with_opaque(opaque).encode()


def length(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.reply(remark=str(len(command.body)))


def serving(**limits: Any) -> contextlib.AbstractAsyncContextManager[tuple[RemotingServer, str]]:
    return servers.serving({1: length}, limits=ServerLimits(**limits))


class Peer:
    """A connection to the server from a host that the test chooses."""

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


@pytest.mark.usefixtures("run")
async def test_brokers_that_send_more_than_may_be_held_are_all_answered() -> None:
    async with serving(**BOUNDS) as (server, addr), contextlib.AsyncExitStack() as stack:
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


@pytest.mark.usefixtures("run")
async def test_strangers_that_never_finish_their_frames_hold_up_no_broker_for_long() -> None:
    """A host must not lock out brokers with large frames that it never finishes.

    Its unfinished frames use up the limit for large frames, and then it sends nothing.
    """
    async with serving(**BOUNDS) as (server, addr), contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            stranger = await stack.enter_async_context(Peer.dial(addr, host="127.0.0.2"))
            stranger.send(LENGTH.pack(3 * MIB) + bytes(100_000))
        await until(lambda: server.received.total == 8 * 100_004)
        for number in range(4):
            broker = await stack.enter_async_context(Peer.dial(addr))
            broker.send(frame(number, MIB))
            assert (await broker.answer()).remark == str(MIB)
        assert server.stats.connections_shed == 0


@pytest.mark.usefixtures("run")
async def test_connection_that_waits_for_its_turn_to_be_read_is_not_idle() -> None:
    limits = {"large_frames_max": MIB, "large_frame_s": 60.0, "idle_s": 1.0}
    async with serving(**limits) as (server, addr), Peer.dial(addr) as broker:
        async with Peer.dial(addr, host="127.0.0.2") as stranger:
            stranger.send(LENGTH.pack(3 * MIB) + bytes(100_000))
            await until(lambda: server.received.total == 100_004)
            broker.send(frame(5, MIB))
            await until(lambda: server.received.total > 100_004)
            async with Peer.dial(addr):
                await until(lambda: len(server.connections) == 3)
                # The third connection is idle, so the server closes it. Meanwhile the stranger sends
                # single bytes, so its connection is not idle.
                while len(server.connections) == 3:
                    stranger.send(bytes(1))
                    await asyncio.sleep(0.005)
        assert (await broker.answer()).remark == str(MIB)
