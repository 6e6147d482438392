"""State that all producers and consumers of a client use: routes, heartbeats, and the end of the client."""

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
from routekeeper.remoting.errors import RemotingError, Withdrawn
from routekeeper.remoting.fields import UnregisterClientFields

from .config import ClientConfig
from .directory import Directory, RouteSource, ask_nameservers
from .errors import InvalidArgument
from .guarded_logs import guard_loggers
from .operation import Clock, Instant, Invoke, Oneway, Operation, Signal, Spawn, read_clock, together, wait
from .trouble import TroubleLog
from .unique_ids import UniqueIds

if TYPE_CHECKING:
    import random  # only for type annotations: callers pass the random generator

log = logging.getLogger(__name__)

#: Requests from brokers that a client passes to :meth:`ClientCore.peer_request`. The client answers all other
#: requests from brokers with "not supported".
PEER_REQUESTS: Final = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
#: The requests among :data:`PEER_REQUESTS` that need an answer, because the broker waits for it.
_ANSWERED: Final = PEER_REQUESTS[2:]
#: Function that handles a broker's request. It returns an answer, an operation that computes the answer, or
#: None for no answer.
PeerHandler = Callable[[RemotingCommand], "RemotingCommand | Operation[RemotingCommand] | None"]
#: Requests from which a broker learns the connection of a client. The broker then sends its own requests to
#: the client over that connection.
MEMBERSHIP_REQUESTS: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
#: Operation that closes a producer or consumer. It returns as :meth:`.operation.Once.run`.
Closer = Callable[[], Operation[Signal | None]]
#: Largest number of brokers to which the client sends requests at the same time.
_TOLD_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a client: its machine, its process, and its number within the process.

    Attributes:
        ip: An address of this machine, as text.
        serial: A 32-bit number. It differs between the clients of a process, and between processes with the
            same process id (for example, in containers).
    """

    ip: str
    pid: int
    serial: int


class ClientCore:
    """State and background operations of one client.

    Args:
        source: Operation that fetches a route. The benchmark passes an operation that reads from ZooKeeper.

    Attributes:
        stop: Signal of the end of the client. Every background operation waits for this signal.
        silent: Addresses of brokers that did not answer their last heartbeat.
        crowded_until_s: For each broker name, an instant in seconds of the monotonic clock. Until this
            instant, queues of the broker pause after an empty pull, because too many pulls wait on the
            connection to the broker.
        deadline_s: Instant in seconds of the monotonic clock at which :meth:`close` must have ended, even if
            timeouts of its operations end later.
    """

    def __init__(
        self,
        config: ClientConfig,
        identity: Identity,
        rng: random.Random,
        source: RouteSource = ask_nameservers,
    ) -> None:
        guard_loggers()
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
        self._closers: dict[object, Closer] = {}
        self._enders: dict[object, Callable[[], Operation[None]]] = {}
        self._unsent: dict[object, Callable[[], int]] = {}
        self._closed: set[object] = set()  # closed producers with messages that have no outcome yet
        self._leaves = 0  # number of times that this client began to leave a group
        self._leaving = 0  # number of operations that notify brokers now that this client leaves a group
        self._left = Signal()
        self._ending: set[object] = set()  # producers for which close_producer() runs now
        self._begun: set[str] = set()  # names of the background operations that were started
        self.deadline_s = math.inf
        self.silent: set[str] = set()
        self.crowded_until_s: dict[str, float] = {}
        self._heartbeat_trouble = TroubleLog(log, "heartbeats work again")
        self._peer_handlers: dict[str, PeerHandler] = {}

    def stopping(self) -> bool:
        return self.closing

    def start(self) -> Operation[None]:
        """Start the background operations, which refresh routes and nameservers and send heartbeats.

        After a failure, a second call starts the operations that the first call did not start.
        """
        self._started = True
        if self.config.nameserver_url is not None and not self.config.nameservers:
            yield from self.directory.fetch_nameservers()
        yield from self._begin("routes", lambda: self.directory.keep_routes(self.stop, self.stopping))
        if self.config.nameserver_url is not None:
            yield from self._begin(
                "nameservers", lambda: self.directory.keep_nameservers(self.stop, self.stopping)
            )
        yield from self._begin("heartbeat", self._keep_heartbeat)

    def _begin(self, name: str, operation: Callable[[], Operation[None]]) -> Operation[None]:
        if name not in self._begun:
            yield Spawn(operation(), name)
            self._begun.add(name)

    def close(self, *, waits: bool = True) -> Operation[None]:
        """Close consumers and producers, leave the producer groups, then end the background operations.

        Other callers may be closing consumers, producers or this client now. Wait for them before ending the
        background operations, because their messages and offsets would otherwise be cut off. The wait ends
        ``shutdown_s`` + ``call_timeout_s`` seconds after the start of this operation: another caller may use
        ``shutdown_s`` for listener calls, and stores offsets afterwards. The wait must have an end, because
        the other caller may wait for a listener that has called this operation.

        Args:
            waits: False to wait for no other caller.
        """
        instant: Instant = yield Clock()
        most_s = self.config.shutdown_s + self.config.call_timeout_s if waits else 0.0
        deadline_s = min(instant.now_s + most_s, self.deadline_s)
        at_once = _TOLD_AT_ONCE if self._started else 1
        others: list[Closer] = []

        def run(close: Closer) -> Operation[None]:
            if (yield from close()) is not None:
                others.append(close)

        yield from together([run(close) for close in tuple(self._closers.values())], "close", at_once=at_once)
        for close in others:
            yield from self._wait_for_other(close, deadline_s)
        self._producer_groups = Counter(dict.fromkeys(self._producer_groups, 1))
        parts = [self.leave(producer_group=group) for group in sorted(self._producer_groups)]
        yield from together(parts, "farewell", at_once=at_once)
        while self._leaving and (yield from self._wait_before(self._left, self._left.version, deadline_s)):
            pass
        self.closing = self.directory.closing = True
        self.stop.notify()

    def _wait_for_other(self, close: Closer, deadline_s: float) -> Operation[None]:
        """Wait until another caller has closed a producer or consumer, or close it if that caller stops."""
        while (ended := (yield from close())) is not None:
            if not (yield from self._wait_before(ended, ended.version, deadline_s)):
                return

    @staticmethod
    def _wait_before(signal: Signal, seen: int, deadline_s: float) -> Operation[bool]:
        """Wait for a later version of a signal until ``deadline_s``; return False if there is none."""
        instant: Instant = yield Clock()
        return (yield from wait(signal, seen, max(0.0, deadline_s - instant.now_s)))

    def end(self) -> Operation[None]:
        """End the producers and consumers that :meth:`close` did not reach in time, and send nothing.

        Wake the callers that wait for a producer or consumer, and report an outcome for each message that has
        none. The client runs this operation last, after it has ended or abandoned all background operations.
        """
        self.closing = self.directory.closing = True
        self.stop.notify()
        for end in tuple(self._enders.values()):
            yield from end()
        self._enders.clear()

    def cache_room(self) -> int:
        """Return the bytes of messages that consumers may still pull; negative if they exceed the limit."""
        return self.config.cache_size - sum(count() for count in self._cached.values())

    def unsent(self) -> int:
        """Return the number of messages of ``put`` that have no outcome yet."""
        return sum(count() for count in self._unsent.values())

    def left_open(self) -> bool:
        """Return True if the program would lose data by ending without :meth:`close`."""
        return not self.closing and bool(self._consumers or self.unsent())

    def add_producer(
        self,
        group: str,
        producer: object,
        close: Closer,
        end: Callable[[], Operation[None]],
        unsent: Callable[[], int],
    ) -> None:
        """Add a producer: heartbeats then contain its group, and :meth:`close` closes the producer.

        Args:
            end: Operation for messages that ``close`` did not send. It runs when the client ends.
            unsent: Returns the number of the producer's messages that have no outcome yet.
        """
        self._producer_groups[group] += 1
        self._closers[producer] = close
        self._enders[producer] = end
        self._unsent[producer] = unsent

    def close_producer(self, group: str, producer: object) -> Operation[None]:
        """Close one producer. If it was the last producer of its group, the client leaves the group."""
        close = self._closers.get(producer)
        if close is None or producer in self._ending:
            return
        self._ending.add(producer)
        try:
            if (yield from close()) is not None:
                return  # close() of the client runs it now, and leaves the group afterwards
            # Remove the producer only after its close() has ended. If the caller is cancelled earlier,
            # close() of the client still sends the producer's messages.
            del self._closers[producer]
            self._closed.add(producer)
            self._forget_closed()
        finally:
            self._ending.discard(producer)
        yield from self.leave(producer_group=group)

    def _forget_closed(self) -> None:
        """Forget each closed producer whose messages all have outcomes. :meth:`end` then skips it."""
        for producer in [producer for producer in self._closed if not self._unsent[producer]()]:
            self._closed.discard(producer)
            del self._unsent[producer]
            self._enders.pop(producer, None)

    def add_consumer(
        self,
        group: str,
        describe: Callable[[], ConsumerData],
        on_request: PeerHandler,
        close: Closer,
        end: Callable[[], Operation[None]],
        cached: Callable[[], int],
    ) -> None:
        """Add a consumer: heartbeats then contain its group, and :meth:`close` closes the consumer.

        Args:
            describe: Returns the consumer's entry for heartbeats.
            on_request: Handles brokers' requests that concern the consumer.
            end: Operation that wakes callers that still wait for messages. It runs when the client ends.
            cached: Returns the number of bytes of memory that the consumer's messages take.
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

    def remove_consumer(self, group: str, describe: Callable[[], ConsumerData]) -> bool:
        """Remove a consumer: heartbeats no longer contain its group. Send nothing.

        Args:
            describe: The function that the consumer passed to :meth:`add_consumer`.

        Returns:
            False if the group now has another consumer of this client. That consumer stays.
        """
        if self._consumers.get(group, describe) != describe:
            return False
        self._consumers.pop(group, None)
        self._closers.pop(group, None)
        self._peer_handlers.pop(group, None)
        self._cached.pop(group, None)
        self._enders.pop(group, None)
        return True

    def leave(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Operation[None]:
        """Notify every broker that this client leaves a group (request 35).

        Before this operation, the caller removes the group's consumer with :meth:`remove_consumer`.
        Otherwise the next heartbeat would join the group again.

        If a broker does not receive the notification, it removes this client only after 120 s without a
        heartbeat. Until then, the other members do not take over this client's queues.
        """
        if producer_group is not None:
            self._producer_groups[producer_group] -= 1
            if self._producer_groups[producer_group] > 0:
                return
            del self._producer_groups[producer_group]
        self._leaves += 1
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
        self._leaving += 1
        try:
            yield from self._each(addrs, tell, "farewell")
        finally:
            self._leaving -= 1
            self._left.notify()

    def beat(self) -> Operation[None]:
        """Send one heartbeat (request 34) to every known broker, and log the brokers that do not answer."""
        if not self._producer_groups and not self._consumers:
            return
        body = HeartbeatData(
            client_id=self.client_id,
            consumers=tuple(describe() for describe in self._consumers.values()),
            producer_groups=tuple(sorted(self._producer_groups)),
        ).encode()
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
        leaves, withdrawn = self._leaves, False

        def tell(addr: str) -> Operation[None]:
            nonlocal withdrawn
            try:
                # Send no heartbeat that was encoded before this client left a group. It would join the group
                # again, and nobody would consume this client's share of the queues.
                response: RemotingCommand = yield Invoke(
                    addr, request, self.config.call_timeout_s, lambda: self._leaves != leaves
                )
            except Withdrawn:
                withdrawn = True
                return
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
        if withdrawn:
            yield from self.beat()  # send a heartbeat with the remaining groups

    def _each(
        self, addrs: Iterable[str], tell: Callable[[str], Operation[None]], name: str
    ) -> Operation[None]:
        """Run ``tell`` for each broker, concurrently, so that a silent broker does not delay other brokers.

        If the client was not started or is closing, run ``tell`` for one broker after the other.
        """
        at_once = _TOLD_AT_ONCE if self._started and not self.closing else 1
        yield from together((tell(addr) for addr in addrs), name, at_once=at_once)

    def peer_request(self, request: RemotingCommand) -> RemotingCommand | Operation[RemotingCommand] | None:
        """Handle a broker's request.

        Returns:
            The answer, or an operation that computes the answer, or None for no answer.
        """
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
        """Wait for this number of seconds, or until the client closes."""
        if not self.closing:
            yield from wait(self.stop, self.stop.version, seconds)

    def send_oneway(self, addr: str, request: RemotingCommand) -> Operation[None]:
        """Send a request that has no answer, and log a failure instead of raising it."""
        try:
            yield Oneway(addr, request)
        except RemotingError as error:
            log.info("oneway failed addr=%s code=%d error=%s", addr, request.code, error)

    def _heartbeat_addrs(self, *, consumers: bool) -> list[str]:
        """Return the addresses of masters, and for consumers also of slaves, because slaves serve reads."""
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
