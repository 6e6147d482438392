"""One broker process, which loads the state from disk, serves requests, and writes changes to disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from routekeeper.broker.config import NAMESRV_KEYS, BrokerConfig, apply_properties
from routekeeper.broker.errors import Refused, SettingError, StoreUnavailable, StoreUnusable
from routekeeper.broker.requests.audited import AUDITED, result_of
from routekeeper.broker.requests.client_requests import notify_changed
from routekeeper.broker.requests.forwarding import AskAll, Forward
from routekeeper.broker.requests.handlers import GROUPS, HANDLERS, MAY_WAIT, SENDS, serve
from routekeeper.broker.requests.pulling import Park, Pull, time_over
from routekeeper.broker.server.access import (
    ACCOUNT_REQUESTS,
    CHANGES,
    BrokerAccess,
    watch_namesrv_keys,
)
from routekeeper.broker.server.announcements import Announcements
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.server.disk_threads import in_threads
from routekeeper.broker.server.loading import load_broker
from routekeeper.broker.server.namesrv_tls import NamesrvTls, namesrv_tls
from routekeeper.broker.server.rebalance_notices import RebalanceNotices
from routekeeper.broker.server.registrar import Announcer, AnnouncerFactory, Registrar
from routekeeper.broker.server.upkeep import Upkeep
from routekeeper.broker.server.waiting_pulls import WaitingPulls
from routekeeper.broker.store.files import DISK
from routekeeper.broker.tables.groups import SCAN_INTERVAL_S
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.state_files import StateFiles
from routekeeper.broker.tables.stats import SAMPLE_INTERVAL_S
from routekeeper.remoting.audit_log import AuditLog
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.errors import ConnectionLost, RemotingError, RequestTimeout
from routekeeper.remoting.logs import apply_log_level
from routekeeper.remoting.message import Host
from routekeeper.remoting.tls_settings import TlsSettingError
from routekeeper.remoting.transport import lookups, split_address
from routekeeper.remoting.transport.port_context import PortFiles, watched_port
from routekeeper.remoting.transport.secured import PortContext
from routekeeper.remoting.transport.server import (
    Connection,
    DeferredReply,
    Handler,
    RemotingServer,
    ServerLimits,
)
from routekeeper.remoting.transport.server_hooks import HookError, ServerHooks, load_hooks
from routekeeper.remoting.wall_clock import now_ms
from routekeeper.remoting.watched_files import WatchedFiles

if TYPE_CHECKING:
    from routekeeper.broker.server.http import HttpServer

logger = logging.getLogger(__name__)
audit_logger = logging.getLogger("routekeeper.broker.audit")

T = TypeVar("T")

#: Longest time in seconds to wait for a client's answer to a request that the broker passes on to the client.
#: Source: callConsumer, RocketMQ 4.9.
CLIENT_WAIT_S: Final = 10.0
#: Largest number of requests that are answered in steps at the same time. Their steps read files in threads.
STEPWISE_MAX: Final = 32
#: Largest number of clients that the broker asks at the same time, for all operators' requests together. A
#: message that the broker sends to a client stays in memory until the client answers. Therefore a large
#: message counts as several clients: one more for each 64 KiB. If a request goes to more clients than the
#: limit, the broker asks them in rounds.
ASKED_MAX: Final = 1024
_ASKED_BYTES: Final = 64 * 1024
#: Largest number of clients that one request asks in one iteration of the event loop.
ASKED_AT_ONCE: Final = 256
#: Largest sum of bytes of all clients' answers to one request. If one client answers alone, its answer may be
#: larger, up to a whole frame of 16 MiB.
GATHERED_BYTES: Final = 8 << 20
#: Largest sum of bytes of all clients' answers to all requests together. While one client is silent, the
#: answers of the other clients stay in memory.
GATHERED_ALL_BYTES: Final = 64 << 20
#: Largest number of queues in all requests that are answered in steps at the same time. A single request may
#: exceed this number if no other request runs. Each queue takes half a kilobyte until the answer is sent.
LISTED_QUEUES_MAX: Final = 200_000
#: Number of threads that read files for requests.
_READERS: Final = 4
#: Largest number of groups that one log line names.
_GROUPS_NAMED: Final = 8
#: Longest time in seconds for which an operator's request waits until a changed topic is registered.
_REGISTER_WAIT_S: Final = 3.0


async def advertised(config: BrokerConfig, bound_port: int) -> tuple[str, Host]:
    """Return the broker's address twice: as registered, and with an IP address as host for message ids.

    Raises:
        SettingError: If the host cannot be resolved.
    """
    host = config.advertise_host
    if host in ("0.0.0.0", "::", ""):
        host = lookups.own_address()
    port = config.advertise_port or bound_port
    try:
        ip = str(ipaddress.ip_address(host))
    except ValueError:
        try:
            ip = (await lookups.addresses_of(host, timeout_s=lookups.LISTEN_WITHIN_S))[0]
        except (OSError, ValueError) as error:  # a ValueError comes from a host that no resolver accepts
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SettingError(f"brokerIP1={host}: cannot be resolved: {reason}") from None
    text = f"[{host}]" if ":" in host else host
    return f"{text}:{port}", Host(ip.partition("%")[0], port)


def _only_cause(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return the only exception in a group, or None if there are several. Callers check its type."""
    leaves: list[BaseException] = []
    open_groups: list[BaseExceptionGroup[BaseException]] = [group]
    while open_groups:
        for inner in open_groups.pop().exceptions:
            if isinstance(inner, BaseExceptionGroup):
                open_groups.append(inner)
            else:
                leaves.append(inner)
    return leaves[0] if len(leaves) == 1 else None


