"""Blocking route queries of clients that watch a topic, answered without aiohttp.

A client that watches a topic repeats the same request; only the number in ``index`` differs. aiohttp handles
the first request. This module recognises later requests of the same connection by their bytes. Since only the
number differs, a later request need not be parsed and checked again.

All repeated queries for one topic wait in one list, without a task for each query. When the topic changes,
all of them get the same encoded answer. aiohttp still handles the unusual cases:

- a topic without a route,
- a query while this member has no contact with a leader,
- an answer larger than :data:`BODY_MAX`,
- a client that sends more bytes before it has the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from itertools import islice
from typing import Final, NamedTuple

from aiohttp import web

from routekeeper.nameserver.modes.interface import Consistency, Freshness, NoQuorum
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.remoting.http.listener import HttpConnection
from routekeeper.remoting.steps import finish

from .coding import GZIP_MIN, compressing

log = logging.getLogger(__name__)

ROUTE_PATH: Final = "/v1/topics/{topic}/route"
BODY_MAX: Final = 64 << 10
"""Largest body in bytes that the shortcut sends. aiohttp sends larger answers, because it waits for a slow
reader."""
AT_ONCE: Final = 64
"""Largest number of queries that are answered in one turn of the event loop."""
_QUERY: Final = re.compile(
    rb"(GET /[^ ?#\r\n]*\?(?:[^ #\r\n]*&)?index=)([0-9]{1,18})((?:&[^ #\r\n]*)? HTTP/1\.1\r\n.*\r\n\r\n)",
    re.DOTALL,
)


class Asked(NamedTuple):
    """All parameters of a blocking query except its index."""

    topic: str
    epoch: int | None
    wait_s: float
    freshness: Freshness
    accepts_gzip: bool


_Form = tuple[str, Freshness, bool]
"""A query's topic and freshness, and whether its answer may use gzip.

