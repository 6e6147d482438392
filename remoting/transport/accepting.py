"""The end of a listening socket."""

from __future__ import annotations

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a server's listening sockets once all accepted connections have reached their protocols.

    asyncio accepts a connection in one turn of the loop, makes its transport in the next one, and calls its
    protocol in a third. If the server closes between the first two, the third fails. The socket then stays
    open, and its peer waits, until the garbage collector finds it.

    Source: BaseSelectorEventLoop._accept_connection2 and Server._attach of Python 3.11.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.close()
