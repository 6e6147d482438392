"""The proxy that the links of a run pass, so that each direction can be cut: ``python -m
routekeeper.bench.proxy``.

Reads :class:`routekeeper.bench.links.Command` lines from stdin and answers on stdout. What is sent into a cut
waits, as TCP repeats it, and arrives late when the cut ends; the end of a connection does not pass either.
Where nobody listens behind a link, nobody listens before it: a dialler is refused, as it would be without the
proxy (on Linux, which tells who listens). Who dials into a cut and gives up before its end was never there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.links import Command, Count, Direction, Done, Link
from routekeeper.remoting.transport.accepting import stop_accepting

_CHUNK: Final = 64 * 1024
#: Interval at which listeners are looked for, s.
_LOOK_S: Final = 0.02
#: 127.0.0.1 as the kernel holds it; Java binds it as an IPv6 address.
_LOOPBACK: Final = {
    socket.AF_INET: bytes([127, 0, 0, 1]),
    socket.AF_INET6: bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]),
}
#: Source: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_TCP_LISTEN: Final = 10
_DONE: Final = 3
_ERROR: Final = 2
_ANSWER_MAX: Final = 256 * 1024
_HELLO_MAX: Final = 64 * 1024


class Gate:
    """Lets one direction through, or not."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.bytes = 0

    async def passable(self) -> None:
        """Wait until it is open, and still so when it is this waiter's turn."""
        while not self.open.is_set():
            await self.open.wait()


class Passage:
    """One connection through the proxy, from a dialler to an acceptor."""

    def __init__(self, dialler: str, acceptor: str, back: asyncio.StreamWriter) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        self.back = back
        """Leads to the dialler."""
        self.onward: asyncio.StreamWriter | None = None
        """Leads to the acceptor, once it is reached."""

    def reset(self) -> None:
        """End it on both sides; what is under way is lost."""
        for end in (self.back, self.onward):
            if end is not None:
                end.transport.abort()


Witness = Callable[[Passage, bool, bytes], None]
"""Called with everything that passes: where, whether towards the acceptor, and what."""


class Proxy:
    """All links of a run.

    Attributes:
        passages: The connections that there are now.
    """

    def __init__(self, links: list[Link], *, witness: Witness | None = None) -> None:
        self.passages: set[Passage] = set()
        self._links = links
        self._witness = witness
        self._gates: dict[Direction, Gate] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._doubt = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialled: dict[Direction, None] = {}

    async def start(self) -> None:
        await self._follow()
        self._keep(self.watch())

    async def stop(self) -> None:
        """End every connection, and listen no more."""
        for task in self._tasks:
            task.cancel()
        for server in self._servers.values():
            await stop_accepting(server)
        for passage in self.passages:
            passage.reset()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def do(self, command: Command) -> Done:
        """Carry out one command."""
        if command.do == "cut":
            self.cut(command.directions)
        elif command.do == "heal":
            self.heal()
        now_ns = time.monotonic_ns()
        if command.do != "count":
            return Done(t_ns=now_ns)
        counts = [
            Count(
                dialler=dialler,
                acceptor=acceptor,
                forward=self._gate((dialler, acceptor)).bytes,
                back=self._gate((acceptor, dialler)).bytes,
            )
            for dialler, acceptor in self._dialled
        ]
        return Done(t_ns=now_ns, counts=counts)

    def cut(self, directions: Iterable[Direction]) -> None:
        """Let nothing through from the first to the second of each."""
        for direction in directions:
            self._gate(direction).open.clear()

    def heal(self, *, reset: bool = False) -> None:
        """End all cuts. What waited arrives now, or is lost with its connection."""
        if reset:
            for passage in self.passages:
                ends = passage.dialler, passage.acceptor
                if not all(self._gate(direction).open.is_set() for direction in (ends, ends[::-1])):
                    passage.reset()
        for gate in self._gates.values():
            gate.open.set()

    def _gate(self, direction: Direction) -> Gate:
        return self._gates.setdefault(direction, Gate())

    async def _listen(self, link: Link) -> None:
        host, _, port = link.listen.rpartition(":")
        self._servers[link.listen] = await asyncio.start_server(self._acceptor(link), host, int(port))

    def _acceptor(self, link: Link) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._keep(self._serve(link, reader, writer))

        return accepted

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage: Passage | None = None
        try:
            dialler, begun = link.dialler, b""
            if dialler is None:
                dialler, begun = await _hello(link, reader)
            passage = Passage(dialler, link.acceptor, writer)
            self.passages.add(passage)
            self._dialled[dialler, link.acceptor] = None
            forth, back = self._gate((dialler, link.acceptor)), self._gate((link.acceptor, dialler))
            said = await _said_until_open((forth, back), reader)
            if said is None:
                return
            host, _, port = link.to.rpartition(":")
            back_reader, passage.onward = await asyncio.open_connection(host, int(port))
            self._passed(passage, forth, begun + said)
            forward = asyncio.ensure_future(self._pass(passage, forth, reader))
            backward = asyncio.ensure_future(self._pass(passage, back, back_reader))
            _, pending = await asyncio.wait({forward, backward}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(forward, backward, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass  # one end went, or never said who it was: so does the other
        finally:
            self._doubt.set()  # perhaps the acceptor is gone
            if passage is not None:
                self.passages.discard(passage)
            for end in (writer, passage.onward if passage is not None else None):
                if end is not None:
                    # what was written goes out before the end of the stream does
                    end.close()

    async def _pass(self, passage: Passage, gate: Gate, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_CHUNK):
            await gate.passable()
            await self._passed(passage, gate, data).drain()
        await gate.passable()  # the end of a stream does not pass a cut either

    def _passed(self, passage: Passage, gate: Gate, data: bytes) -> asyncio.StreamWriter:
        """Hand over what came through a gate; return the writer that took it."""
        forward = gate is self._gate((passage.dialler, passage.acceptor))
        writer = passage.onward if forward else passage.back
        assert writer is not None
        gate.bytes += len(data)
        writer.write(data)
        if self._witness is not None:
            self._witness(passage, forward, data)
        return writer

    async def watch(self) -> None:
        """Listen for each link as long as somebody listens behind it."""
        while True:
            await self._follow()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), _LOOK_S)
            self._doubt.clear()

    async def _follow(self) -> None:
        listening = listening_here()
        for link in self._links:
            port = int(link.to.rpartition(":")[2])
            wanted = listening is None or port in listening
            server = self._servers.get(link.listen)
            if wanted and server is None:
                await self._listen(link)
            elif server is not None and not wanted:
                del self._servers[link.listen]
                await stop_accepting(server)


