"""Tests of members that authenticate each other by certificates.

The tests check which peers a member accepts, and that both ends log a refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.links.auth import Credentials
from routekeeper.nameserver.raft.links.tls import TlsContexts, load, names, names_host
from routekeeper.nameserver.raft.links.transport import (
    APPLICATION,
    RAFT,
    STRANGERS_PER_SECOND,
    Link,
    Transport,
)
from routekeeper.nameserver.raft.types import RaftStartError
from routekeeper.remoting.transport.tls import Pipe, TlsError
from tests.nameserver.raft.cluster import Owner
from tests.ports import free_ports
from tests.tls import Authority
from tests.waiting import until

CERTS = Path(__file__).with_name("certs")
SECRET = b"a secret of some length"
FRAME_MAX = 2_000_000


def _contexts(name: str, *, me: str = "127.0.0.1:1", authority: str = "authority") -> TlsContexts:
    return load(me=me, cert=CERTS / f"{name}.pem", key=CERTS / f"{name}.key", ca=CERTS / f"{authority}.pem")


def _forged(name: str) -> TlsContexts:
    """Return TLS contexts with the certificate ``name``, even if a member would not start with it.

    The contexts trust the certificate authority of the tests.
    """
    accept, dial = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    for context in (accept, dial):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(CERTS / f"{name}.pem", CERTS / f"{name}.key")
        context.load_verify_locations(CERTS / "authority.pem")
    return TlsContexts(accept=accept, dial=dial)


# ---- names in certificates, and certificate files


@pytest.mark.skipif(not Authority.is_possible(), reason="there is no openssl")
def test_an_authority_that_ends_before_the_certificate_ends_the_contexts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "ca.pem")
    ends_at = ssl.cert_time_to_seconds(str(context.get_ca_certs()[0]["notAfter"]))
    for days, is_first in ((200, False), (800, True)):
        cert, key = map(Path, authority.issue(days=days))
        found = load(me="127.0.0.1:1", cert=cert, key=key, ca=tmp_path / "ca.pem").expires_at
        assert (found == ends_at) is is_first
        assert found <= ends_at


@pytest.mark.parametrize(
    ("names", "host", "expected"),
    [
        ([("IP Address", "127.0.0.1")], "127.0.0.1", True),
        ([("IP Address", "127.0.0.1")], "127.0.0.2", False),
        ([("IP Address", "0:0:0:0:0:0:0:1\n")], "::1", False),
        ([("IP Address", "0:0:0:0:0:0:0:1")], "::1", True),
        ([("DNS", "ns1.example")], "NS1.Example", True),
        ([("DNS", "ns1.example"), ("DNS", "ns2.example")], "ns2.example.", True),
        ([("DNS", "*.example")], "ns1.example", False),
        ([("DNS", "127.0.0.1")], "127.0.0.1", False),
        ([("URI", "ns1.example")], "ns1.example", False),
        ([], "ns1.example", False),
    ],
)
def test_a_certificate_names_a_host_by_address_or_by_dns_name(
    names: list[tuple[str, str]], host: str, expected: bool
) -> None:
    assert names_host({"subjectAltName": names}, host) is expected


def test_a_certificate_without_names_names_nobody() -> None:
    assert not names_host({}, "127.0.0.1")
    assert names({}) == "nobody"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        pytest.param({"name": "expired"}, "certificate has expired", id="expired"),
        pytest.param({"name": "stranger"}, "local issuer", id="of another authority"),
        pytest.param({"name": "server-only"}, "unsuitable certificate purpose", id="may not dial"),
        pytest.param({"name": "other-host"}, "names 127.0.0.99, not 127.0.0.1", id="of another host"),
        pytest.param({"name": "member", "me": "ns1.example:1"}, "not ns1.example", id="name by addresses"),
        pytest.param({"name": "absent"}, "No such file", id="no file"),
        pytest.param({"name": "member", "authority": "absent"}, "authority .*: No such file", id="no ca"),
    ],
)
def test_a_certificate_that_cannot_work_is_refused_at_start(settings: dict[str, str], match: str) -> None:
    with pytest.raises(RaftStartError, match=match):
        _contexts(**settings)


def test_a_key_of_another_certificate_or_no_pem_is_refused_at_start(tmp_path: Path) -> None:
    member, ca = CERTS / "member.pem", CERTS / "authority.pem"
    with pytest.raises(RaftStartError, match="key values mismatch"):
        load(me="127.0.0.1:1", cert=member, key=CERTS / "stranger.key", ca=ca)
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(RaftStartError, match=r"raft: authority .*no\.pem"):
        load(me="127.0.0.1:1", cert=member, key=CERTS / "member.key", ca=tmp_path / "no.pem")


# ---- TLS in memory, without sockets


def _pipes(dial: TlsContexts, accept: TlsContexts) -> tuple[Pipe, Pipe]:
    return dial.pipe(accepts=False), accept.pipe(accepts=True)


def _shake(dial: Pipe, accept: Pipe) -> None:
    assert not dial.shake(b"")
    assert not accept.shake(dial.pending())
    assert dial.shake(accept.pending())
    assert accept.shake(dial.pending())
    assert dial.open(accept.pending()) == b""


def test_bytes_pass_whole_in_any_pieces() -> None:
    contexts = _contexts("member")
    dial, accept = _pipes(contexts, contexts)
    _shake(dial, accept)
    assert names(accept.certificate()) == "127.0.0.1,0:0:0:0:0:0:0:1"
    sent = os.urandom(700_000)
    wire = dial.seal(sent[:10]) + dial.seal(sent[10:])
    assert sent not in wire
    got = b"".join(accept.open(wire[at : at + 1000]) or b"" for at in range(0, len(wire), 1000))
    assert got == sent
    assert dial.open(accept.seal(b"back")) == b"back"


def test_only_tls_1_3_is_spoken() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    contexts = _contexts("member")
    dial, accept = _pipes(TlsContexts(accept=contexts.accept, dial=old), contexts)
    dial.shake(b"")
    with pytest.raises(TlsError, match="unsupported protocol"):
        accept.shake(dial.pending())
    with pytest.raises(TlsError, match="the peer refuses: tlsv1 alert protocol version"):
        dial.shake(accept.pending())  # the end that dials learns the reason, too


def test_changed_bytes_end_the_connection() -> None:
    contexts = _contexts("member")
    dial, accept = _pipes(contexts, contexts)
    _shake(dial, accept)
    wire = bytearray(dial.seal(b"hello there"))
    wire[-1] ^= 1
    with pytest.raises(TlsError, match="bad record mac"):
        accept.open(bytes(wire))


# ---- members on real sockets


@pytest.fixture(autouse=True)
def only_the_greater_name_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the member with the greater name (in text order) dial, so that a test can choose this member.

    Otherwise, the other member would also dial if there is no link after some time, as on a slow machine.
    """
    for constant in ("FIRST_DIAL_AFTER_S", "LESSER_DIALS_AFTER_S"):
        monkeypatch.setattr(f"routekeeper.nameserver.raft.links.transport.{constant}", 600.0)


