"""Questions to the production nameservers, asked on the event loop and with deadlines.

A question asks for the route of one topic.

All client requests for the same topic share one question. A client request waits only until its
own deadline. The question has another deadline, so the question may continue after the client's request has
ended. This nameserver keeps the answer for later client requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import ConfigError
from routekeeper.remoting.address_server import addresses_in, url_of, wrong_address
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.http.asking import AddressServer, AddressServerFailure
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.route import TopicRouteData, decode_route
from routekeeper.remoting.transport.aio import RemotingClient

from .kept import MARK, Kept, KeptAnswers, QuestionLimit

log = logging.getLogger(__name__)

#: Longest time in seconds in which the production nameservers are asked for one topic's route. The time
#: includes all tries, and a request to the address server.
QUESTION_S: Final = 3.0
#: Seconds within which one nameserver must answer. After this time, the next nameserver is asked.
_TRY_S: Final = 1.4
_CONNECT_S: Final = 1.0
_TRIES_MAX: Final = 3
#: Seconds between an answer of the address server and the next request to it; source: MQClientInstance,
#: RocketMQ 4.9 and 5.3.
ADDRESSES_EVERY_S: Final = 120.0
#: Seconds between a failed request to the address server and the next request to it.
ADDRESSES_AGAIN_S: Final = 10.0
#: Largest accepted size of an encoded route, in bytes.
ROUTE_SIZE_MAX: Final = 4 * 1024 * 1024
#: Largest size in bytes of a route that the event loop decodes itself; a thread decodes larger routes.
_DECODED_HERE_MAX: Final = 16 * 1024


class _Unanswered(Exception):
    """The production nameservers gave no answer; the message says why."""


class Production:
    """Client of the production nameservers. A nameserver of a test environment asks them for unknown topics.

    Args:
        group: The asyncio task group that runs the questions.

    Attributes:
        questions: Number of questions, by result: ``found`` (the answer has a route), ``absent`` (the answer
            has no route), ``unanswered`` (no answer came), ``refused`` (not sent, because there were too many
            questions).
        kept_answers: Number of client requests that were answered from the cache of earlier answers.

    Raises:
        ConfigError: If the value of a setting cannot be used to ask the production nameservers.
    """

    def __init__(self, settings: LiveSettings, group: asyncio.TaskGroup) -> None:
        self._settings = settings
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._client = RemotingClient(connect_timeout_s=_CONNECT_S)
        self._server = AddressServer(within_s=QUESTION_S)
        self._decoding = DiskThreads("production routes")
        self._kept = KeptAnswers()
        self._limit = QuestionLimit()
        self._asking: dict[str, asyncio.Task[Kept | None]] = {}
        self._environment = settings.current.product_env_name
        self._addrs: tuple[str, ...] = ()
        self._ask_addrs_at = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._first = 0  # index of the address that answered last; it is asked first
        self._log = LimitedLog(log, self._loop.time)
        self.questions = Counter(found=0, absent=0, unanswered=0, refused=0)
        self.kept_answers = 0
        current = settings.current
        wrong = wrong_address(current.cluster_test_nameservers)
        if wrong:
            raise ConfigError(f"--cluster-test-nameservers: {wrong}")
        try:
            self._url()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        log.info(
            "unknown topics are asked of production env=%s from=%s",
            self._environment,
            current.cluster_test_nameservers or self._url(),
        )

    def kept(self, topic: str) -> Kept | None:
        """Return the cached answer for a topic, or None if the production nameservers must be asked."""
        # After request code 318 has changed productEnvName, drop the answers for the former environment.
        if self._environment != self._settings.current.product_env_name:
            self._environment = self._settings.current.product_env_name
            self._kept.clear()
            self._addrs, self._ask_addrs_at = (), 0.0
        kept = self._kept.find(topic, self._loop.time())
        if kept is not None:
            self.kept_answers += 1
        return kept

    async def ask(self, topic: str, *, host: str, deadline: float) -> TopicRouteData | None:
        """Ask the production nameservers for the route of a topic that has no cached answer.

        Return the route. Return None if they have no route, or if no answer came in time.

        Args:
            host: Host of the client.
            deadline: Time at which the client's request stops waiting, in seconds of the loop's clock.
        """
        task = self._asking.get(topic)
        if task is None:
            now = self._loop.time()
            if not self._limit.allow(host, now, asking=len(self._asking)):
                self.questions["refused"] += 1
                return None
            task = self._asking[topic] = self._group.create_task(self._question(topic))
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        await asyncio.wait({task}, timeout=max(0.0, deadline - self._loop.time()))
        if not task.done() or task.cancelled():
            return None
        kept = task.result()
        return None if kept is None else kept.route

    def figures(self) -> list[tuple[str, str, list[tuple[dict[str, str], float]]]]:
        """Return each metric as name, help text and samples; a sample has labels and a value."""
        questions = [({"result": result}, float(count)) for result, count in self.questions.items()]
        kept = "Route queries answered from kept answers of production."
        return [
            ("cluster_test_questions_total", "Questions to the production environment by result.", questions),
            ("cluster_test_kept_answers_total", kept, [({}, float(self.kept_answers))]),
        ]

    async def close(self) -> None:
        """Cancel all questions and close the connections."""
        pending = [*self._asking.values(), *filter(None, (self._fetching,))]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        await self._client.close()
        await self._server.close()
        self._decoding.shutdown()

    async def _question(self, topic: str) -> Kept | None:
        route, size, result = None, 0, "unanswered"
        environment = self._environment
        try:
            async with asyncio.timeout(QUESTION_S):
                route, size = await self._route(topic)
            result = "absent" if route is None else "found"
        except (TimeoutError, _Unanswered) as error:
            why = str(error) or f"no answer within {QUESTION_S:g} s"
            self._log.write(
                logging.INFO, "question", "production gave no route env=%s reason=%s", environment, why
            )
        except Exception:  # An error in one question must not stop the other questions.
            log.exception("question to production failed env=%s", environment)
        self.questions[result] += 1
        if environment == self._environment:
            self._kept.keep(topic, route, self._loop.time(), size=size)
        return Kept(route, 0.0, size)

    async def _route(self, topic: str) -> tuple[TopicRouteData | None, int]:
        """Ask the nameservers one after the other; return the route and its size in bytes.

        The route is None if the nameserver that answered does not know the topic.
        """
        request = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true", MARK: "true"},
        )
        addrs = await self._nameservers()
        why = "no nameserver of it is known"
        for count in range(min(len(addrs), _TRIES_MAX)):
            index = (self._first + count) % len(addrs)
            try:
                answer = await self._client.invoke(addrs[index], request, timeout_s=_TRY_S)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    self._first = index
                    return None, 0
                if answer.code == ResponseCode.SUCCESS:
                    route = await self._decode(answer.body)
                    self._first = index
                    return route, len(answer.body)
                why = f"{addrs[index]} answered code {answer.code} {shortened(answer.remark or '')}"
            except RemotingError as error:
                why = shortened(str(error))
        self._first += 1
        raise _Unanswered(why)

    async def _decode(self, body: bytes) -> TopicRouteData:
        """Decode a route.

        Raises:
            RemoteProtocolError: If the body is not a route.
            _Unanswered: If the route is too large.
        """
        if len(body) > ROUTE_SIZE_MAX:
            raise _Unanswered(f"a route of {len(body)} bytes, allowed are {ROUTE_SIZE_MAX}")
        if len(body) <= _DECODED_HERE_MAX:
            return decode_route(body)
        try:
            decoding = self._loop.run_in_executor(self._decoding, decode_route, body)
        except RuntimeError:  # no thread can be started, so decode on the event loop
            return decode_route(body)
        return await decoding

    # -- the address server --------------------------------------------------------------------------

    async def _nameservers(self) -> tuple[str, ...]:
        """Return the addresses of the production nameservers; wait only while no address is known."""
        named = addresses_in(self._settings.current.cluster_test_nameservers)
        if named:
            return named
        if self._fetching is None and self._loop.time() >= self._ask_addrs_at:
            self._fetching = self._group.create_task(self._fetch())
        if not self._addrs and self._fetching is not None:
            await asyncio.wait({self._fetching})
        return self._addrs

    async def _fetch(self) -> None:
        """Ask the address server for the production nameservers. If it fails, keep the known addresses."""
        url, again_s = self._url(), ADDRESSES_AGAIN_S
        environment = self._environment
        try:
            addrs = await self._server.nameservers(url)
            if environment == self._environment:
                if addrs != self._addrs:
                    log.info("nameservers of production env=%s addrs=%s", environment, ";".join(addrs))
                self._addrs, again_s = addrs, ADDRESSES_EVERY_S
        except AddressServerFailure as error:
            self._log.write(
                logging.WARNING, "addresses", "address server failed url=%s reason=%s", url, str(error)
            )
        except Exception:  # An error in one request to the address server must not stop the nameserver.
            log.exception("address server failed url=%s", url)
        finally:
            self._ask_addrs_at = self._loop.time() + again_s
            self._fetching = None

    def _url(self) -> str:
        current = self._settings.current
        return url_of(
            domain=current.namesrv_domain,
            subgroup=current.namesrv_domain_subgroup,
            environment=current.product_env_name,
        )
