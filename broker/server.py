"""One broker process: loads what is on disk, serves the wire, writes what has changed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import IO, Any, Final

from broker.client_requests import notify_changed
from broker.config import BrokerConfig
from broker.delay import DelayService
from broker.errors import SettingError, StoreUnavailable
from broker.files import load_or_backup, write_atomic
from broker.group_configs import GroupConfigs
from broker.groups import SCAN_INTERVAL_S, ClientTable
from broker.handlers import HANDLERS, serve
from broker.locks import QueueLocks
from broker.long_polling import ParkedPulls
from broker.offsets import ConsumerOffsets
from broker.pulling import Park, Pull, look, time_over
from broker.registrar import Registrar
from broker.registration import Trigger
from broker.state import BrokerState, Call, Later
from broker.stats import SAMPLE_INTERVAL_S, Stats
from broker.store import MessageStore
from broker.tags import tags_code
from broker.topics import SCHEDULE_TOPIC, StartTopics, TopicConfigs
from remoting.bodies import DelayOffsetTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.fields import ConsumerGroupFields
from remoting.message import Host, StoredMessage
from remoting.route import DataVersion
from remoting.transport import split_address
from remoting.transport.server import Connection, RemotingServer, ServerLimits

logger = logging.getLogger(__name__)

#: Longest time between two checkpoints when nothing else asks for one.
_CHECKPOINT_S: Final = 2.0
#: Log files that are too old are looked for this often. Source: cleanResourceInterval, RocketMQ 4.9.
_CLEAN_S: Final = 10.0
#: Share of the machine's memory that the youngest part of the log is taken to fill.
_HOT_SHARE: Final = 0.4
#: Longest wait of an admin's request for the nameservers to hear of a changed topic.
_REGISTER_WAIT_S: Final = 3.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def advertised(config: BrokerConfig, bound_port: int) -> tuple[str, Host]:
    """Return (address to register, the same with the host as an IP for message ids).

    Raises:
        SettingError: If the host cannot be resolved.
    """
    host = config.advertise_host
    if host in ("0.0.0.0", "::", ""):
        host = _first_address()
    port = config.advertise_port or bound_port
    try:
        ip = str(ipaddress.ip_address(host))
    except ValueError:
        try:
            ip = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise SettingError(f"brokerIP1={host}: cannot be resolved: {error.strerror}") from None
    text = f"[{host}]" if ":" in host else host
    return f"{text}:{port}", Host(ip.partition("%")[0], port)


def _first_address() -> str:
    """Return the address from which this machine would reach others (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _only_cause(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return what a task group died of if that is one exception, so that callers can tell by its type."""
    leaves: list[BaseException] = []
    open_groups: list[BaseExceptionGroup[BaseException]] = [group]
    while open_groups:
        for inner in open_groups.pop().exceptions:
            if isinstance(inner, BaseExceptionGroup):
                open_groups.append(inner)
            else:
                leaves.append(inner)
    return leaves[0] if len(leaves) == 1 else None


class StateFile:
    """One file that is rewritten as a whole when its table has changed.

    Writes are collected: what changes while one is under way goes into the next.

    Args:
        snapshot: Returns what encodes the table as it is now, later in a thread.
        written: Called as a write begins; its result is called when that write is on disk.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Callable[[], bytes]],
        *,
        written: Callable[[], Callable[[], None]],
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._written = written
        self._wanted = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._failing = False

    def request(self) -> None:
        self._wanted.set()

    async def saved(self) -> None:
        """Wait until what the table holds now is on disk.

        Raises:
            OSError: If it could not be written.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        await waiter

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            waiters, self._waiters = self._waiters, []
            done = self._written()
            try:
                await asyncio.to_thread(self._write, self._snapshot())
            except OSError as error:
                if not self._failing:
                    logger.error("file not written path=%s error=%s", self._path.name, error.strerror)
                self._failing = True
                self._finish(waiters, error)
                await asyncio.sleep(1.0)
                self._wanted.set()
                continue
            self._failing = False
            done()
            self._finish(waiters, None)

    def write_now(self) -> None:
        """Write at once, blocking: for the end of the process."""
        self._write(self._snapshot())

    def _write(self, encode: Callable[[], bytes]) -> None:
        write_atomic(self._path, encode().decode())

    @staticmethod
    def _finish(waiters: list[asyncio.Future[None]], error: OSError | None) -> None:
        for waiter in waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)


class BrokerServer:
    """One broker. Use: ``await BrokerServer(config, store).run(stop, ready)``.

    Args:
        directory: Store of this broker; locked while it runs.
    """

    def __init__(self, config: BrokerConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._lock: IO[str] | None = None
        self._state: BrokerState
        self._server: RemotingServer
        self._registrar: Registrar
        self._delay: DelayService
        self._topics_file: StateFile
        self._groups_file: StateFile
        self._parked: ParkedPulls[Pull] = ParkedPulls()
        self._expiry: asyncio.Handle | None = None
        self._expiry_at = math.inf  # kept here: not every handle of uvloop knows its instant
        self._arrived: set[tuple[str, int]] = set()
        self._waking = False
        self._hosts: dict[int, Host] = {}
        self._flush_wanted = asyncio.Event()
        self._flush_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._group: asyncio.TaskGroup
        self._saved_offsets = 0
        self._saved_delays: dict[int, int] = {}

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until ``stop`` is set; ``ready`` gets the bound address once requests are served.

        Raises:
            SettingError: If a setting cannot be used on this machine.
            StoreDamaged, ValueError: If what is on disk cannot be used.
            OSError: If the address cannot be bound, or the disk refuses at start.
        """
        self._take_lock()
        try:
            await self._serve(stop, ready)
        except BaseExceptionGroup as group:
            cause = _only_cause(group)
            if cause is None:
                raise
            raise cause from None
        finally:
            if self._lock is not None:
                self._lock.close()

    async def _serve(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        services: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            self._group = group
            handlers = {int(code): self._handle for code in HANDLERS}
            self._server = RemotingServer(
                handlers=handlers,
                group=group,
                limits=ServerLimits(connections_max=self._config.connections_max),
                connected=self._connected,
                closed=self._closed,
            )
            # The address goes into messages, so it is bound first; requests wait until the store is ready.
            listen = await self._bind(self._server)
            bound_port = split_address(listen)[1]
            broker_addr, store_host = advertised(self._config, bound_port)
            self._load(store_host)
            ha_host = self._config.ha_ip or split_address(broker_addr)[0]
            ha_port = self._config.ha_listen_port or bound_port + 1
            self._registrar = Registrar(
                self._state,
                broker_addr=broker_addr,
                ha_addr=f"[{ha_host}]:{ha_port}" if ":" in ha_host else f"{ha_host}:{ha_port}",
                changed=self._apply_effects,
            )
            self._delay = DelayService(self._state, delivered=self._apply_effects)
            for work in (
                self._registrar.run(),
                self._delay.run(),
                self._topics_file.run(),
                self._groups_file.run(),
                self._flush_log(),
                self._write_checkpoints(),
                self._write_offsets(),
                self._look_after_clients(),
                self._sample(),
                self._remove_old_files(),
            ):
                services.append(group.create_task(work))
            ready(listen)
            await stop.wait()
            logger.info("stopping")
            services[0].cancel()
            await self._registrar.unregister()
            await self._server.close()
            for task in services:
                task.cancel()
        await self._registrar.close()
        # Writes that were under way when their tasks were cancelled go on in threads; let them end first.
        await asyncio.get_running_loop().shutdown_default_executor()
        self._close_store()
        logger.info("stopped")

    # Start and end -------------------------------------------------------------------------------

    async def _bind(self, server: RemotingServer) -> str:
        host, port = self._config.bind_host, self._config.listen_port
        try:
            return await server.start(host, port)
        except OSError as error:
            # asyncio's own text says the address once more; a name that is not resolved has no errno.
            known = error.errno in errno.errorcode
            reason = os.strerror(error.errno) if known and error.errno else error.strerror or error
            listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise SettingError(f"--listen {listen} cannot be bound: {reason}") from None

    def _take_lock(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self._directory / "lock").open("a")
        except OSError as error:
            raise SettingError(
                f"storePathRootDir={self._directory} cannot be used: {error.strerror}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise SettingError(f"storePathRootDir={self._directory}: another broker uses it") from None

    def _load(self, store_host: Host) -> None:
        config, directory = self._config, self._directory / "config"
        topics = TopicConfigs(
            StartTopics(
                cluster_name=config.cluster_name,
                broker_name=config.broker_name,
                default_queue_nums=config.default_topic_queue_nums,
                auto_create_topic_enable=config.auto_create_topic_enable,
                cluster_topic_enable=config.cluster_topic_enable,
                broker_topic_enable=config.broker_topic_enable,
                trace_topic_enable=config.trace_topic_enable,
                delay_levels=len(config.delay_levels_ms),
            )
        )
        groups, offsets = GroupConfigs(), ConsumerOffsets()
        load_or_backup(directory / "topics.json", topics.load)
        topics.begin(now_ms=now_ms())
        load_or_backup(directory / "subscriptionGroup.json", groups.load)
        load_or_backup(directory / "consumerOffset.json", offsets.load)
        delays = load_or_backup(
            directory / "delayOffset.json", lambda text: dict(DelayOffsetTable.decode(text.encode()).offsets)
        )
        levels = config.delay_levels_ms

        def code_of(message: StoredMessage) -> int:
            if message.topic == SCHEDULE_TOPIC and 0 <= message.queue_id < len(levels):
                return message.store_timestamp + levels[message.queue_id]
            return tags_code(message.properties)

        store = MessageStore(
            self._directory,
            log_file_size=config.log_file_size,
            queue_file_size=config.queue_file_size,
            store_host=store_host,
            tags_code=code_of,
            keeps_topic=topics.__contains__,
            skip_damage=config.recover_damaged_log == "skip",
        )
        self._state = BrokerState(
            config=config,
            config_version=DataVersion(timestamp=now_ms()),
            advertise=store_host,
            hot_bytes=int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _HOT_SHARE),
            topics=topics,
            groups=groups,
            offsets=offsets,
            clients=ClientTable(),
            locks=QueueLocks(),
            store=store,
            stats=Stats(started_ms=now_ms()),
            delay_offsets=delays or {},
        )
        self._topics_file = StateFile(
            directory / "topics.json", topics.snapshot, written=self._topics_written
        )
        self._groups_file = StateFile(
            directory / "subscriptionGroup.json",
            groups.snapshot,
            written=lambda: lambda: None,
        )
        self._topics_file.request()

    def _topics_written(self) -> Callable[[], None]:
        """Note what a write that begins now covers; the result is called when it is on disk."""
        covered = set(self._state.unsaved_topics)
        return lambda: self._state.unsaved_topics.difference_update(covered)

    def _close_store(self) -> None:
        for write in (self._topics_file.write_now, self._groups_file.write_now, self._save_offsets_now):
            try:
                write()
            except OSError as error:
                logger.error("state not written at shutdown error=%s", error)
        try:
            self._state.store.close()
        except (OSError, StoreUnavailable) as error:
            logger.error("store not closed cleanly error=%s", error)

    # Requests ------------------------------------------------------------------------------------

    def _connected(self, connection: Connection) -> None:
        try:
            host, port = split_address(connection.peer)
            self._hosts[connection.id] = Host(str(ipaddress.ip_address(host.partition("%")[0])), port)
        except (RemotingError, ValueError):
            self._hosts[connection.id] = Host("0.0.0.0", 0)

    def _closed(self, connection: Connection, *, by_us: bool) -> None:
        self._hosts.pop(connection.id, None)
        self._parked.drop(connection.id)
        changed = self._state.clients.closed(connection.id)
        if changed:
            logger.info("client gone connection=%s groups=%s", connection.id, ",".join(changed))
            notify_changed(self._state, changed)
            self._apply_effects()

    def _handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
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
            if not self._park(pull, deadline=loop_time + pull.suspend_ms / 1000):
                return time_over(self._state, pull)
            return None
        return self._answer_later(outcome, registering if outcome.registered else None)

    async def _answer_later(
        self, later: Later, registering: asyncio.Task[None] | None
    ) -> RemotingCommand | None:
        reply = later.reply
        try:
            if later.topics_saved:
                await self._topics_file.saved()
            if later.log_offset:
                await self._synced(later.log_offset)
        except (TimeoutError, StoreUnavailable):
            # Stored, but nobody can promise that it survives a power cut.
            return RemotingCommand(
                code=ResponseCode.FLUSH_DISK_TIMEOUT,
                opaque=reply.opaque,
                flag=reply.flag,
                ext_fields=reply.ext_fields,
                codec=reply.codec,
            )
        except OSError as error:
            return RemotingCommand(
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
                opaque=reply.opaque,
                flag=reply.flag,
                remark=f"cannot write the topic table: {error.strerror}",
                ext_fields={},
                codec=reply.codec,
            )
        if registering is not None:
            await asyncio.wait([registering], timeout=_REGISTER_WAIT_S)
        return reply

    def _apply_effects(self) -> asyncio.Task[None] | None:
        """Do what handlers asked for; return the task that registers changed topics, if there is one."""
        effects = self._state.effects
        if effects.arrived:
            self._arrived |= effects.arrived
            effects.arrived = set()
            if not self._waking:
                # After the whole batch of requests at hand, so that waiting pulls get all of it at once.
                self._waking = True
                asyncio.get_running_loop().call_soon(self._wake_pulls)
        if effects.notify:
            for group in effects.notify:
                self._notify_members(group)
            effects.notify = []
        if effects.save_groups:
            effects.save_groups = False
            self._groups_file.request()
        if effects.save_topics:
            effects.save_topics = False
            self._topics_file.request()
        registering = None
        if effects.register_all:
            effects.register_all = False
            registering = self._register(self._registrar.register_all(Trigger.PERMISSION))
        if effects.changed_topics:
            changed, effects.changed_topics = effects.changed_topics, []
            registering = self._register(self._registrar.register_topics(changed))
        return registering

    def _register(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work)

    def _notify_members(self, group: str) -> None:
        fields = ConsumerGroupFields(consumer_group=group).to_ext()
        request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True)
        for connection_id in self._state.clients.members(group):
            connection = self._server.connections.get(connection_id)
            if connection is not None:
                connection.notify(request)

    # Waiting pulls -------------------------------------------------------------------------------

    def _park(self, pull: Pull, *, deadline: float) -> bool:
        if not self._parked.park(
            pull, owner=pull.connection, topic=pull.topic, queue_id=pull.queue_id, deadline=deadline
        ):
            return False
        if deadline < self._expiry_at:
            self._arm_expiry()
        return True

    def _arm_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry, self._expiry_at = None, math.inf
        deadline = self._parked.next_deadline()
        if deadline is not None:
            loop = asyncio.get_running_loop()
            self._expiry, self._expiry_at = loop.call_at(deadline, self._expire_pulls), deadline

    def _expire_pulls(self) -> None:
        self._expiry, self._expiry_at = None, math.inf
        for pull in self._parked.expire(asyncio.get_running_loop().time()):
            self._send(pull.connection, time_over(self._state, pull))
        self._arm_expiry()

    def _wake_pulls(self) -> None:
        self._waking = False
        arrived, self._arrived = self._arrived, set()
        for topic, queue_id in arrived:
            if topic == SCHEDULE_TOPIC:
                self._delay.wake()
            for pull, deadline in self._parked.wake(topic, queue_id):
                found = look(self._state, pull)
                if isinstance(found, Park):
                    self._park(found.pull, deadline=deadline)
                else:
                    self._send(pull.connection, found)

    def _send(self, connection_id: int, answer: RemotingCommand) -> None:
        connection = self._server.connections.get(connection_id)
        if connection is not None:
            connection.send(answer)

    # Disk ----------------------------------------------------------------------------------------

    async def _synced(self, log_offset: int) -> None:
        """Wait until the log is synced up to an offset.

        Raises:
            TimeoutError: If that takes longer than ``syncFlushTimeout``.
            StoreUnavailable: If the disk refused.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flush_waiters.append((log_offset, waiter))
        self._flush_wanted.set()
        async with asyncio.timeout(self._config.sync_flush_timeout_ms / 1000):
            await waiter

    async def _flush_log(self) -> None:
        """Sync the log: at once for those who wait (one sync for all of them), else every interval."""
        failing = False
        while True:
            try:
                async with asyncio.timeout(self._config.flush_interval_ms / 1000):
                    await self._flush_wanted.wait()
            except TimeoutError:
                pass
            self._flush_wanted.clear()
            log = self._state.store.log
            if log.flushed_offset == log.max_offset and not self._flush_waiters:
                continue
            waiters, self._flush_waiters = self._flush_waiters, []
            try:
                flushed = await asyncio.to_thread(self._state.store.flush_log)
            except StoreUnavailable as error:
                if not failing:
                    logger.critical("log not synced, no more messages are taken error=%s", error)
                failing = True
                for _, waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(error)
                await asyncio.sleep(1.0)
                continue
            for wanted, waiter in waiters:
                if waiter.done():
                    continue
                if wanted <= flushed:
                    waiter.set_result(None)
                else:
                    self._flush_waiters.append((wanted, waiter))
                    self._flush_wanted.set()

    async def _write_checkpoints(self) -> None:
        store = self._state.store
        pause_s = _CHECKPOINT_S
        failing = False
        while True:
            await asyncio.sleep(pause_s)
            work = store.prepare_checkpoint()
            if work is None:
                continue
            started = time.monotonic()
            try:
                await asyncio.to_thread(store.write_checkpoint, work)
            except (OSError, StoreUnavailable) as error:
                failure = error if isinstance(error, OSError) else OSError(5, str(error))
                store.finish_checkpoint(work, failure=failure)
                if not failing:
                    logger.error("checkpoint failed, no messages are taken error=%s", error)
                failing = True
                continue
            store.finish_checkpoint(work)
            if failing:
                logger.info("checkpoint works again")
                failing = False
            # Thousands of queues take long to sync; do not let that become all the disk does.
            pause_s = max(_CHECKPOINT_S, 5 * (time.monotonic() - started))

    async def _write_offsets(self) -> None:
        config = self._config
        interval_s = min(config.flush_offset_interval_ms, config.flush_delay_offset_interval_ms) / 1000
        while True:
            await asyncio.sleep(interval_s)
            offsets, delays = self._changed_offsets()
            try:
                for path, text in (offsets, delays):
                    if text is not None:
                        await asyncio.to_thread(write_atomic, path, text)
            except OSError as error:
                logger.error("offsets not written error=%s", error.strerror)
                self._saved_offsets = -1
                self._saved_delays = {}

    def _changed_offsets(self) -> tuple[tuple[Path, str | None], tuple[Path, str | None]]:
        directory = self._directory / "config"
        offsets = delays = None
        if self._state.offsets.changed != self._saved_offsets:
            self._saved_offsets = self._state.offsets.changed
            offsets = self._state.offsets.to_table().encode().decode()
        if self._state.delay_offsets != self._saved_delays:
            self._saved_delays = dict(self._state.delay_offsets)
            delays = DelayOffsetTable(offsets=self._saved_delays).encode().decode()
        return (directory / "consumerOffset.json", offsets), (directory / "delayOffset.json", delays)

    def _save_offsets_now(self) -> None:
        for path, text in self._changed_offsets():
            if text is not None:
                write_atomic(path, text)

    async def _remove_old_files(self) -> None:
        while True:
            await asyncio.sleep(_CLEAN_S)
            self._state.store.delete_old_files(before=time.time() - self._state.config.file_reserved_h * 3600)

    # Upkeep --------------------------------------------------------------------------------------

    async def _look_after_clients(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SCAN_INTERVAL_S)
            self._state.locks.expire(loop.time())
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
            self._state.stats.sample(loop.time())
            await asyncio.sleep(SAMPLE_INTERVAL_S)
