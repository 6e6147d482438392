"""State that a client's producers and consumers share: routes, heartbeats, its end."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.fields import UnregisterClientFields

from .config import ClientConfig
from .directory import Directory, RouteSource, ask_nameservers
from .errors import InvalidArgument
from .operation import Clock, Instant, Invoke, Oneway, Operation, Signal, Spawn, read_clock, together, wait
from .trouble import TroubleLog
from .unique_ids import UniqueIds

if TYPE_CHECKING:
    import random  # callers pass the generator; no code here uses a global one

log = logging.getLogger(__name__)

#: Requests of brokers that a driver hands to :meth:`ClientCore.peer_request`; it answers others "not
#: supported".
PEER_REQUESTS: Final = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
#: Those of these requests for whose answers a broker waits.
_ANSWERED: Final = PEER_REQUESTS[2:]
#: Serves such requests: returns an answer, or an operation that makes it; None for no answer.
PeerHandler = Callable[[RemotingCommand], "RemotingCommand | Operation[RemotingCommand] | None"]
#: Requests that show a broker the connection over which it reaches a client.
MEMBERSHIP_REQUESTS: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
#: Number of brokers that are notified at the same time.
_TOLD_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of this client: its machine, its process, itself in the process.

    Attributes:
        ip: Text of an address of this machine.
        serial: 32 bits that differ between clients of a process, and between processes with the same process
            id.
    """

    ip: str
    pid: int
    serial: int


