"""A broker that is announced in ZooKeeper reads the settings of the ensemble only at its start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]


def test_another_ensemble_is_refused_and_not_said_to_be_in_force(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("namesrvAddr=127.0.0.1:1\n")
    words = ("--listen", "127.0.0.1:0", "-c", str(settings), "--name", "broker-0", "--store", "data")
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "routekeeper.bench.arms.zookeeper_broker", *words],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
        BlockingClient() as client,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready" in line, log.read_text()
            change = RemotingCommand.request(25, {}, b"namesrvAddr=127.0.0.1:2\n")
            answer = client.invoke(line.split("listen=")[1].split()[0], change)
            assert answer.code == 16
            assert "namesrvAddr may only be set at start" in (answer.remark or "")
            settings.write_text("namesrvAddr=127.0.0.1:2\n")
            process.send_signal(signal.SIGHUP)
            said = "reloaded changed=nothing refused=nothing needs_restart=namesrvAddr"
            wait_until(lambda: said in log.read_text(), said)
            process.terminate()
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
