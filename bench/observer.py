"""Reads the routes of all servers again and again: ``python -m routekeeper.bench.observer``.

Faults do not cut the links of this observer. The observer is a process of its own, so that its queries do not
wait for the queries of the load. SIGUSR1 stops its queries, SIGUSR2 starts them again, SIGTERM ends the
process.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmKind, looked_at
from routekeeper.bench.arms.layout import child_index, topic_path
from routekeeper.bench.arms.servers import four_letters
from routekeeper.bench.events import ViewState
from routekeeper.bench.generator_config import is_versioned
from routekeeper.bench.recorder import FLUSH_INTERVAL_NS, EventLog
from routekeeper.bench.views import Views
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.output import set_up_logging
from routekeeper.remoting.route import decode_route

#: Time in s after which a server that has not answered a query counts as silent.
SILENT_S: Final = 0.25
_CHUNK: Final = 64 * 1024


class ObserverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The servers to read, and the folder for events."""

    kind: ArmKind
    servers: list[str]
    topics: list[str]
    """Topics to read. A topic named ``sim-N-...`` belongs to broker N only, and its route has a version."""
    folder: str
    """Folder into which the observer writes its events."""
    session_ms: int = 0
    period_s: float = 0.02
    """Pause in s between two readings of all topics at a server.

    The observer notices a change at most one pause late.
    """


Shown = tuple[ViewState, list[int] | None, int | None]


class NameserverReader:
    """One connection for route queries. After a lost connection, the next query opens a new connection."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self._addr = (host, int(port))
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0

    async def read(self, topic: str) -> Shown:
        """Return the route that the nameserver shows for a topic: state, brokers, version."""
        try:
            async with asyncio.timeout(SILENT_S):
                return await self._ask(topic)
        except (OSError, RemotingError, TimeoutError):
            self.close()
            return "silent", None, None

    async def _ask(self, topic: str) -> Shown:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._addr)
            self._decoder = FrameDecoder()
        reader, writer = self._streams
        self._opaque += 1
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        writer.write(request.with_opaque(self._opaque).encode())
        while True:
            data = await reader.read(_CHUNK)
            if not data:
                raise ConnectionResetError("closed by the nameserver")
            for frame in self._decoder.feed(data):
                answer = decode_command(frame)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    return "absent", None, None
                if answer.code != ResponseCode.SUCCESS:
                    return "refused", None, None
                found = looked_at(decode_route(answer.body), target=None)
                return "routed", found.brokers, found.version if is_versioned(topic) else None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def note(log: EventLog, views: Views, topic: str, shown: Shown, sent_ns: int) -> None:
    """Record the route that a query has shown, unless the previous query showed the same route."""
    state, brokers, version = shown
    now_ns = time.monotonic_ns()
    row = views.reading(topic, state, brokers=brokers, version=version, sent_ns=sent_ns, seen_ns=now_ns)
    if row is not None:
        log.record(row)


async def watch_nameserver(index: int, config: ObserverConfig, log: EventLog, views: Views) -> None:
    reader = NameserverReader(config.servers[index])
    try:
        while True:
            for topic in config.topics:
                sent_ns = time.monotonic_ns()
                note(log, views, topic, await reader.read(topic), sent_ns)
            await asyncio.sleep(config.period_s)
    finally:
        reader.close()


class ZooKeeperReader:
    """A session with one ZooKeeper server, which reads the nodes that list a topic's brokers."""

    def __init__(self, addr: str, session_s: float, reconnect_s: float) -> None:
        # Imported here, because only the design ZooKeeper needs kazoo.
        from routekeeper.bench.arms.zookeeper import connect

        self._addr = addr
        self._client = connect([addr], session_s=session_s, reconnect_s=reconnect_s)
        self._client.start_async()

    def read(self, topic: str) -> Shown:
        from kazoo.exceptions import KazooException, NoNodeError

        try:
            if not self._client.connected:
                raise KazooException("no session")
            if not is_versioned(topic):
                children = self._client.get_children_async(topic_path(topic)).get(timeout=SILENT_S)
                found = sorted(index for name in children if (index := child_index(name)) is not None)
                return ("routed", found, None) if found else ("absent", None, None)
            broker = int(topic.split("-")[1])
            data, _ = self._client.get_async(f"{topic_path(topic)}/{broker}-m").get(timeout=SILENT_S)
            return "routed", [broker], int(data)
        except NoNodeError:
            return "absent", None, None
        except (KazooException, self._client.handler.timeout_exception):
            said = four_letters(self._addr, b"srvr")
            return ("refused" if "not currently serving" in said else "silent"), None, None

    def close(self) -> None:
        self._client.stop()
        self._client.close()


def watch_zookeeper(
    index: int,
    config: ObserverConfig,
    log: EventLog,
    views: Views,
    stopped: threading.Event,
) -> None:
    reader = ZooKeeperReader(config.servers[index], config.session_ms / 1000, config.period_s)
    try:
        while not stopped.wait(config.period_s):
            for topic in config.topics:
                sent_ns = time.monotonic_ns()
                note(log, views, topic, reader.read(topic), sent_ns)
    finally:
        reader.close()


class Observer:
    """The tasks or threads that read the routes of all servers. They start and stop together."""

    def __init__(self, config: ObserverConfig, log: EventLog) -> None:
        self._config = config
        self._log = log
        self._ending = threading.Event()
        self._views: list[Views] = []
        self._readers: list[asyncio.Task[None]] = []

    def read(self) -> None:
        """Start reading routes over new connections."""
        if self._readers:
            return
        self._ending = threading.Event()
        self._views = [Views(index) for index in range(len(self._config.servers))]
        loop = asyncio.get_running_loop()
        self._readers = [loop.create_task(self._watch(index)) for index in range(len(self._views))]

    async def _watch(self, index: int) -> None:
        config, log, views = self._config, self._log, self._views[index]
        if config.kind == "zookeeper":
            await asyncio.to_thread(watch_zookeeper, index, config, log, views, self._ending)
        else:
            await watch_nameserver(index, config, log, views)

    async def rest(self) -> None:
        """Stop reading, close the connections, and record the end of each topic's observation."""
        self._ending.set()
        if self._config.kind != "zookeeper":
            for task in self._readers:
                task.cancel()
        for done in await asyncio.gather(*self._readers, return_exceptions=True):
            if isinstance(done, Exception):
                raise done
        for views in self._views:
            for row in views.end():
                self._log.record(row)
        self._readers, self._views = [], []


async def observe(config: ObserverConfig) -> None:
    """Read routes until SIGTERM. Print a line whenever reading has started or stopped."""
    wanted: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, wanted.put_nowait, number)
    with EventLog(Path(config.folder), "observer") as log:
        observer = Observer(config, log)
        observer.read()
        print("observer ready", flush=True)
        while True:
            log.flush()
            try:
                number = await asyncio.wait_for(wanted.get(), FLUSH_INTERVAL_NS / 1e9)
            except TimeoutError:
                continue
            if number == signal.SIGUSR2:
                observer.read()
                print("observer reads", flush=True)
                continue
            await observer.rest()
            if number != signal.SIGUSR1:
                return
            print("observer rests", flush=True)


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ObserverConfig)
    set_up_logging(level="ERROR")
    asyncio.run(observe(config))


if __name__ == "__main__":
    main()
