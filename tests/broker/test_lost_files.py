"""Files of a store that are missing or cut although they were durable: no message goes in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from routekeeper.broker.errors import StoreDamaged
from tests.broker.test_store import LOG_FILE, OpenStore, bodies, log_files, numbers, open_store, put

__all__ = ["open_store"]  # a fixture


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
