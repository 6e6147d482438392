"""The servers behind a nameserver's three ports. Inputs reach the servers as bytes, without sockets.

No other process can reach the two members that run here. The first member leads a group of one, and gets
inputs for RocketMQ's protocol and for HTTP. The second member belongs to a group of three, and gets inputs
for its raft port. These inputs come from a peer that is no member (a stranger), or from a peer that proves
to be a member.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from routekeeper.nameserver.http.app import HttpServer
from routekeeper.nameserver.raft.links.auth import NONCE_SIZE, Credentials, Handshake
from routekeeper.nameserver.raft.links.transport import Link
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.line_limit import LineLimit
from routekeeper.remoting.transport.secured import Entrance, TlsPort
from routekeeper.remoting.transport.server import Connection
from routekeeper.remoting.transport.tls import Pipe
from tests.tls import client_context, port_context

#: Maximum number of iterations of the event loop for one input. Afterwards, the connection is closed, which
#: ends unfinished work.
_TURNS: Final = 40
_LEADS_S: Final = 20.0
_RECORD_MAX: Final = 16_384
TOKEN: Final = "a-token-of-thirty-two-characters"
SECRET: Final = b"a secret of thirty-two bytes or more"
#: Members of the group of three. ME is the tested member. No program listens at the ports of OTHER and THIRD,
#: so ME cannot connect to them.
ME: Final = "127.0.0.1:3"
OTHER: Final = "127.0.0.1:2"
THIRD: Final = "127.0.0.1:1"
_Result = TypeVar("_Result")


class Wire(asyncio.Transport):
    """The server's side of a connection in memory. It stores everything that the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = bytearray()
        self.closed = False
        self._socket = socket.socket()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 40_000), "socket": self._socket}.get(name, default)

    def write(self, data: Any) -> None:
        self.answered += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def end(self) -> None:
        self._socket.close()


class Failed(AssertionError):
    """Raised if an input caused a fault in the code behind a port. No input may do that."""


class Stack:
    """The two members and their event loop. The loop runs only while an input is tested."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note)
        self._failures: list[str] = []
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-stack-"))
        self._started = False
        self._group: asyncio.TaskGroup
        self._server: NameServer
        self._http: HttpServer
        self._tls: TlsPort
        self._dials: ssl.SSLContext
        self._peer: _Member | None = None
        atexit.register(self.close)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run the event loop until ``work`` is done; return the result of ``work``.

        Raises:
            Failed: If any code on the event loop raised an exception that was not caught.
        """
        self._failures.clear()
        result = self._loop.run_until_complete(_awaited(work))
        if self._failures:
            raise Failed("; ".join(self._failures)[:2000])
        return result

    def prepare(self) -> None:
        """Start the members, or replace a member that an earlier input has stopped.

        The time of this method does not count as a cost of an input.
        """
        if not self._started:
            self._started = True
            self.run(self._start)
        if self._peer is None or self._peer.is_spent:
            self.run(self._start_peer)

    async def _start(self) -> None:
        self._group = await asyncio.TaskGroup().__aenter__()
        me = f"127.0.0.1:{_free_port()}"
        directory = self._directory / "one"
        live = LiveSettings(NamesrvSettings(data_dir=str(directory), listen_port=0))
        raft = RaftConfig(me=me, peers=(me,), listen=None, data_dir=directory, durability="memory")
        self._server = NameServer(settings=live, group=self._group)
        mode = Replicated(live, self._server, boot_id=1, raft=raft)
        await mode.start()
        mode.member.on_fatal = mode.member.on_removed = self._failures.append
        await self._server.start(mode)
        self._tls = self._server.wire.tls
        self._tls.current = port_context(mode="enforcing")
        self._dials = client_context()
        self._http = HttpServer(
            consistency=mode, server=self._server, settings=live, version="fuzzed", token=TOKEN
        )
        await self._http.start("127.0.0.1", 0)
        async with asyncio.timeout(_LEADS_S):
            while not mode.member.leads:  # noqa: ASYNC110 - the member sets no event when it leads
                await asyncio.sleep(0.01)

    async def _start_peer(self) -> None:
        if self._peer is not None:
            await self._peer.close()
        self._peer = await _Member.start(self._directory / "three", self._group)

    def close(self) -> None:
        """Remove the members' data. Connections need not be closed, because none leads to a real peer."""
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- targets

    def wire(self, data: bytes) -> object:
        """Pass bytes to the port of RocketMQ's protocol."""
        # Each input needs a new limit on log lines. Otherwise, earlier inputs could use up the limit, and the
        # server would not log a fault.
        self._server.wire._lines = LineLimit()

        async def ask() -> object:
            return await self._feed(Connection(self._server.wire), data)

        return self.run(ask)

    def secured(self, data: bytes) -> object:
        """Pass bytes over TLS to the port of RocketMQ's protocol."""
        self._server.wire._lines = LineLimit()

        async def ask() -> object:
            entrance = Entrance(self._tls, Connection(self._server.wire))
            wire, client = Wire(), Pipe(self._dials, "127.0.0.1")
            entrance.connection_made(wire)
            client.shake(b"")
            _give(entrance, client.pending())
            while not wire.answered:  # noqa: ASYNC110 - the handshake goes on in later iterations of the loop
                await asyncio.sleep(0)
            assert client.shake(bytes(wire.answered))
            return await self._feed(entrance, client.pending() + client.seal(data), wire)

        return self.run(ask)

    def handshake(self, data: bytes) -> object:
        """Pass bytes to a port that requires TLS, as the records of a TLS handshake."""
        self._server.wire._lines = LineLimit()
        pieces = [data[at : at + _RECORD_MAX] for at in range(0, len(data), _RECORD_MAX)]
        records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)

        async def ask() -> object:
            return await self._feed(Entrance(self._tls, Connection(self._server.wire)), records)

        return self.run(ask)

    def http(self, data: bytes) -> object:
        """Pass bytes to the HTTP port.

        Raises:
            Failed: If a request is answered with 500.
        """

        async def ask() -> bytes | bytearray:
            return await self._feed(self._http._connections.accept(), data)

        answered = self.run(ask)
        if b"HTTP/1.1 500" in answered:
            raise Failed(bytes(answered[:300]).decode("utf-8", "replace"))
        return None

    def stranger(self, data: bytes) -> object:
        """Pass bytes to the raft port as an unauthenticated peer."""
        assert self._peer is not None
        peer = self._peer

        async def knock() -> object:
            return await self._feed(peer.link(), data)

        return self.run(knock)

    def member(self, data: bytes) -> object:
        """Pass frames to the raft port as an authenticated member.

        :func:`bodies` cuts the input into frames. Each frame has a kind and a payload.
        """
        assert self._peer is not None
        peer = self._peer

        async def speak() -> object:
            link, handshake, wire = peer.proven()
            stream = bytearray()
            for body in bodies(data):
                mac = handshake.outgoing.next(body)
                stream += (len(body) + len(mac)).to_bytes(4) + body + mac
            return await self._feed(link, bytes(stream), wire)

        return self.run(speak)

    async def _feed(
        self, protocol: asyncio.BaseProtocol, data: bytes, wire: Wire | None = None
    ) -> bytes | bytearray:
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if wire is None:
            wire = Wire()
            protocol.connection_made(wire)
        try:
            if not wire.closed:
                _give(protocol, data)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if not wire.closed:
                protocol.eof_received()
        finally:
            protocol.connection_lost(None)
            wire.end()
        await asyncio.sleep(0)
        return wire.answered


