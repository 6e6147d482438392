"""All links of one member on the running event loop: who may connect, who dials whom, dialling again.

Of two members the one with the greater identity dials; the other only if there has been no link for a while,
for the greater one may not know it yet (or any more). Connections that have proved nothing are bounded, in
all and from each host that is no member's; a flood pushes out its own oldest, and none of our own dials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import Final

from nameserver.raft.types import RaftStartError
from remoting.addresses import is_loopback, join_address, split_address
from remoting.line_limit import LimitedLog, LineLimit

from .auth import Credentials
from .link import HANDSHAKE_TIMEOUT_S, Link, Owner
from .tls import TlsContexts

logger = logging.getLogger(__name__)

#: Connections that others opened, over which nobody has proved anything yet; our own dials are none of them.
UNPROVEN_MAX: Final = 64
#: Of those, from one address that is no member's.
UNPROVEN_PER_ADDRESS: Final = 16
#: Under TLS, where each costs a handshake on the loop that serves: from such an address in one second.
STRANGERS_PER_SECOND: Final = 20
#: Links to peers of the same cluster that are in no configuration here: they may have been added, or removed,
#: while this member was away. On loopback without a secret anybody can say so.
OUTSIDERS_MAX: Final = 16
RETRY_S: Final = (0.05, 0.5)
#: Without a link for so long, the lesser of two members dials as well.
LESSER_DIALS_AFTER_S: Final = 3.0
#: What is logged of a host's unproven connections for one reason is logged again after so long.
REPORT_AGAIN_S: Final = 30.0
#: Lines about unproven connections in that time.
REPORTS_MAX: Final = 150


class Strangers:
    """How many connections that have proved nothing came from each host in this second."""

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


class Transport:
    """All links of one member."""

    def __init__(
        self, credentials: Credentials, *, owner: Owner, frame_size_max: int, tls: TlsContexts | None = None
    ) -> None:
        self.credentials = credentials
        self.tls = tls
        self.owner = owner
        self.frame_size_max = frame_size_max
        self._links: dict[str, Link] = {}
        self._open: dict[Link, None] = {}  # all connections, oldest first
        self._hosts_of_members: set[str] = set()  # where members are, as far as is known
        self._strangers = Strangers()
        self._server: asyncio.Server | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        clock = asyncio.get_running_loop().time
        limit = LineLimit(per_peer=1, overall=REPORTS_MAX, window_s=REPORT_AGAIN_S)
        self._of_strangers = LimitedLog(logger, clock, limit)
        self._of_proven = LimitedLog(logger, clock)  # apart, so that strangers cannot use its lines up

    async def listen(self, address: str) -> str:
        """Bind; return the bound address. Connections wait until :meth:`go`.

        Raises:
            RaftStartError: The address cannot be bound, or is open to others and they need prove nothing.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, at = found[0]
            listener = _bind(family, at)
        except OSError as error:
            raise RaftStartError(f"raft: cannot listen on {address}: {error.strerror or error}") from error
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
        """Accept, and dial those whom it is ours to dial."""
        assert self._server is not None
        await self._server.start_serving()
        self._dialling = asyncio.get_running_loop().create_task(self._dial_all(), name="raft dial")

    async def close(self) -> None:
        """Close everything and wait until it is closed."""
        self._closing = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._server is not None:
            self._server.close()
        links = list(self._open)
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
        if credentials != self.credentials:
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
        self._open[link] = None
        if link.dialled is not None:
            return
        host = link.host
        known = host in self._hosts_of_members
        now = asyncio.get_running_loop().time()
        if self.tls is not None and not known and not self._strangers.allow(host, now):
            link.end(f"more than {STRANGERS_PER_SECOND} connections a second from there")
            return
        accepted = self._accepted()
        of_host = [other for other in accepted if other.host == host]
        if len(of_host) > UNPROVEN_PER_ADDRESS and not known:
            of_host[0].end(f"more than {UNPROVEN_PER_ADDRESS} unproven connections from there")
        elif len(accepted) > UNPROVEN_MAX:
            most, _ = Counter(other.host for other in accepted).most_common(1)[0]
            oldest = next(other for other in accepted if other.host == most)
            oldest.end(f"more than {UNPROVEN_MAX} unproven connections")

    def _accepted(self) -> list[Link]:
        """Unproven connections that others opened, oldest first."""
        return [link for link in self._open if link.dialled is None and link.peer is None]

    def joined(self, link: Link, peer: str) -> None:
        old = self._links.get(peer)
        members = self.credentials.members
        if old is None and peer not in members and len(self._links.keys() - members) >= OUTSIDERS_MAX:
            link.end(f"more than {OUTSIDERS_MAX} links to peers that are no members")
            return
        self._hosts_of_members.add(link.host)
        if old is not None and self._rank(old, peer) > self._rank(link, peer):
            link.close(flush=True)  # both dialled at once: both keep the same connection
            return
        if old is not None:  # nothing of the old connection may arrive after the new one is up
            old.close()
        self._links[peer] = link
        self.owner.link_up(peer)

    def _rank(self, link: Link, peer: str) -> bool:
        """Whether the greater of the two identities dialled, as it should."""
        return (link.dialled is not None) == (peer < self.credentials.me)

    def left(self, link: Link) -> None:
        self._open.pop(link, None)
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.owner.link_down(link.peer)

    def report(self, link: Link, what: str) -> None:
        """One log line a closed connection; of strangers not the same again and again, nor one for each."""
        line = "raft link closed peer=%s reason=%s"
        if link.peer is not None:
            self._of_proven.write(logging.WARNING, link.peer, line, link.peer, what)
        else:
            host = link.address.rpartition(":")[0]
            self._of_strangers.write(logging.WARNING, f"{host} {what}", line, link.address, what)

    # ---- dialling

    async def _dial_all(self) -> None:
        """Only :meth:`close` may end it: a member that dials nobody would look alive and be alone."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._dial_members()
                # Others may come at any time: the group is never done by itself.
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
        """Keep a link to ``member``: dial, wait until it ends, dial again. The name is resolved each time."""
        host, port = split_address(member)
        wait = RETRY_S[0]
        greater = member < self.credentials.me
        while True:
            if not greater:
                if self.tls is not None:
                    with contextlib.suppress(OSError, UnicodeError):
                        await self._resolve(host, port)
                before = self._links.get(member)
                await asyncio.sleep(LESSER_DIALS_AFTER_S)  # for as long as the greater one has to dial
                if before is not None or member in self._links:
                    continue
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    link = await self._connect(member, await self._resolve(host, port))
            except (OSError, UnicodeError) as error:
                logger.debug("raft dial failed peer=%s error=%s", member, error)
            else:
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
