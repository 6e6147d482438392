"""All links of one member, on the running event loop.

In each pair of members, the member with the greater identity (compared as text) dials. The member with the
lesser identity dials only in two cases:

- Once, :data:`FIRST_DIAL_AFTER_S` seconds after its start. The other member may have dialled in vain before
  this start, and may be waiting before its next dial.
- After :data:`LESSER_DIALS_AFTER_S` seconds without a link. The other member may not know this member yet.

A connection is unproven until the peer has proved its identity. Two bounds limit the number of unproven
connections: a bound for all hosts together, and a bound for each host that belongs to no member. If a flood
of connections exceeds a bound, this member closes the oldest connections of the flood. It never closes
connections that it dialled itself.

A frame has a size (u32) and then this number of bytes. After the handshake, these bytes are the kind (one
byte), the payload, and the MAC of :mod:`.auth`. From an unproven peer, this member reads only handshake
frames of at most 1 KB, for at most 3 s. With TLS (:mod:`.tls`) all frames travel inside TLS. The certificate
of each end must then name the host of the identity that this end claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import Counter
from typing import Final, Protocol, cast

from routekeeper.nameserver.raft.types import RaftStartError, needed_to_start
from routekeeper.remoting.addresses import is_loopback, join_address, network_of, split_address
from routekeeper.remoting.line_limit import LimitedLog, LineLimit
from routekeeper.remoting.transport.accepting import stop_accepting
from routekeeper.remoting.transport.lookups import addresses_of, hosts_to_listen_on
from routekeeper.remoting.transport.tls import Pipe, TlsError

from .auth import NONCE_SIZE, Credentials, Handshake, LinkError
from .tls import TlsContexts, names, names_host

logger = logging.getLogger(__name__)

#: Largest number of unproven connections that other hosts opened. This member's own dials are not counted.
UNPROVEN_MAX: Final = 64
#: Largest number of unproven connections from one host that belongs to no member. An IPv6 network with a
#: prefix of 64 bits counts as one host.
UNPROVEN_PER_ADDRESS: Final = 16
#: Largest number of TLS connections that one host may open in a second, if the host belongs to no member.
#: Each TLS handshake takes time of the event loop.
STRANGERS_PER_SECOND: Final = 20
#: Largest number of TLS connections per second from all hosts together that belong to no member. The first
#: connection of each host in a second counts against one limit of this size. All further connections count
#: against a second limit of the same size. So a few hosts with many connections cannot block other hosts.
STRANGERS_PER_SECOND_OVERALL: Final = 50
#: Largest number of links to peers that claim the same cluster but are not in this member's configuration.
#: The cluster may have added or removed these peers while this member was away. The bound is needed because,
#: without a secret, any program on this machine can claim to be such a peer.
OUTSIDERS_MAX: Final = 16
#: Seconds from a failed dial to the next dial. The first value doubles with each failure, up to the second
#: value.
RETRY_S: Final = (0.05, 0.5)
#: The member with the lesser identity dials this number of seconds after its start, if it has no link by
#: then.
FIRST_DIAL_AFTER_S: Final = 0.05
#: The member with the lesser identity dials, too, after this number of seconds without a link.
LESSER_DIALS_AFTER_S: Final = 3.0
#: Shortest time in seconds between two log lines about closed unproven connections, if the host and the
#: reason are the same.
REPORT_AGAIN_S: Final = 30.0
#: Largest number of log lines about unproven connections in REPORT_AGAIN_S seconds.
REPORTS_MAX: Final = 150

HANDSHAKE_FRAME_MAX: Final = 1024
HANDSHAKE_TIMEOUT_S: Final = 3.0
#: Largest number of unsent bytes for one peer. If there are more, this member closes the link.
BUFFER_MAX: Final = 64 * 1024 * 1024
#: With more than this number of unsent bytes for a peer, :meth:`Link.send` refuses application messages to
#: it.
APPLICATION_BUFFER_MAX: Final = 16 * 1024 * 1024
#: Seconds between two checks of a link. At a check, a link that sent nothing since the last check sends a
#: ping. After SILENT_CHECKS_MAX checks without a received byte, the link counts as dead and is closed.
CHECK_S: Final = 1.0
SILENT_CHECKS_MAX: Final = 4

PING: Final = 0
RAFT: Final = 1
APPLICATION: Final = 2

_SIZE: Final = struct.Struct(">I")
#: A frame's size, and its kind.
_HEAD: Final = struct.Struct(">IB")
#: The first two bytes of a TLS handshake record, and of a TLS alert that refuses the handshake.
_TLS_RECORDS: Final = (b"\x16\x03", b"\x15\x03")
#: For frames below this size in bytes, one copy of all parts into one buffer is faster than several writes.
_JOIN_MAX: Final = 64 * 1024


class LinkOwner(Protocol):
    """Methods of the member that its links call, on the event loop."""

    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def raft_message(self, peer: str, data: bytes | memoryview) -> None:
        """Handle a message of the engine.

        Raises:
            LinkError: The caller must close the link.
        """

    def application_message(self, peer: str, data: bytes) -> None: ...
    def fatal(self, reason: str) -> None: ...


class Strangers:
    """Counter of the present second's connections from hosts that belong to no member."""

    def __init__(self) -> None:
        self._second = -1
        self._counts: Counter[str] = Counter()
        self._further = 0  # number of connections that were not the first of their host

    def allow(self, host: str, now: float) -> bool:
        """Return True if ``host`` may open one more connection in this second, and count this connection."""
        if int(now) != self._second:
            self._second = int(now)
            self._counts.clear()
            self._further = 0
        count = self._counts[host]
        if not count:
            may_begin = len(self._counts) < STRANGERS_PER_SECOND_OVERALL
        else:
            may_begin = count < STRANGERS_PER_SECOND and self._further < STRANGERS_PER_SECOND_OVERALL
            self._further += may_begin
        if may_begin:
            self._counts[host] += 1
        return may_begin


