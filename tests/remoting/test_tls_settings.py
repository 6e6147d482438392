"""Tests of TLS settings: RocketMQ's properties file, command-line flags, and their combination."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.tls_settings import (
    KEYS,
    PortTls,
    TlsFile,
    TlsSettingError,
    parse_tls_file,
    port_tls,
    read_tls_file,
    tls_warnings,
)

#: Content of a TLS properties file, as on RocketMQ's own page about TLS.
APACHE = """
tls.test.mode.enable=false
tls.server.need.client.auth=require
tls.server.keyPath=/opt/certFiles/server.key
tls.server.keyPassword=123456
tls.server.certPath=/opt/certFiles/server.pem
tls.server.authClient=false
tls.server.trustCertPath=/opt/certFiles/ca.pem
tls.client.keyPath=/opt/certFiles/client.key
tls.client.keyPassword=abc
tls.client.certPath=/opt/certFiles/client.pem
tls.client.authServer=false
tls.client.trustCertPath=/opt/certFiles/ca.pem
"""


def test_all_twelve_keys_of_rocketmq_and_two_of_ours_are_read() -> None:
    file = parse_tls_file(APACHE + "tls.server.mode=enforcing\ntls.enable=TRUE\n")
    assert len(KEYS) == 14
    assert file == TlsFile(
        server_mode="enforcing",
        server_cert="/opt/certFiles/server.pem",
        server_key="/opt/certFiles/server.key",
        server_key_password="123456",
        server_ca="/opt/certFiles/ca.pem",
        server_client_auth="require",
        server_checks_clients=False,
        enable=True,
        client_cert="/opt/certFiles/client.pem",
        client_key="/opt/certFiles/client.key",
        client_key_password="abc",
        client_ca="/opt/certFiles/ca.pem",
        client_checks_servers=False,
        test_mode=False,
    )
    assert "123456" not in repr(file)
    assert port_tls(file=file).client_auth == "require"


def test_an_empty_file_says_nothing() -> None:
    assert parse_tls_file("") == TlsFile()
    assert port_tls(file=TlsFile()) == PortTls()


def test_a_certificate_of_clients_that_nobody_would_check_is_said() -> None:
    assert "authClient=false" in " ".join(tls_warnings(parse_tls_file(APACHE)))
    assert tls_warnings(parse_tls_file("tls.server.authClient=false")) == ()
    assert tls_warnings(parse_tls_file("tls.sever.mode=enforcing")) == ("tls.sever.mode: unknown",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tls.server.mode=on", "tls.server.mode=on: allowed are disabled, permissive, enforcing"),
        ("tls.server.need.client.auth=want", "allowed are none, optional, require"),
        ("tls.enable=1", "tls.enable=1: allowed are true, false"),
        ("tls.test.mode.enable=true", "tls.test.mode.enable=true"),
        ("tls.server.keyPath=\\uXXXX", "line 1"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(line)
    with pytest.raises(TlsSettingError, match=r"--tls-config .*tls\.properties: ") as refused:
        read_tls_file(path)
    assert says in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TlsSettingError, match="no such file: No such file or directory"):
        read_tls_file(tmp_path / "no such file")


def test_the_mode_is_permissive_where_a_certificate_is_given() -> None:
    assert port_tls(cert="c", key="k") == PortTls(mode="permissive", cert="c", key="k")
    assert port_tls().mode == "disabled"
    assert port_tls(mode="disabled", cert="c", key="k") == PortTls()


def test_flags_win_over_the_file_and_a_pair_comes_from_one_place() -> None:
    file = TlsFile(
        server_mode="permissive",
        server_cert="c",
        server_key="k",
        server_key_password="p",
        server_ca="a",
        server_client_auth="optional",
    )
    assert port_tls(file=file) == PortTls(
        mode="permissive", cert="c", key="k", key_password="p", ca="a", client_auth="optional"
    )
    assert port_tls(mode="enforcing", cert="d", client_auth="require", file=file) == PortTls(
        mode="enforcing", cert="d", ca="a", client_auth="require"
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"mode": "enforcing"}, "--tls-mode enforcing needs --tls-cert"),
        ({"mode": "permissive"}, "--tls-mode permissive needs --tls-cert"),
        ({"mode": "on"}, "--tls-mode on: allowed are disabled, permissive, enforcing"),
        ({"key": "k"}, "--tls-key needs --tls-cert"),
        ({"cert": "c", "client_auth": "require"}, "--tls-client-auth require needs --tls-ca"),
        ({"cert": "c", "client_auth": "yes"}, "--tls-client-auth yes: allowed are none, optional, require"),
    ],
)
def test_flags_that_do_not_fit_together_are_named(flags: dict[str, str], says: str) -> None:
    with pytest.raises(TlsSettingError) as refused:
        port_tls(**flags)  # type: ignore[arg-type]
    assert str(refused.value).startswith(says)
