"""A network between members: every link passes a process's own TCP proxy, and each direction can be cut.

A member is dialled by the name in ``--peers``; the proxy listens there and passes on to the member's
``--raft-listen``. The first frame says who dials, so that links are known by pair and direction. What is sent
into a cut waits, as TCP repeats it, and arrives late when the cut ends, unless the link is reset.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from tests.ports import free_addresses

from .cluster import Cluster, make_members, running, split

Direction = tuple[str, str]


@dataclass
class Recording:
    """What passed over one link: (from dialler, bytes), in order."""

    dialler: str
    acceptor: str
    parts: list[tuple[bool, bytes]] = field(default_factory=list)

    @property
    def pair(self) -> Direction:
        return self.dialler, self.acceptor

    def sent_by(self, *, dialler: bool) -> bytes:
        return b"".join(data for from_dialler, data in self.parts if from_dialler == dialler)


class _Link:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.writers: list[asyncio.StreamWriter] = []

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Network:
    """Links between members; runs in a thread of its own.

    Args:
        members: Identity to the address that the member binds.
        record: Keep what passes.

    Attributes:
        recordings: What passed, by link, if it was to be kept.
    """

    def __init__(self, members: dict[str, str], *, record: bool = False) -> None:
        self.recordings: list[Recording] = []
        self.listens = members
        self._record = record
        self._open: dict[Direction, asyncio.Event] = {}
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._call(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Callable[[], object]) -> float:
        """Run something in the proxy's thread; return when it was done."""

        async def run() -> float:
            result = work()
            if asyncio.iscoroutine(result):
                await result
            return time.monotonic()

        done: Future[float] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        return done.result(30.0)

    async def _start(self) -> None:
        for one in self.listens:
            for other in self.listens:
                if one != other:
                    self._open[one, other] = asyncio.Event()
                    self._open[one, other].set()
        for name in self.listens:
            host, port = split(name)
            server = await asyncio.start_server(self._acceptor_for(name), host, port)
            self._servers.append(server)

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            link.reset()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- faults

    def cut(self, directions: Collection[Direction]) -> float:
        """Let nothing through from the first to the second of each; return the instant since when."""

        def shut() -> None:
            for direction in directions:
                self._open[direction].clear()

        return self._call(shut)

    def cut_between(self, some: Collection[str], others: Collection[str]) -> float:
        """Cut both directions of each link between two groups."""
        pairs = [(a, b) for a in some for b in others if a != b]
        return self.cut([*pairs, *((b, a) for a, b in pairs)])

    def heal(self, *, reset: bool) -> float:
        """End all cuts. What waited arrives now, or is lost with its connection."""

        def open_all() -> None:
            cut = {direction for direction, gate in self._open.items() if not gate.is_set()}
            if reset:
                for link in self._links:
                    pair = (link.recording.dialler, link.recording.acceptor)
                    if pair in cut or pair[::-1] in cut:
                        link.reset()
            for gate in self._open.values():
                gate.set()

        return self._call(open_all)

    def inject(self, data: bytes) -> int:
        """Put bytes into each link, towards the acceptor, as somebody on the way could; return how many."""
        count = 0

        def write() -> None:
            nonlocal count
            for link in list(self._links):
                if len(link.writers) == 2:
                    link.writers[1].write(data)
                    count += 1

        self._call(write)
        return count

    # -- links

    def _acceptor_for(self, acceptor: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(acceptor, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accepted

    async def _serve(self, acceptor: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link: _Link | None = None
        try:
            size = await reader.readexactly(4)
            hello = await reader.readexactly(struct.unpack(">I", size)[0])
            dialler = str(msgspec.msgpack.decode(hello)[1])
            link = _Link(Recording(dialler, acceptor))
            link.writers.append(writer)
            self._links.add(link)
            if not await self._both_ways(dialler, acceptor, reader):
                return
            onward_reader, onward_writer = await asyncio.open_connection(*split(self.listens[acceptor]))
            link.writers.append(onward_writer)
            if self._record:
                self.recordings.append(link.recording)
                link.recording.parts.append((True, size + hello))
            onward_writer.write(size + hello)
            passing = [
                self._loop.create_task(self._pass(link, True, reader, onward_writer)),
                self._loop.create_task(self._pass(link, False, onward_reader, writer)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in passing:
                    task.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one end went: so does the other
        finally:
            if link is not None:
                link.reset()
                self._links.discard(link)
            writer.transport.abort()

    async def _both_ways(self, dialler: str, acceptor: str, reader: asyncio.StreamReader) -> bool:
        """Nobody connects through a cut: wait for its end; False if the dialler gives up before."""
        gates = (self._open[dialler, acceptor], self._open[acceptor, dialler])
        while shut := [gate for gate in gates if not gate.is_set()]:
            # The dialler has nothing to say before the challenge: what can be read is its end.
            gone = self._loop.create_task(reader.read(1))
            opened = self._loop.create_task(shut[0].wait())
            try:
                await asyncio.wait([gone, opened], return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return False
            finally:
                gone.cancel()
                opened.cancel()
                await asyncio.gather(gone, opened, return_exceptions=True)
        return True

    async def _pass(
        self, link: _Link, from_dialler: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        ends = (link.recording.dialler, link.recording.acceptor)
        gate = self._open[ends if from_dialler else ends[::-1]]
        while data := await reader.read(256 * 1024):
            while not gate.is_set():
                await gate.wait()
            if self._record:
                link.recording.parts.append((from_dialler, data))
            writer.write(data)
            await writer.drain()
        while not gate.is_set():  # the end of a stream does not pass a cut either
            await gate.wait()


@contextmanager
def running_behind_proxy(
    root: Path, *, size: int = 3, arguments: tuple[str, ...] = (), record: bool = False
) -> Iterator[tuple[Cluster, Network]]:
    """Start members whose links all pass a proxy; kill them in the end."""
    members = make_members(root, size=size, arguments=arguments)
    names = {m.raft: address for m, address in zip(members, free_addresses(size), strict=True)}
    for member in members:
        member.arguments += ("--raft-listen", names[member.raft])
    with Network(names, record=record) as network, running(members) as cluster:
        yield cluster, network
