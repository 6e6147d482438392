"""An echo server, which does the least work that a Python server on this event loop must do for a frame.

The server finds the end of each frame and sends the frame back. With ``--answer FILE`` it sends the content
of a file instead, such as a recorded route answer. The server does not parse headers or search routes.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

_LENGTH = struct.Struct(">I")


class Echo(asyncio.Protocol):
    """One connection to the echo server."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._rest = b""
        self._write: Callable[[bytes], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        position = count = 0
        while end - position >= 4:
            after = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if after > end:
                break
            position = after
            count += 1
        if position != end:
            self._rest = data[position:]
            data = data[:position]
        if count:
            self._write(data if self._answer is None else self._answer * count)


async def serve(answer: bytes | None) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Echo(answer), "127.0.0.1", 0)
    print(f"echo ready listen=127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answer", type=Path, help="answer each frame with this file's bytes")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.answer.read_bytes() if arguments.answer else None))


if __name__ == "__main__":
    main()
