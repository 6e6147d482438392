"""The index and the search for damaged entries read the log in parts. They miss no message between parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import Draft, MessageStore
from routekeeper.broker.store.steps import run_here
from tests.broker.store.test_store import BORN, HOST, NOW

COUNT = 60


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[MessageStore]]:
    opened: list[MessageStore] = []
    yield opened
    for store in opened:
        store.log.close()


def open_store(directory: Path, stores: list[MessageStore]) -> MessageStore:
    store = MessageStore(
        directory,
        log_file_size=4 << 20,
        queue_file_size=20 * 1000,
        store_host=HOST,
        tags_code=lambda _: 0,
        born_at=lambda _: 0,
        boot="this",
    )
    stores.append(store)
    return store


def filled(directory: Path, stores: list[MessageStore], seed: int) -> list[tuple[int, int]]:
    """Store messages of different sizes, up to several parts. Return log offset and size of each record."""
    store, rng = open_store(directory, stores), random.Random(seed)
    for number in range(COUNT):
        body = rng.randbytes(rng.choice((10, 5_000, 100_000, rng.randint(200_000, 900_000))))
        properties = f"KEYS\x01k{number}\x02"
        draft = Draft(topic="T", queue_id=0, body=body, properties=properties, tags_code=0, born_host=BORN)
        store.put(draft, now_ms=NOW)
    store.close()
    return [(entry.log_offset, entry.size) for entry in store.entries("T", 0, 0, COUNT)]


@pytest.mark.parametrize("seed", range(3))
def test_index_that_is_read_from_the_log_has_each_message(
    tmp_path: Path, stores: list[MessageStore], seed: int
) -> None:
    records = filled(tmp_path, stores, seed)
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    store = open_store(tmp_path, stores)
    run_here(store.index.follow())
    found = []
    for number in range(COUNT):
        steps = store.index.search("T", f"k{number}", begin_ms=0, end_ms=NOW + 1)
        found.append([entry.offset for step in steps for entry in step()])
    assert found == [[offset] for offset, _ in records]


@pytest.mark.parametrize("lost", [None, 7, COUNT // 2], ids=["none", "one", "another"])
@pytest.mark.parametrize("seed", range(3))
def test_search_for_all_entries_of_a_queue_finds_each_message(
    tmp_path: Path, stores: list[MessageStore], seed: int, lost: int | None
) -> None:
    """``lost`` is the message whose record is damaged, too."""
    records = filled(tmp_path, stores, seed)
    (entries,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    store = open_store(tmp_path, stores)
    content = entries.read_bytes()
    entries.write_bytes(content[:20] + bytes(len(content) - 40) + content[-20:])
    if lost is not None:
        offset, _ = records[lost]
        file = max(each for each in (tmp_path / "commitlog").iterdir() if int(each.name) <= offset)
        with file.open("r+b") as log:
            log.seek(offset - int(file.name) + 4)
            log.write(b"\0\0\0\0")
    found = []
    for number in range(COUNT):
        message = None
        while True:
            try:
                message = store.message_in_queue("T", 0, number)
            except Mending:
                continue
            break
        found.append(None if message is None else message.physical_offset)
    assert found == [None if number == lost else offset for number, (offset, _) in enumerate(records)]
