"""Tests of the journal, the files that store the log.

A member removes an incomplete end of its journal. It refuses a damaged journal, and loses nothing on a full
disk.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.disk.files import DISK, File, Files
from routekeeper.nameserver.raft.consensus.log import (
    OP_COMMIT,
    OP_ENTRY,
    OP_RESET,
    OP_TRUNCATE,
    REGULAR,
    Entry,
    Op,
    RaftLog,
    Recovered,
)
from routekeeper.nameserver.raft.node.recovery import join
from routekeeper.nameserver.raft.storage import journal as journal_module
from routekeeper.nameserver.raft.storage.images import SnapshotFile, Snapshots
from routekeeper.nameserver.raft.storage.journal import (
    Corrupt,
    Journal,
    Replay,
    encode_frame,
    encode_header,
    scan,
)
from routekeeper.nameserver.raft.types import RaftStartError


def _entry(index: int, term: int = 1, size: int = 10) -> Op:
    return (OP_ENTRY, index, term, REGULAR + b"%d" % index + b"x" * size)


def _open(directory: Path, *, sync: bool = True) -> tuple[Journal, Replay]:
    journal = Journal(directory, sync=sync)
    replay, _ = journal.recover()
    return journal, replay


def _segments(directory: Path) -> list[Path]:
    return [path for _, path in Journal.segments_in(DISK, directory)]


def _written(directory: Path, count: int = 5) -> Path:
    """Write a journal of ``count`` frames with one entry each.

    Return the path of the journal's only segment.
    """
    journal, _ = _open(directory)
    for index in range(2, 2 + count):
        journal.append([_entry(index)])
    journal.close()
    return _segments(directory)[0]


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_appended_is_read_back(tmp_path: Path, sync: bool) -> None:
    journal, replay = _open(tmp_path, sync=sync)
    assert replay.base_index is None
    journal.append([_entry(2), _entry(3), (OP_COMMIT, 2)])
    journal.append([_entry(4), (OP_TRUNCATE, 3), _entry(3, term=2)])
    journal.close()
    journal, replay = _open(tmp_path, sync=sync)
    journal.close()
    assert [(index, term) for _, index, term in replay.entries] == [(2, 1), (3, 2)]
    assert (replay.base_index, replay.commit_index) == (1, 2)


def test_a_tail_torn_at_any_byte_is_cut_and_what_was_before_stays(tmp_path: Path) -> None:
    segment = _written(tmp_path)
    whole = segment.read_bytes()
    starts = [0]
    while (at := whole.find(b"\xd7RKJ", starts[-1] + 1)) >= 0:
        starts.append(at)
    for length in range(starts[-1], len(whole)):
        segment.write_bytes(whole[:length])
        journal, replay = _open(tmp_path)
        assert [index for _, index, _ in replay.entries] == [2, 3, 4, 5]
        journal.append([_entry(6, term=7)])
        journal.close()
        journal, replay = _open(tmp_path)
        journal.close()
        assert replay.entries[-1][1:] == (6, 7)


def test_a_tail_of_zeros_or_garbage_is_cut(tmp_path: Path) -> None:
    segment = _written(tmp_path)
    whole = segment.read_bytes()
    salt = scan(whole).salt
    foreign = encode_frame(b"\xc0", salt ^ 1)  # a payload may contain a complete frame, but with another salt
    half = encode_frame(foreign + b"abc", salt)[:-1]
    for tail in (bytes(4096), os.urandom(4096), half, foreign, whole[-20:-1] + b"\xd7RKJ\x00\x00"):
        segment.write_bytes(whole + tail)
        journal, replay = _open(tmp_path)
        journal.close()
        assert [index for _, index, _ in replay.entries] == [2, 3, 4, 5, 6]
        assert segment.stat().st_size == len(whole)


def _with_room(directory: Path, count: int = 3) -> bytes:
    """Write ``count`` frames into a segment, whose space is filled with zeros in advance.

    Return the segment's bytes before the journal is closed. A kill of the process would leave these bytes.
    """
    journal, _ = _open(directory)
    for index in range(2, 2 + count):
        journal.append([_entry(index)])
        if journal.wants_room:
            journal.make_room()
    left = _segments(directory)[0].read_bytes()
    journal.close()
    return left


def test_zeros_after_the_last_frame_are_no_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = _with_room(tmp_path)
    segment = _segments(tmp_path)[0]
    frames = segment.read_bytes()
    assert left == frames + bytes(len(left) - len(frames))  # a clean close removes the zeros
    assert len(left) >= journal_module.ZEROS
    segment.write_bytes(left)
    journal, replay = _open(tmp_path)
    assert [index for _, index, _ in replay.entries] == [2, 3, 4]
    assert segment.stat().st_size == len(frames)
    journal.append([_entry(5)])
    journal.close()
    assert "torn" not in caplog.text
    journal = Journal(tmp_path, sync=True)
    segment.write_bytes(segment.read_bytes() + bytes(5000))
    replay, size = journal.recover()
    journal.close()
    assert [index for _, index, _ in replay.entries] == [2, 3, 4, 5]
    assert size == segment.stat().st_size  # the size includes the frames but not the zeros


def test_a_frame_torn_in_zeros_at_any_byte_is_cut_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = _with_room(tmp_path)
    frames = left.rstrip(b"\0")  # the last entry ends with x, so rstrip() removes no byte of a frame
    last = frames.rfind(b"\xd7RKJ")
    segment = _segments(tmp_path)[0]
    for missing in (range(at, at + width) for at in range(last, len(frames), 3) for width in (1, 9, 100)):
        torn = bytearray(left[: len(frames) + 4096])
        for byte in missing:
            if byte < len(frames):
                torn[byte] = 0
        if torn.startswith(frames):
            continue  # these bytes are zeros in the complete file, too, so nothing is torn
        segment.write_bytes(torn)
        caplog.clear()
        journal, replay = _open(tmp_path)
        journal.close()
        assert [index for _, index, _ in replay.entries] == [2, 3]
        assert segment.stat().st_size == last
        assert ("torn tail" in caplog.text) == any(torn[last:])


def test_damage_before_a_valid_frame_and_zeros_is_refused(tmp_path: Path) -> None:
    left = _with_room(tmp_path)
    last = left.rfind(b"\xd7RKJ")
    segment = _segments(tmp_path)[0]
    for begin in range(0, last - 4, 5):
        damaged = left[:begin] + bytes(4) + left[begin + 4 :]
        if damaged == left:
            continue
        segment.write_bytes(damaged)
        with pytest.raises(RaftStartError, match="damaged"):
            Journal(tmp_path, sync=True).recover()
        assert segment.read_bytes() == damaged


def test_zeros_end_the_last_segment_only(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    for index in (2, 3):
        journal.append([_entry(index)])
        journal.make_room()
        journal.rotate()
    assert [journal_module.ZEROS > path.stat().st_size > 0 for path in _segments(tmp_path)] == [True] * 3
    journal.close()
    first = _segments(tmp_path)[0]
    first.write_bytes(first.read_bytes() + bytes(10))
    with pytest.raises(RaftStartError, match="later segments"):
        _open(tmp_path)


def test_frames_go_on_beyond_the_zeros_and_ask_for_more(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    assert journal.wants_room
    journal.make_room()
    assert not journal.wants_room
    size = _segments(tmp_path)[0].stat().st_size
    asked = []
    for index in range(2, 42):
        journal.append([_entry(index, size=10_000)])
        asked.append(journal.wants_room)
    assert asked == sorted(asked)
    assert 10 < asked.index(True) < 20  # the journal requests more zeros when half of the 256 KiB is used
    assert _segments(tmp_path)[0].stat().st_size > size
    journal.make_room()
    assert not journal.wants_room
    journal.append([_entry(42)])
    journal.close()
    journal, replay = _open(tmp_path)
    journal.close()
    assert [index for _, index, _ in replay.entries] == list(range(2, 43))


@pytest.mark.parametrize("room", [True, False])
def test_without_sync_nothing_is_written_ahead(tmp_path: Path, room: bool) -> None:
    journal, _ = _open(tmp_path, sync=room)
    assert journal.wants_room is room
    journal.close()


def test_a_bad_frame_before_a_valid_one_is_refused_at_any_byte(tmp_path: Path) -> None:
    segment = _written(tmp_path)
    whole = segment.read_bytes()
    last = whole.rfind(b"\xd7RKJ")
    for at in range(0, last, 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        segment.write_bytes(damaged)
        with pytest.raises(RaftStartError) as refused:
            Journal(tmp_path, sync=True).recover()
        assert str(segment) in str(refused.value)
        assert "\n" not in str(refused.value)
        assert "catches up" in str(refused.value)  # the error must say how to repair the member
        assert segment.read_bytes() == damaged  # a refused journal must not change


def test_scan_tells_the_good_bytes() -> None:
    good = encode_header(3, 77) + encode_frame(b"one", 77) + encode_frame(b"two", 77)
    scanned = scan(good + b"\xd7RK")
    assert ([bytes(p) for p in scanned.payloads], scanned.good) == ([b"one", b"two"], len(good))
    assert (scanned.number, scanned.salt) == (3, 77)
    with pytest.raises(Corrupt, match="header"):
        scan(b"x" + good)
    with pytest.raises(Corrupt, match="a valid one"):
        scan(encode_header(3, 77) + b"x" + encode_frame(b"two", 77))
    assert scan(encode_header(3, 77)[:-1]).good == 0


def test_d30_segments_that_an_image_covers_are_deleted_and_others_stay(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    journal.append([_entry(i) for i in range(2, 10)])
    journal.rotate()
    journal.append([_entry(i) for i in range(10, 13)])
    journal.trim(7)  # a snapshot covers the entries up to 7
    assert len(_segments(tmp_path)) == 2  # entries 8 and 9 are still needed
    journal.rotate()
    journal.append([_entry(13)])
    journal.trim(12)
    assert len(_segments(tmp_path)) == 1
    journal.close()
    journal, replay = _open(tmp_path)
    journal.close()
    assert [index for _, index, _ in replay.entries] == [13]
    joined = join(SnapshotFile(12, 1, 0, tmp_path), replay)
    assert joined is not None
    assert not joined.replaced
    assert joined.base_index == 12
    assert [index for _, index, _ in joined.entries] == [13]
    assert join(SnapshotFile(11, 1, 0, tmp_path), replay) is None  # entry 12 is missing


def test_a_missing_segment_or_a_damaged_earlier_one_is_refused(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    for i in (2, 3, 4):
        journal.append([_entry(i)])
        journal.rotate()
    journal.close()
    paths = _segments(tmp_path)
    content = paths[1].read_bytes()
    paths[1].unlink()
    with pytest.raises(RaftStartError, match="missing"):
        _open(tmp_path)
    paths[1].write_bytes(content[:-1])  # only the last segment may end with an incomplete frame
    with pytest.raises(RaftStartError, match="later segments"):
        _open(tmp_path)
    paths[1].write_bytes(content)
    _open(tmp_path)[0].close()


def test_a_crash_while_a_segment_is_begun_is_no_damage(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    journal.append([_entry(2)])
    journal.close()
    (tmp_path / "journal-00000002").write_bytes(b"\xd7R")
    journal, replay = _open(tmp_path)
    assert len(replay.entries) == 1
    journal.append([_entry(3)])
    journal.close()
    journal, replay = _open(tmp_path)
    journal.close()
    assert len(replay.entries) == 2


@pytest.mark.parametrize("op", [[9, 1], [OP_ENTRY, 2], [OP_ENTRY, 7, 1, b"gap"], "x"])
def test_operations_that_do_not_continue_the_log_are_refused(op: object) -> None:
    replay = Replay()
    for known in ([OP_ENTRY, 2, 1, b"\0"], [OP_ENTRY, 3, 1, b"\0"]):
        replay.apply(known)
    with pytest.raises(Corrupt):
        replay.apply(op)


def _replay(*ops: Op) -> Replay:
    replay = Replay()
    for op in ops:
        replay.apply(list(op))
    return replay


@pytest.mark.parametrize(
    ("image", "ops", "base", "kept", "replaced"),
    [
        pytest.param(None, (), (1, 0), [], False, id="nothing"),
        pytest.param(None, (_entry(2), _entry(3)), (1, 0), [2, 3], False, id="journal only"),
        pytest.param((5, 2), (), (5, 2), [], False, id="image only"),
        pytest.param(
            (3, 1), (_entry(2), _entry(3), _entry(4)), (3, 1), [4], False, id="D14 image in journal"
        ),
        pytest.param(
            (3, 2), (_entry(2), _entry(3), _entry(4)), (3, 2), [], True, id="image replaced the log"
        ),
        pytest.param((9, 2), (_entry(2), _entry(3)), (9, 2), [], True, id="image beyond the journal"),
        pytest.param((4, 2), ((OP_RESET, 4, 2), _entry(5, 2)), (4, 2), [5], False, id="after a reset"),
        pytest.param(
            (4, 3), ((OP_RESET, 4, 2), _entry(5, 2)), (4, 3), [], True, id="another image after reset"
        ),
    ],
)
def test_d14_image_and_journal_make_one_log(
    image: tuple[int, int] | None, ops: tuple[Op, ...], base: tuple[int, int], kept: list[int], replaced: bool
) -> None:
    found = SnapshotFile(*image, 0, Path()) if image else None
    joined = join(found, _replay(*ops))
    assert joined is not None
    assert (joined.base_index, joined.base_term) == base
    assert [index for _, index, _ in joined.entries] == kept
    assert joined.replaced is replaced


def test_a_commit_index_beyond_the_log_is_not_believed() -> None:
    joined = join(None, _replay(_entry(2), (OP_COMMIT, 2), (OP_COMMIT, 9)))
    assert joined is not None
    assert joined.commit_index == 2


def test_truncation_takes_back_what_was_durable_or_on_its_way() -> None:
    log = RaftLog(Recovered())
    entries: list[Entry] = [(REGULAR, index, 1) for index in range(2, 8)]
    for command, index, term in entries:
        log.add(command, index, term)
    first = log.take_ops(0.0)
    log.deleteEntriesFrom(4 - log.base_index)
    log.add(REGULAR, 4, 2)
    second = log.take_ops(0.0)
    assert first is not None
    assert second is not None
    log.durable(first[0])
    assert log.durable_index == 3
    log.durable(second[0])
    assert log.durable_index == 4
    log.deleteEntriesFrom(3 - log.base_index)
    assert log.durable_index == 2


# ---- full disk: a separate process that has a real limit on the size of its files


_FULL = """
    import resource, sys
    from pathlib import Path
    from routekeeper.nameserver.raft.storage.journal import Journal, StorageFull
    from routekeeper.nameserver.raft.consensus.log import OP_ENTRY
    directory = Path(sys.argv[1])
    journal = Journal(directory, sync=True)
    journal.recover()
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    if sys.argv[2] == "room":
        journal.make_room()
        if journal.wants_room or (directory / "journal-00000001").stat().st_size > 100:
            raise SystemExit("what was got of the room was not given back")
    index = 2
    try:
        while True:
            journal.append([(OP_ENTRY, index, 1, bytes(700))])
            index += 1
    except StorageFull as error:
        size = (directory / "journal-00000001").stat().st_size
        try:
            journal.append([(OP_ENTRY, index, 1, bytes(700))])
            raise SystemExit("still room")
        except StorageFull:
            pass
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.append([(OP_ENTRY, index, 1, bytes(700))])
        print(index, size)
