"""Tests of members that start, replicate entries, make snapshots, and stop."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError, Role, StopMember
from tests import standstill
from tests.nameserver.raft.cluster import Machine, cluster_of
from tests.waiting import until


@pytest.mark.slow
async def test_three_members_in_memory_replicate_and_one_catches_up(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, durability="memory") as cluster:
        await cluster.start()
        await cluster.put(*(b"%d" % i for i in range(100)))
        await cluster.settled()
        leader = await cluster.elected()
        follower = next(name for name in cluster.peers if cluster.up[name] is not leader)
        await cluster.close(follower)
        await cluster.put(*(b"%d" % i for i in range(100, 150)))
        await cluster.start(follower)
        assert cluster.up[follower].role is Role.LEARNER
        await until(lambda: cluster.up[follower].role is Role.FOLLOWER)
        await cluster.settled()
        assert cluster.payloads() == [b"%d" % i for i in range(150)]
        assert cluster.changes > 0


@pytest.mark.slow
async def test_a_closing_leader_is_replaced_without_a_pause(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, election_timeout_ms=3000) as cluster:
        await cluster.start()
        await cluster.put(b"one")
        leader = await cluster.elected()
        standstill.begin()
        begun = time.monotonic()
        await cluster.close(cluster.name(leader), handover=True)
        await cluster.elected()
        assert standstill.elapsed(begun) < 2.0, "nobody waited for an election timeout"
        await cluster.put(b"two")
        await cluster.settled()


@pytest.mark.slow
async def test_application_messages_are_in_order_with_what_is_applied(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.start()
        await cluster.put(b"x")
        leader = await cluster.elected()
        name = next(peer for peer in cluster.peers if cluster.up[peer] is not leader)
        follower = cluster.up[name]
        assert follower.leader == cluster.name(leader)
        assert leader.linked == set(cluster.peers) - {cluster.name(leader)}
        for i in range(100):
            assert follower.send(cluster.name(leader), b"%d" % i)
        await until(lambda: len(cluster.messages) == 100)
        assert cluster.messages == [(cluster.name(leader), name, b"%d" % i) for i in range(100)]
        assert not follower.send("127.0.0.1:1", b"x")
        assert not follower.send(name, b"x")


@pytest.mark.slow
async def test_contact_is_young_with_a_quorum_and_grows_without(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, election_timeout_ms=200) as cluster:
        await cluster.start()
        await cluster.put(b"x")
        await cluster.settled()
        assert {member.contact_limit for member in cluster.up.values()} == {0.2}
        await until(lambda: all(m.contact_age() < m.contact_limit for m in cluster.up.values()))
        leader = await cluster.elected()
        others = [name for name in cluster.peers if cluster.up[name] is not leader]
        assert all(leader.member_age(name) < 1.0 for name in others)
        for name in others:
            await cluster.close(name)
        await until(lambda: leader.contact_age() > leader.contact_limit)
        await until(lambda: leader.role is not Role.LEADER)
        assert leader.append(b"late", term=leader.term) is None


async def test_a_single_member_works_alone_on_a_port_of_its_own_choice(tmp_path: Path) -> None:
    machine = Machine()
    config = RaftConfig(
        me="one:0", peers=("one:0",), listen="127.0.0.1:0", data_dir=tmp_path, durability="fsync"
    )
    for count in (1, 2):
        member = RaftMember(config, machine, on_peer_message=lambda s, d: None, on_change=lambda: None)
        await member.start()
        assert int(member.bound.rpartition(":")[2]) > 0
        await until(lambda member=member: member.leads)  # type: ignore[misc]
        index = member.append(b"%d" % count, term=member.term)
        assert index is not None
        await until(lambda member=member, index=index: member.applied_index >= index)  # type: ignore[misc]
        assert member.contact_age() == 0.0
        await member.close()
        await member.close()
    # A restarted member applies its whole log again, so b"1" appears twice.
    assert [payload for _, payload in machine.applied] == [b"1", b"1", b"2"]


async def test_a_member_with_other_peers_is_not_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(tmp_path) as cluster:
        await cluster.start(*cluster.peers[:2])
        third = cluster.peers[2]
        cluster.peers = (*cluster.peers[:2], third, "127.0.0.1:1")
        await cluster.start(third)
        await until(lambda: any("another cluster" in r.getMessage() for r in caplog.records))
        assert cluster.up[third].linked == frozenset()


async def test_an_entry_or_image_that_cannot_be_read_is_refused_at_start_with_one_line(
    tmp_path: Path,
) -> None:
    class Newer(Machine):
        def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
            raise StopMember("command format 9, this program knows 1")

        def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
            raise StopMember("image format 9, this program knows 1")

    async with cluster_of(tmp_path, 1, compact_bytes=20_000) as cluster:
        for payload, what in ((b"x", "command"), (bytes(30_000), "image")):
            await cluster.start()
            await cluster.put(payload)
            member = cluster.up[cluster.peers[0]]
            if what == "image":
                await until(lambda member=member: int(str(member.status()["snapshot_index"])) > 0)  # type: ignore[misc]
            await cluster.close(cluster.peers[0])
            again = RaftMember(
                cluster.config(cluster.peers[0]),
                Newer(),
                on_peer_message=lambda sender, data: None,
                on_change=lambda: None,
                on_fatal=cluster.fatal.append,
            )
            with pytest.raises(RaftStartError, match=f"{what} format 9") as refused:
                await again.start()
            assert "\n" not in str(refused.value)


async def test_a_snapshot_that_raises_is_a_failed_snapshot(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1, compact_bytes=5_000) as cluster:
        await cluster.start()
        cluster.machines[cluster.peers[0]].snapshot = lambda: 1 // 0  # type: ignore[assignment,return-value]
        for _ in range(20):
            await cluster.put(bytes(1000))
        member = cluster.up[cluster.peers[0]]
        await until(lambda: member.status()["snapshot_failures"] == 1)
        await cluster.put(b"still works")


async def test_a_first_start_that_cannot_bind_leaves_nothing_behind(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        (name,) = cluster.peers
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(name.rpartition(":")[2])))
            taken.listen()
            with pytest.raises(RaftStartError, match=f"cannot listen on {name}"):
                await cluster.start(name)
        left = [path.name for path in cluster.config(name).data_dir.rglob("*") if path.is_file()]
        assert left == ["lock"]
        await cluster.start(name)
        await cluster.put(b"works")


@pytest.mark.slow
async def test_peers_may_be_corrected_until_the_group_is_founded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        caplog.set_level(logging.INFO)
        one, two = cluster.peers
        # The second address is wrong, as after a typing error.
        await cluster.start(one, peers=(one, "127.0.0.1:1"))
        assert cluster.up[one].waiting_for == ("127.0.0.1:1",)
        assert "first start waits for members=127.0.0.1:1" in caplog.text
        await cluster.close(one)
        await cluster.start(one, two)
        await cluster.put(b"founded")
        assert f"peers corrected before the first start former=127.0.0.1:1,{one}" in caplog.text
        await cluster.close(two)
        await cluster.close(one)
        await cluster.start(one, peers=(one,))  # this has no effect, because the group exists
        assert cluster.up[one].members == tuple(sorted((one, two)))
        assert "stored members rule" in caplog.text


@pytest.mark.slow
async def test_members_of_different_durability_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        one, two = cluster.peers
        await cluster.start(one)
        await cluster.start(two, durability="fsync")
        await cluster.put(b"x")
        assert f"members differ in durability peer={two} theirs=fsync mine=journal" in caplog.text
        assert f"members differ in durability peer={one} theirs=journal mine=fsync" in caplog.text
