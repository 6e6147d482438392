"""Tests of a port with TLS: its three modes, and handshakes that never end.

Requests and limits on a port with TLS are the same as on a port without TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager

import pytest
import uvloop

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.secured import HANDSHAKE_BYTES_MAX, PortContext
from routekeeper.remoting.transport.server import RemotingServer, ServerLimits
from tests.remoting import servers
from tests.remoting.loops import Body, Run
from tests.tls import Peer, client_context, port_context
from tests.waiting import until

CODE = 999


def serving(
    tls: PortContext | None, *, limits: ServerLimits | None = None
) -> AbstractAsyncContextManager[tuple[RemotingServer, str]]:
    return servers.serving({CODE: servers.echo}, limits=limits, tls=tls)


@pytest.fixture
def run() -> Run:
    """Return a function that runs a test's body on uvloop, the loop that the servers use."""

    async def bounded(body: Body) -> None:
        async with asyncio.timeout(60):
            try:
                await body()
            finally:
                Peer.close_all()
                await asyncio.sleep(0)

    def on_loop(body: Body) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded(body))

    return on_loop


def request(body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(CODE, {}, body=body)


async def works(peer: Peer, body: bytes = b"x") -> None:
    assert (await peer.ask(request(body))).body == body


@pytest.mark.parametrize(
    ("mode", "secured", "is_served"),
    [
        ("permissive", False, True),
        ("permissive", True, True),
        ("enforcing", True, True),
        ("enforcing", False, False),
        ("disabled", False, True),
        ("disabled", True, False),
    ],
)
@pytest.mark.usefixtures("run")
async def test_a_mode_serves_whom_it_names(mode: str, secured: bool, is_served: bool) -> None:
    tls = port_context(mode=mode) if mode != "disabled" else None
    async with serving(tls) as (_, listen):
        try:
            peer = await Peer.connect(listen, client_context() if secured else None)
            await works(peer)
            await works(peer)
            peer.close()
        except (OSError, ConnectionError):
            assert not is_served
        else:
            assert is_served


@pytest.mark.parametrize(
    ("mode", "sent", "says"),
    [
        (
            "disabled",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "this client speaks TLS; see --tls-mode",
        ),
        ("disabled", b"GET / HTTP/1.1\r\n\r\n", "this client speaks HTTP; its port is that of --http"),
        ("permissive", b"POST / HTTP/1.1\r\n\r\n", "this client speaks HTTP; its port is that of --http"),
        ("enforcing", b"HEAD / HTTP/1.1\r\n\r\n", "this client speaks HTTP; its port is that of --http"),
        ("enforcing", request().encode(), "it does not speak TLS, and this port demands it"),
        ("permissive", b"\x16\x03\x01\x00\x05hello", "reason="),
    ],
)
def test_another_protocol_is_named_in_one_line(
    run: Run, mode: str, sent: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        tls = port_context(mode=mode) if mode != "disabled" else None
        async with serving(tls) as (_, listen):
            peer = await Peer.connect(listen)
            peer.writer.write(sent)
            await peer.closed()

    run(test)
    lines = [record.getMessage() for record in caplog.records if "peer=127.0.0.1" in record.getMessage()]
    assert len(lines) == 1
    assert says in lines[0]


@pytest.mark.parametrize(
    ("name", "auth", "says"),
    [
        ("member", "require", ""),
        ("member", "optional", ""),
        (None, "optional", ""),
        (None, "require", "peer did not return a certificate"),
        ("expired", "require", "the peer's certificate is refused: certificate has expired"),
        ("stranger", "require", "the peer's certificate is refused: unable to get local issuer certificate"),
        ("stranger", "optional", "the peer's certificate is refused: unable to get local issuer certificate"),
    ],
)
def test_certificates_of_clients_are_checked(
    run: Run, name: str | None, auth: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(port_context(mode="enforcing", client_auth=auth)) as (server, listen):
            try:
                peer = await Peer.connect(listen, client_context(name))
                await works(peer)
                peer.close()
            except (OSError, ConnectionError):
                assert says
                assert server.stats.requests_unknown == server.stats.requests[CODE] == 0
            else:
                assert not says

    run(test)
    lines = [record.getMessage() for record in caplog.records if "tls failed" in record.getMessage()]
    assert bool(lines) == bool(says)
    assert says in "".join(lines)


@pytest.mark.usefixtures("run")
async def test_a_client_with_an_expired_certificate_is_told_so() -> None:
    async with serving(port_context(client_auth="require")) as (_, listen):
        peer = await Peer.connect(listen)
        client = Records(client_context("expired"))
        peer.writer.write(await client.shake(peer))
        while data := await peer.reader.read(1 << 16):
            client.incoming.write(data)
        with pytest.raises(ssl.SSLError, match="ALERT_CERTIFICATE_EXPIRED"):
            client.tls.read(1)


@pytest.mark.parametrize(
    ("says_so", "line"),
    [
        (True, "the peer refuses our certificate"),
        (False, "it closed the connection during the TLS handshake"),
    ],
)
def test_a_client_that_refuses_our_certificate_is_named(
    run: Run, says_so: bool, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(port_context()) as (server, listen):
            peer = await Peer.connect(listen)
            client = Records(ssl.create_default_context())
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.shake(peer)
            peer.writer.write(client.outgoing.read() if says_so else b"")
            peer.close()
            await until(lambda: server.tls.failed == 1)

    run(test)
    assert line in caplog.text


@pytest.mark.parametrize("size", [1, 16_384, 65_537, 5_000_000])
@pytest.mark.usefixtures("run")
async def test_frames_of_every_size_go_through_both_ways(size: int) -> None:
    async with serving(port_context()) as (_, listen):
        peer = await Peer.connect(listen, client_context())
        await works(peer, bytes(size))
        await works(peer)
        peer.close()


@pytest.mark.usefixtures("run")
async def test_requests_behind_each_other_are_answered_in_their_order() -> None:
    async with serving(port_context()) as (_, listen):
        peer = await Peer.connect(listen, client_context())
        bodies = [b"%d" % number for number in range(500)]
        peer.writer.write(b"".join(request(body).encode() for body in bodies))
        assert [(await peer.answer()).body for _ in bodies] == bodies
        peer.close()


class Records:
    """A TLS client that lets the test decide which bytes are sent at which time."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    async def shake(self, peer: Peer, *, cut: int = 1 << 20) -> bytes:
        """Make the handshake, but do not send the client's last bytes; return these bytes.

        Args:
            cut: Largest number of bytes that are sent at a time.
        """
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                data = self.outgoing.read()
                for at in range(0, len(data), cut):
                    peer.writer.write(data[at : at + cut])
                    await peer.writer.drain()
                    await asyncio.sleep(0)
                self.incoming.write(await peer.reader.read(1 << 16))
            else:
                return self.outgoing.read()

    def seal(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


@pytest.mark.usefixtures("run")
async def test_a_handshake_byte_by_byte_and_a_request_behind_its_last_flight_are_served() -> None:
    async with serving(port_context()) as (_, listen):
        peer = await Peer.connect(listen)
        client = Records(client_context())
        last = await client.shake(peer, cut=1)
        peer.writer.write(last + client.seal(request(b"behind").encode()))
        answer = await peer.reader.read(1 << 16)
        client.incoming.write(answer)
        assert b"behind" in client.tls.read(1 << 16)
        peer.close()


@pytest.mark.usefixtures("run")
async def test_a_peer_that_says_goodbye_is_closed() -> None:
    async with serving(port_context()) as (server, listen):
        peer = await Peer.connect(listen)
        client = Records(client_context())
        peer.writer.write(await client.shake(peer))
        await until(lambda: server.tls.done == 1)
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        peer.writer.write(client.outgoing.read())
        await peer.closed()
        await until(lambda: not server.connections)


def test_bytes_that_are_no_record_close_the_connection_with_one_line(
    run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(port_context()) as (server, listen):
            peer = await Peer.connect(listen)
            client = Records(client_context())
            peer.writer.write(await client.shake(peer))
            await until(lambda: server.tls.done == 1)
            peer.writer.write(b"\x17\x03\x03\x00\x20" + bytes(32))
            await peer.closed()

    run(test)
    assert len([record for record in caplog.records if "tls failed" in record.getMessage()]) == 1


@pytest.mark.usefixtures("run")
async def test_a_peer_that_does_not_read_is_cut_off_for_sealed_bytes_too() -> None:
    limits = ServerLimits(unread_max=2_000_000)
    async with serving(port_context(), limits=limits) as (server, listen):
        peer = await Peer.connect(listen, client_context())
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(request(bytes(12_000_000)).encode())
        await until(lambda: not server.connections, "the connection is cut off")
        assert server.unread.total == 0
        peer.close()


# -- handshakes that never end ---------------------------------------------------------------------


def hello() -> bytes:
    client = Records(client_context())
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    return client.outgoing.read()


@pytest.mark.parametrize("sent", [b"\x16", b"whole"], ids=["one byte", "a whole hello"])
def test_a_handshake_that_stops_is_closed_in_time(
    run: Run, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(port_context()) as (server, listen):
            server.tls.handshake_s = 0.2
            peer = await Peer.connect(listen)
            peer.writer.write(hello() if sent == b"whole" else sent)
            await peer.closed()
            await until(lambda: not server.connections)
            assert len(server.tls.handshakes) == 0

    run(test)
    assert "no TLS handshake within 0.2 s" in caplog.text


@pytest.mark.usefixtures("run")
async def test_silence_is_closed_in_time_where_tls_is_demanded_and_else_not() -> None:
    async with (
        serving(port_context(mode="enforcing")) as (demanding, listen),
        serving(port_context()) as (permissive, other_listen),
    ):
        demanding.tls.handshake_s = permissive.tls.handshake_s = 0.2
        silent, other = await Peer.connect(listen), await Peer.connect(other_listen)
        await silent.closed()
        await works(other)
        other.close()


@pytest.mark.usefixtures("run")
async def test_the_handshake_that_was_silent_for_longest_goes_when_there_are_too_many() -> None:
    async with serving(port_context()) as (server, listen):
        server.tls.handshakes._host_max = 3
        server.tls.handshake_s = 600.0  # a long limit, so that no handshake is dropped because of its age
        peers = []
        for number in range(5):
            peer = await Peer.connect(listen)
            peer.writer.write(hello())
            peers.append(peer)
            await until(lambda number=number: len(server.tls.handshakes) == min(number + 1, 3))  # type: ignore[misc]
        for peer in peers[:2]:
            await peer.closed()
        peer = await Peer.connect(listen, client_context())
        await works(peer)
        for one in (*peers, peer):
            one.close()


def test_a_handshake_has_a_bound_in_bytes(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(port_context()) as (_, listen):
            peer = await Peer.connect(listen)
            # A ClientHello of 100,000 bytes, cut into many records.
            message = b"\x01" + (100_000).to_bytes(3, "big") + bytes(100_000)
            pieces = [message[at : at + 8_000] for at in range(0, len(message), 8_000)]
            for piece in pieces:
                peer.writer.write(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
            await peer.closed()

    run(test)
    assert f"more than {HANDSHAKE_BYTES_MAX} bytes" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_a_storm_of_handshakes_delays_a_bystander_by_turns_only() -> None:
    async with serving(port_context()) as (server, listen):
        bystander = await Peer.connect(listen, client_context())
        await works(bystander)
        start = hello()
        storm = [await Peer.connect(listen) for _ in range(500)]
        for peer in storm:
            peer.writer.write(start)
        # The 500 clients send nothing more: from now on only the server works.
        most = begun = 0
        while (before := begun) < len(storm):
            await works(bystander)
            begun = len(server.tls.handshakes)
            most = max(most, begun - before)
        # Even the fastest machine needs 0.5 ms for a handshake, so at most 6 handshakes fit into one turn
        # (time slice) of 3 ms. A request of the other client, the bystander, may wait for 25 turns.
        assert most <= 150, "handshakes that one request of a bystander waited for"


@pytest.mark.slow
@pytest.mark.usefixtures("run")
async def test_records_of_one_byte_delay_a_bystander_by_turns_only() -> None:
    async with serving(port_context()) as (server, listen):
        bystander = await Peer.connect(listen, client_context())
        await works(bystander)
        hostile = []
        for _ in range(60):
            peer, client = await Peer.connect(listen), Records(client_context())
            peer.writer.write(await client.shake(peer))
            hostile.append((peer, client))
        await until(lambda: server.tls.done == 61)
        # The beginning of a frame that is never completed, so the server dispatches no request.
        start = (60_000).to_bytes(4) + bytes(640)
        sent = [b"".join(client.seal(bytes([byte])) for byte in start) for _, client in hostile]
        for (peer, _), records in zip(hostile, sent, strict=True):
            peer.writer.write(records)
        await works(bystander)
        assert server.received.total < 50 * len(start), "bytes that were opened before its answer"
        await until(lambda: server.received.total == 60 * len(start))
