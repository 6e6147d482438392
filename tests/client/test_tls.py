"""The client with TLS: how it checks a server, its errors, and all its operations over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ProducerConfig, TlsConfig
from routekeeper.client.core import ClientCore
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.operation import Operation, invoke
from routekeeper.client.producer import Message, ProducerCore
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost

from .conftest import Peer, Runner

CERTS = Path(__file__).resolve().parent.parent / "nameserver" / "raft" / "certs"
AUTHORITY = str(CERTS / "authority.pem")


class Front:
    """A TLS proxy, with a certificate of the tests, in front of a server without TLS."""

    def __init__(self, target: str, certificate: str, *, asks: bool = False) -> None:
        self._target = target
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTS / f"{certificate}.pem", CERTS / f"{certificate}.key")
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(AUTHORITY)
        self._context = context
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self._started: Future[str] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self.addr = self._started.result(10)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._serve_one, "127.0.0.1", 0, ssl=self._context)
        host, port = server.sockets[0].getsockname()
        self._started.set_result(f"{host}:{port}")
        await self._stop.wait()
        server.close()
        self._hang_up()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self._target.rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, inner_writer}

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def hang_up(self) -> None:
        """Close every client's connection, like a server that closes idle connections."""
        self._loop.call_soon_threadsafe(self._hang_up)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)
        self._loop.close()


@pytest.fixture
def new_front() -> Iterator[Callable[..., Front]]:
    """Yield a function that starts TLS proxies. The fixture stops the proxies when the test ends."""
    fronts: list[Front] = []

    def make(target: str, certificate: str = "member", *, asks: bool = False) -> Front:
        fronts.append(Front(target, certificate, asks=asks))
        return fronts[-1]

    yield make
    for front in fronts:
        front.close()


def echoing(request: RemotingCommand) -> RemotingCommand:
    return request.reply(body=request.body)


def settings(addr: str, tls: TlsConfig | None) -> ClientConfig:
    return ClientConfig(nameservers=(addr,), tls=tls, connect_timeout_s=5.0)


def echo(addr: str, body: bytes) -> Callable[[ClientCore], Operation[RemotingCommand]]:
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO, {}, body)
    return lambda core: invoke(addr, request, 10.0)


@pytest.mark.parametrize(
    ("certificate", "tls"),
    [
        pytest.param("member", TlsConfig(ca_file=AUTHORITY), id="host"),
        pytest.param("other-host", TlsConfig(ca_file=AUTHORITY, check="authority"), id="authority"),
        pytest.param("stranger", TlsConfig(check="nothing"), id="nothing"),
    ],
)
def test_requests_of_every_size_are_answered(
    run: Runner,
    new_peer: Callable[..., Peer],
    new_front: Callable[..., Front],
    certificate: str,
    tls: TlsConfig,
) -> None:
    peer = new_peer(echoing)
    front = new_front(peer.addr, certificate)

    def several(core: ClientCore) -> Operation[list[int]]:
        sizes = []
        for size in (0, 1, 16_383, 3_000_000):
            answer = yield from echo(front.addr, b"x" * size)(core)
            sizes.append(len(answer.body))
        return sizes

    assert run(settings(front.addr, tls), several) == [0, 1, 16_383, 3_000_000]
    assert front.connections == 1


@pytest.mark.parametrize(
    ("certificate", "tls", "said"),
    [
        ("other-host", TlsConfig(ca_file=AUTHORITY), "its certificate is refused: IP address mismatch"),
        ("expired", TlsConfig(ca_file=AUTHORITY), "its certificate is refused: certificate has expired"),
        (
            "stranger",
            TlsConfig(ca_file=AUTHORITY, check="authority"),
            "its certificate is refused: unable to get local issuer certificate",
        ),
        ("member", TlsConfig(), "its certificate is refused: unable to get local issuer certificate"),
    ],
)
def test_a_server_that_does_not_show_what_is_demanded_gets_nothing(
    run: Runner,
    new_peer: Callable[..., Peer],
    new_front: Callable[..., Front],
    certificate: str,
    tls: TlsConfig,
    said: str,
) -> None:
    peer = new_peer(echoing)
    front = new_front(peer.addr, certificate)
    with pytest.raises(ConnectionLost, match=said) as failure:
        run(settings(front.addr, tls), echo(front.addr, b"secret"))
    assert not failure.value.sent
    assert peer.requests == []


def test_a_server_without_tls_is_named(run: Runner) -> None:
    async def answer_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with plain_server(answer_plainly) as addr, pytest.raises(ConnectionLost, match="does not speak TLS"):
        run(settings(addr, TlsConfig(ca_file=AUTHORITY)), echo(addr, b""))


def test_a_server_that_hangs_up_on_tls_is_named(run: Runner) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.close()

    with plain_server(hang_up) as addr, pytest.raises(ConnectionLost, match="during the TLS handshake"):
        run(settings(addr, TlsConfig(ca_file=AUTHORITY)), echo(addr, b""))


