"""Tests of class KeptFile, which writes the current state to a file after each change.

It logs, reports and repeats a failed write.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.modes import kept_file
from routekeeper.nameserver.modes.kept_file import KeptFile


class Kept:
    """A KeptFile whose writes a test can delay or let fail."""

    def __init__(self) -> None:
        self.content = 0
        self.written: list[int] = []
        self.fails_on_the_loop: Exception | None = None
        self.fails: Exception | None = None
        self.may_write = threading.Event()
        self.may_write.set()
        self.file = KeptFile("content", "kept", path=Path("a/file"), write=self.write)

    def write(self) -> Callable[[], None]:
        if self.fails_on_the_loop is not None:
            raise self.fails_on_the_loop
        content, error = self.content, self.fails

        def work() -> None:
            assert threading.current_thread() is not threading.main_thread()
            self.may_write.wait()
            if error is not None:
                raise error
            self.written.append(content)

        return work

    def change(self) -> None:
        self.content += 1
        self.file.changed()


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_an_error_nobody_expected_is_logged_told_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.01)

    async def body() -> None:
        kept = Kept()
        planted = RuntimeError("planted")
        if where == "thread":
            kept.fails = planted
        else:
            kept.fails_on_the_loop = planted
        kept.change()
        assert await kept.file.keep() == (
            "in force, but not kept in a file: planted; tried again every 0.01 s"
        )
        kept.change()
        kept.file.keep_soon()  # no caller waits for this write
        await asyncio.sleep(0.1)
        assert caplog.text.count("content not kept file=a/file error=planted") == 1, "each try is no news"
        assert "Traceback" in caplog.text
        kept.fails = kept.fails_on_the_loop = None
        async with asyncio.timeout(10):
            while kept.written != [2]:  # noqa: ASYNC110 - written by a thread
                await asyncio.sleep(0.001)
        await kept.file.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(body())
    assert "content kept again file=a/file" in caplog.text


async def test_changes_of_one_turn_are_one_write_and_those_during_it_another() -> None:
    kept = Kept()
    kept.may_write.clear()
    for _ in range(3):
        kept.change()
        kept.file.keep_soon()
    await asyncio.sleep(0)
    for _ in range(2):
        kept.change()
        kept.file.keep_soon()
    kept.may_write.set()
    assert await kept.file.keep() is None
    assert kept.written == [3, 5]
    await kept.file.close()


def test_a_disk_that_stands_still_does_not_keep_it_from_closing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_file, "CLOSE_S", 0.05)
    kept: list[Kept] = []

    async def body() -> None:
        kept.append(Kept())
        kept[0].may_write.clear()
        kept[0].change()
        waiting = asyncio.ensure_future(kept[0].file.keep())
        async with asyncio.timeout(10):
            await kept[0].file.close()
        waiting.cancel()

    asyncio.run(body())  # the event loop must close although the writing thread hangs
    assert kept[0].written == []
    assert "the disk has not answered for 0.05 s: ending without it" in caplog.text
    kept[0].may_write.set()


async def test_closing_tries_once_more_what_is_not_kept_yet() -> None:
    kept = Kept()
    kept.fails = OSError("full")
    kept.change()
    assert await kept.file.keep() is not None
    kept.fails = None
    await kept.file.close()
    assert kept.written == [1]
