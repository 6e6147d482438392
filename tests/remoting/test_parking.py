"""Tests of requests that wait for a read barrier; the server keeps them as received bytes.

The requests of a connection keep their order. A request waits for the barrier that was current when it
arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.server import Connection, RemotingServer
from tests.waiting import until

WAITS, OTHER = 105, 106
CONDITION_S = 60.0


class Gate:
    """A fake fast path, which is the server's shortcut for frames that need no handler.

    Requests of code 105 wait for the read barrier ``number``. If ``number`` is 0, they do not wait.
    The remark of an answer is the number of the barrier that let the request through.
    """

    def __init__(self) -> None:
        self.number = 0
        self.let_through = 0
        self.starts: tuple[bytes, ...] = (b'{"code":105,',)

    def whole(self, data: bytes) -> bytes | int | None:
        return self.waits(data, 0) or None

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        return position, False

    def waits_now(self) -> int:
        return self.number

    def waits(self, data: bytes, position: int) -> int:
        return self.number if data.startswith(b'{"code":105,', position + 8) else 0

    def open(self, server: RemotingServer, number: int) -> None:
        """Complete read barrier ``number``: let the requests that wait for it through."""
        later, self.number, self.let_through = self.number, 0, number
        server.unpark(number)
        self.number, self.let_through = later, 0


class Peer:
    """Client side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._answers: list[RemotingCommand] = []

    def send(self, *requests: tuple[int, int], cut: int | None = None) -> bytes:
        """Send requests of (code, opaque), or only their first ``cut`` bytes; return the unsent bytes."""
        data = b"".join(
            RemotingCommand.request(code, {"topic": "T"}).with_opaque(opaque).encode()
            for code, opaque in requests
        )
        self._writer.write(data[:cut])
        return b"" if cut is None else data[cut:]

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def answers(self, count: int) -> list[tuple[int, str | None]]:
        """Return opaque and remark of each of the next ``count`` answers."""
        async with asyncio.timeout(CONDITION_S):
            while len(self._answers) < count:
                data = await self._reader.read(65536)
                assert data, "closed"
                self._answers += map(decode_command, self._decoder.feed(data))
        found, self._answers = self._answers[:count], self._answers[count:]
        return [(answer.opaque, answer.remark) for answer in found]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[RemotingServer, Gate, Peer]]:
    gate = Gate()

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, remark=f"by {gate.let_through}")

    async with asyncio.TaskGroup() as group:
        # Use a turn (time slice) of one hour, so that no turn ends between two requests of a test. Otherwise,
        # on a slow machine, the second request could have to wait for a later barrier.
        server = RemotingServer(
            handlers={WAITS: answer, OTHER: answer}, group=group, fast_path=lambda: gate, turn_s=3600.0
        )
        host, _, port = (await server.start("127.0.0.1", 0)).rpartition(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        try:
            yield server, gate, peer
        finally:
            await peer.close()
            await server.close(drain_s=0.1)


async def parked(server: RemotingServer, numbers: set[int], size: int | None = None) -> None:
    """Wait until connections wait for exactly these read barriers.

    Args:
        size: Minimum number of bytes that wait on the first of these connections.
    """

    def there() -> bool:
        connections = [c for waiting in server.parked.values() for c in waiting]
        bytes_ = sum(c.size for c in connections[:1])
        return set(server.parked) == numbers and (size is None or bytes_ >= size)

    await until(there)


async def test_what_waits_is_answered_once_its_number_has_passed() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((WAITS, 1), (WAITS, 2))
        await parked(server, {1})
        gate.open(server, 1)
        assert await peer.answers(2) == [(1, "by 1"), (2, "by 1")]
        gate.number = 0
        peer.send((WAITS, 3))
        assert await peer.answers(1) == [(3, "by 0")]


async def test_what_does_not_wait_is_answered_at_once_unless_it_came_behind_something_that_does() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((OTHER, 1), (WAITS, 2), (OTHER, 3))
        assert await peer.answers(1) == [(1, "by 0")]
        await parked(server, {1})
        gate.open(server, 1)
        assert await peer.answers(2) == [(2, "by 1"), (3, "by 1")]


async def test_what_arrives_later_waits_for_its_own_number() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((WAITS, 1))
        await parked(server, {1})
        gate.number = 2  # as if the leader had sent barrier 1: requests that arrive now need barrier 2
        peer.send((WAITS, 2), (OTHER, 3))
        await parked(server, {1, 2})
        gate.open(server, 1)
        assert await peer.answers(1) == [(1, "by 1")]
        await parked(server, {2})
        gate.open(server, 2)
        assert await peer.answers(2) == [(2, "by 2"), (3, "by 2")]


async def test_a_request_in_two_pieces_waits_for_the_number_of_its_last_piece() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        rest = peer.send((WAITS, 1), (WAITS, 2), cut=-5)
        await parked(server, {1})
        gate.number = 2
        peer.send_bytes(rest)
        await parked(server, {1, 2})
        gate.open(server, 1)
        assert await peer.answers(1) == [(1, "by 1")]
        gate.open(server, 2)
        assert await peer.answers(1) == [(2, "by 2")]


async def test_what_wakes_to_wait_again_keeps_the_order() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((WAITS, 1))
        await parked(server, {1})
        gate.number = 2
        peer.send((WAITS, 2))
        await parked(server, {1, 2})
        gate.number = 3
        server.unpark(1)  # no barrier completed, so request 1 must now wait for barrier 3
        await parked(server, {2, 3})
        server.unpark(2)
        gate.open(server, 3)
        assert await peer.answers(2) == [(1, "by 3"), (2, "by 3")]


@pytest.mark.slow
async def test_a_peer_that_sends_and_sends_is_read_no_further_while_it_waits() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        count = 40_000
        peer.send(*((WAITS, n) for n in range(1, count + 1)))
        await parked(server, {1}, size=64 * 1024)
        await asyncio.sleep(0.05)  # long enough that a faulty server would read too many bytes
        (connection,) = server.parked[1]
        held = connection.size
        assert held < 2 * 1024 * 1024
        gate.number = 0
        server.unpark(1)
        answers = await peer.answers(count)
        assert [opaque for opaque, _ in answers] == list(range(1, count + 1))


async def test_a_peer_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((WAITS, 1))
        await parked(server, {1})
        await peer.close()
        await until(lambda: not server.connections)
        gate.open(server, 1)
        assert not server.parked


async def test_closing_answers_what_waits_within_the_drain_time() -> None:
    async with serving() as (server, gate, peer):
        gate.number = 1
        peer.send((WAITS, 1))
        await parked(server, {1})
        closing = asyncio.create_task(server.close(drain_s=5.0))
        await asyncio.sleep(0)
        gate.open(server, 1)
        assert await peer.answers(1) == [(1, "by 1")]
        await closing


async def test_query_waits_also_after_a_request_of_another_kind_and_before_one() -> None:
    async with serving() as (server, gate, peer):
        for number in (1, 2):
            gate.number = number
            peer.send((OTHER, 1))
            assert await peer.answers(1) == [(1, "by 0")]
            peer.send((WAITS, 2), (OTHER, 3))
            await parked(server, {number})
            gate.open(server, number)
            assert await peer.answers(2) == [(2, f"by {number}"), (3, f"by {number}")]
