"""State that the components of one nameserver of a group share."""

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
    """One member with its table, its evidence about brokers, and its settings.

    Attributes:
        me: Its identity, the raft address.
        links: The linked members when last checked, each with the number of its present link.
        observer: Notified of events, for the simulator.
        closing: This member is about to end. It begins nothing more, and timers do nothing.
        line: Queue of long work: registrations to decode and decide, and proposals of other members.
        work_soon: Sends reports, proposals and entries at the end of this turn of the loop.
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


class Component:
    """Base of leader, reports, reader, proposer and KV file, with the state that all of them need."""

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
        """Send a message; return False if there is no link, or its buffer is full."""
        return self._member.send(member, encode(message))
