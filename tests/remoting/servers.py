"""A server in this process, and a handler that answers with the request's body."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.server import Connection, Handler, RemotingServer, ServerLimits


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler], *, limits: ServerLimits | None = None, **more: Any
) -> AsyncIterator[tuple[RemotingServer, str]]:
    """Run a server on a free port; yield it and its address."""
    async with asyncio.TaskGroup() as group:
        server = RemotingServer(handlers=handlers, group=group, limits=limits, **more)
        addr = await server.start("127.0.0.1", 0)
        try:
            yield server, addr
        finally:
            await server.close(drain_s=0.5)


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=command.body)
