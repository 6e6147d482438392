"""Reads of the route table over HTTP: topics, routes, brokers, clusters, the KV configuration."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from routekeeper.nameserver.handlers import route_of
from routekeeper.nameserver.modes.interface import Consistency, Freshness, FreshnessNotOffered, NoQuorum
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.remoting.route import RouteDialect, encode_route

from . import answers
from .openapi import read
from .problems import ASK_AGAIN, Problem, check_query

#: Longest ``wait`` of a blocking query, in seconds.
WAIT_MAX_S: Final = 60.0
#: Longest time in seconds that a read waits for its freshness; a default one gives up earlier.
READ_WITHIN_S: Final = 2.45
_Read = TypeVar("_Read", bound=answers.Read)
_WAIT: Final = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)s?")


class Reads:
    """The resources below ``/v1`` that read the table."""

    def __init__(self, consistency: Consistency, settings: LiveSettings) -> None:
        self._consistency = consistency
        self._settings = settings
        self._waits: set[asyncio.Timeout] = set()
        self._ended = False

    def end(self) -> None:
        """Have every blocking query answered with what there is; from here on none waits."""
        self._ended = True
        now = asyncio.get_running_loop().time()
        for limit in self._waits:
            limit.reschedule(now)

    async def _view(self, request: web.Request, *, blocking: bool = False) -> RouteView:
        """Return the view with the freshness asked for, waiting if that needs contact or a barrier."""
        check_query(request, {"consistency", "index", "wait", "epoch"} if blocking else {"consistency"})
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

    def _answer(
        self, kind: type[_Read], view: RouteView, *, index: int | None = None, **members: Any
    ) -> _Read:
        """Answer with what was read and where it is from.

        Args:
            index: That of the topic asked for; None for the table's.
            members: Of ``kind``.
        """
        status = self._consistency.status()
        independent = status.role == "independent"
        return kind(
            mode=status.mode,
            index=view.revision if index is None else index,
            epoch=view.epoch,
            leader_known=independent or status.leader is not None,
            last_contact_ms=status.last_contact_ms,
            boot_id=status.boot_id if independent else msgspec.UNSET,
            **members,
        )

    @read("/v1/topics", "The topics.")
    async def list_topics(self, request: web.Request) -> answers.Topics:
        """Names of all topics, sorted."""
        view = await self._view(request)
        return self._answer(answers.Topics, view, topics=view.topics())

    @read(
        "/v1/topics/{topic}/route",
        "The route.",
        query="index epoch wait",
        gone="No broker lists the topic; events and likely_causes say why.",
    )
    async def get_route(self, request: web.Request) -> answers.Route:
        """Where a topic lives, as RocketMQ's request 105 answers it."""
        topic = request.match_info["topic"]
        after, epoch, wait_s = _blocking(request)
        view = await self._view(request, blocking=True)
        same = epoch is None or epoch == view.epoch
        if after is not None and same and view.topic_revision(topic) <= after:
            await self._change(topic, after, wait_s)
            view = await self._view(request, blocking=True)
        route = route_of(view, topic, self._settings.current)
        if route is None:
            explanation = self._consistency.explain(topic)
            raise Problem(
                404,
                f"no route for topic {topic}: {explanation.summary}",
                index=view.topic_revision(topic),
                epoch=view.epoch,
                events=tuple(map(answers.EventAnswer.of, explanation.events)),
                likely_causes=explanation.likely_causes,
            )
        return self._answer(
            answers.Route,
            view,
            index=view.topic_revision(topic),
            topic=topic,
            route=msgspec.Raw(encode_route(route, RouteDialect.QUOTED)),
        )

    async def _change(self, topic: str, after: int, wait_s: float) -> None:
        """Return once the topic has changed, its time is over, or the server stops."""
        deadline = asyncio.get_running_loop().time() + (0.0 if self._ended else wait_s)
        try:
            async with asyncio.timeout_at(deadline) as limit:
                self._waits.add(limit)
                await self._consistency.changed(topic, after, deadline=deadline + 1.0)
        except TimeoutError:
            pass
        finally:
            self._waits.discard(limit)

    @read("/v1/topics/{topic}/explain", "The explanation.")
    async def explain_topic(self, request: web.Request) -> answers.Explanation:
        """Why a topic has the route it has, or none."""
        topic = request.match_info["topic"]
        view = await self._view(request)
        explanation = self._consistency.explain(topic)
        return self._answer(
            answers.Explanation,
            view,
            index=view.topic_revision(topic),
            topic=topic,
            listed=explanation.listed,
            summary=explanation.summary,
            events=tuple(map(answers.EventAnswer.of, explanation.events)),
            likely_causes=explanation.likely_causes,
        )

    @read("/v1/brokers", "The brokers.")
    async def list_brokers(self, request: web.Request) -> answers.Brokers:
        """All registered brokers, by cluster and address."""
        view = await self._view(request)
        brokers = [
            answers.Broker(
                cluster=record.broker.cluster_name,
                broker_name=record.broker_name,
                broker_id=record.broker_id,
                broker_addr=record.broker.broker_addr,
                ha_server_addr=record.ha_server_addr,
                data_version=msgspec.convert(record.data_version, answers.Version, from_attributes=True),
                complete=record.complete,
                lease_ms=record.lease_ms,
                topics=len(view.topics_of_name(record.broker_name)),
                index=record.revision,
            )
            for record in sorted(view.records(), key=lambda record: record.broker)
        ]
        return self._answer(answers.Brokers, view, brokers=brokers)

    @read("/v1/clusters", "The clusters.")
    async def list_clusters(self, request: web.Request) -> answers.Clusters:
        """Clusters, their broker names and addresses by broker id."""
        view = await self._view(request)
        info = view.cluster_info()
        brokers = {}
        for name, data in info.broker_addr_table.items():
            addresses = {str(broker_id): addr for broker_id, addr in sorted(data.broker_addrs.items())}
            brokers[name] = answers.BrokerName(broker_name=name, addresses=addresses)
        clusters = [
            answers.Cluster(cluster=cluster, brokers=[brokers[name] for name in names])
            for cluster, names in info.cluster_addr_table.items()
        ]
        return self._answer(answers.Clusters, view, clusters=clusters)

    @read("/v1/kv/{namespace}", "The values by key.", gone="The namespace never existed.")
    async def get_kv_namespace(self, request: web.Request) -> answers.KvNamespace:
        """One namespace of the KV configuration."""
        namespace = request.match_info["namespace"]
        view = await self._view(request)
        table = view.kv(namespace)
        if table is None:
            raise Problem(404, f"no KV namespace {namespace}")
        return self._answer(answers.KvNamespace, view, namespace=namespace, table=dict(table))


def _number(request: web.Request, name: str) -> int | None:
    """Return a whole number that may be asked with, None if it was not said."""
    text = request.query.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Problem(400, f"{name}={text[:40]} is no whole number")
    return None if text is None else int(text)


def _blocking(request: web.Request) -> tuple[int | None, int | None, float]:
    """Return the index to wait beyond and its epoch, if they were said, and for how many seconds at most."""
    for name in ("wait", "epoch"):
        if name in request.query and "index" not in request.query:
            raise Problem(400, f"{name} needs index")
    wait = request.query.get("wait", "30s")
    match = _WAIT.fullmatch(wait)
    if match is None or not float(match[1]) <= WAIT_MAX_S:
        raise Problem(400, f"wait={wait[:40]} is not 0s to {WAIT_MAX_S:.0f}s, such as 30s")
    return _number(request, "index"), _number(request, "epoch"), float(match[1])