class ClientCore:
    """State and background operations of one client.

    Args:
        source: The source of routes; the benchmark also reads them from ZooKeeper.

    Attributes:
        stop: Notified when the client begins to close; every background operation waits on it.
        silent: Addresses of brokers that did not answer their last heartbeat.
        deadline_s: Instant by which :meth:`close` must end, even if its parts have later deadlines.
    """

    def __init__(
        self,
        config: ClientConfig,
        identity: Identity,
        rng: random.Random,
        source: RouteSource = ask_nameservers,
    ) -> None:
        self.config = config
        self.client_id = config.client_id or f"{identity.ip}@{identity.pid}#{identity.serial}"
        self.rng = rng
        self.ids = UniqueIds(ip=identity.ip, pid=identity.pid, source_hash=identity.serial)
        self.directory = Directory(config, rng, source)
        self.stop = Signal()
        self.closing = False
        self._started = False
        self._producer_groups: Counter[str] = Counter()
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._cached: dict[str, Callable[[], int]] = {}
        self._closers: dict[object, Callable[[], Operation[None]]] = {}
        self._enders: dict[object, Callable[[], Operation[None]]] = {}
        self._unsent: dict[object, Callable[[], int]] = {}
        self.deadline_s = math.inf
        self.silent: set[str] = set()
        self._heartbeat_trouble = TroubleLog(log, "heartbeats work again")
        self._peer_handlers: dict[str, PeerHandler] = {}

    def stopping(self) -> bool:
        return self.closing

    def start(self) -> Operation[None]:
        """Start the background operations: route, nameserver and heartbeat refresh."""
        self._started = True
        if self.config.nameserver_url is not None and not self.config.nameservers:
            yield from self.directory.fetch_nameservers()
        yield Spawn(self.directory.keep_routes(self.stop, self.stopping), "routes")
        if self.config.nameserver_url is not None:
            yield Spawn(self.directory.keep_nameservers(self.stop, self.stopping), "nameservers")
        yield Spawn(self._keep_heartbeat(), "heartbeat")

    def close(self) -> Operation[None]:
        """Close the consumers, leave the producer groups, and end all background operations in order."""
        at_once = _TOLD_AT_ONCE if self._started else 1
        parts = [close() for close in tuple(self._closers.values())]
        yield from together(parts, "close", at_once=at_once)
        self._producer_groups = Counter(dict.fromkeys(self._producer_groups, 1))
        parts = [self.leave(producer_group=group) for group in sorted(self._producer_groups)]
        yield from together(parts, "farewell", at_once=at_once)
        self.closing = self.directory.closing = True
        self.stop.notify()

    def end(self) -> Operation[None]:
        """End the parts that :meth:`close` did not reach, because no caller waits for this client any more.

        It sends nothing. The driver's background operations have ended, or will never go on.
        """
        self.closing = self.directory.closing = True
        self.stop.notify()
        for end in tuple(self._enders.values()):
            yield from end()
        self._enders.clear()

    def cache_room(self) -> int:
        """Return how many more bytes of bodies the consumers may hold; negative if they hold too many."""
        return self.config.cache_size - sum(count() for count in self._cached.values())

    def unsent(self) -> int:
        """Return the number of messages of ``put`` that have no outcome yet."""
        return sum(count() for count in self._unsent.values())

    def left_open(self) -> bool:
        """Return whether data are lost if the program ends without :meth:`close`."""
        return not self.closing and bool(self._consumers or self.unsent())

    def add_producer(
        self,
        group: str,
        producer: object,
        close: Callable[[], Operation[None]],
        end: Callable[[], Operation[None]],
        unsent: Callable[[], int],
    ) -> None:
        """Name a producer's group in heartbeats; close the producer at the end.

        ``unsent`` counts its messages.

        Args:
            end: Called when the client ends, for messages that ``close`` has left.
        """
        self._producer_groups[group] += 1
        self._closers[producer] = close
        self._enders[producer] = end
        self._unsent[producer] = unsent

    def close_producer(self, group: str, producer: object) -> Operation[None]:
        """Close one producer; its group ends with the last one."""
        close = self._closers.pop(producer, None)
        if close is not None:
            yield from close()
            del self._unsent[producer]
            yield from self.leave(producer_group=group)

    def add_consumer(
        self,
        group: str,
        describe: Callable[[], ConsumerData],
        on_request: PeerHandler,
        close: Callable[[], Operation[None]],
        end: Callable[[], Operation[None]],
        cached: Callable[[], int],
    ) -> None:
        """Register a consumer: name its group in heartbeats, pass brokers' requests to it, close it later.

        ``cached`` counts the bytes that it holds; ``end`` is as for :meth:`add_producer`.
        """
        if group in self._consumers:
            raise InvalidArgument(
                f"consumer group {group!r} runs in this client already, allowed is one each"
            )
        self._closers[group] = close
        self._consumers[group] = describe
        self._peer_handlers[group] = on_request
        self._cached[group] = cached
        self._enders[group] = end

    def leave(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Operation[None]:
        """Notify every broker that a group of this client ends (35).

        If that fails, the other members wait 120 s longer.
        """
        if producer_group is not None:
            self._producer_groups[producer_group] -= 1
            if self._producer_groups[producer_group] > 0:
                return
            del self._producer_groups[producer_group]
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
            self._closers.pop(consumer_group, None)
            self._peer_handlers.pop(consumer_group, None)
            self._cached.pop(consumer_group, None)
            self._enders.pop(consumer_group, None)
        fields = UnregisterClientFields(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, fields.to_ext())

        def tell(addr: str) -> Operation[None]:
            try:
                yield Invoke(addr, request, self.config.call_timeout_s)
            except RemotingError as error:
                log.info("unregister failed broker=%s error=%s", addr, error)

        addrs = self._heartbeat_addrs(consumers=consumer_group is not None)
        yield from self._each(addrs, tell, "farewell")

    def beat(self) -> Operation[None]:
        """Send one heartbeat (34) to every known broker; brokers that do not answer are logged."""
        if not self._producer_groups and not self._consumers:
            return
        body = HeartbeatData(
            client_id=self.client_id,
            consumers=tuple(describe() for describe in self._consumers.values()),
            producer_groups=tuple(sorted(self._producer_groups)),
        ).encode()
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)

        def tell(addr: str) -> Operation[None]:
            try:
                response: RemotingCommand = yield Invoke(addr, request, self.config.call_timeout_s)
            except RemotingError as error:
                self.silent.add(addr)
                now_s = (yield from read_clock()).now_s
                self._heartbeat_trouble.failed(
                    now_s, "heartbeat failed broker=%s error=%s", addr, error, source=addr
                )
                return
            self.silent.discard(addr)
            now_s = (yield from read_clock()).now_s
            if response.code != 0:
                self._heartbeat_trouble.failed(
                    now_s,
                    "heartbeat refused broker=%s code=%d remark=%s",
                    *(addr, response.code, response.remark),
                    source=addr,
                )
            else:
                self._heartbeat_trouble.worked(now_s, source=addr)

        addrs = tuple(self._heartbeat_addrs(consumers=bool(self._consumers)))
        self.silent.intersection_update(addrs)
        yield from self._each(addrs, tell, "heartbeat")

    def _each(
        self, addrs: Iterable[str], tell: Callable[[str], Operation[None]], name: str
    ) -> Operation[None]:
        """Notify brokers concurrently, so that a silent one does not delay the others.

        A client that was not started, or that is ending, notifies them one after the other.
        """
        at_once = _TOLD_AT_ONCE if self._started and not self.closing else 1
        yield from together((tell(addr) for addr in addrs), name, at_once=at_once)

    def peer_request(self, request: RemotingCommand) -> RemotingCommand | Operation[RemotingCommand] | None:
        """Serve a broker's request; return the answer, an operation that makes it, or None for no answer."""
        for handler in tuple(self._peer_handlers.values()):
            response = handler(request)
            if response is not None:
                return response
        if request.code not in _ANSWERED:
            return None
        group = request.ext_fields.get("consumerGroup") or request.ext_fields.get("group") or ""
        return request.reply(
            ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
        )

    def pause(self, seconds: float) -> Operation[None]:
        """Wait, but at most until the client closes."""
        if not self.closing:
            yield from wait(self.stop, self.stop.version, seconds)

    def send_oneway(self, addr: str, request: RemotingCommand) -> Operation[None]:
        """Send a request without an answer; only log a failure."""
        try:
            yield Oneway(addr, request)
        except RemotingError as error:
            log.info("oneway failed addr=%s code=%d error=%s", addr, request.code, error)

    def _heartbeat_addrs(self, *, consumers: bool) -> list[str]:
        """Return the masters' addresses; with consumers also those of slaves, which serve reads."""
        addrs: dict[str, None] = {}
        for by_id in self.directory.routes.brokers().values():
            for broker_id, addr in by_id.items():
                if consumers or broker_id == MASTER_ID:
                    addrs[addr] = None
        return list(addrs)

    def _keep_heartbeat(self) -> Operation[None]:
        period_s = self.config.heartbeat_s
        yield from self.pause(min(1.0, period_s))
        while not self.closing:
            instant: Instant = yield Clock()
            yield from self.beat()
            after: Instant = yield Clock()
            yield from self.pause(max(0.01, period_s - (after.now_s - instant.now_s)))