def _give(protocol: asyncio.Protocol | asyncio.BufferedProtocol, data: bytes) -> None:
    """Pass bytes to a protocol as an event loop does."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    while data:
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        protocol.buffer_updated(size)


class _Member:
    """The tested member of the group of three.

    The other two members do not run. Inputs act as one of these two.
    """

    def __init__(self, mode: Replicated, member: RaftMember) -> None:
        self._mode = mode
        self._transport = member.transport
        mine = self._transport.credentials
        self._other = Credentials(
            me=OTHER, members=mine.members, cluster=mine.cluster, secret=mine.secret, open=mine.open
        )
        self._began_with = mine
        self._stopped = ""
        member.on_fatal = member.on_removed = self._stop

    @classmethod
    async def start(cls, directory: Path, group: asyncio.TaskGroup) -> _Member:
        shutil.rmtree(directory, ignore_errors=True)
        live = LiveSettings(NamesrvSettings(data_dir=str(directory), listen_port=0))
        raft = RaftConfig(
            me=ME,
            peers=(ME, OTHER, THIRD),
            listen=f"127.0.0.1:{_free_port()}",
            data_dir=directory,
            durability="memory",
            secret=SECRET,
        )
        mode = Replicated(live, NameServer(settings=live, group=group), boot_id=2, raft=raft)
        await mode.start()
        return cls(mode, mode.member)

    def _stop(self, reason: str) -> None:
        """Record that an input has stopped this member.

        An input may do this. The next input gets a new member.
        """
        self._stopped = reason

    @property
    def is_spent(self) -> bool:
        """True if this member cannot be used for the next input.

        It has stopped, or an input has changed its list of members, so it would refuse the next connection.
        """
        return bool(self._stopped) or self._transport.credentials != self._began_with

    async def close(self) -> None:
        await self._mode.close()

    def link(self) -> Link:
        return Link(self._transport, None)

    def proven(self) -> tuple[Link, Handshake, Wire]:
        """Connect to this member as the member OTHER, with a valid proof; return the connection's parts."""
        link, wire = self.link(), Wire()
        link.connection_made(wire)
        handshake = Handshake(self._other, peer=ME, nonce=os.urandom(NONCE_SIZE))
        frame: bytes | None = handshake.begin()
        while frame is not None:
            link.data_received(len(frame).to_bytes(4) + frame)
            size = int.from_bytes(wire.answered[:4])
            answer = bytes(wire.answered[4 : 4 + size])
            del wire.answered[: 4 + size]
            frame = handshake.receive(answer)
        assert handshake.proven
        return link, handshake, wire


FRAMES_MAX: Final = 4_096


def bodies(data: bytes) -> list[bytes]:
    """Cut an input into at most FRAMES_MAX frames.

    In the input, each frame has a size (two bytes) and its content. The content of the last frame may be
    shorter than its size.

    An empty frame takes only two bytes of the input, but the test must compute a MAC for each frame. Without
    the limit, this time would count as time of the tested code.
    """
    found: list[bytes] = []
    at = 0
    while at + 2 < len(data) and len(found) < FRAMES_MAX:
        size = int.from_bytes(data[at : at + 2])
        found.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def framed(*found: bytes) -> bytes:
    """Return the input from which :func:`bodies` cuts the given frames."""
    return b"".join(len(body).to_bytes(2) + body for body in found)


#: The two members that all targets use.
STACK: Final = Stack()


async def _awaited(work: Callable[[], Awaitable[_Result]]) -> _Result:
    return await work()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
