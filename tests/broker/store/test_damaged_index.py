"""Damaged files of the index by key: each message is still found, and the broker rebuilds the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.store.test_index import Stores, find, put, stores

__all__ = ["stores"]  # a fixture, which pytest finds by its name in this module

COUNT = 45


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a hash": lambda path: flipped(path, -24),
    "an offset": lambda path: flipped(path, -1),
    "zeros": lambda path: path.write_bytes(path.read_bytes()[:60].ljust(path.stat().st_size, b"\0")),
    "cut while it runs": lambda path: os.truncate(path, path.stat().st_size - 30),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_file_hides_no_message(stores: Stores, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    store = stores.open()
    offsets = {f"k{number}": put(store, f"k{number}") for number in range(COUNT)}
    assert find(store, "k0") == [offsets["k0"]]
    store = stores.open()
    files = sorted((stores.directory / "index").iterdir())
    before = files[1].read_bytes()
    DAMAGES[kind](files[1])
    assert {key: find(store, key) for key in offsets} == {key: [offset] for key, offset in offsets.items()}
    assert caplog.text.count("index file damaged, made again from the log file=") == 1
    assert store.index.damaged == 1
    assert files[1].read_bytes() == before
