"""ZooKeeper as the registry of routes, a design that RocketMQ's documents rejected.

Brokers hold ZooKeeper sessions. Clients read nodes and may watch them. The nodes have MetaQ's layout
(:mod:`routekeeper.bench.arms.layout`). When a broker's session has expired, the broker creates its nodes
again. A restarted broker replaces the nodes of its former process at once. A restarted broker of MetaQ waited
until these nodes expired.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import InterruptedError, KazooRetry

from routekeeper.bench.arms.interface import (
    ArmConfig,
    Listing,
    Looked,
    Side,
    Told,
    as_dialled,
    client_config,
    looked_at,
)
from routekeeper.bench.arms.layout import (
    child_index,
    master_path,
    nodes_of,
    route_of,
    topic_child,
    topic_path,
)
from routekeeper.bench.events import Outcome
from routekeeper.bench.recorder import short_remark
from routekeeper.client.blocking import Client
from routekeeper.client.core import ClientCore
from routekeeper.client.directory import Directory
from routekeeper.client.operation import Deliver, Operation
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.route import TopicRouteData
from routekeeper.remoting.transport import RPCHook

log = logging.getLogger(__name__)

#: Shortest pause in s before a client tries the servers again. The client draws each pause at random between
#: this value and twice this value. ZooKeeper's own client waits up to 1 s.
RECONNECT_S: Final = 0.1
#: Pause in s before the client repeats a call that failed because of a lost connection.
AGAIN_S: Final = 0.02
#: Period in s in which a watching client refreshes its routes. The value is the longest period that the
#: client accepts, so that no periodic refresh happens during a run.
UNASKED_S: Final = 3600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waits:
    """The way in which kazoo waits: by threads, or by gevent's greenlets.

    Attributes:
        make: Makes kazoo's handler.
        timeouts: Exceptions that this way of waiting raises if an answer does not come in time. The exception
            of gevent is not a subclass of ``Exception``, so ``except Exception`` would not catch it.
    """

    make: Callable[[], Any]
    timeouts: tuple[type[BaseException], ...]


THREADS: Final = Waits(SequentialThreadingHandler, (KazooTimeoutError,))


class Unreachable(RemotingError):
    """ZooKeeper gave no answer."""


class Reconnecting:
    """A replacement for kazoo's ``KazooRetry`` that repeats attempts to connect, with a pause before each.

    ``KazooRetry`` multiplies the last pause by a random factor, and its pauses become shorter and shorter.
    After 20 attempts, a client would connect hundreds of times a second. These attempts would take processor
    time from servers that start. So this class draws each pause independently of the earlier pauses.

    This class has no state, so all connections of a client may share one object.

    Args:
        pause_s: Shortest pause in s. The longest pause is twice as long.
        sleep: Function of the client's handler that waits for a number of seconds.
        ended: Returns whether the client was stopped.
    """

    def __init__(
        self, pause_s: float, *, sleep: Callable[[float], object], ended: Callable[[], bool]
    ) -> None:
        self._pause_s = pause_s
        self._sleep = sleep
        self._ended = ended

    def copy(self) -> Reconnecting:
        return self

    def reset(self) -> None:
        """Do nothing, because this class keeps no state of earlier attempts."""

    def __call__(self, attempt: Callable[..., T], *arguments: object) -> T:
        """Return the result of ``attempt``. After each error that kazoo retries, call ``attempt`` again.

        Raises:
            InterruptedError: If the client was stopped.
        """
        while True:
            try:
                return attempt(*arguments)
            except ConnectionClosedError:
                raise
            except (*KazooRetry.RETRY_EXCEPTIONS, *KazooRetry.EXPIRED_EXCEPTIONS):
                self._sleep(random.uniform(self._pause_s, 2 * self._pause_s))
                if self._ended():
                    raise InterruptedError("the client was stopped") from None


class LeavesSilentServer(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """A connection that closes if the client sends requests but gets no bytes for 2/3 of the session timeout.

    ZooKeeper's own client closes such a connection, too. kazoo notices a silent server only by a ping without
    an answer, and sends no ping while the client sends requests. So a client that sends requests all the time
    would stay with a server that hangs.
    """

    _received = 0.0  # time of the last received bytes, on the clock of ``time.monotonic``

    def _connect(self, host: str, address: str, port: int) -> tuple[int, float]:
        agreed: tuple[int, float] = super()._connect(host, address, port)
        self._received = time.monotonic()
        return agreed

    def _read_socket(self, read_timeout: float) -> object:
        response = super()._read_socket(read_timeout)
        self._received = time.monotonic()
        return response

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        if time.monotonic() - self._received > read_timeout:
            raise ConnectionDropped(f"nothing received for {read_timeout:g} s")
        super()._send_request(read_timeout, connect_timeout)


def connect(
    hosts: list[str],
    *,
    session_s: float,
    waits: Waits = THREADS,
    first: int = 0,
    reconnect_s: float = RECONNECT_S,
) -> KazooClient:
    """Return a client (kazoo) of a ZooKeeper ensemble, not yet started.

    The client tries the servers (``hosts``) in order, and begins with the server at index ``first``.
    """
    order = hosts[first % len(hosts) :] + hosts[: first % len(hosts)]
    handler = waits.make()
    client = KazooClient(
        hosts=",".join(order), timeout=session_s, handler=handler, randomize_hosts=False, logger=log
    )
    # Set the attribute here, because kazoo has no argument for a connection handler.
    client._connection = LeavesSilentServer(
        client, Reconnecting(reconnect_s, sleep=handler.sleep_func, ended=client._stopped.is_set), logger=log
    )
    return client


def end(client: KazooClient) -> None:
    """End a session and its connection, and free the client's resources."""
    client.stop()
    client.close()


