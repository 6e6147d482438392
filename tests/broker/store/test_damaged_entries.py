"""Damaged queue entries: the broker serves no message of another topic, and skips no stored message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.broker.store.consume_queue import ENTRY, ENTRY_SIZE, Entry
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import MessageStore
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.message import decode_messages, tag_hash
from tests.broker.store.test_store import NOW, OpenStore, bodies, checkpoint, draft, numbers, open_store, put

__all__ = ["open_store"]  # a fixture, which pytest finds by its name in this module

COUNT = 60
QUEUE_FILE = 40 * ENTRY_SIZE  # the damage is in the first of two files
OTHERS = "U"


def filled(open_store: OpenStore) -> None:
    """Store messages of two topics in turn. The two messages of each pair differ only in their topic."""
    store = open_store(queue_file=QUEUE_FILE)
    for number in range(COUNT):
        for topic in ("T", OTHERS):
            store.put(draft(b"%d" % number, topic=topic, tag="AB"[number % 2]), now_ms=NOW + number)
    store.close()


def path_of(tmp_path: Path, topic: str = "T") -> Path:
    return min((tmp_path / "consumequeue" / topic / "0").iterdir())


def entry_of(path: Path, index: int) -> Entry:
    return Entry._make(ENTRY.unpack_from(path.read_bytes(), index * ENTRY_SIZE))


def damage(path: Path, index: int, entry: tuple[int, int, int]) -> None:
    with path.open("r+b") as file:
        file.seek(index * ENTRY_SIZE)
        file.write(ENTRY.pack(*entry))


Damages = Callable[[Entry, Entry], tuple[int, int, int]]
#: Functions that return a damaged entry, by the kind of damage. Their arguments are the good entry, and the
#: other topic's entry with the same queue offset.
DAMAGES: dict[str, Damages] = {
    "of another topic": lambda good, other: other,
    "beyond the log": lambda good, other: (1 << 40, good.size, good.tags_code),
    "before the log": lambda good, other: (-5, good.size, good.tags_code),
    "within a record": lambda good, other: (good.log_offset + 1, good.size, good.tags_code),
    "of negative size": lambda good, other: (good.log_offset, -good.size, good.tags_code),
    "too short": lambda good, other: (good.log_offset, good.size - 1, good.tags_code),
    "too long": lambda good, other: (good.log_offset, good.size + 1, good.tags_code),
    "of huge size": lambda good, other: (good.log_offset, 2**31 - 1, good.tags_code),
    "zeros": lambda good, other: (0, 0, 0),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_entry_hides_no_message_and_serves_no_other(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    filled(open_store)
    path = path_of(tmp_path)
    for index in (0, 7, 8, 9, 39):
        wrong = DAMAGES[kind](entry_of(path, index), entry_of(path_of(tmp_path, OTHERS), index))
        damage(path, index, wrong)
    store = open_store(queue_file=QUEUE_FILE)
    assert bodies(store) == numbers(COUNT)
    assert "queue entries damaged topic=T queue=0 first=0 last=0 found=1" in caplog.text
    assert "queue entries damaged topic=T queue=0 first=7 last=9 found=3" in caplog.text
    assert store.damaged_entries == 5
    store.close()
    caplog.clear()
    again = open_store(queue_file=QUEUE_FILE)
    assert bodies(again) == numbers(COUNT)
    assert "damaged" not in caplog.text, "the file was mended"


def test_filter_finds_the_message_of_a_damaged_entry(open_store: OpenStore, tmp_path: Path) -> None:
    filled(open_store)
    for index in (5, 6):
        damage(path_of(tmp_path), index, (0, 0, 0))
    store = open_store(queue_file=QUEUE_FILE)
    batch = store.get("T", 0, 0, count_max=40, bytes_max=1 << 20, codes={tag_hash("B")})
    assert [message.body for message in decode_messages(batch.body)] == numbers(40)[1::2]


def times(store: MessageStore) -> list[int | None]:
    return store.stored_times("T", [(0, offset) for offset in range(COUNT)])()


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if kind != "too long"])
def test_requests_for_one_message_of_a_queue_find_it(
    open_store: OpenStore, tmp_path: Path, kind: str
) -> None:
    filled(open_store)
    path = path_of(tmp_path)
    for index in (0, 20):
        wrong = DAMAGES[kind](entry_of(path, index), entry_of(path_of(tmp_path, OTHERS), index + 1))
        damage(path, index, wrong)
    # ``times`` reads the entries as a thread of the broker does. No damaged entry may raise an exception.
    assert len(times(open_store(queue_file=QUEUE_FILE))) == COUNT
    store = open_store(queue_file=QUEUE_FILE)
    assert [store.offset_at_time("T", 0, NOW + number) for number in range(COUNT)] == list(range(COUNT))
    found = [store.message_in_queue("T", 0, offset) for offset in range(COUNT)]
    assert [(message.topic, message.body) for message in found if message] == [
        ("T", b) for b in numbers(COUNT)
    ]
    assert times(store) == [NOW + number for number in range(COUNT)]


def test_message_that_the_log_has_lost_with_its_entry_is_named_once_and_the_others_are_returned(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(open_store)
    good = entry_of(path_of(tmp_path), 20)
    damage(path_of(tmp_path), 20, (0, 0, 0))
    (log,) = [
        path
        for path in (tmp_path / "commitlog").iterdir()
        if int(path.name) <= good.log_offset < int(path.name) + 4096
    ]
    with log.open("r+b") as file:
        file.seek(good.log_offset - int(log.name) + 4)
        file.write(bytes(4))  # overwrites the magic number of the record with zeros
    store = open_store(queue_file=QUEUE_FILE)
    wanted = [body for body in numbers(COUNT) if body != b"20"]
    assert bodies(store) == wanted
    assert bodies(store) == wanted
    assert caplog.text.count("queue entries damaged topic=T queue=0 first=20 last=20 found=0") == 1
    assert store.damaged_entries == 1


def test_offset_within_a_body_makes_a_broker_read_no_more_than_a_head(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    placed = store.put(draft((3000).to_bytes(4, "big") * 900), now_ms=NOW)
    read, sizes = DISK.read, []

    def noting(fd: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(fd, size, at)

    monkeypatch.setattr(DISK, "read", noting)
    assert [store.message_at(placed.physical_offset + 200 + more) for more in range(8)] == [None] * 8
    assert max(sizes) < 100
    assert store.message_at(placed.physical_offset) is not None


def test_no_damaged_entry_leads_a_start_past_messages_that_are_there(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(queue_file=4000)
    put(store, 120)
    checkpoint(store)
    run_here(store.remove_old_files(before=1e12))
    low, high = store.bounds("T", 0)
    assert 8 < high - low < 100
    store.close()
    for index in range(low + 1, high - 1):
        damage(path_of(tmp_path), index, (0, 0, 0))
        again = open_store(queue_file=4000)
        assert again.bounds("T", 0) == (low, high)
        assert bodies(again, low) == numbers(high - low, low)
        again.close()
