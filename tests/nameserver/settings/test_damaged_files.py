"""Tests of a nameserver's own files that were damaged, edited or lost while the nameserver was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import refusal, server

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@contextmanager
def nameserver(folder: Path) -> Iterator[tuple[BlockingClient, str]]:
    with server("nameserver", folder) as running, BlockingClient() as client:
        yield client, running.listen


def put(client: BlockingClient, addr: str, key: str) -> None:
    ext = {"namespace": "n", "key": key, "value": "v"}
    assert client.invoke(addr, RemotingCommand.request(100, ext)).code == 0


def has(client: BlockingClient, addr: str, key: str) -> bool:
    return client.invoke(addr, RemotingCommand.request(101, {"namespace": "n", "key": key})).code == 0


def test_damaged_kv_file_is_named_and_its_backup_is_used(tmp_path: Path) -> None:
    data, content = tmp_path / "data", b'{"configTable":{"n"'
    with nameserver(tmp_path) as (client, addr):
        put(client, addr, "first")
        put(client, addr, "second")
    (data / "kvConfig.json").write_bytes(content)
    with nameserver(tmp_path) as (client, addr):
        assert has(client, addr, "first")
        put(client, addr, "third")
    log = (tmp_path / "stderr.txt").read_text()
    (error,) = [line for line in log.splitlines() if " ERROR " in line]
    assert str(data / "kvConfig.json") in error
    assert "kvConfig.json.bak" in error
    assert (data / "kvConfig.json.damaged").read_bytes() == content
    with nameserver(tmp_path) as (client, addr):
        assert has(client, addr, "first")
        assert has(client, addr, "third")


def test_file_with_a_flipped_bit_refuses_the_start_until_somebody_decides(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with nameserver(tmp_path) as (client, addr):
        put(client, addr, "first")
        assert client.invoke(addr, RemotingCommand.request(318, body=b"orderMessageEnable=true")).code == 0
    for name in ("kvConfig.json", "namesrv.properties"):
        good = (data / name).read_bytes()
        (data / name).write_bytes(good.replace(b"first", b"girst").replace(b"true", b"urue"))
        refused = refusal("nameserver", tmp_path, "--data", str(data))
        (line,) = [line for line in refused.splitlines() if line.startswith("mqnamesrv: ")]
        assert str(data / name) in line
        assert f"remove {name}.sha256" in line
        (data / name).write_bytes(good)
    with nameserver(tmp_path) as (client, addr):
        assert has(client, addr, "first")


def test_kv_file_without_checksum_is_taken_with_one_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kvConfig.json").write_bytes(b'{"configTable":{"n":{"first":"v"}}}')
    with nameserver(tmp_path) as (client, addr):
        assert has(client, addr, "first")
    log = (tmp_path / "stderr.txt").read_text()
    (warning,) = [line for line in log.splitlines() if " WARNING " in line]
    assert "without checksum" in warning
    assert str(data / "kvConfig.json") in warning
    with nameserver(tmp_path) as (client, addr):
        assert has(client, addr, "first")
    assert " WARNING " not in (tmp_path / "stderr.txt").read_text()
