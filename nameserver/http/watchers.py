"""The clients that watch the table: their connections, and limits of their number.

``watch.py`` makes the events for these clients.
"""

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

#: Largest number of watchers in total, and from one host. Loopback clients count only in the total.
WATCHERS_MAX: Final = 64
WATCHERS_PER_HOST: Final = 32
#: Seconds after which a watcher's connection is closed if its host acknowledges no data.
LOST_S: Final = 30.0
#: Seconds between two checks for changes that the change log does not contain: changes of the group's
#: members, and closed connections.
_TICK_S: Final = 1.0
#: Seconds for which the group's state is reused after it was read.
_MEMBERS_S: Final = 0.25


class Watchers:
    """Handler of the resource ``/v1/watch``.

    Args:
        went_on: Function called for each watch whose client has read everything sent so far.
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
        """Return the number of clients that watch now."""
        return self._hosts.total()

    @Serves(
        "GET",
        "/v1/watch",
        "An endless stream of the events reset, topics, brokers, members, console and complete. After 15 s "
        "without an event, the nameserver sends a comment.",
        {
            400: "A parameter is unknown or wrong.",
            503: "Too many clients watch already, in total or from one host; see Retry-After.",
        },
        answer={"text/event-stream": {"schema": {"type": "string"}}},
        query="kinds prefix cluster state last_event_id",
        headers={"Last-Event-ID": "Id of the last received event. The watch continues after this event."},
    )
    async def watch(self, request: web.Request) -> Answer:
        """Send the changes of topics, brokers and members at this nameserver as server-sent events."""
        wanted, place = _wanted(request), _place(request)
        with self._place_for(request):
            response = web.StreamResponse(
                headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await response.prepare(request)
            if request.method != "HEAD":
                with contextlib.suppress(ConnectionError):  # The client may close the connection at any time.
                    await self._tell(request, response, wanted, place)
            return response

    async def _tell(
        self, request: web.Request, response: web.StreamResponse, wanted: Filter, place: Place | None
    ) -> None:
        reads, consistency = self._reads, self._consistency
        watch = Watch(consistency.changes, reads.order, life=reads.life, wanted=wanted, place=place)
        # If both kinds are wanted, wait only for changes of brokers: the change log also notes each change of
        # topics as a change of brokers.
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
            looking = watch.look(view, self._present_members(), self._present_console())
            events = await self._lane.serve(looking, request)
            if not events and loop.time() - said_at >= COMMENT_S:
                events = COMMENT
            if events:
                # Wait here for a slow client: otherwise unsent events would fill the memory.
                await response.write(events)
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
    """Return the progress that a watcher reached over an earlier connection; None at a first connection.

    The watcher sends the id of the last event that it received. If the id is malformed, return a revision
    that no table has, so that the watch begins with a ``reset`` event.
    """
    text = request.headers.get("Last-Event-ID") or request.query.get("last_event_id")
    return None if not text else Place.read(text) or Place(-1, -1, -1)


def _close_when_lost(request: web.Request) -> None:
    """Let the kernel close a connection if its peer acknowledges no data, for example after a network cut."""
    opened = request.transport.get_extra_info("socket") if request.transport is not None else None
    if opened is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(LOST_S * 1000))