Queries with equal values that are answered at the same moment get equal answers.
"""


class _Known(NamedTuple):
    """A request that was read and checked: its bytes before and after the index, and its parameters."""

    before: bytes
    behind: bytes
    asked: Asked


@dataclass(slots=True, eq=False)
class _Query:
    """A waiting query; implements :class:`routekeeper.remoting.http.listener.Held`."""

    connection: HttpConnection
    data: bytes
    asked: Asked
    index: int
    epoch: int
    begun: float
    waits_until: float
    waiting: Waiting
    timer: asyncio.TimerHandle | None = None

    def release(self) -> bytes:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.waiting.left(self)
        return self.data


class Waiting:
    """The waiting queries, by topic; implements :class:`routekeeper.remoting.http.listener.Shortcut`.

    Args:
        respond: Function that makes the answer with a topic's route. It returns None if the topic has no
            route.
        answered: Function called for each answer, with path, status and seconds.
    """

    def __init__(
        self,
        consistency: Consistency,
        *,
        respond: Callable[[RouteView, str], web.Response | None],
        answered: Callable[[str, int, float], None],
    ) -> None:
        self._consistency = consistency
        self._respond = respond
        self._answered = answered
        self._topics: dict[str, dict[_Query, None]] = {}
        self._due: dict[str, None] = {}  # changed topics, whose queries must be answered
        self._ended = False

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return sum(map(len, self._topics.values()))

    def learn(self, request: web.Request, asked: Asked) -> None:
        """Remember an answered query, so that the connection's later queries are recognised by their bytes.

        Do nothing if they cannot be recognised in this way.
        """
        connection = request.protocol
        if not isinstance(connection, HttpConnection) or asked.freshness is Freshness.LINEARIZABLE:
            return
        data = connection.request_bytes
        match = _QUERY.fullmatch(data)
        if (
            match is not None
            and "If-None-Match" not in request.headers
            and request.query.getall("index") == [match[2].decode()]
        ):
            connection.known = _Known(match[1], match[3], asked)

    def take(self, connection: HttpConnection, data: bytes) -> _Query | None:
        """Return a query that now waits here, or None if aiohttp must handle the request.

        aiohttp handles the first query of a connection, and every query that can be answered at once.
        """
        known: _Known | None = connection.known
        if known is None or self._ended:
            return None
        before, behind, asked = known
        number = data[len(before) : len(data) - len(behind)]
        if not (len(number) <= 18 and number.isdigit() and data.startswith(before) and data.endswith(behind)):
            return None
        try:
            view = self._consistency.view(asked.freshness)
        except NoQuorum:
            return None
        topic, index = asked.topic, int(number)
        if view.topic_revision(topic) > index or asked.epoch not in (None, view.epoch):
            return None
        loop = asyncio.get_running_loop()
        until = loop.time() + asked.wait_s
        query = _Query(connection, data, asked, index, view.epoch, time.perf_counter(), until, self)
        query.timer = loop.call_at(until, self._finish, query, {})
        queries = self._topics.get(topic)
        if queries is None:
            queries = self._topics[topic] = {}
            self._consistency.follow(topic, lambda: self._changed(topic))
        queries[query] = None
        return query

    def end(self) -> None:
        """Answer all queries, and let no later query wait."""
        self._ended = True
        answers: dict[_Form, bytes | None] = {}
        for queries in list(self._topics.values()):
            for query in list(queries):
                self._finish(query, answers, last=True)

    def left(self, query: _Query) -> None:
        """Remove a query that no longer waits."""
        topic = query.asked.topic
        queries = self._topics[topic]
        del queries[query]
        if not queries:
            del self._topics[topic]
            self._consistency.unfollow(topic)

    def _changed(self, topic: str) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._answer_due)
        self._due[topic] = None

    def _answer_due(self) -> None:
        """Answer up to :data:`AT_ONCE` queries whose topic has changed. Encode equal answers only once."""
        answers: dict[_Form, bytes | None] = {}
        view = self._consistency.view(Freshness.STALE)
        room = AT_ONCE
        while self._due and room:
            topic = next(iter(self._due))
            epoch, revision = view.epoch, view.topic_revision(topic)
            reached = (
                query
                for query in self._topics.get(topic, ())
                if query.epoch != epoch or query.index < revision
            )
            queries = list(islice(reached, room))
            room -= len(queries)
            if room:
                del self._due[topic]
            for query in queries:
                self._finish(query, answers)
        if self._due:
            asyncio.get_running_loop().call_soon(self._answer_due)

    def _finish(self, query: _Query, answers: dict[_Form, bytes | None], *, last: bool = False) -> None:
        """Answer a query with the present route. ``answers`` holds answers already encoded in this call.

        Args:
            last: True closes the connection after the answer.
        """
        asked, connection = query.asked, query.connection
        form = asked.topic, asked.freshness, asked.accepts_gzip
        data = query.release()
        try:
            if form not in answers:
                answers[form] = self._answer(asked)
            answer = answers[form]
            if answer is None:
                connection.hand_over(data, waits_until=asyncio.get_running_loop().time())
                return
            connection.answer(answer)
            if last:
                connection.leave()
            self._answered(ROUTE_PATH, 200, time.perf_counter() - query.begun)
        except Exception:  # An error in one query must not stop the answers to other queries.
            log.exception("watched route was not answered topic=%s", asked.topic)
            connection.end()

    def _answer(self, asked: Asked) -> bytes | None:
        """Return the whole HTTP answer, or None if aiohttp must send it."""
        try:
            view = self._consistency.view(asked.freshness)
        except NoQuorum:
            return None
        try:
            response = self._respond(view, asked.topic)
        except Exception:  # Hand the request to aiohttp, which then answers it with an error.
            log.exception("answer of watched route failed topic=%s", asked.topic)
            return None
        if response is None or not isinstance(body := response.body, bytes) or len(body) > BODY_MAX:
            return None
        if len(body) >= GZIP_MIN:
            response.headers["Vary"] = "Accept-Encoding"
            if asked.accepts_gzip:
                response.headers["Content-Encoding"] = "gzip"
                body = finish(compressing(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
        date = formatdate(usegmt=True)
        return f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\nDate: {date}\r\n\r\n".encode() + body
