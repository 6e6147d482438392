"""What the parts of one nameserver of a group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nameserver.liveness import Liveness
from nameserver.raft import RaftMember
from nameserver.routes.table import RouteTable
from nameserver.settings.changes import LiveSettings
from remoting.line_limit import LimitedLog

from .observer import Observer
from .peer_messages import Message, encode


class Links:
    """Which members are linked, as of the last look.

    Attributes:
        up: Members with a link.
    """

    def __init__(self, member: RaftMember) -> None:
        self.up: frozenset[str] = frozenset()
        self._member = member
        self._numbers: dict[str, int] = {}

    def follow(self) -> frozenset[str]:
        """Look again; returns the members that are linked anew."""
        member = self._member
        numbers = {peer: member.link_number(peer) for peer in member.linked}
        anew = frozenset(peer for peer, number in numbers.items() if self._numbers.get(peer) != number)
        self._numbers = numbers
        self.up = frozenset(numbers)
        return anew

    def number(self, member: str) -> int:
        """Return which of the links to a member this is, so that two of them are told apart."""
        return self._numbers[member]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One member with its table, what it knows of brokers, and its settings.

    Attributes:
        me: Its identity, the raft address.
        boot_id: Random number of this process.
        observer: Is told what happens here.
        peer_log: For what other members may bring about again and again.
        work_soon: Has reports, proposals and entries leave in this turn of the loop.
    """

    me: str
    boot_id: int
    loop: asyncio.AbstractEventLoop
    member: RaftMember
    links: Links
    table: RouteTable
    liveness: Liveness
    settings: LiveSettings
    observer: Observer
    peer_log: LimitedLog
    work_soon: Callable[[], None]


class Part:
    """What each part holds of them."""

    def __init__(self, given: Surroundings) -> None:
        self._me = given.me
        self._boot_id = given.boot_id
        self._loop = given.loop
        self._member = given.member
        self._links = given.links
        self._table = given.table
        self._liveness = given.liveness
        self._observer = given.observer
        self._peer_log = given.peer_log
        self._work_soon = given.work_soon

    def _send(self, member: str, message: Message) -> bool:
        """Send a message; False if there is no link, or far too much waits in it."""
        return self._member.send(member, encode(message))
