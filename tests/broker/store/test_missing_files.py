"""One file of the log is missing between other files, or it was shortened.

The broker names the file and does not start, unless an operator has allowed it to skip the damage.
"""

from __future__ import annotations

import math
import os
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.broker.errors import StoreDamaged
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.message import decode_messages
from tests.broker.conftest import StartBroker
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

LARGE_QUEUE = 4000


def filled(open_store: OpenStore, tmp_path: Path) -> list[Path]:
    """Return the log files of a closed store with 150 messages in one queue."""
    store = open_store(queue_file=LARGE_QUEUE)
    put(store, 150)
    store.close()
    files = log_files(tmp_path)
    assert len(files) > 3
    return files


def contents(tmp_path: Path) -> dict[Path, bytes]:
    """Return the content of all files of the log and the queues, by path."""
    return {
        path: path.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for path in (tmp_path / folder).rglob("*")
        if path.is_file()
    }


def test_store_without_a_middle_log_file_refuses_to_start_and_deletes_nothing(
    open_store: OpenStore, tmp_path: Path
) -> None:
    _, second, third, *_ = filled(open_store, tmp_path)
    aside = second.rename(tmp_path / "aside")
    before = contents(tmp_path)
    begin, end = int(second.name), int(third.name)
    with pytest.raises(StoreDamaged, match=rf"log lacks offsets {begin} to {end}: .*=skip"):
        open_store(queue_file=LARGE_QUEUE)
    assert contents(tmp_path) == before
    aside.rename(second)
    assert bodies(open_store(queue_file=LARGE_QUEUE)) == numbers(150)


@pytest.mark.parametrize("size", [0, 1000], ids=["empty", "shorter"])
def test_store_with_a_cut_middle_log_file_refuses_to_start(
    open_store: OpenStore, tmp_path: Path, size: int
) -> None:
    _, second, third, *_ = filled(open_store, tmp_path)
    os.truncate(second, size)
    begin = int(second.name) + size
    with pytest.raises(StoreDamaged, match=rf"log lacks offsets {begin} to {int(third.name)}: "):
        open_store(queue_file=LARGE_QUEUE)


def test_missing_log_file_that_was_given_up_once_is_named_at_later_starts(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, second, third, fourth, *_ = filled(open_store, tmp_path)
    second.unlink()
    begin, end = int(second.name), int(third.name)
    skipping = open_store(queue_file=LARGE_QUEUE, skip_damage=True)
    line = f"log files missing, given up begins={begin} ends={end}"
    assert caplog.text.count(line) == 1
    assert skipping.given_up == ((begin, end),)
    skipping.close()
    again = open_store(queue_file=LARGE_QUEUE)
    assert caplog.text.count(line) == 2
    batch = again.get("T", 0, 0, count_max=150, bytes_max=1 << 20)
    found = [int(message.body) for message in decode_messages(batch.body)]
    assert (found[0], found[-1], batch.next_begin) == (0, 149, 150)
    again.close()
    third.unlink()
    with pytest.raises(StoreDamaged, match=rf"log lacks offsets {begin} to {int(fourth.name)}: "):
        open_store(queue_file=LARGE_QUEUE)


@pytest.mark.parametrize(
    "change", [lambda files: None, lambda files: files[0].unlink()], ids=["whole", "first"]
)
def test_no_hole_is_found_where_there_is_none(
    open_store: OpenStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[list[Path]], None],
) -> None:
    change(filled(open_store, tmp_path))
    open_store(queue_file=LARGE_QUEUE, skip_damage=True)
    assert "given up" not in caplog.text


def hide_log(tmp_path: Path) -> Callable[[], object]:
    """Make the log's folder empty, as if its disk were not mounted. Return a function that ends this."""
    folder = tmp_path / "commitlog"
    aside = folder.rename(tmp_path / "aside")

    def put_back() -> None:
        shutil.rmtree(folder)
        aside.rename(folder)

    return put_back


def hide_last_file(tmp_path: Path) -> Callable[[], object]:
    last = log_files(tmp_path)[-1]
    aside = last.rename(tmp_path / "aside")
    return lambda: aside.rename(last)


@pytest.mark.parametrize("hide", [hide_log, hide_last_file], ids=["all", "last"])
def test_store_without_the_end_of_its_log_refuses_to_start_and_deletes_nothing(
    open_store: OpenStore, tmp_path: Path, hide: Callable[[Path], Callable[[], object]]
) -> None:
    """Only the files of queue U know its end, because all messages of this queue have expired."""
    store = open_store(queue_file=LARGE_QUEUE)
    put(store, 50, topic="U")
    put(store, 150)
    checkpoint(store)
    run_here(store.remove_old_files(before=math.inf))
    assert store.bounds("U", 0) == (50, 50)
    put(store, 50, first=150)
    store.close()
    put_back = hide(tmp_path)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"log ends at offset .* was synced: .*=skip"):
            open_store(queue_file=LARGE_QUEUE)
        assert contents(tmp_path) == before
    put_back()
    again = open_store(queue_file=LARGE_QUEUE)
    low = again.bounds("T", 0)[0]
    assert bodies(again, low) == numbers(200 - low, low)
    assert again.bounds("U", 0) == (50, 50)


@pytest.mark.faults
@pytest.mark.slow
def test_broker_without_a_middle_log_file_says_so_at_its_start_and_at_readyz(
    start_broker: StartBroker,
) -> None:
    flags = (
        "--set",
        "maxMessageSize=1000",
        "--set",
        "mappedFileSizeCommitLog=70000",
        "--http",
        "127.0.0.1:0",
    )
    broker = start_broker(*flags)
    wire = broker.wire()
    for _ in range(250):
        assert wire.send_message("T", b"x" * 1000).code == 0
    assert broker.stop() == 0
    _, second, third, *_ = sorted((broker.store / "commitlog").iterdir())
    second.unlink()
    begin, end = int(second.name), int(third.name)
    with pytest.raises(AssertionError, match=f"log lacks offsets {begin} to {end}: .*recoverDamagedLog=skip"):
        start_broker(*flags)
    again = start_broker(*flags, "--set", "recoverDamagedLog=skip")
    with urllib.request.urlopen(f"http://{again.ready_line.split('http=')[1]}/readyz", timeout=20) as answer:
        assert answer.read().decode() == f"ready; given up in the log: offsets {begin} to {end}\n"
    assert again.wire().send_message("T", b"x").code == 0
