"""Tests of HTTPS at real nameservers and brokers.

The tests cover client certificates, renewed certificates and incomplete handshakes.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from routekeeper.remoting.addresses import split_address
from tests.tls import Authority, client_context, key, pem
from tests.waiting import WITHIN_S, wait_until

from .servers import SERVERS, Running, server

pytestmark = [pytest.mark.faults, pytest.mark.slow]

FLAGS = ("--http-tls-cert", pem("member"), "--http-tls-key", key("member"))


def get(running: Running, path: str, context: ssl.SSLContext | None) -> bytes:
    scheme = "http" if context is None else "https"
    url = f"{scheme}://{running.http}{path}"
    with urllib.request.urlopen(url, timeout=WITHIN_S, context=context) as reply:
        found: bytes = reply.read()
        return found


@SERVERS
def test_http_is_served_by_tls_where_a_certificate_is_given_and_the_wire_stays_plain(
    kind: str, tmp_path: Path
) -> None:
    with server(kind, tmp_path, *FLAGS, http=True) as running:
        assert b"# HELP" in get(running, "/metrics", client_context())
        assert get(running, "/readyz", client_context())
        assert running.works()
        assert not running.works(client_context())
        with pytest.raises((OSError, http.client.HTTPException)):
            get(running, "/metrics", None)
        running.says("http tls failed peer=")
        running.says("it does not speak TLS")
        # A broker allows only 64 connections, but 100 incomplete handshakes must not block the next request.
        # They must end in time.
        with contextlib.ExitStack() as held:
            address = split_address(running.http)
            halves = [
                held.enter_context(socket.create_connection(address, timeout=WITHIN_S)) for _ in range(100)
            ]
            for half in halves:
                half.sendall(b"\x16\x03\x01")
            began = time.monotonic()
            assert get(running, "/healthz", client_context())
            for half in halves:
                with contextlib.suppress(ConnectionError):
                    assert half.recv(1) == b""
            assert time.monotonic() - began < 30


@SERVERS
def test_an_authority_demands_certificates_of_clients(kind: str, tmp_path: Path) -> None:
    with server(kind, tmp_path, *FLAGS, "--http-tls-ca", pem("authority"), http=True) as running:
        assert get(running, "/healthz", client_context("member"))
        for name in (None, "expired", "stranger"):
            with pytest.raises((OSError, http.client.HTTPException)):
                get(running, "/healthz", client_context(name))
        running.says("peer did not return a certificate")
        running.says("certificate has expired")


@SERVERS
def test_a_new_certificate_of_http_is_taken_without_a_restart(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, its_key = authority.issue(days=5)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    def serial() -> object:
        host, _, port = running.http.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            certificate = link.getpeercert()
        assert certificate
        return certificate["serialNumber"]

    with server(kind, tmp_path, "--http-tls-cert", cert, "--http-tls-key", its_key, http=True) as running:
        running.says("http tls certificate ends soon")
        before = serial()
        authority.issue(days=200)
        wait_until(lambda: serial() != before, "the new certificate is shown", every_s=0.2)
        assert get(running, "/healthz", context)


def test_a_large_answer_and_a_kept_connection_go_through(tmp_path: Path) -> None:
    with server("nameserver", tmp_path, *FLAGS, http=True) as running:
        link = http.client.HTTPSConnection(running.http, timeout=WITHIN_S, context=client_context())
        for _ in range(3):
            link.request("GET", "/openapi.json")
            document = link.getresponse().read()
            assert len(document) > 50_000
        link.close()
