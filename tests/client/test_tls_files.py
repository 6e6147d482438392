"""A client's certificate files: keys with a password, and files that change while the client runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, TlsConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.operation import Operation, invoke
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost

from .conftest import Peer, Runner
from .test_tls import AUTHORITY, CERTS, Front, echo, echoing, new_front, settings

__all__ = ["new_front"]


def encrypted_key(folder: Path, password: str) -> str:
    """Encrypt the member's private key with the password, and return the path of the encrypted copy."""
    key = folder / "encrypted.key"
    subprocess.run(
        [
            *("openssl", "pkcs8", "-topk8", "-in", str(CERTS / "member.key"), "-out", str(key)),
            *("-passout", f"pass:{password}"),
        ],
        check=True,
        capture_output=True,
    )
    return str(key)


def shown(key_file: str, key_password: str = "") -> TlsConfig:
    return TlsConfig(
        ca_file=AUTHORITY,
        cert_file=str(CERTS / "member.pem"),
        key_file=key_file,
        key_password=key_password,
    )


def test_a_key_with_a_password_is_used(
    run: Runner, new_peer: Callable[..., Peer], new_front: Callable[..., Front], tmp_path: Path
) -> None:
    front = new_front(new_peer(echoing).addr, asks=True)
    tls = shown(encrypted_key(tmp_path, "opensesame"), "opensesame")
    assert run(settings(front.addr, tls), echo(front.addr, b"hello")).body == b"hello"
    assert "opensesame" not in repr(tls)


@pytest.mark.parametrize(
    ("password", "said"),
    [("", "the key has a password"), ("open", "wrong password of the key")],
    ids=["none", "wrong"],
)
def test_a_key_whose_password_is_not_given_is_named(
    run: Runner, tmp_path: Path, password: str, said: str
) -> None:
    tls = shown(encrypted_key(tmp_path, "opensesame"), password)
    with pytest.raises(InvalidArgument, match=rf"encrypted\.key.*{said}"):
        run(settings("127.0.0.1:1", tls), echo("127.0.0.1:1", b""))


def put(folder: Path, authority: str) -> None:
    """Replace the authority's certificate file by an atomic rename."""
    shutil.copy(CERTS / f"{authority}.pem", folder / "new.pem")
    os.replace(folder / "new.pem", folder / "ca.pem")


def test_files_that_changed_count_for_new_connections(
    new_peer: Callable[..., Peer],
    new_front: Callable[..., Front],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    front = new_front(new_peer(echoing).addr)
    put(tmp_path, "stranger-authority")
    config = ClientConfig(nameservers=(front.addr,), tls=TlsConfig(ca_file=str(tmp_path / "ca.pem")))

    def ask(body: bytes) -> Operation[RemotingCommand]:
        return echo(front.addr, body)(client.core)

    with routekeeper.client.blocking.Client(config) as client:
        with pytest.raises(ConnectionLost, match="unable to get local issuer certificate"):
            client.run(ask(b"a"))
        put(tmp_path, "authority")
        assert client.run(ask(b"b")).body == b"b"
        # If a file has invalid content, the client keeps the former certificates, even for new connections,
        # and logs one warning.
        (tmp_path / "ca.pem").write_text("no certificate")
        for _ in range(2):
            client._transport.disconnect(front.addr)
            assert client.run(ask(b"c")).body == b"c"
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        named = [text for text in warnings if text.startswith("tls files not taken, the former ones go on")]
        assert len(named) == 1, warnings
        assert "ca.pem" in named[0]
        put(tmp_path, "stranger-authority")
        client._transport.disconnect(front.addr)
        with pytest.raises(ConnectionLost, match="unable to get local issuer certificate"):
            client.run(ask(b"d"))


def test_an_open_connection_outlives_a_change_of_the_files(
    run: Runner, new_peer: Callable[..., Peer], new_front: Callable[..., Front], tmp_path: Path
) -> None:
    front = new_front(new_peer(echoing).addr)
    put(tmp_path, "authority")
    tls = TlsConfig(ca_file=str(tmp_path / "ca.pem"))
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO, {}, b"x")

    def twice(_core: object) -> Operation[list[bytes]]:
        first = yield from invoke(front.addr, request, 10.0)
        put(tmp_path, "stranger-authority")
        second = yield from invoke(front.addr, request, 10.0)
        return [first.body, second.body]

    assert run(settings(front.addr, tls), twice) == [b"x", b"x"]
    assert front.connections == 1
