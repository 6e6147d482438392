"""A group of nameservers in raft mode in one process, with the real raft engine and real disks."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.modes.waiters import resolve
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.types import (
    Answer,
    BrokerAddr,
    BrokerKey,
    ClusterName,
    ConnectionId,
    MinBrokerChange,
    Request,
)
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.route import DataVersion
from tests.ports import free_addresses
from tests.registrations import body_of, fields_of
from tests.waiting import until

ADDR = "10.0.0.1:10911"
BROKER = BrokerKey(ClusterName("C"), BrokerAddr(ADDR))
ONE, TWO = ConnectionId(1), ConnectionId(2)
CONDITION_S = 30.0


def register(
    *,
    addr: str = ADDR,
    broker_id: int = 0,
    counter: int = 1,
    topics: tuple[str, ...] = ("T", "U"),
    queues: int = 16,
    **extra: str,
) -> Request:
    body = body_of(topics, counter=counter, queues=queues)
    fields = fields_of(body, "broker-a", addr, broker_id=broker_id, **extra)
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)


def _identity(addr: str, broker_id: int = 0) -> dict[str, str]:
    return {"brokerName": "broker-a", "brokerAddr": addr, "clusterName": "C", "brokerId": str(broker_id)}


def unregister(addr: str = ADDR) -> Request:
    return Request(code=RequestCode.UNREGISTER_BROKER, ext_fields=_identity(addr))


def query_version(*, counter: int) -> Request:
    body = DataVersion(counter=counter).encode()
    return Request(code=RequestCode.QUERY_DATA_VERSION, ext_fields=_identity(ADDR), body=body)


def route(topic: str = "T") -> Request:
    return Request(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})


def put_kv(key: str, value: str) -> Request:
    return Request(code=RequestCode.PUT_KV_CONFIG, ext_fields={"namespace": "n", "key": key, "value": value})


@dataclass
class RecordedEffects:
    """A record of the actions that a member requests from its server. Nobody carries out these actions."""

    closed: list[ConnectionId] = field(default_factory=list)
    notices: list[MinBrokerChange] = field(default_factory=list)

    def close_connection(self, origin: ConnectionId) -> None:
        self.closed.append(origin)

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        self.notices.append(change)


@dataclass
class Group:
    """A raft group. The list of its members has None for each stopped member."""

    root: Path
    addresses: tuple[str, ...]
    settings: dict[str, str]
    members: list[Replicated | None]
    effects: list[RecordedEffects]

    async def start(self, number: int) -> Replicated:
        flags = {
            "mode": "raft",
            "raftAddress": self.addresses[number],
            "raftPeers": ",".join(self.addresses),
            "dataDir": str(self.root / str(number)),
        }
        settings = load_settings(flags=flags | self.settings, file={}).settings
        self.effects[number] = RecordedEffects()
        member = Replicated(LiveSettings(settings), self.effects[number], boot_id=secrets.randbits(48))
        await member.start()
        self.members[number] = member
        return member

    async def stop(self, number: int) -> None:
        member = self.members[number]
        assert member is not None
        self.members[number] = None
        await member.close()

    @property
    def running(self) -> list[Replicated]:
        return [member for member in self.members if member is not None]

    def leader(self) -> int:
        (number,) = (n for n, m in enumerate(self.members) if m is not None and m.member.leads)
        return number

    def followers(self) -> list[int]:
        leader = self.leader()
        return [n for n, m in enumerate(self.members) if m is not None and n != leader]

    def at(self, number: int) -> Replicated:
        member = self.members[number]
        assert member is not None
        return member

    async def ready(self) -> None:
        def all_ready() -> bool:
            if not any(member.member.leader for member in self.running):
                self._let_one_stand()
            return all(member.status().reads_ready for member in self.running)

        await until(all_ready, "all are ready")

    def _let_one_stand(self) -> None:
        """Start the first election at once.

        Otherwise, tests would wait for the election timeout. This timeout is long, so that the leader does
        not change during a test.
        """
        member = self.running[0].member
        member.engine.shared.stand_now()
        member.wake()

    async def equal(self) -> None:
        await until(
            lambda: len({(s.applied_index, s.state_digest) for s in (m.status() for m in self.running)}) == 1,
            "all applied the same",
        )

    async def empty(self) -> None:
        """Wait until no member lists a topic."""
        await until(lambda: not any(m.view(Freshness.STALE).topics() for m in self.running), "all is gone")

    async def everywhere(self, request: Request, origin: ConnectionId = ONE) -> list[Answer]:
        return list(await asyncio.gather(*(ask(member, request, origin) for member in self.running)))


@contextlib.asynccontextmanager
async def timed() -> AsyncIterator[Callable[[], float]]:
    """Yield a clock in seconds.

    The clock does not count the time for which a busy machine delays this event loop.
    """
    loop = asyncio.get_running_loop()
    begun, lost = loop.time(), 0.0

    async def watch() -> None:
        nonlocal lost
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            late = loop.time() - due
            lost += late if late > 0.05 else 0.0

    task = asyncio.create_task(watch())
    try:
        yield lambda: loop.time() - begun - lost
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def ask(
    member: Replicated, request: Request, origin: ConnectionId = ONE, *, within: float = 2.5
) -> Answer:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    if request.code != RequestCode.REGISTER_BROKER:
        return await member.execute(request, origin, deadline=deadline)
    waiter: asyncio.Future[Answer] = loop.create_future()
    answered = partial(resolve, waiter)
    answer = member.register(request, origin, deadline=deadline, answered=answered)
    return await waiter if answer is None else answer


def codes(answers: list[Answer]) -> list[int]:
    return [answer.code for answer in answers]


@contextlib.asynccontextmanager
async def group_of(
    root: Path, *, size: int = 3, started: int | None = None, **settings: str
) -> AsyncIterator[Group]:
    """Yield a group that is ready to serve.

    If ``started`` is given, start only this number of members, and do not wait until the group is ready.

    Args:
        settings: Settings by their names in the settings file.
    """
    # The election timeout is long, so that the leader does not change even if a busy machine delays the event
    # loop.
    settings = {"raftElectionTimeoutMs": "2000"} | settings
    group = Group(
        root, tuple(free_addresses(size)), settings, [None] * size, [RecordedEffects() for _ in range(size)]
    )
    try:
        for number in range(size if started is None else started):
            await group.start(number)
        if started is None:
            await group.ready()
        yield group
    finally:
        for number, member in enumerate(group.members):
            if member is not None:
                await group.stop(number)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())
