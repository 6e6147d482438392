"""A proxy that can cut every link between members (:mod:`routekeeper.bench.proxy`).

A cut may be limited to one direction. Members connect to the address in ``--peers``. The proxy listens at
that address and passes bytes on to the member's ``--raft-listen``. The first frame names the connecting
member, so the proxy knows each link by its pair of members and its direction.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from routekeeper.bench.links import Direction, Link, both_ways
from routekeeper.bench.proxy import Passage, Proxy
from tests.ports import free_addresses

from .cluster import Cluster, make_members, running


@dataclass
class Recording:
    """The bytes of one link, in the order in which they passed.

    Each part is a pair of a flag and bytes. The flag is True if the bytes came from the dialler, which is the
    member that opened the connection. It is False if the bytes came from the acceptor.
    """

    dialler: str
    acceptor: str
    parts: list[tuple[bool, bytes]] = field(default_factory=list)

    def sent_by(self, *, dialler: bool) -> bytes:
        return b"".join(data for from_dialler, data in self.parts if from_dialler == dialler)


class Network:
    """The links between members. They go through a proxy, which runs in its own thread.

    Args:
        members: Two addresses of each member. The key is the address for the other members, and the value is
            the address that the member binds.
        record: True to record all bytes.

    Attributes:
        recordings: Bytes of each link, if ``record`` is set.
    """

    def __init__(self, members: dict[str, str], *, record: bool = False) -> None:
        self.recordings: list[Recording] = []
        self.listens = members
        self._record = record
        self._of: dict[Passage, Recording] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        names = {name: name for name in self.listens}
        links = [
            Link(acceptor=name, listen=name, to=address, names=names)
            for name, address in self.listens.items()
        ]
        self._proxy = Proxy(links, witness=self._passed if self._record else None)
        self._thread.start()
        self._call(self._proxy.start)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._call(self._proxy.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Callable[[], object]) -> float:
        """Run a function in the proxy's thread, and return the instant at which it ended (s, monotonic)."""

        async def run() -> float:
            result = work()
            if asyncio.iscoroutine(result):
                await result
            return time.monotonic()

        done: Future[float] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        return done.result(30.0)

    def _passed(self, passage: Passage, from_dialler: bool, data: bytes) -> None:
        if passage not in self._of:
            self._of[passage] = Recording(passage.dialler, passage.acceptor)
            self.recordings.append(self._of[passage])
        self._of[passage].parts.append((from_dialler, data))

    def cut(self, directions: Collection[Direction]) -> float:
        """Cut each direction (sender, receiver), and return the instant of the cut (s, monotonic)."""
        return self._call(lambda: self._proxy.cut(directions))

    def cut_between(self, some: Collection[str], others: Collection[str]) -> float:
        """Cut both directions of the links between two groups of members, and return when they were cut."""
        return self.cut(both_ways(some, others))

    def heal(self, *, reset: bool) -> float:
        """End all cuts, and return the instant (s, monotonic).

        The proxy then passes on the bytes that waited at the cuts. With ``reset``, it discards these bytes.
        """
        return self._call(lambda: self._proxy.heal(reset=reset))

    def inject(self, data: bytes) -> int:
        """Send bytes over each link to the member that accepted the connection, as an attacker could.

        Return the number of links.
        """
        onward = [passage.onward for passage in self._proxy.passages if passage.onward is not None]

        def write() -> None:
            for writer in onward:
                writer.write(data)

        self._call(write)
        return len(onward)


@contextmanager
def running_behind_proxy(
    root: Path, *, size: int = 3, arguments: tuple[str, ...] = (), record: bool = False
) -> Iterator[tuple[Cluster, Network]]:
    """Start members whose links all go through a proxy, and kill the members at the end."""
    members = make_members(root, size=size, arguments=arguments)
    names = {m.raft: address for m, address in zip(members, free_addresses(size), strict=True)}
    for member in members:
        member.arguments += ("--raft-listen", names[member.raft])
    with Network(names, record=record) as network, running(members) as cluster:
        yield cluster, network