class _Pair:
    """Two members. The member with the greater name (in text order) dials the other member."""

    def __init__(
        self,
        accept: TlsContexts | None,
        dial: TlsContexts | None,
        *,
        host: str = "127.0.0.1",
        secrets: tuple[bytes | None, bytes | None] = (None, None),
    ) -> None:
        self.names = sorted(f"{host}:{port}" for port in free_ports(2))
        self.owners = (Owner(), Owner())
        self.transports = tuple(
            Transport(
                Credentials(me=name, members=frozenset(self.names), cluster="c", secret=secret),
                owner=owner,
                frame_size_max=FRAME_MAX,
                tls=tls,
            )
            for name, owner, tls, secret in zip(self.names, self.owners, (accept, dial), secrets, strict=True)
        )

    @property
    def linked(self) -> bool:
        return all(list(owner.linked.values()) == [1] for owner in self.owners)

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[_Pair]:
        for transport, name in zip(self.transports, self.names, strict=True):
            await transport.listen(name)
            await transport.go()
        try:
            yield self
        finally:
            for transport in self.transports:
                await transport.close()


@pytest.mark.parametrize(
    ("certificate", "host", "secret"),
    [("member", "127.0.0.1", None), ("by-name", "localhost", SECRET)],
    ids=["address", "name, and a secret"],
)
async def test_members_with_certificates_of_their_addresses_talk(
    certificate: str, host: str, secret: bytes | None
) -> None:
    tls = _contexts(certificate, me=f"{host}:1")
    async with _Pair(tls, tls, host=host, secrets=(secret, secret)).up() as pair:
        await until(lambda: pair.linked)
        large = os.urandom(FRAME_MAX - 100)
        for here, there in ((0, 1), (1, 0)):
            for i in range(20):
                kind = RAFT if i % 2 else APPLICATION
                assert pair.transports[here].send(pair.names[there], kind, b"%d" % i)
            assert pair.transports[here].send(pair.names[there], RAFT, large)
        await until(lambda: all(len(owner.order) == 21 for owner in pair.owners))
        for owner in pair.owners:
            assert owner.order == [*(b"%d" % i for i in range(20)), large]


