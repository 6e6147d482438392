"""Tests of a connection that arrives while its server closes: the server must close this connection, too."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import uvloop
from aiohttp import web

from routekeeper.remoting.http.listener import HttpConnections
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.server import RemotingServer

#: Numbers of event loop iterations between the arrival of a connection and the close of the server.
TURNS = range(5)
Serving = Callable[[], AbstractAsyncContextManager[str]]


@contextlib.asynccontextmanager
async def remoting() -> AsyncIterator[str]:
    async with asyncio.TaskGroup() as group:
        server = RemotingServer(handlers={}, group=group)
        yield await server.start("127.0.0.1", 0)
        await server.close(drain_s=0)


@contextlib.asynccontextmanager
async def http() -> AsyncIterator[str]:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    connections = HttpConnections(runner, logging.getLogger())
    host, port = await connections.listen("127.0.0.1", 0)
    yield f"{host}:{port}"
    await connections.close()
    assert runner.server is not None
    await runner.server.shutdown(1.0)
    await runner.cleanup()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("serving", [remoting, http])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_no_connection_outlives_the_close_of_its_server(run: Callable[[Any], Any], serving: Serving) -> None:
    async def main(turns: int) -> socket.socket:
        async with serving() as addr:
            peer = socket.create_connection(split_address(addr), timeout=10)
            for _ in range(turns):
                await asyncio.sleep(0)
        return peer

    gc.disable()  # the garbage collector would close forgotten connections and hide the defect
    try:
        for turns in TURNS:
            with run(main(turns)) as peer:
                peer.settimeout(2)
                try:
                    assert peer.recv(1) == b"", turns
                except ConnectionResetError:
                    pass  # the server closed its listener before it accepted the connection
    finally:
        gc.enable()
        gc.collect()
