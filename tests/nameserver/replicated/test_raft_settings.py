"""Tests of the raft engine's settings, which are derived from the nameserver's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.nameserver.raft.types import RaftStartError
from routekeeper.nameserver.replicated import raft_config
from routekeeper.nameserver.settings.declared import NamesrvSettings
from tests.nameserver.replicated.group import group_of


def test_a_secret_that_others_can_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    for mode, named in ((0o644, True), (0o640, True), (0o600, False)):
        secret.chmod(mode)
        caplog.clear()
        raft_config(NamesrvSettings(raft_secret_file=str(secret), data_dir=str(tmp_path)))
        assert (f"{secret} can be read by others: its mode is {mode:04o}" in caplog.text) is named


async def test_unreadable_secret_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RaftStartError, match="No such file") as error:
        async with group_of(tmp_path, size=1, raftSecretFile=str(tmp_path / "none")):
            pass
    assert "\n" not in str(error.value)
