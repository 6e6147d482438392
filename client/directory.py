"""The nameserver addresses and routes that a client knows, and operations that ask nameservers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from routekeeper.remoting.codes import DEFAULT_TOPIC, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost, RemoteProtocolError, RemotingError, ResponseError
from routekeeper.remoting.fields import GetRouteFields
from routekeeper.remoting.route import TopicRouteData, decode_route

from .config import ClientConfig, parse_nameservers
from .errors import InvalidArgument, NoNameserver, NoRoute, describe
from .operation import Clock, Fetch, FetchReply, Instant, Operation, Signal, invoke, read_clock, wait
from .retry import NameserverChoice, tries_next_nameserver
from .route_cache import PublishInfo, RouteCache, clamp_default_route
from .trouble import TroubleLog

if TYPE_CHECKING:
    import random  # only for type annotations: callers pass the random generator

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Largest size in bytes of the page that lists nameserver addresses.
_PAGE_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class EachAnswer:
    """The answer or the error of one nameserver: exactly one of ``response`` and ``error`` is set."""

    addr: str
    response: RemotingCommand | None
    error: RemotingError | None


class RouteSource(Protocol):
    """The source of a client's routes. The default source is :func:`ask_nameservers`."""

    def __call__(
        self, directory: Directory, topic: str, *, timeout_s: float | None
    ) -> Operation[TopicRouteData]:
        """Return a topic's route.

        Raises:
            RemotingError: If no server answered.
            ResponseError: If the server refused the request; the code is 17 if the server knows no route.
        """


def ask_nameservers(
    directory: Directory, topic: str, *, timeout_s: float | None, addr: str | None = None
) -> Operation[TopicRouteData]:
    """Ask the nameservers for a topic's route, as RocketMQ's clients do (a :class:`RouteSource`)."""
    fields = GetRouteFields(topic=topic)
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields.to_ext())
    return (yield from directory.read(request, _route_in, addr=addr, timeout_s=timeout_s))


def _route_in(response: RemotingCommand) -> TopicRouteData:
    if response.code != ResponseCode.SUCCESS or not response.body:
        raise ResponseError(response.code or ResponseCode.TOPIC_NOT_EXIST, response.remark)
    return decode_route(response.body)


