"""What one client process shares between its producers and consumers: routes, heartbeats, its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from client.config import ClientConfig
from client.directory import Directory
from client.errors import InvalidArgument
from client.operation import Clock, Instant, Invoke, Oneway, Operation, Signal, Spawn, wait
from client.producer import UniqueIds
from remoting.bodies import ConsumerData, HeartbeatData
from remoting.codes import MASTER_ID, RequestCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.fields import UnregisterClientFields

if TYPE_CHECKING:
    import random  # callers bring the generator; nothing here draws from a global one

log = logging.getLogger(__name__)

#: Requests of brokers that a driver hands to :meth:`ClientCore.peer_request`; it answers others "not
#: supported".
PEER_REQUESTS: Final = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
)
#: Requests by which a broker learns over which connection it reaches a client.
MEMBERSHIP_REQUESTS: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells this client apart from others: its machine, its process, itself in the process.

    Attributes:
        ip: Text of an address of this machine.
        serial: 32 bits that differ between clients of a process, and between runs with one process id.
    """

    ip: str
    pid: int
    serial: int


class ClientCore:
    """State and background operations of one client.

    Attributes:
        stop: Notified when the client begins to close; every background operation waits on it.
    """

    def __init__(self, config: ClientConfig, identity: Identity, rng: random.Random) -> None:
        self.config = config
        self.client_id = config.client_id or f"{identity.ip}@{identity.pid}#{identity.serial}"
        self.rng = rng
        self.ids = UniqueIds(ip=identity.ip, pid=identity.pid, source_hash=identity.serial)
        self.directory = Directory(config, rng)
        self.stop = Signal()
        self.closing = False
        self._producer_groups: set[str] = set()
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._closers: list[Callable[[], Operation[None]]] = []
        self._peer_handlers: dict[str, Callable[[RemotingCommand], RemotingCommand | None]] = {}

    def stopping(self) -> bool:
        return self.closing

    def start(self) -> Operation[None]:
        """Start what runs beside the user's calls: route, nameserver and heartbeat refresh."""
        if self.config.nameserver_url is not None and not self.config.nameservers:
            yield from self.directory.fetch_nameservers()
        yield Spawn(self.directory.keep_routes(self.stop, self.stopping), "routes")
        if self.config.nameserver_url is not None:
            yield Spawn(self.directory.keep_nameservers(self.stop, self.stopping), "nameservers")
        yield Spawn(self._keep_heartbeat(), "heartbeat")

    def close(self) -> Operation[None]:
        """Close the consumers, leave the producer groups, let all background operations come to their end."""
        for close in tuple(self._closers):
            yield from close()
        for group in sorted(self._producer_groups):
            yield from self.leave(producer_group=group)
        self.closing = True
        self.stop.notify()

    def add_producer(self, group: str) -> None:
        """Name a producer group in heartbeats."""
        self._producer_groups.add(group)

    def add_consumer(
        self,
        group: str,
        describe: Callable[[], ConsumerData],
        on_request: Callable[[RemotingCommand], RemotingCommand | None],
        close: Callable[[], Operation[None]],
    ) -> None:
        """Name a consumer group in heartbeats, hand it the requests that brokers send us, close it at the
        end."""
        if group in self._consumers:
            raise InvalidArgument(
                f"consumer group {group!r} runs in this client already, allowed is one each"
            )
        self._closers.append(close)
        self._consumers[group] = describe
        self._peer_handlers[group] = on_request

    def leave(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Operation[None]:
        """Tell every broker that a group of this client ends (35); failures only cost the others 120 s."""
        if producer_group is not None:
            self._producer_groups.discard(producer_group)
        if consumer_group is not None:
            self._consumers.pop(consumer_group, None)
            self._peer_handlers.pop(consumer_group, None)
        fields = UnregisterClientFields(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, fields.to_ext())
        for addr in self._heartbeat_addrs(consumers=consumer_group is not None):
            try:
                yield Invoke(addr, request, self.config.call_timeout_s)
            except RemotingError as error:
                log.info("unregister failed broker=%s error=%s", addr, error)

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
        for addr in self._heartbeat_addrs(consumers=bool(self._consumers)):
            try:
                response: RemotingCommand = yield Invoke(addr, request, self.config.call_timeout_s)
            except RemotingError as error:
                log.info("heartbeat failed broker=%s error=%s", addr, error)
                continue
            if response.code != 0:
                log.warning(
                    "heartbeat refused broker=%s code=%d remark=%s", addr, response.code, response.remark
                )

    def peer_request(self, request: RemotingCommand) -> RemotingCommand | None:
        """Serve a request that a broker sent us; None when there is nothing to answer."""
        for handler in tuple(self._peer_handlers.values()):
            response = handler(request)
            if response is not None:
                return response
        return None

    def pause(self, seconds: float) -> Operation[None]:
        """Wait, but not longer than the client lives."""
        if not self.closing:
            yield from wait(self.stop, self.stop.version, seconds)

    def send_oneway(self, addr: str, request: RemotingCommand) -> Operation[None]:
        """Send without an answer; a failure is logged only."""
        try:
            yield Oneway(addr, request)
        except RemotingError as error:
            log.info("oneway failed addr=%s code=%d error=%s", addr, request.code, error)

    def _heartbeat_addrs(self, *, consumers: bool) -> list[str]:
        """Masters; with consumers also slaves, which serve reads."""
        addrs: dict[str, None] = {}
        for by_id in self.directory.routes.brokers().values():
            for broker_id, addr in by_id.items():
                if consumers or broker_id == MASTER_ID:
                    addrs[addr] = None
        return list(addrs)

    def _keep_heartbeat(self) -> Operation[None]:
        period_s = self.config.period(self.config.heartbeat_s)
        yield from self.pause(min(1.0, period_s))
        while not self.closing:
            instant: Instant = yield Clock()
            yield from self.beat()
            after: Instant = yield Clock()
            yield from self.pause(max(0.01, period_s - (after.now_s - instant.now_s)))
