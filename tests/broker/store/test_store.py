"""The store in one process: its content, and recovery from files after a crash."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routekeeper.broker.errors import StoreDamaged, StoreUnavailable
from routekeeper.broker.requests.tags import subscription_codes, tags_code
from routekeeper.broker.store.commit_log import CommitLog
from routekeeper.broker.store.consume_queue import ENTRY, ConsumeQueue, Entry, write_entries
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.log_scan import Record, read_indexed, read_record
from routekeeper.broker.store.messages import Draft, GetStatus, MessageStore
from routekeeper.broker.store.recovery import Checkpoint
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.message import Host, StoredMessage, decode_messages, encode_message, tag_hash

HOST = Host("127.0.0.1", 10911)
BORN = Host("192.0.2.7", 4711)
LOG_FILE = 4096
QUEUE_FILE = 200  # size of a queue file in bytes: ten entries
NOW = 1_700_000_000_000

OpenStore = Callable[..., MessageStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[MessageStore] = []

    def open_(
        *,
        skip_damage: bool = False,
        births: Mapping[str, int] | None = None,
        queue_file: int = QUEUE_FILE,
        boot: str = "this boot",
    ) -> MessageStore:
        store = MessageStore(
            tmp_path,
            log_file_size=LOG_FILE,
            queue_file_size=queue_file,
            store_host=HOST,
            tags_code=lambda message: tags_code(message.properties),
            born_at=lambda topic: 0 if births is None else births.get(topic),
            boot=boot,
            skip_damage=skip_damage,
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.log.close()


def draft(body: bytes, *, topic: str = "T", queue_id: int = 0, tag: str = "") -> Draft:
    properties = f"TAGS\x01{tag}\x02" if tag else ""
    return Draft(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=properties,
        tags_code=tags_code(properties),
        born_host=BORN,
    )


def put(store: MessageStore, count: int, *, first: int = 0, topic: str = "T", queue_id: int = 0) -> None:
    for number in range(first, first + count):
        store.put(draft(b"%d" % number, topic=topic, queue_id=queue_id), now_ms=NOW + number)


def bodies(store: MessageStore, offset: int = 0, *, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        batch = store.get(topic, queue_id, offset, count_max=32, bytes_max=1 << 20)
        if batch.next_begin == offset or not batch.body:
            return found
        found += [message.body for message in decode_messages(batch.body)]
        offset = batch.next_begin


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def checkpoint(store: MessageStore) -> None:
    work = store.prepare_checkpoint()
    assert work is not None
    store.write_checkpoint(work)
    store.finish_checkpoint(work)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def log_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "commitlog").iterdir())


def test_message_is_read_back_with_all_its_members(open_store: OpenStore) -> None:
    store = open_store()
    placed = store.put(draft(b"body", tag="TagA"), now_ms=NOW)
    batch = store.get("T", 0, 0, count_max=32, bytes_max=1000)
    (message,) = decode_messages(batch.body)
    assert (batch.status, batch.next_begin, batch.min_offset, batch.max_offset) == (GetStatus.FOUND, 1, 0, 1)
    assert message == store.message_at(placed.physical_offset)
    assert message == StoredMessage(
        topic="T",
        queue_id=0,
        body=b"body",
        properties="TAGS\x01TagA\x02",
        born_host=BORN,
        store_host=HOST,
        store_timestamp=NOW,
        crc=message.crc,
    )


def test_messages_cross_log_and_queue_files(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 150)
    assert len(log_files(tmp_path)) > 2
    assert bodies(store) == numbers(150)
    checkpoint(store)
    assert bodies(store) == numbers(150)
    assert [file.stat().st_size for file in log_files(tmp_path)[:-1]] < [LOG_FILE + 1] * 10


@pytest.mark.parametrize(
    ("offset", "status", "next_begin"),
    [
        (0, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 0),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_offset_outside_the_queue_is_named(
    open_store: OpenStore, offset: int, status: GetStatus, next_begin: int
) -> None:
    store = open_store()
    put(store, 3)
    batch = store.get("T", 0, offset, count_max=32, bytes_max=1000)
    assert (batch.status, batch.next_begin) == (status, next_begin)


def test_consumer_whose_offset_is_above_the_end_goes_on_before_all_later_messages(
    open_store: OpenStore,
) -> None:
    """An offset above the end belongs to a deleted topic, or to messages that a power cut removed.

    The consumer must not skip messages that were stored since then.
    """

    def goes_on_at(store: MessageStore) -> int:
        return store.get("T", 0, 99, count_max=32, bytes_max=1000).next_begin

    first = open_store()
    put(first, 3)
    checkpoint(first)
    killed = open_store()
    put(killed, 2, first=3)
    assert goes_on_at(killed) == 0, "a killed broker loses nothing: the offset is one of a deleted topic"
    after_power_cut = open_store(boot="the next boot")
    put(after_power_cut, 2, first=5)
    assert goes_on_at(after_power_cut) == 5
    after_power_cut.delete_topic("T")
    put(after_power_cut, 7)
    assert goes_on_at(after_power_cut) == 0


def test_queue_that_nobody_wrote_to_is_named(open_store: OpenStore) -> None:
    batch = open_store().get("T", 7, 5, count_max=32, bytes_max=1000)
    assert (batch.status, batch.next_begin) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_filter_skips_and_moves_on(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(6):
        store.put(draft(b"%d" % number, tag="AB"[number % 2]), now_ms=NOW)
    codes = frozenset({tag_hash("B")})
    batch = store.get("T", 0, 0, count_max=2, bytes_max=1000, codes=codes)
    assert [message.body for message in decode_messages(batch.body)] == [b"1", b"3"]
    assert batch.next_begin == 5
    missed = store.get("T", 0, 0, count_max=2, bytes_max=1000, codes=frozenset({5}))
    assert (missed.status, missed.next_begin) == (GetStatus.NO_MATCHED_MESSAGE, 6)


def test_one_message_is_returned_however_large(open_store: OpenStore) -> None:
    store = open_store()
    store.put_all([draft(b"x" * 500), draft(b"y" * 500)], now_ms=NOW)
    batch = store.get("T", 0, 0, count_max=32, bytes_max=10)
    assert (batch.count, batch.next_begin) == (1, 1)


def test_batch_gets_consecutive_offsets(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 1)
    placed = store.put_all([draft(b"1"), draft(b"2")], now_ms=NOW)
    assert [place.queue_offset for place in placed] == [1, 2]
    assert bodies(store) == numbers(3)


@pytest.mark.parametrize("count_max", [1, 7, 32])
def test_readers_behind_get_every_message_once(open_store: OpenStore, count_max: int) -> None:
    """Readers that are behind must get every message once.

    They get the older entries of a queue from files, and the newest entries from memory.
    """
    store = open_store()
    for number in range(700):
        store.put(draft(b"%d" % number, queue_id=number % 2), now_ms=NOW)
    checkpoint(store)
    for number in range(700, 800):
        store.put(draft(b"%d" % number, queue_id=number % 2), now_ms=NOW)
    queues: dict[int, list[bytes]] = {0: [], 1: []}
    offsets = [0, 0]
    while offsets != [400, 400]:
        for queue_id, found in queues.items():  # alternate between the queues, as consumers do
            batch = store.get("T", queue_id, offsets[queue_id], count_max=count_max, bytes_max=1 << 20)
            assert batch.status is GetStatus.FOUND
            assert 0 < batch.count <= count_max
            found += [message.body for message in decode_messages(batch.body)]
            offsets[queue_id] = batch.next_begin
    assert queues == {0: numbers(800)[::2], 1: numbers(800)[1::2]}


def calls_of(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Return a list that gets the name of each call of these functions of ``os``, in order."""
    calls: list[str] = []

    def note(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        return call

    for name in names:
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    return calls


def test_reader_behind_reads_on_from_what_was_read_for_it(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(queue_file=200_000)
    put(store, 800)
    checkpoint(store)
    opened = calls_of(monkeypatch, "open")
    for offset in range(0, 320, 32):
        assert store.get("T", 0, offset, count_max=32, bytes_max=1 << 20).count == 32
    assert len(opened) == 1
    assert bodies(store) == numbers(800)


def test_pull_steps_over_many_lost_entries_at_once(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(queue_file=20_000)
    put(store, 501)
    store.close()
    (file,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    entries = list(ENTRY.iter_unpack(file.read_bytes()))
    lost = [ENTRY.pack(log_offset, 0, 0) for log_offset, _, _ in entries[1:]]
    file.write_bytes(ENTRY.pack(*entries[0]) + b"".join(lost))
    store = open_store(queue_file=20_000)
    batch = store.get("T", 0, 1, count_max=32, bytes_max=1 << 20)
    assert (batch.status, batch.next_begin) == (GetStatus.NO_MATCHED_MESSAGE, 501)


def test_records_near_each_other_are_read_by_one_call(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    for number in range(60):
        store.put(draft(b"%d" % number, queue_id=number % 20), now_ms=NOW)
    calls = calls_of(monkeypatch, "pread", "preadv")
    log = store.log
    places = [(entry.log_offset, entry.size) for entry in store.entries("T", 3, 0, 3)]
    far = log.read_all(places)  # 19 records of other queues lie between two records of this queue
    assert [message.body for message in decode_messages(far)] == [b"3", b"23", b"43"]
    assert calls == ["pread"] * 3
    near = sorted(places + [(entry.log_offset, entry.size) for entry in store.entries("T", 6, 0, 3)])
    assert near[1][0] - near[0][0] < 10 * near[0][1]
    calls.clear()
    assert [message.body for message in decode_messages(log.read_all(near[:2]))] == [b"3", b"6"]
    assert calls == ["preadv"]
    missing = [*near[:2], (log.max_offset, 50)]
    assert [message.body for message in decode_messages(log.read_all(missing))] == [b"3", b"6"]
    assert log.read_all([]) == b""


def test_offset_is_found_by_time(open_store: OpenStore) -> None:
    store = open_store()
    for at in (10, 20, 20, 30):
        store.put(draft(b"x"), now_ms=at)
    found = {at: store.offset_at_time("T", 0, at) for at in (0, 10, 11, 20, 25, 30, 99)}
    assert found == {0: 0, 10: 0, 11: 1, 20: 1, 25: 3, 30: 3, 99: 3}
    assert store.offset_at_time("T", 0, 20, upper=True) == 2
    assert store.offset_at_time("T", 9, 20) == 0
    assert store.earliest_time("T", 0) == 10
    assert store.earliest_time("T", 9) == -1


def test_offsets_that_start_no_record_find_no_message(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 2)
    for offset in (-1, 1, 50, store.log.max_offset, 10**12):
        assert store.message_at(offset) is None


# Recovery ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [(), (40,), (0, 40, 99)], ids=["none", "one", "several"])
def test_everything_is_there_after_a_crash(open_store: OpenStore, checkpoints: tuple[int, ...]) -> None:
    store = open_store()
    for number in range(100):
        put(store, 1, first=number)
        if number in checkpoints:
            checkpoint(store)
    again = open_store()
    assert bodies(again) == numbers(100)
    put(again, 1, first=100)
    assert bodies(again) == numbers(101)


def test_clean_end_needs_no_reading_of_the_log(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 20)
    store.close()
    # This damage lies below the checkpoint. Only a start that reads the whole log finds it.
    with log_files(tmp_path)[0].open("r+b") as file:
        file.seek(4)
        file.write(b"XXXX")
    again = open_store()
    assert again.bounds("T", 0) == (0, 20)


@pytest.mark.parametrize("keep", [1, 4, 20, 90, 91], ids=lambda keep: f"{keep}-bytes")
def test_torn_tail_is_cut(open_store: OpenStore, tmp_path: Path, keep: int) -> None:
    store = open_store()
    put(store, 5)
    end = store.log.max_offset
    put(store, 1, first=5)
    os.truncate(log_files(tmp_path)[0], end + keep)
    again = open_store()
    assert again.log.max_offset == end
    assert bodies(again) == numbers(5)
    put(again, 2, first=5)
    assert bodies(open_store()) == numbers(7)


def test_zeros_after_the_end_are_cut(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 5)
    end = store.log.max_offset
    os.truncate(log_files(tmp_path)[0], end + 1000)
    again = open_store()
    assert again.log.max_offset == end
    put(again, 1, first=5)
    assert bodies(open_store()) == numbers(6)


@pytest.mark.parametrize("place", ["first", "middle", "file-before"])
def test_damage_before_valid_messages_refuses_to_start(
    open_store: OpenStore, tmp_path: Path, place: str
) -> None:
    # The test damages bytes that a start checks: the body, which has a checksum, or the magic number. A start
    # also checks a record's sizes and offset. It cannot check any other field.
    store = open_store()
    places = [store.put(draft(b"%d" % number), now_ms=NOW).physical_offset for number in range(60)]
    files = log_files(tmp_path)
    assert len(files) > 1
    last_of_file = max(at for at in places if at < LOG_FILE - 100)
    offset = {"first": 4, "middle": places[20] + 88, "file-before": last_of_file + 88}[place]
    with files[0].open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 0xFF]))
    with pytest.raises(StoreDamaged, match="recoverDamagedLog=skip"):
        open_store()
    skipping = open_store(skip_damage=True)
    found = bodies(skipping, skipping.bounds("T", 0)[0])
    assert 60 > len(found) >= 58
    assert found[-1] == b"59"
    assert skipping.bounds("T", 0)[1] == 60


def test_nothing_is_hidden_after_damage_was_skipped(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    places = [store.put(draft(b"%d" % number), now_ms=NOW).physical_offset for number in range(30)]
    with log_files(tmp_path)[0].open("r+b") as file:
        # Damage the middle of the queue, because a bisection over its entries begins there.
        for number in range(14, 17):
            file.seek(places[number] + 88)
            file.write(b"!")
    kept = numbers(14) + numbers(13, 17)
    skipping = open_store(skip_damage=True)
    assert bodies(skipping) == kept
    skipping.close()
    assert bodies(open_store()) == kept


def test_messages_of_a_deleted_topic_stay_away_from_the_queues_of_the_new_one(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 5)
    put(store, 5, queue_id=1)
    store.delete_topic("T")
    store.confirm_topics(0, 1)
    born = store.log.max_offset
    put(store, 2, first=50)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")  # makes the next start rebuild all queues from the log
    again = open_store(births={"T": born})
    assert bodies(again) == numbers(2, 50)
    assert again.bounds("T", 1) == (0, 0)


def test_log_shorter_than_what_was_synced_refuses_to_start(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 20)
    checkpoint(store)
    end = store.log.max_offset
    os.truncate(log_files(tmp_path)[0], 1000)
    with pytest.raises(StoreDamaged, match=f"{end} was synced"):
        open_store()
    skipping = open_store(skip_damage=True)
    found = len(bodies(skipping))
    assert 0 < found < 20
    put(skipping, 1)
    assert len(bodies(open_store())) == found + 1


def test_lost_log_file_refuses_to_start(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 150)
    checkpoint(store)
    log_files(tmp_path)[1].unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(StoreDamaged, match="log lacks offsets"):
        open_store()


def test_damage_above_the_checkpoint_is_a_torn_end_after_another_boot(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 5)
    checkpoint(store)
    end = store.log.max_offset
    put(store, 5, first=5)
    with log_files(tmp_path)[0].open("r+b") as file:
        file.seek(end + 4)
        file.write(b"XXXX")
    with pytest.raises(StoreDamaged, match="valid messages follow"):
        open_store()
    again = open_store(boot="the next boot")
    assert bodies(again) == numbers(5)
    put(again, 1, first=77)
    assert bodies(open_store(boot="the next boot")) == [*numbers(5), b"77"]


@settings(max_examples=300, deadline=None)
@given(
    body=st.binary(max_size=40),
    topic=st.sampled_from(["T", "t" * 127, "u" * 200]),
    properties=st.sampled_from(["", "TAGS\x01A\x02", "k\x01\u00e9\x02"]),
    hosts=st.tuples(*[st.sampled_from([HOST, Host("2001:db8::1", 1)])] * 2),
    change=st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)),
    cut=st.integers(0, 60),
)
def test_recovery_reads_a_record_exactly_if_the_decoder_does(
    body: bytes,
    topic: str,
    properties: str,
    hosts: tuple[Host, Host],
    change: tuple[int, int] | None,
    cut: int,
) -> None:
    message = StoredMessage(
        topic=topic,
        queue_id=3,
        body=body,
        properties=properties,
        queue_offset=7,
        physical_offset=1005,
        store_timestamp=NOW,
        born_host=hosts[0],
        store_host=hosts[1],
    )
    data = bytearray(b"....." + encode_message(message) + b"behind")
    if change is not None and change[0] < len(data):
        data[change[0]] = change[1]
    plain = bytes(data[: len(data) - cut])
    slow, fast = (read(plain, 5, base=1000) for read in (read_record, read_indexed))
    assert (slow is None) == (fast is None)
    if slow is not None and fast is not None:
        (found, end), (record, fast_end) = slow, fast
        assert fast_end == end
        assert record == tuple(getattr(found, name) for name in Record._fields)


def test_lost_queue_files_are_rebuilt(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 30)
    put(store, 5, queue_id=1)
    store.close()
    for file in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        file.unlink()
    again = open_store()
    assert bodies(again) == numbers(30)
    assert bodies(again, queue_id=1) == numbers(5)


def test_queue_files_of_another_size_are_rebuilt(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 30)
    store.close()
    assert bodies(open_store(queue_file=140)) == numbers(30)


def test_entries_above_the_checkpoint_do_not_come_back(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 5)
    checkpoint(store)
    end = store.log.max_offset
    put(store, 7, first=5)
    work = store.prepare_checkpoint()
    assert work is not None
    for _, _, entries in work.entries:
        write_entries(DISK, entries)  # then the broker crashes before it writes the checkpoint file
    os.truncate(log_files(tmp_path)[0], end)
    again = open_store()
    assert again.bounds("T", 0) == (0, 5)
    put(again, 1, first=100)
    put(again, 9, queue_id=1)
    checkpoint(again)
    # Only a start that reads the whole log finds this damage. A start reads the whole log only if it finds
    # more entries than the last checkpoint counts. So this start must not find the entries that were removed.
    with log_files(tmp_path)[0].open("r+b") as file:
        file.seek(4)
        file.write(b"XXXX")
    assert open_store().bounds("T", 0) == (0, 6)


def test_holes_that_a_power_cut_left_behind_the_entries_hide_none(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 1)
    put(store, 1, queue_id=1)
    checkpoint(store)
    # Simulate a power cut during a second checkpoint. An entry that did not reach the disk consists of zeros,
    # here at the end of queue 0. The broker may also have removed a queue file whose entries the first
    # checkpoint counts, here that of queue 1.
    (tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}").unlink()
    with (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").open("ab") as file:
        file.write(bytes(20))
    again = open_store(boot="the next boot")
    assert bodies(again) == numbers(1)
    assert bodies(again, queue_id=1) == numbers(1)


def test_records_of_deleted_topics_get_no_queue(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 3)
    put(store, 3, topic="U")
    checkpoint(store)
    store.delete_topic("U")
    store.confirm_topics(0, 1)
    assert store.bounds("U", 0) == (0, 0)
    again = open_store(births={"T": 0})
    assert again.queues_of("U") == ()
    assert bodies(again) == numbers(3)


def test_deleted_topic_does_not_cost_a_rebuild(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 3)
    put(store, 3, topic="U")
    checkpoint(store)
    store.delete_topic("U")
    store.confirm_topics(0, 1)
    store.close()
    with log_files(tmp_path)[0].open("r+b") as file:
        file.seek(4)
        file.write(b"XXXX")  # a start that rebuilds the queues would find this damage
    assert open_store().bounds("T", 0) == (0, 3)


def test_topic_created_again_starts_at_zero_also_after_a_crash(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 3)
    store.delete_topic("T")
    born = store.log.max_offset
    put(store, 2, first=50)
    assert bodies(store) == numbers(2, 50)
    assert bodies(open_store(births={"T": born})) == numbers(2, 50)


def test_a_failed_checkpoint_costs_no_messages_of_a_topic_that_was_created_again(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint must keep the queue files that a failed checkpoint wrote for the new topic.

    It must not take them for files of the deleted topic with the same name.
    """
    store = open_store()
    put(store, 100, topic="U")
    checkpoint(store)
    run_here(store.remove_old_files(before=1e12))
    put(store, 3)
    checkpoint(store)
    store.delete_topic("T")
    store.confirm_topics(0, 1)
    born = store.log.max_offset
    put(store, 3, first=50)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", no_space)
        run_here(store.checkpoint())
    run_here(store.checkpoint())
    put(store, 1, first=53)
    checkpoint(store)
    assert bodies(store) == numbers(4, 50)
    again = open_store(births={"U": 0, "T": born})
    assert (again.bounds("T", 0), bodies(again)) == ((0, 4), numbers(4, 50))


def test_old_files_go_although_the_disk_has_no_room_for_a_checkpoint(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    oldest, *others = log_files(tmp_path)
    removed = oldest.read_bytes()
    put(store, 5, first=100)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", no_space)
        run_here(store.checkpoint())
        run_here(store.remove_old_files(before=math.inf, count_max=1))
    assert log_files(tmp_path) == others
    low, high = store.bounds("T", 0)
    assert (low > 0, high) == (True, 105)
    assert bodies(store, low) == numbers(105 - low, low)
    oldest.write_bytes(removed)  # a power cut may bring a removed file back
    again = open_store(boot="the next boot")
    assert log_files(tmp_path) == others
    assert again.bounds("T", 0) == (low, 105)
    assert bodies(again, low) == numbers(105 - low, low)


def test_queue_file_without_valid_entries_does_not_bring_a_deleted_topic_back(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    put(store, 1)
    checkpoint(store)
    put(store, 3, topic="U")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", no_space)
        run_here(store.checkpoint())
    again = open_store(births={"T": 0, "U": store.log.max_offset})  # the same state as after a deletion of U
    assert again.queue_counts == {"T": 1}


def test_first_log_file_that_was_never_synced_may_go_with_a_power_cut(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 60)
    unsynced, *others = log_files(tmp_path)
    unsynced.unlink()
    with pytest.raises(StoreDamaged, match="files are missing"):
        open_store()
    again = open_store(boot="the next boot")
    low, high = again.bounds("T", 0)
    assert (low > 0, high) == (bool(others), 60)
    put(again, 1, first=60)
    assert bodies(again, low) == numbers(61 - low, low)


def test_messages_stay_readable_if_their_removal_cannot_be_noted(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    files = log_files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(DISK, "rename", no_space)
        with pytest.raises(OSError, match="No space left"):
            run_here(store.remove_old_files(before=math.inf, count_max=1))
    assert log_files(tmp_path) == files
    assert bodies(store) == numbers(100)
    run_here(store.remove_old_files(before=math.inf, count_max=1))
    assert log_files(tmp_path) == files[1:]


def test_messages_above_the_checkpoint_are_not_removed(open_store: OpenStore, tmp_path: Path) -> None:
    """Queue entries of messages above the checkpoint may be only in memory, so the messages must stay.

    After a crash, a start finds the next offset of each queue in these messages.
    """
    store = open_store()
    put(store, 20, topic="U")
    checkpoint(store)
    put(store, 100)
    store.flush_log()
    files = log_files(tmp_path)
    run_here(store.remove_old_files(before=math.inf))
    assert log_files(tmp_path) == files
    assert open_store().bounds("U", 0) == (0, 20)


def test_files_of_a_log_that_an_operator_put_back_are_not_removed(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    oldest = log_files(tmp_path)[0]
    removed = oldest.read_bytes()
    run_here(store.remove_old_files(before=math.inf, count_max=1))
    store.close()
    (tmp_path / "checkpoint").unlink()  # without a checkpoint, the broker uses the log as it is
    oldest.write_bytes(removed)
    for _ in range(2):
        again = open_store()
        assert bodies(again) == numbers(100)
        again.close()


def test_old_files_go_and_queues_begin_later(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    count = len(log_files(tmp_path))
    run_here(store.remove_old_files(before=0))
    assert len(log_files(tmp_path)) == count
    run_here(store.remove_old_files(before=1e12))
    assert len(log_files(tmp_path)) == 1
    low, high = store.bounds("T", 0)
    assert 0 < low < high == 100
    assert store.get("T", 0, 0, count_max=1, bytes_max=1).status is GetStatus.OFFSET_TOO_SMALL
    assert bodies(store, low) == numbers(100 - low, low)
    put(store, 1, first=100)
    again = open_store()
    assert again.bounds("T", 0) == (low, 101)
    # Without queue files, the first record of the queue in the log decides at which offset the queue begins.
    store.close()
    for file in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        file.unlink()
    assert open_store().bounds("T", 0) == (low, 101)
    assert open_store().bounds("T", 0) == (low, 101)


def begin_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("commitlog-begins-*"))


def test_begin_of_the_log_that_belongs_to_another_store_removes_nothing(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    store.close()
    (tmp_path / begin_files(tmp_path)[0]).rename(tmp_path / f"commitlog-begins-{1_000_000:020d}")
    again = open_store()
    assert bodies(again) == numbers(100)
    assert "begin of the log ignored file=1000000" in caplog.text
    run_here(again.remove_old_files(before=1e12))
    assert begin_files(tmp_path) == [f"commitlog-begins-{again.log.min_offset:020d}"]


def test_copies_beside_the_file_with_the_begin_of_the_log_do_no_harm(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 100)
    checkpoint(store)
    for name in ("~", ".bak", " (copy)"):
        (tmp_path / f"commitlog-begins-{0:020d}{name}").touch()
    run_here(store.remove_old_files(before=1e12))
    low, _ = store.bounds("T", 0)
    store.close()
    assert bodies(open_store(), low) == numbers(100 - low, low)


def test_file_with_the_begin_of_the_log_is_made_again_if_somebody_removed_it(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    put(store, 50)
    checkpoint(store)
    run_here(store.remove_old_files(before=1e12))
    (first,) = begin_files(tmp_path)
    (tmp_path / first).unlink()
    put(store, 50, first=50)
    checkpoint(store)
    run_here(store.remove_old_files(before=1e12))
    assert begin_files(tmp_path) == [f"commitlog-begins-{store.log.min_offset:020d}"] != [first]


def test_unsynced_files_are_never_removed(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, file_size=1000)
    for _ in range(5):
        log.reserve(500)
        log.append(b"x" * 500)
    assert log.first_kept(1e12, 10) == 0
    log.flush()
    assert log.first_kept(1e12, 10) == 4000
    assert log.first_kept(1e12, 2) == 2000
    assert log.first_kept(0, 10) == 0
    log.close()


def test_record_larger_than_a_file_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(LocalProtocolError, match="do not fit"):
        store.put(draft(b"x" * LOG_FILE), now_ms=NOW)
    put(store, 1)
    assert bodies(store) == numbers(1)


def test_next_file_that_cannot_be_made_is_tried_again(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    put(store, 1)
    obstacle = tmp_path / "commitlog" / f"{LOG_FILE:020d}"
    obstacle.mkdir()
    count = 1
    while store.log.max_offset < LOG_FILE - 200:
        put(store, 1, first=count)
        count += 1
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="cannot begin log file"):
            store.put(draft(b"x" * 200), now_ms=NOW)
    assert log_files(tmp_path)[0].stat().st_size <= LOG_FILE
    obstacle.rmdir()
    put(store, 5, first=count)
    assert bodies(store) == numbers(count + 5)
    assert bodies(open_store()) == numbers(count + 5)


def test_end_on_padding_without_a_next_file_costs_no_rebuild(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    put(store, 20)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot begin log file"):
        put(store, 50, first=20)
    kept = bodies(store)
    checkpoint(store)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").rmdir()
    again = open_store(boot="the next boot")
    assert bodies(again) == kept
    assert "built anew" not in caplog.text
    put(again, 1, first=len(kept))
    assert bodies(again) == [*kept, b"%d" % len(kept)]


def test_closed_store_takes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    put(store, 1)
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        put(store, 1)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 700)),
            st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
            st.tuples(st.just("crash"), st.just(0), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_store_equals_a_list_per_queue(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """After any steps, each queue of the store must have the same messages as a plain list.

    A crash keeps every complete record. The bytes of an incomplete record at the end disappear.
    """
    directory = tmp_path_factory.mktemp("store")
    model: dict[int, list[bytes]] = {}
    opened: list[MessageStore] = []

    def open_() -> MessageStore:
        store = MessageStore(
            directory,
            log_file_size=LOG_FILE,
            queue_file_size=QUEUE_FILE,
            store_host=HOST,
            tags_code=lambda message: tags_code(message.properties),
            born_at=lambda _topic: 0,
            boot="this boot",
        )
        opened.append(store)
        return store

    store = open_()
    for step, queue_id, size in steps:
        if step == "put":
            body = os.urandom(size)
            placed = store.put(draft(body, queue_id=queue_id), now_ms=NOW)
            assert placed.queue_offset == len(model.setdefault(queue_id, []))
            model[queue_id].append(body)
        elif step == "checkpoint":
            if store.prepare_checkpoint() is not None:
                checkpoint(store)
        else:
            files = sorted((directory / "commitlog").iterdir())
            if files:
                with files[-1].open("ab") as file:
                    file.write(os.urandom(size))
            store.log.close()
            store = open_()
        for queue, expected in model.items():
            assert bodies(store, queue_id=queue) == expected
    for each in opened:
        each.log.close()


# Parts of the store ------------------------------------------------------------------------------


def test_queue_reads_within_files_and_memory_alike(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path / "q", file_size=QUEUE_FILE)
    expected = []
    for number in range(2000):
        queue.append(number * 100, 100, -number)
        expected.append(Entry(number * 100, 100, -number))
        if number % 333 == 0:
            work = queue.unwritten()
            assert work is not None
            write_entries(DISK, work)
            queue.written(work)
    found: list[Entry] = []
    while entries := queue.read(len(found), 64):
        found += entries
    assert found == expected
    assert queue.read(2000, 1) == []
    assert queue.read(-1, 1) == []


def test_subscription_codes() -> None:
    assert subscription_codes("*") is None
    assert subscription_codes("") is None
    assert subscription_codes("A || B") == frozenset({tag_hash("A"), tag_hash("B")})
    with pytest.raises(ValueError, match="no tag"):
        subscription_codes("||")
