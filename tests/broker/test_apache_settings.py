"""mqbroker starts with the settings that Apache's mqbroker prints, and with files that people write."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from routekeeper.broker.config import BrokerConfig, apply_properties
from routekeeper.broker.errors import SettingError
from routekeeper.broker.foreign_settings import fit_settings
from tests.broker.conftest import WAIT_S, Started, StartIn, Wire
from tests.golden.starts import HOME, RELEASES, recorded_settings


class Start(Protocol):
    def __call__(self, settings: str) -> Started: ...


@pytest.fixture
def start(start_in: StartIn, tmp_path: Path) -> Start:
    """Return a function that starts a broker in an empty folder with the text of a settings file."""

    def run(settings: str) -> Started:
        file = tmp_path / "broker.properties"
        file.write_text(settings)
        return start_in(tmp_path / "cwd", "routekeeper.broker", "-c", str(file))

    return run


@pytest.mark.faults
@pytest.mark.parametrize("release", RELEASES)
def test_the_settings_that_apache_prints_start_a_broker(start: Start, tmp_path: Path, release: str) -> None:
    settings = recorded_settings(release, "mqbroker").replace(HOME, str(tmp_path / "home"))
    settings += "brokerName=localhost.localdomain\n"  # RocketMQ 5.3.3 does not print brokerName
    for _ in range(2):  # the second start must also accept the files that the first start wrote
        broker = start(settings)
        assert broker.line.startswith("mqbroker ready"), broker.log.read_text()[-2000:]
        assert "name=localhost.localdomain " in broker.line
        wire = Wire(broker.addr)
        assert wire.send_message("Dumped", b"x").code == 0
        wire.close()
        assert broker.stop() == 0
        assert (tmp_path / "home" / "store" / "commitlog").is_dir()
        assert not list((tmp_path / "cwd").iterdir())
        text = broker.log.read_text()
        assert "rejectTransactionMessage=false" in text
        assert "timerWheelEnable" in text or release == "4.9.7"
        assert text.count("WARNING") < 8, "a whole dump takes a few lines"


@pytest.mark.faults
def test_values_that_cannot_be_honoured_are_named(start: Start) -> None:
    broker = start(
        "brokerName=b.example.com\nrejectTransactionMessage=false\nenablePropertyFilter=TRUE \n"
        "maxMessageSize=67108864\ndiskMaxUsedSpaceRatio=5\nnoSuchKey=1\n"
    )
    assert broker.line.startswith("mqbroker ready"), broker.log.read_text()
    assert broker.stop() == 0
    warnings = [text for text in broker.log.read_text().splitlines() if "WARNING" in text]
    for part in (
        "rejectTransactionMessage=false",
        "enablePropertyFilter=true",
        "maxMessageSize=67108864",
        "diskMaxUsedSpaceRatio=5",
        "noSuchKey",
    ):
        assert len([text for text in warnings if part in text]) == 1, part


@pytest.mark.parametrize(
    "setting",
    [
        *("aclEnable=true", "brokerRole=SYNC_MASTER", "brokerRole=SLAVE", "brokerId=1"),
        *("storePathCommitLog=/a,/b", "brokerName=..", "brokerName=a/b", "brokerName=a b"),
        *("authenticationEnabled=true", "authorizationEnabled=TRUE", "tls.server.mode=enforcing"),
        *("enableDLegerCommitLog=true", "enableControllerMode=true"),
    ],
)
def test_settings_whose_loss_breaks_a_promise_or_opens_a_door_are_refused(setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(SettingError, match=f"^{key}="):
        apply_properties(BrokerConfig(), fit_settings({key: value})[0])[0].validate()


@pytest.mark.slow
def test_setting_that_is_refused_ends_the_start_with_one_line(start: Start) -> None:
    broker = start("authenticationEnabled=true\n")
    assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
    (refusal,) = broker.log.read_text().splitlines()
    assert refusal.startswith("mqbroker: authenticationEnabled=true: ")
    assert not (broker.log.parent / "cwd" / "data").exists()


@pytest.mark.faults
def test_the_same_values_as_flags_are_named_or_honoured(start_in: StartIn, tmp_path: Path) -> None:
    flags = ("--set", "rejectTransactionMessage=false", "--set", "useTLS=true")
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", *flags)
    assert broker.line.startswith("mqbroker ready"), broker.log.read_text()
    wire = Wire(broker.addr)
    shown = wire.call(26, {}).body.decode().splitlines()
    wire.close()
    assert "useTLS=true" in shown
    assert "rejectTransactionMessage=true" in shown
    assert broker.stop() == 0
    assert "reason=rejectTransactionMessage=false: transactions are not supported" in broker.log.read_text()


@pytest.mark.slow
def test_a_number_out_of_range_as_a_flag_is_refused(start_in: StartIn, tmp_path: Path) -> None:
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", "--set", "diskMaxUsedSpaceRatio=5")
    assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
    assert broker.log.read_text().startswith("mqbroker: diskMaxUsedSpaceRatio=5")


@pytest.mark.slow
def test_the_same_setting_as_a_flag_is_refused_with_the_same_reason(
    start_in: StartIn, tmp_path: Path
) -> None:
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", "--set", "authenticationEnabled=true")
    assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
    (refusal,) = broker.log.read_text().splitlines()
    assert refusal == (
        "mqbroker: authenticationEnabled=true: ACL 2.0 of RocketMQ 5.3 is not served, allowed is false"
    )
