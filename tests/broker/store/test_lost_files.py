"""Files of a store that are missing or shortened, although they were durable.

If messages are lost with these files, the broker reports an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from routekeeper.broker.errors import StoreDamaged
from routekeeper.remoting.message import decode_messages
from tests.broker.store.test_store import LOG_FILE, OpenStore, bodies, log_files, numbers, open_store, put

__all__ = ["open_store"]  # a fixture, which pytest finds by its name in this module


def test_store_without_its_first_log_file_refuses_to_start(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 150)
    store.close()
    first, *rest = log_files(tmp_path)
    assert rest
    aside = first.rename(tmp_path / "aside")
    with pytest.raises(StoreDamaged, match=f"log begins at offset {LOG_FILE}, it began at 0: .*=skip"):
        open_store()
    aside.rename(first)
    assert bodies(open_store()) == numbers(150)


def test_lost_first_log_file_can_be_given_up_with_a_line(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    put(store, 150)
    store.close()
    log_files(tmp_path)[0].unlink()
    skipping = open_store(skip_damage=True)
    low = skipping.bounds("T", 0)[0]
    assert bodies(skipping, low) == numbers(150 - low, low)
    assert f"log files missing began=0 begins={LOG_FILE}" in caplog.text


@pytest.mark.parametrize("size", [0, 60], ids=["empty", "shorter"])
def test_cut_file_in_the_middle_of_a_queue_hides_no_message(
    open_store: OpenStore, tmp_path: Path, size: int
) -> None:
    store = open_store()
    put(store, 45)
    store.close()
    files = sorted((tmp_path / "consumequeue/T/0").iterdir())
    assert len(files) > 3
    os.truncate(files[1], size)
    again = open_store()
    assert again.bounds("T", 0) == (0, 45)
    assert bodies(again) == numbers(45)


def test_missing_checkpoint_beside_a_log_is_said(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_store().close()
    store = open_store()
    assert caplog.text == ""
    put(store, 150)
    end = store.log.max_offset
    store.close()
    (tmp_path / "checkpoint").unlink()
    assert bodies(open_store()) == numbers(150)
    assert f"checkpoint missing, the log is read whole begins=0 ends={end}" in caplog.text


def test_store_without_its_checkpoint_and_last_log_file_refuses_to_start(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    put(store, 150)
    store.close()
    (tmp_path / "checkpoint").unlink()
    last = log_files(tmp_path)[-1]
    aside = last.rename(tmp_path / "aside")
    with pytest.raises(StoreDamaged, match=r"log ends at offset .*, files of queues lead to .*=skip"):
        open_store()
    aside.rename(last)
    assert bodies(open_store()) == numbers(150)
    (tmp_path / "checkpoint").unlink()
    last.unlink()
    skipping = open_store(skip_damage=True)
    assert 0 < skipping.bounds("T", 0)[1] < 150
    assert "end of the log missing" in caplog.text


@pytest.mark.parametrize("cut", [False, True], ids=["missing", "cut"])
def test_a_pull_over_missing_messages_names_them_and_returns_the_others(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: bool
) -> None:
    store = open_store(queue_file=4000)
    put(store, 150)
    store.close()
    _, second, *rest = log_files(tmp_path)
    assert len(rest) > 1
    if cut:
        os.truncate(second, second.stat().st_size - 200)
    else:
        second.unlink()
    again = open_store(queue_file=4000, skip_damage=True)
    batch = again.get("T", 0, 0, count_max=150, bytes_max=1 << 20)
    found = [int(message.body) for message in decode_messages(batch.body)]
    lost = sorted(set(range(batch.next_begin)) - set(found))
    assert batch.count == len(found)
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert 0 < lost[0] < lost[-1] < batch.next_begin - 1
    if cut:
        assert len(lost) < 5, "the messages before the cut can be read"
    line = f"messages missing in the log topic=T queue=0 first={lost[0]} last={lost[-1]} count={len(lost)}"
    assert caplog.text.count(line) == 1
    again.get("T", 0, 0, count_max=150, bytes_max=1 << 20)
    assert caplog.text.count("messages missing in the log") == 1
