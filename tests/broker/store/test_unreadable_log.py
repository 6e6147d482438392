"""Sectors of the log that the disk cannot read.

A read of such a sector raises an error. In a mapped file, it would end the process without a log line.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from routekeeper.broker.store.files import Disk
from routekeeper.broker.store.steps import run_here
from tests.broker.store.test_damaged_entries import DAMAGES, damage, entry_of, filled, path_of
from tests.broker.store.test_index import Stores, find, put, stores
from tests.broker.store.test_store import OpenStore, bodies, log_files, numbers, open_store
from tests.broker.store.test_store import put as put_numbers

__all__ = ["open_store", "stores"]  # fixtures, which pytest finds by their names in this module

READ = Disk.read


def make_unreadable(monkeypatch: pytest.MonkeyPatch, file: Path, at_byte: int) -> None:
    """Let each read of a byte of a file fail."""

    def read(disk: Disk, fd: int, size: int, at: int) -> bytes:
        if at <= at_byte < at + size and os.path.samestat(os.fstat(fd), file.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return READ(disk, fd, size, at)

    monkeypatch.setattr(Disk, "read", read)


def test_index_of_an_unreadable_log_reports_an_error(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open()
    offset = put(store, "k")
    store = stores.open()
    with monkeypatch.context() as patch:
        make_unreadable(patch, stores.directory / "commitlog" / f"{0:020d}", 100)
        for _ in range(2):
            with pytest.raises(OSError, match=r"Input/output error: .*/commitlog/0"):
                run_here(store.index.follow())
    assert find(store, "k") == [offset]


def test_damaged_index_file_of_an_unreadable_log_reports_an_error(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    offsets = [put(store, "k") for _ in range(12)]
    assert find(store, "k") == offsets[::-1]
    (file,) = (stores.directory / "index").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    store = stores.open()
    run_here(store.index.follow())
    with monkeypatch.context() as patch:
        make_unreadable(patch, stores.directory / "commitlog" / f"{0:020d}", 100)
        with pytest.raises(OSError, match=r"Input/output error: .*/commitlog/0"):
            find(store, "k")
    assert find(store, "k") == offsets[::-1]


def test_search_for_damaged_entries_in_an_unreadable_log_reports_an_error(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(open_store)
    good, other = entry_of(path_of(tmp_path), 20), entry_of(path_of(tmp_path, "U"), 20)
    damage(path_of(tmp_path), 20, DAMAGES["zeros"](good, other))
    store = open_store(queue_file=800)
    with monkeypatch.context() as patch:
        before = entry_of(path_of(tmp_path, "U"), 19).log_offset  # the search reads this message, too
        file = max(each for each in log_files(tmp_path) if int(each.name) <= before)
        make_unreadable(patch, file, before - int(file.name))
        with pytest.raises(OSError, match=r"Input/output error: .*/commitlog/0"):
            store.message_in_queue("T", 0, 20)
    message = store.message_in_queue("T", 0, 20)
    assert message is not None
    assert message.physical_offset == good.log_offset


def test_start_that_has_to_read_an_unreadable_log_reports_an_error(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    put_numbers(store, 150)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    with monkeypatch.context() as patch:
        make_unreadable(patch, log_files(tmp_path)[1], 100)
        with pytest.raises(OSError, match=r"Input/output error: .*/commitlog/0"):
            open_store()
    assert bodies(open_store()) == numbers(150)
