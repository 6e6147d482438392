"""Watches changes become visible: polls each nameserver from the moment a change begins until it shows.

A process of its own, so that its reads are not queued behind the generator's. The generator announces each
change by one datagram just before it begins to send it; the topic's read queue count is the change's version,
which only grows, so a later version shows an earlier change too.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.samples import FLUSH_INTERVAL_NS, EventLog, Visibility
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, decode_command
from remoting.errors import RemotingError
from remoting.frame import FrameDecoder
from remoting.route import decode_route

#: Polling is back to back for this long, then slower: a change that takes longer needs less resolution.
TIGHT_NS: Final = 20_000_000
PAUSE_S: Final = 0.002
LONG_NS: Final = 1_000_000_000
LONG_PAUSE_S: Final = 0.02
RECONNECT_S: Final = 0.02
READ_TIMEOUT_S: Final = 3.0


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator tells: this change is about to be sent."""

    change: int
    topic: str
    version: int


def announce(sender: socket.socket, port: int, announcement: Announcement) -> None:
    """Tell the prober; loopback datagrams between two live processes do not get lost."""
    sender.sendto(msgspec.json.encode(announcement), ("127.0.0.1", port))


class NameserverConnection:
    """One connection for route queries, re-made when it breaks."""

    def __init__(self, addr: str) -> None:
        self._host, port = addr.rsplit(":", 1)
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0

    async def version_of(self, topic: str) -> int | None:
        """Return the read queue count that the nameserver shows; None for no route or a refusal.

        Raises:
            OSError, RemotingError, TimeoutError: If there is no answer; the connection is closed.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(self._host, self._port)
                    self._decoder = FrameDecoder()
                reader, writer = self._streams
                self._opaque += 1
                request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                writer.write(request.with_opaque(self._opaque).encode())
                while True:
                    data = await reader.read(65536)
                    if not data:
                        raise ConnectionResetError("closed by the nameserver")
                    for frame in self._decoder.feed(data):
                        answer = decode_command(frame)
                        if answer.code != ResponseCode.SUCCESS:
                            return None
                        route = decode_route(answer.body)
                        return max((queue.read_queue_nums for queue in route.queue_datas), default=None)
        except (OSError, RemotingError, TimeoutError):
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass(slots=True)
class Watch:
    """One change that a nameserver has not shown yet."""

    announcement: Announcement
    begun_ns: int
    unseen_ns: int | None = None


class NameserverWatch:
    """Polls one nameserver for all changes it has not shown yet."""

    def __init__(self, index: int, addr: str, log: EventLog) -> None:
        self._index = index
        self._connection = NameserverConnection(addr)
        self._log = log
        self._waiting: dict[int, Watch] = {}
        self._wake = asyncio.Event()

    def add(self, announcement: Announcement, now_ns: int) -> None:
        self._waiting[announcement.change] = Watch(announcement, now_ns)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()
            youngest = max(watch.begun_ns for watch in self._waiting.values())
            for topic in {watch.announcement.topic for watch in self._waiting.values()}:
                if not await self._poll(topic):
                    await asyncio.sleep(RECONNECT_S)
            waited_ns = time.monotonic_ns() - youngest
            if self._waiting and waited_ns > TIGHT_NS:
                pause = PAUSE_S if waited_ns < LONG_NS else LONG_PAUSE_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)

    async def _poll(self, topic: str) -> bool:
        sent_ns = time.monotonic_ns()
        waiting = [watch for watch in self._waiting.values() if watch.announcement.topic == topic]
        try:
            version = await self._connection.version_of(topic)
        except (OSError, RemotingError, TimeoutError):
            return False
        seen_ns = time.monotonic_ns()
        for watch in waiting:
            if version is None or version < watch.announcement.version:
                watch.unseen_ns = sent_ns
                continue
            change = watch.announcement.change
            del self._waiting[change]
            self._log.record(
                Visibility(change=change, nameserver=self._index, seen_ns=seen_ns, unseen_ns=watch.unseen_ns)
            )
        return True

    def give_up(self, now_ns: int) -> None:
        """Record what was never seen, and disconnect."""
        for change, watch in self._waiting.items():
            self._log.record(
                Visibility(
                    change=change, nameserver=self._index, unseen_ns=watch.unseen_ns, gave_up_ns=now_ns
                )
            )
        self._connection.close()


class Announcements(asyncio.DatagramProtocol):
    """Receives what the generator announces."""

    def __init__(self, watches: list[NameserverWatch]) -> None:
        self._watches = watches

    def datagram_received(self, data: bytes, addr: object) -> None:
        announcement = msgspec.json.decode(data, type=Announcement)
        now_ns = time.monotonic_ns()
        for watch in self._watches:
            watch.add(announcement, now_ns)


async def probe(folder: Path, nameservers: list[str]) -> None:
    """Watch until SIGTERM; prints one ready line that names the port for announcements."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with EventLog(folder, "prober") as log:
        watches = [NameserverWatch(index, addr, log) for index, addr in enumerate(nameservers)]
        transport, _ = await loop.create_datagram_endpoint(
            lambda: Announcements(watches), local_addr=("127.0.0.1", 0)
        )
        print(f"prober ready port={transport.get_extra_info('sockname')[1]}", flush=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(watch.run()) for watch in watches]
            while not stopped.is_set():
                log.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), FLUSH_INTERVAL_NS / 1e9)
            for task in tasks:
                task.cancel()
        transport.close()
        for watch in watches:
            watch.give_up(time.monotonic_ns())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.prober", description=__doc__)
    parser.add_argument("folder", type=Path, help="run folder, existing")
    parser.add_argument("nameservers", type=json.loads, help='JSON list of "host:port"')
    arguments = parser.parse_args()
    asyncio.run(probe(arguments.folder, arguments.nameservers))


if __name__ == "__main__":
    main()
