"""Tests of operators' actions (rules 11 and 14 of docs/raft-rules.md).

Operators add and remove members, hand over leadership, save and restore snapshots, and create clusters.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.types import (
    ChangeRefused,
    ChangeUnknown,
    NotLeader,
    RaftStartError,
    Role,
)
from tests.nameserver.raft.cluster import cluster_of, in_seconds
from tests.ports import free_ports
from tests.waiting import until


@pytest.mark.slow
async def test_members_are_added_and_removed_and_everyone_follows(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.start()
        await cluster.put(*(b"%d" % i for i in range(50)))
        newcomers = [f"127.0.0.1:{port}" for port in free_ports(2)]
        for name in newcomers:
            await cluster.join(name)
            await cluster.put(name.encode())
        await cluster.settled()
        assert len((await cluster.elected()).voters) == 5
        leader = await cluster.elected()
        gone = next(name for name in cluster.peers if cluster.up[name] is not leader)
        await leader.changes.remove_member(gone, deadline=in_seconds(10))
        await until(lambda: [name for name, _ in cluster.removed] == [gone])
        assert "removed" in cluster.removed[0][1]
        await cluster.close(gone)
        with pytest.raises(RaftStartError, match="was removed from its cluster"):
            await cluster.start(gone)
        await cluster.put(b"after")
        await cluster.settled()
        await leader.changes.remove_member(gone, deadline=in_seconds(1))  # already removed: succeeds
        # A member that was added later can vote and lead like the first members, even after a restart of
        # all members.
        for name in list(cluster.up):
            await cluster.close(name)
        names = sorted({*cluster.peers, *newcomers} - {gone})
        await cluster.start(*names, peers=(*cluster.peers, *newcomers))
        await cluster.put(b"last")
        await cluster.settled()
        assert (await cluster.elected()).voters == tuple(names)


@pytest.mark.slow
async def test_a_member_that_does_not_come_stays_a_learner_and_the_caller_is_told(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.start()
        leader = await cluster.elected()
        (port,) = free_ports(1)
        name = f"127.0.0.1:{port}"
        with pytest.raises(ChangeUnknown, match="is a learner"):
            await leader.changes.add_member(name, deadline=in_seconds(0.3))
        assert leader.status()["learners"] == [name]
        assert len(leader.voters) == 3
        await cluster.put(b"goes on")
        await cluster.start(name, peers=(*cluster.peers, name))  # now the added member starts
        await until(lambda: name in leader.voters)
        await cluster.settled()


async def test_a_founder_without_a_disk_that_restarts_founds_no_second_cluster(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, durability="memory") as cluster:
        (founder,) = cluster.peers
        await cluster.start()
        await cluster.put(b"one")
        newcomers = [f"127.0.0.1:{port}" for port in free_ports(2)]
        for name in newcomers:
            await cluster.join(name)
        await cluster.settled()
        await cluster.close(founder, handover=True)
        await cluster.put(b"two")
        await cluster.start(founder)  # the settings still name only this member
        await until(lambda: cluster.up[founder].role is Role.FOLLOWER)
        await cluster.put(b"three")
        await cluster.settled()
        assert cluster.payloads() == [b"one", b"two", b"three"]


async def hand_over(leader: RaftMember, target: str | None) -> str:
    """Hand over leadership; repeat the request until the leader accepts it.

    The leader accepts only after the successor has answered one of the leader's messages.
    """
    while True:
        try:
            return await leader.changes.transfer_leadership(target, deadline=in_seconds(5))
        except ChangeRefused as error:
            if "out of reach, or has not caught up yet" not in str(error):
                raise
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_leadership_goes_where_it_is_sent(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, election_timeout_ms=2000) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        for target in (*cluster.peers, None):
            await cluster.settled()  # a new leader can hand over only after the other members answered
            leader = await cluster.elected()
            if target == cluster.name(leader):
                with pytest.raises(ChangeRefused, match="leads already"):
                    await leader.changes.transfer_leadership(target, deadline=in_seconds(5))
                continue
            found = await hand_over(leader, target)
            assert found == (target or found) != cluster.name(leader)
            with pytest.raises(NotLeader):
                await leader.changes.transfer_leadership(None, deadline=in_seconds(5))
        leader = await cluster.elected()
        with pytest.raises(ChangeRefused, match="none of the voters"):
            await leader.changes.transfer_leadership("127.0.0.1:1", deadline=in_seconds(5))
        for name in list(cluster.up):
            if cluster.up[name] is not leader:
                await cluster.close(name)
        with pytest.raises((ChangeRefused, NotLeader)):
            await leader.changes.transfer_leadership(None, deadline=in_seconds(1))


@pytest.mark.slow
async def test_a_snapshot_of_members_in_memory_is_restored_in_a_new_cluster(tmp_path: Path) -> None:
    async with cluster_of(tmp_path / "old", durability="memory") as cluster:
        await cluster.start()
        await cluster.put(*(b"%d" % i for i in range(30)))
        leader = await cluster.elected()
        saved = await leader.changes.save_snapshot(deadline=in_seconds(10))
        image = saved.path.read_bytes()
        assert saved.file_size == len(image)
        assert 30 <= saved.index <= leader.applied_index
        again = await leader.changes.save_snapshot(deadline=in_seconds(10))
        assert again.index >= saved.index
        with pytest.raises(ChangeRefused, match="force-new-cluster"):
            await leader.changes.restore_snapshot(image, deadline=in_seconds(5))
        follower = next(member for member in cluster.up.values() if member is not leader)
        with pytest.raises(NotLeader):
            await follower.changes.restore_snapshot(image, deadline=in_seconds(5))

    async with cluster_of(tmp_path / "new", 3, durability="memory") as cluster:
        first, *others = cluster.peers
        await cluster.start(first, force_new_cluster=True)
        await cluster.put(b"will be gone", *(b"x" for _ in range(100)))
        member = cluster.up[first]
        for bad in (b"", image[:-1], b"XXXX" + image[4:]):
            with pytest.raises(ChangeRefused, match="no snapshot"):
                await member.changes.restore_snapshot(bad, deadline=in_seconds(5))
        term = member.term
        await member.changes.restore_snapshot(image, deadline=in_seconds(10))
        assert cluster.payloads() == [b"%d" % i for i in range(30)]
        assert member.term > term
        await cluster.put(b"after")
        for name in others:
            await cluster.join(name)
        await cluster.settled()
        assert cluster.payloads() == [*(b"%d" % i for i in range(30)), b"after"]


@pytest.mark.slow
async def test_a_new_cluster_begun_but_not_finished_is_finished_by_the_next_start(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        await cluster.settled()
        one = cluster.peers[0]
        for name in cluster.peers:
            await cluster.close(name)
        directory = DataDirectory(cluster.config(one))
        directory.state = dataclasses.replace(directory.state, forcing=True)
        directory.standing_to_save()()
        directory.close()
        await cluster.start(one)
        await until(lambda: cluster.up[one].leads)
        assert cluster.up[one].voters == (one,)
        assert cluster.payloads() == [b"one"]


async def test_a_restore_that_fails_after_its_deadline_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed restore is logged even after its deadline.

    At the deadline, the operator gets "outcome unknown". So only the log can report the later failure.
    """
    begun = asyncio.Event()

    async def restore(member: RaftMember, raw: bytes) -> None:
        await begun.wait()
        raise ChangeRefused("the snapshot cannot be stored: planted")

    monkeypatch.setattr(RaftMember, "restore", restore)
    async with cluster_of(tmp_path, size=1) as cluster:
        await cluster.start()
        member = await cluster.elected()
        with pytest.raises(ChangeUnknown):
            await member.changes.restore_snapshot(b"", deadline=in_seconds(0.01))
        assert "not restored" not in caplog.text
        begun.set()
        await until(lambda: "snapshot not restored error=the snapshot cannot be stored" in caplog.text)
