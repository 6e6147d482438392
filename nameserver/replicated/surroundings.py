"""What the parts of one nameserver of a group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from routekeeper.nameserver.liveness import Liveness
from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings

from .observer import Observer
from .peer_messages import Message, encode


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """One member with its table, what it knows of brokers, and its settings.

    Attributes:
        me: Its identity, the raft address.
        links: Who is linked, as of the last look, and the number of that link, which tells links apart.
        observer: Is told what happens here.
        closing: This member is about to end, and begins nothing any more; timers that fire do nothing.
        line: What takes long waits here for its turn: registrations that are decoded and decided, proposals
            of other members.
        work_soon: Has reports, proposals and entries leave in this turn of the loop.
    """

    me: str
    loop: asyncio.AbstractEventLoop
    member: RaftMember
    table: RouteTable
    liveness: Liveness
    settings: LiveSettings
    observer: Observer
    work_soon: Callable[[], None]
    line: Line
    links: dict[str, int] = field(default_factory=dict)
    closing: bool = False


class Part:
    """What each part holds of them."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._me = given.me
        self._loop = given.loop
        self._member = given.member
        self._links = given.links
        self._table = given.table
        self._liveness = given.liveness
        self._observer = given.observer
        self._work_soon = given.work_soon
        self._line = given.line

    def _send(self, member: str, message: Message) -> bool:
        """Send a message; False if there is no link, or far too much waits in it."""
        return self._member.send(member, encode(message))
