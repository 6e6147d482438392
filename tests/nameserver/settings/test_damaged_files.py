"""Tests of a nameserver's own files that were damaged, edited or lost while the nameserver was stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def command(data: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "routekeeper.nameserver",
        "--http",
        "off",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(data),
    ]


@contextmanager
def nameserver(data: Path) -> Iterator[tuple[BlockingClient, str]]:
    """Run a nameserver, and stop it cleanly at the end of the context.

    The nameserver's log is the file ``nameserver.log`` beside its data directory.
    """
    with data.with_name("nameserver.log").open("w") as log:
        process = subprocess.Popen(command(data), stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"listen=(\S+)", process.stdout.readline())
        assert found, data.with_name("nameserver.log").read_text()
        with BlockingClient() as client:
            yield client, found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def refusal(data: Path) -> str:
    with subprocess.Popen(
        command(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.kill()
        _, log = process.communicate()
    assert ready == "", log
    assert process.returncode not in (0, -signal.SIGKILL)
    (line,) = [line for line in log.splitlines() if line.startswith("mqnamesrv: ")]
    return str(line)


def put(client: BlockingClient, addr: str, key: str) -> None:
    ext = {"namespace": "n", "key": key, "value": "v"}
    assert client.invoke(addr, RemotingCommand.request(100, ext)).code == 0


def has(client: BlockingClient, addr: str, key: str) -> bool:
    return client.invoke(addr, RemotingCommand.request(101, {"namespace": "n", "key": key})).code == 0


@pytest.mark.parametrize("content", [b"", b'{"configTable":{"n"'], ids=["empty", "half"])
def test_damaged_kv_file_is_named_and_its_backup_is_used(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "data"
    with nameserver(data) as (client, addr):
        put(client, addr, "first")
        put(client, addr, "second")
    (data / "kvConfig.json").write_bytes(content)
    with nameserver(data) as (client, addr):
        assert has(client, addr, "first")
        put(client, addr, "third")
    log = data.with_name("nameserver.log").read_text()
    (error,) = [line for line in log.splitlines() if " ERROR " in line]
    assert str(data / "kvConfig.json") in error
    assert "kvConfig.json.bak" in error
    assert (data / "kvConfig.json.damaged").read_bytes() == content
    with nameserver(data) as (client, addr):
        assert has(client, addr, "first")
        assert has(client, addr, "third")


@pytest.mark.parametrize("name", ["kvConfig.json", "namesrv.properties"])
def test_file_with_a_flipped_bit_refuses_the_start_until_somebody_decides(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    with nameserver(data) as (client, addr):
        put(client, addr, "first")
        assert client.invoke(addr, RemotingCommand.request(318, body=b"orderMessageEnable=true")).code == 0
    good = (data / name).read_bytes()
    (data / name).write_bytes(good.replace(b"first", b"girst").replace(b"true", b"urue"))
    line = refusal(data)
    assert str(data / name) in line
    assert f"remove {name}.sha256" in line
    (data / name).write_bytes(good)
    with nameserver(data) as (client, addr):
        assert has(client, addr, "first")


def test_kv_file_and_backup_both_damaged_refuse_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with nameserver(data) as (client, addr):
        put(client, addr, "first")
        put(client, addr, "second")
    for name in ("kvConfig.json", "kvConfig.json.bak"):
        (data / name).write_bytes(b"{")
    line = refusal(data)
    assert all(name in line for name in ("kvConfig.json", "kvConfig.json.bak", "kvConfig.json.sha256"))


def test_kv_file_without_checksum_is_taken_with_one_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kvConfig.json").write_bytes(b'{"configTable":{"n":{"first":"v"}}}')
    with nameserver(data) as (client, addr):
        assert has(client, addr, "first")
    log = data.with_name("nameserver.log").read_text()
    (warning,) = [line for line in log.splitlines() if " WARNING " in line]
    assert "without checksum" in warning
    assert str(data / "kvConfig.json") in warning
    with nameserver(data) as (client, addr):
        assert has(client, addr, "first")
    assert " WARNING " not in data.with_name("nameserver.log").read_text()
