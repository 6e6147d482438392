"""A broker's own connections to nameservers that demand TLS."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig, apply_properties
from routekeeper.broker.errors import SettingError
from routekeeper.broker.server.namesrv_tls import namesrv_tls, own_tls
from routekeeper.remoting.certificates import DAY_S
from routekeeper.remoting.tls_settings import TlsFile
from tests.broker.conftest import WAIT_S, RecordingNameserver, StartBroker, StartIn
from tests.client.test_tls import AUTHORITY, CERTS, Front
from tests.client.test_tls_files import encrypted_key
from tests.tls import Authority
from tests.waiting import wait_until

MEMBER = str(CERTS / "member.pem")


@pytest.fixture
def front_of(nameserver: RecordingNameserver) -> Iterator[Callable[..., Front]]:
    """Return a function that starts TLS proxies in front of the nameserver."""
    fronts: list[Front] = []

    def make(certificate: str = "member", *, asks: bool = False) -> Front:
        fronts.append(Front(nameserver.addr, certificate, asks=asks))
        return fronts[-1]

    yield make
    for front in fronts:
        front.close()


@pytest.mark.slow
@pytest.mark.faults
def test_a_broker_registers_over_tls_and_shows_its_certificate(
    start_broker: StartBroker,
    front_of: Callable[..., Front],
    nameserver: RecordingNameserver,
    tmp_path: Path,
) -> None:
    front = front_of(asks=True)
    file = tmp_path / "broker.properties"
    file.write_text(
        f"tls.enable=true\ntls.client.trustCertPath={AUTHORITY}\ntls.client.certPath={MEMBER}\n"
        f"tls.client.keyPath={encrypted_key(tmp_path, 'opensesame')}\ntls.client.keyPassword=opensesame\n"
    )
    broker = start_broker("-c", str(file), "--http", "127.0.0.1:0", namesrv=front.addr)
    assert nameserver.expect(103).ext_fields["brokerName"] == "broker-a"
    answer = broker.wire().call(26)
    assert b"tls.enable=true" in answer.body
    assert b"opensesame" not in answer.body
    http = broker.ready_line.split("http=")[1].split()[0]
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=WAIT_S) as metrics:
        assert b'mqbroker_certificate_left_seconds{port="nameservers"}' in metrics.read()
    refused = broker.wire().call(25, body=b"tls.client.keyPassword=another word")
    assert refused.code != 0
    assert broker.stop() == 0
    assert nameserver.expect(104).ext_fields["brokerName"] == "broker-a"
    log = broker.log.read_text()
    assert "opensesame" not in log
    assert "another word" not in log
    assert "WARNING" not in log


@pytest.mark.slow
@pytest.mark.faults
def test_a_nameserver_that_does_not_prove_itself_is_told_nothing(
    start_broker: StartBroker, front_of: Callable[..., Front], nameserver: RecordingNameserver
) -> None:
    """A nameserver whose certificate is for another host gets no request.

    The client's tests cover other wrong certificates, because the broker uses the client's code.
    """
    front, said = front_of("other-host"), "its certificate is refused: IP address mismatch"
    broker = start_broker("--namesrv-tls", "on", "--tls-ca", AUTHORITY, namesrv=front.addr)
    wait_until(lambda: said in broker.log.read_text(), said)
    assert broker.stop() == 0
    named = [line for line in broker.log.read_text().splitlines() if " registration failed" in line]
    assert len(named) == 1, named
    assert f"nameserver={front.addr} reason=no connection to {front.addr}: {said}" in named[0]
    assert nameserver.requests.empty()


@pytest.mark.slow
@pytest.mark.faults
def test_without_an_authority_no_certificate_is_checked_and_the_log_says_so(
    start_broker: StartBroker, front_of: Callable[..., Front], nameserver: RecordingNameserver
) -> None:
    front = front_of("stranger")
    broker = start_broker("--namesrv-tls", "on", namesrv=front.addr)
    assert nameserver.expect(103).ext_fields["brokerName"] == "broker-a"
    assert broker.stop() == 0
    (warning,) = [line for line in broker.log.read_text().splitlines() if "WARNING" in line]
    assert "certificates of nameservers are not checked hint=--tls-ca FILE" in warning


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--namesrv-tls", "on", "--tls-ca", "/no/such/ca.pem"),
            "'/no/such/ca.pem': No such file or directory",
        ),
        (("--tls-client-cert", MEMBER), "(--tls-client-cert) needs --namesrv-tls on"),
    ],
    ids=["no-file", "client-cert-without-tls"],
)
def test_flags_that_cannot_be_used_refuse_the_start_in_one_line(
    start_in: StartIn, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", *flags)
    assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
    (refusal,) = broker.log.read_text().splitlines()
    assert refusal.startswith("mqbroker: ")
    assert said in refusal


def settings(**values: str) -> BrokerConfig:
    named = {f"tls.client.{key}": value for key, value in values.items()}
    return apply_properties(BrokerConfig(), {"tls.enable": "true", **named})[0]


@pytest.mark.parametrize(
    ("values", "checked"),
    [
        ({}, False),
        ({"trustCertPath": AUTHORITY}, True),
        ({"trustCertPath": AUTHORITY, "authServer": "false"}, False),
        ({"authServer": "true"}, True),
    ],
)
def test_nameservers_are_checked_where_an_authority_or_the_check_is_named(
    values: dict[str, str], checked: bool
) -> None:
    config = settings(**values)
    config.validate()
    made = namesrv_tls(config)
    assert made is not None
    assert made.tls.context().check_hostname is checked


def put(folder: Path, authority: str) -> None:
    shutil.copy(CERTS / f"{authority}.pem", folder / "new.pem")
    os.replace(folder / "new.pem", folder / "ca.pem")


async def test_a_changed_authority_counts_for_new_connections_and_a_broken_one_does_not(
    tmp_path: Path,
) -> None:
    put(tmp_path, "stranger-authority")
    made = namesrv_tls(settings(trustCertPath=str(tmp_path / "ca.pem")))
    assert made is not None

    def authorities() -> list[str]:
        return [str(found["subject"]) for found in made.tls.context().get_ca_certs()]

    assert "stranger-authority" in authorities()[0]
    assert await made.files.look() == "unchanged"
    put(tmp_path, "authority")
    assert await made.files.look() == "taken"
    assert "stranger" not in authorities()[0]
    (tmp_path / "ca.pem").write_text("no certificate")
    assert (await made.files.look()).startswith("refused: ca_file")
    assert "stranger" not in authorities()[0]
    made.files.close()


def test_rocketmqs_other_name_of_the_switch_is_honoured() -> None:
    from routekeeper.broker.foreign_settings import fit_settings

    fitting, warnings = fit_settings({"useTLS": " TRUE "})
    assert own_tls(apply_properties(BrokerConfig(), fitting)[0], TlsFile(), enforcing=False) is not None
    assert warnings == ()
    with pytest.raises(SettingError, match=r"tls\.enable='maybe' is neither"):
        apply_properties(BrokerConfig(), fit_settings({"useTLS": "maybe"})[0])[0].validate()


@pytest.mark.parametrize(
    ("values", "file", "enforcing", "used"),
    [
        ({}, TlsFile(), False, None),
        ({}, TlsFile(), True, ("", "", False)),
        ({"tls.enable": "false"}, TlsFile(enable=True), True, None),
        ({}, TlsFile(enable=False), True, None),
        ({}, TlsFile(enable=True, client_ca="ca", client_cert="c", client_key="k"), False, ("ca", "c", True)),
        ({"tlsCa": "flag"}, TlsFile(enable=True, client_ca="ca"), False, ("flag", "", True)),
        ({}, TlsFile(enable=True, client_ca="ca", client_checks_servers=False), False, ("ca", "", False)),
        (
            {"tls.enable": "true", "tls.client.certPath": "mine"},
            TlsFile(client_cert="c", client_key="k"),
            False,
            ("", "mine", False),
        ),
    ],
)
def test_settings_win_over_the_file_and_enforcing_is_for_both_directions(
    values: dict[str, str], file: TlsFile, enforcing: bool, used: tuple[str, str, bool] | None
) -> None:
    found = own_tls(apply_properties(BrokerConfig(), values)[0], file, enforcing=enforcing)
    assert (None if found is None else (found.ca, found.cert, found.checks)) == used
    if found is not None:
        assert found.key == ("k" if found.cert == "c" else "")


async def test_a_changed_tls_config_names_other_files(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.enable=true\ntls.client.trustCertPath={CERTS}/stranger-authority.pem\n")
    made = namesrv_tls(apply_properties(BrokerConfig(), {"tlsConfig": str(file)})[0])
    assert made is not None
    file.write_text(f"tls.enable=true\ntls.client.trustCertPath={AUTHORITY}\n")
    assert await made.files.look() == "taken"
    assert "stranger" not in str(made.tls.context().get_ca_certs()[0]["subject"])
    assert Path(AUTHORITY) in made.files.paths
    file.write_text("tls.enable=false\n")
    assert "only a restart switches TLS to nameservers off" in await made.files.look()
    made.files.close()


@pytest.mark.parametrize(
    "line",
    [f"tls.client.trustCertPath={AUTHORITY}\n", "tls.client.authServer=true\n"],
    ids=["authority", "check"],
)
async def test_a_cut_tls_config_does_not_end_the_check_of_nameservers(line: str, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.enable=true\n" + line)
    made = namesrv_tls(apply_properties(BrokerConfig(), {"tlsConfig": str(file)})[0])
    assert made is not None
    file.write_text("tls.enable=true\n")
    assert "to end the check of nameservers, write tls.client.authServer=false" in await made.files.look()
    assert made.tls.context().check_hostname
    file.write_text("tls.enable=true\ntls.client.authServer=false\n")
    assert await made.files.look() == "taken"
    assert not made.tls.context().check_hostname
    made.files.close()


async def test_a_certificate_that_ends_soon_is_named_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue(days=5)
    made = namesrv_tls(settings(certPath=cert, keyPath=key, trustCertPath=str(tmp_path / "ca.pem")))
    assert made is not None
    assert 4 < made.left_s / DAY_S < 5
    made.watch()
    assert "nameserver tls ends soon" in caplog.text
    authority.issue(days=200)
    assert await made.files.look() == "taken"
    assert made.left_s / DAY_S > 100
    made.close()
