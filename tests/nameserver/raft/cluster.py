"""Complete raft members on one event loop, with real sockets on loopback, real files and real threads."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from routekeeper.nameserver.raft.links.auth import LinkError
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import RaftConfig
from tests.ports import free_ports
from tests.waiting import until

SECRET = b"a secret of a length that will do"


class Machine:
    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.replayed = 0
        self.member: RaftMember | None = None

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
        self.applied.append((index, payload))
        self.replayed += not live

    def snapshot(self) -> Callable[[], bytes]:
        copy = list(self.applied)
        return lambda: msgspec.msgpack.encode(copy)

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        applied = msgspec.msgpack.decode(image, type=list[tuple[int, bytes]])
        return lambda: setattr(self, "applied", applied)

    def restored(self, image: bytes | bytearray) -> bytes:
        return bytes(image)


class Owner:
    """The receiver of a transport's events. It records links and messages, and refuses message ``bad``."""

    def __init__(self) -> None:
        self.linked: dict[str, int] = {}
        self.messages: list[tuple[str, bytes]] = []
        self.order: list[bytes] = []

    def link_up(self, peer: str) -> None:
        self.linked[peer] = self.linked.get(peer, 0) + 1

    def link_down(self, peer: str) -> None:
        self.linked[peer] -= 1

    def raft_message(self, peer: str, data: bytes | memoryview) -> None:
        if bytes(data) == b"bad":
            raise LinkError("bad message")
        self.messages.append((peer, bytes(data)))
        self.order.append(bytes(data))

    def application_message(self, peer: str, data: bytes) -> None:
        self.order.append(data)

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


class Cluster:
    """Raft members that share an event loop. Each member can be closed and started again."""

    def __init__(self, root: Path, size: int, **settings: Any) -> None:
        self.peers = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
        self.root = root
        self.settings = settings
        self.up: dict[str, RaftMember] = {}
        self.machines: dict[str, Machine] = {}
        self.messages: list[tuple[str, str, bytes]] = []
        self.changes = 0
        self.fatal: list[str] = []
        self.removed: list[tuple[str, str]] = []

    def config(self, me: str, **changes: Any) -> RaftConfig:
        settings: dict[str, Any] = {
            "durability": "journal",
            "secret": SECRET,
            "peers": self.peers,
            **self.settings,
            **changes,
        }
        name = me.rpartition(":")[2]
        return RaftConfig(me=me, listen=None, data_dir=self.root / name, **settings)

    async def start(self, *names: str, **changes: Any) -> None:
        for name in names or self.peers:
            machine = Machine()
            member = RaftMember(
                self.config(name, **changes),
                machine,
                on_peer_message=lambda sender, data, name=name: self.messages.append((name, sender, data)),  # type: ignore[misc]
                on_change=self._changed,
                on_fatal=self.fatal.append,
                on_removed=lambda line, name=name: self.removed.append((name, line)),  # type: ignore[misc]
            )
            await member.start()
            self.up[name], self.machines[name] = member, machine

    async def join(self, name: str) -> None:
        """Start a new member with an empty disk, and let the leader add this member."""
        shutil.rmtree(self.config(name).data_dir, ignore_errors=True)
        leader = await self.elected()
        await self.start(name, peers=tuple(sorted({*leader.members, name})))
        await leader.changes.add_member(name, deadline=in_seconds(20))
        await until(lambda: all(name in self.up[member].voters for member in leader.members))

    def _changed(self) -> None:
        self.changes += 1

    async def close(self, name: str, *, handover: bool = False) -> None:
        await self.up.pop(name).close(handover=handover)

    @property
    def leader(self) -> RaftMember | None:
        return next((member for member in self.up.values() if member.leads), None)

    async def elected(self) -> RaftMember:
        await until(lambda: self.leader is not None)
        leader = self.leader
        assert leader is not None
        return leader

    def name(self, member: RaftMember) -> str:
        return next(name for name, other in self.up.items() if other is member)

    async def put(self, *payloads: bytes) -> None:
        """Append the payloads at the leader, and wait until the leader has applied the last payload."""
        leader = await self.elected()
        indexes = [leader.append(payload, term=leader.term) for payload in payloads]
        last = indexes[-1]
        assert last is not None
        await until(lambda: leader.applied_index >= last)

    async def settled(self) -> None:
        leader = await self.elected()
        await until(lambda: all(m.applied_index == leader.commit_index for m in self.up.values()))
        states = [self.machines[name].applied for name in self.up]
        assert all(state == states[0] for state in states)

    def payloads(self) -> list[bytes]:
        name = next(iter(self.up))
        return [payload for _, payload in self.machines[name].applied]


@contextlib.asynccontextmanager
async def cluster_of(root: Path, size: int = 3, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(root, size, **settings)
    try:
        yield cluster
    finally:
        for name in list(cluster.up):
            await cluster.close(name)
    assert not cluster.fatal


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())
