"""At its start, each server logs the full path of the folder that holds its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from .servers import SERVERS, server

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@SERVERS
def test_the_full_path_of_a_relative_folder_is_logged(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, folder = ("data directory", "data") if kind == "nameserver" else ("store directory", "store")
    with server(kind, Path()) as running:
        running.says(f"{words} path={tmp_path.resolve() / folder}\n")
        assert (tmp_path / folder).is_dir()
