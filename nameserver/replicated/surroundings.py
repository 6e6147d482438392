"""State that the components of one replicated nameserver share."""

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
    """State that all components of one member share.

    This includes the member's table, its knowledge about the liveness of brokers, and its settings.

    Attributes:
        me: The member's identity, its raft address.
        links: The members that were linked at the last check, each with the number of its link. A new link to
            a member has another number.
        observer: Object that the components notify of events; the simulator uses it.
        closing: True after this member has begun to shut down. From then on, it begins no more work, and its
            timers do nothing.
        line: Queue of long work: registrations to decode and decide, and proposals of other members.
        work_soon: Function that requests a run of the member's work: send reports and proposals, append
            entries. The work runs after this loop iteration. Several requests in one iteration cause only
            one run.
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
    """Base class of leader, reports, reader, proposer and KV file; it holds the state that they share."""

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
        """Send a message; return False if there is no link, or if the link's buffer is full."""
        return self._member.send(member, encode(message))
