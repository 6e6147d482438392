"""Servers that get Java properties through the environment variables of RocketMQ's start scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tls import client_context, key, pem

from .servers import SERVERS, refusal, server

pytestmark = [pytest.mark.faults, pytest.mark.slow]

#: Value of JAVA_OPT in templates/play-docker-tls.sh of apache/rocketmq-docker, shortened.
ENFORCING = "-server -Xms512m -Dtls.server.mode=enforcing -Dtls.config.file=/home/rocketmq/tls.properties"
CERT = ("--tls-cert", pem("member"), "--tls-key", key("member"))


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that the test run has inherited."""
    for variable in ("JAVA_OPT", "JAVA_OPT_EXT"):
        monkeypatch.delenv(variable, raising=False)


@SERVERS
@pytest.mark.parametrize(
    ("variable", "text", "flags"),
    [
        ("JAVA_OPT", ENFORCING, ()),
        ("JAVA_OPT_EXT", '-Dtls.server.mode="enforcing"', ()),
        ("JAVA_OPT", ENFORCING, CERT),
        ("JAVA_OPT", ENFORCING, ("--tls-config", "tls.properties")),
    ],
    ids=["alone", "in quotes", "with a certificate", "with a file that names no mode"],
)
def test_tls_that_only_java_would_enforce_refuses_the_start(
    kind: str,
    variable: str,
    text: str,
    flags: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tls.properties").write_text(
        f"tls.server.certPath={pem('member')}\ntls.server.keyPath={key('member')}\n"
    )
    monkeypatch.setenv(variable, text)
    line = refusal(kind, tmp_path, *flags)
    assert f"-Dtls.server.mode=enforcing in {variable} is not read; use --tls-mode enforcing, or " in line
    assert "use --tls-mode enforcing" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "word", "ours"),
    [
        ("nameserver", "tls.server.need.client.auth=require", "use --tls-client-auth require, or "),
        ("broker", "tls.server.need.client.auth=require", "use --tls-client-auth require, or "),
        ("broker", "tls.enable=true", "use --namesrv-tls on, or "),
    ],
)
def test_other_protection_that_only_java_would_give_refuses_the_start(
    kind: str, word: str, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_OPT", f"-Xmx1g -D{word}")
    line = refusal(kind, tmp_path)
    assert f"-D{word} in JAVA_OPT is not read; {ours}{word.partition('=')[0]} in the file of --tls" in line
    assert len(line.splitlines()) == 1


def test_a_broker_with_settings_of_its_own_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say no to both in files of our own. An operator may do so, because every setting there is in force."""
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.need.client.auth=none\ntls.enable=false\n")
    monkeypatch.setenv("JAVA_OPT", "-Dtls.server.need.client.auth=require -Dtls.enable=true")
    with server("broker", tmp_path, "--tls-config", str(file)) as running:
        assert running.works()
        running.says("names=tls.server.need.client.auth, tls.enable ")


def test_a_broker_that_demands_tls_also_uses_it_to_nameservers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with ``--tls-mode enforcing`` needs no setting for ``-Dtls.enable=true``."""
    monkeypatch.setenv("JAVA_OPT", f"{ENFORCING} -Dtls.enable=true")
    with server("broker", tmp_path, *CERT, "--tls-mode", "enforcing") as running:
        assert running.works(client_context())
        running.says("names=tls.server.mode, tls.config.file, tls.enable ")


@SERVERS
@pytest.mark.parametrize("by", ["flag", "file"])
def test_a_mode_in_settings_of_our_own_replaces_that_of_java(
    kind: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.server.mode=enforcing\n"
        f"tls.server.certPath={pem('member')}\ntls.server.keyPath={key('member')}\n"
    )
    monkeypatch.setenv("JAVA_OPT", ENFORCING)
    flags = ("--tls-config", str(file)) if by == "file" else (*CERT, "--tls-mode", "enforcing")
    with server(kind, tmp_path, *flags) as running:
        assert running.works(client_context())
        assert not running.works()
        running.says("names=tls.server.mode, tls.config.file ")


@SERVERS
def test_other_properties_are_named_once_without_their_values(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_OPT", "-Xmx1g -Dtls.server.mode=permissive -Dtls.server.keyPassword=s3cret")
    monkeypatch.setenv("JAVA_OPT_EXT", "-XX:+UseG1GC -Drocketmq.namesrv.domain=d.example -Duser.home=/x")
    with server(kind, tmp_path) as running:
        assert running.works()
        running.says("names=tls.server.mode, tls.server.keyPassword, rocketmq.namesrv.domain hint=")
    log = running.log.read_text()
    assert log.count("Java properties ignored") == 1
    assert "s3cret" not in log
    assert "user.home" not in log


@SERVERS
def test_flags_of_the_heap_cause_no_warning(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_OPT", "-server -Xms512m -Xmx1g -XX:MetaspaceSize=128m")
    with server(kind, tmp_path) as running:
        assert running.works()
    assert "Java" not in running.log.read_text()
