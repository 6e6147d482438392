"""Request 223 makes the broker ask all members of a group.

In each iteration of its event loop, the broker asks a bounded number of members.

The number of members that are asked at the same time is bounded, too.

While the broker waits for some members, the answers of other members take only the memory of their bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server import process
from routekeeper.broker.server.process import BrokerServer
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, MessageQueue
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.inspection import ConsumerStatus
from routekeeper.remoting.lenient import ANSWER, loads
from routekeeper.remoting.transport.server import Connection
from tests.broker.conftest import StartBroker, Wire
from tests.broker.requests.test_forwarding import asked, reply
from tests.faults.servers import memory
from tests.waiting import WITHIN_S, until

STATUS = {"topic": "T", "group": "G"}
BODY = ConsumerStatus(offsets={MessageQueue(topic="T", broker_name="b", queue_id=0): 7}).encode()


class Member:
    """A connection of a client on the test's event loop.

    Attributes:
        asked: Requests with code 221 that the broker has sent and the client has not answered.
        answers: True to answer each request with code 221 at once.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked: list[RemotingCommand] = []
        self.answers = False
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._task = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def connect(cls, addr: str) -> Self:
        host, _, port = addr.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @classmethod
    async def join(cls, addr: str, client_id: str) -> Self:
        """Connect a client that is a member of the group."""
        member = await cls.connect(addr)
        data = HeartbeatData(client_id=client_id, consumers=(ConsumerData(group_name="G"),))
        assert (await member.call(34, body=data.encode())).code == 0
        return member

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        opaque = len(self._waiting)
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = answer
        self._writer.write(RemotingCommand.request(code, ext, body).with_opaque(opaque).encode())
        async with asyncio.timeout(WITHIN_S):
            return await answer

    def answer(self) -> None:
        """Answer the broker's requests."""
        for request in self.asked:
            self._writer.write(request.reply(body=BODY).encode())
        self.asked.clear()

    async def close(self) -> None:
        self._writer.close()
        await self._task

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            for command in map(decode_command, decoder.feed(data)):
                if command.is_response:
                    self._waiting[command.opaque].set_result(command)
                elif command.code == 221:
                    self.asked.append(command)
                    if self.answers:
                        self.answer()


async def with_members(
    directory: Path, count: int, act: Callable[[Member, list[Member]], Awaitable[None]]
) -> None:
    """Run a broker, an operator's connection and a number of members on one event loop."""
    stop = asyncio.Event()
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        server = BrokerServer(BrokerConfig(listen_port=0), directory)
        group.create_task(server.run(stop, bound.set_result))
        addr = await bound
        operator = await Member.connect(addr)
        members = [await Member.join(addr, f"c{number}") for number in range(count)]
        try:
            await act(operator, members)
        finally:
            for each in (operator, *members):
                await each.close()
            stop.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which each request of the broker to a client adds its time limit in s."""
    invoke = Connection.invoke
    found: list[float] = []

    async def noting_invoke(
        connection: Connection, request: RemotingCommand, *, timeout_s: float
    ) -> RemotingCommand:
        found.append(timeout_s)
        return await invoke(connection, request, timeout_s=timeout_s)

    monkeypatch.setattr(Connection, "invoke", noting_invoke)
    return found


def clients_in(answer: RemotingCommand) -> list[str]:
    """Return the ids of the clients in the answer to request 223."""
    assert answer.code == 0, answer.remark
    body: Any = loads(answer.body, ANSWER)
    return list(body["consumerTable"])


@pytest.mark.slow
def test_large_group_is_asked_in_rounds_and_silent_members_do_not_keep_others_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(process, "ASKED_MAX", 3)
    monkeypatch.setattr(process, "CLIENT_WAIT_S", 12.0)

    async def act(operator: Member, members: list[Member]) -> None:
        answer = asyncio.ensure_future(operator.call(223, STATUS))
        await until(lambda: sum(len(member.asked) for member in members) >= 3)
        for member in members:  # a request that the broker has already sent arrives before this answer
            await member.call(38, {"consumerGroup": "G"})
        assert [len(member.asked) for member in members] == [1, 1, 1, 0, 0, 0, 0, 0]
        refused = await operator.call(223, STATUS)
        assert (refused.code, "3 clients are asked" in (refused.remark or "")) == (2, True)
        for member in members[3:]:
            member.answers = True
        for member in members[:2]:
            member.answer()
        assert clients_in(await answer) == [f"c{number}" for number in range(8) if number != 2]

    asyncio.run(with_members(tmp_path, 8, act))
    assert waits == [12.0 / 3] * 8, "the three rounds end within the time of one"


def test_many_members_are_asked_in_several_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(process, "ASKED_AT_ONCE", 2, raising=False)
    turns = [0]

    async def act(operator: Member, members: list[Member]) -> None:
        for member in members:
            member.answers = True
        answer = asyncio.ensure_future(operator.call(223, STATUS))
        while not answer.done():
            turns.append(len(waits))
            await asyncio.sleep(0)
        assert clients_in(answer.result()) == [f"c{number}" for number in range(len(members))]

    asyncio.run(with_members(tmp_path, 12, act))
    assert len(waits) == 12
    assert max(after - before for before, after in pairwise(turns)) <= 2


def test_answers_to_all_requests_together_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GATHERED_ALL_BYTES", len(BODY) + 1, raising=False)

    async def act(operator: Member, members: list[Member]) -> None:
        first = asyncio.ensure_future(operator.call(223, STATUS))
        await until(lambda: all(member.asked for member in members))
        members[0].answer()
        await members[0].call(38, {"consumerGroup": "G"})  # now the broker has read the answer
        members[0].answers = True
        refused = await operator.call(223, STATUS | {"clientAddr": "c0"})
        assert (refused.code, f"have {len(BODY)} bytes" in (refused.remark or "")) == (2, True)
        await members[1].close()
        assert clients_in(await first) == ["c0"]
        assert clients_in(await operator.call(223, STATUS | {"clientAddr": "c0"})) == ["c0"]

    asyncio.run(with_members(tmp_path, 2, act))


@pytest.mark.faults
@pytest.mark.slow
def test_headers_of_answers_are_not_kept_while_other_members_are_silent(start_broker: StartBroker) -> None:
    broker = start_broker()

    def joined(client_id: str) -> Wire:
        wire = broker.wire()
        data = HeartbeatData(client_id=client_id, consumers=(ConsumerData(group_name="G"),))
        assert wire.call(34, body=data.encode()).code == 0
        return wire

    silent, members = joined("silent"), [joined(f"c{number}") for number in range(100)]
    operator = broker.wire()
    opaque = operator.send(RemotingCommand.request(223, STATUS))
    first = asked(silent, 221)
    before = memory(broker.process.pid)
    for member in members:
        reply(member, asked(member, 221).reply(1, remark="x" * 1_000_000))
        # The reply to request 38 shows that the broker has read the member's answer to request 221.
        assert member.call(38, {"consumerGroup": "G"}).code == 0
    assert memory(broker.process.pid) - before < 40 << 20  # the broker keeps none of the 100 MB of headers
    reply(silent, first.reply(body=BODY))
    answer = operator.answer(opaque)
    assert (answer.code, b'"silent":' in answer.body) == (0, True)
