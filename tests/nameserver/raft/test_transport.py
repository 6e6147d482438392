"""Tests that strangers at the raft port change nothing, read nothing, and use few resources.

A stranger is any process that connects without a proof that it is a member.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from routekeeper.nameserver.raft.links.auth import MAGIC, NONCE_SIZE, Credentials, Handshake, LinkError, Seal
from routekeeper.nameserver.raft.links.transport import (
    APPLICATION,
    HANDSHAKE_FRAME_MAX,
    PING,
    RAFT,
    SILENT_CHECKS_MAX,
    STRANGERS_PER_SECOND,
    STRANGERS_PER_SECOND_OVERALL,
    UNPROVEN_MAX,
    UNPROVEN_PER_ADDRESS,
    Link,
    Strangers,
    Transport,
)
from routekeeper.nameserver.raft.types import RaftStartError
from tests.nameserver.raft.cluster import Owner, run
from tests.ports import free_ports
from tests.waiting import until

SECRET = b"a secret of some length"
FRAME_MAX = 100_000


def _credentials(me: str, *, secret: bytes | None = SECRET, cluster: str = "c1") -> Credentials:
    return Credentials(me=me, members=frozenset({"a:1", "b:1"}), cluster=cluster, secret=secret)


def _shake(dialler: Credentials, acceptor: Credentials) -> tuple[Handshake, Handshake]:
    """Perform one handshake; return the handshake objects of the two ends."""
    d = Handshake(dialler, peer="a:1", nonce=os.urandom(NONCE_SIZE))
    a = Handshake(acceptor, peer=None, nonce=os.urandom(NONCE_SIZE))
    frame: bytes | None = d.begin()
    while frame is not None:
        answer = a.receive(frame)
        frame = d.receive(answer) if answer is not None else None
    assert d.proven
    assert a.proven
    return d, a


# ---- handshake and seals, without sockets


def test_both_ends_learn_who_is_there() -> None:
    dialler, acceptor = _shake(_credentials("b:1"), _credentials("a:1"))
    assert (dialler.peer, acceptor.peer) == ("a:1", "b:1")
    for one, other in ((dialler, acceptor), (acceptor, dialler)):
        for body in (b"first", b"second"):
            other.incoming.check(body, one.outgoing.next(body))


@pytest.mark.parametrize(
    ("dialler", "match"),
    [
        (_credentials("b:1", secret=b"another secret there"), "another secret"),
        (_credentials("b:1", cluster="c2"), "another cluster"),
        (_credentials("x:1", cluster="c2"), "no member"),
        (replace(_credentials("x:1"), open=True), "no member"),
        (_credentials("a:1"), "no member"),
        (_credentials("b:1", secret=None), "another secret"),
    ],
)
def test_who_is_not_a_member_with_the_secret_is_refused(dialler: Credentials, match: str) -> None:
    with pytest.raises(LinkError, match=match):
        _shake(dialler, _credentials("a:1"))


def test_the_acceptor_proves_itself_too() -> None:
    dialler = Handshake(_credentials("b:1"), peer="a:1", nonce=os.urandom(NONCE_SIZE))
    dialler.begin()
    dialler.receive(os.urandom(NONCE_SIZE))
    with pytest.raises(LinkError, match="another secret"):
        dialler.receive(os.urandom(32))


def test_a_stranger_learns_one_random_number() -> None:
    acceptor = Handshake(_credentials("a:1"), peer=None, nonce=b"n" * NONCE_SIZE)
    hello = msgspec.msgpack.encode((MAGIC, "b:1", "a:1", "c1", os.urandom(NONCE_SIZE)))
    assert acceptor.receive(hello) == b"n" * NONCE_SIZE


def test_the_dialler_s_proof_cannot_be_sent_back_to_it() -> None:
    dialler = Handshake(_credentials("b:1"), peer="a:1", nonce=b"1" * NONCE_SIZE)
    dialler.begin()
    proof = dialler.receive(b"2" * NONCE_SIZE)
    assert proof is not None
    with pytest.raises(LinkError):
        dialler.receive(proof)


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        pickle.dumps({"type": "append_entries"}),
        msgspec.msgpack.encode(["other", "b:1", "a:1", "c1", b"n" * NONCE_SIZE]),
        msgspec.msgpack.encode([MAGIC, "b:1", "a:1", "c1", b"short"]),
        msgspec.msgpack.encode([MAGIC, "b:1", "z:1", "c1", b"n" * NONCE_SIZE]),
        msgspec.msgpack.encode([MAGIC, 1, 2, 3, 4]),
        msgspec.msgpack.encode({"a": 1}),
    ],
)
def test_a_hello_that_is_not_ours_is_refused(hello: bytes) -> None:
    with pytest.raises(LinkError):
        Handshake(_credentials("a:1"), peer=None, nonce=os.urandom(NONCE_SIZE)).receive(hello)


def test_frames_cannot_be_changed_repeated_left_out_reflected_or_replayed() -> None:
    dialler, acceptor = _shake(_credentials("b:1"), _credentials("a:1"))
    first, second = dialler.outgoing.next(b"first"), dialler.outgoing.next(b"second")
    for body, mac in ((b"First", first), (b"second", second), (b"first", b""), (b"first", bytes(16))):
        fresh = Seal(b"")
        fresh._keyed = acceptor.incoming._keyed
        with pytest.raises(LinkError):
            fresh.check(body, mac)
    acceptor.incoming.check(b"first", first)
    with pytest.raises(LinkError):
        acceptor.incoming.check(b"first", first)  # the member refuses a repeated frame
    with pytest.raises(LinkError):
        dialler.incoming.check(b"first", first)  # the member refuses a frame that returns to its sender
    with pytest.raises(LinkError):
        _shake(_credentials("b:1"), _credentials("a:1"))[1].incoming.check(b"first", first)  # another session


# ---- on real sockets


@contextlib.asynccontextmanager
async def _transport(
    me: str = "a:1", *, secret: bytes | None = SECRET
) -> AsyncIterator[tuple[Transport, Owner, int]]:
    owner = Owner()
    transport = Transport(_credentials(me, secret=secret), owner=owner, frame_size_max=FRAME_MAX)
    bound = await transport.listen("127.0.0.1:0")
    await transport.go()
    try:
        yield transport, owner, int(bound.rpartition(":")[2])
    finally:
        await transport.close()


class _Raw:
    """A peer whose frames the test writes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.proven: Handshake | None = None

    @classmethod
    async def connect(cls, port: int) -> _Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def frame(self, data: bytes) -> None:
        self.writer.write(struct.pack(">I", len(data)) + data)

    async def read(self) -> bytes:
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def prove(self, *, secret: bytes | None = SECRET) -> None:
        handshake = Handshake(_credentials("b:1", secret=secret), peer="a:1", nonce=os.urandom(NONCE_SIZE))
        self.frame(handshake.begin())
        while not handshake.proven:
            answer = handshake.receive(await self.read())
            if answer is not None:
                self.frame(answer)
        self.proven = handshake

    def sealed(self, kind: int, payload: bytes) -> bytes:
        assert self.proven is not None
        body = bytes((kind,)) + payload
        return body + self.proven.outgoing.next(body)

    async def closed(self, seconds: float = 5.0) -> bool:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        self.writer.close()
        return True


