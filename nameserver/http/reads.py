"""Reads of the route table over HTTP: topics, routes, brokers, clusters, the KV configuration."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from routekeeper.nameserver.handlers import route_of
from routekeeper.nameserver.modes.changes import Kind
from routekeeper.nameserver.modes.interface import Consistency, Freshness, FreshnessNotOffered, NoQuorum
from routekeeper.nameserver.raft.consensus.log import FIRST_INDEX
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.types import KvEntry
from routekeeper.remoting.http.listener import HttpConnection
from routekeeper.remoting.route import RouteDialect, encode_route
from routekeeper.remoting.steps import Steps

from . import answers, lists
from .coding import (
    IN_PARTS,
    accepts_gzip,
    compressing_answer,
    has_tag,
    is_to_compress,
    place_of,
    put_in,
)
from .lane import Lane
from .lists import Page, Wanted
from .openapi import Answer, listing, read
from .order import TopicOrder
from .problems import ASK_AGAIN, HEADERS, JSON, Problem, check_query
from .shortcut import ROUTE_PATH, Asked, Waiting

#: Longest ``wait`` of a blocking query, in seconds.
WAIT_MAX_S: Final = 60.0
#: Longest time that a read waits for sufficiently fresh data, in seconds. Reads with default freshness
#: stop waiting earlier.
READ_WITHIN_S: Final = 2.45
_Read = TypeVar("_Read", bound=answers.Read)
_WAIT: Final = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)s?")
_BLOCKING: Final = frozenset({"index", "wait", "epoch"})
_LIST: Final = _BLOCKING | {"prefix", "limit", "cursor"}


class Reads:
    """Handlers of the resources below ``/v1`` that read the table.

    Attributes:
        order: The sorted topics. Only tasks in the queue of long tasks (:class:`.lane.Lane`) may use them.
        waits: Timeouts of the blocking queries that wait inside a handler.
        waiting: Blocking route queries that wait without a handler; see :mod:`.shortcut`.
    """

    def __init__(
        self,
        consistency: Consistency,
        settings: LiveSettings,
        lane: Lane,
        *,
        answered: Callable[[str, int, float], None],
    ) -> None:
        self._consistency = consistency
        self._settings = settings
        self._lane = lane
        self._life = 0
        self.order = TopicOrder(lambda: consistency.view(Freshness.STALE), consistency.changes)
        self.waits: set[asyncio.Timeout] = set()
        self.ended = False
        self.waiting = Waiting(consistency, respond=self._route_response, answered=answered)

    @property
    def life(self) -> int:
        """Number of the process or raft group that has the table; 0 while it is unknown.

        Revisions can be compared only if this number and the table's epoch are equal. In independent mode,
        every start of the process has a number of its own. In raft mode, all members of a group have the same
        number. A member without log entries does not know this number yet: it may still join a group.
        """
        if not self._life:
            if (operations := self._consistency.operations) is None:
                self._life = self._consistency.status().boot_id
            elif (
                self._consistency.status().applied_index > FIRST_INDEX
                and isinstance(name := operations.raft_status().cluster, str)
                and name
            ):
                self._life = int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "big")
        return self._life

    def end(self) -> None:
        """Answer every blocking query with the present state, and let no later query wait."""
        self.ended = True
        self.waiting.end()
        now = asyncio.get_running_loop().time()
        for limit in self.waits:
            if not limit.expired():  # An expired timeout cannot be moved, and its query ends anyway.
                limit.reschedule(now)

    async def view(self, request: web.Request, *, known: frozenset[str] = frozenset()) -> RouteView:
        """Return a view of the route table that has the requested freshness.

        If needed, wait for contact with a leader or for a read barrier.

        Args:
            known: Allowed query parameters in addition to ``consistency``.
        """
        check_query(request, {"consistency"} | known)
        word = request.query.get("consistency", Freshness.DEFAULT.value)
        try:
            freshness = Freshness(word)
        except ValueError:
            raise Problem(400, f"consistency={word[:40]} is none of stale, default, linearizable") from None
        deadline = asyncio.get_running_loop().time() + READ_WITHIN_S
        try:
            return await self._consistency.await_view(freshness, deadline=deadline)
        except FreshnessNotOffered as error:
            raise Problem(400, str(error)) from None
        except NoQuorum as error:
            raise Problem(
                503, f"a read with consistency={word} cannot be answered now: {error}", headers=ASK_AGAIN
            ) from None

    def answer(self, kind: type[_Read], *, index: int, epoch: int, **members: Any) -> _Read:
        """Return an answer with the given values, and with the mode and contact of this nameserver.

        Args:
            index: Index of the requested topic, list or value.
            members: Values of the other fields of ``kind``.
        """
        status = self._consistency.status()
        independent = status.role == "independent"
        return kind(
            mode=status.mode,
            index=index,
            epoch=epoch,
            leader_known=independent or status.leader is not None,
            last_contact_ms=status.last_contact_ms,
            boot_id=status.boot_id if independent else msgspec.UNSET,
            **members,
        )

    async def _list(
        self,
        request: web.Request,
        kind: Kind,
        answer: type[answers.Read],
        member: str,
        make: Callable[[RouteView, Wanted], Steps[Page | None]],
        *,
        parts: int = 1,
        known: frozenset[str] = _LIST | {"cluster"},
        **members: str,
    ) -> Answer:
        """Return a page of a list as answer, or status 304 if the page has not changed.

        Args:
            member: Name of the answer's JSON member that holds the list.
            make: Function that makes the page. Its result is None if the list does not exist.
            parts: Number of texts in a cursor of this list, for example 2 for cluster and address.
        """
        wanted = _wanted(request, parts=parts)
        after, epoch, wait_s = _blocking(request)
        view = await self.view(request, known=known)
        changes = self._consistency.changes
        if after is not None and epoch in (None, view.epoch) and changes.changed_at[kind] <= after:
            await self.wait(
                lambda deadline: self._consistency.list_changed(kind, after, deadline=deadline), wait_s
            )
            view = await self.view(request, known=known)
        if (unchanged := self._unchanged(request, self._tag(changes.changed_at[kind]))) is not None:
            return unchanged

        def work() -> Steps[web.Response]:
            # Read the index before the list. The table may be ahead of the change log, so the list may
            # contain later changes. But the list must contain all changes up to the index.
            index, tag = min(view.revision, changes.revision), self._tag(changes.changed_at[kind])
            page = yield from make(view, wanted)
            if page is None:
                raise Problem(404, f"no KV namespace {members['namespace']}")
            more = {member: IN_PARTS, "next_cursor": page.next_cursor}
            body = self.answer(answer, index=index, epoch=view.epoch, **members, **more)
            response = _response(put_in(body, page.things), tag)
            if is_to_compress(request, response):
                # Compress the list in the same turn. Otherwise the request would wait for two turns.
                yield from compressing_answer(response)
            return response

        return await self._lane.serve(work(), request)

    def _tag(self, index: int, *more: object) -> str:
        """Return a weak entity tag.

        It is weak because two answers with the same tag may contain different ages of the last contact.
        """
        parts = self.life, self._consistency.changes.epoch, index, *more
        return f'W/"{"-".join(map(str, parts))}"'

    @staticmethod
    def _unchanged(request: web.Request, tag: str) -> web.Response | None:
        """Return a 304 answer if the request's If-None-Match names the tag, else None."""
        if not has_tag(request.headers.get("If-None-Match"), tag):
            return None
        return web.Response(status=304, headers={**HEADERS, "ETag": tag})

    @listing("/v1/topics", "The topics.", answers.Topics, query="prefix contains cluster")
    async def list_topics(self, request: web.Request) -> Answer:
        """List the names of topics, sorted."""
        return await self._list(
            request,
            Kind.TOPICS,
            answers.Topics,
            "topics",
            lambda view, wanted: lists.topics_page(view, self.order, wanted),
            known=_LIST | {"cluster", "contains"},
        )

    @read(
        ROUTE_PATH,
        "The route.",
        query="index epoch wait",
        gone="No broker has the topic; events and likely_causes say why.",
        answer=answers.Route,
        tagged=True,
    )
    async def get_route(self, request: web.Request) -> Answer:
        """Return the route of a topic, as in RocketMQ's answer to request 105."""
        topic = request.match_info["topic"]
        after, epoch, wait_s = _blocking(request)
        view = await self.view(request, known=_BLOCKING)
        same = epoch is None or epoch == view.epoch
        if after is not None and same and view.topic_revision(topic) <= after:
            left_s = wait_s
            if isinstance(request.protocol, HttpConnection) and request.protocol.waits_until is not None:
                left_s = max(0.0, request.protocol.waits_until - asyncio.get_running_loop().time())
            await self.wait(
                lambda deadline: self._consistency.changed(topic, after, deadline=deadline), left_s
            )
            view = await self.view(request, known=_BLOCKING)
        response = self._route_response(view, topic)
        if response is None:
            explanation = self._consistency.explain(topic)
            raise Problem(
                404,
                f"no route for topic {topic}: {explanation.summary}",
                index=view.topic_revision(topic),
                epoch=view.epoch,
                events=tuple(map(answers.EventAnswer.of, explanation.events)),
                likely_causes=explanation.likely_causes,
            )
        if (unchanged := self._unchanged(request, response.headers["ETag"])) is not None:
            return unchanged
        if after is not None:
            freshness = Freshness(request.query.get("consistency", Freshness.DEFAULT.value))
            gzip = accepts_gzip(request.headers.get("Accept-Encoding"))
            self.waiting.learn(request, Asked(topic, epoch, wait_s, freshness, gzip))
        return response

    def _route_response(self, view: RouteView, topic: str) -> web.Response | None:
        """Return the answer with the route of a topic, or None if the topic has no route."""
        current = self._settings.current
        route = route_of(view, topic, current)
        if route is None:
            return None
        shown_as = int(current.support_acting_master), int(current.order_message_enable)
        body = self.answer(
            answers.Route,
            index=view.topic_revision(topic),
            epoch=view.epoch,
            topic=topic,
            route=msgspec.Raw(encode_route(route, RouteDialect.QUOTED)),
        )
        return _response(msgspec.json.encode(body), self._tag(view.topic_revision(topic), *shown_as))

    async def wait(self, change: Callable[[float], Awaitable[object]], wait_s: float) -> None:
        """Wait at most ``wait_s`` seconds for a change. Return at once when the server stops.

        Args:
            change: Function that waits for the change until the loop time that it gets as argument.
        """
        deadline = asyncio.get_running_loop().time() + (0.0 if self.ended else wait_s)
        try:
            async with asyncio.timeout_at(deadline) as limit:
                self.waits.add(limit)
                await change(deadline + 1.0)
        except TimeoutError:
            pass
        finally:
            self.waits.discard(limit)

    @read("/v1/topics/{topic}/explain", "The explanation.")
    async def explain_topic(self, request: web.Request) -> answers.Explanation:
        """Explain why a topic has its route, or why it has no route."""
        topic = request.match_info["topic"]
        view = await self.view(request)
        explanation = self._consistency.explain(topic)
        return self.answer(
            answers.Explanation,
            index=view.topic_revision(topic),
            epoch=view.epoch,
            topic=topic,
            listed=explanation.listed,
            summary=explanation.summary,
            events=tuple(map(answers.EventAnswer.of, explanation.events)),
            likely_causes=explanation.likely_causes,
        )

    @listing("/v1/brokers", "The brokers.", answers.Brokers, query="broker_prefix broker_contains cluster")
    async def list_brokers(self, request: web.Request) -> Answer:
        """List the registered brokers, sorted by cluster and address."""
        last_seen_s = self._consistency.last_seen_s
        return await self._list(
            request,
            Kind.BROKERS,
            answers.Brokers,
            "brokers",
            lambda view, wanted: lists.brokers_page(view, wanted, last_seen_s),
            parts=2,
            known=_LIST | {"cluster", "contains"},
        )

    @listing("/v1/clusters", "The clusters.", answers.Clusters, query="prefix cluster")
    async def list_clusters(self, request: web.Request) -> Answer:
        """List the clusters with their broker names, and the addresses of each name by broker id."""
        return await self._list(request, Kind.BROKERS, answers.Clusters, "clusters", lists.clusters_page)

    @listing("/v1/kv", "The namespaces.", answers.KvNamespaces, query="prefix")
    async def list_kv_namespaces(self, request: web.Request) -> Answer:
        """List the namespaces of the KV configuration, sorted."""
        return await self._list(
            request, Kind.KV, answers.KvNamespaces, "namespaces", lists.namespaces_page, known=_LIST
        )

    @listing(
        "/v1/kv/{namespace}",
        "The values by key.",
        answers.KvNamespace,
        query="prefix",
        gone="The namespace never existed.",
    )
    async def get_kv_namespace(self, request: web.Request) -> Answer:
        """Return the keys and values of one namespace of the KV configuration."""
        namespace = request.match_info["namespace"]
        return await self._list(
            request,
            Kind.KV,
            answers.KvNamespace,
            "table",
            lambda view, wanted: lists.keys_page(view, namespace, wanted),
            known=_LIST,
            namespace=namespace,
        )

    @read(
        "/v1/kv/{namespace}/{key}",
        "The value.",
        gone="There is no such key.",
        answer=answers.KvValue,
        tagged=True,
    )
    async def get_kv_value(self, request: web.Request) -> Answer:
        """Return one value of the KV configuration. A later change can send the ETag in If-Match."""
        view = await self.view(request)
        namespace, key = request.match_info["namespace"], request.match_info["key"]
        entry = view.kv_value(namespace, key)
        if entry is None:
            raise Problem(404, f"no KV key {key} in namespace {namespace}")
        if (unchanged := self._unchanged(request, self.kv_tag(entry, view.epoch))) is not None:
            return unchanged
        return self.kv_value(request, entry, view.epoch)

    def kv_value(self, request: web.Request, entry: KvEntry, epoch: int) -> web.Response:
        """Return the answer with a value of the KV configuration.

        Args:
            request: The request whose path names the value's namespace and key.
            epoch: Epoch of the table from which the value comes.
        """
        body = self.answer(
            answers.KvValue,
            index=entry.revision,
            epoch=epoch,
            namespace=request.match_info["namespace"],
            key=request.match_info["key"],
            value=entry.value,
        )
        return _response(msgspec.json.encode(body), self.kv_tag(entry, epoch))

    def kv_tag(self, entry: KvEntry, epoch: int) -> str:
        """Return the entity tag of a value. It must be strong, because conditional changes compare it."""
        return f'"{self.life}-{epoch}-{entry.revision}"'


