"""Handlers of the resources below ``/v1/console``.

The handlers change nothing. The page at ``/`` and other nameservers read these resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import msgspec
from aiohttp import web

from routekeeper.nameserver.http.coding import has_tag
from routekeeper.nameserver.http.lane import Lane
from routekeeper.nameserver.http.openapi import Answer, Serves
from routekeeper.nameserver.http.problems import HEADERS, JSON, Problem, check_query
from routekeeper.nameserver.http.reads import whole_number
from routekeeper.nameserver.modes.interface import Consistency
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.addresses import join_address
from routekeeper.remoting.steps import Steps

from .asking import Peers
from .bodies import History, HistoryEvent, Own, OwnTopic, Picture, Pulse, TopicEverywhere
from .own import own_part, own_topic
from .picture import Told, making_picture, pulse_of, topic_everywhere

HISTORY_MAX: Final = 300
"""Largest number of events in a history; the newest events are shown."""
_PROBLEMS: Final = {
    400: "A parameter is unknown or wrong.",
    503: "This nameserver has too many requests at present; see Retry-After.",
}


class Console:
    """The comparison of all nameservers (the picture), and its sources.

    Attributes:
        tag: Tag of the newest picture made after a round of requests to peers; empty before the first
            picture.
    """

    def __init__(
        self,
        consistency: Consistency,
        server: NameServer,
        settings: LiveSettings,
        lane: Lane,
        *,
        version: str,
    ) -> None:
        self._consistency = consistency
        self._settings = settings
        self._lane = lane
        self._version = version
        self._loop = asyncio.get_running_loop()
        self.peers = Peers(consistency, server, settings, after_round=self._look)
        self.tag = ""

    @property
    def happened(self) -> int:
        """A number that grows with every event that this nameserver knows."""
        return self._consistency.timeline.number + self.peers.happened

    def watched(self) -> AbstractContextManager[None]:
        """Keep asking peers while the returned context is active."""
        return self.peers.watched()

    async def close(self) -> None:
        await self.peers.close()

    # -- data of a single nameserver ---------------------------------------------------------------------

    @Serves("GET", "/v1/console/own", "The data.", _PROBLEMS, query="after")
    async def get_own_part(self, request: web.Request) -> Own:
        """Return the console's data about this nameserver. Nameservers ask each other for this data."""
        check_query(request, {"after"})
        after = whole_number(request, "after") or 0
        return await self._lane.serve(self._own_part(after), request)

    @Serves("GET", "/v1/console/own/topics/{topic}", "The data.")
    async def get_own_topic(self, request: web.Request) -> OwnTopic:
        """Return this nameserver's data about a topic: route, order configuration, explanation, changes."""
        check_query(request, set())
        return own_topic(self._consistency, self._settings.current, request.match_info["topic"])

    # -- comparison of all nameservers -------------------------------------------------------------------

    @Serves(
        "GET",
        "/v1/console/cluster",
        "The picture. The request also makes this nameserver ask the other nameservers for newer data.",
        _PROBLEMS,
        answer=Picture,
        tagged=True,
    )
    async def get_cluster_picture(self, request: web.Request) -> Answer:
        """Return the picture: a comparison of all brokers at all nameservers, as known now."""
        check_query(request, set())
        self.peers.ask()
        picture, _ = await self._picture(request)
        tag = f'W/"{picture.tag}"'
        if has_tag(request.headers.get("If-None-Match"), tag):
            return web.Response(status=304, headers={**HEADERS, "ETag": tag})
        body = msgspec.json.encode(picture)
        return web.Response(body=body, content_type=JSON, headers={**HEADERS, "ETag": tag})

    @Serves("GET", "/v1/console/pulse", "The ages and lags.", _PROBLEMS)
    async def get_pulse(self, request: web.Request) -> Pulse:
        """Return ages of messages and answers, and lags, for the picture that the answer's tag names."""
        check_query(request, set())
        self.peers.ask()
        picture, told = await self._picture(request)
        return pulse_of(told, picture, now=self._loop.time())

    @Serves("GET", "/v1/console/topics/{topic}", "The comparison.", _PROBLEMS)
    async def get_topic_everywhere(self, request: web.Request) -> TopicEverywhere:
        """Compare a topic at all nameservers. Waits about 3 s at most for the other nameservers."""
        check_query(request, set())
        topic = request.match_info["topic"]
        here = Told(name=self._name, source="this", state="this")
        own = own_topic(self._consistency, self._settings.current, topic)
        return topic_everywhere(topic, [(here, own), *await self.peers.topic(topic)])

    @Serves("GET", "/v1/console/history", "The events.", _PROBLEMS)
    async def get_history(self, request: web.Request) -> History:
        """List the last leader changes, evictions, refusals and changes by people, at all nameservers."""
        check_query(request, set())
        self.peers.ask()
        found = [(self._name, event) for event in self._consistency.timeline.after(0)]
        found += self.peers.events
        found.sort(key=lambda each: (each[1].until_ms, each[1].number), reverse=True)
        return History(
            happened=self.happened,
            events=tuple(HistoryEvent(nameserver=name, event=event) for name, event in found[:HISTORY_MAX]),
        )

    # -- helper methods ----------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        """Name of this nameserver: its raft address, or else the address of its RocketMQ port."""
        operations = self._consistency.operations
        if operations is not None:
            return operations.raft_status().me
        return join_address(*self._settings.current.listen)

    def _own_part(self, after: int) -> Steps[Own]:
        port = self._settings.current.listen_port
        return own_part(self._consistency, version=self._version, wire_port=port, after=after)

    async def _picture(self, request: web.Request) -> tuple[Picture, list[Told]]:
        return await self._lane.serve(self._making(), request)

    def _making(self) -> Steps[tuple[Picture, list[Told]]]:
        own = yield from self._own_part(self._consistency.timeline.number)
        here = Told(name=self._name, source="this", state="this", own=own, raft=own.me, at=self._loop.time())
        told = [here, *self._others(own)]
        picture = yield from making_picture(
            told, asked=self.peers.asked, note=self.peers.note, happened=self.happened
        )
        return picture, told

    def _others(self, own: Own) -> Iterator[Told]:
        """Yield all other nameservers. In a raft group, include members that this nameserver cannot ask."""
        told = self.peers.told
        by_raft = {each.raft: each for each in told if each.raft}
        operations = self._consistency.operations
        members = () if operations is None else operations.raft_status().members or ()
        nameless = [each for each in told if not each.raft]
        unseen = [member for member in members if member != own.me and member not in by_raft]
        # If the HTTP address of exactly one member is unknown, and exactly one address has never answered,
        # then this address belongs to that member.
        if len(nameless) == len(unseen) == 1:
            (silent,) = nameless
            by_raft[unseen[0]] = replace(silent, name=unseen[0], raft=unseen[0])
            told.remove(silent)
        for member in members:
            if member == own.me:
                continue
            if member in by_raft:
                yield by_raft[member]
            else:
                why = "off" if self.peers.asked == "off" else "its HTTP address is not known here"
                yield Told(name=member, source="member", state="unknown", reason=why, raft=member)
        yield from (each for each in told if not each.raft or each.raft not in members)

    async def _look(self) -> None:
        """Compare all nameservers after a round of requests to them, and store the comparison's tag.

        The tag changes if the comparison has changed.
        """
        try:
            picture, _ = await self._lane.run(self._making(), is_wanted=lambda: True)
        except Problem:
            return  # Too many tasks wait already. The next round of requests repeats the comparison.
        self.tag = picture.tag