"""


@pytest.mark.parametrize("room", ["room", "plain"])
def test_a_full_disk_cuts_the_partial_frame_and_goes_on_when_there_is_room(tmp_path: Path, room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FULL), str(tmp_path), room],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    last, size = map(int, done.stdout.split())
    assert last > 20
    assert size < 50_000
    journal, replay = _open(tmp_path)
    journal.close()
    assert [index for _, index, _ in replay.entries] == list(range(2, last + 1))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 50_000


class _FullAtEnd(Files):
    """A disk that cannot sync the file ``end`` while ``full`` is true.

    The file ``end`` stores the position at which the journal is known to end.
    """

    full = False

    def open(self, path: Path, **how: bool) -> File:
        file = super().open(path, **how)
        return _End(file.descriptor, self) if path.name == "end" else file


class _End(File):
    __slots__ = ("disk",)

    def __init__(self, descriptor: int, disk: _FullAtEnd) -> None:
        super().__init__(descriptor)
        self.disk = disk

    def sync(self) -> None:
        if self.disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().sync()


def test_a_journal_goes_on_although_a_full_disk_does_not_sync_its_known_end(tmp_path: Path) -> None:
    """The journal continues even if a full disk cannot sync the file ``end``.

    On some file systems, even a write that replaces existing bytes of a file needs new space.
    """
    disk = _FullAtEnd()
    journal = Journal(tmp_path, sync=False, files=disk)
    journal.recover()
    journal.keep_end()
    disk.full = True
    journal.rotate()
    journal.append([_entry(2)])
    journal.mark_end()
    journal.close()
    journal, replay = _open(tmp_path)
    journal.close()
    assert [index for _, index, _ in replay.entries] == [2]
    assert journal.shortened == ""


# ---- snapshots


def test_images_are_stored_whole_and_the_newest_is_read_back(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    assert snapshots.recover() is None
    for index in (5, 9, 14):
        snapshots.store(index, 2, b"members", b"state %d" % index * 100)
    assert snapshots.newest is not None
    assert (snapshots.newest.index, snapshots.newest.size) == (14, 800)
    assert snapshots.read(14, 8, 8) == b"state 14"
    assert snapshots.read(5, 0, 8) is None
    assert snapshots.read(9, 0, 7) == b"state 9"
    snapshots.close()
    (tmp_path / "snapshot-00000000000000000099.tmp").write_bytes(b"half")
    found = Snapshots(tmp_path).recover()
    assert found is not None
    assert (found[0].index, found[0].term, found[1]) == (14, 2, b"state 14" * 100)
    assert not list(tmp_path.glob("*.tmp"))


def test_d20_an_image_that_is_being_sent_stays_readable_when_replaced(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.store(5, 1, b"members", b"a" * 100)
    assert snapshots.read(5, 0, 10) == b"a" * 10
    snapshots.store(6, 1, b"other members", b"b" * 100)
    assert snapshots.read(5, 10, 10) == b"a" * 10
    snapshots.close()


class _KeepsOldImages(Files):
    """A disk that can neither delete a complete snapshot nor read its header."""

    opened = 0

    def unlink(self, path: Path) -> None:
        if path.suffix != ".tmp":
            raise OSError(errno.EIO, "Input/output error")
        super().unlink(path)

    def open(self, path: Path, **how: bool) -> File:
        self.opened += 1
        return _Unreadable(super().open(path, **how).descriptor, self)


class _Unreadable(File):
    __slots__ = ("disk",)

    def __init__(self, descriptor: int, disk: _KeepsOldImages) -> None:
        super().__init__(descriptor)
        self.disk = disk

    def read_at(self, offset: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        super().close()
        self.disk.opened -= 1


def test_an_old_image_that_cannot_be_deleted_does_not_make_the_new_one_fail(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, _KeepsOldImages())
    for index in (5, 6, 7):
        snapshots.store(index, 1, b"members", b"%d" % index)
        assert snapshots.newest is not None
        assert snapshots.newest.index == index
    found = Snapshots(tmp_path).recover()
    assert found is not None
    assert found[1] == b"7"


def test_an_image_stays_although_older_ones_have_higher_indexes(tmp_path: Path) -> None:
    """A new snapshot is not deleted, although older snapshots have higher indexes.

    With durability ``memory``, indexes begin at 1 after each start, but snapshots of earlier starts remain.
    """
    before = Snapshots(tmp_path)
    for index in (5000, 9000):
        before.store(index, 1, b"members", b"old")
    now = Snapshots(tmp_path)
    for index in (40, 60):
        now.store(index, 1, b"members", b"new")
        assert now.newest is not None
        assert now.newest.path.exists()


def test_what_a_failed_store_left_is_deleted_and_nothing_is_asked_of_the_disk_if_it_left_nothing(
    tmp_path: Path,
) -> None:
    class NoDescriptors(Files):
        def sync_directory(self, path: Path) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    snapshots = Snapshots(tmp_path, NoDescriptors())
    snapshots.discard(5)
    (tmp_path / "snapshot-00000000000000000005").write_bytes(b"half")
    with pytest.raises(OSError, match="Too many open files"):
        snapshots.discard(5)


def test_an_image_that_cannot_be_read_leaves_no_file_open(tmp_path: Path) -> None:
    disk = _KeepsOldImages()
    snapshots = Snapshots(tmp_path, disk)
    snapshots.store(5, 1, b"members", b"0123456789")
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            snapshots.read(5, 0, 10)
    assert disk.opened == 0


def test_an_image_that_is_stored_again_is_read_from_the_new_file(tmp_path: Path) -> None:
    """A snapshot that was stored again is read from the new file.

    The old file with the same index may be unreadable.
    """
    snapshots = Snapshots(tmp_path)
    snapshots.store(5, 1, b"members", b"a" * 100)
    assert snapshots.read(5, 0, 10) == b"a" * 10
    snapshots.store(5, 1, b"members", b"b" * 120)
    assert snapshots.newest is not None
    assert snapshots.newest.size == 120
    assert snapshots.read(5, 110, 20) == b"b" * 10
    snapshots.close()


def test_d15_a_damaged_image_is_refused_at_any_byte(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.store(5, 1, b"members", b"0123456789")
    assert snapshots.newest is not None
    path = snapshots.newest.path
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(RaftStartError, match="damaged"):
            Snapshots(tmp_path).recover()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RaftStartError, match="damaged"):
            Snapshots(tmp_path).recover()


def test_an_image_of_another_format_is_refused(tmp_path: Path) -> None:
    head = struct.pack(">4sIQQQ", b"RKSN", 2, 7, 3, 5)
    whole = head + struct.pack(">I", zlib.crc32(head + bytes(4) + b"state")) + bytes(4) + b"state"
    path = tmp_path / f"snapshot-{7:020d}"
    path.write_bytes(whole)
    with pytest.raises(RaftStartError, match="format 2, this program knows 1"):
        Snapshots(tmp_path).recover()
    head = struct.pack(">4sIQQQ", b"RKSN", 1, 7, 3, 5)
    whole = head + struct.pack(">I", zlib.crc32(bytes(4) + b"state", zlib.crc32(head))) + bytes(4) + b"state"
    path.write_bytes(whole)
    found = Snapshots(tmp_path).recover()
    assert found is not None
    assert (found[0].index, found[0].term, found[1]) == (7, 3, b"state")


# ---- Defects D15 and D30: if a member treats its files as PySyncObj does, these tests fail


def test_d30_a_crash_at_any_moment_of_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "member"
    directory.mkdir()
    moments: list[Path] = []
    looking = False

    def look() -> None:
        moments.append(tmp_path / f"moment-{len(moments)}")
        shutil.copytree(directory, moments[-1])

    def looked_at(change: Callable[..., Any]) -> Callable[..., Any]:
        def look_and_change(*arguments: Any, **keywords: Any) -> Any:
            nonlocal looking
            if not looking:
                looking = True
                look()
                looking = False
            return change(*arguments, **keywords)

        return look_and_change

    journal, _ = _open(directory)
    for index in range(2, 10):
        journal.append([_entry(index)])
    with monkeypatch.context() as watched:
        for name in ("write", "unlink", "ftruncate", "rename", "replace"):
            watched.setattr(os, name, looked_at(getattr(os, name)))
        journal.rotate()  # a member does this when it makes a snapshot of the entries up to 9
        for index in range(10, 16):
            journal.append([_entry(index)])
        durable_from = len(moments)
        journal.trim(9)
        journal.append([_entry(16)])
    journal.close()
    look()
    assert len(moments) > durable_from > 0
    for number, moment in enumerate(moments):
        found, replay = _open(moment)
        found.close()
        held = {index for _, index, _ in replay.entries}
        if number < durable_from:
            assert set(range(2, 10)) <= held
        else:
            joined = join(SnapshotFile(9, 1, 0, tmp_path), replay)
            assert joined is not None
            assert set(range(10, 16)) <= {index for _, index, _ in joined.entries}


def test_d30_a_journal_of_what_is_kept_is_as_small_as_that(tmp_path: Path) -> None:
    journal, _ = _open(tmp_path)
    for index in range(2, 200):
        journal.append([_entry(index, size=1000)])
    journal.rotate()
    journal.trim(199)
    journal.append([_entry(200)])
    journal.close()
    assert sum(path.stat().st_size for path in _segments(tmp_path)) < 1000


def _d15_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D15.

    The member then treats an unreadable snapshot like a missing snapshot.
    """
    original = Snapshots.recover

    def recover(snapshots: Snapshots) -> tuple[SnapshotFile, bytes] | None:
        try:
            return original(snapshots)
        except RaftStartError:
            return None

    patch.setattr(Snapshots, "recover", recover)


