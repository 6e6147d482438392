"""Safe closing of listening sockets."""

from __future__ import annotations

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a server's listening sockets after each accepted connection has its protocol object.

    asyncio needs three iterations of the event loop for a new connection. The first iteration accepts the
    connection, the second makes its transport, and the third calls its protocol. If the server closes between
    the first two iterations, the third iteration fails. The socket then stays open, and its peer waits, until
    the garbage collector finds the socket.

    Source: BaseSelectorEventLoop._accept_connection2 and Server._attach of Python 3.11.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.close()