def _response(body: bytes, tag: str) -> web.Response:
    return web.Response(body=body, content_type=JSON, headers={**HEADERS, "ETag": tag})


def _wanted(request: web.Request, *, parts: int) -> Wanted:
    """Return the part of a list that a request describes.

    Args:
        parts: Number of texts in a cursor of the list. A cursor names the last entry of the previous page.
    """
    limit = whole_number(request, "limit")
    if limit is not None and not 1 <= limit <= lists.LIMIT_MAX:
        raise Problem(400, f"limit={limit} is not 1 to {lists.LIMIT_MAX}")
    after, cursor = None, request.query.get("cursor")
    if cursor is not None:
        try:
            after = place_of(cursor, parts)
        except ValueError:
            raise Problem(400, f"cursor={cursor[:40]} is no next_cursor of this list") from None
    query = request.query
    return Wanted(
        query.get("prefix", ""), query.get("contains", "").lower(), query.get("cluster"), limit, after
    )


def whole_number(request: web.Request, name: str) -> int | None:
    """Return a whole number from the query, or None if the query lacks the parameter."""
    text = request.query.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Problem(400, f"{name}={text[:40]} is no whole number")
    return None if text is None else int(text)


def _blocking(request: web.Request) -> tuple[int | None, int | None, float]:
    """Return a blocking query's index, its epoch and its longest wait in seconds.

    The query waits until the requested data have a greater index. Without an index, the result contains None
    for the index, and the query does not wait. Without an epoch, it contains None for the epoch.
    """
    for name in ("wait", "epoch"):
        if name in request.query and "index" not in request.query:
            raise Problem(400, f"{name} needs index")
    wait = request.query.get("wait", "30s")
    match = _WAIT.fullmatch(wait)
    if match is None or not float(match[1]) <= WAIT_MAX_S:
        raise Problem(400, f"wait={wait[:40]} is not 0s to {WAIT_MAX_S:.0f}s, such as 30s")
    return whole_number(request, "index"), whole_number(request, "epoch"), float(match[1])
