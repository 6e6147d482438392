"""Reads what each server lists, all the time, over links that no fault cuts: ``python -m
routekeeper.bench.observer``.

A process of its own, so that its reads are not queued behind the load's. Ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmKind, looked_at
from routekeeper.bench.arms.layout import child_index, topic_path
from routekeeper.bench.arms.servers import four_letters
from routekeeper.bench.events import EventLog, View, ViewState
from routekeeper.bench.generator_config import is_versioned
from routekeeper.bench.recorder import FLUSH_INTERVAL_NS
from routekeeper.bench.views import Views
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.output import set_up_logging
from routekeeper.remoting.route import decode_route

#: A server that has not answered for so long is silent, s.
SILENT_S: Final = 0.25
_CHUNK: Final = 64 * 1024


class ObserverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Servers to be read, and the file for the events."""

    kind: ArmKind
    servers: list[str]
    topics: list[str]
    """Those named ``sim-N-...`` are one broker's and have a version."""
    folder: str
    """Where events go."""
    session_ms: int = 0
    period_s: float = 0.02
    """Pause between two rounds of readings: what limits the resolution of views."""


Shown = tuple[ViewState, list[int] | None, int | None]


class NameserverReader:
    """One connection for route queries, made again when it breaks."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self._addr = (host, int(port))
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0

    async def read(self, topic: str) -> Shown:
        """Return what the nameserver shows of a topic."""
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


def seen(views: Views, topic: str, shown: Shown, sent_ns: int) -> View | None:
    """Take a reading that has just been read; return the row to record, if any."""
    state, brokers, version = shown
    seen_ns = time.monotonic_ns()
    return views.reading(topic, state, brokers=brokers, version=version, sent_ns=sent_ns, seen_ns=seen_ns)


async def watch_nameserver(index: int, config: ObserverConfig, log: EventLog, views: Views) -> None:
    reader = NameserverReader(config.servers[index])
    try:
        while True:
            for topic in config.topics:
                sent_ns = time.monotonic_ns()
                row = seen(views, topic, await reader.read(topic), sent_ns)
                if row is not None:
                    log.record(row)
            await asyncio.sleep(config.period_s)
    finally:
        reader.close()


class ZooKeeperReader:
    """One session with one server; reads what a client needs to tell who is listed."""

    def __init__(self, addr: str, session_s: float, reconnect_s: float) -> None:
        from routekeeper.bench.arms.zookeeper import connect  # kazoo is loaded for this arm only

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
    writing: threading.Lock,
    stopped: threading.Event,
) -> None:
    reader = ZooKeeperReader(config.servers[index], config.session_ms / 1000, config.period_s)
    try:
        while not stopped.wait(config.period_s):
            for topic in config.topics:
                sent_ns = time.monotonic_ns()
                row = seen(views, topic, reader.read(topic), sent_ns)
                if row is not None:
                    with writing:
                        log.record(row)
    finally:
        reader.close()


async def observe(config: ObserverConfig) -> None:
    """Read until SIGTERM."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    every = [Views("nameserver", index) for index in range(len(config.servers))]
    writing, ending = threading.Lock(), threading.Event()
    with EventLog(Path(config.folder), "observer") as log:
        async with asyncio.TaskGroup() as group:
            watching = []
            for index, views in enumerate(every):
                if config.kind == "zookeeper":
                    work = asyncio.to_thread(watch_zookeeper, index, config, log, views, writing, ending)
                else:
                    work = watch_nameserver(index, config, log, views)
                watching.append(group.create_task(work))
            print("observer ready", flush=True)
            while not stopped.is_set():
                with writing:
                    log.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), FLUSH_INTERVAL_NS / 1e9)
            ending.set()
            if config.kind != "zookeeper":
                for task in watching:
                    task.cancel()
        for views in every:
            for row in views.end():
                log.record(row)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m routekeeper.bench.observer", description=__doc__)
    parser.add_argument("config", type=Path, help="JSON file written by mqbench")
    config = msgspec.json.decode(parser.parse_args().config.read_bytes(), type=ObserverConfig)
    set_up_logging(level="ERROR")
    asyncio.run(observe(config))


if __name__ == "__main__":
    main()
