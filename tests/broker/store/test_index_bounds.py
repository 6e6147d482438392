"""Bounds of the index by key for messages with many keys and long properties.

One message may have 64 keys. Therefore a bound on the number of messages alone would allow too many entries.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from routekeeper.broker.store import message_index
from routekeeper.broker.store.files import Disk
from routekeeper.broker.store.message_index import KEYS_MAX
from routekeeper.broker.store.messages import INDEXED_AT_ONCE, Draft, MessageStore
from routekeeper.broker.store.steps import run_here
from tests.broker.store import test_index
from tests.broker.store.test_index import HOST, find

#: Largest number of entries that one step may index: the bound of a step plus the keys of its last message.
STEP_ENTRIES = 1024 + KEYS_MAX
#: Size in bytes of one entry in a file.
ENTRY_SIZE = 24
MANY_KEYS = " ".join(f"k{number}" for number in range(KEYS_MAX - 1))


class FullDisk(Disk):
    """A disk that can be full for files of the index."""

    full = False

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        if self.full and path.name.endswith(".tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, create=create, empty=empty)


class Stores(test_index.Stores):
    """A store with larger files that can be opened again and again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.disk = FullDisk()

    def open(self, *, index_messages: int = 100_000) -> MessageStore:
        self.close()
        store = MessageStore(
            self.directory,
            log_file_size=16 << 20,
            queue_file_size=20_000,
            store_host=HOST,
            tags_code=lambda _: 0,
            born_at=lambda _: 0,
            boot="this",
            index_messages=index_messages,
            disk=self.disk,
        )
        self._opened.append(store)
        return store

    @property
    def files(self) -> list[Path]:
        return sorted((self.directory / "index").iterdir())


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


class Counted:
    """Counter of hashed keys, and of characters of properties that are searched for keys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes = self.characters = 0
        key_hash, keys_of = message_index.key_hash, message_index.keys_of

        def noting_hash(topic: str, key: str) -> int:
            self.hashes += 1
            return key_hash(topic, key)

        def noting_keys(properties: str) -> list[str]:
            self.characters += len(properties)
            return keys_of(properties)

        monkeypatch.setattr(message_index, "key_hash", noting_hash)
        monkeypatch.setattr(message_index, "keys_of", noting_keys)

    def most_in_a_step(self, steps: Iterable[Callable[[], Any]]) -> tuple[int, int]:
        """Run steps, and return the largest number of hashes, and of characters, that one step added."""
        counts = [(self.hashes, self.characters)]
        for step in steps:
            step()
            counts.append((self.hashes, self.characters))
        counts.append((self.hashes, self.characters))
        added = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts)]
        return max(hashes for hashes, _ in added), max(characters for _, characters in added)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def drafts(count: int, *, keys: str = MANY_KEYS, more: str = "") -> list[Draft]:
    return [
        Draft(
            topic="T",
            queue_id=0,
            body=b"",
            properties=f"{more}KEYS\x01{keys}\x02UNIQ_KEY\x01id{number}\x02",
            tags_code=0,
            born_host=HOST,
        )
        for number in range(count)
    ]


def put_batch(store: MessageStore, batch: list[Draft]) -> list[int]:
    return [placed.physical_offset for placed in store.put_all(batch, now_ms=1000)]


def put_each(store: MessageStore, messages: list[Draft]) -> list[int]:
    return [store.put(message, now_ms=1000).physical_offset for message in messages]


def go_on(steps: Generator[Callable[[], Any], Any, None], outcome: object) -> None:
    """Send a step's outcome to the generator, and run its remaining steps."""
    try:
        while True:
            outcome = steps.send(outcome)()
    except StopIteration:
        pass


