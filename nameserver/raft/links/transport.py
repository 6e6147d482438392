"""Links between members on the running event loop: framing, handshake, bounds, keeping alive, redialling.

A frame is a u32 size and that many bytes; after the handshake these are one byte of kind, the payload, and
the MAC. Of two members the one with the greater identity dials; the other only if there has been no link
for a while, for the greater one may not know it yet (or any more). Nothing is read from a peer before it is
proven, except handshake frames of at most 1 KB within 3 s, from a bounded number of connections at a time,
in all and from each host that is no member's; a flood pushes out its own oldest, and none of our own dials.
Under TLS (:mod:`.tls`) all of this travels inside, and the certificate of each end must name the host of
the identity that it claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import socket
import struct
from collections import Counter
from typing import Final, Protocol, cast

from nameserver.raft.types import RaftStartError, split_address

from .auth import NONCE_SIZE, AuthError, Credentials, Handshake, Session
from .tls import Pipe, TlsContexts, TlsError, names, names_host

logger = logging.getLogger(__name__)

HANDSHAKE_FRAME_MAX: Final = 1024
HANDSHAKE_TIMEOUT_S: Final = 3.0
#: Connections that others opened, over which nobody has proved anything yet; our own dials are none of them.
UNPROVEN_MAX: Final = 64
#: Of those, from one address that is no member's.
UNPROVEN_PER_ADDRESS: Final = 16
#: Links to peers of the same cluster that are in no configuration here: they may have been added, or removed,
#: while this member was away. On loopback without a secret anybody can say so.
OUTSIDERS_MAX: Final = 16
#: Under TLS, where each costs a handshake on the loop that serves: from such an address in one second.
STRANGERS_PER_SECOND: Final = 20
#: A peer that does not read holds at most this much of our memory; then the link is closed.
BUFFER_MAX: Final = 64 * 1024 * 1024
#: Application messages are refused above this much unsent data.
APPLICATION_BUFFER_MAX: Final = 16 * 1024 * 1024
#: A ping leaves when nothing else did for one check; after this many checks without a byte the link is dead.
CHECK_S: Final = 1.0
SILENT_CHECKS_MAX: Final = 4
RETRY_S: Final = (0.05, 0.5)
#: Without a link for so long, the lesser of two members dials as well.
LESSER_DIALS_AFTER_S: Final = 3.0

PING: Final = 0
RAFT: Final = 1
APPLICATION: Final = 2

_SIZE: Final = struct.Struct(">I")
#: What the first two bytes of a TLS handshake, or of its refusal, are.
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")
#: Copying so much costs less than another call of the loop's.
_JOIN_MAX: Final = 64 * 1024


class Owner(Protocol):
    """Who is told about links; every call is on the loop."""

    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def raft_message(self, peer: str, data: memoryview) -> None:
        """May raise :class:`LinkError` to have the link closed."""

    def application_message(self, peer: str, data: bytes) -> None: ...
    def fatal(self, reason: str) -> None: ...


class LinkError(Exception):
    """What the peer sent cannot be used: its link must be closed."""


class Link(asyncio.Protocol):
    """One connection, first unproven, then of one member."""

    def __init__(self, transport: Transport, dialled: str | None) -> None:
        self._owner = transport
        self._dialled = dialled
        self._handshake = Handshake(transport.credentials, peer=dialled, nonce=os.urandom(NONCE_SIZE))
        self._session: Session | None = None
        self._plain_peer: str | None = None  # the proven one, if frames are neither sealed nor encrypted
        self._pipe = Pipe(transport.tls, accepts=dialled is None) if transport.tls is not None else None
        self._buffer = bytearray()
        self._wire: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._sent_since_check = False
        self._received_since_check = False
        self._silent_checks = 0
        self.ended = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str | None:
        return self._session.peer if self._session is not None else None

    @property
    def dialled(self) -> str | None:
        """The member that was dialled, None if it dialled us."""
        return self._dialled

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        _tune(transport.get_extra_info("socket"))
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)
        self._owner.unproven(self)
        if self._dialled is None or self._closed:
            return
        if self._pipe is None:
            self._write_frame(self._handshake.begin())
        else:
            self._pipe.begin()
            self._wire.write(self._pipe.pending())

    def data_received(self, data: bytes) -> None:
        self._received_since_check = True
        peer = self._plain_peer
        if (
            peer is not None
            and not self._buffer
            and len(data) > 5
            and data[4] == APPLICATION
            and int.from_bytes(data[:4], "big") + 4 == len(data)
        ):  # one message by itself, neither sealed nor encrypted: the short way for those that hurry most
            try:
                self._owner.owner.application_message(peer, data[5:])
            except LinkError as error:
                self._refuse(error)
            return
        if self._pipe is not None:
            try:
                data = self._decrypt(self._pipe, data)
            except (AuthError, TlsError) as error:
                self._refuse(error)
                return
        self._take_bytes(data)

    def _decrypt(self, pipe: Pipe, data: bytes) -> bytes:
        wire, before = self._wire, pipe.established
        assert wire is not None
        try:
            plain = pipe.receive(data)
        finally:
            if answer := pipe.pending():  # in a failure it tells the peer what is wrong
                wire.write(answer)
        if pipe.established and not before and self._dialled is not None:
            self._check_name(pipe, self._dialled)
            self._write_frame(self._handshake.begin())
        return plain

    def _check_name(self, pipe: Pipe, member: str) -> None:
        try:
            host, _ = split_address(member)
        except RaftStartError as error:
            raise AuthError(str(error)) from error
        certificate = pipe.certificate()
        if not names_host(certificate, host):
            raise AuthError(f"certificate names {names(certificate)}, not {host} as {member} must")

    def _take_bytes(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position, end = 0, len(buffer)
        if self._session is None and self._pipe is None and buffer.startswith(_TLS_RECORDS):
            self._refuse(LinkError("it speaks TLS, which this member is not set up for"))
            return
        try:
            with memoryview(buffer) as view:
                while end - position >= 4 and not self._closed:
                    (size,) = _SIZE.unpack_from(view, position)
                    limit = HANDSHAKE_FRAME_MAX if self._session is None else self._owner.frame_size_max
                    if size > limit:
                        raise LinkError(f"frame of {size} bytes, at most {limit} are allowed")
                    if end - position - 4 < size:
                        break
                    with view[position + 4 : position + 4 + size] as frame:
                        self._take(frame)
                    position += 4 + size
        except (AuthError, LinkError) as error:
            self._refuse(error)
        if self._closed:
            self._buffer = bytearray()
        elif position:
            self._buffer = buffer[position:]  # a failed reader may hold a view of it still: it cannot shrink

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed and (farewell := self._farewell()):
            self._owner.report(self, farewell)
        self.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _farewell(self) -> str:
        """What it means that the peer closes the connection now, so that both ends say what is wrong."""
        pipe = self._pipe
        if self._session is not None:
            return ""
        if self._dialled is not None:
            if pipe is not None and not pipe.established:
                return "it ended the TLS handshake: is it set up for TLS?"
            return self._handshake.refusal
        if pipe is None or not pipe.established or self._handshake.claimed is not None:
            return ""
        return f"{names(pipe.certificate())} left without a word: does our certificate name this member?"

    def _refuse(self, error: Exception) -> None:
        """Close the connection; what was written before still leaves, if the peer reads."""
        self._owner.report(self, str(error))
        self.close(flush=True)

    # ---- frames

    def _take(self, frame: memoryview) -> None:
        session = self._session
        if session is None:
            answer = self._handshake.receive(bytes(frame))
            if self._pipe is not None and self._dialled is None:
                assert self._handshake.claimed is not None
                self._check_name(self._pipe, self._handshake.claimed)
            if answer is not None:
                self._write_frame(answer)
            if self._handshake.session is not None:
                self._proven(self._handshake.session)
            return
        body_size = len(frame) - session.incoming.size
        if body_size < 1:
            raise LinkError(f"frame of {len(frame)} bytes is too short")
        body = frame[:body_size]
        session.incoming.check(body, frame[body_size:])
        match body[0]:
            case kind if kind == RAFT:
                self._owner.owner.raft_message(session.peer, body[1:])
            case kind if kind == APPLICATION:
                self._owner.owner.application_message(session.peer, bytes(body[1:]))
            case kind if kind == PING:
                pass
            case kind:
                raise LinkError(f"frame of unknown kind {kind}")

    def _proven(self, session: Session) -> None:
        self._session = session
        if self._pipe is None and not session.incoming.size:
            self._plain_peer = session.peer
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        self._owner.joined(self, session.peer)

    def _write_frame(self, frame: bytes) -> None:
        if self._wire is not None and not self._closed:
            data = _SIZE.pack(len(frame)) + frame
            self._wire.write(data if self._pipe is None else self._pipe.send(data))

    def send(self, kind: int, payload: bytes) -> bool:
        """Send one frame to the proven peer; False if the link is down or its buffer is full."""
        session, wire = self._session, self._wire
        if session is None or wire is None or self._closed:
            return False
        if 1 + len(payload) + session.outgoing.size > self._owner.frame_size_max:
            # The peer would end the link over it, and over the next one, for as long as it is sent again.
            logger.error(
                "message refused peer=%s kind=%d bytes=%d limit=%d",
                session.peer,
                kind,
                len(payload),
                self._owner.frame_size_max,
            )
            return False
        waiting = wire.get_write_buffer_size()
        if waiting > APPLICATION_BUFFER_MAX and kind == APPLICATION:
            return False
        if waiting > BUFFER_MAX:
            # Never leave out a message on a link that stays: the peer could not know.
            self._owner.report(self, f"{waiting} bytes unsent")
            asyncio.get_running_loop().call_soon(self.close)
            return False
        kind_byte = kind.to_bytes(1, "big")
        mac = session.outgoing.next(kind_byte, payload)
        self._sent_since_check = True
        parts = (_SIZE.pack(1 + len(payload) + len(mac)), kind_byte, payload, mac)
        if self._pipe is not None:
            wire.write(self._pipe.send(b"".join(parts)))
        elif len(payload) < _JOIN_MAX:
            wire.write(b"".join(parts))
        else:
            wire.writelines(parts)
        return True

    # ---- ends

    def _check(self) -> None:
        """D24: an idle link is kept in use: its death is noticed, its first message not lost."""
        if self._closed:
            return
        self._silent_checks = 0 if self._received_since_check else self._silent_checks + 1
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self._owner.report(self, f"silent for {SILENT_CHECKS_MAX * CHECK_S:.0f} s")
            self.close()
            return
        if not self._sent_since_check:
            self.send(PING, b"")
        self._received_since_check = self._sent_since_check = False
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _too_slow(self) -> None:
        if self._session is None and not self._closed:
            self._owner.report(self, f"not proven within {HANDSHAKE_TIMEOUT_S:.0f} s")
            self.close()

    def close(self, *, flush: bool = False) -> None:
        """Drop the connection at once; what is unsent is lost, unless ``flush`` and the peer reads on."""
        if self._closed:
            return
        self._closed = True
        self._plain_peer = None
        if self._timer is not None:
            self._timer.cancel()
        if self._wire is not None:
            if flush:
                self._wire.close()
            else:
                self._wire.abort()
        self._owner.left(self)

    @property
    def host(self) -> str:
        """Address of the other end's host."""
        name = self._wire.get_extra_info("peername") if self._wire is not None else None
        return str(name[0]) if name else ""

    @property
    def address(self) -> str:
        if self._dialled is not None:
            return self._dialled
        name = self._wire.get_extra_info("peername") if self._wire is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"


