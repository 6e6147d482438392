"""Paths that are not regular files: the client and mqadmin report an error at once instead of waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_OFFSETS = """
import sys
from pathlib import Path
from routekeeper.client.errors import ClientError
from routekeeper.client.offsets import _read
try:
    _read(Path(sys.argv[1]))
except ClientError as error:
    sys.exit(f"said: {error}")
"""
_TLS = """
import sys
from routekeeper.client.config import ClientConfig, TlsConfig
from routekeeper.client.blocking import Client
from routekeeper.client.errors import InvalidArgument
try:
    Client(ClientConfig(nameservers=("127.0.0.1:1",), tls=TlsConfig(ca_file=sys.argv[1])))
except InvalidArgument as error:
    sys.exit(f"said: {error}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-c", _OFFSETS), id="offsets"),
        pytest.param(("-c", _TLS), id="TLS"),
        pytest.param(
            ("-m", "routekeeper.client.mqadmin", "addMember", "--http", "127.0.0.1:1", "-m", "a:1", "-k"),
            id="token",
        ),
        pytest.param(
            ("-m", "routekeeper.client.mqadmin", "snapshotRestore", "--http", "127.0.0.1:1", "-f"),
            id="snapshot",
        ),
    ],
)
def test_a_fifo_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    odd = tmp_path / "odd"
    os.mkfifo(odd)
    ended = subprocess.run(
        [sys.executable, *command, str(odd)], capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == 1
    assert str(odd) in ended.stderr
    assert "not a regular file" in ended.stderr
