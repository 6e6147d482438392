"""Tests of files that a nameserver cannot read: special files, very large files, or files of a newer release.

In each case, the nameserver ends and prints only one line, which names the file.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from routekeeper.nameserver.raft.storage.images import Snapshots
from tests.faults.servers import server
from tests.ports import free_addresses

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ENDS_S = 15.0
MEMORY_MAX = 2 << 30
VALUE = "x" * 120_000
WHOLE_LINE_MAX = 2_000


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def one_line_of(*arguments: str) -> str:
    """Run a nameserver; return the only line that it prints before it ends with exit code 2."""
    listen = () if "-c" in arguments else ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    command = [sys.executable, "-m", "routekeeper.nameserver", *listen, *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=ENDS_S, check=False, preexec_fn=limit_memory
    )
    assert ended.returncode == 2, ended.stderr[-2000:]
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr[-2000:]
    return lines[0]


def fifo(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("name", ["identity.json", "kvConfig.json", "namesrv.properties", "lock"])
def test_a_fifo_in_a_data_directory_is_refused(tmp_path: Path, name: str) -> None:
    odd = fifo(tmp_path / "data" / name)
    line = one_line_of("--data", str(tmp_path / "data"))
    assert str(odd) in line or str(odd.parent) in line
    assert "not a regular file" in line


@pytest.fixture(scope="module")
def raft_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the address and the data directory of a member that has run before."""
    (address,) = free_addresses(1)
    folder = tmp_path_factory.mktemp("raft")
    with server("nameserver", folder, "--mode", "raft", "--raft", address, "--peers", address):
        pass  # the member has created its group and written its files
    return address, folder / "data"


@pytest.mark.parametrize("name", ["raft/journal-00000001", "raft/vote", "raft/end"])
def test_a_fifo_in_a_member_s_directory_is_refused(
    tmp_path: Path, raft_data: tuple[str, Path], name: str
) -> None:
    address, made = raft_data
    data = shutil.copytree(made, tmp_path / "data")
    fifo(data / name)
    line = one_line_of("--mode", "raft", "--raft", address, "--peers", address, "--data", str(data))
    assert str(data) in line
    assert "not a regular file" in line


def test_a_data_directory_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "identity.json").write_text('{"format": 2, "mode": "independent"}')
    line = one_line_of("--data", str(data))
    assert "identity.json has format 2, this program knows 1" in line


def test_a_member_refuses_a_snapshot_of_a_newer_release(tmp_path: Path, raft_data: tuple[str, Path]) -> None:
    address, made = raft_data
    data = shutil.copytree(made, tmp_path / "data")
    table = msgspec.msgpack.encode([9])
    Snapshots(data / "raft").store(1000, 1, b"", msgspec.msgpack.encode([1, 1, table]))
    line = one_line_of("--mode", "raft", "--raft", address, "--peers", address, "--data", str(data))
    assert "image is of format 9, this program reads 2" in line


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("-c", "fifo"),
        ("-c", "device"),
        ("--http-token-file", "device"),
        ("--raft-secret-file", "fifo"),
        ("--raft-tls-cert", "device"),
    ],
)
def test_a_file_that_a_flag_names_must_be_regular(tmp_path: Path, flag: str, kind: str) -> None:
    odd = str(fifo(tmp_path / "odd")) if kind == "fifo" else "/dev/zero"
    arguments = ["--data", str(tmp_path / "data"), flag, odd]
    if flag != "-c":
        arguments += ["--mode", "raft", "--raft", "127.0.0.1:1", "--peers", "127.0.0.1:1"]
    if flag == "--raft-tls-cert":
        arguments += ["--raft-tls-key", odd, "--raft-tls-ca", odd]
    line = one_line_of(*arguments)
    assert odd in line
    assert "not a regular file" in line


def test_a_settings_file_has_a_largest_size(tmp_path: Path) -> None:
    large = tmp_path / "large.properties"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    assert str(large) in (line := one_line_of("-c", str(large)))
    assert "bytes" in line


@pytest.mark.parametrize(
    "setting",
    [f"mode={VALUE}", f"listenPort={VALUE}", f"httpListen={VALUE}", f"orderMessageEnable={VALUE}"],
    ids=["mode", "listenPort", "httpListen", "orderMessageEnable"],
)
def test_a_long_value_is_cut_in_the_line_that_refuses_it(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(setting)
    line = one_line_of("-c", str(file), "--data", str(tmp_path / "data"))
    assert setting.partition("=")[0][:4] in line or "--http" in line
    assert len(line) < WHOLE_LINE_MAX
