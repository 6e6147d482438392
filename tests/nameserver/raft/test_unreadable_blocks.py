"""Tests of a start on a disk with unreadable blocks, in files of which the member keeps copies."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from routekeeper.nameserver.disk.files import File, Files
from routekeeper.nameserver.raft.consensus.log import OP_ENTRY, REGULAR
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.journal import Journal
from routekeeper.nameserver.raft.storage.slots import BLOCK
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError

STANDING_SIZE = 64 * 1024  # bytes of one slot in the file ``standing``


def _error() -> OSError:
    return OSError(errno.EIO, "Input/output error")


class BadFile(File):
    """A file with unreadable blocks. As on a real disk, a write of a whole block makes it readable again.

    A write of a part of an unreadable block fails, because the kernel must first read the other bytes.
    """

    def __init__(self, descriptor: int, bad: set[int]) -> None:
        super().__init__(descriptor)
        self.bad = bad

    def _touched(self, offset: int, size: int) -> set[int]:
        return {at for at in self.bad if at < offset + size and offset < at + BLOCK}

    def read_at(self, offset: int, size: int) -> bytes:
        if self._touched(offset, size):
            raise _error()
        return super().read_at(offset, size)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        touched = self._touched(offset, len(data))
        if any(at < offset or offset + len(data) < at + BLOCK for at in touched):
            raise _error()
        self.bad -= touched
        return super().write_at(offset, data)


class BadDisk(Files):
    """A disk on which one file has unreadable blocks at the offsets ``bad``."""

    def __init__(self, name: str, bad: Iterable[int]) -> None:
        self.name = name
        self.bad = set(bad)

    def open(self, path: Path, **how: bool) -> File:
        file = super().open(path, **how)
        return BadFile(file.descriptor, self.bad) if path.name == self.name else file

    def read(self, path: Path, **how: int) -> bytes:
        if path.name == self.name and self.bad:
            raise _error()
        return super().read(path, **how)


@pytest.fixture
def config(tmp_path: Path) -> RaftConfig:
    """Return the configuration of a member that has stored a vote and its member state."""
    config = RaftConfig(me="a:1", peers=("a:1", "b:1", "c:1"), listen=None, data_dir=tmp_path / "data")
    directory = DataDirectory(config)
    directory.load_vote()
    directory.save_vote(4, "b:1")
    directory.become(replace(directory.standing, founders={"a:1": "kept"}))
    directory.standing_to_save()()
    directory.close()
    return config


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("vote", 0),
        ("vote", BLOCK),
        ("standing", 0),
        ("standing", STANDING_SIZE),
        ("standing", 2 * STANDING_SIZE - BLOCK),
    ],
)
def test_a_member_starts_from_the_copy_that_can_be_read_and_repairs_the_other(
    config: RaftConfig, name: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BadDisk(name, [at])
    with caplog.at_level(logging.WARNING):
        directory = DataDirectory(config, disk)
        assert directory.load_vote() == (4, "b:1")
        assert directory.standing.founders == {"a:1": "kept"}
        directory.close()
    assert f"file={directory.raft / name}" in caplog.text
    assert not disk.bad


class TornFile(BadFile):
    """A file whose first write is interrupted, and leaves nothing readable in the blocks that it writes."""

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        File.write_at(self, offset, b"\xff" * len(data))
        raise _error()


class TornDisk(BadDisk):
    """A disk with unreadable blocks in one file, on which each write of this file is interrupted."""

    def open(self, path: Path, **how: bool) -> File:
        file = super().open(path, **how)
        return TornFile(file.descriptor, self.bad) if path.name == self.name else file


@pytest.mark.parametrize(
    ("name", "at"), [("vote", 0), ("vote", BLOCK), ("standing", 0), ("standing", STANDING_SIZE)]
)
def test_an_interrupted_repair_leaves_the_copy_that_can_be_read(
    config: RaftConfig, name: str, at: int
) -> None:
    with (
        pytest.raises((OSError, RaftStartError)),
        closing(DataDirectory(config, TornDisk(name, [at]))) as torn,
    ):
        torn.load_vote()
    directory = DataDirectory(config, BadDisk(name, [at]))
    assert directory.load_vote() == (4, "b:1")
    assert directory.standing.founders == {"a:1": "kept"}
    directory.close()


@pytest.mark.parametrize(("name", "size"), [("vote", BLOCK), ("standing", STANDING_SIZE)])
def test_a_member_whose_two_copies_cannot_be_read_names_the_file(
    config: RaftConfig, name: str, size: int
) -> None:
    with pytest.raises(RaftStartError, match=f"raft/{name} is damaged"):
        DataDirectory(config, BadDisk(name, [0, size])).load_vote()


def test_an_unreadable_end_makes_the_journal_count_as_shortened(tmp_path: Path) -> None:
    journal = Journal(tmp_path, sync=True)
    journal.recover()
    journal.append([(OP_ENTRY, 2, 1, REGULAR)])
    journal.keep_end()
    journal.close()
    disk = BadDisk("end", [0])
    journal = Journal(tmp_path, sync=True, files=disk)
    replay, _ = journal.recover()
    assert [index for _, index, _ in replay.entries] == [2]
    assert f"{tmp_path / 'end'} cannot be read: Input/output error" in journal.shortened
    disk.bad.clear()  # keep_end replaces the file, and the new file has other blocks
    journal.keep_end()
    journal.close()
    journal = Journal(tmp_path, sync=True)
    journal.recover()
    journal.close()
    assert not journal.shortened
