"""Requests to the other nameservers: rounds of requests, with deadlines, while a page is open.

In one round, this nameserver sends one request to each other nameserver. It skips nameservers that failed to
answer until their pause is over (:class:`.addresses.Pace`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from routekeeper.nameserver.http.answers import ProblemDetails, TopicRouteData
from routekeeper.nameserver.modes.interface import Consistency, Freshness
from routekeeper.nameserver.modes.timeline import TimelineEvent
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import BrokerKey
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.addresses import (
    canonical_host,
    is_loopback,
    is_unspecified,
    join_address,
    split_address,
)
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.lenient import STRANGERS_ANSWER
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.names import GROUP_TOPIC_LENGTH_MAX, fault_of
from routekeeper.remoting.route import RouteDialect, decode_cluster_info, decode_route, encode_route
from routekeeper.remoting.transport.aio import RemotingClient
from routekeeper.remoting.transport.lookups import addresses_of
from routekeeper.remoting.transport.tls import load

from .addresses import NamedByBrokers, Pace, named_in, registers_from, why_not_asked
from .bodies import Own, OwnTopic
from .picture import Told, listing_of

log = logging.getLogger(__name__)

#: Seconds from the beginning of one round to the beginning of the next round.
EVERY_S: Final = 2.0
#: Seconds within which a peer must answer.
ANSWER_S: Final = 1.0
#: Seconds for which this nameserver sends requests to its peers, after a page requested the comparison of all
#: nameservers. While a page receives events from ``/v1/watch``, the requests continue without this limit.
OPEN_S: Final = 5.0
#: Largest answer of a peer, in bytes. An answer with 2,000 brokers has some 600 KB.
ANSWER_MAX: Final = 4 * 1024 * 1024
#: Limits of the JSON in a peer's answer. A stranger may have named the peer, and this event loop reads it.
PEER_LIMITS: Final = STRANGERS_ANSWER._replace(size=ANSWER_MAX, object_keys=False)
#: Largest number of topics in the requests to peers during one round, no matter how many pages show topics.
TOPICS_PER_ROUND: Final = 8
#: Largest number of events kept for one peer; the oldest event is dropped first.
EVENTS_MAX: Final = 500
#: Seconds for which the looked-up IP addresses of a host name stay in use.
_RESOLVED_S: Final = 30.0

_T = TypeVar("_T")


class _NoAnswer(Exception):
    """A peer gave no usable answer; the message says why."""


class _IsThis(Exception):
    """A host name resolved to an address of this nameserver itself."""


@dataclass(slots=True, eq=False)
class _Peer:
    """A nameserver that the console asks, and its last answers.

    Attributes:
        http: True if the console asks over HTTP; False if over RocketMQ's protocol.
        events: The peer's events, in the order of their numbers.
    """

    addr: str
    source: str
    http: bool
    raft: str = ""
    named_by: int = 0
    on_loopback: bool = False
    told: Told = field(init=False)
    events: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    boot_id: int = 0
    resolved: tuple[float, str] = (0.0, "")

    def __post_init__(self) -> None:
        self.told = Told(
            name=self.raft or self.addr,
            asked_at=self.addr,
            source=self.source,
            state="asking",
            raft=self.raft,
            named_by=self.named_by,
        )


class Peers:
    """The other nameservers that this nameserver knows, and the requests to them.

    Attributes:
        told: The newest answer of each nameserver, in a fixed order.
        note: Reason why the console asks no nameserver; empty if it asks some.
        rounds: Number of rounds that have ended. In a round, the console asks every other nameserver once.
        questions: Number of requests to peers and brokers.
        happened: Number of events that peers reported.
    """

    def __init__(
        self,
        consistency: Consistency,
        server: NameServer,
        settings: LiveSettings,
        *,
        after_round: Callable[[], Awaitable[None]],
    ) -> None:
        self._consistency = consistency
        self._server = server
        self._settings = settings
        self._after_round = after_round
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._open_until = 0.0
        self._watchers = 0
        self._peers: dict[str, _Peer] = {}
        self._named = NamedByBrokers()
        # HTTP address of each member. An address stays after the link is lost, so the member is still asked.
        self._told_http: dict[str, str] = {}
        self._pace = Pace(EVERY_S)
        self._http: aiohttp.ClientSession | None = None
        self._scheme = "http"
        self._wire: RemotingClient | None = None
        self._topics: dict[str, asyncio.Task[dict[str, tuple[Told, OwnTopic | None]]]] = {}
        self._topics_begun: deque[float] = deque(maxlen=TOPICS_PER_ROUND)
        self._closed = False
        self.note = ""
        self.rounds = 0
        self.questions = 0
        self.happened = 0

    # -- methods for the HTTP resources ------------------------------------------------------------------

    def ask(self) -> None:
        """Send requests to the peers during the next :data:`OPEN_S` seconds: a page needs the answers."""
        self._open_until = self._loop.time() + OPEN_S
        self._begin()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While the context is active, send requests to the peers, one round after another."""
        self._watchers += 1
        self._begin()
        try:
            yield
        finally:
            self._watchers -= 1

    async def first_round(self) -> None:
        """Wait at most 1.1 s for the end of the first round of requests after a page was opened."""
        self.ask()
        if self._task is None:  # There is no other nameserver to ask, so no round will end.
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S * 1.1):
                await self._first.wait()

    @property
    def asked(self) -> str:
        """The source of the other nameservers' addresses.

        It is ``members`` (the raft group), ``listed`` (this nameserver's settings), ``brokers`` (the settings
        of the brokers) or ``off`` (the console asks no nameserver).
        """
        said = self._settings.current.console_peers
        if said == "off":
            return "off"
        if said != "brokers":
            return "listed"
        return "members" if self._consistency.operations is not None else "brokers"

    @property
    def told(self) -> list[Told]:
        return [peer.told for peer in self._others()]

    @property
    def events(self) -> list[tuple[str, TimelineEvent]]:
        """The events of all peers, each with its peer's name."""
        return [(peer.told.name, event) for peer in self._others() for event in peer.events]

    def _others(self) -> Iterator[_Peer]:
        # The list of peers may contain this nameserver itself, or one nameserver under two addresses. The
        # addresses do not show this, but the nameservers' answers do.
        names: set[str] = set()
        for peer in self._peers.values():
            if peer.told.state != "this" and peer.told.name not in names:
                names.add(peer.told.name)
                yield peer

    async def close(self) -> None:
        """Cancel all requests and close the connections."""
        self._closed = True
        pending = [*self._topics.values(), *([] if self._task is None else [self._task])]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        await self._disconnect()

    # -- rounds: requests to all other nameservers at the same time --------------------------------------

    def _begin(self) -> None:
        if self._task is None and not self._closed and self.asked != "off":
            self._task = self._server.group.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._watchers or self._loop.time() < self._open_until:
                begun = self._loop.time()
                await self._round()
                await asyncio.sleep(max(0.0, EVERY_S - (self._loop.time() - begun)))
        except Exception:  # An error in this task must not end the nameserver, so catch all errors here.
            log.exception("questions to other nameservers ended")
        finally:
            self._task = None
            self._first.clear()
            for peer in self._peers.values():  # A page that is opened later must not show old answers.
                peer.told = replace(peer.told, state="asking", reason="", own=None, listing=None, at=None)
            if not self._closed:
                await self._disconnect()

    async def _round(self) -> None:
        brokers = self._choose()
        now = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for broker, host in brokers:
                group.create_task(self._ask_broker(broker, host))
            for peer in self._peers.values():
                if self._pace.is_due(peer.addr, now):
                    group.create_task(self._ask_peer(peer))
        self.rounds += 1
        self._first.set()
        await self._after_round()

    def _choose(self) -> list[tuple[BrokerKey, str]]:
        """Update the list of peers; return the brokers whose settings must be requested, with their hosts."""
        asked, operations = self.asked, self._consistency.operations
        wanted: dict[str, _Peer] = {}
        brokers: list[tuple[BrokerKey, str]] = []
        self.note = ""
        if asked == "listed":
            for addr in self._settings.current.console_addrs:
                wanted[addr] = _Peer(addr, "listed", http=True)
        elif asked == "members" and operations is not None:
            group = operations.raft_status()
            self._told_http.update(group.http or {})
            known = self._told_http = {
                member: http for member, http in self._told_http.items() if member in (group.members or ())
            }
            for member in group.members or ():
                if member != group.me and member in known:
                    wanted[known[member]] = _Peer(known[member], "member", http=True, raft=member)
            if not wanted and len(group.members or ()) > 1:
                self.note = (
                    "HTTP addresses of the other members are not known: members without --raft-secret-file "
                    "do not send theirs to other members; --console-peers can name them"
                )
        elif asked == "brokers":
            brokers = self._brokers_due()
            for named in self._named.chosen():
                if not self._is_this(named.addr):
                    wanted[named.addr] = _Peer(
                        named.addr,
                        "broker",
                        http=False,
                        named_by=named.named_by,
                        on_loopback=named.on_loopback,
                    )
        for addr, peer in wanted.items():
            before = self._peers.get(addr)
            if before is not None and (before.source, before.raft) == (peer.source, peer.raft):
                before.named_by, before.on_loopback = peer.named_by, peer.on_loopback
                before.told = replace(before.told, named_by=peer.named_by)
                wanted[addr] = before
        self._peers = wanted
        self._pace.keep(wanted)
        return brokers

    def _brokers_due(self) -> list[tuple[BrokerKey, str]]:
        """Return the brokers to ask.

        Each of them has an open connection that comes from the host in the broker's address.
        """
        hosts: dict[BrokerKey, str] = {}
        records = self._consistency.view(Freshness.STALE).records()
        for record in records:
            origin = self._consistency.connection_of(record.broker)
            connection = None if origin is None else self._server.wire.connections.get(origin)
            if connection is not None and registers_from(record.broker.broker_addr, connection.host):
                hosts[record.broker] = connection.host
        if records and not hosts:
            self.note = (
                "no broker registered from its own address, so none is asked for the nameservers that it "
                "knows; --console-peers can name them"
            )
        return [(broker, hosts[broker]) for broker in self._named.due(hosts, self._loop.time())]

    def _is_this(self, addr: str) -> bool:
        """Return True if an address is this nameserver's own.

        The check compares the text of the address and the IP addresses of this machine.
        """
        host, port = split_address(addr)
        own_host, own_port = self._settings.current.listen
        if port != own_port:
            return False
        if is_loopback(host):
            return is_loopback(own_host) or is_unspecified(own_host)
        return canonical_host(host) == canonical_host(own_host) or (
            is_unspecified(own_host) and _is_of_this_machine(host)
        )

    # -- requests to one broker or one nameserver --------------------------------------------------------

    async def _ask_broker(self, broker: BrokerKey, host: str) -> None:
        """Request a broker's settings (request 26)."""
        named = None
        try:
            answer = await self._invoke(
                join_address(canonical_host(host), split_address(broker.broker_addr)[1]),
                RemotingCommand.request(RequestCode.GET_BROKER_CONFIG),
            )
            if answer.code == ResponseCode.SUCCESS:
                named = named_in(answer.body)
        except (_NoAnswer, RemotingError) as error:
            log.debug("broker gave no settings broker=%s reason=%s", broker, error)
        self._named.take(broker, named, host=host, now=self._loop.time())

    async def _ask_peer(self, peer: _Peer) -> None:
        now = self._loop.time()
        try:
            if peer.http:
                told = await self._ask_own(peer)
            else:
                addr = await self._resolve(peer)
                answer = await self._invoke(
                    addr, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                )
                _check(answer)
                told = replace(
                    peer.told,
                    state="answered",
                    reason="",
                    listing=listing_of(decode_cluster_info(answer.body, PEER_LIMITS)),
                    at=self._loop.time(),
                )
            peer.told = told
            self._pace.answered(peer.addr)
        except _IsThis:
            peer.told = replace(peer.told, state="this")
        except TimeoutError:
            self._failed(peer, "silent", f"no answer within {ANSWER_S:g} s", now)
        except (OSError, aiohttp.ClientError) as error:
            self._failed(peer, "silent", _reason(error), now)
        except (_NoAnswer, RemotingError, msgspec.MsgspecError) as error:
            silent = isinstance(error, RemotingError)
            self._failed(peer, "silent" if silent else "refused", shortened(str(error)), now)
        except Exception:  # An error with one peer must not stop the requests to other peers.
            log.exception("question to a nameserver failed addr=%s", peer.addr)
            self._failed(peer, "refused", "its answer could not be read; see this nameserver's log", now)

    def _failed(self, peer: _Peer, state: str, reason: str, now: float) -> None:
        """Record that a peer gave no answer. The console stops showing its earlier answers."""
        peer.told = replace(peer.told, state=state, reason=reason, own=None, listing=None, at=None)
        # Any client can register a broker that names wrong addresses, so these addresses get growing pauses
        # after failures. Peers with ``http`` come from this nameserver's settings or raft group, so they are
        # asked in every round.
        if not peer.http:
            self._pace.failed(peer.addr, now)

    async def _ask_own(self, peer: _Peer) -> Told:
        after = peer.events[-1].number if peer.events else 0
        own = await self._get(peer.addr, f"/v1/console/own?after={after}", Own)
        if own.boot_id == self._consistency.status().boot_id and not peer.raft:
            return replace(peer.told, state="this", own=None, at=None)
        if own.boot_id != peer.boot_id:  # The peer is a new process, whose event numbers begin at 0 again.
            peer.boot_id = own.boot_id
            if after:
                peer.events.clear()
                own = await self._get(peer.addr, "/v1/console/own", Own)
        self.happened += len(own.events)
        for event in own.events:
            _put(peer.events, event)
        shown = msgspec.structs.replace(own, events=())
        name = own.me or join_address(split_address(peer.addr)[0], own.wire_port)
        now = self._loop.time()
        return replace(peer.told, name=name, state="answered", reason="", own=shown, raft=own.me, at=now)

    async def _get(self, addr: str, path: str, kind: type[_T]) -> _T:
        """Return a peer's answer over HTTP."""
        self.questions += 1
        if self._http is None:
            tls = peer_context(self._settings.current)
            self._scheme = "http" if tls is None else "https"
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=32, limit_per_host=2, ssl=True if tls is None else tls),
                timeout=aiohttp.ClientTimeout(total=ANSWER_S),
                headers={"Accept-Encoding": "identity"},  # ANSWER_MAX bounds uncompressed bytes.
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        async with (
            asyncio.timeout(ANSWER_S),
            self._http.get(f"{self._scheme}://{addr}{path}", allow_redirects=False) as reply,
        ):
            content = b""
            while part := await reply.content.read(ANSWER_MAX + 1 - len(content)):
                content += part
                if len(content) > ANSWER_MAX:
                    raise _NoAnswer(f"its answer is above {ANSWER_MAX} bytes")
        if reply.status != 200:
            detail = ""
            with contextlib.suppress(msgspec.MsgspecError):
                detail = msgspec.json.decode(content, type=ProblemDetails).detail
            raise _NoAnswer(f"status {reply.status} {detail}".strip())
        return msgspec.json.decode(content, type=kind)

    async def _invoke(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        """Send a request over RocketMQ's protocol to an IP address and port; return the answer."""
        self.questions += 1
        if self._wire is None:
            self._wire = RemotingClient(
                connect_timeout_s=ANSWER_S, idle_s=30.0, frame_size_max=ANSWER_MAX, outstanding_max=16
            )
        async with asyncio.timeout(ANSWER_S):
            return await self._wire.invoke(addr, request, timeout_s=ANSWER_S)

    async def _resolve(self, peer: _Peer) -> str:
        """Return the IP address and port of a peer that brokers name.

        Raises:
            _NoAnswer: If the console must not ask this address.
        """
        host, port = split_address(peer.addr)
        until, found = peer.resolved
        if self._loop.time() >= until:
            addresses = await addresses_of(host, timeout_s=ANSWER_S / 2)
            found = addresses[0] if addresses else ""
            peer.resolved = self._loop.time() + _RESOLVED_S, found
        why = why_not_asked(found, on_loopback=peer.on_loopback)
        if why:
            raise _NoAnswer(f"not asked: {why}")
        if self._is_this(join_address(found, port)):
            raise _IsThis
        return join_address(found, port)

    async def _disconnect(self) -> None:
        http, wire, self._http, self._wire = self._http, self._wire, None, None
        if wire is not None:
            await wire.close()
        if http is not None:
            await http.close()

    # -- topics ------------------------------------------------------------------------------------------

    async def topic(self, topic: str) -> Sequence[tuple[Told, OwnTopic | None]]:
        """Return the peers' answers about a topic.

        Each peer is asked once in a round, no matter how many pages show the topic.
        """
        await self.first_round()
        task = self._topics.get(topic)
        if task is None:
            now = self._loop.time()
            begun = self._topics_begun
            if fault_of(topic, length_max=GROUP_TOPIC_LENGTH_MAX) is not None:
                return [
                    (replace(told, state="unknown", reason="no topic has this name"), None)
                    for told in self.told
                ]
            if self._closed or (len(begun) == TOPICS_PER_ROUND and now - begun[0] < EVERY_S):
                why = f"not asked: {TOPICS_PER_ROUND} topics in {EVERY_S:g} s are the most"
                return [(replace(told, state="unknown", reason=why), None) for told in self.told]
            begun.append(now)
            task = self._topics[topic] = self._server.group.create_task(self._ask_topic(topic))
            task.add_done_callback(lambda _: self._loop.call_later(EVERY_S, self._topics.pop, topic, None))
        await asyncio.wait({task})
        if task.cancelled():
            return []
        found = task.result()
        return [found.get(told.name, (told, None)) for told in self.told]

    async def _ask_topic(self, topic: str) -> dict[str, tuple[Told, OwnTopic | None]]:
        asked = [peer for peer in self._peers.values() if peer.told.state == "answered"]
        found: dict[str, tuple[Told, OwnTopic | None]] = {}

        async def ask(peer: _Peer) -> None:
            try:
                found[peer.told.name] = peer.told, await self._topic_at(peer, topic)
            except (TimeoutError, OSError, aiohttp.ClientError, RemotingError) as error:
                why = shortened(str(error)) or f"no answer within {ANSWER_S:g} s"
                found[peer.told.name] = replace(peer.told, state="silent", reason=why), None
            except (_NoAnswer, msgspec.MsgspecError) as error:
                found[peer.told.name] = (
                    replace(peer.told, state="refused", reason=shortened(str(error))),
                    None,
                )
            except Exception:  # An error in one request must not stop the other requests.
                log.exception("question about a topic failed addr=%s", peer.addr)
                found[peer.told.name] = replace(peer.told, state="refused", reason="see the log"), None

        async with asyncio.TaskGroup() as group:
            for peer in asked:
                group.create_task(ask(peer))
        return found

    async def _topic_at(self, peer: _Peer, topic: str) -> OwnTopic:
        if peer.http:
            return await self._get(peer.addr, f"/v1/console/own/topics/{quote(topic, safe='')}", OwnTopic)
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self._invoke(
            await self._resolve(peer),
            RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields),
        )
        route = None
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            _check(answer)
            decoded = decode_route(answer.body, PEER_LIMITS)
            route = msgspec.json.decode(encode_route(decoded, RouteDialect.QUOTED), type=TopicRouteData)
        return OwnTopic(
            topic=topic,
            listed=route is not None,
            index=0,
            route=route,
            order_configuration=None if route is None else route.order_topic_conf or None,
            summary="" if route is not None else shortened(answer.remark or "no route"),
            events=(),
            likely_causes=(),
            changes=(),
        )


