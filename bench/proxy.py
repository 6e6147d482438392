"""The proxy that carries the links of a run: ``python -m routekeeper.bench.proxy``.

The proxy can cut or delay each direction of each link. It reads lines with
:class:`routekeeper.bench.links.Command` from stdin, and answers on stdout.

Bytes that are sent during a cut wait in the proxy, and arrive when the cut ends. On a real network these
bytes would arrive then, too, because TCP sends lost bytes again. If a process closes a connection during a
cut, the other process learns of it when the cut ends. If a connection is opened and closed during one cut, it
never reaches the target.

If the target of a link has no listener, the proxy does not listen for the link either. New connections are
then refused, as without the proxy. The proxy can do this only on Linux, where the kernel lists the listeners.
Delays are described in :mod:`routekeeper.bench.links`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from routekeeper.bench.links import Command, Direction, Done, GateState, Link, Passes
from routekeeper.remoting.transport.accepting import stop_accepting

_CHUNK: Final = 64 * 1024
#: Highest number of delayed bytes in one direction of a connection. Further bytes wait in the sending
#: process, as with TCP's window.
UNDER_WAY_MAX: Final = 1024 * 1024
#: Interval between two checks for listeners, in seconds.
_LOOK_S: Final = 0.02
#: 127.0.0.1 in binary form, for each address family, because Java listens on 127.0.0.1 with an IPv6 socket.
_LOOPBACK: Final = {
    socket.AF_INET: bytes([127, 0, 0, 1]),
    socket.AF_INET6: bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]),
}
#: Constants of the kernel's socket list. Source: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_TCP_LISTEN: Final = 10
_DONE: Final = 3
_ERROR: Final = 2
_ANSWER_MAX: Final = 256 * 1024
_HELLO_MAX: Final = 64 * 1024
_LIBC: Final = ctypes.CDLL(None)
#: Format of a timer: interval and expiry, each as seconds and nanoseconds. Source: timerfd_settime(2).
_TIMER: Final = struct.Struct("=qqqq")
_ABSOLUTE: Final = 1


class Alarm:
    """Timers (Linux timerfd) with a finer resolution than the event loop's timers, which have 1 ms."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer = int(_LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._timer, self._ring)

    async def until(self, due_s: float) -> None:
        """Wait until an instant of ``time.monotonic``, in seconds."""
        if due_s <= time.monotonic():
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (due_s, next(self._numbers), done))
        if self._due[0][2] is done:
            self._set(due_s)
        await done

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._timer)
        os.close(self._timer)

    def _set(self, due_s: float) -> None:
        value = _TIMER.pack(0, 0, *divmod(round(due_s * 1e9), 10**9))
        _LIBC.timerfd_settime(self._timer, _ABSOLUTE, value, None)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._timer, 8)
        while self._due and self._due[0][0] <= time.monotonic():
            done = heapq.heappop(self._due)[2]
            if not done.done():  # the waiting task may have been cancelled
                done.set_result(None)
        if self._due:
            self._set(self._due[0][0])


class UnderWay:
    """Delayed bytes in one direction of a connection: a queue of pieces, each with its instant of arrival.

    Attributes:
        pending: Number of pieces that have not arrived.
        lost: True if the connection has ended, so that the pending pieces never arrive.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        self.pending = 0
        self.lost = False
        self._bytes = 0
        self._last_s = not_before_s
        self._pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._arrived = asyncio.Event()

    async def put(self, data: bytes, due_s: float) -> None:
        """Wait until at most ``UNDER_WAY_MAX`` bytes are pending, then add a piece to the queue."""
        while self._bytes > UNDER_WAY_MAX and not self.lost:
            await self._next_arrival()
        self._last_s = max(self._last_s, due_s)
        self.pending += 1
        self._bytes += len(data)
        self._pieces.put_nowait((self._last_s, data))

    async def get(self) -> tuple[float, bytes]:
        return await self._pieces.get()

    def arrived(self, data: bytes) -> None:
        self.pending -= 1
        self._bytes -= len(data)
        self._arrived.set()

    def lose(self) -> None:
        self.lost = True
        self._arrived.set()

    async def all_arrived(self) -> None:
        while self.pending and not self.lost:
            await self._next_arrival()

    async def _next_arrival(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()


class Gate:
    """One direction between two processes: open or cut, its delay, and the bytes that have passed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.bytes = 0
        self.held = 0
        self.delay_s = 0.0

    async def passable(self) -> None:
        """Wait until the gate is open. If the gate closes again before this task runs, wait again."""
        while not self.open.is_set():
            self.held += 1
            try:
                await self.open.wait()
            finally:
                self.held -= 1

    def look(self) -> GateState:
        """Return the gate's state."""
        return GateState(
            open=self.open.is_set(),
            delay_ms=1_000 * self.delay_s,
            bytes=self.bytes,
            waiting=self.held > 0,
        )


