"""Tests that README and docs/start.md are short, and that their Python examples work with our servers."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

pytestmark = pytest.mark.faults  # the examples need real processes

ROOT = Path(__file__).resolve().parents[2]
NAMESERVER = "127.0.0.1:9876"


@contextlib.contextmanager
def running(*arguments: str, log: Path) -> Iterator[str]:
    """Start one of our servers; yield the address in its ready line."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        with process.stdout:
            try:
                ready = re.search(r" ready listen=(\S+)", process.stdout.readline())
                assert ready is not None, log.read_text()
                yield ready[1]
            finally:
                process.terminate()
                process.wait(timeout=20)


def wait_until_registered(nameserver: str) -> None:
    """Wait until the nameserver lists a broker, because a broker may be ready before it is registered."""
    deadline = time.monotonic() + 60.0
    with BlockingClient() as client:
        while client.invoke(nameserver, RemotingCommand.request(105, {"topic": "TBW102"})).code != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_readme_is_read_in_some_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_each_python_example_runs_as_written(tmp_path: Path) -> None:
    pages = ("README.md", "docs/start.md")
    texts = [re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL) for page in pages]
    assert [len(found) for found in texts] == [1, 2]
    examples = sorted({example for found in texts for example in found})
    data = ("--data", str(tmp_path / "ns"))
    with (
        running(
            *("routekeeper.nameserver", "--listen", "127.0.0.1:0", "--http", "off", *data),
            log=tmp_path / "ns.log",
        ) as nameserver,
        running(
            *(
                "routekeeper.broker",
                "-n",
                nameserver,
                "--listen",
                "127.0.0.1:0",
                "--store",
                str(tmp_path / "store"),
            ),
            log=tmp_path / "broker.log",
        ),
    ):
        wait_until_registered(nameserver)
        for example in examples:
            assert NAMESERVER in example
            outcome = subprocess.run(
                [sys.executable, "-c", example.replace(NAMESERVER, nameserver)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                cwd=ROOT,
            )
            assert outcome.returncode == 0, outcome.stderr
            assert "SEND_OK" in outcome.stdout or "b'hello'" in outcome.stdout