def peer_context(settings: NamesrvSettings) -> ssl.SSLContext | None:
    """Return the TLS context for HTTP requests to peers, or None if this HTTP port has no TLS.

    The context uses the certificate files of this HTTP port.

    Raises:
        TlsError: A file cannot be used.
    """
    if not settings.http_tls_cert:
        return None
    # ssl.create_default_context() would refuse authorities that every other connection accepts: from Python
    # 3.13 on, it demands X.509's key usage extension.
    return load(
        ca_file=settings.http_tls_ca,
        cert_file=settings.http_tls_cert,
        key_file=settings.http_tls_key,
        check="host",
    )


def _check(answer: RemotingCommand) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise _NoAnswer(f"code {answer.code} {shortened(answer.remark or '')}".strip())


def _reason(error: OSError | aiohttp.ClientError) -> str:
    """Return the reason why there is no connection, if possible in the operating system's words."""
    tls = _tls_error(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return shortened(f"its certificate is refused: {tls.verify_message or tls.reason or tls}")
    if tls is not None:
        return shortened(f"TLS failed: {str(tls.reason or tls).replace('_', ' ').lower()}")
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number in errno.errorcode:
        return os.strerror(number)
    return shortened(str(error) or type(error).__name__)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """Return the TLS error that ``error`` contains, or None.

    The errno of a TLS error is not a system error number. As a system error number, it would mean
    "Operation not permitted", which is wrong.
    """
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    for found in (error, error.__cause__):
        if isinstance(found, ssl.SSLError):
            return found
    return None


def _put(events: deque[TimelineEvent], event: TimelineEvent) -> None:
    """Add an event. If an earlier state of the same event is in ``events``, replace it."""
    for known in events:
        if (known.at_ms, known.kind, known.subject, known.detail) == (
            event.at_ms,
            event.kind,
            event.subject,
            event.detail,
        ):
            events.remove(known)
            break
    events.append(event)


def _is_of_this_machine(host: str) -> bool:
    """Return True if ``host`` is an IP address of this machine. Host names give False without a lookup."""
    try:
        (family, kind, _, _, name), *_ = socket.getaddrinfo(
            host, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, kind) as probe:
            probe.bind(name)
    except (OSError, ValueError):
        return False
    return True
