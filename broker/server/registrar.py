"""Registration of this broker with every nameserver. Module ``registration`` computes times and content."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from routekeeper.broker.server.nameserver_names import NameserverNames, numeric_addresses
from routekeeper.broker.server.registration import (
    RegistrationSchedule,
    Trigger,
    VersionAnswer,
    asks_first,
    differences,
    is_needed,
    place_holder,
    registration_body,
)
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting import wall_clock
from routekeeper.remoting.addresses import same_address
from routekeeper.remoting.bodies import KVTable
from routekeeper.remoting.bounds import ADDR_MAX, LEASE_MS
from routekeeper.remoting.codes import VERSION, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.errors import FieldError, RemoteProtocolError, RemotingError
from routekeeper.remoting.fields import (
    GetRouteFields,
    QueryDataVersionFields,
    QueryDataVersionResponseFields,
    RegisterBrokerFields,
    UnregisterBrokerFields,
)
from routekeeper.remoting.properties import parse_properties
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig, TopicRouteData, decode_route
from routekeeper.remoting.threads import NoFreeThread
from routekeeper.remoting.transport.aio import RemotingClient

if TYPE_CHECKING:  # only type annotations need these classes
    from routekeeper.broker.config import BrokerConfig
    from routekeeper.remoting.transport.tls import Tls

logger = logging.getLogger(__name__)

#: Longest time for an unregistration at each nameserver, in seconds. Source: BrokerOuterAPI.unregisterBroker.
UNREGISTER_TIMEOUT_S = 3.0
#: Largest number of running registrations and unregistrations that changes of the nameserver list have
#: started. When this number is exceeded, the next change of the list waits.
CHANGES_MAX: Final = 128
#: Size in bytes above which a body is compressed, so that it fits in a frame of 16 MiB.
PLAIN_BODY_MAX: Final = 15 * 1024 * 1024
#: Number of topics above which a thread encodes a registration, so that the encoding delays no request.
_INLINE_TOPICS_MAX: Final = 500
#: Largest number of encodings for one registration, if topics change during each of them.
_ENCODINGS_MAX: Final = 3
#: Largest number of registrations of all topics that are sent at the same time. The limit applies if the
#: broker has more than _INLINE_TOPICS_MAX topics. A registration may have 15 MiB, and each nameserver gets a
#: separate copy. Without the limit, many nameservers that do not read would exhaust the memory.
LARGE_UNDER_WAY_MAX: Final = 8


def encode_fitting(content: RegisterBody, *, compressed: bool) -> tuple[bytes, bool]:
    """Return the body of a registration, and True if the body is compressed.

    The body is compressed if the caller asks for that, or if a plain body would not fit in a frame.
    """
    body = encode_register_body(content, compressed=compressed, version=VERSION)
    if compressed or len(body) <= PLAIN_BODY_MAX:
        return body, compressed
    return encode_register_body(content, compressed=True, version=VERSION), True


def asked_lease_ms(timer_divisor: float) -> int | None:
    """Return the lease to request, in ms, or None (the nameserver's default) if ``timer_divisor`` is 1."""
    return None if timer_divisor == 1 else round(LEASE_MS / timer_divisor)


class Announcer(Protocol):
    """Interface of an object that registers this broker with servers. :class:`Registrar` implements it."""

    async def run(self) -> None:
        """Announce the broker at the start and then periodically, until the task is cancelled."""

    async def register_all(self, trigger: Trigger) -> None:
        """Announce all topics."""

    async def register_topics(self, changes: Iterable[tuple[TopicConfig, DataVersion]]) -> None:
        """Announce topics that were created or changed, each with the data version of that change."""

    def nameservers_changed(self) -> None:
        """Handle a change of the settings that list the servers."""

    async def unregister(self) -> None:
        """Unregister this broker."""

    async def close(self) -> None: ...


class AnnouncerFactory(Protocol):
    """Factory of a broker's announcer. The arguments are those of :class:`Registrar`."""

    def __call__(
        self,
        state: BrokerState,
        /,
        *,
        broker_addr: str,
        ha_addr: str,
        changed: Callable[[], object],
        tls: Tls | None,
    ) -> Announcer: ...


class _Signing:
    """A hook that signs every request if the broker has keys for nameservers."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        return self._state.sign(request)

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Do nothing, because only requests are signed."""


class _Turn:
    """A lock that lets only one registration of all topics at a time wait for a nameserver's answer.

    Attributes:
        begun: Number of registrations that have begun. A registration contains all changes that were made
            before it began.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.begun = 0


class _Whole(NamedTuple):
    """A registration of all topics, with the data version and the settings that it was made from."""

    version: DataVersion
    config: BrokerConfig
    request: asyncio.Future[RemotingCommand]


class Registrar:
    """Tasks that register one broker with all its nameservers. A slow nameserver does not delay the others.

    There is one exception: a broker with very many topics registers with LARGE_UNDER_WAY_MAX nameservers at a
    time.

    A nameserver gets no registration of all topics before the earlier one has ended. All changes in the
    meantime are then sent in one further registration.

    A lost connection has no effect, because the next registration opens a new connection. When the settings
    that list the nameservers change, the registrar registers at once with new nameservers. It unregisters
    from nameservers that are no longer in the list.

    Args:
        broker_addr, ha_addr: Addresses of this broker for clients and for slaves.
        changed: Callback after the topic table has changed because of a nameserver's answer.
        tls: TLS for connections to nameservers.
    """

    def __init__(
        self,
        state: BrokerState,
        /,
        *,
        broker_addr: str,
        ha_addr: str,
        changed: Callable[[], object],
        tls: Tls | None = None,
    ) -> None:
        self._state = state
        self._broker_addr = broker_addr
        self._ha_addr = ha_addr
        self._changed = changed
        self._client = RemotingClient(tls=tls, hooks=(_Signing(state),))
        self._failing: set[str] = set()
        self._encoding = DiskThreads("registration")
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
        self._large = asyncio.Semaphore(LARGE_UNDER_WAY_MAX)
        self._whole: _Whole | None = None  # the newest registration, while any call needs it
        self._whole_calls = 0  # number of running calls of _register_whole
        self._displaced: dict[str, str] = {}
        self._leaving = False
        self._names = NameserverNames()
        self._addresses: tuple[str, ...] = ()
        self._former: dict[
            str, asyncio.Task[None]
        ] = {}  # for each former nameserver: the task that unregisters the broker there
        self._changed_list = asyncio.Event()

    async def run(self) -> None:
        """Register at the start, then periodically, and whenever the list of nameservers changes.

        This method runs until its task is cancelled.
        """
        config = self._state.config
        if config.asks_address_server:
            logger.info("nameservers are asked of an address server url=%s", config.address_server_url)
        elif not config.namesrv_addrs:
            logger.warning("no nameserver is configured, nobody will find this broker")
        elif config.fetch_namesrv:
            logger.warning("address server is not asked reason=namesrvAddr or -n names the nameservers")
        loop = asyncio.get_running_loop()
        schedule = RegistrationSchedule(delay_s=config.register_delay_s, period_s=config.register_period_s)
        schedule.started(loop.time())
        async with asyncio.TaskGroup() as rounds:
            rounds.create_task(self._follow_nameservers(rounds))
            while True:
                await asyncio.sleep(schedule.until_due(loop.time()))
                schedule.fired(loop.time())
                # Do not wait, because a nameserver that does not answer must not delay the next registration.
                rounds.create_task(self.register_all(Trigger.PERIOD))

    def nameservers_changed(self) -> None:
        self._changed_list.set()

    async def _follow_nameservers(self, rounds: asyncio.TaskGroup) -> None:
        """Keep the list of nameservers up to date. Read the settings and look up host names again."""
        under_way: set[asyncio.Task[None]] = set()
        while True:
            config = self._state.config
            wanted = await self._names.nameservers(config)
            new, gone = differences(self._addresses, wanted)
            self._addresses = wanted
            if new or gone:
                logger.info("nameservers now=%s", ";".join(wanted) or "none")
                registering = rounds.create_task(self._register_whole(new))
                under_way.add(registering)
                for addr in gone:
                    self._failing.discard(addr)
                    self._displaced.pop(addr, None)
                    leaving = rounds.create_task(self._leave(addr, wanted, registering))
                    self._former[addr] = leaving
                    leaving.add_done_callback(partial(self._left, addr))
            under_way = {task for task in under_way if not task.done()}
            while (
                len(under_way) + len(self._former) > CHANGES_MAX
            ):  # any client may change the list repeatedly, so the number of running tasks needs a bound
                await asyncio.wait([*under_way, *self._former.values()], return_when=asyncio.FIRST_COMPLETED)
                under_way = {task for task in under_way if not task.done()}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._names.pause_s(config)):
                    await self._changed_list.wait()
            self._changed_list.clear()

    def _left(self, addr: str, task: asyncio.Task[None]) -> None:
        if self._former.get(addr) is task:
            del self._former[addr]

    async def _leave(self, addr: str, others: tuple[str, ...], registering: asyncio.Task[None]) -> None:
        """Unregister from a former nameserver, and close the connection to it.

        Unregister only if the former nameserver surely shares its table with no nameserver in the list.
        Otherwise the broker would be missing in the shared table until its next registration. The members of
        one raft group share a table. Two addresses also share a table if they are names of one nameserver.

        Args:
            others: Nameservers that are still in the list.
            registering: Task that registers the broker at these nameservers.
        """
        try:
            async with asyncio.timeout(UNREGISTER_TIMEOUT_S):
                is_alone = await self._has_own_table(addr, others)
        except TimeoutError:
            is_alone = False
        if is_alone:
            await self._unregister_at(addr)
        else:
            # This wait needs a limit. If the list of nameservers has changed several times, the registration
            # may itself wait for the end of this task.
            register_s = self._state.config.register_timeout_ms / 1000
            await asyncio.wait([registering], timeout=UNREGISTER_TIMEOUT_S + 2 * register_s)
            logger.info("connection closed to former nameserver=%s", addr)
        self._client.disconnect(addr)

    async def _has_own_table(self, addr: str, others: tuple[str, ...]) -> bool:
        """Return True if a nameserver surely has a table that no other nameserver in the list shares."""
        if not others:
            return True
        own, *found = await asyncio.gather(*map(numeric_addresses, (addr, *others)))
        # After a failed look-up, two names may still belong to one nameserver.
        if own is None or any(other is None or own & other for other in found):
            return False
        request = RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)
        try:
            answer = await self._client.invoke(addr, request, timeout_s=UNREGISTER_TIMEOUT_S)
            settings = parse_properties(answer.body.decode())
        except (RemotingError, ValueError):
            return False
        return answer.code == ResponseCode.SUCCESS and settings.get("mode") != "raft"

    async def register_all(self, trigger: Trigger) -> None:
        """Send all topics to every nameserver, and wait for the answers.

        A periodic registration is skipped if every nameserver already has the topics and ``forceRegister`` is
        off. It is also skipped at a nameserver that has not answered an earlier registration of all topics.
        """
        state = self._state
        if asks_first(trigger, force_register=state.config.force_register):
            own = state.topics.data_version
            answers = await asyncio.gather(*map(self._ask_version, self._addresses))
            if not is_needed(answers, own):
                return
        targets = self._addresses
        if trigger is Trigger.PERIOD:
            targets = tuple(addr for addr in targets if not self._is_busy(addr))
        # At the start, do not look for another broker with this name and id: a nameserver may still list the
        # earlier process of this broker.
        await self._register_whole(targets, looks=trigger is Trigger.PERIOD)

    def _is_busy(self, addr: str) -> bool:
        turn = self._turns.get(addr)
        return turn is not None and turn.lock.locked()

    async def _register_whole(self, targets: tuple[str, ...], *, looks: bool = False) -> None:
        if self._leaving:
            return
        # First ask for another broker with this name and id: after the registration, the answer would be this
        # broker.
        work = [self._look_for_twin(addr) for addr in targets] if looks else []
        self._whole_calls += 1
        try:
            await asyncio.gather(*work, *map(self._register_whole_at, targets))
        finally:
            self._whole_calls -= 1
            if not self._whole_calls:
                self._whole = None

    async def _register_whole_at(self, addr: str) -> None:
        """Send all topics to a nameserver, after a registration that already runs there has ended.

        Send nothing if another call begins to send all topics while this call waits. That registration then
        includes all changes before this call.
        """
        turn = self._turns.setdefault(addr, _Turn())
        begun = turn.begun
        async with turn.lock:
            if turn.begun != begun or not await self._may_register(addr):
                return
            if len(self._state.topics) <= _INLINE_TOPICS_MAX:
                await self._take_turn(addr, turn)
                return
            async with self._large:
                await self._take_turn(addr, turn)

    async def _take_turn(self, addr: str, turn: _Turn) -> None:
        # Increase ``begun`` before the topics are read. A call that read ``begun`` earlier then sends no
        # registration of its own, because this registration already includes all changes before that call.
        turn.begun += 1
        for _ in range(_ENCODINGS_MAX):
            whole = self._current_whole()
            # Without the shield, cancelling this call would cancel the encoding for which other calls wait.
            request = await asyncio.shield(whole.request)
            if whole.version == self._state.topics.data_version:
                break
            # A topic has changed during the encoding, and may already have been sent alone. So encode again:
            # the older registration would undo this change at the nameserver.
        await self._register_at(addr, request)

    def _current_whole(self) -> _Whole:
        """Return the registration of all topics. It is encoded once for all nameservers."""
        topics, config = self._state.topics, self._state.config
        version, whole = topics.data_version, self._whole
        if whole is None or whole.version != version or whole.config is not config:
            whole = self._whole = _Whole(version, config, self._encoding_of(tuple(topics), version, config))
        return whole

    def _encoding_of(
        self, topics: tuple[TopicConfig, ...], version: DataVersion, config: BrokerConfig
    ) -> asyncio.Future[RemotingCommand]:
        if len(topics) > _INLINE_TOPICS_MAX:
            return asyncio.create_task(self._encode(topics, version, config))
        # Encode these few topics now, so that they are sent in the same iteration of the loop. Otherwise a
        # later change of a topic could be sent first, and this older registration would undo it.
        encoded: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        encoded.set_result(self._encoded(topics, version, config))
        return encoded

    async def register_topics(self, changes: Iterable[tuple[TopicConfig, DataVersion]]) -> None:
        """Send each changed topic alone, with its data version, to all nameservers (as in RocketMQ 5.x).

        A nameserver gets the next topic after its answer to the one before. It does not wait for the answers
        of other nameservers.
        """
        requests = [self._encoded((topic,), version, self._state.config) for topic, version in changes]
        await asyncio.gather(*(self._register_each_at(addr, requests) for addr in self._addresses))

    async def _register_each_at(self, addr: str, requests: Iterable[RemotingCommand]) -> None:
        for request in requests:
            # After a request without an answer, leave the others to the next registration of all topics.
            # Otherwise each of them could wait for a time-out.
            if self._leaving or not await self._register_at(addr, request):
                return

    async def unregister(self) -> None:
        """Unregister from every nameserver, and prevent all further registrations."""
        self._leaving = True
        await asyncio.gather(*map(self._unregister_at, dict.fromkeys((*self._addresses, *self._former))))

    async def _unregister_at(self, addr: str) -> None:
        config = self._state.config
        fields = UnregisterBrokerFields(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, fields.to_ext())
        try:
            answer = await self._client.invoke(addr, request, timeout_s=UNREGISTER_TIMEOUT_S)
        except RemotingError as error:
            logger.warning("unregistration failed nameserver=%s error=%s", addr, error)
            return
        if answer.code == ResponseCode.SUCCESS:
            logger.info("broker unregistered nameserver=%s", addr)
        else:
            logger.warning(
                "unregistration refused nameserver=%s code=%s remark=%s", addr, answer.code, answer.remark
            )

    async def close(self) -> None:
        await self._client.close()
        await self._names.close()
        self._encoding.shutdown()

    async def _encode(
        self, topics: tuple[TopicConfig, ...], version: DataVersion, config: BrokerConfig
    ) -> RemotingCommand:
        work = partial(self._encoded, topics, version, config)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._encoding, work)
        except NoFreeThread:  # encode in this thread, although the event loop must then wait
            return work()

    def _encoded(
        self, topics: tuple[TopicConfig, ...], version: DataVersion, config: BrokerConfig
    ) -> RemotingCommand:
        content = registration_body(topics, version, broker_permission=config.broker_permission)
        body, compressed = encode_fitting(content, compressed=config.compressed_register)
        fields = RegisterBrokerFields(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.cluster_name,
            ha_server_addr=self._ha_addr,
            broker_id=config.broker_id,
            compressed=compressed,
            body_crc32=body_crc32(body),
            heartbeat_timeout_ms=asked_lease_ms(config.timer_divisor),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body)

    async def _may_register(self, addr: str) -> bool:
        """Wait for the end of a running unregistration. Then return True if the nameserver is in the list.

        Without this wait, the unregistration could remove the new registration.
        """
        if (leaving := self._former.get(addr)) is not None:
            await asyncio.wait([leaving])
        return addr in self._addresses and not self._leaving

    async def _register_at(self, addr: str, request: RemotingCommand) -> bool:
        """Send a registration, and return True if the nameserver has answered it."""
        if not await self._may_register(addr):
            return False
        timeout_s = self._state.config.register_timeout_ms / 1000
        try:
            answer = await self._client.invoke(addr, request, timeout_s=timeout_s)
            ordered = KVTable.decode(answer.body).table if answer.body else {}
        except RemotingError as error:
            self._failed(addr, str(error))
            return False
        if answer.code != ResponseCode.SUCCESS:
            self._failed(addr, f"code={answer.code} remark={answer.remark}")
            return True
        if addr in self._failing:
            self._failing.discard(addr)
            logger.info("registration works again nameserver=%s", addr)
        if self._state.topics.set_order(ordered, now_ms=wall_clock.now_ms()):
            self._state.effects.save_topics = True
            self._changed()
        return True

    async def _look_for_twin(self, addr: str) -> None:
        """Warn if a nameserver lists another broker's address under this broker's name and id.

        Registrations of the two brokers replace each other's address. Warn once for each such address.
        """
        config = self._state.config
        fields = GetRouteFields(topic=config.broker_name)
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields.to_ext())
        try:
            answer = await self._client.invoke(addr, request, timeout_s=config.register_timeout_ms / 1000)
            route = decode_route(answer.body) if answer.code == ResponseCode.SUCCESS else TopicRouteData()
        except RemotingError:
            return  # no warning here: the registration that runs at the same time logs the same error
        holder = place_holder(
            route, cluster=config.cluster_name, name=config.broker_name, id_=config.broker_id
        )
        if holder is None:
            return
        if same_address(holder, self._broker_addr):
            self._displaced.pop(addr, None)
        elif self._displaced.get(addr) != holder:
            self._displaced[addr] = holder
            logger.warning(
                "another broker took this one's name and id name=%s id=%s by=%s nameserver=%s",
                config.broker_name,
                config.broker_id,
                holder[:ADDR_MAX],
                addr,
            )

    def _failed(self, addr: str, reason: str) -> None:
        """Log the first of several failures as a warning, and the following failures only at debug level."""
        level = logging.DEBUG if addr in self._failing else logging.WARNING
        if addr in self._addresses:  # do not add a former nameserver: no code would remove it from the set
            self._failing.add(addr)
        logger.log(level, "registration failed nameserver=%s reason=%s", addr, reason)

    async def _ask_version(self, addr: str) -> VersionAnswer:
        state, config = self._state, self._state.config
        fields = QueryDataVersionFields(
            broker_name=config.broker_name,
            broker_addr=self._broker_addr,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand.request(
            RequestCode.QUERY_DATA_VERSION, fields.to_ext(), state.topics.data_version.encode()
        )
        try:
            answer = await self._client.invoke(addr, request, timeout_s=config.register_timeout_ms / 1000)
            if answer.code != ResponseCode.SUCCESS:
                return VersionAnswer(failed=True)
            changed = QueryDataVersionResponseFields.parse(answer.ext_fields).changed
            stored = DataVersion.decode(answer.body) if answer.body else None
        except (RemotingError, FieldError, RemoteProtocolError) as error:
            self._failed(addr, str(error))
            return VersionAnswer(failed=True)
        return VersionAnswer(changed=changed, stored=stored)
