"""Tests of snapshots on faulty or slow disks.

The tests restore snapshots and transfer them to members without data.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from routekeeper.nameserver.disk.files import File, Files
from routekeeper.nameserver.raft.consensus.log import OP_COMMIT
from routekeeper.nameserver.raft.node import member as node_member
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.storage.images import SnapshotFile
from routekeeper.nameserver.raft.types import (
    ChangeNotYet,
    ChangeRefused,
    ChangeUnknown,
    NotLeader,
    RaftStartError,
    Role,
)
from tests.nameserver.raft.cluster import Cluster, cluster_of, in_seconds
from tests.nameserver.raft.test_member_disks import Still
from tests.waiting import until


class Faulty(Files):
    """A disk on which the next ``faults`` syncs of a directory fail after a snapshot was renamed."""

    faults = 0

    def sync_directory(self, path: Path) -> None:
        if self.faults and threading.current_thread().name.startswith("raft images"):
            self.faults -= 1
            raise OSError(errno.EIO, "Input/output error")
        super().sync_directory(path)


async def _saved(member: RaftMember) -> bytes:
    saved = await member.changes.save_snapshot(deadline=in_seconds(20))
    return saved.path.read_bytes()


async def test_a_snapshot_whose_restore_was_refused_is_not_restored_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot whose restore failed must not be restored at the next start.

    The operator has got the answer that nothing changed. If the next start restored the snapshot, entries
    that were acknowledged after this answer would be lost.
    """
    disk = Faulty()
    monkeypatch.setattr(node_member, "DISK", disk)
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        member = await cluster.elected()
        raw = await _saved(member)
        await cluster.put(b"two")
        disk.faults = 1
        with pytest.raises(ChangeRefused, match="cannot be stored: Input/output error"):
            await member.changes.restore_snapshot(raw, deadline=in_seconds(20))
        assert disk.faults == 0
        await cluster.put(b"three")
        (name,) = cluster.peers
        await cluster.close(name)
        await cluster.start(name)
        await cluster.put(b"four")
        assert cluster.payloads() == [b"one", b"two", b"three", b"four"]


async def test_a_member_stops_if_it_cannot_take_a_restore_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Faulty()
    monkeypatch.setattr(node_member, "DISK", disk)
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        member = await cluster.elected()
        raw = await _saved(member)
        disk.faults = 2
        with pytest.raises(ChangeUnknown, match="cannot be stored: Input/output error; this member stops"):
            await member.changes.restore_snapshot(raw, deadline=in_seconds(20))
        assert member.append(b"two", term=member.term) is None
        (reason,) = cluster.fatal
        assert "outcome unknown" in reason
        cluster.fatal.clear()


async def test_no_member_is_added_while_a_snapshot_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a snapshot is restored, the leader must refuse a new member.

    Otherwise, the entry of the new configuration would get the same index as the restored snapshot. Then only
    one member's log would contain this entry.
    """
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        member = await cluster.elected()
        raw = await _saved(member)
        await cluster.put(b"two")
        begun, may_end, store = asyncio.Event(), asyncio.Event(), member.images.store

        async def slow(index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
            begun.set()
            await may_end.wait()
            await store(index, term, configuration, data)

        monkeypatch.setattr(member.images, "store", slow)
        restoring = asyncio.ensure_future(member.changes.restore_snapshot(raw, deadline=in_seconds(20)))
        await begun.wait()
        with pytest.raises(ChangeNotYet, match="a snapshot is being restored"):
            await member.changes.add_member("127.0.0.1:1", deadline=in_seconds(0.1))
        may_end.set()
        await restoring
        assert member.members == cluster.peers
        await cluster.put(b"three")
        assert cluster.payloads() == [b"one", b"three"]


@pytest.mark.slow
async def test_a_restore_ends_if_its_member_leads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore must end if its member loses the leadership.

    In this test, the disk hangs while the restore waits for the last entry to be durable. A leader whose disk
    hangs steps down.
    """
    disk = Still()
    monkeypatch.setattr(node_member, "DISK", disk)
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        member = await cluster.elected()
        raw = await _saved(member)
        disk.moves.clear()
        try:
            assert member.append(b"two", term=member.term) is not None
            with pytest.raises(NotLeader):
                await member.changes.restore_snapshot(raw, deadline=in_seconds(30))
        finally:
            disk.moves.set()
        await cluster.put(b"three")
        assert cluster.payloads() == [b"one", b"two", b"three"]


async def _saved_alone(cluster: Cluster, payload: bytes) -> SnapshotFile:
    """Append an entry in a group of one, save a snapshot, and wait until the journal has no entries."""
    (name,) = cluster.peers
    folder = cluster.config(name).data_dir / "raft"

    def segments() -> list[Path]:
        return sorted(folder.glob("journal-*"))

    await cluster.put(payload)
    member = await cluster.elected()
    before, commit = segments(), msgspec.msgpack.encode((OP_COMMIT, member.commit_index))
    await until(lambda: commit in before[-1].read_bytes())
    saved = await member.changes.save_snapshot(deadline=in_seconds(20))
    await until(lambda: len(segments()) == 1 and segments() != before)
    return saved


@pytest.mark.parametrize("older", [False, True], ids=["it was the only one", "an older one exists"])
async def test_a_member_that_has_lost_its_newest_snapshot_does_not_start(tmp_path: Path, older: bool) -> None:
    """A member that has lost its newest snapshot must not start, even if its journal is empty.

    Only an older state or no state would be left, so acknowledged entries would be lost without a notice.
    """
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        (name,) = cluster.peers
        if older:
            await _saved_alone(cluster, b"one")
        saved = await _saved_alone(cluster, b"two")
        await cluster.close(name)
        saved.path.unlink()
        with pytest.raises(RaftStartError, match="what was acknowledged is lost here"):
            await cluster.start(name)