class Transport:
    """All links of one member."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        owner: LinkOwner,
        frame_size_max: int,
        tls: TlsContexts | None = None,
    ) -> None:
        self.credentials = credentials
        self.tls = tls
        self.owner = owner
        self.frame_size_max = frame_size_max
        self._links: dict[str, Link] = {}
        self._open: dict[Link, None] = {}  # all connections, oldest first
        self._hosts_of_members: set[str] = set()  # known IP addresses of members
        self._strangers = Strangers()
        self._attempts: Counter[str] = Counter()  # number of dials whose proof was refused, by member
        self._server: asyncio.Server | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        clock = asyncio.get_running_loop().time
        limit = LineLimit(per_peer=1, overall=REPORTS_MAX, window_s=REPORT_AGAIN_S)
        self._of_strangers = LimitedLog(logger, clock, limit)
        # Proven peers have a separate limit for log lines, so that a flood of other connections cannot hide
        # their lines.
        self._of_proven = LimitedLog(logger, clock)

    async def listen(self, address: str) -> str:
        """Bind the address, and return the bound address. Connections wait until :meth:`go`.

        Raises:
            RaftStartError: The address cannot be bound, or it is unsafe: other machines can reach it, and
                there is neither a secret nor TLS.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        with needed_to_start(f"cannot listen on {address}", OSError):
            hosts = await hosts_to_listen_on(host)
            at = hosts if isinstance(hosts, str) else hosts[0]
            flags = socket.AI_PASSIVE | socket.AI_NUMERICHOST  # the look-up of a name would block the loop
            found = socket.getaddrinfo(at or None, port, type=socket.SOCK_STREAM, flags=flags)
            family, *_, name = found[0]
            listener = _bind(family, name)
        bound_host, bound_port = listener.getsockname()[:2]
        if self.credentials.secret is None and self.tls is None and not is_loopback(bound_host):
            listener.close()
            raise RaftStartError(
                f"raft: {bound_host}:{bound_port} can be reached from other machines: a secret is needed, "
                "or certificates"
            )
        self._server = await loop.create_server(lambda: Link(self, None), sock=listener, start_serving=False)
        return join_address(bound_host, bound_port)

    async def go(self) -> None:
        """Accept connections, and dial the other members."""
        assert self._server is not None
        await self._server.start_serving()
        self._dialling = asyncio.get_running_loop().create_task(self._dial_all(), name="raft dial")

    async def close(self) -> None:
        """Close all links and the listening socket, and wait until they are closed."""
        self._closing = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._server is not None:
            await stop_accepting(self._server)
        links = list(self._open)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.ended for link in links], timeout=1.0)
        if self._server is not None:
            await self._server.wait_closed()

    def use_credentials(self, credentials: Credentials) -> None:
        """Use other credentials from the next handshake on, and dial the members that they name.

        Present links stay, even if the other end is no member any more.
        """
        if credentials != self.credentials:
            self.credentials = credentials
            self._dial_members()

    def send(self, peer: str, kind: int, payload: bytes) -> bool:
        link = self._links.get(peer)
        return link is not None and link.send(kind, payload)

    def attempt(self, member: str | None) -> int:
        """Return the number of proofs that ``member`` refused. This number selects the next dial's secret."""
        return 0 if member is None else self._attempts[member]

    def proof_refused(self, member: str) -> None:
        """Count a refused proof, so that the next dial uses the next secret."""
        self._attempts[member] += 1

    def drop(self, peer: str) -> None:
        """Close the link to ``peer``. A later dial opens a new link."""
        if (link := self._links.get(peer)) is not None:
            link.close()

    # ---- links

    def unproven(self, link: Link) -> None:
        """Record a new connection, and close an old unproven connection if there are too many.

        The bounds count only connections that other hosts opened. If the bound of one host is exceeded, the
        oldest connection of this host is closed. If the bound for all hosts is exceeded, the oldest
        connection of the host with most connections is closed. So a member can always connect, even if other
        hosts open many connections, because a new connection is never the oldest.
        """
        if self._closing:
            link.close()
            return
        self._open[link] = None
        if link.dialled is not None:
            return
        network = network_of(link.host)
        known = link.host in self._hosts_of_members
        now = asyncio.get_running_loop().time()
        if self.tls is not None and not known and not self._strangers.allow(network, now):
            link.close(f"more than {STRANGERS_PER_SECOND} connections a second from there, or many in all")
            return
        accepted = self._accepted()
        of_host = [other for other in accepted if network_of(other.host) == network]
        if len(of_host) > UNPROVEN_PER_ADDRESS and not known:
            of_host[0].close(f"more than {UNPROVEN_PER_ADDRESS} unproven connections from there")
        elif len(accepted) > UNPROVEN_MAX:
            networks = [network_of(other.host) for other in accepted]
            most, _ = Counter(networks).most_common(1)[0]
            oldest = accepted[networks.index(most)]
            oldest.close(f"more than {UNPROVEN_MAX} unproven connections")

    def _accepted(self) -> list[Link]:
        """Return the unproven connections that other hosts opened, oldest first."""
        return [link for link in self._open if link.dialled is None and link.peer is None]

    def joined(self, link: Link, peer: str) -> None:
        old = self._links.get(peer)
        members = self.credentials.members
        if old is None and peer not in members and len(self._links.keys() - members) >= OUTSIDERS_MAX:
            link.close(f"more than {OUTSIDERS_MAX} links to peers that are no members")
            return
        self._hosts_of_members.add(link.host)
        if old is not None and self._rank(old, peer) > self._rank(link, peer):
            link.close(flush=True)  # Both members dialled at once. _rank() makes both keep the same link.
            return
        if old is not None:  # close the old link first, so that no byte of it arrives after link_up()
            old.close()
        self._links[peer] = link
        self.owner.link_up(peer)

    def _rank(self, link: Link, peer: str) -> bool:
        """Return True if the member with the greater identity dialled ``link``. Such a link is preferred."""
        return (link.dialled is not None) == (peer < self.credentials.me)

    def left(self, link: Link) -> None:
        self._open.pop(link, None)
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.owner.link_down(link.peer)

    def report(self, link: Link, what: str) -> None:
        """Log why a connection closed. Of many similar lines about unproven peers, log only the first."""
        line = "raft link closed peer=%s reason=%s"
        if link.peer is not None:
            self._of_proven.write(logging.WARNING, link.peer, line, link.peer, what)
        else:
            host = link.address.rpartition(":")[0]
            self._of_strangers.write(logging.WARNING, f"{network_of(host)} {what}", line, link.address, what)

    # ---- dialling

    async def _dial_all(self) -> None:
        """Dial all members until :meth:`close`.

        If this task fails, the member stops. Otherwise the member would look healthy, but could reach no
        other member.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._dial_members()
                # Keep the task group open, because members may be added at any time.
                await asyncio.get_running_loop().create_future()
        except Exception as error:
            logger.critical("raft dialling failed", exc_info=error)
            self.owner.fatal(f"dialling failed: {error!r}")

    def _dial_members(self) -> None:
        if self._group is None or self._closing:
            return
        others = self.credentials.members - {self.credentials.me}
        for member in self._dials.keys() - others:
            self._dials.pop(member).cancel()
        for member in sorted(others - self._dials.keys()):
            self._dials[member] = self._group.create_task(self._dial(member), name=f"raft dial {member}")

    async def _dial(self, member: str) -> None:
        """Keep a link to ``member``: dial, wait until the link ends, and dial again.

        Each dial resolves the member's name again.
        """
        host, port = split_address(member)
        wait = RETRY_S[0]
        greater = member < self.credentials.me
        pause_s = FIRST_DIAL_AFTER_S
        while True:
            if not greater:
                if self.tls is not None:
                    with contextlib.suppress(OSError, UnicodeError):
                        await self._resolve(host)
                before = self._links.get(member)
                await asyncio.sleep(pause_s)  # let the member with the greater identity dial
                pause_s = LESSER_DIALS_AFTER_S
                if before is not None or member in self._links:
                    continue
            link = self._links.get(member)  # not None if the other member has dialled meanwhile
            try:
                if link is None:
                    link = await self._connect(member, await self._resolve(host), port)
            except (OSError, UnicodeError) as error:
                logger.debug("raft dial failed peer=%s error=%s", member, error)
            else:
                # A plain `await link.ended` would also cancel the link's future if this task is cancelled.
                await asyncio.wait([link.ended])
                if link.peer is not None:
                    wait = RETRY_S[0]
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_S[1])

    async def _resolve(self, host: str) -> list[str]:
        """Return a member's IP addresses. Under TLS, also remember them as hosts of members."""
        addresses = await addresses_of(host, timeout_s=HANDSHAKE_TIMEOUT_S)
        if self.tls is not None:
            self._hosts_of_members.update(addresses)
        return addresses

    async def _connect(self, member: str, addresses: list[str], port: int) -> Link:
        """Dial the addresses of a member, one after the other, until a connection opens.

        The caller has resolved the name, because uvloop reports some failures of its own resolver too late to
        handle them.
        """
        loop, last = asyncio.get_running_loop(), OSError(f"{member} has no address")
        for host in addresses:
            try:
                # Each address has its own time limit, because an address that does not answer must not delay
                # the other addresses for ever.
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    _, link = await loop.create_connection(lambda: Link(self, member), host, port)
                return link
            except OSError as error:
                last = error
        raise last


