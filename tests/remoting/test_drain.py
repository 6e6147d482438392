"""Test that a server stops within the given time, even if both tasks and unread answers are left."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport import listener
from routekeeper.remoting.transport.listener import RemotingServer

DRAIN_S = 1.0
LARGE = bytes(8 * 1024 * 1024)  # more than both sockets can buffer


@pytest.mark.slow
def test_tasks_and_unread_answers_share_the_time_of_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FLUSH_S", 0.2)

    async def main() -> float:
        asked = asyncio.Event()

        async def hang() -> RemotingCommand | None:
            asked.set()
            await asyncio.Event().wait()
            return None

        def large(_: Any, request: RemotingCommand) -> RemotingCommand:
            return request.reply(0, body=LARGE)

        async with asyncio.TaskGroup() as group:
            server = RemotingServer(handlers={1: lambda *_: hang(), 2: large}, group=group)
            host, _, port = (await server.start("127.0.0.1", 0)).rpartition(":")
            with socket.create_connection((host, int(port))) as peer:
                peer.setblocking(False)
                for code in (1, 2):
                    peer.send(RemotingCommand.request(code).encode())
                async with asyncio.timeout(30):
                    await asked.wait()
                began = time.monotonic()
                await server.close(drain_s=DRAIN_S)
                return time.monotonic() - began

    # If the tasks and the unread answers each got the whole given time, a stop would take twice this time.
    # One good run of three is enough, because the machine may be busy.
    assert any(asyncio.run(main()) < 1.6 * DRAIN_S for _ in range(3))