class Directory:
    """Nameservers and routes of one client, shared by its producers and consumers."""

    def __init__(
        self, config: ClientConfig, rng: random.Random, source: RouteSource = ask_nameservers
    ) -> None:
        self.config = config
        self._source = source
        self.nameservers = NameserverChoice(config.nameservers, avoid_s=config.nameserver_avoid_s, rng=rng)
        self.routes = RouteCache(refresh_s=config.route_refresh_s)
        #: Functions that are called when a route in use has changed. They must not wait, because no other
        #: operation of this client runs meanwhile.
        self.watchers: list[Callable[[], None]] = []
        #: True if :meth:`keep_routes` runs. Otherwise, each send refreshes its route if the route is out of
        #: date.
        self.kept = False
        #: True if the client has ended. Failures are then expected, so they are not logged as warnings.
        self.closing = False
        self._refresh_trouble = TroubleLog(log, "routes are refreshed again")

    def ask(
        self, request: RemotingCommand, *, timeout_s: float | None = None, addr: str | None = None
    ) -> Operation[RemotingCommand]:
        """Send a read request to one nameserver, as :meth:`read` does. Return the answer with any code."""
        return (yield from self.read(request, lambda response: response, timeout_s=timeout_s, addr=addr))

    def read(
        self,
        request: RemotingCommand,
        decode: Callable[[RemotingCommand], T],
        *,
        timeout_s: float | None = None,
        addr: str | None = None,
    ) -> Operation[T]:
        """Send a read request to one nameserver, and return the decoded answer.

        Ask the next nameserver if a nameserver does not answer, is overloaded or not ready, or sends an
        answer that cannot be decoded. Stop when the timeout ends. Each nameserver except for the last has at
        most ``nameserver_try_s`` seconds to answer. So a dead nameserver does not use up the whole timeout.
        Repeating a read does no harm.

        Args:
            decode: Returns the result from an answer with any code. If it raises RemoteProtocolError,
                the nameserver counts as failed. Other exceptions reach the caller.
            addr: The only nameserver to ask; if None, any nameserver may answer.

        Raises:
            NoNameserver: If no nameserver sent an answer that can be decoded.
        """
        instant: Instant = yield Clock()
        deadline_s = instant.now_s + (self.config.call_timeout_s if timeout_s is None else timeout_s)
        candidates = self.nameservers.order(instant.now_s) if addr is None else (addr,)
        failures: dict[str, str] = {}
        refusal: RemotingCommand | None = None
        for position, candidate in enumerate(candidates):
            instant = yield Clock()
            left_s = deadline_s - instant.now_s
            if left_s <= 0:
                failures[candidate] = "not asked, no time was left"
                continue
            last = position == len(candidates) - 1
            limit_s = left_s if last else min(left_s, self.config.nameserver_try_s)
            try:
                response = yield from self._ask_one(candidate, request, limit_s)
            except RemotingError as error:
                instant = yield Clock()
                self.nameservers.failed(candidate, instant.now_s)
                failures[candidate] = describe(error)
                log.debug("nameserver failed addr=%s error=%s", candidate, error)
                continue
            if tries_next_nameserver(response.code, response.remark):
                instant = yield Clock()
                self.nameservers.failed(candidate, instant.now_s)
                refusal = response
                continue
            try:
                result = decode(response)
            except RemoteProtocolError as error:
                # Count this as a failure: the nameserver would answer the next requests in the same way.
                instant = yield Clock()
                self.nameservers.failed(candidate, instant.now_s)
                failures[candidate] = f"its answer cannot be used: {error}"
                log.debug("answer of nameserver cannot be used addr=%s error=%s", candidate, error)
                continue
            except ResponseError:
                self.nameservers.answered(candidate)
                raise
            self.nameservers.answered(candidate)
            return result
        if refusal is not None:
            return decode(refusal)
        raise NoNameserver(failures)

    def _ask_one(self, addr: str, request: RemotingCommand, timeout_s: float) -> Operation[RemotingCommand]:
        before: Instant = yield Clock()
        try:
            return (yield from invoke(addr, request, timeout_s))
        except ConnectionLost as error:
            if not error.sent:
                raise
            after: Instant = yield Clock()
            left_s = timeout_s - (after.now_s - before.now_s)
            if left_s <= 0:
                raise
            # The connection may have been opened before a restart of the nameserver. Repeat the request over
            # a new connection, because repeating a read does no harm.
            return (yield from invoke(addr, request, left_s))

    def tell_each(self, request: RemotingCommand) -> Operation[tuple[EachAnswer, ...]]:
        """Send a request to each nameserver, as RocketMQ's administration does, and return all answers.

        If a nameserver fails, the other nameservers still receive the request. If all nameservers must make a
        change, the caller must check every answer.

        Raises:
            NoNameserver: If no address is known.
        """
        answers: list[EachAnswer] = []
        for addr in self.nameserver_list():
            try:
                response = yield from invoke(addr, request, self.config.call_timeout_s)
                ensure_success(response, addr)
            except RemotingError as error:
                answers.append(EachAnswer(addr, None, error))
            else:
                answers.append(EachAnswer(addr, response, None))
        if not answers:
            raise NoNameserver({})
        return tuple(answers)

    def nameserver_list(self) -> tuple[str, ...]:
        """Return the configured addresses in their order, then the addresses from ``nameserver_url``."""
        known = self.nameservers.addrs
        configured = tuple(addr for addr in self.config.nameservers if addr in known)
        return configured + tuple(addr for addr in known if addr not in configured)

    def fetch_route(
        self, topic: str, *, addr: str | None = None, timeout_s: float | None = None
    ) -> Operation[TopicRouteData]:
        """Ask a nameserver for a topic's route, without using or changing the route cache.

        Raises:
            NoNameserver: If no nameserver answered.
            ResponseError: If a nameserver answered with an error; code 17 if it knows no route.
        """
        if addr is not None:
            return (yield from ask_nameservers(self, topic, timeout_s=timeout_s, addr=addr))
        return (yield from self._source(self, topic, timeout_s=timeout_s))

    def refresh(
        self, topic: str, *, default_queue_nums: int = 0, default_topic: str = DEFAULT_TOPIC
    ) -> Operation[bool]:
        """Ask for a topic's route and store it in the cache. Return True if the route is new or different.

        Args:
            default_queue_nums: If above 0 and the topic has no route, the default topic's route is stored
                with at most this many queues. A broker creates the topic when it receives the first message.

        Raises:
            NoNameserver: If no nameserver answered.
            ResponseError: If the topic has no route. The cache keeps an older route of the topic.
        """
        self.routes.use(topic)
        provisional = False
        try:
            route = yield from self.fetch_route(topic)
        except ResponseError as error:
            instant: Instant = yield Clock()
            self.routes.asked(topic, instant.now_s)
            if error.code != ResponseCode.TOPIC_NOT_EXIST or default_queue_nums <= 0:
                raise
            default = yield from self.fetch_route(default_topic)
            route, provisional = clamp_default_route(default, default_queue_nums), True
        instant = yield Clock()
        changed = self.routes.put(topic, route, instant.now_s, provisional=provisional)
        if changed:
            log.info(
                "route changed topic=%s brokers=%s", topic, [data.broker_name for data in route.broker_datas]
            )
            for changed_hook in self.watchers:
                changed_hook()
        return changed

    def publish_info(
        self, topic: str, *, default_queue_nums: int, default_topic: str
    ) -> Operation[PublishInfo]:
        """Return the queues for sends: from the cache, or from a nameserver if the cache has no queue.

        Raises:
            NoRoute: If the topic has no queue to which messages can be sent.
            NoNameserver: If the cache has no route and no nameserver answered.
        """
        info = self.routes.publish(topic)
        if info is not None and info.queues:
            if not self.kept:
                instant: Instant = yield Clock()
                if topic in self.routes.due(instant.now_s):
                    yield from self.refresh_quietly(topic)
                    info = self.routes.publish(topic) or info
            return info
        try:
            yield from self.refresh(topic, default_queue_nums=default_queue_nums, default_topic=default_topic)
        except ResponseError as error:
            raise NoRoute(topic, describe(error)) from None
        info = self.routes.publish(topic)
        if info is None or not info.queues:
            raise NoRoute(topic, "the route has no writable queue at a broker with a master")
        return info

    def refresh_quietly(self, topic: str) -> Operation[None]:
        """Refresh one route. After a failure, log it instead of raising it, and keep the old route."""
        try:
            yield from self.refresh(topic)
        except ResponseError as error:
            log.debug("route not found topic=%s error=%s", topic, error)
        except RemotingError as error:
            if self.closing:
                log.info("route refresh failed topic=%s error=%s", topic, error)
                return
            now_s = (yield from read_clock()).now_s
            line = "route refresh failed topic=%s error=%s"
            self._refresh_trouble.failed(now_s, line, topic, error, source=topic)
            return
        self._refresh_trouble.worked((yield from read_clock()).now_s, source=topic)

    def keep_routes(self, stop: Signal, stopping: Callable[[], bool]) -> Operation[None]:
        """Refresh all routes in use once in every refresh period, until the client stops.

        Each period refreshes every route, even a route that was read a moment ago. Therefore no route gets
        much older than one period.

        If the process was paused for longer than a period, refresh at once, and then continue at the times of
        the old schedule. A new schedule would begin for all clients of the process at the same instant. Their
        requests would then coincide in every period.

        Source: MQClientInstance.startScheduledTask.
        """
        period_s = self.config.route_refresh_s
        self.kept = True
        instant: Instant = yield Clock()
        next_s = instant.now_s
        while not stopping():
            seen = stop.version
            next_s += period_s * max(1, (instant.now_s - next_s) // period_s)
            if (yield from wait(stop, seen, max(0.0, next_s - instant.now_s))):
                continue
            for topic in self.routes.topics():
                yield from self.refresh_quietly(topic)
            instant = yield Clock()

    def keep_nameservers(self, stop: Signal, stopping: Callable[[], bool]) -> Operation[None]:
        """Read the page of nameserver addresses repeatedly, if one is configured, until the client stops."""
        url = self.config.nameserver_url
        if url is None:
            return
        while not stopping():
            seen = stop.version
            try:
                yield from self.fetch_nameservers()
            except (OSError, InvalidArgument) as error:
                log.warning("nameserver page failed url=%s error=%s", url, error)
            yield from wait(stop, seen, self.config.nameserver_refresh_s)

    def fetch_nameservers(self) -> Operation[None]:
        """Read the page of nameserver addresses once.

        Raises:
            OSError: If the page cannot be read.
            InvalidArgument: If the page contains anything but addresses. The known addresses do not change.
        """
        assert self.config.nameserver_url is not None
        reply: FetchReply = yield Fetch(
            self.config.nameserver_url, self.config.call_timeout_s, reply_max=_PAGE_MAX
        )
        if reply.status != 200:
            raise OSError(f"HTTP status {reply.status}")
        addrs = parse_nameservers(reply.text.strip())
        if addrs and self.nameservers.replace(addrs):
            log.info("nameservers changed addrs=%s", ";".join(addrs))


def ensure_success(response: RemotingCommand, peer: str = "", *, also: Iterable[int] = ()) -> RemotingCommand:
    """Return ``response`` if its code is success or one of ``also``.

    Raises:
        ResponseError: If the response has any other code.
    """
    if response.code != ResponseCode.SUCCESS and response.code not in also:
        raise ResponseError(response.code, response.remark, peer=peer)
    return response