REFUSED = {
    "dialler of another authority": (
        "member",
        "stranger",
        ["local issuer"],
        ["refuses our certificate: .*unknown ca"],
    ),
    "dialler expired": (
        "member",
        "expired",
        ["has expired"],
        ["refuses our certificate: .*certificate expired"],
    ),
    "acceptor expired": (
        "expired",
        "member",
        ["refuses our certificate: .*certificate expired"],
        ["has expired"],
    ),
    "acceptor of another authority": (
        "stranger",
        "member",
        ["refuses our certificate: .*unknown ca"],
        ["local issuer"],
    ),
    "dialler of another host": (
        "member",
        "other-host",
        ["certificate names 127.0.0.99, not 127.0.0.1"],
        ["does not take us for a member"],
    ),
    "acceptor of another host": (
        "other-host",
        "member",
        ["left without a word: does our certificate name this member"],
        ["certificate names 127.0.0.99, not 127.0.0.1"],
    ),
    "dialler may not dial": (
        "member",
        "server-only",
        ["unsuitable certificate purpose"],
        ["refuses our certificate: .*certificate"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", REFUSED)
async def test_who_cannot_prove_itself_is_refused_and_both_ends_say_so_once(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    accept, dial, acceptor_says, dialler_says = REFUSED[how]
    with caplog.at_level(logging.WARNING, "routekeeper.nameserver.raft.links.transport"):
        async with _Pair(_forged(accept), _forged(dial)).up() as pair:
            await until(lambda: len(caplog.records) >= 2)
            await asyncio.sleep(0.5)  # in this time, more attempts must not cause more log lines
            assert not any(owner.linked for owner in pair.owners)
            # Read the log before the transports are closed. If a transport is closed during an attempt,
            # it writes one more line.
            said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    for says in (*acceptor_says, *dialler_says):
        assert len([line for line in said if re.search(says, line)]) == 1, said


@pytest.mark.parametrize("who", ["acceptor", "dialler"])
async def test_a_member_without_tls_is_told_that_the_other_has_it(
    who: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls = _contexts("member")
    pair = _Pair(None, tls) if who == "acceptor" else _Pair(tls, None)
    with caplog.at_level(logging.WARNING, "routekeeper.nameserver.raft.links.transport"):
        async with pair.up():
            await until(lambda: len(caplog.records) >= 2)
    text = caplog.text
    if who == "acceptor":
        expected = ("it speaks TLS, which this member is not set up for", "it ended the TLS handshake")
    else:
        expected = ("it does not speak TLS", "it does not take us for a member: its log says why")
    assert all(line in text for line in expected)
    assert not any(owner.linked for owner in pair.owners)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_differing_secrets_are_said_at_both_ends(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    contexts = _contexts("member") if tls else None
    secrets = (SECRET, b"another secret, as long")
    with caplog.at_level(logging.WARNING, "routekeeper.nameserver.raft.links.transport"):
        async with _Pair(contexts, contexts, secrets=secrets).up() as pair:
            await until(lambda: len(caplog.records) >= 2)
            await asyncio.sleep(0.3)
            assert not any(owner.linked for owner in pair.owners)
            # Read the log before the transports are closed, because closing them writes one more line.
            said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    text = "\n".join(said)
    assert f"wrong proof from {pair.names[1]}: another secret" in text
    assert "it does not take our proof: is its secret another one?" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(b"\x16\x03\x01\x40\x00" + os.urandom(1000), id="half a record"),
        pytest.param(os.urandom(200_000), id="garbage"),
    ],
)
async def test_a_stranger_is_closed_and_a_member_stays(attack: bytes) -> None:
    tls = _contexts("member")
    async with _Pair(tls, tls).up() as pair:
        await until(lambda: pair.linked)
        host, _, port = pair.names[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(attack)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20.0)  # at most a TLS alert, then the end
        writer.close()
        assert pair.transports[1].send(pair.names[0], RAFT, b"still here")
        await until(lambda: pair.owners[0].order == [b"still here"])
        assert pair.linked


async def test_certificates_allow_an_address_that_others_can_reach() -> None:
    tls = _contexts("member")
    transport = Transport(
        Credentials(me="127.0.0.1:1", members=frozenset({"127.0.0.1:1"}), cluster="c", secret=None),
        owner=Owner(),
        frame_size_max=FRAME_MAX,
        tls=tls,
    )
    assert (await transport.listen("0.0.0.0:0")).startswith("0.0.0.0:")
    await transport.close()


class _Wire(asyncio.Transport):
    """A fake transport of a link to the peer at `host`."""

    def __init__(self, host: str, tuned: socket.socket) -> None:
        super().__init__({"peername": (host, 1), "socket": tuned})
        self.closed = False
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close


async def test_strangers_of_one_network_begin_as_few_handshakes_a_second_as_one_host() -> None:
    tls = _contexts("member")
    recorded = tls.pipe(accepts=False)
    recorded.shake(b"")
    hello = recorded.pending()
    loop = asyncio.get_running_loop()
    credentials = Credentials(me="127.0.0.1:1", members=frozenset({"127.0.0.1:1"}), cluster="c", secret=None)
    transport = Transport(credentials, owner=Owner(), frame_size_max=FRAME_MAX, tls=tls)
    answered, began = 0, int(loop.time())
    with socket.socket() as tuned:
        for number in range(300):
            wire, link = _Wire(f"2001:db8:0:7::{number:x}", tuned), Link(transport, None)
            link.connection_made(wire)
            if not wire.closed:
                link.data_received(hello)
                answered += bool(wire.sent)
    assert 0 < answered <= STRANGERS_PER_SECOND * (int(loop.time()) - began + 1)
    await transport.close()


async def test_members_find_each_other_again_while_strangers_begin_handshakes() -> None:
    """Members must be able to link again while strangers (unknown peers) start many TLS handshakes.

    A stranger can send a recorded TLS hello at no cost. The receiver must sign its answer, in the thread that
    serves all requests. So a member answers only a limited number of hellos of one host per second. This
    limit must not delay members.
    """
    tls = _contexts("member")
    recorded = tls.pipe(accepts=False)
    recorded.shake(b"")
    hello = recorded.pending()
    loop = asyncio.get_running_loop()
    async with _Pair(tls, tls).up() as pair:
        await until(lambda: pair.linked)
        host, port = pair.names[0].rsplit(":", 1)
        held: list[socket.socket] = []
        answered = 0
        began = int(loop.time())

        def allowed() -> int:
            return STRANGERS_PER_SECOND * (int(loop.time()) - began + 1)

        async def flood() -> None:
            nonlocal answered
            while len(held) < 2 * allowed():
                held.append(stranger := socket.socket())
                stranger.setblocking(False)
                stranger.bind(("127.0.0.2", 0))
                await loop.sock_connect(stranger, (host, int(port)))
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(stranger, hello)
                    answered += bool(await loop.sock_recv(stranger, 65536))

        flooding = asyncio.ensure_future(flood())
        try:
            for _ in range(3):
                pair.transports[0].drop(pair.names[1])
                await until(lambda: not pair.linked)
                await until(lambda: pair.linked)
            await flooding
            assert answered <= allowed()
            assert answered < len(held)
            assert pair.linked
        finally:
            flooding.cancel()
            for stranger in held:
                stranger.close()
