"""A server that acts like a slow replica, because it repeats another nameserver's earlier answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder

#: Seconds between two queries to the nameserver whose answers are repeated. A repeated answer may be older
#: than planned by up to this time.
EVERY_S: Final = 0.002


class StaleServer:
    """A server that repeats another nameserver's answers about one topic from ``behind_s`` s ago."""

    def __init__(self, addr: str, upstream: str, topic: str, behind_s: float) -> None:
        self._addr = addr
        self._upstream = upstream
        self._topic = topic
        self._behind_s = behind_s
        self._known: deque[tuple[float, RemotingCommand]] = deque()

    async def serve(self, stopped: asyncio.Event) -> None:
        host, _, port = self._addr.rpartition(":")
        learning = asyncio.create_task(self._learn())
        async with await asyncio.start_server(self._answer, host, int(port)):
            await stopped.wait()
        learning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await learning

    async def _learn(self) -> None:
        host, _, port = self._upstream.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        frames = FrameDecoder()
        query = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self._topic})
        try:
            while True:
                asked = time.monotonic()
                writer.write(query.with_opaque(1).encode())
                answers: list[RemotingCommand] = []
                while not answers:
                    data = await reader.read(65_536)
                    assert data, "the nameserver went"
                    answers = [decode_command(frame) for frame in frames.feed(data)]
                self._known.append((asked, answers[0]))
                while len(self._known) > 1 and self._known[1][0] <= asked - self._behind_s:
                    self._known.popleft()
                await asyncio.sleep(EVERY_S)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameDecoder()
        while data := await reader.read(65_536):
            for frame in frames.feed(data):
                asked = decode_command(frame)
                old = [known for at, known in self._known if at <= time.monotonic() - self._behind_s]
                writer.write((old or [self._known[0][1]])[-1].with_opaque(asked.opaque).encode())
        writer.close()


@contextlib.contextmanager
def stale_server(addr: str, upstream: str, *, topic: str, behind_s: float) -> Iterator[None]:
    """Run a :class:`StaleServer` at ``addr`` until the ``with`` block ends.

    Args:
        upstream: Address of the nameserver whose answers are repeated.
        topic: The only topic that is served.
        behind_s: Age of the answers in s.
    """
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    server = StaleServer(addr, upstream, topic, behind_s)
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve(stopped)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()
