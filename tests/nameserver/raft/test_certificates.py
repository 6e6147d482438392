"""Tests of a member's TLS certificate.

The member warns before the certificate expires, and loads a renewed certificate without a restart.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
import urllib.request
from pathlib import Path

import pytest

from tests.faults.servers import Running, refusal, server
from tests.ports import free_addresses
from tests.tls import Authority
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CERTS = Path(__file__).with_name("certs")
WITHIN_S = 40.0
DAY_S = 86_400
GAUGE = re.compile(r"^mqnamesrv_raft_certificate_left_seconds (\S+)$", re.MULTILINE)


def served_until(root: Path, raft: str) -> float:
    """Return the expiry time, in Unix seconds, of the certificate that the member at `raft` presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(root / "ca.pem")
    context.load_cert_chain(root / "member.pem", root / "member.key")
    host, _, port = raft.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=WITHIN_S) as plain,
        context.wrap_socket(plain) as link,
    ):
        certificate = link.getpeercert()
    assert certificate
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def left_s(running: Running) -> float:
    """Return the value of the member's metric that shows how many seconds its certificate is still valid."""
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=WITHIN_S) as reply:
        found = GAUGE.search(reply.read().decode())
    return float(found[1]) if found else 0.0


@pytest.mark.skipif(not Authority.is_possible(), reason="openssl is not here")
def test_a_certificate_that_ends_soon_is_said_and_a_new_one_is_taken_without_a_restart(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("member", days=10)
    (raft,) = free_addresses(1)
    files = ("--raft-tls-cert", cert, "--raft-tls-key", key, "--raft-tls-ca", str(tmp_path / "ca.pem"))
    flags = ("--mode", "raft", "--raft", raft, "--peers", raft, *files)
    with server("nameserver", tmp_path, *flags, http=True) as running:
        assert 9 * DAY_S < left_s(running) <= 10 * DAY_S
        running.says("raft certificate ends soon")
        assert str(tmp_path / "member.pem") in running.log.read_text()
        authority.issue("member", days=200)
        wait_until(lambda: left_s(running) > 100 * DAY_S, "the new certificate counts")
        assert served_until(tmp_path, raft) > time.time() + 100 * DAY_S
        assert "raft certificate read again" in running.log.read_text()
        (tmp_path / "member.pem").write_text("no certificate")
        running.says("raft certificate not taken")
        assert left_s(running) > 100 * DAY_S


def test_the_refusal_of_a_start_says_whose_certificate_has_expired(tmp_path: Path) -> None:
    names = {"cert": "expired.pem", "key": "expired.key", "ca": "authority.pem"}
    words = [word for flag, name in names.items() for word in (f"--raft-tls-{flag}", str(CERTS / name))]
    alone = ("--mode", "raft", "--raft", "127.0.0.1:1", "--peers", "127.0.0.1:1")
    said = refusal("nameserver", tmp_path, *alone, *words)
    assert "this member's certificate" in said
    assert "peer" not in said
    assert str(CERTS / "expired.pem") in said
    assert "has expired" in said
