"""Tests of the server and both clients over real sockets, and of the session that the clients use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import tracemalloc
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from routekeeper.remoting.addresses import is_loopback, plain_host
from routekeeper.remoting.codes import FLAG_RESPONSE, HeaderCodec
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.session import PULLS_MAX, Broken, ClientSession, PeerRequest, Response
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.aio import RemotingClient
from routekeeper.remoting.transport.blocking import BlockingClient
from routekeeper.remoting.transport.descriptors import DESCRIPTORS_RESERVED, share_descriptors
from routekeeper.remoting.transport.server import (
    Connection,
    DeferredReply,
    Handler,
    RemotingServer,
    ServerLimits,
    fit_descriptors,
)
from tests.remoting.servers import echo, serving
from tests.waiting import WITHIN_S, until


def request(code: int, body: bytes = b"", *, oneway: bool = False) -> RemotingCommand:
    return RemotingCommand.request(code, body=body, oneway=oneway)


# Session -----------------------------------------------------------------------------------------


def test_session_matches_answers_in_any_order_and_drops_strangers() -> None:
    session = ClientSession()
    started = [session.start(request(105), now=0.0, timeout_s=3.0) for _ in range(3)]
    assert [opaque for opaque, _ in started] == [0, 1, 2]
    answers = b"".join(
        RemotingCommand(code=0, opaque=opaque, flag=FLAG_RESPONSE, ext_fields={}).encode()
        for opaque in (2, 0, 7, 2)
    )
    events = session.receive(answers[:30]) + session.receive(answers[30:])
    assert [event.opaque for event in events if isinstance(event, Response)] == [2, 0]
    assert session.outstanding == 1
    assert session.lost() == [1]
    assert session.outstanding == 0


def test_session_gives_up_at_deadlines_in_their_order() -> None:
    session = ClientSession()
    opaques = [session.start(request(1), now=0.0, timeout_s=t)[0] for t in (3.0, 1.0, 2.0)]
    assert session.next_deadline() == 1.0
    assert session.expire(0.9) == []
    assert session.expire(2.0) == [opaques[1], opaques[2]]
    session.forget(opaques[0])
    assert session.next_deadline() is None


def test_session_does_not_keep_deadlines_of_answered_requests() -> None:
    session = ClientSession()
    tracemalloc.start()
    try:
        for _ in range(5000):
            opaque, _frame = session.start(request(1), now=0.0, timeout_s=60.0)
            session.forget(opaque)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_session_limits_outstanding_requests_and_wraps_opaques() -> None:
    session = ClientSession(outstanding_max=2, first_opaque=2**31 - 1)
    assert session.start(request(1), now=0, timeout_s=1)[0] == 2**31 - 1
    assert session.start(request(1), now=0, timeout_s=1)[0] == -(2**31)
    with pytest.raises(TooManyRequests):
        session.start(request(1), now=0, timeout_s=1)
    with pytest.raises(LocalProtocolError):
        session.start(request(1, oneway=True), now=0, timeout_s=1)
    with pytest.raises(LocalProtocolError):
        session.oneway(request(1))


def test_session_has_places_for_pulls_and_places_for_other_requests() -> None:
    """A broker holds pulls for many seconds, so pulls must not use up the limit for sends and heartbeats."""
    session = ClientSession(outstanding_max=2)

    def pull(timeout_s: float = 30.0) -> int:
        return session.start(request(11), now=0.0, timeout_s=timeout_s)[0]

    first, second, third = pull(), pull(), pull(1.0)
    for _ in range(PULLS_MAX - 3):
        pull()
    with pytest.raises(TooManyRequests, match=f"{PULLS_MAX} pulls wait"):
        pull()
    for _ in range(2):
        session.start(request(310), now=0.0, timeout_s=3.0)
    with pytest.raises(TooManyRequests, match="2 requests wait"):
        session.start(request(310), now=0.0, timeout_s=3.0)
    # A pull that has ended in any of these three ways must no longer count.
    session.receive(RemotingCommand(code=0, opaque=first, flag=FLAG_RESPONSE, ext_fields={}).encode())
    session.forget(second)
    assert session.expire(1.0) == [third]
    for _ in range(3):
        pull()
    with pytest.raises(TooManyRequests):
        pull()
    assert len(session.lost()) == PULLS_MAX + 2
    pull()


def test_session_keeps_what_came_before_the_break() -> None:
    session = ClientSession()
    session.start(request(1), now=0, timeout_s=1)
    answer = RemotingCommand(code=0, opaque=0, flag=FLAG_RESPONSE, ext_fields={}).encode()
    events = session.receive(answer + request(40, oneway=True).encode() + b"\xff\xff\xff\xff")
    assert [type(event) for event in events] == [Response, PeerRequest, Broken]


# Server ------------------------------------------------------------------------------------------


async def slow_echo(command: RemotingCommand, seconds: float = 0.05) -> RemotingCommand:
    await asyncio.sleep(seconds)
    return command.reply(body=command.body)


async def read_answers(reader: asyncio.StreamReader, count: int) -> list[RemotingCommand]:
    decoder = FrameDecoder()
    found: list[RemotingCommand] = []
    while len(found) < count:
        data = await reader.read(65536)
        assert data, "closed early"
        found += map(decode_command, decoder.feed(data))
    return found


def raises(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    raise ValueError("planted")


async def test_server_answers_each_kind_of_request_byte_by_byte() -> None:
    handlers: dict[int, Handler] = {1: echo, 2: lambda _c, r: slow_echo(r), 3: raises}
    async with serving(handlers) as (server, addr):
        reader, writer = await asyncio.open_connection(*split_address(addr))
        commands = [request(code, b"b") for code in (1, 2, 3, 99)]
        commands += [request(1, oneway=True), request(3, oneway=True), request(99, oneway=True)]
        stream = b"".join(command.with_opaque(i).encode() for i, command in enumerate(commands))
        for i in range(len(stream)):
            writer.write(stream[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0)
        answers = {answer.opaque: answer for answer in await read_answers(reader, 4)}
        assert {opaque: answer.code for opaque, answer in answers.items()} == {0: 0, 1: 0, 2: 1, 3: 3}
        assert answers[2].remark == "ValueError: planted"
        assert answers[3].remark == " request type 99 not supported"
        writer.write(request(1, b"last").with_opaque(77).encode())
        # The next answer belongs to this request, so the oneway requests got no answers.
        assert [answer.opaque for answer in await read_answers(reader, 1)] == [77]
        assert server.received.total == 0
        writer.close()


async def test_connections_above_the_limit_are_closed_and_room_is_given_again() -> None:
    async with serving({1: echo}, limits=ServerLimits(connections_max=2)) as (server, addr):
        pairs = [await asyncio.open_connection(*split_address(addr)) for _ in range(2)]
        await until(lambda: len(server.connections) == 2)
        reader, refused = await asyncio.open_connection(*split_address(addr))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert server.stats.connections_refused == 1
        refused.close()
        pairs[0][1].close()
        await until(lambda: len(server.connections) == 1)
        reader, writer = await asyncio.open_connection(*split_address(addr))
        writer.write(request(1).encode())
        await read_answers(reader, 1)
        for each in (writer, pairs[1][1]):
            each.close()


@pytest.mark.slow
def test_silent_connection_is_closed_and_a_busy_one_stays() -> None:
    closed: list[tuple[int, bool]] = []

    async def main() -> None:
        limits = ServerLimits(idle_s=4.0)
        note = lambda connection, *, by_us: closed.append((connection.id, by_us))  # noqa: E731
        async with serving({1: echo}, limits=limits, closed=note) as (_, addr):
            silent, writer = await asyncio.open_connection(*split_address(addr))
            writer.write(request(1).encode()[:20])  # an unfinished frame must not keep the connection open
            reader, busy = await asyncio.open_connection(*split_address(addr))

            async def keep_busy() -> None:
                while True:
                    busy.write(request(1).encode())
                    await read_answers(reader, 1)
                    await asyncio.sleep(0.05)

            task = asyncio.create_task(keep_busy())
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(silent.read(), 30) == b""
            assert closed == [(1, False)]
            assert not task.done()
            task.cancel()
            writer.close()
            busy.close()

    asyncio.run(main())
    assert closed[0] == (1, False)


def test_closed_says_who_began() -> None:
    closed: list[tuple[int, bool]] = []

    async def main() -> None:
        note = lambda connection, *, by_us: closed.append((connection.id, by_us))  # noqa: E731
        async with serving({1: echo}, closed=note) as (server, addr):
            _, first = await asyncio.open_connection(*split_address(addr))
            _, second = await asyncio.open_connection(*split_address(addr))
            await until(lambda: len(server.connections) == 2)
            first.close()
            await until(lambda: bool(closed))
        second.close()

    asyncio.run(main())
    assert closed == [(1, False), (2, True)]


async def test_requests_above_the_limit_of_unanswered_ones_get_busy() -> None:
    limits = ServerLimits(unanswered_max=3)
    async with serving({1: lambda _c, r: slow_echo(r), 2: echo}, limits=limits) as (_, addr):
        reader, writer = await asyncio.open_connection(*split_address(addr))
        writer.write(b"".join(request(1).with_opaque(i).encode() for i in range(5)))
        writer.write(request(2).with_opaque(9).encode())
        answers = {answer.opaque: answer.code for answer in await read_answers(reader, 6)}
        assert answers == {0: 0, 1: 0, 2: 0, 3: 2, 4: 2, 9: 0}
        writer.close()


async def test_answers_that_are_given_later_go_to_who_asked_and_only_if_wanted() -> None:
    kept: list[DeferredReply] = []

    def later(connection: Connection, command: RemotingCommand) -> DeferredReply:
        kept.append(DeferredReply(connection, command))
        return kept[-1]

    async with serving({1: later, 2: echo}) as (server, addr):
        reader, writer = await asyncio.open_connection(*split_address(addr))
        frames = [request(1).with_opaque(i).encode() for i in range(2)]
        writer.write(b"".join(frames) + request(1, oneway=True).encode())
        writer.write(request(2).with_opaque(9).encode())
        assert (await read_answers(reader, 1))[0].opaque == 9
        (connection,) = server.connections.values()
        assert connection.unanswered == 3
        for one in reversed(kept):
            one.send(one.request.reply(body=b"later"))
        assert [(a.opaque, a.body) for a in await read_answers(reader, 2)] == [
            (1, b"later"),
            (0, b"later"),
        ]
        assert connection.unanswered == 0

        kept.clear()
        writer.write(request(1, oneway=True).encode() + frames[1])
        await until(lambda: len(kept) == 2)
        for one in kept:
            one.send(None)
        (done,) = await read_answers(reader, 1)
        assert (done.opaque, done.code, done.body, connection.unanswered) == (1, 0, b"", 0)

        kept.clear()
        writer.write(frames[0])
        await until(lambda: bool(kept))
        writer.close()
        await until(lambda: not server.connections)
        kept[0].send(kept[0].request.reply())  # the connection is closed: this must not raise


async def test_close_waits_for_answers_that_are_given_later_and_counts_what_it_abandons() -> None:
    kept: list[DeferredReply] = []

    def later(connection: Connection, command: RemotingCommand) -> DeferredReply:
        kept.append(DeferredReply(connection, command))
        return kept[-1]

    async with asyncio.TaskGroup() as group:
        for given in (True, False):
            kept.clear()
            server = RemotingServer(handlers={1: later}, group=group)
            addr = await server.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*split_address(addr))
            writer.write(request(1).with_opaque(5).encode())
            await until(lambda: bool(kept))
            closing = asyncio.ensure_future(server.close(drain_s=60.0 if given else 0.05))
            await asyncio.sleep(0)
            assert not closing.done()
            if given:
                kept[0].send(kept[0].request.reply())
            await closing
            answers = [decode_command(frame) for frame in FrameDecoder().feed(await reader.read())]
            assert [answer.opaque for answer in answers] == ([5] if given else [])
            assert server.stats.tasks_abandoned == (0 if given else 1)
            writer.close()


@pytest.mark.slow
async def test_close_answers_what_is_under_way_and_counts_what_it_abandons() -> None:
    async with asyncio.TaskGroup() as group:
        handlers: dict[int, Handler] = {
            1: lambda _c, r: slow_echo(r, 0.2),
            2: lambda _c, r: slow_echo(r, 60),
        }
        server = RemotingServer(handlers=handlers, group=group)
        addr = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*split_address(addr))
        writer.write(request(1).with_opaque(1).encode() + request(2).with_opaque(2).encode())
        await until(lambda: sum(server.stats.requests.values()) == 2)
        await server.close(drain_s=1.5)
        answers = [decode_command(frame) for frame in FrameDecoder().feed(await reader.read())]
        assert [answer.opaque for answer in answers] == [1]
        assert server.stats.tasks_abandoned == 1
        writer.close()


async def test_close_after_answers_flushes_first() -> None:
    def last(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        connection.close_after_answers()
        return command.reply(body=b"bye")

    async with serving({1: last}) as (_, addr):
        reader, writer = await asyncio.open_connection(*split_address(addr))
        writer.write(request(1).encode() * 3)
        (answer,) = [decode_command(frame) for frame in FrameDecoder().feed(await reader.read())]
        assert answer.body == b"bye"
        writer.close()


def test_descriptor_shortage_is_named_and_lowers_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    fitted = fit_descriptors(ServerLimits(connections_max=10**9))
    assert 0 < fitted.connections_max < 10**9
    assert "descriptor limit is short" in caplog.text
    assert fit_descriptors(ServerLimits(connections_max=16)).connections_max == 16


@pytest.mark.parametrize("granted", [4, 64, 256, 1024, 65_536, 1 << 20])
def test_connections_of_both_kinds_leave_descriptors_for_files(granted: int) -> None:
    wire, http = share_descriptors(granted)
    assert wire >= http >= 1
    assert granted // 8 <= granted - wire - http or granted - wire - http >= DESCRIPTORS_RESERVED


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# Clients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_a_peer_is_told_that_its_answer_cannot_be_encoded(*, later: bool) -> None:
    """If an answer cannot be encoded, the asking peer gets an error at once, long before its deadline."""
    asked: list[RemotingCommand] = []
    too_long = "x" * (1 << 24)  # a header has 24 bits for its length

    async def ask_back(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        asked.append(await connection.invoke(request(40), timeout_s=5))
        return command.reply()

    async def soon(command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return command.reply(remark=too_long)

    async with serving({3: ask_back}) as (_, addr), RemotingClient() as client:
        client.on_request(40, lambda _a, command: soon(command) if later else command.reply(remark=too_long))
        assert (await client.invoke(addr, request(3))).code == 0
    assert asked[0].code == 1


@pytest.mark.slow
async def test_aio_client_serves_the_peer_and_tells_outcomes_apart() -> None:
    async def ask_back(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        answer = await connection.invoke(request(40, b"?"), timeout_s=2)
        return command.reply(body=answer.body)

    handlers: dict[int, Handler] = {
        1: echo,
        2: lambda _c, r: slow_echo(r, 30),
        3: ask_back,
        4: lambda c, _r: c.abort(),
    }
    async with serving(handlers) as (server, addr), RemotingClient() as client:
        client.on_request(40, lambda _addr, command: command.reply(body=b"!" + command.body))
        bodies = await asyncio.gather(*(client.invoke(addr, request(1, b"%d" % i)) for i in range(50)))
        assert [answer.body for answer in bodies] == [b"%d" % i for i in range(50)]
        assert len(server.connections) == 1
        assert (await client.invoke(addr, request(3))).body == b"!?"
        await client.invoke_oneway(addr, request(1, oneway=True))
        with pytest.raises(RequestTimeout):
            await client.invoke(addr, request(2), timeout_s=0.05)
        assert not client.connected(addr)  # a timeout closes the connection, as in RocketMQ's Java client
        with pytest.raises(ConnectionLost) as lost:
            await client.invoke(addr, request(4))
        assert lost.value.sent
        assert (await client.invoke(addr, request(1, b"again"))).body == b"again"
        cancelled = asyncio.create_task(client.invoke(addr, request(2)))
        await until(lambda: server.stats.requests[2] == 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    with pytest.raises(ConnectionLost) as refused:
        await client.invoke(addr, request(1))
    assert not refused.value.sent


@pytest.mark.slow
def test_request_behind_one_whose_deadline_has_come_ends() -> None:
    """A request on a connection with a request whose deadline has passed must end. Later requests, too.

    It gets its answer, or it fails because the time-out of the first request closes the connection.
    For a delay below 0.5 ms, uvloop returns a timer handle without a due time. Code that reads the due time
    must expect this.
    """

    async def main() -> None:
        handlers: dict[int, Handler] = {1: echo, 2: lambda _c, r: slow_echo(r, 30)}
        async with serving(handlers) as (_, addr), RemotingClient() as client:
            await client.invoke(addr, request(1))
            late, answer = await asyncio.gather(
                client.invoke(addr, request(2), timeout_s=0.0),
                client.invoke(addr, request(1, b"x")),
                return_exceptions=True,
            )
            assert isinstance(late, RequestTimeout)
            assert isinstance(answer, RemotingCommand | ConnectionLost), answer
            with pytest.raises(RequestTimeout):
                await client.invoke(addr, request(2), timeout_s=0.05)
            assert (await client.invoke(addr, request(1, b"x"))).body == b"x"

    uvloop.run(main())


def test_no_listener_means_not_sent() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        addr = f"127.0.0.1:{held.getsockname()[1]}"

        async def main() -> None:
            async with RemotingClient() as client:
                with pytest.raises(ConnectionLost) as lost:
                    await client.invoke(addr, request(1))
                assert not lost.value.sent

        asyncio.run(main())
        with BlockingClient() as client, pytest.raises(ConnectionLost) as lost:
            client.invoke(addr, request(1))
        assert not lost.value.sent


@pytest.mark.slow
async def test_blocking_client_is_shared_by_threads_and_tells_outcomes_apart() -> None:
    def calls(addr: str) -> None:
        results: list[bytes] = []
        with BlockingClient() as client:

            def work(number: int) -> None:
                for i in range(20):
                    code = 2 if i == 10 else 1
                    results.append(client.invoke(addr, request(code, b"%d-%d" % (number, i))).body)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(results) == sorted(b"%d-%d" % (n, i) for n in range(5) for i in range(20))
            client.invoke_oneway(addr, request(1, oneway=True))
            with pytest.raises(RequestTimeout):
                client.invoke(addr, request(3), timeout_s=0.5)
            with pytest.raises(ConnectionLost) as lost:
                client.invoke(addr, request(4))
            assert lost.value.sent
            assert client.invoke(addr, request(1, b"again")).body == b"again"
        with pytest.raises(ConnectionLost):
            client.invoke(addr, request(1))

    handlers: dict[int, Handler] = {
        1: echo,
        2: lambda _c, r: slow_echo(r, 0.1),
        3: lambda _c, r: slow_echo(r, 30),
        4: lambda c, _r: c.abort(),
    }
    async with serving(handlers) as (_, addr):
        await asyncio.to_thread(calls, addr)


async def test_blocking_client_serves_the_peer_from_its_reader_thread() -> None:
    async def ask_back(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        answer = await connection.invoke(request(40, b"?"), timeout_s=2)
        other = await connection.invoke(request(41), timeout_s=2)
        return command.reply(other.code, body=answer.body)

    def calls(addr: str) -> None:
        with BlockingClient() as client:
            client.on_request(40, lambda _addr, command: command.reply(body=b"!" + command.body))
            answer = client.invoke(addr, request(3))
            assert (answer.code, answer.body) == (3, b"!?")

    async with serving({3: ask_back}) as (_, addr):
        await asyncio.to_thread(calls, addr)


async def test_blocking_client_goes_on_reading_after_an_answer_that_cannot_be_encoded() -> None:
    too_long = "x" * (1 << 24)  # a header has 24 bits for its length

    async def ask_back(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        refused = await connection.invoke(request(40), timeout_s=WITHIN_S)
        other = await connection.invoke(request(41), timeout_s=WITHIN_S)
        return command.reply(body=b"%d %d" % (refused.code, other.code))

    def calls(addr: str) -> None:
        with BlockingClient() as client:
            client.on_request(40, lambda _addr, command: command.reply(remark=too_long))
            assert client.invoke(addr, request(3), timeout_s=WITHIN_S).body == b"1 3"

    async with serving({3: ask_back}) as (_, addr):
        await asyncio.to_thread(calls, addr)


def test_blocking_client_without_a_thread_to_read_with_has_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_server(("127.0.0.1", 0)) as listener, BlockingClient() as client:
        client.on_request(40, lambda _addr, command: command.reply())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ConnectionLost, match="can't start new thread") as lost:
            client.invoke(f"127.0.0.1:{listener.getsockname()[1]}", request(1))
        assert not lost.value.sent
        with listener.accept()[0] as accepted:
            accepted.settimeout(WITHIN_S)
            assert accepted.recv(1) == b"", "the client has closed the connection"


async def test_blocking_client_keeps_the_connection_of_a_reader_that_waits_while_others_write() -> None:
    def calls(addr: str, server: RemotingServer) -> None:
        with BlockingClient() as client:
            client.on_request(40, lambda _addr, command: command.reply())
            for number in range(300):
                client.invoke_oneway(addr, request(1, oneway=True))
                assert client.invoke(addr, request(1, b"%d" % number)).body == b"%d" % number
            assert list(server.connections) == [1], "the first connection served everything"

    async with serving({1: echo}) as (server, addr):
        await asyncio.to_thread(calls, addr, server)


async def test_blocking_client_finds_out_that_an_unused_connection_was_closed() -> None:
    def first(client: BlockingClient, addr: str) -> None:
        assert client.invoke(addr, request(1)).code == 0

    async with serving({1: echo}) as (server, addr):
        with BlockingClient() as client:
            await asyncio.to_thread(first, client, addr)
            for connection in list(server.connections.values()):
                connection.close()
            await until(lambda: not server.connections)
            await asyncio.to_thread(first, client, addr)


async def test_server_that_talks_nonsense_loses_the_connection() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    def blocking(addr: str) -> None:
        with BlockingClient() as client, pytest.raises(ConnectionLost):
            client.invoke(addr, request(1))

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with RemotingClient() as client:
        with pytest.raises(ConnectionLost):
            await client.invoke(addr, request(1))
    await asyncio.to_thread(blocking, addr)
    server.close()


class Signing:
    """A hook that signs requests, as access control does."""

    def __init__(self) -> None:
        self.answers: list[int] = []

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.request(request.code, {**request.ext_fields, "Signature": "s"}, request.body)

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        self.answers.append(response.code)


def test_hooks_see_requests_before_and_answers_after() -> None:
    def signed(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.reply(0 if command.ext_fields.get("Signature") == "s" else 16)

    hook = Signing()

    def blocking(addr: str) -> None:
        with BlockingClient(hooks=(hook,)) as client:
            client.invoke(addr, request(1))

    async def main() -> None:
        async with serving({1: signed}) as (_, addr), RemotingClient(hooks=(hook,)) as client:
            await client.invoke(addr, request(1))
            await asyncio.to_thread(blocking, addr)

    asyncio.run(main())
    assert hook.answers == [0, 0]


@pytest.mark.parametrize(
    "addr",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:65536",
        "host:-1",
        "host:" + "9" * 5000,
        "host:\u0663",
        "h:000080",
    ],
    ids=lambda addr: addr[:12],
)
def test_bad_address_is_a_local_error(addr: str) -> None:
    with pytest.raises(RemotingError):
        split_address(addr)


NOBODYS = {
    "label too long": "x" * 64 + ".example:80",
    "empty label": "a..example:80",
    "NUL": "a\0b:80",
    "lone surrogate": "\ud800:80",
    "8 MB": "x" * 8_000_000 + ":80",
}


@pytest.mark.parametrize("addr", NOBODYS.values(), ids=NOBODYS)
def test_host_that_no_resolver_takes_is_a_dial_that_failed(addr: str) -> None:
    async def main() -> None:
        async with RemotingClient() as client:
            with pytest.raises(ConnectionLost) as lost:
                await client.invoke(addr, request(1))
            assert not lost.value.sent
            assert len(str(lost.value)) < 1000

    asyncio.run(main())
    with BlockingClient() as client, pytest.raises(ConnectionLost) as lost:
        client.invoke(addr, request(1))
    assert not lost.value.sent


@pytest.mark.parametrize(
    ("host", "plain"), [("[::ffff:10.0.0.1]", "10.0.0.1"), ("[::1]", "[::1]"), ("10.0.0.1", "10.0.0.1")]
)
def test_mapped_address_is_that_of_its_family(host: str, plain: str) -> None:
    assert plain_host(host) == plain


def test_address_of_both_families_is_split() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("broker-a:10911") == ("broker-a", 10911)


async def test_answer_too_large_for_a_frame_becomes_an_error() -> None:
    handlers: dict[int, Handler] = {1: lambda _c, r: r.reply(body=bytes(17 * 1024 * 1024))}
    async with serving(handlers) as (_, addr), RemotingClient() as client:
        answer = await client.invoke(addr, request(1))
        assert answer.code == 1
        assert "above the limit" in (answer.remark or "")


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("codec", "ext"),
    [(HeaderCodec.ROCKETMQ, {"x" * 40_000: ""}), (HeaderCodec.JSON, {"half a character": "\ud83d"})],
    ids=["long name", "no UTF-8"],
)
async def test_server_goes_on_after_an_answer_that_fits_no_header(
    codec: HeaderCodec, ext: dict[str, str], *, later: bool
) -> None:
    """A server that cannot encode an answer sends an error instead, and serves the next request.

    A broker forwards answers between clients, so a client may choose arguments that fit no header.
    """

    async def soon(answer: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return answer

    def forward(connection: Connection, command: RemotingCommand) -> Any:
        answer = command.reply(ext_fields=ext)
        return soon(answer) if later else answer

    async with serving({1: echo, 2: forward}) as (_, addr), RemotingClient() as client:
        answer = await client.invoke(addr, replace(request(2), codec=codec), timeout_s=WITHIN_S)
        assert answer.code == 1
        assert (await client.invoke(addr, request(1, b"on"))).body == b"on"


async def test_answers_use_the_codec_of_the_request() -> None:
    async with serving({1: echo}) as (_, addr):
        reader, writer = await asyncio.open_connection(*split_address(addr))
        for codec in HeaderCodec:
            writer.write(RemotingCommand(code=1, opaque=1, ext_fields={}, codec=codec).encode())
            (answer,) = await read_answers(reader, 1)
            assert answer.codec is codec
        writer.close()


@pytest.mark.slow
async def test_waiting_for_one_answer_does_not_hold_up_another() -> None:
    others_are_answered = asyncio.Event()

    async def slow(command: RemotingCommand) -> RemotingCommand:
        await others_are_answered.wait()
        return command.reply()

    loop = asyncio.get_running_loop()
    async with serving({1: echo, 2: lambda _c, r: slow(r)}) as (server, addr):
        with BlockingClient() as client:

            def ask(code: int) -> RemotingCommand:
                return client.invoke(addr, request(code), timeout_s=WITHIN_S)

            waiting = loop.run_in_executor(None, ask, 2)
            await until(lambda: server.stats.requests[2] == 1)
            for _ in range(50):
                await asyncio.to_thread(ask, 1)
            others_are_answered.set()
            await waiting