def judge(error: BaseException) -> Outcome:
    """Return the outcome of a call that failed with ``error``."""
    match error:
        case NoNodeError():
            return "absent"
        case SessionExpiredError() | ConnectionClosedError():
            return "refused"
        case ConnectionLoss() | OperationTimeoutError():
            return "unknown"
        case KazooException():
            return "error"
    return "unknown"  # after the handler's own timeout, the server may still have received the request


def until_served(client: KazooClient, call: Callable[[], T], deadline: float) -> T:
    """Return the result of a call. Until the deadline, repeat the call after a lost connection or session.

    When a connection is lost, kazoo ends all waiting calls with an error, and connects to the next server.
    RocketMQ's client repeats a call at the next server, so a fair comparison needs the same here.

    Args:
        deadline: On the clock of ``time.monotonic``, in s.
    """
    while True:
        try:
            return call()
        except (ConnectionLoss, SessionExpiredError, ConnectionClosedError):
            if time.monotonic() + AGAIN_S >= deadline:
                raise
            client.handler.sleep_func(AGAIN_S)


class Reader:
    """A reader of routes through one ZooKeeper session.

    Args:
        once: True to raise an error when the connection is lost, like a client that asks only one server
            once.
    """

    def __init__(
        self, client: KazooClient, timeout_s: float, waits: Waits = THREADS, *, once: bool = False
    ) -> None:
        self._client = client
        self._waits = waits
        self._timeout_s = timeout_s
        self._once = once

    def route(self, topic: str, watch: Callable[[object], object] | None = None) -> TopicRouteData:
        """Read a topic's route. At the next change of the route, kazoo calls ``watch`` once.

        Raises:
            ResponseError: With code 17, if no broker has the topic.
            Unreachable: If ZooKeeper gave no answer.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            return until_served(
                self._client,
                lambda: self._read(topic, watch, deadline),
                0.0 if self._once else deadline,
            )
        except KazooException as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        except self._waits.timeouts as error:
            raise Unreachable(f"no answer within {self._timeout_s:g} s") from error

    def _read(self, topic: str, watch: Callable[[object], object] | None, deadline: float) -> TopicRouteData:
        def wait(result: Any) -> Any:
            return result.get(timeout=max(0.001, deadline - time.monotonic()))

        def made_meanwhile(path: str) -> bool:
            """Return whether a missing node exists now. If not, set a watch for its creation.

            A read of a missing node sets no watch. Without a watch, a watching client would never notice the
            new node, because it does not poll.
            """
            return watch is not None and wait(self._client.exists_async(path, watch=watch)) is not None

        try:
            children = wait(self._client.get_children_async(topic_path(topic), watch=watch))
        except NoNodeError:
            if made_meanwhile(topic_path(topic)):
                return self._read(topic, watch, deadline)
            children = []
        indexes = [index for name in children if (index := child_index(name)) is not None]
        reading = {
            index: (
                self._client.get_async(f"{topic_path(topic)}/{topic_child(index)}", watch=watch),
                self._client.get_async(master_path(index), watch=watch),
            )
            for index in indexes
        }
        queues: dict[int, bytes] = {}
        masters: dict[int, bytes] = {}
        for index, (of_topic, of_broker) in reading.items():
            try:
                queues[index] = wait(of_topic)[0]
            except NoNodeError:
                pass  # the broker left during the read, and the watch of the topic's node reports this
            try:
                masters[index] = wait(of_broker)[0]
            # A broker creates its address node after its topics' nodes, so the address may appear soon.
            except NoNodeError:
                if made_meanwhile(master_path(index)):
                    return self._read(topic, watch, deadline)
        route = route_of(queues, masters)
        if not route.queue_datas:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, "no broker has the topic")
        return route


class Standing:
    """One broker's ephemeral nodes: all wanted nodes, and the nodes that its present session has created.

    Args:
        changed: Called when the client has a new session, which owns none of the broker's nodes. kazoo
            calls it in the thread of its connection, which reads no answers meanwhile. So ``changed`` must
            not block.
    """

    def __init__(self, client: KazooClient, changed: Callable[[], object]) -> None:
        self._client = client
        self._changed = changed
        self._wanted: Mapping[str, bytes] = {}
        self._made: dict[str, bytes] = {}
        self._parents: set[str] = set()
        self._putting = threading.Lock()
        self._lost = False
        client.add_listener(self._state)

    def _state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._lost = True
        elif state == KazooState.CONNECTED and self._lost:
            self._lost = False
            self._made = {}
            self._parents = set()
            self._changed()

    def put(self, nodes: Mapping[str, bytes], timeout_s: float) -> None:
        """Create or change, concurrently, all nodes that differ from the nodes in ZooKeeper.

        If several threads call this method, one thread at a time creates the nodes of the latest call. If
        every call created its own nodes, calls would pile up at a slow ensemble.

        Raises:
            KazooException, or one of ``Waits.timeouts``: If ZooKeeper has not confirmed every node. It may
                have created some of them.
        """
        deadline = time.monotonic() + timeout_s
        self._wanted = nodes
        if not self._putting.acquire(timeout=timeout_s):
            raise OperationTimeoutError("an earlier announcement is still under way")
        try:
            until_served(self._client, lambda: self._put(self._wanted, deadline), deadline)
        finally:
            self._putting.release()

    def _put(self, nodes: Mapping[str, bytes], deadline: float) -> None:
        made = self._made
        todo = {path: data for path, data in nodes.items() if made.get(path) != data}

        def left() -> float:
            return max(0.001, deadline - time.monotonic())

        changing = [
            (path, data, self._client.set_async(path, data)) for path, data in todo.items() if path in made
        ]
        new = {path: data for path, data in todo.items() if path not in made}
        parents = {path.rpartition("/")[0] for path in new} - self._parents
        for parent, result in [(path, self._client.ensure_path_async(path)) for path in parents]:
            result.get(timeout=left())
            self._parents.add(parent)
        creating = [
            (path, data, self._client.create_async(path, data, ephemeral=True)) for path, data in new.items()
        ]
        for path, data, result in creating:
            try:
                result.get(timeout=left())
            # A former session has created the node, or an earlier call that got no answer has created it.
            except NodeExistsError:
                owner = self._client.get_async(path).get(timeout=left())[1].ephemeralOwner
                if owner == (self._client.client_id or (None,))[0]:
                    changing.append((path, data, self._client.set_async(path, data)))
                    continue
                transaction = self._client.transaction()
                transaction.delete(path)
                transaction.create(path, data, ephemeral=True)
                for outcome in transaction.commit_async().get(timeout=left()):
                    if isinstance(outcome, Exception):
                        raise outcome from None
            # Do not write to self._made. If a new session has begun, self._made is a new dict, and the new
            # session does not own this node.
            made[path] = data
        for path, data, result in changing:
            result.get(timeout=left())
            made[path] = data

    def take_back(self, timeout_s: float) -> None:
        """Delete the broker's nodes."""
        waiting = [self._client.delete_async(path) for path in reversed(list(self._made))]
        for result in waiting:
            try:
                result.get(timeout=timeout_s)
            except NoNodeError:
                pass  # the node is gone already, for example because it expired
        self._made = {}