@pytest.mark.slow
@pytest.mark.parametrize("drips", [False, True], ids=["silent", "byte-by-byte"])
def test_a_handshake_that_never_ends_is_given_up_within_the_time_for_connecting(
    run: Runner, drips: bool
) -> None:
    async def say_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The first bytes of a handshake record of 16,384 bytes. The server sends 2 bytes per ms, so the whole
        # record takes over 8 s.
        said = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc" + bytes(16_384) if drips else b""
        for byte in said:
            if reader.at_eof() or writer.is_closing():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.0005)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    with plain_server(say_little) as addr:
        config = ClientConfig(nameservers=(addr,), tls=TlsConfig(ca_file=AUTHORITY), connect_timeout_s=0.5)
        begin = time.monotonic()
        with pytest.raises(ConnectionLost, match=f"no connection to {addr}") as failure:
            run(config, echo(addr, b""))
        assert time.monotonic() - begin < 4
    assert not failure.value.sent


@contextlib.contextmanager
def plain_server(serve: Callable[..., Any]) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


def test_a_server_that_asks_for_a_certificate_gets_ours(
    run: Runner, new_peer: Callable[..., Peer], new_front: Callable[..., Front]
) -> None:
    peer = new_peer(echoing)
    front = new_front(peer.addr, asks=True)
    ours = TlsConfig(
        ca_file=AUTHORITY, cert_file=str(CERTS / "member.pem"), key_file=str(CERTS / "member.key")
    )
    assert run(settings(front.addr, ours), echo(front.addr, b"hello")).body == b"hello"
    with pytest.raises(ConnectionLost):
        run(settings(front.addr, TlsConfig(ca_file=AUTHORITY)), echo(front.addr, b"hello"))
    assert len(peer.requests) == 1


def test_brokers_can_be_secured_where_nameservers_are_not(
    run: Runner,
    new_peer: Callable[..., Peer],
    new_front: Callable[..., Front],
    route_body: Callable[..., bytes],
) -> None:
    broker = new_peer(
        lambda request: request.reply(ext_fields={"msgId": "A", "queueId": "0", "queueOffset": "7"})
    )
    front = new_front(broker.addr)
    nameserver = new_peer(lambda request: request.reply(body=route_body(broker_a=front.addr)))
    config = settings(nameserver.addr, TlsConfig(ca_file=AUTHORITY, nameservers=False))

    def send(core: ClientCore) -> Operation[Any]:
        producer = ProducerCore(ProducerConfig(group="g"), core.directory, core.ids, core.rng)
        return producer.send(Message(topic="T", body=b"x"))

    assert run(config, send).queue_offset == 7
    assert front.connections == 1


@pytest.mark.parametrize(
    ("tls", "named"),
    [
        (TlsConfig(ca_file="/no/such/ca.pem"), "ca_file '/no/such/ca.pem': No such file"),
        (TlsConfig(ca_file=str(CERTS / "make.sh")), "ca_file .*make.sh"),
        (TlsConfig(ca_file=AUTHORITY, cert_file="/no/such/cert.pem"), "cert_file '/no/such/cert.pem'"),
        (
            TlsConfig(cert_file=str(CERTS / "member.pem"), key_file=str(CERTS / "expired.key")),
            "key values mismatch",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_before_anything_is_sent(
    run: Runner, tls: TlsConfig, named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        run(settings("127.0.0.1:1", tls), echo("127.0.0.1:1", b""))


def test_settings_that_contradict_each_other_are_refused() -> None:
    wrong: Literal["host"] = "never"  # type: ignore[assignment]  # a program without type checks may pass it
    with pytest.raises(InvalidArgument, match="check='never', allowed host, authority, nothing"):
        TlsConfig(check=wrong)
    with pytest.raises(InvalidArgument, match="key_file='k' needs a cert_file"):
        TlsConfig(key_file="k")
    with pytest.raises(InvalidArgument, match="check='nothing' does not use ca_file='a'"):
        TlsConfig(check="nothing", ca_file="a")


def test_a_blocking_client_notices_that_a_server_took_its_leave(
    new_peer: Callable[..., Peer], new_front: Callable[..., Front], eventually: Callable[..., None]
) -> None:
    front = new_front(new_peer(echoing).addr)
    started = routekeeper.client.blocking.Client(settings(front.addr, TlsConfig(ca_file=AUTHORITY)))
    with contextlib.closing(started):
        assert started.run(echo(front.addr, b"a")(started.core)).body == b"a"
        front.hang_up()
        (connection,) = started._transport._connections.values()
        eventually(lambda: not connection.usable(), "the end of the connection is seen")
        assert started.run(echo(front.addr, b"b")(started.core)).body == b"b"
    assert front.connections == 2


def test_threads_share_a_secured_connection(
    new_peer: Callable[..., Peer], new_front: Callable[..., Front]
) -> None:
    front = new_front(new_peer(echoing).addr)
    started = routekeeper.client.blocking.Client(settings(front.addr, TlsConfig(ca_file=AUTHORITY)))
    bodies = [bytes([number % 251]) * (1 + number * 997 % 100_000) for number in range(400)]
    with contextlib.closing(started), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: started.run(echo(front.addr, body)(started.core)), bodies))
    assert [answer.body for answer in answers] == bodies
    assert front.connections == 1
