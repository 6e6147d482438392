"""Tests, over real sockets, of limits on memory, log lines and waiting times that peers can cause."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.server import (
    Connection,
    DeferredReply,
    RemotingServer,
    ServerLimits,
)
from routekeeper.remoting.transport.turns import TURN_S
from tests.remoting.servers import echo, serving
from tests.waiting import until

MIB = 1024 * 1024
CONDITION_S = 30.0


def frame(code: int, opaque: int, body: bytes = b"") -> bytes:
    return RemotingCommand.request(code, body=body).with_opaque(opaque).encode()


def slow(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    time.sleep(TURN_S / 2)
    return command.reply(body=command.body)


def large(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=bytes(200_000))


class Peer:
    """Client side of one connection; it reads only when a test waits for answers or for the close."""

    def __init__(self, addr: str, *, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.socket.bind((host, 0))
        self.socket.connect(split_address(addr))
        self.socket.setblocking(False)
        self.found: list[RemotingCommand] = []
        self._decoder = FrameDecoder()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def answers(self, count: int) -> list[RemotingCommand]:
        async with asyncio.timeout(CONDITION_S):
            while len(self.found) < count:
                await self._read()
        found, self.found = self.found[:count], self.found[count:]
        return found

    async def closed(self) -> bool:
        """Read until the peer closes the connection; return True."""
        async with asyncio.timeout(CONDITION_S):
            try:
                while True:
                    await self._read()
            except (AssertionError, ConnectionError):
                return True

    async def _read(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20)
        assert data, "closed"
        self.found += map(decode_command, self._decoder.feed(data))


# Unanswered requests -----------------------------------------------------------------------------


class Answering:
    """A handler whose answers are sent when the test calls :meth:`answer`.

    Args:
        tasks: True to return a future, which the server awaits in a task. False to return a
            :class:`DeferredReply`.
    """

    def __init__(self, *, tasks: bool) -> None:
        self._tasks = tasks
        self._replies: deque[Callable[[RemotingCommand], None]] = deque()
        self.came: list[int] = []

    def __call__(
        self, connection: Connection, command: RemotingCommand
    ) -> DeferredReply | Awaitable[RemotingCommand]:
        self.came.append(command.opaque)
        if self._tasks:
            future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
            self._replies.append(future.set_result)
            return future
        later = DeferredReply(connection, command)
        self._replies.append(later.send)
        return later

    @property
    def unanswered(self) -> int:
        return len(self._replies)

    def answer(self, count: int) -> None:
        for opaque in self.came[-self.unanswered :][:count]:
            self._replies.popleft()(RemotingCommand(code=0, opaque=opaque, flag=1, ext_fields={}))


SHAPES = {
    "bodies": {"body": bytes(10_000)},
    "large bodies": {"body": bytes(100_000)},
    "arguments": {"ext_fields": {"a": "x" * 20_000, "b": "\N{SNOWMAN}" * 10_000}},
    "nothing": {},
}


@pytest.mark.parametrize(
    ("shape", "tasks"),
    [("bodies", False), ("large bodies", True), ("arguments", False), ("nothing", True)],
    ids=["bodies, deferred", "large bodies, task", "arguments, deferred", "nothing, task"],
)
@pytest.mark.usefixtures("run")
async def test_requests_under_way_of_one_connection_are_bounded_by_their_bytes(
    shape: str, tasks: bool
) -> None:
    count, limit = 100, 64 * 1024
    handler = Answering(tasks=tasks)
    limits = ServerLimits(under_way_max=limit)
    async with serving({1: handler, 2: echo}, limits=limits) as (server, addr):
        with Peer(addr) as peer, Peer(addr) as other:
            request = RemotingCommand.request(1, **SHAPES[shape])  # type: ignore[arg-type]
            data = b"".join(request.with_opaque(number).encode() for number in range(count))
            sending = asyncio.ensure_future(peer.send(data))
            await until(lambda: server.received.total > 0 and handler.unanswered > 0)
            largest = 0
            while len(handler.came) < count:
                before = len(handler.came)
                await other.send(frame(2, 1))  # other connections must be served at the same time
                assert [answer.opaque for answer in await other.answers(1)] == [1]
                largest = max(largest, handler.unanswered)
                # The server handles no further requests while too many bytes of unanswered requests
                # wait. It continues as soon as half of these bytes are answered. So answer all requests.
                handler.answer(handler.unanswered)
                await until(lambda before=before: len(handler.came) > before)  # type: ignore[misc]
            handler.answer(handler.unanswered)
            await sending
            assert sorted(answer.opaque for answer in await peer.answers(count)) == list(range(count))
            assert handler.came == list(range(count))
            assert largest <= limit / (1024 + len(request.body)) + 1
            if shape == "arguments":
                assert largest <= 3
            await until(lambda: server.received.total == 0)


class _Fields(msgspec.Struct):
    topic: str = ""


@pytest.mark.usefixtures("run")
async def test_request_counts_the_same_before_and_after_its_texts_were_used() -> None:
    """When a request ends, the server must subtract the same size that it added when the request arrived.

    Between these two events, the request's strings may grow in memory, because Python caches the UTF-8 form
    of a string after its first use.
    """

    async def parse(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        msgspec.convert(command.ext_fields, _Fields)
        return command.reply()

    async with serving({1: parse}) as (server, addr):
        with Peer(addr) as peer:
            request = RemotingCommand.request(1, {"\N{LATIN SMALL LETTER E WITH ACUTE}" * 100_000: "x"})
            await peer.send(b"".join(request.with_opaque(number).encode() for number in range(20)))
            assert len(await peer.answers(20)) == 20
            await until(lambda: server.received.total == 0)


@pytest.mark.usefixtures("run")
async def test_connection_waits_until_half_of_its_bytes_are_answered() -> None:
    handler = Answering(tasks=False)
    limits = ServerLimits(under_way_max=64 * 1024)
    async with serving({1: handler, 2: echo}, limits=limits) as (_, addr):
        with Peer(addr) as peer:
            await peer.send(b"".join(frame(1, number, bytes(9_000)) for number in range(8)))
            await until(lambda: handler.unanswered == 7)
            await peer.send(frame(2, 99))
            for left in 6, 5, 4:
                handler.answer(1)
                assert [answer.code for answer in await peer.answers(1)] == [0]
                assert handler.unanswered == left
            handler.answer(1)
            await until(lambda: handler.unanswered == 4)
            opaques = {answer.opaque for answer in await peer.answers(2)}
            assert opaques == {3, 99}
            handler.answer(4)


class Known:
    """A fake fast path (code that answers requests without parsing them) with the answer to one request."""

    starts: tuple[bytes, ...] = (b'{"code":105,',)

    def __init__(self, request: bytes, answer: bytes) -> None:
        self._request, self._answer = request, answer

    def whole(self, data: bytes) -> bytes | int | None:
        return self._answer if data == self._request else None

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        if data.startswith(self._request, position):
            answers.append(self._answer)
            position += len(self._request)
        return position, False

    def waits_now(self) -> int:
        return 0

    def waits(self, data: bytes, position: int) -> int:
        return 0


@pytest.mark.usefixtures("run")
async def test_known_request_waits_behind_others_while_too_many_bytes_are_under_way() -> None:
    known = frame(105, 999)
    answer = RemotingCommand(code=0, opaque=999, flag=1, ext_fields={}).encode()
    handler = Answering(tasks=False)
    limits = ServerLimits(under_way_max=64 * 1024)
    async with serving({105: handler}, limits=limits, fast_path=lambda: Known(known, answer)) as (
        server,
        addr,
    ):
        with Peer(addr) as peer:
            await peer.send(b"".join(frame(105, number, bytes(9_000)) for number in range(7)))
            await until(lambda: handler.unanswered == 7)
            under_way = server.received.total
            later = frame(105, 50, bytes(9_000))
            await peer.send(later)
            await until(lambda: server.received.total == under_way + len(later))
            await peer.send(known)
            await until(lambda: server.received.total == under_way + len(later) + len(known))
            handler.answer(7)
            assert {found.opaque for found in await peer.answers(8)} == {*range(7), 999}
            await until(lambda: handler.unanswered == 1)
            handler.answer(1)


@pytest.mark.usefixtures("run")
async def test_bytes_under_way_count_with_the_received_ones_of_all_connections() -> None:
    """Bytes of unanswered requests, too, count towards the limit for all connections together.

    After the server has closed a connection, the connection's unanswered requests no longer count.
    """
    handler = Answering(tasks=False)
    limits = ServerLimits(received_max=2 * MIB, under_way_max=MIB)
    async with serving({1: handler, 2: echo}, limits=limits) as (server, addr):
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Peer(addr)) for _ in range(4)]
            sending = [
                asyncio.ensure_future(peer.send(b"".join(frame(1, n, bytes(30_000)) for n in range(60))))
                for peer in peers
            ]
            await until(lambda: server.stats.connections_shed > 0)
            assert server.received.total <= 2 * MIB
            with Peer(addr) as other:
                await other.send(frame(2, 7))
                assert [answer.opaque for answer in await other.answers(1)] == [7]
            assert server.stats.connections_shed < 4, "one alone is within the bound"

            def is_settled() -> bool:
                handler.answer(handler.unanswered)
                return server.received.total == server.deferred == 0

            await asyncio.gather(*sending, until(is_settled), return_exceptions=True)
            await until(is_settled)


# Fair turns of connections -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_many_pipelined_requests_do_not_hold_up_another_connection() -> None:
    count = 200
    async with serving({1: slow, 2: echo}) as (_, addr):
        with Peer(addr) as much, Peer(addr) as little:
            await much.send(b"".join(frame(1, n) for n in range(count)))
            first = await much.answers(1)
            await little.send(frame(2, 77))
            assert [answer.opaque for answer in await little.answers(1)] == [77]
            with contextlib.suppress(BlockingIOError):
                much.found += map(decode_command, much._decoder.feed(much.socket.recv(1 << 20)))
            assert len(much.found) < count / 2, "the other one waited for nearly all of them"
            answers = first + await much.answers(count - 1)
            assert [answer.opaque for answer in answers] == list(range(count))


@pytest.mark.usefixtures("run")
async def test_what_arrives_while_earlier_requests_wait_for_their_turn_comes_after_them() -> None:
    async with serving({1: slow, 2: echo}) as (_, addr):
        with Peer(addr) as peer:
            data = b"".join(frame(1 + n % 2, n) for n in range(60))
            for position in range(0, len(data), 97):
                await peer.send(data[position : position + 97])
                await asyncio.sleep(0)
            assert [answer.opaque for answer in await peer.answers(60)] == list(range(60))


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_requests_handed_to_tasks_take_turns_as_well() -> None:
    began: list[int] = []

    async def work(command: RemotingCommand) -> RemotingCommand:
        began.append(command.opaque)
        time.sleep(TURN_S / 2)  # noqa: ASYNC251  # holds the loop on purpose
        return command.reply()

    count = 200
    async with serving({1: lambda _c, r: work(r), 2: echo}) as (_, addr):
        with Peer(addr) as much, Peer(addr) as little:
            await much.send(b"".join(frame(1, n) for n in range(count)))
            await until(lambda: bool(began))
            await little.send(frame(2, 77))
            await little.answers(1)
            assert len(began) < count / 2
            await much.answers(count)


async def test_closing_answers_those_who_wait_for_their_turn() -> None:
    count = 40
    async with asyncio.TaskGroup() as group:
        server = RemotingServer(handlers={1: slow}, group=group)
        addr = await server.start("127.0.0.1", 0)
        with Peer(addr) as peer:
            await peer.send(b"".join(frame(1, n) for n in range(count)))
            await until(lambda: server.turns.waiting > 0)
            await server.close(drain_s=CONDITION_S)
            assert [answer.opaque for answer in await peer.answers(count)] == list(range(count))


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_flood_behind_requests_that_wait_for_their_turn_is_not_read() -> None:
    async with serving({1: slow, 2: echo}) as (server, addr):
        with Peer(addr) as flood:
            flooding = asyncio.ensure_future(
                flood.send(b"".join(frame(1, n) for n in range(200)) + frame(2, 1, bytes(1000)) * 8000)
            )
            worst = 0
            for _ in range(100):
                await asyncio.sleep(0.001)
                worst = max(worst, server.received.total)
            assert 0 < worst < MIB
            flooding.cancel()


# Bytes in memory ---------------------------------------------------------------------------------


def closings() -> tuple[list[tuple[int, bool]], Callable[..., None]]:
    closed: list[tuple[int, bool]] = []

    def note(connection: Connection, *, by_us: bool) -> None:
        closed.append((connection.id, by_us))

    return closed, note


@pytest.mark.usefixtures("run")
async def test_unfinished_frames_cost_the_address_that_holds_most_and_are_no_evidence() -> None:
    """A broker whose registration arrives in pieces keeps its connection while another host sends far more.

    The server closes connections of the other host, and reports them as closed by the server itself.
    """
    closed, note = closings()
    limits = ServerLimits(received_max=2 * MIB)
    async with serving({1: echo}, limits=limits, closed=note) as (server, addr):
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(Peer(addr, host="127.0.0.2")) for _ in range(8)]
            broker = stack.enter_context(Peer(addr))
            registration = frame(1, 5, bytes(700_000))
            for stranger in strangers[:6]:
                await stranger.send(struct.pack(">I", 10 * MIB) + bytes(200_000))
            await until(lambda: server.received.total > 6 * 200_000)
            await broker.send(registration[:-1])
            await until(lambda: server.received.total > 6 * 200_000 + 650_000)
            for stranger in strangers[6:]:
                with contextlib.suppress(ConnectionError):
                    await stranger.send(struct.pack(">I", 10 * MIB) + bytes(200_000))
            await until(lambda: server.stats.connections_shed > 0 and server.received.total <= 2 * MIB)
            await broker.send(registration[-1:])
            (answer,) = await broker.answers(1)
            assert (answer.opaque, len(answer.body)) == (5, 700_000)
            await until(lambda: len(closed) == server.stats.connections_shed)
            assert all(by_us for _, by_us in closed)
            assert server.stats.bad_frames == 0
        await until(lambda: not server.connections)
        assert server.received.total == 0


@pytest.mark.usefixtures("run")
async def test_many_brokers_behind_one_address_may_send_as_much_as_the_bound_allows() -> None:
    async with serving({1: echo}, limits=ServerLimits(received_max=4 * MIB)) as (server, addr):
        with contextlib.ExitStack() as stack:
            brokers = [stack.enter_context(Peer(addr)) for _ in range(12)]
            data = frame(1, 5, bytes(300_000))
            for broker in brokers:
                await broker.send(data[:-1])
            await until(lambda: server.received.total == 12 * (len(data) - 1))
            for broker in brokers:
                await broker.send(data[-1:])
                await broker.answers(1)
            assert server.stats.connections_shed == 0
            assert server.received.total == 0


@pytest.mark.usefixtures("run")
async def test_peer_that_leaves_more_unread_than_one_may_is_cut_off_by_us() -> None:
    closed, note = closings()
    limits = ServerLimits(unread_max=8 * MIB)
    kept: list[Connection] = []

    def subscribe(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        kept.append(connection)
        return command.reply()

    async with serving({1: subscribe}, limits=limits, closed=note) as (server, addr):
        with Peer(addr) as deaf:
            await deaf.send(frame(1, 1))
            await until(lambda: bool(kept))
            for _ in range(100):  # like answers that come late, for example answers to held pulls
                kept[0].send_bytes(bytes(MIB))
                await asyncio.sleep(0)
            await until(lambda: bool(closed))
            assert closed == [(1, True)]
            assert server.unread.total == 0


@pytest.mark.usefixtures("run")
async def test_unread_answers_of_all_connections_together_are_bounded() -> None:
    closed, note = closings()
    limits = ServerLimits(unread_all_max=4 * MIB)
    async with serving({1: large, 2: echo}, limits=limits, closed=note) as (server, addr):
        with contextlib.ExitStack() as stack:
            deaf = [stack.enter_context(Peer(addr, host="127.0.0.2")) for _ in range(40)]
            reader = stack.enter_context(Peer(addr))
            worst = 0
            for peer in deaf:
                with contextlib.suppress(ConnectionError):
                    await peer.send(b"".join(frame(1, n) for n in range(100)))
                await reader.send(frame(2, 1))
                await reader.answers(1)
                worst = max(worst, server.unread.total)
            await until(lambda: server.turns.waiting == 0)
            assert server.stats.connections_shed > 0
            worst = max(worst, server.unread.total)
            assert worst <= 4 * MIB
            await until(lambda: len(closed) == server.stats.connections_shed)
            assert all(by_us for _, by_us in closed)
            await reader.send(frame(2, 2))
            assert [answer.opaque for answer in await reader.answers(1)] == [2]


@pytest.mark.usefixtures("run")
async def test_peer_that_reads_late_gets_everything_and_is_counted_no_more() -> None:
    async with serving({1: large}) as (server, addr):
        with Peer(addr) as peer:
            await peer.send(b"".join(frame(1, n) for n in range(100)))
            await until(lambda: server.unread.total > 0)
            assert [answer.opaque for answer in await peer.answers(100)] == list(range(100))
            await until(lambda: server.unread.total == 0)
            await peer.send(frame(1, 7))
            await peer.answers(1)


# Lines and counters ------------------------------------------------------------------------------


async def test_lines_about_bad_frames_are_few_and_short_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "routekeeper.remoting.transport")
    count = 200
    header = b'{"code":"%s","opaque":1}' % (b"x" * 100_000)
    bad = struct.pack(">II", 4 + len(header), len(header)) + header
    async with serving({1: echo}) as (server, addr):
        for _ in range(count):
            with Peer(addr) as peer:
                with contextlib.suppress(ConnectionError):
                    await peer.send(bad)
                assert await peer.closed()
        assert server.stats.bad_frames == count
        lines = [record.getMessage() for record in caplog.records if "bad frame" in record.getMessage()]
        assert 0 < len(lines) <= 30
        assert max(map(len, lines)) < 400
        assert server.stats.lines_suppressed == count - len(lines)


async def test_codes_that_strangers_make_up_are_counted_as_one() -> None:
    async with serving({1: echo}) as (server, addr):
        with Peer(addr) as peer:
            await peer.send(b"".join(frame(code, code) for code in range(1, 1001)))
            await peer.answers(1000)
            assert dict(server.stats.requests) == {1: 1}
            assert server.stats.requests_unknown == 999
