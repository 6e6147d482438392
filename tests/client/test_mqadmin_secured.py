"""mqadmin at servers that require TLS and signatures: TLS options, keys in tools.yml, and error messages."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routekeeper.client.acl import Credentials
from routekeeper.remoting.command import RemotingCommand
from tests.client.mqadmin import mqadmin
from tests.ports import free_addresses
from tests.tls import key, pem
from tests.waiting import wait_until

from .conftest import Peer, Process
from .test_tls import AUTHORITY, CERTS, Front, new_front
from .test_tls_files import encrypted_key

__all__ = ["new_front"]

TOOLS = "accessKey: operator\nsecretKey: 12345678\n"


def settings(request: RemotingCommand) -> RemotingCommand:
    return request.reply(body=b"listenPort=9876\n")


def ask(addr: str, *options: str, **environment: str) -> tuple[int, str, str]:
    return mqadmin("getNamesrvConfig", "-n", addr, *options, **environment)


def test_an_encrypted_key_is_opened_with_the_password_in_a_file(
    new_peer: Callable[..., Peer], new_front: Callable[..., Front], tmp_path: Path
) -> None:
    front = new_front(new_peer(settings).addr, asks=True)
    (tmp_path / "password").write_text("opensesame\n")
    shown = ("--tls-ca", AUTHORITY, "--tls-cert", str(CERTS / "member.pem"))
    options = (*shown, "--tls-key", encrypted_key(tmp_path, "opensesame"))
    assert ask(front.addr, *options, "--tls-key-password-file", str(tmp_path / "password"))[0] == 0
    code, out, err = ask(front.addr, *options)
    assert (code, out) == (1, "")
    assert "the key has a password" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("certificate", "options", "said"),
    [
        ("other-host", ("--tls-ca", AUTHORITY), "its certificate is refused: IP address mismatch"),
        ("other-host", ("--tls-ca", AUTHORITY, "--tls-check", "authority"), ""),
        ("expired", ("--tls-ca", AUTHORITY), "its certificate is refused: certificate has expired"),
        ("stranger", ("--tls-ca", AUTHORITY), "its certificate is refused: unable to get local issuer"),
        ("stranger", ("--tls-check", "nothing"), ""),
    ],
)
def test_certificates_are_checked_as_the_options_say(
    new_peer: Callable[..., Peer],
    new_front: Callable[..., Front],
    certificate: str,
    options: tuple[str, ...],
    said: str,
) -> None:
    peer = new_peer(settings)
    front = new_front(peer.addr, certificate)
    code, _, err = ask(front.addr, *options)
    assert code == bool(said)
    assert said in err
    assert err.count("\n") == bool(said)
    assert bool(peer.requests) != bool(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tls-check", "never"), "tls-check='never', allowed host|authority|nothing"),
        (("--tls-check", "nothing", "--tls-ca", "a"), "--tls-check nothing checks no certificate"),
        (("--tls-key", "k"), "--tls-key needs --tls-cert"),
        (("--tls-key-password-file", "k"), "--tls-key-password-file needs --tls-cert"),
        (("--tls-ca", "/no/such/ca.pem"), "/no/such/ca.pem': No such file"),
        (("--acl-file", "/no/such/tools.yml"), "/no/such/tools.yml cannot be read: No such file"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_in_one_line(options: tuple[str, ...], said: str) -> None:
    code, out, err = ask("127.0.0.1:1", *options)
    assert (code, out) == (1, "")
    assert err.startswith("mqadmin getNamesrvConfig: ")
    assert said in err
    assert err.count("\n") == 1


PAGE = {
    "mode": "raft",
    "me": "m:9878",
    "leader": "m:9878",
    "role": "leader",
    "members": ["m:9878"],
    "term": 1,
    "applied_index": 1,
    "commit_index": 1,
    "last_contact_ms": 0,
}


@pytest.mark.parametrize(
    ("certificate", "said"),
    [("member", ""), ("other-host", "IP address mismatch"), ("expired", "has expired")],
)
def test_https_is_checked_by_the_same_authority(
    http_page: Callable[[str], str], new_front: Callable[..., Front], certificate: str, said: str
) -> None:
    target = http_page(json.dumps(PAGE)).removeprefix("http://").partition("/")[0]
    front = new_front(target, certificate)
    options = ("--http", f"https://{front.addr}", "--tls-ca", AUTHORITY)
    code, out, err = mqadmin("raftStatus", *options, "-o", "json")
    assert code == bool(said)
    assert said in err
    if not said:
        assert json.loads(out)[0]["me"] == "m:9878"
    else:
        assert err.startswith(f"mqadmin raftStatus: https://{front.addr}: its certificate is refused: ")
        assert err.count("\n") == 1


def test_https_with_an_unknown_authority_is_refused(
    http_page: Callable[[str], str], new_front: Callable[..., Front]
) -> None:
    front = new_front(http_page("{}").removeprefix("http://").partition("/")[0])
    code, out, err = mqadmin("raftStatus", "--http", f"https://{front.addr}")
    assert (code, out) == (1, "")
    assert "its certificate is refused: unable to get local issuer certificate" in err


def test_http_at_a_port_with_tls_says_how_to_ask_over_https(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    shown = ("--http-tls-cert", pem("member"), "--http-tls-key", key("member"))
    server = Process("routekeeper.nameserver", *flags, *shown, log=tmp_path / "log")
    http = server.facts["http"]
    try:
        for address in (http, f"http://{http}/"):
            code, out, err = mqadmin("raftStatus", "--http", address)
            assert (code, out) == (1, "")
            assert err == (
                f"mqadmin raftStatus: {address}: it closed the connection without an answer; if it serves "
                f"HTTPS, begin its address with https://\n"
            )
    finally:
        server.stop()


def test_the_systems_authorities_are_accepted_over_https_as_over_rocketmqs_protocol(
    http_page: Callable[[str], str], new_front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.13 on, the default context for HTTPS refuses an authority without a key usage."""

    def without_authorities() -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr("ssl._create_default_https_context", without_authorities)
    monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY)
    front = new_front(http_page(json.dumps(PAGE)).removeprefix("http://").partition("/")[0])
    code, out, err = mqadmin("raftStatus", "--http", f"https://{front.addr}", "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["me"] == "m:9878"


@pytest.fixture
def secured_member(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run a raft group of one member, with TLS at both ports and with one account.

    Yield the values in the member's ready line.
    """
    (raft,) = free_addresses(1)
    shown = (pem("member"), key("member"))
    flags = ["--mode", "raft", "--raft", raft, "--peers", raft, "--data", str(tmp_path / "data")]
    flags += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--tls-mode", "enforcing"]
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: operator\n  secretKey: 12345678\n  admin: true\n")
    accounts.chmod(0o600)
    flags += ["--acl", "admin", "--acl-file", str(accounts)]
    for port in ("", "http-"):
        flags += [f"--{port}tls-cert", shown[0], f"--{port}tls-key", shown[1]]
    server = Process("routekeeper.nameserver", *flags, log=tmp_path / "log")
    yield server.facts
    server.stop()


@pytest.mark.slow
@pytest.mark.faults
def test_a_group_with_tls_at_both_ports_and_accounts_is_administered(
    secured_member: dict[str, str], tmp_path: Path
) -> None:
    status = ("raftStatus", "-n", secured_member["listen"])

    def leads() -> bool:
        code, out, err = mqadmin(*status, "--tls-ca", AUTHORITY)
        assert (code, err) == (0, "")
        assert f"https://{secured_member['http']}" in out
        return " leader " in out

    wait_until(leads, "it leads")
    code, out, err = mqadmin(*status, "--tls-ca", str(CERTS / "stranger-authority.pem"))
    assert (code, out) == (1, "")
    assert "its certificate is refused" in err

    (tmp_path / "tools.yml").write_text(TOOLS)
    change = [*("updateKvConfig", "-n", secured_member["listen"], "--tls-ca", AUTHORITY)]
    change += ["-s", "space", "-k", "key", "-v", "value"]
    code, out, err = mqadmin(*change)
    assert (code, out) == (1, "")
    assert "No accessKey is configured" in err
    code, out, err = mqadmin(*change, "--acl-file", str(tmp_path / "tools.yml"))
    assert (code, err) == (0, "")


# -- signatures ---------------------------------------------------------------------------------------------


def signed_by(request: RemotingCommand, credentials: Credentials) -> bool:
    fields = dict(request.ext_fields)
    signature = fields.pop("Signature", None)
    return signature is not None and signature == credentials.sign(fields, request.body)


def test_requests_are_signed_with_the_keys_in_tools_yml(
    new_peer: Callable[..., Peer], tmp_path: Path
) -> None:
    peer = new_peer(settings)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(TOOLS)
    other = tmp_path / "other.yml"
    other.write_text("accessKey: 'another one'\nsecretKey: \"of # two\" # with a comment\n")
    home = {"ROCKETMQ_HOME": str(tmp_path)}
    assert ask(peer.addr, **home)[0] == 0
    assert ask(peer.addr, "--acl-file", str(other), **home)[0] == 0
    assert ask(peer.addr, ROCKETMQ_HOME=str(tmp_path / "conf"))[0] == 0
    first, second, third = peer.requests
    assert signed_by(first, Credentials(access_key="operator", secret_key="12345678"))
    assert first.ext_fields["AccessKey"] == "operator"
    assert signed_by(second, Credentials(access_key="another one", secret_key="of # two"))
    assert "Signature" not in third.ext_fields


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accessKey: operator\n", "secretKey missing"),
        ("", "line 1: allowed are accessKey, secretKey"),
        ("accessKey: operator\nsecretkey: s3cret\n", "line 2: secretkey is unknown, allowed are accessKey"),
        ("accounts:\n- accessKey: a\n", "line 2: accounts is unknown"),
        ("accessKey: a\nsecretKey: 's3cret\n", "line 2: "),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_named_with_the_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "tools.yml"
    file.write_text(text)
    for code, out, err in (
        ask("127.0.0.1:1", "--acl-file", str(file)),
        ask("127.0.0.1:1", ROCKETMQ_HOME=str(tmp_path)),
    ):
        assert (code, out) == (1, "")
        assert str(file) in err
        assert said in err
        assert "s3cret" not in err
        assert err.count("\n") == 1