async def test_messages_of_a_proven_peer_arrive_in_order() -> None:
    async with _transport() as (_, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        frames = b""
        for i in range(50):
            body = peer.sealed(RAFT if i % 2 else APPLICATION, b"%d" % i * 200)
            frames += struct.pack(">I", len(body)) + body
        for at in range(0, len(frames), 7):  # send 7 bytes at a time, because TCP may split frames anywhere
            peer.writer.write(frames[at : at + 7])
            if at % 700 == 0:
                await peer.writer.drain()
        await until(lambda: len(owner.order) == 50)
        assert owner.order == [b"%d" % i * 200 for i in range(50)]
        peer.writer.close()
        await until(lambda: owner.linked["b:1"] == 0)


async def test_a_stranger_may_not_announce_a_frame_that_no_handshake_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _transport() as (_, _, port):
        stranger = await _Raw.connect(port)
        with caplog.at_level(logging.WARNING):
            stranger.writer.write(struct.pack(">I", HANDSHAKE_FRAME_MAX + 1))
            assert await stranger.closed()
        # Without this limit, only the time limit of the handshake would close the connection.
        assert f"at most {HANDSHAKE_FRAME_MAX} are allowed" in caplog.text


async def test_what_one_stranger_does_again_and_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _transport() as (_, _, port):
        with caplog.at_level(logging.WARNING):
            for attack in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n\r\n",
                struct.pack(">I", 2**31),
            ):
                stranger = await _Raw.connect(port)
                stranger.writer.write(attack)
                assert await stranger.closed(4.5)
        assert len([r for r in caplog.records if "raft link closed" in r.getMessage()]) == 2


