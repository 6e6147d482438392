"""Tests of TLS at the ports of real nameservers and brokers.

The tests cover the TLS modes, changed certificates and incompatible clients.
"""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.tls import Authority, client_context, key, pem
from tests.waiting import wait_until

from .servers import SERVERS, Running, memory, refusal, server

__all__ = ["server"]  # tests of the client import ``server`` from this module

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def member(*more: str) -> tuple[str, ...]:
    return ("--tls-cert", pem("member"), "--tls-key", key("member"), *more)


@SERVERS
def test_a_server_with_a_certificate_serves_both_kinds_of_clients(kind: str, tmp_path: Path) -> None:
    with server(kind, tmp_path, *member()) as running:
        assert running.works(client_context())
        assert running.works()


@SERVERS
def test_a_server_without_settings_is_plain_and_names_a_client_that_speaks_tls(
    kind: str, tmp_path: Path
) -> None:
    with server(kind, tmp_path) as running:
        assert running.works()
        assert not running.works(client_context())
        running.says("this client speaks TLS; see --tls-mode")
        with running.connect() as link:
            link.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert link.recv(1) == b""
        running.says("this client speaks HTTP; its port is that of --http")


@SERVERS
def test_rocketmqs_file_sets_mutual_tls_and_an_encrypted_key(kind: str, tmp_path: Path) -> None:
    """Check that RocketMQ's file makes the port serve only TLS, and only clients with a certificate.

    The file also has two settings that must change nothing: an unknown key, and a switch that is not
    supported.
    """
    authority = Authority(tmp_path)
    cert, its_key = authority.issue(password="s3cret")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={cert}\ntls.server.keyPath={its_key}\n"
        f"tls.server.keyPassword=s3cret\ntls.server.need.client.auth=require\n"
        f"tls.server.trustCertPath={pem('authority')}\ntls.test.mode.enable=false\n"
        "tls.server.authClient=false\ntls.sever.mode=disabled\n"
    )
    with server(kind, tmp_path, "--tls-config", str(file)) as running:
        running.says("reason=tls.server.authClient=false is ignored")
        running.says("reason=tls.sever.mode: unknown")
        assert not running.works()
        running.says("it does not speak TLS, and this port demands it")
        clients = {
            name: ssl.create_default_context(cafile=tmp_path / "ca.pem") for name in ("none", "member")
        }
        clients["member"].load_cert_chain(pem("member"), key("member"))
        assert running.works(clients["member"])
        assert not running.works(clients["none"])
        running.says("peer did not return a certificate")
        clients["none"].load_cert_chain(pem("expired"), key("expired"))
        assert not running.works(clients["none"])
        running.says("the peer's certificate is refused: certificate has expired")


@pytest.mark.parametrize(
    ("kind", "flags", "says"),
    [
        ("nameserver", ("--tls-mode", "enforcing"), "--tls-mode enforcing needs --tls-cert"),
        ("broker", ("--tls-cert", "none.pem", "--tls-key", "k"), "certificate none.pem: No such file"),
        ("nameserver", ("--tls-cert", pem("member"), "--tls-key", key("expired")), "key values mismatch"),
        ("broker", ("--tls-config", "none"), "--tls-config none: No such file"),
        ("nameserver", ("--http-tls-key", "k"), "--http-tls-key needs --http-tls-cert"),
        ("broker", ("--http-tls-key", "k"), "--http-tls-key needs --http-tls-cert"),
    ],
    ids=["no certificate", "no file", "another key", "no config", "HTTP", "HTTP of a broker"],
)
def test_settings_that_cannot_be_used_refuse_the_start_in_one_line(
    kind: str, flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    line = refusal(kind, tmp_path, *flags)
    assert says in line
    assert len(line.splitlines()) == 1


def serial(running: Running, context: ssl.SSLContext) -> object:
    with running.connect(context) as link:
        assert isinstance(link, ssl.SSLSocket)
        certificate = link.getpeercert()
    assert certificate
    return certificate["serialNumber"]


def test_the_file_of_settings_is_watched_too_and_makes_a_plain_port_secure_without_a_restart(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("")
    with server("nameserver", tmp_path, "--tls-config", str(file)) as running, running.connect() as stays:
        assert running.works()
        assert not running.works(client_context())
        pair = f"tls.server.certPath={pem('member')}\ntls.server.keyPath={key('member')}\n"
        file.write_text(pair)
        wait_until(lambda: running.works(client_context()), "permissive", every_s=0.2)
        assert running.works()
        file.write_text(pair + "tls.server.mode=enforcing\n")
        wait_until(lambda: not running.works(), "enforcing", every_s=0.2)
        assert running.works(client_context())
        assert running.ask(stays).code == 0


def test_an_emptied_file_of_settings_switches_tls_not_off_and_is_taken_once_it_is_repaired(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tls.properties"
    pair = f"tls.server.certPath={pem('member')}\ntls.server.keyPath={key('member')}\n"
    demands = (
        "tls.server.mode=enforcing\n"
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={pem('authority')}\n"
    )
    file.write_text(demands + pair)
    with server("broker", tmp_path, "--tls-config", str(file)) as running:
        assert running.works(client_context("member"))
        file.write_text("")
        running.says(
            f"tls certificate not taken, the former one goes on error=--tls-config {file}: the line"
            " tls.server.mode is missing, perhaps the file is incomplete; write the line"
        )
        assert not running.works()
        assert not running.works(client_context())
        assert running.works(client_context("member"))
        file.write_text(demands + pair)
        running.says("tls certificate read again")
        assert not running.works()
        assert running.works(client_context("member"))


@pytest.mark.one_core
def test_thousands_of_half_handshakes_keep_neither_a_bystander_nor_a_newcomer_waiting(tmp_path: Path) -> None:
    """Check that incomplete handshakes delay no other client and use limited memory.

    Each incomplete handshake uses 45 KiB in OpenSSL.
    """
    first = hello()
    with (
        server("nameserver", tmp_path, *member()) as running,
        running.connect(client_context()) as bystander,
    ):
        assert running.ask(bystander).code == 0
        before = memory(running.pid)
        took, halves = [], []
        try:
            for number in range(2_000):
                halves.append(running.connect())
                halves[-1].sendall(first)
                if number % 50 == 0:
                    began = time.monotonic()
                    assert running.ask(bystander).code == 0
                    took.append(time.monotonic() - began)
                if number % 500 == 499:
                    assert running.works(client_context()), running.log.read_text()[-1500:]
            # A busy machine delays one or two answers, so the test ignores the two slowest answers. If
            # handshakes blocked the server, all answers would be slow.
            assert sorted(took)[-3] < 2.0, "seconds; alone it waits for some ms"
            assert memory(running.pid) - before < 100 << 20
            # The server has already closed some of the incomplete handshakes. It must close the remaining
            # handshakes after a time limit.
            wait_until(lambda: all(map(is_closed, halves)), "half handshakes are closed", every_s=0.2)
        finally:
            for half in halves:
                half.close()
        running.says("too many TLS handshakes wait for their peers")
        assert running.works(client_context())


def hello() -> bytes:
    """Return the first bytes that a TLS client sends (its ClientHello)."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def is_closed(link: socket.socket) -> bool:
    """Discard all bytes that the server sent, and return True if the server has closed the connection."""
    link.settimeout(0.001)
    try:
        while link.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