def listening_here() -> set[int] | None:
    """Return the ports of 127.0.0.1 on which somebody listens; None where the system does not tell.

    The kernel is asked (inet_diag, sock_diag(7)), not the ports: a server would count a connection that says
    nothing.
    """
    found: set[int] = set()
    try:
        for family, host in _LOOPBACK.items():
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
                body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << _TCP_LISTEN) + bytes(48)
                size = 16 + len(body)
                kernel.send(struct.pack("=IHHII", size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
                while _take_listening(kernel.recv(_ANSWER_MAX), host, found):
                    pass
    except (AttributeError, OSError):
        return None
    return found


def _take_listening(answer: bytes, host: bytes, found: set[int]) -> bool:
    """Add the ports that one part of the kernel's answer names; return whether more parts follow."""
    at = 0
    while at < len(answer):
        size, kind = struct.unpack_from("=IH", answer, at)
        if kind == _DONE:
            return False
        if kind == _ERROR:
            raise OSError("the kernel does not tell who listens")
        if answer[at + 24 : at + 24 + len(host)] == host:
            found.add(struct.unpack_from(">H", answer, at + 20)[0])
        at += (size + 3) & ~3
    return True


async def _hello(link: Link, reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read the frame in which a raft member says who it is; return its name and what was read."""
    size = await reader.readexactly(4)
    length = struct.unpack(">I", size)[0]
    if length > _HELLO_MAX:
        raise ValueError(f"first frame of {length} bytes, allowed are {_HELLO_MAX}")
    frame = await reader.readexactly(length)
    identity = str(msgspec.msgpack.decode(frame)[1])
    return link.names[identity], size + frame


async def _said_until_open(gates: Sequence[Gate], reader: asyncio.StreamReader) -> bytes | None:
    """Nobody connects through a cut: wait for its end.

    Returns:
        What the dialler said meanwhile; None if it gave up, which nobody behind a cut hears of.
    """
    said = b""
    while shut := [gate for gate in gates if not gate.open.is_set()]:
        opened = asyncio.ensure_future(shut[0].open.wait())
        heard = asyncio.ensure_future(reader.read(_CHUNK)) if len(said) < _CHUNK else None
        waiting = [task for task in (opened, heard) if task is not None]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if heard is not None and heard.done():
                if not (data := heard.result()):
                    return None
                said += data
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    return said


async def serve(links: list[Link]) -> None:
    """Serve until stdin ends."""
    proxy = Proxy(links)
    await proxy.start()
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("proxy ready", flush=True)
    while line := await commands.readline():
        done = proxy.do(msgspec.json.decode(line, type=Command))
        print(msgspec.json.encode(done).decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m routekeeper.bench.proxy", description=__doc__)
    parser.add_argument("links", type=Path, help="JSON file: list of links")
    links = msgspec.json.decode(parser.parse_args().links.read_bytes(), type=list[Link])
    runner = asyncio.run
    with contextlib.suppress(ImportError):
        import uvloop

        runner = uvloop.run
    with contextlib.suppress(KeyboardInterrupt):
        runner(serve(links))


if __name__ == "__main__":
    main()