def _tune(connection: socket.socket) -> None:
    """Small messages leave at once; a dead host is noticed within seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)


class Transport:
    """All links of one member."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        owner: Owner,
        frame_size_max: int,
        tls: TlsContexts | None = None,
    ) -> None:
        self.credentials = credentials
        self.tls = tls
        self.owner = owner
        self.frame_size_max = frame_size_max
        self._links: dict[str, Link] = {}
        self._unproven: dict[Link, str] = {}  # accepted ones, oldest first, with the host that each came from
        self._being_dialled: set[Link] = set()
        self._hosts_of_members: set[str] = set()  # where members are, as far as is known
        self._strangers = _Strangers()
        self._server: asyncio.Server | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._reports = _ReportLimit()

    async def listen(self, address: str) -> str:
        """Bind; return the bound address. Connections wait until :meth:`go`.

        Raises:
            RaftStartError: The address cannot be bound, or is open to others and they need prove nothing.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listener = _bind(found[0])
        except OSError as error:
            raise RaftStartError(f"raft: cannot listen on {address}: {error.strerror or error}") from error
        bound_host, bound_port = listener.getsockname()[:2]
        if self.credentials.secret is None and self.tls is None and not _is_loopback(bound_host):
            listener.close()
            raise RaftStartError(
                f"raft: {bound_host}:{bound_port} can be reached from other machines: a secret is needed, "
                "or certificates"
            )
        self._server = await loop.create_server(lambda: Link(self, None), sock=listener, start_serving=False)
        return f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"

    async def go(self) -> None:
        """Accept, and dial those whom it is ours to dial."""
        assert self._server is not None
        await self._server.start_serving()
        self._dialling = asyncio.get_running_loop().create_task(self._dial_all(), name="raft dial")
        self._dialling.add_done_callback(self._dialling_ended)

    async def close(self) -> None:
        """Close everything and wait until it is closed."""
        self._closing = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._server is not None:
            self._server.close()
        links = [*self._links.values(), *self._unproven, *self._being_dialled]
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.ended for link in links], timeout=1.0)
        if self._server is not None:
            await self._server.wait_closed()

    def follow(self, credentials: Credentials) -> None:
        """Take part as somebody else from the next handshake on, and dial those that are members now.

        Links that are up stay, whoever is at the other end.
        """
        self.credentials = credentials
        self._dial_members()

    def send(self, peer: str, kind: int, payload: bytes) -> bool:
        link = self._links.get(peer)
        return link is not None and link.send(kind, payload)

    def drop(self, peer: str) -> None:
        """Close the link to ``peer``; it is dialled anew."""
        if (link := self._links.get(peer)) is not None:
            link.close()

    # ---- links

    def unproven(self, link: Link) -> None:
        """A connection was made. Of too many accepted ones go the oldest of the host that has most of them.

        What this member dialled itself is no stranger's and takes nobody's place. So a group finds together
        whatever strangers hold: one of two members dials, and its connection is the newest at the other.
        """
        if self._closing:
            link.close()
            return
        if link.dialled is not None:
            self._being_dialled.add(link)
            return
        host = link.host
        known = host in self._hosts_of_members
        now = asyncio.get_running_loop().time()
        if self.tls is not None and not known and not self._strangers.allow(host, now):
            self.report(link, f"more than {STRANGERS_PER_SECOND} connections a second from there")
            link.close()
            return
        self._unproven[link] = host
        of_host = [other for other, from_host in self._unproven.items() if from_host == host]
        if len(of_host) > UNPROVEN_PER_ADDRESS and not known:
            self._push_out(of_host[0], f"more than {UNPROVEN_PER_ADDRESS} unproven connections from there")
        elif len(self._unproven) > UNPROVEN_MAX:
            most, _ = Counter(self._unproven.values()).most_common(1)[0]
            oldest = next(other for other, from_host in self._unproven.items() if from_host == most)
            self._push_out(oldest, f"more than {UNPROVEN_MAX} unproven connections")

    def _push_out(self, link: Link, why: str) -> None:
        self.report(link, why)
        link.close()

    def joined(self, link: Link, peer: str) -> None:
        self._unproven.pop(link, None)
        self._being_dialled.discard(link)
        old = self._links.get(peer)
        members = self.credentials.members
        if old is None and peer not in members and len(self._links.keys() - members) >= OUTSIDERS_MAX:
            self.report(link, f"more than {OUTSIDERS_MAX} links to peers that are no members")
            link.close()
            return
        self._hosts_of_members.add(link.host)
        if old is not None and self._rank(old, peer) > self._rank(link, peer):
            link.close(flush=True)  # both dialled at once: both keep the same connection
            return
        self._links.pop(peer, None)
        if old is not None:  # nothing of the old connection may arrive after the new one is up
            old.close()
            self.owner.link_down(peer)
        self._links[peer] = link
        self.owner.link_up(peer)

    def _rank(self, link: Link, peer: str) -> bool:
        """Whether the greater of the two identities dialled, as it should."""
        return (link.dialled is not None) == (peer < self.credentials.me)

    def left(self, link: Link) -> None:
        self._unproven.pop(link, None)
        self._being_dialled.discard(link)
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.owner.link_down(link.peer)

    def report(self, link: Link, what: str) -> None:
        """One log line a closed connection, but not one for each of a flood."""
        again = "" if link.peer is not None else f"{link.address.rpartition(':')[0]} {what}"
        suppressed = self._reports.allow(again, asyncio.get_running_loop().time())
        if suppressed is not None:
            logger.warning(
                "raft link closed peer=%s reason=%s suppressed=%d",
                link.peer or link.address,
                what,
                suppressed,
            )

    # ---- dialling

    async def _dial_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._dial_members()
            # Others may come at any time: the group is never done by itself.
            await asyncio.get_running_loop().create_future()

    def _dial_members(self) -> None:
        if self._group is None or self._closing:
            return
        others = self.credentials.members - {self.credentials.me}
        for member in self._dials.keys() - others:
            self._dials.pop(member).cancel()
        for member in sorted(others - self._dials.keys()):
            self._dials[member] = self._group.create_task(self._dial(member), name=f"raft dial {member}")

    def _dialling_ended(self, task: asyncio.Task[None]) -> None:
        """Only :meth:`close` may end it: a member that dials nobody would look alive and be alone."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("raft dialling failed", exc_info=error)
            self.owner.fatal(f"dialling failed: {error!r}")

    async def _dial(self, member: str) -> None:
        """Keep a link to ``member``: dial, wait until it ends, dial again. The name is resolved each time."""
        host, port = split_address(member)
        wait = RETRY_S[0]
        greater = member < self.credentials.me
        while True:
            if not greater:
                if self.tls is not None:
                    with contextlib.suppress(OSError, UnicodeError):
                        await self._resolve(host, port)
                if not await self._missed(member):
                    continue
            link: Link | None = None
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    link = await self._connect(member, await self._resolve(host, port))
            except (OSError, TimeoutError, UnicodeError) as error:
                logger.debug("raft dial failed peer=%s error=%s", member, error)
            if link is not None:
                await link.ended
                if link.peer is not None:
                    wait = RETRY_S[0]
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_S[1])

    async def _resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return where a member is; under TLS strangers are told from members by where they come from."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [(str(address[0]), int(address[1])) for *_, address in found]
        if self.tls is not None:
            self._hosts_of_members.update(host for host, _ in addresses)
        return addresses

    async def _connect(self, member: str, addresses: list[tuple[str, int]]) -> Link:
        """Dial the addresses of a member in turn.

        By address, since under uvloop what dials by name leaves the resolver's failure to nobody when its
        time is over.
        """
        loop, last = asyncio.get_running_loop(), OSError(f"{member} has no address")
        for host, port in addresses:
            try:
                _, link = await loop.create_connection(lambda: Link(self, member), host, port)
            except OSError as error:
                last = error
            else:
                return link
        raise last

    async def _missed(self, member: str) -> bool:
        """Wait for as long as the greater one has to dial; whether it has not."""
        before = self._links.get(member)
        await asyncio.sleep(LESSER_DIALS_AFTER_S)
        return before is None and member not in self._links