async def test_a_file_that_an_operator_put_beside_the_snapshots_is_no_snapshot(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        (name,) = cluster.peers
        saved = await _saved_alone(cluster, b"one")
        copy = saved.path.with_name("snapshot-before-upgrade")
        shutil.copy(saved.path, copy)
        await _saved_alone(cluster, b"two")
        await cluster.close(name)
        await cluster.start(name)
        await cluster.put(b"three")
        assert cluster.payloads() == [b"one", b"two", b"three"]
        assert copy.exists()


async def test_a_damaged_snapshot_is_not_given_to_an_operator_and_is_replaced(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        saved = await _saved_alone(cluster, b"one")
        whole = saved.path.read_bytes()
        saved.path.write_bytes(whole[:-1] + b"?")
        member = await cluster.elected()
        with pytest.raises(ChangeRefused, match="its checksum is wrong; ask again"):
            await member.changes.save_snapshot(deadline=in_seconds(20))
        await until(lambda: saved.path.read_bytes() == whole)


class Unreadable(Files):
    """A disk on which certain files cannot be read, until other files replace them."""

    def __init__(self) -> None:
        self.unreadable: set[Path] = set()

    def open(self, path: Path, **how: bool) -> File:
        file = super().open(path, **how)
        return _UnreadableFile(file.descriptor) if path in self.unreadable else file

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.unreadable.discard(new)


class _UnreadableFile(File):
    __slots__ = ()

    def read_at(self, offset: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


async def _with_a_member_without_data(cluster: Cluster) -> tuple[RaftMember, str]:
    """Start a cluster; return the leader, and the name of another member without data.

    The leader has a snapshot, and its log has no entries from before the snapshot. The other member does not
    run, and its disk is empty.
    """
    await cluster.start()
    leader = await cluster.elected()
    away = next(name for name in cluster.peers if cluster.up[name] is not leader)
    await cluster.close(away)
    await cluster.put(*(bytes(100_000) for _ in range(30)))
    await _saved(leader)
    await until(lambda: leader.engine.shared.log.base_index > 1)
    directory = cluster.config(away).data_dir
    directory.rename(directory.with_name("old"))
    return leader, away


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["unreadable", "missing", "short", "damaged"])
async def test_an_unreadable_snapshot_is_replaced_and_a_member_without_data_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    disk = Unreadable()
    monkeypatch.setattr(node_member, "DISK", disk)
    caplog.set_level("INFO")

    def lines(*events: str) -> int:
        return sum(record.getMessage().startswith(events) for record in caplog.records)

    async with cluster_of(tmp_path) as cluster:
        leader, away = await _with_a_member_without_data(cluster)
        files = cluster.config(cluster.name(leader)).data_dir.glob("raft/snapshot-*")
        if fault == "unreadable":
            disk.unreadable.update(files)
        elif fault == "missing":
            for path in files:
                path.unlink()
        elif fault == "short":
            for path in files:
                os.truncate(path, 1_000_000)
        else:
            for path in files:
                with path.open("r+b") as file:
                    file.seek(1_050_000)
                    file.write(b"?")
        caplog.clear()
        await cluster.start(away)
        await until(lambda: cluster.up[away].role is Role.FOLLOWER)
        await cluster.settled()
        assert lines("snapshot not read") == 1
        assert 2 <= lines("snapshot transfer began") <= 9


class Never(Files):
    """A disk on which no snapshot can be read while ``blind`` is true.

    Attributes:
        tries: Number of attempts to read a snapshot.
        made: Number of stored snapshots.
        full: True if the disk cannot store a snapshot either.
    """

    tries = made = 0
    blind = full = False

    def open(self, path: Path, **how: bool) -> File:
        if self.full and how.get("new") and path.name.startswith("snapshot-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = super().open(path, **how)
        if how or not self.blind or not path.name.startswith("snapshot-"):
            return file
        self.tries += 1
        return _UnreadableFile(file.descriptor)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.made += new.name.startswith("snapshot-")


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["another snapshot is stored", "the disk is full"])
async def test_a_leader_that_can_read_no_snapshot_pauses_between_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    """A leader that cannot read its snapshot must pause between its attempts to read it.

    Each pause is twice as long as the one before, until there is a newer snapshot.
    """
    caplog.set_level("INFO")
    disk = Never()
    monkeypatch.setattr(node_member, "DISK", disk)
    async with cluster_of(tmp_path) as cluster:
        _, away = await _with_a_member_without_data(cluster)
        caplog.clear()
        before, disk.full, disk.blind = disk.made, full, True
        loop = asyncio.get_running_loop()
        await cluster.start(away)
        begun = loop.time()
        end = begun + 6
        while loop.time() < end:
            await cluster.put(b"x")
            await asyncio.sleep(0.01)
        took = loop.time() - begun
        lines = [record.getMessage() for record in caplog.records]
        most = 1 + math.log2(1 + took) if full else 2 + took
        assert sum(line.startswith("snapshot transfer began") for line in lines) <= most
        unreadable = [line for line in lines if line.startswith("snapshot not read")]
        assert 1 <= len(unreadable) == len(set(unreadable))  # one line for each snapshot
        assert 2 <= disk.tries <= most
        assert disk.made - before <= 3 + took / 5
