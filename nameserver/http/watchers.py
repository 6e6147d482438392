"""The watchers: their bounds, and the rules for closing them. ``watch.py`` makes their events."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web
from msgspec import UNSET

from routekeeper.nameserver.modes.changes import Kind
from routekeeper.nameserver.modes.interface import Consistency, Freshness
from routekeeper.remoting.addresses import charged_host

from .console.resources import Console
from .lane import Lane
from .openapi import Answer, Serves
from .problems import HEADERS, Problem, check_query
from .reads import Reads
from .watch import ALL_KINDS, COMMENT, COMMENT_S, KINDS, ConsoleChange, Filter, GroupMembers, Place, Watch

#: Bounds of watchers: in all, and from one host (loopback has no bound of its own).
WATCHERS_MAX: Final = 64
WATCHERS_PER_HOST: Final = 32
#: Time in seconds after which a watcher is closed whose host does not answer any more.
LOST_S: Final = 30.0
#: Time in seconds between two checks of facts that the table's changes do not show: members, closed
#: connections.
_TICK_S: Final = 1.0
#: Time in seconds for which the group's state is kept before it is read again.
_MEMBERS_S: Final = 0.25


class Watchers:
    """The resource ``/v1/watch``.

    Args:
        went_on: Called with each watch whose client has read everything so far.
    """

    def __init__(
        self,
        consistency: Consistency,
        reads: Reads,
        lane: Lane,
        console: Console,
        *,
        went_on: Callable[[web.Request], None],
    ) -> None:
        self._consistency = consistency
        self._reads = reads
        self._lane = lane
        self._console = console
        self._went_on = went_on
        self._hosts: Counter[str] = Counter()
        self._members: tuple[float, GroupMembers] | None = None

    def __len__(self) -> int:
        """Return the number of watchers."""
        return self._hosts.total()

    @Serves(
        "GET",
        "/v1/watch",
        "Events without end: reset, topics, brokers, members, complete; a comment every 15 s of silence.",
        {
            400: "A parameter is unknown or wrong.",
            503: "The number of watchers is at its bound, in all or from one host; see Retry-After.",
        },
        answer={"text/event-stream": {"schema": {"type": "string"}}},
        query="kinds prefix cluster state last_event_id",
        headers={"Last-Event-ID": "Id of the last event that was received: the watch continues after it."},
    )
    async def watch(self, request: web.Request) -> Answer:
        """Changes of topics, brokers and members at this nameserver, as server-sent events."""
        wanted, place = _wanted(request), _place(request)
        with self._place_for(request):
            response = web.StreamResponse(
                headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await response.prepare(request)
            if request.method != "HEAD":
                with contextlib.suppress(ConnectionError):  # the watcher is gone
                    await self._tell(request, response, wanted, place)
            return response

    async def _tell(
        self, request: web.Request, response: web.StreamResponse, wanted: Filter, place: Place | None
    ) -> None:
        reads, consistency = self._reads, self._consistency
        watch = Watch(consistency.changes, reads.order, life=reads.life, wanted=wanted, place=place)
        # A change of brokers is noted with each change of topics, too.
        kind = Kind.BROKERS if "brokers" in wanted.kinds else Kind.TOPICS
        if not {"topics", "brokers"} & set(wanted.kinds):
            kind = Kind.KV
        _close_when_lost(request)
        with self._console.watched() if "console" in wanted.kinds else contextlib.nullcontext():
            await self._tell_all(request, response, watch, kind)

    async def _tell_all(
        self, request: web.Request, response: web.StreamResponse, watch: Watch, kind: Kind
    ) -> None:
        loop, reads, consistency = asyncio.get_running_loop(), self._reads, self._consistency
        said_at = loop.time()
        while not reads.ended and request.transport is not None and not request.transport.is_closing():
            view = consistency.view(Freshness.STALE)
            events = await self._lane.run(
                watch.look(view, self._present_members(), self._present_console()),
                is_wanted=lambda: request.transport is not None,
            )
            if not events and loop.time() - said_at >= COMMENT_S:
                events = COMMENT
            if events:
                await response.write(events)  # write() waits for a slow reader
                said_at = loop.time()
            self._went_on(request)
            if watch.is_telling:
                continue
            pause = watch.take_pause()
            await reads.wait(lambda _, pause=pause: asyncio.sleep(pause), pause)  # type: ignore[misc]
            await reads.wait(
                lambda deadline: consistency.list_changed(kind, watch.revision, deadline=deadline), _TICK_S
            )

    @contextlib.contextmanager
    def _place_for(self, request: web.Request) -> Iterator[None]:
        host = charged_host(request.remote or "")
        if len(self) >= WATCHERS_MAX:
            raise _full(f"all {WATCHERS_MAX} places of watchers are taken")
        if host and self._hosts[host] >= WATCHERS_PER_HOST:
            raise _full(f"{WATCHERS_PER_HOST} watchers are from this host, which is the most")
        self._hosts[host] += 1
        try:
            yield
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    def _present_console(self) -> ConsoleChange:
        return ConsoleChange(tag=self._console.tag, happened=self._console.happened)

    def _present_members(self) -> GroupMembers:
        now = asyncio.get_running_loop().time()
        if self._members is None or now - self._members[0] >= _MEMBERS_S:
            status, operations = self._consistency.status(), self._consistency.operations
            group = None if operations is None else operations.raft_status()
            members = GroupMembers(
                mode=status.mode,
                role=status.role,
                term=status.term,
                leader=status.leader,
                members=status.members,
                learners=UNSET if group is None else group.learners,
                linked=UNSET if group is None else group.linked,
                ready=status.reads_ready and status.writes_ready,
            )
            self._members = now, members
        return self._members[1]


def _full(detail: str) -> Problem:
    return Problem(503, f"{detail}; lists can be waited for with index", headers={"Retry-After": "5"})


def _wanted(request: web.Request) -> Filter:
    check_query(request, {"kinds", "prefix", "cluster", "state", "last_event_id"})
    query = request.query
    kinds = tuple(dict.fromkeys(query.get("kinds", ",".join(KINDS)).split(",")))
    for kind in kinds:
        if kind not in ALL_KINDS:
            raise Problem(400, f"kinds={kind[:40]} is none of {', '.join(ALL_KINDS)}")
    state = query.get("state", "full")
    if state not in ("full", "none"):
        raise Problem(400, f"state={state[:40]} is none of full, none")
    return Filter(kinds, query.get("prefix", ""), query.get("cluster"), state == "full")


def _place(request: web.Request) -> Place | None:
    """Return the position that a watcher had reached; an unknown id belongs to another table."""
    text = request.headers.get("Last-Event-ID") or request.query.get("last_event_id")
    return None if not text else Place.read(text) or Place(-1, -1, -1)


def _close_when_lost(request: web.Request) -> None:
    """Have the kernel close a connection whose peer acknowledges no data any more, as after a network cut."""
    opened = request.transport.get_extra_info("socket") if request.transport is not None else None
    if opened is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(LOST_S * 1000))
