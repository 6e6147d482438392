"""mqbroker starts with the settings that Apache's mqbroker prints, and with files as people write them."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.conftest import WAIT_S, Wire
from tests.golden.starts import HOME, RELEASES, recorded_settings

Started = tuple[subprocess.Popen[str], str, Path]
Start = Callable[[str], Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker in an empty folder with a settings file; return it, its ready line and its log."""
    running: list[subprocess.Popen[str]] = []

    def run(settings: str) -> Started:
        (tmp_path / "cwd").mkdir(exist_ok=True)
        file = tmp_path / "cwd" / "broker.properties"
        file.write_text(settings)
        log = tmp_path / f"log-{len(running)}"
        command = [sys.executable, "-m", "broker", "-c", str(file), "--listen", "127.0.0.1:0"]
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command, cwd=tmp_path / "cwd", stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        running.append(process)
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
        return process, process.stdout.readline() if readable else "", log

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.faults
@pytest.mark.parametrize("release", RELEASES)
def test_the_settings_that_apache_prints_start_a_broker(start: Start, tmp_path: Path, release: str) -> None:
    settings = recorded_settings(release, "mqbroker").replace(HOME, str(tmp_path / "home"))
    settings += "brokerName=localhost.localdomain\n"  # 5.3.3 does not print it
    for _ in range(2):  # what the first start made, the second one reads
        process, line, log = start(settings)
        assert line.startswith("mqbroker ready"), log.read_text()[-2000:]
        assert "name=localhost.localdomain " in line
        wire = Wire(line.split("listen=")[1].split()[0])
        assert wire.send_message("Dumped", b"x").code == 0
        wire.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert (tmp_path / "home" / "store" / "commitlog").is_dir()
        assert [path.name for path in (tmp_path / "cwd").iterdir()] == ["broker.properties"]
        text = log.read_text()
        assert "rejectTransactionMessage=false" in text
        assert "timerWheelEnable" in text or release == "4.9.7"
        assert text.count("WARNING") < 8, "a whole dump takes a few lines"


@pytest.mark.faults
def test_values_that_cannot_be_honoured_are_named(start: Start) -> None:
    process, line, log = start(
        "brokerName=b.example.com\nrejectTransactionMessage=false\nenablePropertyFilter=TRUE \n"
        "maxMessageSize=67108864\ndiskMaxUsedSpaceRatio=5\nnoSuchKey=1\n"
    )
    assert line.startswith("mqbroker ready"), log.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    warnings = [text for text in log.read_text().splitlines() if "WARNING" in text]
    for part in (
        "rejectTransactionMessage=false",
        "enablePropertyFilter=true",
        "maxMessageSize=67108864",
        "diskMaxUsedSpaceRatio=5",
        "noSuchKey",
    ):
        assert len([text for text in warnings if part in text]) == 1, part


REFUSED = [
    *("authenticationEnabled=true", "authorizationEnabled=TRUE", "tls.server.mode=enforcing", "useTLS=true"),
    *("enableDLegerCommitLog=true", "enableControllerMode=true"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        *("aclEnable=true", "brokerRole=SYNC_MASTER", "brokerRole=SLAVE", "brokerId=1"),
        *("storePathCommitLog=/a,/b", "brokerName=..", "brokerName=a/b", "brokerName=a b"),
        *REFUSED,
    ],
)
def test_settings_whose_loss_breaks_a_promise_or_opens_a_door_refuse_the_start(
    start: Start, setting: str
) -> None:
    process, line, log = start(f"{setting}\n")
    assert line == ""
    assert process.wait(WAIT_S) == 2
    (refusal,) = log.read_text().splitlines()
    assert refusal.startswith(f"mqbroker: {setting.partition('=')[0]}=")
    assert not (log.parent / "cwd" / "data").exists()


@pytest.mark.slow
def test_a_path_that_cannot_be_made_refuses_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a folder belongs")
    process, line, log = start(f"storePathRootDir={tmp_path}/home/rocketmq/store\n")
    assert (line, process.wait(WAIT_S)) == ("", 2)
    (refusal,) = log.read_text().splitlines()
    assert refusal.startswith(f"mqbroker: storePathRootDir={tmp_path}/home/rocketmq/store cannot be used")