class ZooKeeperArm:
    """The design ZooKeeper: its brokers and clients, and the addresses of an ensemble's servers."""

    def __init__(self, config: ArmConfig, waits: Waits = THREADS) -> None:
        self.config = config
        self.waits = waits

    def connected(self, side: Side, first: int) -> KazooClient:
        """Return a started client, which tries to connect until a server answers.

        Args:
            first: Index of the server to which the client tries to connect first.
        """
        client = connect(side.servers, session_s=self.config.lease_ms / 1000, waits=self.waits, first=first)
        client.start_async()
        return client

    def broker(self, side: Side) -> ZooKeeperBroker:
        return ZooKeeperBroker(self, side)

    def client(self, side: Side, user: int) -> ZooKeeperClientSession:
        return ZooKeeperClientSession(self, side, user)

    def starting_client(self, side: Side, first: int) -> ZooKeeperClientSession:
        return ZooKeeperClientSession(self, side, first)

    def newcomer(self, side: Side, target: int, topic: str) -> Looked:
        client = connect([side.servers[target]], session_s=self.config.lease_ms / 1000, waits=self.waits)
        started = client.start_async()
        try:
            if not started.wait(self.config.timeout_s):
                return Looked(outcome="refused", target=target, remark="no session")
            reader = Reader(client, self.config.timeout_s, self.waits, once=True)
            return look_up(reader, topic, target=target)
        finally:
            end(client)

    def producer_client(self, side: Side, user: int, *, seed: int, hooks: tuple[RPCHook, ...]) -> Client:
        session = self.connected(side, user)
        reader = Reader(session, self.config.timeout_s, self.waits)
        made: list[ZooKeeperRoutes] = []

        def read(topic: str) -> TopicRouteData:
            if not self.config.watches:
                return reader.route(topic)
            try:
                return reader.route(topic, made[0].noticed(topic))
            except Unreachable:
                made[0].failed(topic)
                raise

        def source(directory: Directory, topic: str, *, timeout_s: float | None) -> Operation[TopicRouteData]:
            route: TopicRouteData = yield Deliver(read, topic)
            return as_dialled(route, side.brokers)

        settings = client_config(self.config, side.servers)
        if self.config.watches:
            settings = replace(settings, route_refresh_s=UNASKED_S)
        client = ZooKeeperRoutes(
            session,
            settings,
            hooks=hooks,
            rng=random.Random(seed),
            core=partial(ClientCore, source=source),
        )
        made.append(client)
        return client