class Passage:
    """One connection through the proxy, from the dialling process to the accepting process."""

    def __init__(self, dialler: str, acceptor: str, back: asyncio.StreamWriter) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        self.back = back
        """Writer to the dialler."""
        self.onward: asyncio.StreamWriter | None = None
        """Writer to the acceptor, or None until the proxy has connected to the acceptor."""
        self.reached = asyncio.Event()

    def reset(self) -> None:
        """End the connection on both sides. Bytes under way are lost."""
        for end in (self.back, self.onward):
            if end is not None:
                end.transport.abort()


Witness = Callable[[Passage, bool, bytes], None]
"""Function called with passed bytes. Its arguments are the connection, True if the acceptor receives the
bytes, and the bytes."""


class Proxy:
    """All links of a run.

    Attributes:
        passages: The connections that exist now.
    """

    def __init__(self, links: list[Link], *, witness: Witness | None = None) -> None:
        self.passages: set[Passage] = set()
        self._links = links
        self._witness = witness
        self._gates: dict[Direction, Gate] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._doubt = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._dialled: set[Direction] = set()
        self._alarm = Alarm()

    async def start(self) -> None:
        self._alarm.start()
        await self._follow()
        self._watching = self._keep(self.watch())

    async def stop(self) -> None:
        """Close all listeners, and end every connection."""
        for task in self._tasks:
            task.cancel()
        if self._watching is not None:  # wait for this task first, because it opens and closes listeners
            await asyncio.gather(self._watching, return_exceptions=True)
        for server in self._servers.values():
            await stop_accepting(server)
        for passage in self.passages:
            passage.reset()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._alarm.stop()

    def do(self, command: Command) -> Done:
        """Carry out one command, and return its answer."""
        if command.do == "cut":
            self.cut(command.directions)
        elif command.do == "heal":
            self.heal()
        elif command.do == "delay":
            self.delay(command.directions, command.delay_ms)
        passes = self.look() if command.do == "look" else []
        return Done(t_ns=time.monotonic_ns(), number=command.number, passes=passes)

    def look(self) -> list[Passes]:
        """Return the state of every link, including links that were never used."""
        ends = {
            (dialler, link.acceptor): None
            for link in self._links
            for dialler in ([link.dialler] if link.dialler is not None else link.names.values())
            if dialler != link.acceptor
        }
        return [
            Passes(
                dialler=dialler,
                acceptor=acceptor,
                forward=self._gate((dialler, acceptor)).look(),
                back=self._gate((acceptor, dialler)).look(),
                dialled=(dialler, acceptor) in self._dialled,
            )
            for dialler, acceptor in ends
        ]

    def cut(self, directions: Iterable[Direction]) -> None:
        """Cut these directions, each from its first to its second process."""
        for direction in directions:
            self._gate(direction).open.clear()

    def delay(self, directions: Iterable[Direction], delay_ms: float) -> None:
        """Delay all bytes that enter these directions from now on."""
        for direction in directions:
            self._gate(direction).delay_s = delay_ms / 1e3

    def heal(self, *, reset: bool = False) -> None:
        """End all cuts.

        Bytes that waited at a cut arrive now. With ``reset``, the connections through a cut end, and these
        bytes are lost.
        """
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

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage: Passage | None = None
        forward: asyncio.Future[None] | None = None
        accepted_s = time.monotonic()
        try:
            dialler, begun = link.dialler, b""
            if dialler is None:
                dialler, begun = await _hello(link, reader)
            passage = Passage(dialler, link.acceptor, writer)
            self.passages.add(passage)
            self._dialled.add((dialler, link.acceptor))
            forth, back = self._gate((dialler, link.acceptor)), self._gate((link.acceptor, dialler))
            # The connection exists only after TCP's handshake, whose three packets pass the link, two forward
            # and one back.
            reached_s = accepted_s + 2 * forth.delay_s + back.delay_s
            if reached_s > time.monotonic():
                under_way = UnderWay(reached_s)
                await under_way.put(begun, reached_s)
                forward = self._start(passage, forth, reader, under_way)
                await self._alarm.until(reached_s)
                if await _wait_open((forth, back)) and reader.at_eof():
                    return
            elif (said := await _said_until_open((forth, back), reader)) is None:
                return
            else:
                begun += said
            host, _, port = link.to.rpartition(":")
            back_reader, passage.onward = await asyncio.open_connection(host, int(port))
            passage.reached.set()
            if forward is None:
                self._passed(passage, forth, begun)
                forward = self._start(passage, forth, reader, UnderWay())
            backward = self._start(passage, back, back_reader, UnderWay())
            _, pending = await asyncio.wait({forward, backward}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(forward, backward, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass  # one end closed, or did not send its name, so the code below closes the other end
        finally:
            self._doubt.set()  # check the listeners now, because the acceptor may have ended
            if forward is not None:
                forward.cancel()
            if passage is not None:
                self.passages.discard(passage)
            for end in (writer, passage.onward if passage is not None else None):
                if end is not None:
                    # Do not use abort() here, because it would drop bytes that were written before.
                    end.close()

    def _start(
        self, passage: Passage, gate: Gate, reader: asyncio.StreamReader, under_way: UnderWay
    ) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._pass(passage, gate, reader, under_way))

    async def _pass(
        self, passage: Passage, gate: Gate, reader: asyncio.StreamReader, under_way: UnderWay
    ) -> None:
        delivering: asyncio.Future[None] | None = None
        if under_way.pending:
            delivering = asyncio.ensure_future(self._deliver(passage, gate, under_way))
        try:
            while data := await reader.read(_CHUNK):
                if not gate.delay_s and not under_way.pending:
                    await gate.passable()
                    await self._passed(passage, gate, data).drain()
                    continue
                if delivering is None:
                    delivering = asyncio.ensure_future(self._deliver(passage, gate, under_way))
                await under_way.put(data, time.monotonic() + gate.delay_s)
            await self._alarm.until(time.monotonic() + gate.delay_s)
            await under_way.all_arrived()
            await gate.passable()  # during a cut, the end of a stream waits, too
        finally:
            if delivering is not None:
                delivering.cancel()
                await asyncio.gather(delivering, return_exceptions=True)

    async def _deliver(self, passage: Passage, gate: Gate, under_way: UnderWay) -> None:
        """Pass on each piece of delayed bytes when the piece is due."""
        try:
            while True:
                due_s, data = await under_way.get()
                await self._alarm.until(due_s)
                await gate.passable()
                await passage.reached.wait()
                await self._passed(passage, gate, data).drain()
                under_way.arrived(data)
        except OSError:
            under_way.lose()
            passage.reset()  # this also ends the task that reads from the connection

    def _passed(self, passage: Passage, gate: Gate, data: bytes) -> asyncio.StreamWriter:
        """Write bytes to the process that receives them, count them, and return the writer."""
        forward = gate is self._gate((passage.dialler, passage.acceptor))
        writer = passage.onward if forward else passage.back
        assert writer is not None
        gate.bytes += len(data)
        writer.write(data)
        if self._witness is not None:
            self._witness(passage, forward, data)
        return writer

    async def watch(self) -> None:
        """Listen for each link as long as the link's target has a listener, and no longer."""
        while True:
            await self._follow()
            with contextlib.suppress(TimeoutError):
                # Do not use wait_for(), because in Python 3.11 it may lose a cancellation that comes at the
                # same time as the event.
                async with asyncio.timeout(_LOOK_S):
                    await self._doubt.wait()
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
                await stop_accepting(server)
                del self._servers[link.listen]


def listening_here() -> set[int] | None:
    """Return the ports of 127.0.0.1 with a listener, or None if the system does not list them.

    The function asks the kernel (inet_diag, sock_diag(7)). It does not connect to the ports, because a server
    would count such a connection as a silent client.
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
    """Add the ports that one part of the kernel's answer names. Return True if more parts follow."""
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
    """Read a connection's first frame, which names a raft member. Return the member's name and the bytes."""
    size = await reader.readexactly(4)
    length = struct.unpack(">I", size)[0]
    if length > _HELLO_MAX:
        raise ValueError(f"first frame of {length} bytes, allowed are {_HELLO_MAX}")
    frame = await reader.readexactly(length)
    identity = str(msgspec.msgpack.decode(frame)[1])
    return link.names[identity], size + frame


async def _wait_open(gates: Sequence[Gate]) -> bool:
    """Wait until all of these gates are open. Return True if any gate was closed at the time of the call."""
    waited = False
    while shut := [gate for gate in gates if not gate.open.is_set()]:
        waited = True
        await shut[0].open.wait()
    return waited


async def _said_until_open(gates: Sequence[Gate], reader: asyncio.StreamReader) -> bytes | None:
    """Wait until all of these gates are open, because no connection can be made through a cut.

    Returns:
        The bytes that the connecting side has sent in the meantime. None if the connecting side closed its
        connection before the cut ended. In this case the proxy must not connect to the target.
    """
    said = b""
    while shut := [gate for gate in gates if not gate.open.is_set()]:
        opened = asyncio.ensure_future(shut[0].passable())
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
    """Carry these links until stdin ends."""
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
    links = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Link])
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(links))


if __name__ == "__main__":
    main()