@pytest.mark.parametrize("source", ["memory", "log"])
def test_batch_of_messages_with_many_keys_is_indexed_in_steps(
    stores: Stores, counted: Counted, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "log":
        monkeypatch.setattr(message_index, "NOTED_MAX", 0)
    store = stores.open()
    offsets = put_batch(store, drafts(500))
    assert counted.hashes <= INDEXED_AT_ONCE * KEYS_MAX
    most, _ = counted.most_in_a_step(store.index.follow())
    assert most <= STEP_ENTRIES
    assert counted.hashes == len(offsets) * KEYS_MAX
    assert find(store, "id499") == [offsets[499]]
    assert find(store, "id0") == [offsets[0]]


def test_index_keeps_up_with_batches_in_every_turn_of_the_loop(stores: Stores) -> None:
    store = stores.open()
    work = store.index.follow()
    put_batch(store, drafts(2000, keys="all"))
    step = next(work)
    for _ in range(20):
        put_batch(store, drafts(2000, keys="all"))
        step = work.send(step())
    assert store.index.noted < 10 * 2000


def test_small_batch_is_indexed_when_it_is_stored(stores: Stores) -> None:
    store = stores.open()
    offsets = put_batch(store, drafts(INDEXED_AT_ONCE))
    assert store.index.position == store.log.max_offset
    assert find(store, "k0") == offsets[::-1]


def test_damaged_file_of_messages_with_many_keys_is_made_again_in_steps(
    stores: Stores, counted: Counted
) -> None:
    store = stores.open(index_messages=1000)
    offsets = put_batch(store, drafts(100))
    assert find(store, "id0") == [offsets[0]]
    store = stores.open(index_messages=1000)
    damaged = stores.files[0]
    content = damaged.read_bytes()
    assert len(content) > 2 * STEP_ENTRIES * ENTRY_SIZE
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    most, _ = counted.most_in_a_step(store.index.search("T", "id0", begin_ms=0, end_ms=2000))
    assert damaged.read_bytes() == content
    assert most <= STEP_ENTRIES


def test_step_is_bounded_in_characters_of_properties(stores: Stores, counted: Counted) -> None:
    store = stores.open()
    offsets = put_batch(store, drafts(60, keys="all", more="a\x01b\x02" * 7500))
    _, most = counted.most_in_a_step(store.index.follow())
    assert most <= (256 << 10) + 32_767
    assert find(store, "all") == offsets[::-1]


def test_file_of_messages_with_many_keys_has_a_bounded_number_of_entries(stores: Stores) -> None:
    store = stores.open(index_messages=1000)
    offsets = put_batch(store, drafts(1000))
    assert find(store, "id7") == [offsets[7]]
    entries = [file.stat().st_size // ENTRY_SIZE for file in stores.files]
    assert max(entries) <= 4 * 1000 + STEP_ENTRIES
    # Messages with up to four keys need no more files than messages with one key.
    before = len(entries)
    put_batch(store, drafts(4000, keys="a b c"))
    run_here(store.index.follow())
    assert 3 <= len(stores.files) - before <= 5


def test_entries_that_cannot_be_written_are_bounded_for_messages_with_many_keys(stores: Stores) -> None:
    store = stores.open(index_messages=10)
    stores.disk.full = True
    offsets = put_each(store, drafts(100))
    with pytest.raises(OSError, match="No space left"):
        run_here(store.index.follow())
    run_here(store.index.catch_up(1000))
    indexed = sum(offset < store.index.position for offset in offsets)
    assert 0 < indexed * KEYS_MAX <= 4 * 4 * 10 + KEYS_MAX
    stores.disk.full = False
    assert find(store, "k0") == offsets[::-1]


def test_entries_that_are_being_written_count_as_unwritten(stores: Stores) -> None:
    store = stores.open(index_messages=10)
    first = put_each(store, drafts(40, keys="all"))
    assert store.index.position == store.log.max_offset
    work = store.index.follow()
    write = next(work)
    others = put_each(store, drafts(40, keys="all"))
    assert store.index.noted == len(others), "they wait until the file is written"
    go_on(work, write())
    assert find(store, "all") == (first + others)[::-1]


def test_messages_that_wait_to_be_indexed_are_bounded_in_characters(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "NOTED_CHARACTERS_MAX", 10_000, raising=False)
    store = stores.open()
    offsets: list[int] = []
    for _ in range(3):
        offsets += put_batch(store, drafts(20, keys="all", more="a" * 1000 + "\x02"))
        assert store.index.noted == 10
        assert find(store, "all") == offsets[::-1]
        assert store.index.noted == 0


def test_file_is_sorted_in_parts(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def noting_sorted(values: Iterable[Any]) -> list[Any]:
        found = builtins.sorted(values)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(message_index, "sorted", noting_sorted, raising=False)
    store = stores.open()
    offsets = []
    for number in range(170):
        keys = " ".join(f"k{number}-{place}" for place in range(KEYS_MAX - 1))
        offsets += put_each(store, drafts(1, keys=keys))
    run_here(store.index.seal())
    (file,) = stores.files
    assert file.stat().st_size > 10_000 * ENTRY_SIZE
    assert max(sizes) <= 4096, "other threads cannot run while a call sorts"
    assert find(store, "k0-0") == [offsets[0]]
    assert find(store, "k169-62") == [offsets[169]]