class ZooKeeperRoutes(Client):
    """A client that reads routes through a ZooKeeper session.

    A watching client reads a route again when a watch fires or when a read has failed. It never polls, like
    MetaQ's clients. Without a connection, no watch can fire. So kazoo calls every watcher when the connection
    is lost. The client then reads each route again as soon as it has a new connection.
    """

    def __init__(self, session: KazooClient, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session = session
        self._watches: dict[str, Callable[[object], None]] = {}
        self._to_read: set[str] = set()

    def noticed(self, topic: str) -> Callable[[object], None]:
        """Return the function that kazoo calls when a topic's nodes change.

        A topic always has the same function. If each read set a new function, one change would call the
        functions of all earlier reads. Each of these calls would read again and set one more function.
        """
        return self._watches.setdefault(topic, partial(self._changed, topic))

    def failed(self, topic: str) -> None:
        """Read a topic's route again soon, because the failed read may have set no watch."""
        self._read_soon(topic, after_s=random.uniform(RECONNECT_S, 2 * RECONNECT_S))

    def _changed(self, topic: str, event: object) -> None:
        self._read_soon(topic, after_s=0.0)

    def _read_soon(self, topic: str, *, after_s: float) -> None:
        if not self.core.closing and topic not in self._to_read:
            self._to_read.add(topic)
            # Do not read in kazoo's own thread, because the read would wait for this thread for ever.
            threading.Thread(target=self._read_again, args=(topic, after_s), daemon=True).start()

    def _read_again(self, topic: str, after_s: float) -> None:
        if after_s:
            self._session.handler.sleep_func(after_s)
        # Remove the topic before the read, so that a change during the read causes one more read.
        self._to_read.discard(topic)
        if not self.core.closing:
            self.run(self.core.directory.refresh_quietly(topic))

    def close(self) -> None:
        super().close()
        end(self._session)


def look_up(reader: Reader, topic: str, *, target: int | None) -> Looked:
    try:
        return looked_at(reader.route(topic), target=target)
    except ResponseError as error:
        return Looked(outcome="absent", target=target, code=error.code, remark=short_remark(error.remark))
    except Unreachable as error:
        return Looked(outcome="error", target=target, remark=short_remark(str(error)))


class ZooKeeperBroker:
    """A simulated broker that ZooKeeper lists until its session expires."""

    def __init__(self, arm: ZooKeeperArm, side: Side) -> None:
        self._arm = arm
        self._side = side
        self._anew = False
        self._client: KazooClient | None = None
        self._standing: Standing

    def _start(self, listing: Listing) -> KazooClient:
        if self._client is None:
            self._client = self._arm.connected(self._side, listing.index)
            self._standing = Standing(self._client, self._expired)
        return self._client

    def _expired(self) -> None:
        self._anew = True

    def announce(self, listing: Listing) -> list[Told]:
        client = self._start(listing)
        self._anew = False
        sent_ns = time.monotonic_ns()
        outcome: Outcome = "ok"
        remark = None
        try:
            self._standing.put(
                dict(nodes_of(listing.index, listing.addr, listing.topics)), self._arm.config.timeout_s
            )
        except (KazooException, *self._arm.waits.timeouts) as error:
            outcome, remark = judge(error), short_remark(f"{type(error).__name__}: {error}")
            self._anew = True
        return [
            Told(
                target=server_of(client, self._side.servers),
                outcome=outcome,
                remark=remark,
                sent_ns=sent_ns,
                done_ns=time.monotonic_ns(),
            )
        ]

    def heartbeat(self, listing: Listing) -> list[Told]:
        """Create the broker's nodes again if its session was lost, or if the last attempt failed.

        Return the result of the new attempt, or an empty list if none is necessary. The heartbeats themselves
        are ZooKeeper's own pings.
        """
        return self.announce(listing) if self._anew else []

    def withdraw(self) -> None:
        if self._client is not None:
            self._standing.take_back(self._arm.config.timeout_s)

    def close(self) -> None:
        if self._client is not None:
            end(self._client)


class ZooKeeperClientSession:
    """Look-ups through one session. If a server fails, kazoo connects the session to another server."""

    def __init__(self, arm: ZooKeeperArm, side: Side, user: int) -> None:
        self._side = side
        self._client = arm.connected(side, user)
        self._reader = Reader(self._client, arm.config.timeout_s, arm.waits)

    def look_up(self, topic: str) -> Looked:
        looked = look_up(self._reader, topic, target=None)
        return replace(looked, target=server_of(self._client, self._side.servers))

    def close(self) -> None:
        end(self._client)


def server_of(client: KazooClient, servers: list[str]) -> int | None:
    """Return the index of the server to which a session is connected, or None if it is not connected."""
    socket = getattr(client._connection, "_socket", None)
    if socket is None:
        return None
    try:
        host, port = socket.getpeername()[:2]
    except OSError:
        return None
    addr = f"{host}:{port}"
    return servers.index(addr) if addr in servers else None
