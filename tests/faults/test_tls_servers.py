"""Tests of TLS at the ports of real nameservers and brokers.

The tests cover the TLS modes, changed certificates and incompatible clients.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.tls import Authority, client_context, key, pem
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

#: A request for each kind of server. The server answers this request in any state.
QUESTION = {
    "nameserver": RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, {}),
    "broker": RemotingCommand.request(RequestCode.GET_BROKER_CONFIG, {}),
}
SERVERS = pytest.mark.parametrize("kind", ["nameserver", "broker"])


@dataclass
class Running:
    kind: str
    listen: str
    log: Path
    http: str
    pid: int

    def connect(self, context: ssl.SSLContext | None = None) -> socket.socket:
        host, _, port = self.listen.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=WITHIN_S)
        try:
            return plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def ask(self, link: socket.socket) -> RemotingCommand:
        """Send the server a request over a connection; return the answer.

        Raises:
            OSError: If the server has closed the connection, or does not answer.
        """
        link.sendall(QUESTION[self.kind].encode())
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                return decode_command(frame)
        raise ConnectionError("closed")

    def works(self, context: ssl.SSLContext | None = None) -> bool:
        """Return True if the server answers a request over a new connection."""
        try:
            with self.connect(context) as link:
                return self.ask(link).code == 0
        except OSError:
            return False

    def says(self, line: str) -> None:
        wait_until(lambda: line in self.log.read_text(), f"{line!r} in {self.log.read_text()}")


@contextlib.contextmanager
def server(kind: str, tmp_path: Path, *flags: str, http: bool = False) -> Iterator[Running]:
    command = [sys.executable, "-m", f"routekeeper.{kind}", "--listen", "127.0.0.1:0", *flags]
    command += ["--http", "127.0.0.1:0"] if http else ["--http", "off"]
    command += (
        ["--data", str(tmp_path / "data")]
        if kind == "nameserver"
        else ["--store", str(tmp_path / "store"), "--name", "b"]
    )
    log = tmp_path / "stderr.txt"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert "ready" in ready, log.read_text()
            found = dict(word.partition("=")[::2] for word in ready if "=" in word)
            yield Running(kind, found["listen"], log, found.get("http", ""), process.pid)
            process.terminate()
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()


def refusal(kind: str, tmp_path: Path, *flags: str) -> str:
    """Start a server that must refuse its flags; return the text that it writes to stderr."""
    command = [
        sys.executable,
        "-m",
        f"routekeeper.{kind}",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        *flags,
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def member(*more: str) -> tuple[str, ...]:
    return ("--tls-cert", pem("member"), "--tls-key", key("member"), *more)


@SERVERS
def test_a_server_with_a_certificate_serves_both_kinds_of_clients_and_an_enforcing_one_tls_only(
    kind: str, tmp_path: Path
) -> None:
    with server(kind, tmp_path, *member()) as running:
        assert running.works(client_context())
        assert running.works()
    with server(kind, tmp_path, *member("--tls-mode", "enforcing")) as running:
        assert running.works(client_context())
        assert not running.works()
        running.says("it does not speak TLS, and this port demands it")


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
    authority = Authority(tmp_path)
    cert, its_key = authority.issue(password="s3cret")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={cert}\ntls.server.keyPath={its_key}\n"
        f"tls.server.keyPassword=s3cret\ntls.server.need.client.auth=require\n"
        f"tls.server.trustCertPath={pem('authority')}\ntls.test.mode.enable=false\n"
    )
    with server(kind, tmp_path, "--tls-config", str(file)) as running:
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


@SERVERS
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tls-mode", "enforcing"), "--tls-mode enforcing needs --tls-cert"),
        (("--tls-cert", "none.pem", "--tls-key", "k"), "certificate none.pem: No such file"),
        (("--tls-cert", pem("member"), "--tls-key", key("expired")), "key values mismatch"),
        (("--tls-config", "none"), "--tls-config none: No such file"),
        (("--http-tls-key", "k"), "--http-tls-key needs --http-tls-cert"),
    ],
    ids=["no certificate", "no file", "another key", "no config", "no certificate of HTTP"],
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


@SERVERS
def test_a_new_certificate_is_taken_while_connections_stay_and_a_broken_one_is_said(
    kind: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    cert, its_key = authority.issue(days=10)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with (
        server(kind, tmp_path, "--tls-cert", cert, "--tls-key", its_key) as running,
        running.connect(context) as stays,
    ):
        running.says("tls certificate ends soon")
        before = serial(running, context)
        authority.issue(days=200)
        wait_until(lambda: serial(running, context) != before, "the new certificate is shown", every_s=0.2)
        running.says("tls certificate read again")
        taken = serial(running, context)
        Path(cert).write_text("no certificate")
        running.says("tls certificate not taken, the former one goes on error=")
        assert serial(running, context) == taken
        assert running.ask(stays).code == 0


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


@pytest.mark.one_core
def test_thousands_of_half_handshakes_keep_neither_a_bystander_nor_a_newcomer_waiting(tmp_path: Path) -> None:
    """Incomplete handshakes delay no other client and use limited memory.

    Each of them uses 45 KiB in OpenSSL.
    """
    first = hello()
    with (
        server("nameserver", tmp_path, *member()) as running,
        running.connect(client_context()) as bystander,
    ):
        assert running.ask(bystander).code == 0
        before = resident(running)
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
            assert resident(running) - before < 100 << 20
            # The server has already closed some of the incomplete handshakes. It must close the others after
            # a time limit.
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


def resident(running: Running) -> int:
    """Return the resident memory of a server in bytes."""
    return int(Path(f"/proc/{running.pid}/statm").read_text().split()[1]) * 4096


def is_closed(link: socket.socket) -> bool:
    """Discard all bytes that the server sent; return True if the server has closed the connection."""
    link.settimeout(0.001)
    try:
        while link.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@SERVERS
def test_a_setting_of_the_file_that_is_not_taken_over_is_said(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.server.certPath={pem('member')}\ntls.server.keyPath={key('member')}\ntls.sever.mode=enforcing\n"
        f"tls.server.need.client.auth=optional\ntls.server.authClient=false\n"
        f"tls.server.trustCertPath={pem('authority')}\n"
    )
    with server(kind, tmp_path, "--tls-config", str(file)) as running:
        running.says("reason=tls.server.authClient=false is ignored")
        running.says("reason=tls.sever.mode: unknown")