def _d30_checksums_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_module, "_checksum", lambda payload, salt: 0)


def _d30_in_place(patch: pytest.MonkeyPatch) -> None:
    """Switch off a repair of PySyncObj's defect D30: keep the log in one file.

    To trim the log, the member then empties the file and writes the remaining entries again one by one.
    """

    def trim(journal: Journal, index: int) -> None:
        reader = Journal(journal._directory, sync=False)
        replay, _ = reader.recover()
        reader.close()
        journal._cut(0)
        journal._write_header(journal._segments[-1].number)
        for segment in journal._segments[:-1]:
            segment.path.unlink()
        del journal._segments[:-1]
        for command, at, term in replay.entries:
            if at > index:
                journal.append([(OP_ENTRY, at, term, command)])

    patch.setattr(Journal, "trim", trim)


def _d30_never_shrinks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "trim", lambda journal, index: None)


SWITCHED_OFF: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[..., None]]] = [
    ("d15", _d15_off, lambda path, _: test_d15_a_damaged_image_is_refused_at_any_byte(path)),
    (
        "d30 checksums",
        _d30_checksums_off,
        lambda path, _: test_a_bad_frame_before_a_valid_one_is_refused_at_any_byte(path),
    ),
    ("d30 in place", _d30_in_place, test_d30_a_crash_at_any_moment_of_a_compaction_loses_nothing),
    (
        "d30 size",
        _d30_never_shrinks,
        lambda path, _: test_d30_a_journal_of_what_is_kept_is_as_small_as_that(path),
    ),
]


@pytest.mark.parametrize(
    ("switch_off", "scenario"), [case[1:] for case in SWITCHED_OFF], ids=[case[0] for case in SWITCHED_OFF]
)
def test_a_fix_that_is_switched_off_is_caught_by_its_scenario(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    find_wrong: Callable[..., None],
) -> None:
    find_wrong(switch_off, scenario)