async def test_strangers_leave_the_log_lines_about_members_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.REPORTS_MAX", 1)
    async with _transport() as (_, owner, port):
        with caplog.at_level(logging.WARNING):
            for attack in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2**31)):
                stranger = await _Raw.connect(port)
                stranger.writer.write(attack)
                assert await stranger.closed(4.5)
            for times in (1, 2):
                peer = await _Raw.connect(port)
                await peer.prove()
                await until(lambda: owner.linked.get("b:1") == 1)
                peer.frame(b"not sealed, and long enough to be a frame")
                assert await peer.closed()
                lines = [r.getMessage() for r in caplog.records if "raft link closed" in r.getMessage()]
                assert len([line for line in lines if "peer=b:1 " in line]) == times
        assert len(lines) == 3


@pytest.mark.parametrize(
    "how", ["wrong mac", "no mac", "repeated", "unknown kind", "too large", "bad message"]
)
async def test_a_proven_link_that_breaks_the_rules_is_closed(how: str) -> None:
    async with _transport() as (_, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        good = peer.sealed(RAFT, b"good")
        match how:
            case "wrong mac":
                peer.frame(good[:-1] + bytes((good[-1] ^ 1,)))
            case "no mac":
                peer.frame(b"\x01good")
            case "repeated":
                peer.frame(good)
                peer.frame(good)
            case "unknown kind":
                assert peer.proven is not None
                body = b"\x77x"
                peer.proven.outgoing._counter = 0
                peer.frame(body + peer.proven.outgoing.next(body))
            case "too large":
                peer.writer.write(struct.pack(">I", FRAME_MAX + 1))
            case "bad message":
                assert peer.proven is not None
                peer.proven.outgoing._counter = 0
                peer.frame(peer.sealed(RAFT, b"bad"))
        assert await peer.closed()
        assert owner.linked == {"b:1": 0}
        assert len(owner.messages) == (1 if how == "repeated" else 0)


async def test_views_that_a_failed_reader_still_holds_cost_no_link() -> None:
    async with _transport() as (_, owner, port):
        held: list[bytes | memoryview] = []
        take = owner.raft_message

        def keep(peer: str, data: bytes | memoryview) -> None:
            held.append(data)  # keep a reference to the data, as the traceback of an exception may do
            take(peer, data)

        owner.raft_message = keep  # type: ignore[method-assign]
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        for text in (b"first", b"second"):
            peer.frame(peer.sealed(RAFT, text))
            await until(lambda text=text: owner.messages[-1:] == [("b:1", text)])  # type: ignore[misc]
        assert owner.linked == {"b:1": 1}
        assert [bytes(view) for view in held] == [b"first", b"second"]
        peer.writer.close()
        await until(lambda: owner.linked["b:1"] == 0)


async def test_half_a_frame_of_a_proven_peer_is_given_up_like_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.CHECK_S", 0.05)
    async with _transport() as (_, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        whole = peer.sealed(RAFT, b"x" * 1000)
        peer.writer.write(struct.pack(">I", len(whole)) + whole[:500])
        assert await peer.closed()
        assert owner.messages == []
        assert owner.linked == {"b:1": 0}


async def test_a_flood_of_a_proven_peer_holds_one_frame_of_memory_at_most() -> None:
    async with _transport() as (transport, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        link = transport._links["b:1"]
        for _ in range(200):
            peer.frame(peer.sealed(PING, os.urandom(FRAME_MAX // 2)))
            await peer.writer.drain()
            assert len(link._buffer) <= FRAME_MAX + 4
        peer.writer.write(struct.pack(">I", FRAME_MAX) + bytes(FRAME_MAX - 1))
        await peer.writer.drain()
        peer.writer.write(bytes(3 * FRAME_MAX))  # the frame's seal is wrong, so nothing more is read
        assert await peer.closed()
        assert owner.messages == []
        assert link._buffer == b""


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_a_flood_of_hellos_that_promise_a_member_does_not_push_its_link_out(
    secret: bytes | None,
) -> None:
    """A stranger that sends many hellos under a member's name must not end the link of this member."""
    async with _transport(secret=SECRET) as (_, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        strangers = [await _Raw.connect(port) for _ in range(UNPROVEN_MAX + 10)]
        for stranger in strangers:
            handshake = Handshake(
                _credentials("b:1", secret=secret and secret + b"!"),
                peer="a:1",
                nonce=os.urandom(NONCE_SIZE),
            )
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                stranger.frame(handshake.begin())
                answer = handshake.receive(await stranger.read())
                assert answer is not None
                stranger.frame(answer)
        for stranger in strangers:
            assert await stranger.closed()
        peer.frame(peer.sealed(RAFT, b"still here"))
        await until(lambda: owner.messages == [("b:1", b"still here")])
        assert owner.linked == {"b:1": 1}
        peer.writer.close()


async def test_two_transports_find_each_other_and_again_after_a_reset() -> None:
    (port,) = free_ports(1)
    names = (f"127.0.0.1:{port}", "z:1")
    owners = [Owner(), Owner()]
    transports = [
        Transport(
            Credentials(me=name, members=frozenset(names), cluster="c", secret=SECRET),
            owner=owner,
            frame_size_max=FRAME_MAX,
        )
        for name, owner in zip(names, owners, strict=True)
    ]
    await transports[0].listen(names[0])
    await transports[1].listen("127.0.0.1:0")
    for transport in transports:
        await transport.go()
    await until(lambda: owners[0].linked.get("z:1") == 1 and owners[1].linked.get(names[0]) == 1)
    assert transports[0].send("z:1", RAFT, b"down")
    assert transports[1].send(names[0], APPLICATION, b"up")
    await until(lambda: owners[1].order == [b"down"] and owners[0].order == [b"up"])
    transports[0].drop("z:1")
    await until(lambda: owners[1].linked[names[0]] == 0)
    assert not transports[0].send("z:1", RAFT, b"lost")
    await until(lambda: owners[0].linked["z:1"] == 1 and owners[1].linked[names[0]] == 1)
    for transport in transports:
        await transport.close()
    assert owners[0].linked["z:1"] == 0


def _pair() -> tuple[list[str], list[Owner], list[Transport]]:
    """Return the sorted names of two members, and their owners and transports.

    The transports do not listen yet.
    """
    names, owners = sorted(f"127.0.0.1:{port}" for port in free_ports(2)), [Owner(), Owner()]
    made = [
        Transport(
            Credentials(me=name, members=frozenset(names), cluster="c", secret=SECRET),
            owner=owner,
            frame_size_max=FRAME_MAX,
        )
        for name, owner in zip(names, owners, strict=True)
    ]
    return names, owners, made


async def test_member_that_was_away_is_linked_before_the_other_member_dials_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that starts late must dial the other member itself.

    The other member has dialled before, without success, and does not dial again in this test.
    """
    for name, value in (("RETRY_S", (600.0, 600.0)), ("LESSER_DIALS_AFTER_S", 600.0)):
        monkeypatch.setattr(f"routekeeper.nameserver.raft.links.transport.{name}", value)
    caplog.set_level(logging.DEBUG)
    names, owners, (lesser, greater) = _pair()
    await greater.listen(names[1])
    await greater.go()
    await until(lambda: "raft dial failed" in caplog.text)
    await lesser.listen(names[0])
    await lesser.go()
    await until(lambda: owners[0].linked == {names[1]: 1} and owners[1].linked == {names[0]: 1})
    await lesser.close()
    await greater.close()


async def test_member_that_is_named_again_is_dialled_again_after_its_link_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that left the configuration and came back must be dialled again after its link ends.

    A configuration gets a member back if the member's removal is never committed. Meanwhile, the link to this
    member stays up.
    """
    for name in ("FIRST_DIAL_AFTER_S", "LESSER_DIALS_AFTER_S"):
        monkeypatch.setattr(f"routekeeper.nameserver.raft.links.transport.{name}", 600.0)
    names, owners, (lesser, greater) = _pair()
    for transport, name in ((lesser, names[0]), (greater, names[1])):
        await transport.listen(name)
        await transport.go()
    await until(lambda: owners[0].linked == {names[1]: 1} and owners[1].linked == {names[0]: 1})
    for members in (frozenset({names[1]}), frozenset(names)):
        greater.use_credentials(replace(greater.credentials, members=members))
        for _ in range(3):  # let the tasks that dial begin or end
            await asyncio.sleep(0)
    for _ in range(2):
        lesser.drop(names[1])
        await until(lambda: owners[1].linked[names[0]] == 0)
        await until(lambda: owners[1].linked[names[0]] == 1)
    await lesser.close()
    await greater.close()


def test_address_that_answers_nothing_does_not_hide_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "routekeeper.nameserver.raft.links.transport"
    monkeypatch.setattr(f"{module}.HANDSHAKE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(f"{module}.LESSER_DIALS_AFTER_S", 600.0)
    monkeypatch.setattr(f"{module}.FIRST_DIAL_AFTER_S", 600.0)

    async def both(host: str, *, timeout_s: float) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async def scenario(stack: contextlib.ExitStack) -> None:
        names, owners, (lesser, greater) = _pair()
        stack.enter_context(_silent_listener("127.0.0.2", int(names[0].rpartition(":")[2])))
        await lesser.listen(names[0])
        await lesser.go()
        await greater.listen(names[1])
        monkeypatch.setattr(f"{module}.addresses_of", both)
        await greater.go()
        await until(lambda: owners[1].linked == {names[0]: 1})
        await greater.close()
        await lesser.close()

    with contextlib.ExitStack() as stack:
        run(lambda: scenario(stack))


@contextlib.contextmanager
def _silent_listener(host: str, port: int) -> Iterator[None]:
    """Listen with a full queue of connections, so that the kernel answers no further connection."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.1)
            try:
                waiting.connect((host, port))
            except TimeoutError:
                break
        else:
            pytest.skip("the kernel accepts connections beyond the queue of a listener")
        yield


@pytest.mark.slow
async def test_d24_an_idle_link_stays_and_a_silent_one_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.CHECK_S", 0.05)
    async with _transport() as (_, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() - begun < 0.6:
            assert (await peer.read())[0] == PING  # the member sends only pings, and the peer answers
            peer.frame(peer.sealed(PING, b""))
        assert owner.linked == {"b:1": 1}
        assert owner.messages == []
        assert await peer.closed()  # from now on the peer is silent
        assert owner.linked == {"b:1": 0}


async def test_a_second_connection_of_a_member_replaces_the_first() -> None:
    async with _transport() as (_, owner, port):
        first = await _Raw.connect(port)
        await first.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        second = await _Raw.connect(port)
        await second.prove()
        assert await first.closed()
        second.frame(second.sealed(RAFT, b"new"))
        await until(lambda: owner.messages == [("b:1", b"new")])
        assert owner.linked == {"b:1": 1}
        second.writer.close()


async def test_d34_a_peer_that_does_not_read_costs_bounded_memory() -> None:
    async with _transport() as (transport, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        payload = bytes(90_000)
        sent = 0
        while transport.send("b:1", APPLICATION, payload):
            sent += len(payload)
            assert sent < 64 * 1024 * 1024
        assert transport.send("b:1", RAFT, payload)  # unlike other messages, raft messages are not dropped
        while transport.send("b:1", RAFT, payload):
            sent += len(payload)
            assert sent < 128 * 1024 * 1024
        await until(lambda: owner.linked["b:1"] == 0)  # the link ends because too many raft messages wait
        peer.writer.close()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_an_address_that_others_can_reach_needs_a_secret(secret: bytes | None) -> None:
    transport = Transport(_credentials("a:1", secret=secret), owner=Owner(), frame_size_max=FRAME_MAX)
    if secret is None:
        with pytest.raises(RaftStartError, match="a secret is needed"):
            await transport.listen("0.0.0.0:0")
    else:
        assert (await transport.listen("0.0.0.0:0")).startswith("0.0.0.0:")
    await transport.close()


@pytest.mark.slow
def test_a_name_that_does_not_resolve_in_time_leaves_no_failure_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a DNS lookup fails after the dial has timed out, asyncio must not report an unhandled error.

    This could happen because no code waits for the result of the lookup any more.
    """
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.HANDSHAKE_TIMEOUT_S", 0.001)
    lost: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
        credentials = Credentials(
            me="z:1", members=frozenset({"nobody.invalid:1", "z:1"}), cluster="c", secret=SECRET
        )
        transport = Transport(credentials, owner=Owner(), frame_size_max=FRAME_MAX)
        await transport.listen("127.0.0.1:0")
        await transport.go()
        await asyncio.sleep(1.0)  # let some dials happen
        await transport.close()
        with contextlib.suppress(OSError):  # lookups end in order, so the earlier lookups have ended, too
            await asyncio.get_running_loop().getaddrinfo("somebody.invalid", 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
        gc.collect()
    assert not lost


# ---- Defects D21 and D24: if links use sockets as PySyncObj does, these tests fail


@pytest.fixture
def patience_s() -> float:
    return 25.0


def _run_for(scenario: Callable[[], Awaitable[None]], seconds: float) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await scenario()

    asyncio.run(bounded())


def test_d21_a_large_message_leaves_though_nothing_else_is_sent(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    # Send no pings, because a ping would also send the rest of the large message.
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.CHECK_S", 600.0)

    async def scenario() -> None:
        async with _transport() as (transport, owner, port):
            peer = await _Raw.connect(port)
            with contextlib.closing(peer.writer):
                await peer.prove()
                await until(lambda: owner.linked.get("b:1") == 1)
                transport.frame_size_max = 16_000_000
                payload = os.urandom(12_000_000)  # more than both sockets can buffer
                assert transport.send("b:1", APPLICATION, payload)
                assert (await peer.read())[1 : 1 + len(payload)] == payload

    _run_for(scenario, patience_s)


@pytest.mark.slow
def test_d24_the_first_message_after_a_silence_arrives(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    check_s = 0.05
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.CHECK_S", check_s)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            owners = [Owner(), Owner()]
            one, two = (
                Transport(_credentials(f"{name}:1"), owner=owner, frame_size_max=FRAME_MAX)
                for name, owner in zip("ab", owners, strict=True)
            )
            stack.push_async_callback(one.close)
            stack.push_async_callback(two.close)
            name = await one.listen("127.0.0.1:0")
            await two.listen("127.0.0.1:0")
            members = frozenset((name, "z:1"))
            one.use_credentials(Credentials(me=name, members=members, cluster="c1", secret=SECRET))
            two.use_credentials(Credentials(me="z:1", members=members, cluster="c1", secret=SECRET))
            await one.go()
            await two.go()
            await until(lambda: owners[0].linked.get("z:1") == 1 and owners[1].linked.get(name) == 1)
            await asyncio.sleep(2 * SILENT_CHECKS_MAX * check_s)  # neither side has anything to send
            assert one.send("z:1", RAFT, b"a vote is asked for")
            await until(lambda: owners[1].order == [b"a vote is asked for"])

    _run_for(scenario, patience_s)


class _WithoutWriteInterest:
    """A connection that sends as the raft library does.

    Bytes that the socket does not accept at once wait until the next send, not until the socket is writable.
    """

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._rest = b""

    def write(self, data: bytes) -> None:
        self._rest += data
        with contextlib.suppress(BlockingIOError):
            while self._rest:
                taken = os.write(self._wire.get_extra_info("socket").fileno(), self._rest)
                self._rest = self._rest[taken:]

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return len(self._rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)


def _d21_off(patch: pytest.MonkeyPatch) -> None:
    original = Link.connection_made
    patch.setattr(
        Link,
        "connection_made",
        lambda link, wire: original(link, _WithoutWriteInterest(wire)),  # type: ignore[arg-type]
    )


def _d24_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D24: do not send pings.

    If a link has received nothing for a while, the next send then closes the link.
    """
    read_at: dict[Link, float] = {}
    received, send = Link.data_received, Link.send

    def data_received(link: Link, data: bytes) -> None:
        read_at[link] = asyncio.get_running_loop().time()
        received(link, data)

    def send_or_close(link: Link, kind: int, payload: bytes) -> bool:
        if asyncio.get_running_loop().time() - read_at[link] > SILENT_CHECKS_MAX * 0.05:
            link.close()
            return False
        return send(link, kind, payload)

    patch.setattr(Link, "_check", lambda link: None)
    patch.setattr(Link, "data_received", data_received)
    patch.setattr(Link, "send", send_or_close)


SWITCHED_OFF: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[..., None]]] = [
    ("d21", _d21_off, test_d21_a_large_message_leaves_though_nothing_else_is_sent),
    ("d24", _d24_off, test_d24_the_first_message_after_a_silence_arrives),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch_off", "scenario"), [case[1:] for case in SWITCHED_OFF], ids=[case[0] for case in SWITCHED_OFF]
)
def test_a_fix_that_is_switched_off_is_caught_by_its_scenario(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        scenario(monkeypatch, patience_s=2.0)


# ---- strangers may use only a limited number of connections


async def test_a_message_above_the_limit_is_refused_at_its_sender_and_the_link_stays() -> None:
    async with _transport() as (transport, owner, port):
        peer = await _Raw.connect(port)
        await peer.prove()
        await until(lambda: owner.linked.get("b:1") == 1)
        for kind in (RAFT, APPLICATION):
            assert not transport.send("b:1", kind, bytes(FRAME_MAX))
        assert transport.send("b:1", APPLICATION, b"short")
        seal = transport._links["b:1"]._handshake.outgoing
        assert transport.send("b:1", RAFT, bytes(FRAME_MAX - 1 - seal.size))
        while len(frame := await peer.read()) < FRAME_MAX:
            assert frame[:1] in (bytes((APPLICATION,)), bytes((PING,)))
        peer.writer.close()


async def _from(host: str, port: int) -> _Raw:
    return _Raw(*await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)))


async def test_strangers_do_not_push_out_what_this_member_dials() -> None:
    """Many connections of strangers must not end a handshake that this member itself has begun.

    In this test, the dialled member answers slowly, so the handshake lasts long.
    """

    async def dialled_among_strangers(member: str) -> None:
        owner = Owner()
        credentials = replace(_credentials("z:1"), members=frozenset({"z:1", member}))
        transport = Transport(credentials, owner=owner, frame_size_max=FRAME_MAX)
        bound = await transport.listen("127.0.0.1:0")
        await transport.go()
        try:
            await until(lambda: len(transport._open) == 1)
            (dialled,) = transport._open
            port = int(bound.rpartition(":")[2])
            strangers = [await _Raw.connect(port) for _ in range(UNPROVEN_MAX * 2)]
            await until(lambda: 0 < len(transport._accepted()) <= UNPROVEN_MAX)
            assert not dialled.ended.done()
            assert not dialled._closed
            for raw in strangers:
                raw.writer.close()
        finally:
            await transport.close()

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        await dialled_among_strangers(f"127.0.0.1:{silent.getsockname()[1]}")


async def test_one_host_of_strangers_holds_few_places() -> None:
    async with _transport() as (transport, _, port):
        first = await _from("127.0.0.3", port)
        flood = [await _from("127.0.0.2", port) for _ in range(UNPROVEN_MAX + 10)]
        await until(lambda: len(transport._accepted()) == UNPROVEN_PER_ADDRESS + 1)
        assert "127.0.0.3" in {link.host for link in transport._accepted()}
        for raw in (first, *flood):
            raw.writer.close()


async def test_many_hosts_of_strangers_hold_few_places_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.nameserver.raft.links.transport.HANDSHAKE_TIMEOUT_S", 600.0)
    async with _transport() as (transport, _, port):
        of_each = UNPROVEN_PER_ADDRESS - 4
        hosts = [f"127.0.0.{number}" for number in range(2, 10)]
        flood = [await _from(host, port) for host in hosts for _ in range(of_each)]
        too_many = len(flood) - UNPROVEN_MAX
        assert too_many > 0
        await until(lambda: sum(raw.reader.at_eof() for raw in flood) == too_many)
        assert len(transport._accepted()) == UNPROVEN_MAX
        assert {link.host for link in transport._accepted()} == set(hosts)
        for raw in flood:
            raw.writer.close()


async def test_two_members_find_each_other_again_while_strangers_hold_all_places() -> None:
    ports = free_ports(2)
    names = [f"127.0.0.1:{port}" for port in ports]
    owners = [Owner(), Owner()]
    members = [
        Transport(
            replace(_credentials(name), members=frozenset(names)), owner=owner, frame_size_max=FRAME_MAX
        )
        for name, owner in zip(names, owners, strict=True)
    ]
    held: deque[socket.socket] = deque()

    async def hold() -> None:
        loop = asyncio.get_running_loop()
        while True:
            for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
                for port in ports:
                    held.append(stranger := socket.socket())
                    stranger.setblocking(False)
                    stranger.bind((host, 0))
                    await loop.sock_connect(stranger, ("127.0.0.1", port))
                    # Let the members run, because the strangers use the same event loop.
                    await asyncio.sleep(0.002)
            while len(held) > 4 * UNPROVEN_MAX:
                held.popleft().close()

    for transport, name in zip(members, names, strict=True):
        await transport.listen(name)
        await transport.go()
    holding = asyncio.ensure_future(hold())
    try:
        for _ in range(2):
            await until(lambda: all(1 in owner.linked.values() for owner in owners))
            await until(lambda: all(len(one._accepted()) > UNPROVEN_MAX // 2 for one in members))
            members[0].drop(names[1])
            await until(lambda: 0 in owners[0].linked.values())
    finally:
        holding.cancel()
        await asyncio.wait([holding])
        assert holding.cancelled(), holding.exception()
        for stranger in held:
            stranger.close()
        for transport in members:
            await transport.close()


def test_under_tls_a_host_of_strangers_begins_few_handshakes_a_second() -> None:
    strangers = Strangers()
    allowed = [strangers.allow("10.0.0.1", 5.0) for _ in range(STRANGERS_PER_SECOND + 5)]
    assert allowed == [True] * STRANGERS_PER_SECOND + [False] * 5
    assert strangers.allow("10.0.0.2", 5.0)
    assert strangers.allow("10.0.0.1", 6.0)


def test_under_tls_all_strangers_together_begin_few_handshakes_a_second() -> None:
    """Under TLS, all strangers together may begin only a limited number of handshakes per second.

    The first handshake of each host has a separate limit, so that a few hosts cannot lock out all others.
    """
    strangers = Strangers()
    allowed = [strangers.allow(f"10.0.{number // 20}.1", 5.0) for number in range(200)]
    assert sum(allowed) == 10 + STRANGERS_PER_SECOND_OVERALL
    assert strangers.allow("10.1.0.1", 5.0)
    assert not strangers.allow("10.1.0.1", 5.0)
    first = [strangers.allow(f"10.2.{number // 250}.{number % 250}", 6.0) for number in range(500)]
    assert sum(first) == STRANGERS_PER_SECOND_OVERALL
    assert not strangers.allow("10.3.0.1", 6.0)
    assert strangers.allow("10.3.0.1", 7.0)
