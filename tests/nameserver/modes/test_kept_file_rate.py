"""KeptFile limits the bytes that it writes per second, even if a client makes small changes all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.modes import kept_file
from routekeeper.nameserver.modes.kept_file import KeptFile

MIB = 1 << 20


class Large:
    """A file of 1 MiB that is rewritten completely at each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.writes: list[int] = []
        self.file = KeptFile("content", "kept", path=path, write=self.write)

    def write(self) -> Callable[[], None]:
        number = self.number

        def work() -> None:
            self.path.write_bytes(number.to_bytes(4, "big") + bytes(MIB - 4))
            self.writes.append(number)

        return work

    async def change(self) -> None:
        self.number += 1
        number = self.number
        self.file.changed()
        assert await self.file.keep() is None
        assert self.writes[-1] >= number, "it is not acknowledged before it is in the file"


@pytest.mark.slow
async def test_changes_one_after_the_other_rewrite_a_large_file_at_a_bounded_rate(tmp_path: Path) -> None:
    large = Large(tmp_path / "file")
    began = time.monotonic()
    for _ in range(6):
        await large.change()
    lasted_s = time.monotonic() - began
    assert len(large.writes) <= 8 * lasted_s + 2, "8 MiB a second"
    await large.file.close()


@pytest.mark.slow
async def test_changes_during_the_pause_are_one_write_and_closing_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At this rate, the pause after the first write lasts 2 s. In this time, even a slow machine makes 50
    # changes.
    monkeypatch.setattr(kept_file, "BYTES_PER_S", MIB // 2)
    large = Large(tmp_path / "file")
    await large.change()
    assert large.writes == [1], "a lone change is written at once"
    monkeypatch.setattr(kept_file, "BYTES_PER_S", 1)  # the pause after the next write is very long
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(large.change())
    assert large.writes == [1, 51]
    waiting = asyncio.ensure_future(large.change())
    await asyncio.sleep(0)
    await large.file.close()
    await waiting
    assert large.writes == [1, 51, 52]
