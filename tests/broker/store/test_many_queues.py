"""The number of a broker's queues is limited, and files of many queues do not delay the broker's shutdown."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from pathlib import Path

import pytest

from routekeeper.broker.server.upkeep import close_store
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft, MessageStore
from routekeeper.broker.store.steps import run_here
from routekeeper.remoting.message import Host
from tests.broker.conftest import StartBroker, Wire

HOST = Host("127.0.0.1", 10911)
TOPIC = {"topic": "Wide", "readQueueNums": "65536", "writeQueueNums": "65536", "perm": "6"}


def opened(directory: Path, *, boot: str = "this boot") -> MessageStore:
    return MessageStore(
        directory,
        log_file_size=1 << 20,
        queue_file_size=2000,
        store_host=HOST,
        tags_code=lambda _: 0,
        born_at=lambda _: 0,
        boot=boot,
    )


def filled(directory: Path, queues: int) -> MessageStore:
    store = opened(directory)
    for queue_id in range(queues):
        draft = Draft(topic="T", queue_id=queue_id, body=b"x", properties="", tags_code=0, born_host=HOST)
        store.put(draft, now_ms=1)
    return store


def queue_files(directory: Path) -> int:
    return sum(1 for path in (directory / "consumequeue").glob("*/*/*") if path.is_file())


@pytest.mark.faults
@pytest.mark.slow
def test_queues_have_a_bound_that_names_its_setting(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxQueues=10")
    wire: Wire = broker.wire()
    assert wire.call(17, TOPIC).code == 0
    # The delayed message needs two queues: one of the schedule topic, and one of its own topic.
    delayed = "DELAY\x0118\x02"
    assert wire.send_message("Wide", b"x", properties=delayed).code == 0
    answers = [wire.send_message("Wide", b"x", queue_id=number) for number in range(20)]
    assert [answer.code for answer in answers] == [0] * 9 + [16] * 11
    assert "maxQueues=10" in (answers[-1].remark or "")
    assert "maxQueues=10" in (wire.send_message("Wide", b"x", queue_id=15, properties=delayed).remark or "")
    # Existing queues still accept messages, and the removal of a topic frees its queues.
    assert wire.send_message("Wide", b"x", queue_id=3).code == 0
    assert wire.call(215, {"topic": "Wide"}).code == 0
    assert wire.send_message("Other", b"x").code == 0


def test_a_checkpoint_that_is_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    store = filled(tmp_path, 300)
    writing = store.checkpoint()
    made = [0]
    for step in writing:
        step()
        made.append(queue_files(tmp_path))
        assert made[-1] - made[-2] <= 64
        if made[-1] > 100:
            break
    writing.close()
    assert made[-1] < 300
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "consumequeue").glob("*/*/*")}
    store.close()
    assert queue_files(tmp_path) == 300
    again = sum(path.stat().st_mtime_ns != changed for path, changed in before.items())
    assert again <= 64, "only the last step may not have been noted"
    assert opened(tmp_path).bounds("T", 299) == (0, 1)


@pytest.mark.parametrize("boot", ["this boot", "next boot"])
def test_queues_whose_files_are_not_complete_at_the_end_are_read_from_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, boot: str
) -> None:
    store = filled(tmp_path, 300)
    with caplog.at_level(logging.WARNING):
        for step in close_store(store, longest_s=0.0):
            step()
    assert "next start reads the log" in caplog.text
    assert queue_files(tmp_path) < 300
    again = opened(tmp_path, boot=boot)
    assert {again.bounds("T", queue_id) for queue_id in range(300)} == {(0, 1)}
    again.close()


def test_removal_of_old_files_leaves_turns_to_others_and_reads_files_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, count = 300, 3000
    store = filled(tmp_path, queues)
    long = Draft(topic="T", queue_id=0, body=b"x" * 500, properties="", tags_code=0, born_host=HOST)
    for _ in range(count):
        store.put(long, now_ms=1)
    run_here(store.checkpoint())
    read, in_thread, on_loop = DISK.read, [False], []

    def counted(fd: int, size: int, at: int) -> bytes:
        if not in_thread[0]:
            on_loop.append(at)
        return read(fd, size, at)

    def raised() -> int:
        return sum(store.bounds("T", queue_id)[0] > 0 for queue_id in range(queues))

    monkeypatch.setattr(DISK, "read", counted)
    steps, turns = store.remove_old_files(before=math.inf), [0]
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            turns.append(raised())
            in_thread[0] = True
            outcome = step()
            in_thread[0] = False
            step = steps.send(outcome)
    assert on_loop == []
    assert turns[-1] == queues
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 64
    low, high = store.bounds("T", 0)
    found = store.get("T", 0, low, count_max=1, bytes_max=1)
    assert (1 < low < high, found.count) == (True, 1)
    assert store.bounds("T", queues - 1) == (1, 1)
    store.close()
