"""Tests of files that are read again after they change; invalid content has no effect."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from routekeeper.remoting import wall_clock, watched_files
from routekeeper.remoting.files import Signature
from routekeeper.remoting.watched_files import WatchedFiles
from tests.waiting import until


def replace(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    os.replace(new, path)


class Number:
    """A file with a number, and the values that the server has used from this file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        replace(path, "1")
        self.taken: list[int] = []
        self.threads: list[tuple[str, int]] = []
        self.files = WatchedFiles("number", (path,), self._read, self._take)

    def _read(self) -> int:
        self.threads.append(("read", threading.get_ident()))
        return int(self.path.read_text())

    def _take(self, value: int) -> None:
        self.threads.append(("take", threading.get_ident()))
        if value == 13:
            raise ValueError("13 is not allowed")
        self.taken.append(value)


@pytest.fixture
def number(tmp_path: Path) -> Number:
    return Number(tmp_path / "number")


def test_the_first_content_is_read_at_once_and_its_error_is_the_callers(tmp_path: Path) -> None:
    assert Number(tmp_path / "number").files.value == 1
    with pytest.raises(FileNotFoundError):
        WatchedFiles("number", (tmp_path / "none",), (tmp_path / "none").read_text, print)


def test_a_look_takes_a_change_once(number: Number) -> None:
    async def run() -> None:
        assert await number.files.look() == "unchanged"
        replace(number.path, "2")
        assert await number.files.look() == "taken"
        assert await number.files.look() == "unchanged"

    asyncio.run(run())
    assert number.taken == [2]
    assert number.files.value == 2


def test_a_file_of_the_same_size_and_time_is_seen_by_its_inode(number: Number) -> None:
    before = os.stat(number.path)
    os.link(number.path, number.path.with_name("keeps the inode in use"))
    replace(number.path, "2")
    os.utime(number.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asyncio.run(number.files.look()) == "taken"


def test_it_reads_on_a_thread_of_its_own_and_takes_on_the_loops(number: Number) -> None:
    replace(number.path, "2")
    asyncio.run(number.files.look())
    assert [(act, ident == threading.get_ident()) for act, ident in number.threads[1:]] == [
        ("read", False),
        ("take", True),
    ]


@pytest.mark.parametrize("content", ["no number", "13"], ids=["not readable", "not taken"])
def test_a_broken_content_keeps_the_former_value_and_is_said_once(
    number: Number, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    async def run() -> None:
        replace(number.path, content)
        for _ in range(3):
            assert (await number.files.look()).startswith("refused: ")
        assert number.files.value == 1
        replace(number.path, "3")
        assert await number.files.look() == "taken"

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("number not taken, the former one goes on error=")
    assert content in warnings[0]
    assert number.files.value == 3


def test_each_broken_content_is_said(number: Number, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        for content in ("a", "b"):
            replace(number.path, content)
            await number.files.look()

    asyncio.run(run())
    assert len(caplog.records) == 2


async def test_a_missing_file_is_refused_and_taken_when_it_comes_back(number: Number) -> None:
    number.path.unlink()
    assert (await number.files.look()).startswith("refused: ")
    replace(number.path, "4")
    assert await number.files.look() == "taken"


async def test_paths_that_a_new_content_names_are_watched(tmp_path: Path) -> None:
    names, first, second = tmp_path / "names", tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        replace(path, "a")
    replace(names, str(first))

    def take(value: str) -> None:
        files.paths = (names, second)

    files = WatchedFiles("names", (names, first), names.read_text, take)
    replace(names, str(second))
    assert await files.look() == "taken"
    await files.look()
    assert await files.look() == "unchanged"
    replace(second, "b")
    assert await files.look() == "taken"


def test_a_thread_that_cannot_start_ends_no_watch(
    number: Number, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        monkeypatch.setattr(watched_files, "CHECK_S", 0.001)
        monkeypatch.setattr(watched_files, "SETTLED_S", 0.001)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            number.files.watch()
            await until(lambda: "can't start new thread" in caplog.text, "the refusal is logged")
            replace(number.path, "2")
        await until(lambda: number.taken == [2], "the file is read after a thread can start")
        number.files.close()

    asyncio.run(run())
    assert caplog.text.count("can't start new thread") == 1


async def test_trouble_that_comes_back_after_a_good_check_is_logged_again(
    number: Number, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(paths: Sequence[Path]) -> Signature:
        raise RuntimeError("can't start new thread")

    for logged in (1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(watched_files, "signature", refuse)
            for _ in range(2):
                assert await number.files.look() == "refused: can't start new thread"
        assert await number.files.look() == "unchanged"
        assert caplog.text.count("can't start new thread") == logged


def test_a_change_for_which_no_thread_can_start_is_never_made(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await number.files.change(lambda: replace(number.path, "2"))
        await number.files.change(lambda: replace(number.path, "3"))
        assert await number.files.look() == "taken"

    asyncio.run(run())
    assert number.taken == [3]


async def test_a_watched_file_is_taken_without_being_asked(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    monkeypatch.setattr(watched_files, "SETTLED_S", 0.01)
    number.files.watch()
    try:
        replace(number.path, "2")
        await until(lambda: number.taken == [2], "the new value")
        replace(number.path, "3")
        await until(lambda: number.taken == [2, 3], "the next one")
    finally:
        number.files.close()


async def test_a_file_that_was_just_written_is_taken_by_a_later_check_or_at_once_by_a_look(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that writes the file may not be done yet."""
    number.path.write_text("22")
    age_ms, checks = 0, 0

    def now_ms() -> int:
        nonlocal checks
        checks += 1
        return os.stat(number.path).st_mtime_ns // 1_000_000 + age_ms

    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    monkeypatch.setattr(watched_files, "SETTLED_S", 0.01)
    monkeypatch.setattr(wall_clock, "now_ms", now_ms)
    number.files.watch()
    try:
        await until(lambda: checks > 3, "some checks")
        assert number.taken == []
        age_ms = 100
        await until(lambda: number.taken == [22], "the file is old enough")
        age_ms = 0
        number.path.write_text("333")
        assert await number.files.look() == "taken"
    finally:
        number.files.close()
    assert number.taken == [22, 333]


async def test_a_clock_beyond_2262_does_not_end_the_checks(
    number: Number, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on, Python's clock of 64-bit nanoseconds raises an error."""

    def overflows() -> int:
        raise OverflowError("timestamp out of range for platform time_t")

    monkeypatch.setattr(time, "time_ns", overflows)
    number.path.write_text("22")
    assert await number.files.look() == "taken"
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    monkeypatch.setattr(watched_files, "SETTLED_S", 0.01)
    number.path.write_text("333")
    number.files.watch()
    try:
        await until(lambda: number.taken == [22, 333], "the file is old enough")
    finally:
        number.files.close()


async def test_a_file_that_changes_while_it_is_read_is_refused_until_the_next_check(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    written = ["333"]

    def read() -> int:
        found = int(path.read_text())
        if written and found == 22:
            path.write_text(written.pop())
        return found

    files = WatchedFiles("number", (path,), read, print)
    path.write_text("22")
    assert await files.look() == "refused: a file changed while it was read; the next check reads it again"
    assert files.value == 1
    assert await files.look() == "taken"
    assert files.value == 333
    files.close()


def test_looks_at_one_time_follow_each_other(number: Number) -> None:
    async def run() -> list[str]:
        replace(number.path, "2")
        return await asyncio.gather(*(number.files.look() for _ in range(5)))

    assert asyncio.run(run()) == ["taken", *["unchanged"] * 4]
    assert number.taken == [2]