def _unsynced(reply: RemotingCommand) -> RemotingCommand:
    """Return the answer for a message that is stored, but that a power cut may still remove.

    The message, or the topic to which it belongs, is not on disk yet.
    """
    return RemotingCommand(
        code=ResponseCode.FLUSH_DISK_TIMEOUT,
        opaque=reply.opaque,
        flag=reply.flag,
        ext_fields=reply.ext_fields,
        codec=reply.codec,
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _today() -> int:
    """Return a number for the current local day. Every day has a different number."""
    today = time.localtime()
    return today.tm_year * 1000 + today.tm_yday


def _boot_id() -> str:
    """Return the id of the machine's current boot, or empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class BrokerServer:
    """One broker. Use: ``await BrokerServer(config, directory).run(stop, ready)``.

    Args:
        directory: Folder of the store. The broker locks this folder while it runs.
        announcer: Factory of the object that registers this broker with nameservers.
        changed_settings: Settings in ``config`` that request 25 changed before this start.
        fixed_keys: Settings that the announcer reads only when it starts.

    Attributes:
        http_listen: Address of the HTTP server. None if HTTP is off, and before the broker serves requests.
        reloads: Files that are read again while this process runs. The list is complete as soon as the broker
            serves requests.
        tls_files: TLS files of the port for clients, or None if that port has no TLS.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        announcer: AnnouncerFactory = Registrar,
        *,
        changed_settings: Mapping[str, str] = MappingProxyType({}),
        fixed_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._config = config
        self._changed = changed_settings
        self._fixed_keys = fixed_keys
        self._announcer = announcer
        self._directory = directory
        self._locks: list[IO[str]] = []
        self._state: BrokerState
        self._server: RemotingServer
        self._hooks: ServerHooks
        self._registrar: Announcer
        self._announcements: Announcements
        self._delay: DelayService
        self._files: StateFiles
        self._upkeep: Upkeep
        self._pulls: WaitingPulls
        self._notices: RebalanceNotices
        self._http: HttpServer | None = None
        self._namesrv_tls: NamesrvTls | None = None
        self.http_listen: str | None = None
        self.reloads: list[WatchedFiles[Any]] = []
        self.tls_files: PortFiles | None = None
        self._hosts: dict[int, Host] = {}
        self._audit: AuditLog
        # Refusals have a separate audit log. An audit log writes a bounded number of lines in 10 s, and any
        # client can cause refusals. In one common log, refusals could suppress the lines about changes.
        self._refusals: AuditLog
        self._access: BrokerAccess
        self._broker_addr = ""
        self._working = 0
        self._listed = 0
        self._asked = 0
        self._gathered = 0
        self._readers = DiskThreads("reader", count=_READERS)
        #: Functions that return the seconds until a certificate expires, by use (wire, http, nameservers).
        self.expirations: dict[str, Callable[[], float]] = {}
        self._oldest: dict[tuple[str, str], int] = {}  # see :func:`.lag.oldest_messages`
        self._oldest_at = -math.inf

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until ``stop`` is set. Call ``ready`` with the bound address when serving begins.

        Raises:
            SettingError: If a setting cannot be used on this machine.
            StoreUnusable, StoreDamaged: If the content of the disk cannot be used, or if the disk fails at
                the start.
            NoFreeThread: If the system cannot start the broker's threads.
        """
        try:
            self._take_locks()
            self._namesrv_tls = namesrv_tls(self._config)
            if self._namesrv_tls is not None:
                self.reloads.append(self._namesrv_tls.files)
                # An infinite time means that the broker uses no certificate and no authority.
                if self._namesrv_tls.left_s < math.inf:
                    self.expirations["nameservers"] = partial(getattr, self._namesrv_tls, "left_s")
            await self._serve(stop, ready)
        except BaseExceptionGroup as group:
            cause = _only_cause(group)
            if cause is None:
                raise
            raise cause from None
        finally:
            if self._namesrv_tls is not None:
                self._namesrv_tls.close()
            for lock in self._locks:
                lock.close()

    async def _serve(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        services: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            self._audit = AuditLog(audit_logger)
            self._refusals = AuditLog(audit_logger)
            handlers: dict[int, Handler] = {
                int(code): self._handle_audited if code in AUDITED else self._handle for code in HANDLERS
            }
            self.tls_files = self._watch_tls()
            self._access = BrokerAccess(self._config)
            keys = watch_namesrv_keys(self._config)
            watched = [files for files in (self._access.files, keys) if files is not None]
            self.reloads += watched
            if self._access.checks_accounts:
                handlers |= dict.fromkeys(map(int, ACCOUNT_REQUESTS), self._handle_accounts)
            try:
                hooks = load_hooks(self._config.rpc_hooks)
            except HookError as error:
                raise SettingError(f"--rpc-hook {error}") from error
            self._hooks = ServerHooks(hooks, time.perf_counter)
            handlers = self._hooks.wrap(handlers)
            if self._access.is_needed:  # check access first, so that no refused request reaches the hooks
                handlers = {code: partial(self._checked, handler) for code, handler in handlers.items()}
            self._server = RemotingServer(
                handlers=handlers,
                group=group,
                limits=ServerLimits(connections_max=self._config.connections_max),
                connected=self._connected,
                closed=self._closed,
                groups=GROUPS,
                tls=self.tls_files.value if self.tls_files is not None else None,
            )
            # Bind before loading, because message ids contain the port. Accept clients only after loading.
            listen = await self._bind(self._server.bind(self._config.bind_host, self._config.listen_port))
            bound_port = split_address(listen)[1]
            broker_addr, store_host = await advertised(self._config, bound_port)
            self._broker_addr = broker_addr
            try:
                self._state, self._files = load_broker(
                    DISK,
                    self._directory,
                    self._config,
                    store_host=store_host,
                    boot=_boot_id(),
                    now_ms=now_ms(),
                    changed_settings=self._changed,
                )
            except (OSError, ValueError) as error:
                raise StoreUnusable(f"{self._directory} cannot be used: {error}") from error
            self._state.live_keys -= self._fixed_keys
            self._state.tls_to_nameservers = self._namesrv_tls is not None
            if keys is not None:
                self._state.sign = lambda request: keys.value.signed(request)
            self._upkeep = Upkeep(self._state, self._files)
            self._upkeep.begin()
            self._readers.begin()
            ha_host = self._config.ha_ip or split_address(broker_addr)[0]
            ha_port = self._config.ha_listen_port or bound_port + 1
            self._registrar = self._announcer(
                self._state,
                broker_addr=broker_addr,
                ha_addr=f"[{ha_host}]:{ha_port}" if ":" in ha_host else f"{ha_host}:{ha_port}",
                changed=self._apply_effects,
                tls=None if self._namesrv_tls is None else self._namesrv_tls.tls,
            )
            self._announcements = Announcements(self._registrar, group.create_task)
            self._delay = DelayService(self._state, delivered=self._apply_effects)
            self._pulls = WaitingPulls(self._state, delay=self._delay, send=self._send)
            self._notices = RebalanceNotices(self._state.clients.members, self._tell)
            for files in watched:
                files.watch()
            await self._bind(self._server.accept())
            for work in (
                self._registrar.run(),
                self._delay.run(),
                *self._upkeep.tasks(),
                self._look_after_clients(),
                self._sample(),
            ):
                services.append(group.create_task(work))
            if self._namesrv_tls is not None:
                self._namesrv_tls.watch()
            await self._serve_http()
            if self.tls_files is not None:
                self.tls_files.watch()
            ready(listen)
            await stop.wait()
            logger.info("stopping")
            if self.tls_files is not None:
                self.tls_files.close()
            services[0].cancel()
            await self._registrar.unregister()
            # Answer held pulls just before the connections end. If a client got its empty answer earlier, it
            # would send its next pull to this broker at once.
            await self._server.close(before_end=self._pulls.end)
            for task in services:
                task.cancel()
            if self._http is not None:
                await self._http.close()
        for files in watched:
            files.close()
        self._audit.close()
        self._refusals.close()
        await self._registrar.close()
        await self._upkeep.close()
        self._readers.shutdown()
        logger.info("stopped")

    @property
    def changed_settings(self) -> dict[str, str]:
        """Settings that request 25 has changed, by key. Read it only while the broker serves requests."""
        return dict(self._state.changed_settings)

    def take_settings(self, changes: Mapping[str, str]) -> None:
        """Apply changed settings from a file that was read again. Then update the list of nameservers."""
        state = self._state
        if changes:
            state.config, _ = apply_properties(state.config, changes)
            state.config_version = state.config_version.advanced(now_ms=now_ms())
            apply_log_level(state.config.log_level)
        seeks = state.config.look_up_namesrv or state.config.asks_address_server
        if NAMESRV_KEYS & changes.keys() or seeks:
            self._registrar.nameservers_changed()

    # Start and end -------------------------------------------------------------------------------

    async def _bind(self, work: Awaitable[T], option: str = "") -> T:
        host, port = self._config.bind_host, self._config.listen_port
        try:
            return await work
        except OSError as error:
            # Use the text of errno, because asyncio's text repeats the address. An unknown host has no errno.
            known = error.errno in errno.errorcode
            reason = os.strerror(error.errno) if known and error.errno else error.strerror or error
            listen = f"--listen [{host}]:{port}" if ":" in host else f"--listen {host}:{port}"
            raise SettingError(f"{option or listen} cannot be bound: {reason}") from None

    def _watch_tls(self) -> PortFiles | None:
        def take(context: PortContext) -> None:
            self._server.tls.current = context  # only new connections use this context

        try:
            files = watched_port(self._config.tls, take)
        except TlsSettingError as error:
            raise SettingError(str(error)) from None
        if files is not None:
            self._add_certificate("wire", files)
        return files

    def _add_certificate(self, port: str, files: PortFiles) -> None:
        self.expirations[port] = lambda: files.left_s
        self.reloads.append(files.files)

    async def _serve_http(self) -> None:
        if self._config.http == "off":
            return
        # Import aiohttp only if HTTP is on. Loading aiohttp takes as long as loading all other modules.
        from routekeeper.broker.server.http import HttpServer

        try:
            self._http = HttpServer(
                metrics=self._metrics,
                refusing=lambda: self._upkeep.refusing,
                given_up=lambda: self._state.store.given_up,
                tls=self._config.http_tls(),
            )
        except TlsSettingError as error:
            raise SettingError(str(error)) from None
        if self._http.tls_files is not None:
            self._add_certificate("http", self._http.tls_files)
        host, port = split_address(self._config.http)
        self.http_listen = await self._bind(self._http.start(host, port), f"--http {self._config.http}")

    async def _metrics(self) -> bytes:
        from routekeeper.broker.server.lag import KEPT_S, oldest_messages
        from routekeeper.broker.server.metrics import CONNECTION_KINDS, encode, gather

        work = gather(self._state, now=asyncio.get_running_loop().time())
        try:
            while True:
                next(work)
                await asyncio.sleep(0)
        except StopIteration as end:
            samples = end.value
        requests = dict(self._server.stats.requests)
        kinds = Counter(dict.fromkeys(CONNECTION_KINDS, 0))
        for connection in self._server.connections.values():
            asked = "client" if connection.has_asked else "other"
            kinds[self._state.clients.kind_of(connection.id) or asked] += 1
        loop = asyncio.get_running_loop()
        disk = await loop.run_in_executor(self._readers, self._state.store.disk_space)
        if loop.time() >= self._oldest_at + KEPT_S:
            read = oldest_messages(self._state.store, samples.behind)
            self._oldest = await loop.run_in_executor(self._readers, read)
            self._oldest_at = loop.time()
        encoding = partial(
            encode,
            samples,
            disk=disk,
            requests=requests,
            connections=kinds,
            lines_suppressed=self._server.stats.lines_suppressed,
            stats=self._server.stats,
            disk_state=self._upkeep.disk_state,
            oldest=self._oldest,
            now_ms=now_ms(),
            expirations={port: s for port, left in self.expirations.items() if (s := left()) < math.inf},
            hooks=self._hooks,
        )
        return await loop.run_in_executor(self._readers, encoding)

    def _take_locks(self) -> None:
        places = [("storePathRootDir", self._directory)]
        if self._config.log_path:
            places.append(("storePathCommitLog", Path(self._config.log_path)))
        for key, directory in places:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = open(directory / "lock", "a", opener=_private)  # noqa: SIM115 - held as long as we run
            except OSError as error:
                raise SettingError(f"{key}={directory} cannot be used: {error.strerror}") from None
            self._locks.append(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SettingError(f"{key}={directory}: another broker uses it") from None

    # Requests ------------------------------------------------------------------------------------

    def _connected(self, connection: Connection) -> None:
        try:
            host, port = split_address(connection.peer)
            self._hosts[connection.id] = Host(str(ipaddress.ip_address(host.partition("%")[0])), port)
        except (RemotingError, ValueError):
            self._hosts[connection.id] = Host("0.0.0.0", 0)

    def _closed(self, connection: Connection, *, by_us: bool) -> None:
        self._hosts.pop(connection.id, None)
        self._pulls.drop(connection.id)
        changed = self._state.clients.closed(connection.id)
        if changed:
            named = ",".join(changed[:_GROUPS_NAMED])
            logger.info("client gone connection=%s groups=%s count=%s", connection.id, named, len(changed))
            notify_changed(self._state, changed)
            self._apply_effects()

    def _handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | DeferredReply | None:
        if request.code in MAY_WAIT and connection.unanswered >= self._server.limits.unanswered_max:
            # Refuse the request before it is served. Otherwise a send could store its message and still get
            # an error.
            self._count_refused(request.code, Refused.OVERLOAD)
            return request.reply(
                ResponseCode.SYSTEM_BUSY,
                remark=f"[OVERLOAD]system busy, {connection.unanswered} requests of this connection"
                " are unanswered",
            )
        loop_time = asyncio.get_running_loop().time()
        outcome = serve(
            self._state,
            Call(
                request=request,
                connection=connection.id,
                peer=self._hosts[connection.id],
                now_ms=now_ms(),
                now=loop_time,
            ),
        )
        registering = self._apply_effects()
        if isinstance(outcome, RemotingCommand):
            return outcome
        if isinstance(outcome, Park):
            pull = outcome.pull
            if not self._pulls.park(pull, deadline=loop_time + pull.suspend_ms / 1000):
                return time_over(self._state, pull)
            return None
        if isinstance(outcome, Forward):
            count = 1 + len(outcome.request.body) // _ASKED_BYTES
            return self._asking(outcome.asked, count, self._ask_client(outcome))
        if isinstance(outcome, AskAll):
            count = min(len(outcome.clients), ASKED_MAX)
            return self._asking(outcome.asked, count, self._ask_all(outcome))
        if isinstance(outcome, Stepwise):
            return self._work_out(outcome)
        if outcome.log_offset and outcome.only_synced:
            return self._answer_synced(connection, request, outcome)
        return self._answer_later(request.code, outcome, registering if outcome.registered else None)

    def _checked(
        self, handler: Handler, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | DeferredReply | None:
        """Call the handler if accounts and networks allow this request. Otherwise refuse the request."""
        denied = self._access.denied(request, connection.host)
        if denied is None:
            return handler(connection, request)
        self._count_refused(request.code, Refused.FORBIDDEN)
        self._refusals.refusal(connection.peer, request.code, denied)
        return request.reply(denied.code, remark=denied.remark)

    async def _handle_accounts(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = await self._access.serve(request, broker_addr=self._broker_addr)
        if request.code in CHANGES:
            names = ("accessKey", "globalWhiteAddrs")
            about = {name: text for name in names if (text := request.ext_fields.get(name)) is not None}
            self._note(connection, request, about, result_of(answer))
        return answer

    def _handle_audited(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve a request by which an operator changes something. Write the outcome to the audit log."""
        about = self._state.effects.about = {}
        try:
            answer = self._handle(connection, request)
        except RemotingError as error:
            self._note(connection, request, about, result_of(request.failed(error)))
            raise
        if isinstance(answer, RemotingCommand):
            self._note(connection, request, about, result_of(answer))
            return answer
        assert isinstance(answer, Awaitable), "no such request is parked, or waits for the log alone"
        return self._note_later(connection, request, about, answer)

    async def _note_later(
        self,
        connection: Connection,
        request: RemotingCommand,
        about: dict[str, str],
        work: Awaitable[RemotingCommand | None],
    ) -> RemotingCommand:
        result = "unknown"
        try:
            answer = await work
            assert answer is not None, "no such request goes unanswered"
            result = result_of(answer)
            return answer
        finally:
            self._note(connection, request, about, result)

    def _note(
        self, connection: Connection, request: RemotingCommand, about: dict[str, str], result: str
    ) -> None:
        self._audit.note(connection.peer, RequestCode(request.code).name, result, about)

    def _count_refused(self, code: int, reason: Refused) -> None:
        if code in SENDS:
            self._state.stats.refused[reason] += 1

    def _answer_synced(self, connection: Connection, request: RemotingCommand, later: Later) -> DeferredReply:
        """Answer as soon as the commit log is synced.

        This method uses a callback, because a task takes more time. With SYNC_FLUSH, every send comes here.
        """
        # Keep only the request fields that the answer needs. Thousands of sends may wait for a hung disk.
        asked = RemotingCommand(
            code=request.code, opaque=request.opaque, flag=request.flag, codec=request.codec, ext_fields={}
        )
        deferred, reply = DeferredReply(connection, asked), later.reply
        self._upkeep.when_synced(
            later.log_offset,
            lambda failure: deferred.send(reply if failure is None else _unsynced(reply)),
        )
        return deferred

    async def _asking(
        self, asked: RemotingCommand, count: int, work: Coroutine[Any, Any, RemotingCommand]
    ) -> RemotingCommand:
        """Run a coroutine that asks clients. Refuse if the broker already waits for too many clients.

        Args:
            count: Largest number of clients that the coroutine asks at the same time. A client that gets a
                large message counts as several clients.
        """
        if self._asked and self._asked + count > ASKED_MAX:
            work.close()
            return asked.reply(
                ResponseCode.SYSTEM_BUSY,
                remark=f"[OVERLOAD]system busy, {self._asked} clients are asked for their state, allowed are"
                f" {ASKED_MAX}",
            )
        self._asked += count
        try:
            return await work
        finally:
            self._asked -= count

    async def _ask_client(self, forward: Forward) -> RemotingCommand:
        asked = forward.asked
        connection = self._server.connections.get(forward.connection)
        try:
            if connection is None:
                raise ConnectionLost("its connection is closed", sent=False)
            answer = await connection.invoke(forward.request, timeout_s=CLIENT_WAIT_S)
        except RequestTimeout:
            return asked.reply(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer <{forward.client_id}> gave no answer within {CLIENT_WAIT_S:g} s",
            )
        except RemotingError as error:
            return asked.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"consumer <{forward.client_id}> cannot be asked: {error}"
            )
        return asked.reply(
            answer.code, remark=answer.remark, ext_fields=dict(answer.ext_fields), body=answer.body
        )

    async def _ask_all(self, ask: AskAll) -> RemotingCommand:
        """Send a request to several clients at the same time, and combine the clients' answers.

        Leave out clients that do not answer in time, and answers that would exceed GATHERED_BYTES together.
        Ask more than ASKED_MAX clients in rounds. CLIENT_WAIT_S is divided between the rounds. Otherwise
        silent clients of the first round could use up the time of all other clients.
        """
        size, is_crowded = 0, False
        clients = tuple(ask.clients.items())
        wait_s = CLIENT_WAIT_S / max(math.ceil(len(clients) / ASKED_MAX), 1)
        answers: dict[str, RemotingCommand] = {}

        async def ask_one(client_id: str, connection_id: int) -> None:
            nonlocal size, is_crowded
            connection = self._server.connections.get(connection_id)
            try:
                if connection is None:
                    return
                found = await connection.invoke(ask.request, timeout_s=wait_s)
            except RemotingError:
                return
            if size and size + len(found.body) > GATHERED_BYTES:
                # Leave out this answer. The first answer is always kept. Otherwise a result without any
                # answers would look valid.
                return
            if self._gathered and self._gathered + len(found.body) > GATHERED_ALL_BYTES:
                is_crowded = True
                return
            size += len(found.body)
            self._gathered += len(found.body)
            # Drop the header while other clients still answer. The remark in a header may have 1 MiB.
            answers[client_id] = RemotingCommand(code=found.code, ext_fields={}, body=found.body)

        try:
            for begin in range(0, len(clients), ASKED_MAX):
                async with asyncio.TaskGroup() as group:
                    for number, client in enumerate(clients[begin : begin + ASKED_MAX], 1):
                        group.create_task(ask_one(*client))
                        if number % ASKED_AT_ONCE == 0:
                            await asyncio.sleep(0)
            if is_crowded and not size:
                return ask.asked.reply(
                    ResponseCode.SYSTEM_BUSY,
                    remark=f"[OVERLOAD]system busy, clients' answers to other requests have {self._gathered}"
                    f" bytes, allowed are {GATHERED_ALL_BYTES}",
                )
            given = {name: answers[name] for name in ask.clients if name in answers}
            # Combine in a thread, because decoding several MiB of JSON takes long.
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._readers, ask.combine, ask.asked, given)
        finally:
            self._gathered -= size

    async def _work_out(self, stepwise: Stepwise) -> RemotingCommand | None:
        queues = stepwise.queues
        if self._working >= STEPWISE_MAX or (self._working and self._listed + queues > LISTED_QUEUES_MAX):
            stepwise.work.close()
            return stepwise.asked.reply(
                ResponseCode.SYSTEM_BUSY,
                remark=f"[OVERLOAD]system busy, {self._working} queries are under way, they list"
                f" {self._listed} queues",
            )
        self._working += 1
        self._listed += queues
        try:
            outcome = await in_threads(self._with_notices(stepwise.work), self._readers)
        finally:
            self._working -= 1
            self._listed -= queues
        registering = self._apply_effects()
        if not isinstance(outcome, Later):
            return outcome
        return await self._answer_later(
            stepwise.asked.code, outcome, registering if outcome.registered else None
        )

    def _with_notices(self, work: Work) -> Work:
        """Run a handler's steps, and send the handler's notices to clients after each step."""
        try:
            step = next(work)
            while True:
                self._tell_all()
                try:
                    outcome = yield step
                except Exception as error:
                    step = work.throw(error)
                else:
                    step = work.send(outcome)
        except StopIteration as end:
            result: RemotingCommand | Later = end.value
            return result

    async def _answer_later(
        self, code: int, later: Later, registering: asyncio.Future[None] | None
    ) -> RemotingCommand | None:
        reply = later.reply
        try:
            refused = await self._saved(code, later)
            if refused is not None:
                return refused
            if later.log_offset:
                await self._upkeep.synced(later.log_offset)
        except (TimeoutError, StoreUnavailable):
            return _unsynced(reply)
        if registering is not None:
            await asyncio.wait([registering], timeout=_REGISTER_WAIT_S)
        return reply

    async def _saved(self, code: int, later: Later) -> RemotingCommand | None:
        """Wait until the tables that an answer needs are on disk.

        Returns:
            None, or the answer after a write has failed: an error, or for a send the answer that its message
            is stored but may be lost. A send must not get an error here. A producer would send its message
            again, and consumers would get the message twice.
        """
        reply = later.reply
        for file, wanted in (
            (self._files.topics, later.topics_saved),
            (self._files.groups, later.groups_saved),
            (self._files.offsets, later.offsets_saved),
            (self._files.settings, later.settings_saved),
        ):
            if not wanted:
                continue
            try:
                await self._upkeep.saved(file)
            except (OSError, StoreUnavailable) as error:
                if code in SENDS:
                    return _unsynced(reply)
                reason = error.strerror if isinstance(error, OSError) else error
                return RemotingCommand(
                    code=ResponseCode.SERVICE_NOT_AVAILABLE,
                    opaque=reply.opaque,
                    flag=reply.flag,
                    remark=f"cannot write {file.name}: {reason}",
                    ext_fields={},
                    codec=reply.codec,
                )
        return None

    def _apply_effects(self) -> asyncio.Future[None] | None:
        """Perform the effects that handlers requested. If an announcement began, return its future."""
        effects = self._state.effects
        if effects.arrived:
            self._pulls.arrived(effects.arrived)
            effects.arrived = set()
        if effects.deleted_topics:
            self._pulls.deleted(effects.deleted_topics)
            effects.deleted_topics = set()
        if effects.notify:
            self._notices.tell(effects.notify)
            effects.notify = []
        if effects.save_groups:
            effects.save_groups = False
            self._upkeep.save(self._files.groups)
        if effects.save_topics:
            effects.save_topics = False
            self._upkeep.save(self._files.topics)
        if effects.tell:
            self._tell_all()
        if effects.nameservers:
            effects.nameservers = False
            self._registrar.nameservers_changed()
        if effects.clean:
            effects.clean = False
            self._upkeep.clean()
        if not effects.register_all and not effects.changed_topics:
            return None
        changed, effects.changed_topics = effects.changed_topics, []
        of_all, effects.register_all = effects.register_all, False
        return self._announcements.announce(changed, of_all=of_all)

    def _tell_all(self) -> None:
        told, self._state.effects.tell = self._state.effects.tell, []
        for connection_id, request in told:
            self._tell(connection_id, request)

    def _tell(self, connection_id: int, request: RemotingCommand) -> None:
        connection = self._server.connections.get(connection_id)
        if connection is not None:
            connection.notify(request)

    def _send(self, pull: Pull, answer: RemotingCommand) -> None:
        connection = self._server.connections.get(pull.connection)
        if connection is not None:
            self._server.stats.answered(answer.code)
            self._hooks.after_response(connection.peer, pull.request, answer)
            connection.send(answer)

    # Periodic tasks ------------------------------------------------------------------------------

    async def _look_after_clients(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SCAN_INTERVAL_S)
            for _ in self._state.locks.expire(loop.time()):
                await asyncio.sleep(0)
            silent, changed = self._state.clients.expire(loop.time())
            for connection_id in silent:
                logger.info("client silent connection=%s", connection_id)
                connection = self._server.connections.get(connection_id)
                if connection is not None:
                    connection.close()
            notify_changed(self._state, changed)
            self._apply_effects()

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            stats = self._state.stats
            stats.sample(loop.time())
            stats.begin_day(_today())
            for _ in stats.sample_items(loop.time()):
                await asyncio.sleep(0)
            await asyncio.sleep(SAMPLE_INTERVAL_S)
