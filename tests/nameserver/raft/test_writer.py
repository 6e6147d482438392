"""Tests of the thread that writes the journal.

The thread reports every write as durable, in the order of the writes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from routekeeper.nameserver.disk.files import DISK
from routekeeper.nameserver.raft.consensus.log import OP_ENTRY, REGULAR, Op
from routekeeper.nameserver.raft.storage.end import JournalEnd
from routekeeper.nameserver.raft.storage.journal import Journal
from routekeeper.nameserver.raft.storage.writer import Writer
from tests.waiting import wait_until

LONG_S = 20.0


class Disk(Journal):
    """A journal whose writes hang while ``moves`` is cleared, and fail if ``error`` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync=True)
        self.recover()
        self.moves = threading.Event()
        self.moves.set()
        self.began = threading.Semaphore(0)
        self.error: OSError | None = None

    def append(self, ops: list[Op]) -> None:
        self.began.release()
        assert self.moves.wait(LONG_S)
        if self.error is not None:
            raise self.error
        super().append(ops)


class Running:
    """A writer with a test disk, and the indexes that the writer reported as durable."""

    def __init__(self, directory: Path, *, room: bool = True) -> None:
        self.disk = Disk(directory)
        if room:  # otherwise the writer's thread must preallocate space first
            self.disk.make_room()
        self.told: list[int] = []
        self.failures: list[str] = []
        self.writer = Writer(self.disk, done=self.told.append, failed=self.failures.append)
        self.position = 0

    def write(self, *, silent: bool = False) -> int:
        self.position += 1
        entry: Op = (OP_ENTRY, self.position + 1, 1, REGULAR + b"x")
        self.writer.write(self.position, [entry], silent=silent)
        return self.position


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.disk.moves.set()
    running.writer.close()
    running.disk.close()


def test_everything_is_told_in_order_and_is_in_the_journal(running: Running, tmp_path: Path) -> None:
    for _ in range(200):
        running.write()
    wait_until(lambda: running.told[-1:] == [200], "all is told")
    assert running.told == sorted(set(running.told))
    reader = Journal(tmp_path, sync=False)
    replay, _ = reader.recover()
    assert len(replay.entries) == 200
    reader.close()


def test_what_waits_while_the_disk_stands_still_goes_together(running: Running) -> None:
    running.disk.moves.clear()
    running.write()
    assert running.disk.began.acquire(timeout=LONG_S)
    for _ in range(10):
        running.write()
    running.disk.moves.set()
    wait_until(lambda: running.told[-1:] == [11], "all is told")
    assert running.told == [1, 11]


def test_who_asks_too_early_is_told_in_the_end(running: Running) -> None:
    running.disk.moves.clear()
    position = running.write(silent=True)
    assert running.writer.ask() == 0
    running.disk.moves.set()
    wait_until(lambda: running.told == [position], "its end is told")


def test_silent_writes_are_not_told_until_one_is_not_silent(running: Running) -> None:
    done = threading.Event()
    running.write(silent=True)
    running.writer._thread.put(done.set)
    assert done.wait(LONG_S)
    assert running.told == []
    assert running.writer.ask() == 1
    running.disk.moves.clear()
    running.write(silent=True)
    assert running.disk.began.acquire(timeout=LONG_S)
    loud = running.write()  # not silent, so the writer must report when this write is durable
    running.disk.moves.set()
    wait_until(lambda: running.told[-1:] == [loud], "the loud one is told")


def test_a_failed_sync_ends_the_thread_and_says_so(running: Running) -> None:
    running.disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    running.write()
    wait_until(lambda: running.failures == ["journal: Input/output error"], "the failure is told")
    assert running.told == []


def test_room_is_made_while_nothing_is_to_be_written(tmp_path: Path) -> None:
    running = Running(tmp_path, room=False)  # no space is preallocated yet
    wait_until(lambda: not running.disk.wants_room, "room is made")
    running.write()
    wait_until(lambda: running.told == [1], "the first is told")
    running.writer.close()
    running.disk.close()


def test_the_end_of_the_journal_is_recorded_before_a_write_is_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path, sync=True)
    journal.recover()
    JournalEnd(DISK, tmp_path).create()
    journal.keep_end()
    recorded: list[bool] = []

    def acknowledged(_position: int) -> None:
        segment = max(tmp_path.glob("journal-*"))
        size = len(segment.read_bytes().rstrip(b"\0"))
        recorded.append(JournalEnd(DISK, tmp_path).load().size >= size)

    writer = Writer(journal, done=acknowledged, failed=lambda error: None)
    for position in range(1, 4):
        writer.write(position, [(OP_ENTRY, position + 1, 1, REGULAR + b"x")])
        wait_until(partial(lambda wanted: len(recorded) == wanted, position), "it is recorded")
    writer.close()
    journal.close()
    assert recorded == [True] * 3