def _bind(family: int, address: tuple[str | int | bytes, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


class Link(asyncio.Protocol):
    """One connection, which becomes the link to one member when the peer has proved its identity."""

    def __init__(self, links: Transport, dialled: str | None) -> None:
        self._links = links
        self.dialled: Final = dialled  # the member that this member dialled; None for an accepted connection
        self._handshake = Handshake(
            links.credentials, peer=dialled, nonce=os.urandom(NONCE_SIZE), attempt=links.attempt(dialled)
        )
        self.peer: str | None = None  # the peer's identity, once it is proven
        self._plain_peer: str | None = None  # the peer's identity if frames have no MAC and no encryption
        self._pipe: Pipe | None = None  # the TLS connection; set by connection_made if TLS is used
        self._encrypted = False  # True once the TLS handshake is complete
        self._buffer = bytearray()
        self._wire: asyncio.Transport  # connection_made sets this field and the timer
        self._timer: asyncio.TimerHandle
        self._closed = False
        self._sent_since_check = False
        self._silent_checks = 0  # number of checks since the last received byte
        self.host = ""  # IP address of the other end
        self.address = dialled or "unknown"
        self.ended = asyncio.get_running_loop().create_future()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from asyncio's
        if name := transport.get_extra_info("peername"):
            self.host = str(name[0])
            self.address = self.dialled or f"{name[0]}:{name[1]}"
        _tune(transport.get_extra_info("socket"))
        late = f"not proven within {HANDSHAKE_TIMEOUT_S:.0f} s"
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.close, late)
        self._links.unproven(self)
        if self._closed:
            return
        # Create TLS state only now, so that a refused connection takes little time.
        if self._links.tls is not None:
            self._pipe = self._links.tls.pipe(accepts=self.dialled is None)
        if self.dialled is None:
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
                and int.from_bytes(data[:4], "big") + 4 == len(data)
            ):  # fast path for the usual case without a secret: one whole message, without MAC and encryption
                self._hand_up(peer, data[4], data[5:])
            else:
                self._take_bytes(data if self._pipe is None else self._decrypt(self._pipe, data))
        except (LinkError, TlsError) as error:
            self.close(str(error), flush=True)

    def _decrypt(self, pipe: Pipe, data: bytes) -> bytes:
        before = self._encrypted
        try:
            if not before:
                self._encrypted, data = pipe.shake(data), b""
            plain = pipe.open(data) if self._encrypted else None
        finally:
            if answer := pipe.pending():  # after a failure, the answer tells the peer the reason
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
        if self.peer is None and self._pipe is None and buffer.startswith(_TLS_RECORDS):
            raise LinkError("it speaks TLS, which this member is not set up for")
        with memoryview(buffer) as view:
            while end - position >= 4 and not self._closed:
                (size,) = _SIZE.unpack_from(view, position)
                limit = HANDSHAKE_FRAME_MAX if self.peer is None else self._links.frame_size_max
                if size > limit:
                    raise LinkError(f"frame of {size} bytes, at most {limit} are allowed")
                if end - position - 4 < size:
                    break
                with view[position + 4 : position + 4 + size] as frame:
                    self._take(frame)
                position += 4 + size
        if position and not self._closed:
            # Copy the unread bytes instead of shrinking the buffer. If a message's handler raised an error,
            # the traceback may still hold a view of the buffer, so that shrinking would raise an error, too.
            self._buffer = buffer[position:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("" if self._closed else self._why_it_left())
        if self.dialled is not None and self._handshake.is_proof_refused:
            self._links.proof_refused(self.dialled)
        if not self.ended.done():
            self.ended.set_result(None)

    def _why_it_left(self) -> str:
        """Return the likely reason why the peer closed the connection, or "" if no log line is needed."""
        pipe = self._pipe
        if self.peer is not None:
            return ""
        if self.dialled is not None:
            if pipe is not None and not self._encrypted:
                return "it ended the TLS handshake: is it set up for TLS?"
            return self._handshake.refusal
        if pipe is None or not self._encrypted or self._handshake.peer:
            return ""
        return f"{names(pipe.certificate())} left without a word: does our certificate name this member?"

    # ---- frames

    def _take(self, frame: memoryview) -> None:
        handshake, peer = self._handshake, self.peer
        if peer is None:
            answer = handshake.receive(bytes(frame))
            if self._pipe is not None and self.dialled is None:
                self._check_name(self._pipe, handshake.peer)
            if answer is not None:
                self._write_frame(answer)
            if handshake.proven:
                self._proven(handshake.peer)
            return
        body_size = len(frame) - handshake.incoming.size
        if body_size < 1:
            raise LinkError(f"frame of {len(frame)} bytes is too short")
        body = frame[:body_size]
        if handshake.incoming.size:
            handshake.incoming.check(body, frame[body_size:])
        self._hand_up(peer, body[0], body[1:])

    def _hand_up(self, peer: str, kind: int, payload: bytes | memoryview) -> None:
        """Pass the content of a frame to the owner of the links.

        Raises:
            LinkError: The link must be closed.
        """
        if kind == RAFT:
            self._links.owner.raft_message(peer, payload)
        elif kind == APPLICATION:
            self._links.owner.application_message(peer, bytes(payload))
        elif kind != PING:
            raise LinkError(f"frame of unknown kind {kind}")

    def _proven(self, peer: str) -> None:
        self.peer = peer
        if self._pipe is None and not self._handshake.incoming.size:
            self._plain_peer = peer
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        self._links.joined(self, peer)

    def _write_frame(self, frame: bytes) -> None:
        if not self._closed:
            data = _SIZE.pack(len(frame)) + frame
            self._wire.write(data if self._pipe is None else self._pipe.seal(data))

    def send(self, kind: int, payload: bytes) -> bool:
        """Send one frame to the proven peer.

        Return False if no link is up, the frame is too large, or too many bytes are unsent.
        """
        seal, wire = self._handshake.outgoing, self._wire
        if self.peer is None or self._closed:
            return False
        size, limit = len(payload), self._links.frame_size_max
        if 1 + size + seal.size > limit:
            # Refuse a message that is too large. The peer would close this link, and each later link over
            # which the message is sent again.
            logger.error("message refused peer=%s kind=%d bytes=%d limit=%d", self.peer, kind, size, limit)
            return False
        waiting = wire.get_write_buffer_size()
        if waiting > APPLICATION_BUFFER_MAX and kind == APPLICATION:
            return False
        if waiting > BUFFER_MAX:
            # Close the link. If it stayed up without this message, the peer could not notice the gap.
            self._links.report(self, f"{waiting} bytes unsent")
            asyncio.get_running_loop().call_soon(self.close)
            return False
        head = _HEAD.pack(1 + size + seal.size, kind)
        mac = seal.next(head[_SIZE.size :], payload) if seal.size else b""
        self._sent_since_check = True
        if self._pipe is not None:
            wire.write(self._pipe.seal(head + payload + mac))
        elif size < _JOIN_MAX:
            wire.write(head + payload + mac)
        else:
            wire.writelines((head, payload, mac))
        return True

    # ---- checking and closing

    def _check(self) -> None:
        """Send a ping over an idle link, so that this member detects a dead link before it sends a message.

        PySyncObj's own transport sends no pings. After a silence, it drops the connection together with the
        next message (PySyncObj defect D24).
        """
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self.close(f"silent for {SILENT_CHECKS_MAX * CHECK_S:.0f} s")
            return
        if not self._sent_since_check:
            self.send(PING, b"")
        self._sent_since_check = False
        self._silent_checks += 1
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def close(self, why: str = "", *, flush: bool = False) -> None:
        """Close the connection at once.

        Unsent bytes are lost. With ``flush``, unsent bytes are still sent if the peer continues to read.

        Args:
            why: Reason for the log; empty to log nothing.
        """
        if why:
            self._links.report(self, why)
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
    """Set socket options, so that small messages leave at once and a dead host is detected in seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
