"""Tests of a member's certificate.

The member warns before the certificate expires, and reads it again after its renewal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_addresses
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CERTS = Path(__file__).with_name("certs")
WITHIN_S = 40.0
DAY_S = 86_400
GAUGE = re.compile(r"^mqnamesrv_raft_certificate_left_seconds (\S+)$", re.MULTILINE)


@dataclass
class Files:
    """The certificate, the key and the CA file of one member, in one directory."""

    root: Path

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.root, check=True, capture_output=True)

    def make_authority(self) -> None:
        self.openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "400", "-subj", "/CN=authority"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, days: int) -> None:
        """Replace the certificate and its key by a new pair that is valid for `days` days."""
        (self.root / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        self.openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=member"),
            *("-keyout", "new.key", "-out", "new.csr"),
        )
        self.openssl(
            *("x509", "-req", "-in", "new.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", str(days), "-extfile", "names", "-out", "new.pem"),
        )
        for name in ("key", "pem"):
            os.replace(self.root / f"new.{name}", self.root / f"member.{name}")

    @property
    def flags(self) -> tuple[str, ...]:
        names = {"cert": "member.pem", "key": "member.key", "ca": "ca.pem"}
        return tuple(
            word for flag, name in names.items() for word in (f"--raft-tls-{flag}", str(self.root / name))
        )

    def served_until(self, raft: str) -> float:
        """Return the expiry time, in Unix seconds, of the certificate that the member at `raft` presents."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.root / "ca.pem")
        context.load_cert_chain(self.root / "member.pem", self.root / "member.key")
        host, _, port = raft.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=WITHIN_S) as plain,
            context.wrap_socket(plain) as link,
        ):
            certificate = link.getpeercert()
        assert certificate
        return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    files = Files(tmp_path)
    files.make_authority()
    return files


@dataclass
class Running:
    raft: str
    http: str
    log: Path

    def left_s(self) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=WITHIN_S) as reply:
            found = GAUGE.search(reply.read().decode())
        return float(found[1]) if found else 0.0


@contextlib.contextmanager
def member(tmp_path: Path, flags: tuple[str, ...]) -> Iterator[Running]:
    raft, http = free_addresses(2)
    command = [
        sys.executable,
        "-m",
        "routekeeper.nameserver",
        "--mode",
        "raft",
        "--raft",
        raft,
        "--peers",
        raft,
    ]
    command += ["--listen", "127.0.0.1:0", "--http", http, "--data", str(tmp_path / "data"), *flags]
    log = tmp_path / "stderr.txt"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("mqnamesrv ready"), log.read_text()
            yield Running(raft, http, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()


def test_a_certificate_that_ends_soon_is_said_and_a_new_one_is_taken_without_a_restart(
    tmp_path: Path, files: Files
) -> None:
    files.issue(days=10)
    with member(tmp_path, files.flags) as running:
        assert 9 * DAY_S < running.left_s() <= 10 * DAY_S
        wait_until(lambda: "raft certificate ends soon" in running.log.read_text(), "a warning at the start")
        assert str(tmp_path / "member.pem") in running.log.read_text()
        files.issue(days=200)
        wait_until(lambda: running.left_s() > 100 * DAY_S, "the new certificate counts")
        assert files.served_until(running.raft) > time.time() + 100 * DAY_S
        assert "raft certificate read again" in running.log.read_text()
        (tmp_path / "member.pem").write_text("no certificate")
        wait_until(
            lambda: "raft certificate not taken" in running.log.read_text(), "a warning about the file"
        )
        assert running.left_s() > 100 * DAY_S


def test_the_refusal_of_a_start_says_whose_certificate_has_expired(tmp_path: Path) -> None:
    flags = [f"--raft-tls-{name}" for name in ("cert", "key", "ca")]
    names = ("expired.pem", "expired.key", "authority.pem")
    values = [str(CERTS / name) for name in names]
    command = [sys.executable, "-m", "routekeeper.nameserver", "--mode", "raft", "--listen", "127.0.0.1:0"]
    command += ["--raft", "127.0.0.1:1", "--peers", "127.0.0.1:1", "--data", str(tmp_path / "data")]
    command += [word for pair in zip(flags, values, strict=True) for word in pair]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert ended.returncode == 2
    assert "this member's certificate" in ended.stderr
    assert "peer" not in ended.stderr
    assert values[0] in ended.stderr
    assert "has expired" in ended.stderr
