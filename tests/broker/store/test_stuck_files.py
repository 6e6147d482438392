"""Old files that the broker cannot remove, and old files that an operator removes while the broker runs."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from routekeeper.broker.store.files import Disk
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.store.steps import run_here
from tests.broker.store.test_store import (
    OpenStore,
    bodies,
    checkpoint,
    log_files,
    numbers,
    open_store,
    put,
)

__all__ = ["open_store"]  # a fixture, which pytest finds by its name in this module

COUNT = 300


class Stuck:
    """A fault of the disk: nobody can remove these files, as if they were immutable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, paths: Collection[Path]) -> None:
        self.paths = set(paths)
        monkeypatch.setattr(Disk, "remove", lambda _disk, path: self(path))

    def __call__(self, path: Path) -> None:
        if path in self.paths:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        path.unlink()


def filled(open_store: OpenStore, tmp_path: Path) -> tuple[MessageStore, list[Path]]:
    store = open_store()
    put(store, COUNT)
    checkpoint(store)
    files = log_files(tmp_path)
    assert len(files) > 6
    return store, files


def clean(store: MessageStore) -> None:
    """Remove the two oldest log files, as the broker does while the disk is full."""
    run_here(store.remove_old_files(before=math.inf, count_max=2))


def begins(store: MessageStore) -> int:
    """Return the first queue offset, after a check that all messages from there on can be read."""
    low, high = store.bounds("T", 0)
    assert high == COUNT
    assert bodies(store, low) == numbers(COUNT - low, low)
    return low


def open_files(folder: Path) -> int:
    """Return how many files below a folder are open. Other threads of the tests may open other files."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    return count


def test_log_files_that_an_operator_removed_count_as_removed(open_store: OpenStore, tmp_path: Path) -> None:
    store, files = filled(open_store, tmp_path)
    before = open_files(tmp_path)
    files[0].unlink()
    clean(store)
    assert log_files(tmp_path) == files[2:]
    assert open_files(tmp_path) == before - 2, "the disk frees a file's bytes only after the file is closed"
    assert store.log.min_offset == int(files[2].name)
    begins(store)


def test_log_file_that_cannot_be_removed_costs_no_further_messages(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, files = filled(open_store, tmp_path)
    stuck = Stuck(monkeypatch, files[:1])
    for _ in range(3):
        with pytest.raises(PermissionError, match=files[0].name):
            clean(store)
        assert log_files(tmp_path) == [files[0], *files[2:]]
        assert store.log.min_offset == int(files[2].name)
    begins(store)
    stuck.paths.clear()
    clean(store)
    assert log_files(tmp_path) == files[4:]
    begins(store)


def test_store_starts_beside_an_old_log_file_that_cannot_be_removed(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, files = filled(open_store, tmp_path)
    stuck = Stuck(monkeypatch, files[:1])
    with pytest.raises(PermissionError):
        clean(store)
    low = begins(store)
    store.close()
    again = open_store()
    assert begins(again) == low
    assert f"old files not removed error=[Errno 1] Operation not permitted: '{files[0]}'" in caplog.text
    with pytest.raises(PermissionError):
        clean(again)
    assert begins(again) == low
    stuck.paths.clear()
    clean(again)
    assert log_files(tmp_path) == files[4:]


@pytest.mark.parametrize("folder", ["index", "consumequeue/T/0"])
def test_other_file_that_cannot_be_removed_keeps_no_log_file(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    store, files = filled(open_store, tmp_path)
    run_here(store.index.seal())
    first = min((tmp_path / folder).iterdir())
    Stuck(monkeypatch, [first])
    with pytest.raises(PermissionError, match=first.name):
        run_here(store.remove_old_files(before=math.inf))
    assert log_files(tmp_path) == files[-1:]
    begins(store)
    store.close()
    begins(open_store())


def test_index_files_that_an_operator_removed_keep_no_log_file(open_store: OpenStore, tmp_path: Path) -> None:
    store, files = filled(open_store, tmp_path)
    run_here(store.index.seal())
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    run_here(store.remove_old_files(before=math.inf))
    assert log_files(tmp_path) == files[-1:]


def test_files_of_a_deleted_topic_are_removed_although_no_file_can_be_made(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without free inodes only this removal makes room, so it must not wait for a new file."""
    store = open_store()
    put(store, COUNT)
    put(store, 1, topic="U")
    checkpoint(store)
    store.delete_topic("T")
    store.confirm_topics(0, 1)
    open_file = Disk.open
    queues = tmp_path / "consumequeue"

    def full(disk: Disk, path: Path, **how: bool) -> int:
        if not path.exists() and (queues / "T").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return open_file(disk, path, **how)

    monkeypatch.setattr(Disk, "open", full)
    checkpoint(store)
    assert not (queues / "T").exists()
    assert store.refusing is None
    assert store.bounds("U", 0) == (0, 1)