class _Strangers:
    """How many connections came from each host in this second."""

    _REMEMBERED_MAX: Final = 1024

    def __init__(self) -> None:
        self._second = -1
        self._counts: Counter[str] = Counter()

    def allow(self, host: str, now: float) -> bool:
        """Whether one more may begin; hosts beyond those that are remembered wait for the next second."""
        if int(now) != self._second:
            self._second = int(now)
            self._counts.clear()
        if len(self._counts) >= self._REMEMBERED_MAX and host not in self._counts:
            return False
        self._counts[host] += 1
        return self._counts[host] <= STRANGERS_PER_SECOND


class _ReportLimit:
    """At most a few log lines a second, the same one again after a while, and how many were left out."""

    _PER_SECOND: Final = 5
    _AGAIN_S: Final = 30.0
    _REMEMBERED_MAX: Final = 64

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._second = -1
        self._count = 0
        self._suppressed = 0

    def allow(self, what: str, now: float) -> int | None:
        """How many lines were left out before this one; None if it is left out, too.

        Args:
            what: What this line says again and again, empty if it does not.
        """
        if what and now - self._said.get(what, -math.inf) < self._AGAIN_S:
            self._suppressed += 1
            return None
        if int(now) != self._second:
            self._second, self._count = int(now), 0
        self._count += 1
        if self._count > self._PER_SECOND:
            self._suppressed += 1
            return None
        if what:
            if len(self._said) >= self._REMEMBERED_MAX:
                self._said.clear()
            self._said[what] = now
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


def _bind(
    found: tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]],
) -> socket.socket:
    family, kind, protocol, _, address = found
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
