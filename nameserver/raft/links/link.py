"""One connection between two members: framing, handshake, keeping alive.

A frame is a u32 size and that many bytes; after the handshake these are one byte of kind, the payload, and
the MAC. Nothing is read from a peer before it is proven, except handshake frames of at most 1 KB within 3 s.
Under TLS (:mod:`.tls`) all of this travels inside, and the certificate of each end must name the host of
the identity that it claims.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from typing import Final, Protocol, cast

from remoting.addresses import split_address
from remoting.transport.tls import Pipe, TlsError

from .auth import NONCE_SIZE, Credentials, Handshake, LinkError, Session
from .tls import TlsContexts, names, names_host

logger = logging.getLogger(__name__)

HANDSHAKE_FRAME_MAX: Final = 1024
HANDSHAKE_TIMEOUT_S: Final = 3.0
#: A peer that does not read holds at most this much of our memory; then the link is closed.
BUFFER_MAX: Final = 64 * 1024 * 1024
#: Application messages are refused above this much unsent data.
APPLICATION_BUFFER_MAX: Final = 16 * 1024 * 1024
#: A ping leaves when nothing else did for one check; after this many checks without a byte the link is dead.
CHECK_S: Final = 1.0
SILENT_CHECKS_MAX: Final = 4

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


class Links(Protocol):
    """All links of this member as one of them sees them (:class:`.transport.Transport`)."""

    credentials: Credentials
    tls: TlsContexts | None
    owner: Owner
    frame_size_max: int

    def unproven(self, link: Link) -> None: ...
    def joined(self, link: Link, peer: str) -> None: ...
    def left(self, link: Link) -> None: ...
    def report(self, link: Link, what: str) -> None: ...


class Link(asyncio.Protocol):
    """One connection, first unproven, then of one member."""

    def __init__(self, links: Links, dialled: str | None) -> None:
        self._links = links
        self.dialled: Final = dialled  # the member that was dialled, None if it dialled us
        self._handshake = Handshake(links.credentials, peer=dialled, nonce=os.urandom(NONCE_SIZE))
        self._session: Session | None = None
        self.peer: str | None = None  # once it is proven
        self._plain_peer: str | None = None  # the proven one, if frames are neither sealed nor encrypted
        self._pipe = links.tls.pipe(accepts=dialled is None) if links.tls is not None else None
        self._encrypted = False  # the pipe is through with its own handshake
        self._buffer = bytearray()
        self._wire: asyncio.Transport  # this and the timer from the first call on
        self._timer: asyncio.TimerHandle
        self._closed = False
        self._sent_since_check = False
        self._silent_checks = 0  # since something was received
        self.host = ""  # of the other end
        self.address = dialled or "unknown"
        self.ended = asyncio.get_running_loop().create_future()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        if name := transport.get_extra_info("peername"):
            self.host = str(name[0])
            self.address = self.dialled or f"{name[0]}:{name[1]}"
        _tune(transport.get_extra_info("socket"))
        late = f"not proven within {HANDSHAKE_TIMEOUT_S:.0f} s"
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.end, late)
        self._links.unproven(self)
        if self.dialled is None or self._closed:
            return
        if self._pipe is None:
            self._write_frame(self._handshake.begin())
        else:
            self._pipe.shake(b"")
            self._wire.write(self._pipe.pending())

    def data_received(self, data: bytes) -> None:
        self._silent_checks = 0
        peer = self._plain_peer
        try:
            if (
                peer is not None
                and not self._buffer
                and len(data) > 5
                and data[4] == APPLICATION
                and int.from_bytes(data[:4], "big") + 4 == len(data)
            ):  # one message by itself, neither sealed nor encrypted: the short way for those that hurry most
                self._links.owner.application_message(peer, data[5:])
            else:
                self._take_bytes(data if self._pipe is None else self._decrypt(self._pipe, data))
        except (LinkError, TlsError) as error:
            self.end(str(error), flush=True)

    def _decrypt(self, pipe: Pipe, data: bytes) -> bytes:
        before = self._encrypted
        try:
            if not before:
                self._encrypted, data = pipe.shake(data), b""
            plain = pipe.open(data) if self._encrypted else None
        finally:
            if answer := pipe.pending():  # in a failure it tells the peer what is wrong
                self._wire.write(answer)
        if self._encrypted and not before and self.dialled is not None:
            self._check_name(pipe, self.dialled)
            self._write_frame(self._handshake.begin())
        return plain or b""

    def _check_name(self, pipe: Pipe, member: str) -> None:
        host, _ = split_address(member)
        certificate = pipe.certificate()
        if not names_host(certificate, host):
            raise LinkError(f"certificate names {names(certificate)}, not {host} as {member} must")

    def _take_bytes(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position, end = 0, len(buffer)
        if self._session is None and self._pipe is None and buffer.startswith(_TLS_RECORDS):
            raise LinkError("it speaks TLS, which this member is not set up for")
        with memoryview(buffer) as view:
            while end - position >= 4 and not self._closed:
                (size,) = _SIZE.unpack_from(view, position)
                limit = HANDSHAKE_FRAME_MAX if self._session is None else self._links.frame_size_max
                if size > limit:
                    raise LinkError(f"frame of {size} bytes, at most {limit} are allowed")
                if end - position - 4 < size:
                    break
                with view[position + 4 : position + 4 + size] as frame:
                    self._take(frame)
                position += 4 + size
        if position and not self._closed:
            self._buffer = buffer[position:]  # a failed reader may hold a view of it still: it cannot shrink

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed and (why := self._why_it_left()):
            self._links.report(self, why)
        self.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _why_it_left(self) -> str:
        """What it means that the peer closes the connection now, so that both ends say what is wrong."""
        pipe = self._pipe
        if self._session is not None:
            return ""
        if self.dialled is not None:
            if pipe is not None and not self._encrypted:
                return "it ended the TLS handshake: is it set up for TLS?"
            return self._handshake.refusal
        if pipe is None or not self._encrypted or self._handshake.peer is not None:
            return ""
        return f"{names(pipe.certificate())} left without a word: does our certificate name this member?"

    # ---- frames

    def _take(self, frame: memoryview) -> None:
        session = self._session
        if session is None:
            answer = self._handshake.receive(bytes(frame))
            if self._pipe is not None and self.dialled is None:
                assert self._handshake.peer is not None
                self._check_name(self._pipe, self._handshake.peer)
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
        kind, payload = body[0], body[1:]
        if kind == RAFT:
            self._links.owner.raft_message(session.peer, payload)
        elif kind == APPLICATION:
            self._links.owner.application_message(session.peer, bytes(payload))
        elif kind != PING:
            raise LinkError(f"frame of unknown kind {kind}")

    def _proven(self, session: Session) -> None:
        self._session, self.peer = session, session.peer
        if self._pipe is None and not session.incoming.size:
            self._plain_peer = session.peer
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        self._links.joined(self, session.peer)

    def _write_frame(self, frame: bytes) -> None:
        if not self._closed:
            data = _SIZE.pack(len(frame)) + frame
            self._wire.write(data if self._pipe is None else self._pipe.seal(data))

    def send(self, kind: int, payload: bytes) -> bool:
        """Send one frame to the proven peer; False if the link is down or its buffer is full."""
        session, wire = self._session, self._wire
        if session is None or self._closed:
            return False
        size, limit = len(payload), self._links.frame_size_max
        if 1 + size + session.outgoing.size > limit:
            # The peer would end the link over it, and over the next one, for as long as it is sent again.
            logger.error("message refused peer=%s kind=%d bytes=%d limit=%d", self.peer, kind, size, limit)
            return False
        waiting = wire.get_write_buffer_size()
        if waiting > APPLICATION_BUFFER_MAX and kind == APPLICATION:
            return False
        if waiting > BUFFER_MAX:
            # Never leave out a message on a link that stays: the peer could not know.
            self._links.report(self, f"{waiting} bytes unsent")
            asyncio.get_running_loop().call_soon(self.close)
            return False
        kind_byte = kind.to_bytes(1, "big")
        mac = session.outgoing.next(kind_byte, payload)
        self._sent_since_check = True
        parts = (_SIZE.pack(1 + size + len(mac)), kind_byte, payload, mac)
        if self._pipe is not None:
            wire.write(self._pipe.seal(b"".join(parts)))
        elif size < _JOIN_MAX:
            wire.write(b"".join(parts))
        else:
            wire.writelines(parts)
        return True

    # ---- ends

    def _check(self) -> None:
        """D24: an idle link is kept in use: its death is noticed, its first message not lost."""
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self.end(f"silent for {SILENT_CHECKS_MAX * CHECK_S:.0f} s")
            return
        if not self._sent_since_check:
            self.send(PING, b"")
        self._sent_since_check = False
        self._silent_checks += 1
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def end(self, why: str, *, flush: bool = False) -> None:
        """Say why, and close."""
        self._links.report(self, why)
        self.close(flush=flush)

    def close(self, *, flush: bool = False) -> None:
        """Drop the connection at once; what is unsent is lost, unless ``flush`` and the peer reads on."""
        if self._closed:
            return
        self._closed = True
        self._plain_peer = None
        self._buffer = bytearray()
        self._timer.cancel()
        if flush:
            self._wire.close()
        else:
            self._wire.abort()
        self._links.left(self)


def _tune(connection: socket.socket) -> None:
    """Small messages leave at once; a dead host is noticed within seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
